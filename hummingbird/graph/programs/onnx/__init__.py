"""ONNX files as nets, by torch's functions.

reader.py       `read`: the file, its weights and names, and the call of every node
patterns.py     activations that exporters write out, as one operator
values.py       the table of operators, and the values between them
arithmetic.py, layers.py, sequences.py, shapes.py, resize.py   the operators
"""

from hummingbird.graph.programs.onnx.reader import read

__all__ = ["read"]
