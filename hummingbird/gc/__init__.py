"""Garbled circuits between two parties, the data's side and the model's side, without a dealer.

`relu` has the one circuit, a ReLU on shares of few bits, and what both sides need to draw for it. Semi-honest: a
garbler that deviates makes the evaluator compute another function.
"""
