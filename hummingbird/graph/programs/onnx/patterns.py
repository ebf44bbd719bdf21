"""Activations that exporters write out, joined in a graph into the one operator that they are.

x (1 + erf(x / sqrt 2)) / 2   Gelu, whose erf has no private form alone
x sigmoid(x)                  Swish, in private one table instead of a table and a product
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

Named = tuple[NodeProto, str]


def joined(graph: GraphProto, nodes: Sequence[Named]) -> list[Named]:
    """Replace each GELU and SiLU that an exporter wrote out in several nodes by one node; return the graph's new nodes.

    nodes: pairs of a node and its name in the net; the result has the same form. The new node has the name of the last
    node that it replaces.
    """
    found = _Graph(graph, nodes)
    for node, _ in nodes:
        if node.op_type == "Erf":
            found.gelu(node)
        elif node.op_type == "Sigmoid":
            found.silu(node)
    return found.rest()


def _read(graph: GraphProto) -> Iterator[str]:
    """Yield the names of all values that a graph inside a node reads or returns."""
    yield from (value.name for value in graph.output)
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _read(attribute.g)


class _Graph:
    """The nodes of an ONNX graph, indexed by the values that they compute and read, to find written-out activations.

    instead: name of a node's output -> the node that replaces it.
    """

    def __init__(self, graph: GraphProto, nodes: Sequence[Named]) -> None:
        self.nodes, self.outputs = list(nodes), {value.name for value in graph.output}
        self.makers = {name: node for node, _ in nodes for name in node.output}
        self.readers: dict[str, list[NodeProto]] = defaultdict(list)
        for node, _ in nodes:
            for name in node.input:
                self.readers[name].append(node)
            for attribute in node.attribute:  # a graph inside a node may read any value
                if attribute.HasField("g"):
                    self.outputs.update(_read(attribute.g))
        self.constants = {one.name: one for one in graph.initializer}
        self.constants |= {
            node.output[0]: node.attribute[0].t
            for node, _ in nodes
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value"
        }
        self.instead: dict[str, NodeProto] = {}

    def number(self, name: str) -> float | None:
        """Return the constant of one element called `name` as a float; None if there is no floating-point one."""
        one = self.constants.get(name)
        if one is None or one.data_type not in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE):
            return None
        array = numpy_helper.to_array(one)
        return float(array.reshape(-1)[0]) if array.size == 1 and array.ndim <= 1 else None  # adds no dimensions

    def only_reader(self, name: str, kind: str) -> NodeProto | None:
        """Return the node that reads the value `name`, if it is the only reader and its operator is `kind`; else None.

        A value that is a result of the graph has further readers.
        """
        readers = self.readers[name]
        fits = len(readers) == 1 and readers[0].op_type == kind and name not in self.outputs
        return readers[0] if fits else None

    def other(self, node: NodeProto, name: str) -> str:
        """Return the name of the input of `node`, which has two, that is not called `name`."""
        return str(node.input[1] if node.input[0] == name else node.input[0])

    def scaled(self, name: str) -> tuple[str, float]:
        """Return (x, c) if the value `name` is c x, the product or quotient of x and a constant; else return (name, 1).

        x is the name of a value, c a number.
        """
        node = self.makers.get(name)
        if node is None or node.op_type not in ("Mul", "Div"):
            return name, 1.0
        first, second = (self.number(operand) for operand in node.input)
        if second is not None and first is None:
            divided = node.op_type == "Div"
            return node.input[0], (1 / second if divided and second else second)
        if first is not None and second is None and node.op_type == "Mul":
            return node.input[1], first
        return name, 1.0

    def gelu(self, erf: NodeProto) -> None:
        x, factor = self.scaled(erf.input[0])
        plus = self.only_reader(erf.output[0], "Add")
        if not math.isclose(factor, math.sqrt(0.5), rel_tol=1e-3) or plus is None:
            return
        if self.number(self.other(plus, erf.output[0])) != 1:
            return
        value, product, factors = plus.output[0], 1.0, 0
        while (node := self.only_reader(value, "Mul")) is not None:
            name = self.other(node, value)
            constant = self.number(name)
            source, times = (name, 1.0) if constant is not None else self.scaled(name) if name != x else (x, 1.0)
            if constant is None and source != x:
                return
            product *= times if constant is None else constant
            factors += constant is None
            value = str(node.output[0])
            if factors == 1 and math.isclose(product, 0.5, rel_tol=1e-3):
                self.instead[value] = helper.make_node("Gelu", [x], [value])
                return

    def silu(self, sigmoid: NodeProto) -> None:
        x = sigmoid.input[0]
        node = self.only_reader(sigmoid.output[0], "Mul")
        if node is not None and self.other(node, sigmoid.output[0]) == x:
            self.instead[node.output[0]] = helper.make_node("Swish", [x], [node.output[0]])

    def rest(self) -> list[Named]:
        """Return the pairs (node, its name in the net) that the graph's results need, after the replacements."""
        replaced = [
            (self.instead.get(node.output[0], node) if node.output else node, title) for node, title in self.nodes
        ]
        needed, kept = set(self.outputs), list[Named]()
        for node, title in reversed(replaced):
            if any(name in needed for name in node.output):
                needed.update(node.input)
                kept.append((node, title))
        return kept[::-1]
