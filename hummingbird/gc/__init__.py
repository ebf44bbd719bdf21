"""Garbled circuits for two parties without a dealer: oblivious transfers, and circuits on cut shares."""
