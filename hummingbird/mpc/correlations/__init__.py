"""Correlated randomness: the random numbers that belong together, of which the dealer hands every party a share.

    request.py            a request: free and derived fields by name, their shares from seeds, the corrections
    field.py              one tensor of it: how it is shared, drawn from a stream and corrected
    parameters.py         limits of a request's parameters
    material.py           a party's shares for one request, and what they have cost
    receiver_rotation.py  which party receives the correction of a request
    registry.py           all kinds by name: requests that come from another process
    provider.py           requests for CrypTen's own functions (crypten/provider.py)

The requests of an operation stand in its module of mpc/protocols. Parties and the dealer share both packages, which
need torch alone.
"""
