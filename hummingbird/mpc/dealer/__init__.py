"""The dealer: correlated randomness from a third process that sees no input.

`server` is its state and service, `client` what a party holds, `ahead` its work in the background, `command` the
program, `local` a stand-in without privacy. Dealt in advance: `deal` writes, `folder` is the format, the ledger
(hummingbird/ledger.py) what was used, and `store` what a party holds then. Nothing here imports CrypTen: a dealer needs
torch alone, and starts in the time that takes.
"""
