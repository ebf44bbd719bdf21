"""Garbled circuits between two parties, the data's side and the model's side, without a dealer.

Semi-honest: a garbler that deviates can make the evaluator compute another function.

relu       the only circuit, a ReLU on shares of few bits, and its labels
cot        correlated oblivious transfers, which give the evaluator its labels
base_ot    base oblivious transfers, for the set-up of `cot`
"""
