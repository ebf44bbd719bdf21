"""The dealer: correlated randomness from a third process that sees no input.

`server` is its state and service, `client` what a party holds, `command` the program, `local` a stand-in without
privacy. Nothing here imports CrypTen: a dealer needs torch alone, and starts in the time that takes.
"""
