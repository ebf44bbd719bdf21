"""How parties compute on shares: one module for each protocol, its derivation first, its price beside it.

registry.py     the protocols by name
comparison.py   what a layer that compares asks of a protocol; masked.py and gmw.py answer
law.py          what their comparisons decide, without shares
truncation.py   a bit times a value, cut, in one opening; and exact truncation
boolean.py      ANDs of packed bits
beaver.py       products of two private values, and squares
weight_mask.py  products with weights that belong to one party
"""
