"""How parties compute on shares: one module for each operation. It has the derivation, the request (what the dealer
draws), the function that parties run, and its price.

beaver.py          products of two private values, squares, and rows that are opened once
weight_mask.py     products with weights that belong to one party
lift.py            from a small ring to a larger one
lifted_product.py  products of values that are lifted as they are opened; lifted_matmul.py: matrix products
rows.py            rows that are lifted, squared and multiplied by one opening
truncation.py      a bit times a value, cut, in one opening; and exact truncation
division.py        division by a public number
poly.py            smooth functions, looked up as polynomials
boolean.py         ANDs of packed bits
masked.py, gmw.py  ReLUs: the masked opening and HummingBird's carry tree
thresholds.py      several comparisons from one masked opening
step_tables.py     comparisons with a secret number by tables; table_choice.py: how many tables

operation.py       an operation as the formulas of layers use it: result, run and price in one record
comparison.py      what a layer that compares asks of a protocol; masked.py and gmw.py answer
law.py             what their comparisons decide, without shares
registry.py        the protocols that compare, by the name that users give
"""
