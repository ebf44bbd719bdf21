"""A session: how the parties of a run meet, share secrets and compare facts, and leave.

session        `Session`: rank, channel, dealer and device of a party in a run; facts that must be equal at all parties
launch         `init` and `uninit`: how a party joins a run, and leaves it
meeting        the processes of a run find each other in torchrun's store
rendezvous     channels between parties, their seeds, and their dealer
listener       the address at which a party takes connections
sharing        `Shared`: a share with its bits of fraction
lanes          parties with several GPUs: a process for each, and their results at lane 0
shared_port    one port for all lanes of a party
"""
