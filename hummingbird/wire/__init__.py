"""What crosses a process boundary: the channel between the parties, services over gRPC, and the meter that counts
both.
"""
