"""Garbled circuits between two parties, the data's side and the model's side, without a dealer.

Semi-honest: a garbler that deviates can make the evaluator compute another function.

relu       the only circuit, a ReLU on shares of few bits, and its labels
The evaluator gets its labels by correlated oblivious transfers (hummingbird/ot/).
"""
