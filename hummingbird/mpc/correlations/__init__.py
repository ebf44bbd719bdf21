"""Correlated randomness: random tensors that depend on each other, of which the dealer gives each party a share.

    request.py   a request: limits of its parameters, its free and derived fields, their shares from seeds, the
                 correction, and which party receives it
    field.py     one tensor of a request: how it is shared, drawn from a stream and corrected
    provider.py  requests for CrypTen's own functions (crypten/run.py)

The requests of an operation are in its module of mpc/protocols, whose registry.py has all kinds by name. The parties
and the dealer use both packages, which need torch alone.
"""
