"""Connections between the parties of a session.

channel, staging        packed tensors from party to party; copies between a GPU and pinned memory
connect, handshake      how the parties' connections are made, and how both sides prove who they are
branches                computations whose messages of one depth travel in one frame
interleave, prefetch    computations that take turns on one channel; an iterator read ahead by a thread
meter                   counts of messages, rounds and seconds of every layer
"""
