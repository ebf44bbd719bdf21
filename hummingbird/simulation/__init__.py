"""Simulation of private inference in plaintext: the net decides as the parties would, without shares or messages.

simulate.py     `simulate`: the net with simulated comparing layers ("fast"), or all parties in one process ("exact")
compare.py      a comparison by a protocol's law on tensors, with gradients
layers.py       the simulated layers: the private layers' formulas over that comparison, with changing windows
folded.py       the net with folded batch norms and rounded constants, run from any step to any other
observe.py      `magnitudes`: the largest values that a net compares; `find_rows`: ranges of rows of softmaxes and norms
errors.py       `find_errors`: how much each function may err so that the net's results err little
cut.py          two parties without a dealer (hummingbird/hybrid)
"""
