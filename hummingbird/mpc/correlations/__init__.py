"""Correlated randomness: the random numbers that belong together, of which the dealer hands every party a share.

    request.py      a request: free and derived fields by name, their shares from seeds, the corrections
    field.py        one tensor of it: how it is shared, drawn from a stream and corrected
    parameters.py   limits of a request's parameters
    material.py     a party's shares for one request, and what they have cost
    registry.py     all kinds by name: requests that come from another process
    bits.py         ANDs of packed bits (protocols/boolean.py, protocols/gmw.py)
    masked.py       a mask and its step tables (protocols/masked.py)
    poly.py         a mask and the coefficients of polynomials (protocols/poly.py)
    truncation.py   masks and their quotients (protocols/truncation.py, mpc/functions/division.py)
    lift.py         a mask of a small ring, and its carry (protocols/lift.py)
    products.py     products of masks (protocols/beaver.py, protocols/weight_mask.py)
    provider.py     for CrypTen's own functions (crypten/provider.py)

Parties and the dealer share this package. It needs torch alone.
"""
