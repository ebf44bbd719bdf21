"""Connections between the parties: the channel, how it is made, and the meter that counts what it sends."""
