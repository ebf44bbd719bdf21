"""Two parties make the material of their protocols themselves, from transfers and encryption, without a dealer.

dealer.py      a session's source of material: a thread that makes it ahead of its use
keeping.py     a store that both make in advance, set after set
material.py    requests in lock-step, in pieces if they are large; their fields and their cost
recipe.py      how one kind of request is made: a record for each kind, in the modules below
masked.py      masked openings, and thresholds
boolean.py     ANDs of bits, and bits as numbers
sums.py        lifts, truncations, selections, wraps: carries of sums
quotients.py   quotients by any number
products.py    products, squares and rows
lifted.py      products and squares of values that are lifted as they are opened; lifted_matrices.py: of matrices
matrices.py    matrix products and convolutions; terms.py: small ones
owned.py       products with weights that one party holds in clear
encrypted.py   products with encrypted polynomials
masks.py       masks that neither party knows, step tables of their bits, and their squares
carry.py       carries of a sum of two numbers, each known to one party
transfers.py   random transfers, and the words that they carry
lockstep.py    protocols whose messages of one round are one frame
price.py       transfers, bits and rounds
"""
