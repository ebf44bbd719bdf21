"""The dealer: a third process that sends correlated randomness to the parties and sees no input.

server.py      the dealer's sessions, its service, and its figures for Prometheus
client.py      a party's connection to a dealer; and a substitute inside the party's process, without privacy
supplies.py    a party's background thread, which makes material ahead of its use
command.py     the program, and a dealer that party 0 starts on its own host
deal.py        dealing in advance: writes a store
folder.py      the files of a store
store.py       a party's part of a store, in place of a dealer
kept.py        the folder of a kept store, with sets of slots that come and go; and the keeper, which deals the sets
kept_store.py  what stores of sets have in common, and a party's part of a kept store, in place of a dealer
sealing.py     objects that only one party can open, and only a dealer that it knows can make
bucket.py      a party's place in an object store: sets, claims, requests
set_reader.py  a party's thread that claims sets in an object store and reads them ahead
bucket_store.py  a party's sets in an object store, in place of a dealer; and dealing them

The ledger of a store (hummingbird/slots.py) records the slots that are used. Nothing here imports CrypTen: a dealer
needs torch alone, so that it starts fast.
"""
