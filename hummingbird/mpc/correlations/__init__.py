"""Correlated randomness: random tensors that depend on each other, of which the dealer gives each party a share.

    request.py            a request: its free and derived fields, their shares from seeds, the corrections
    field.py              one tensor of a request: how it is shared, drawn from a stream and corrected
    parameters.py         limits of a request's parameters
    material.py           one party's shares for one request, and their cost
    receiver_rotation.py  which party receives the correction of a request
    registry.py           all kinds of requests by name; reads requests from other processes
    provider.py           requests for CrypTen's own functions (crypten/provider.py)

The requests of an operation are in its module of mpc/protocols. The parties and the dealer use both packages, which
need torch alone.
"""
