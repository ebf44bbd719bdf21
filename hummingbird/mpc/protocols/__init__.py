"""How parties compute on shares: a module for each operation.

Such a module has the operation's derivation, its request (what the dealer draws), the function that parties run, and
its price.

beaver.py          products of two private values, squares, and rows that are opened once
weight_mask.py     products with weights that belong to one party
owned.py           the same for two parties without a dealer
cached_rows.py     products with rows that stay for a conversation, each opened once
lift.py            shares mod 2^k turned into shares of a larger ring
lifted_product.py  products of values that are lifted by the same opening; lifted_matmul.py: matrix products
rows.py            rows that one opening lifts, squares and multiplies
truncation.py      a bit times a truncated value in one opening; and truncation that is exact to one unit
division.py        division by a public integer
poly.py            smooth functions, looked up as polynomials
boolean.py         ANDs of packed bits
masked.py, gmw.py  ReLUs: the masked opening, and HummingBird's carry tree
thresholds.py      several comparisons from one masked opening
lines.py           ReLUs in one round: a masked opening selects a line
step_tables.py     comparisons with a secret number by tables, and the choice of the number of tables

interfaces.py      what layers know of protocols: result, run and price of an operation, which formulas use; and the
                   comparison, which masked.py and gmw.py implement
law.py             the decisions of these comparisons, computed without shares
registry.py        the protocols that compare, by the name in `convert_model(net, protocol=...)`; the kinds of requests
                   by name, and the reader of requests from other processes
"""
