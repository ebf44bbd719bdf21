"""Garbled circuits between two parties, the data's side and the model's side, without a dealer.

`relu` has the one circuit, a ReLU on shares of few bits, and what both sides need to draw for it; `cot` the oblivious
transfers that bring the evaluator its labels, `base_ot` and `trees` their set-up. Semi-honest: a garbler that deviates
makes the evaluator compute another function.
"""
