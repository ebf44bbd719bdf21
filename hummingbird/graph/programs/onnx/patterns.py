"""Layers that exporters write out, joined in a graph into the operators that they are.

x (1 + erf(x / sqrt 2)) / 2                              Gelu, which is exact for values of any size
x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2        Gelu by tanh: one table instead of a table and four products
x sigmoid(x)                                             Swish, in private one table instead of a table and a product
exp(x - max x) / sum exp(x - max x)                      Softmax
(x - mean x) (1 / sqrt(mean x^2 - (mean x)^2 + eps) w)   a norm: (x - mean x) / sqrt(mean (x - mean x)^2 + eps), times w

The last two are those of JAX, which drops the dimension of a sum, and then reshapes and expands the result to the shape
of x with 1 in that dimension. That they do so follows from the shapes, by ONNX's shape inference; the one dimension
that it may leave open, the batch, follows from the number of elements.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property

from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper, shape_inference

Named = tuple[NodeProto, str]
Shape = list[int | None]  # None: a size that does not follow from the file
_LARGEST = 2**31 - 1  # bytes of a model that ONNX infers shapes for
_DEEPEST = 6  # products in a term such as 0.044715 x x x


def joined(graph: GraphProto, nodes: Sequence[Named], version: int) -> list[Named]:
    """Replace each layer that an exporter wrote out in several nodes by the operators it is; return the new nodes.

    nodes: pairs of a node and its name in the net; the result has the same form. A new node has the name of the last
    node that it replaces. version: of the operators, the file's opset.
    """
    made = {name for node, _ in nodes for name in node.output}
    for node, _ in nodes:
        if not made.isdisjoint(node.input):
            return list(nodes)  # not in order: the reader refuses the node, and a circle would have no end here
        made.difference_update(node.output)
    found = _Graph(graph, nodes, version)
    joins = {
        "Erf": found.gelu,
        "Tanh": found.tanh_gelu,
        "Sigmoid": found.silu,
        "Exp": found.softmax,
        "Reciprocal": found.norm,
    }
    for node, _ in nodes:
        if node.op_type in joins:
            joins[node.op_type](node)
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
    """The nodes of an ONNX graph, indexed by the values that they compute and read, to find written-out layers.

    instead: name of a node's output -> the nodes that replace this node.
    """

    def __init__(self, graph: GraphProto, nodes: Sequence[Named], version: int) -> None:
        self.graph, self.version = graph, version
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
        self.instead: dict[str, list[NodeProto]] = {}

    @cached_property
    def shapes(self) -> dict[str, Shape]:
        """The shapes of values that follow from the inputs' shapes. What the file says of other values is not read."""
        if self.graph.ByteSize() > _LARGEST:
            return {}
        model = helper.make_model(self.graph, opset_imports=[helper.make_opsetid("", self.version)])
        model.graph.ClearField("value_info")
        try:
            found = shape_inference.infer_shapes(model, data_prop=True).graph
        except Exception:  # of kinds that onnx does not document: nothing is known then
            return {}
        return {
            value.name: [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]
            for value in (*found.value_info, *found.input)
            if (kind := value.type.tensor_type).HasField("shape")
        }

    def number(self, name: str, beside: str = "") -> float | None:
        """Return the constant of one element called `name` as a float; None if there is no floating-point one.

        beside: a value. A constant with more dimensions than this value, or than one, is no number.
        """
        one = self.constants.get(name)
        if one is None or one.data_type not in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE):
            return None
        array = numpy_helper.to_array(one)
        fits = array.size == 1 and (array.ndim <= 1 or (beside and array.ndim <= len(self.shapes.get(beside, ()))))
        return float(array.reshape(-1)[0]) if fits else None

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

    def power(self, name: str, x: str, deepest: int = _DEEPEST) -> tuple[float, int] | None:
        """Return (c, n) if a value is c x^n, by products and powers; None otherwise.

        name, x: the two values. deepest: how many products may follow each other; a file may double the paths at each.
        """
        if name == x:
            return 1.0, 1
        if (number := self.number(name, x)) is not None:
            return number, 0
        node = self.makers.get(name)
        if node is None or node.op_type not in ("Mul", "Pow") or not deepest:
            return None
        first = self.power(node.input[0], x, deepest - 1)
        if node.op_type == "Mul":
            second = self.power(node.input[1], x, deepest - 1)
            return None if first is None or second is None else (first[0] * second[0], first[1] + second[1])
        exponent = self.number(node.input[1])
        if first is None or exponent not in (2, 3):
            return None
        return math.prod([first[0]] * int(exponent)), first[1] * int(exponent)

    def gelu(self, erf: NodeProto) -> None:
        x, factor = self.scaled(erf.input[0])
        if math.isclose(factor, math.sqrt(0.5), rel_tol=1e-3):
            self.gated(erf, x, helper.make_node("Gelu", [x], [""]))

    def tanh_gelu(self, tanh: NodeProto) -> None:
        name, factor = self.scaled(tanh.input[0])
        node = self.makers.get(name)
        if node is None or node.op_type != "Add" or not math.isclose(factor, math.sqrt(2 / math.pi), rel_tol=1e-3):
            return
        for x in node.input:
            cube = self.power(self.other(node, x), x)
            if cube is not None and cube[1] == 3 and math.isclose(cube[0], 0.044715, rel_tol=1e-3):
                self.gated(tanh, x, helper.make_node("Gelu", [x], [""], approximate="tanh"))
                return

    def gated(self, gate: NodeProto, x: str, join: NodeProto) -> None:
        """Put `join` in place of x (1 + gate) / 2."""
        plus = self.only_reader(gate.output[0], "Add")
        if plus is None or self.number(self.other(plus, gate.output[0]), x) != 1:
            return
        value, product, factors = plus.output[0], 1.0, 0
        while (node := self.only_reader(value, "Mul")) is not None:
            name = self.other(node, value)
            constant = self.number(name, x)
            source, times = (name, 1.0) if constant is not None else self.scaled(name) if name != x else (x, 1.0)
            if constant is None and source != x:
                return
            product *= times if constant is None else constant
            factors += constant is None
            value = str(node.output[0])
            if factors == 1 and math.isclose(product, 0.5, rel_tol=1e-3):
                join.output[0] = value
                self.instead[value] = [join]
                return

    def silu(self, sigmoid: NodeProto) -> None:
        x = sigmoid.input[0]
        node = self.only_reader(sigmoid.output[0], "Mul")
        if node is not None and self.other(node, sigmoid.output[0]) == x:
            self.instead[node.output[0]] = [helper.make_node("Swish", [x], [node.output[0]])]

    def reduced(self, name: str, kind: str) -> tuple[str, int] | None:
        """Return (x, dimension) for a value that a reduction over one dimension computes."""
        node = self.makers.get(name)
        if node is None or node.op_type != kind:
            return None
        axes = [list(one.ints) for one in node.attribute if one.name == "axes"]
        if len(node.input) > 1 and node.input[1] in self.constants:
            axes.append(numpy_helper.to_array(self.constants[node.input[1]]).reshape(-1).tolist())
        shape = self.shapes.get(node.input[0])
        if not shape or len(axes) != 1 or len(axes[0]) != 1 or axes[0][0] not in range(-len(shape), len(shape)):
            return None
        return node.input[0], int(axes[0][0]) % len(shape)

    def mean(self, name: str) -> tuple[str, int] | None:
        """Return (x, dimension) for a value that is a mean over one dimension, also as a sum times 1 / its size."""
        if (found := self.reduced(name, "ReduceMean")) is not None:
            return found
        total, factor = self.scaled(name)
        found = self.reduced(total, "ReduceSum")
        size = found and self.shapes[found[0]][found[1]]
        return found if size and math.isclose(factor * size, 1, rel_tol=1e-6) else None

    def spread(self, name: str, x: str, axis: int) -> str:
        """Return the value that is reshaped and expanded to the shape of x with 1 in the dimension `axis`; else ""."""
        wanted = [1 if dim == axis else size for dim, size in enumerate(self.shapes[x])]
        if self.shapes.get(name) != wanted or wanted.count(None) > 1:
            return ""
        node = self.makers.get(name)
        while node is not None and node.op_type in ("Reshape", "Expand"):
            last, inner = node, self.makers.get(node.input[0])
            again = inner is not None and inner.op_type == "Reshape" and inner.input[1] == node.input[1]
            if node.op_type == "Expand" and not again:  # an Expand to the shape that its input has changes nothing
                return ""
            name, node = last.input[0], inner
        return name

    def largest_of(self, name: str, number: float) -> str:
        """Return the operand of a maximum with a number that is no operand; the value itself if it is no maximum."""
        node = self.makers.get(name)
        if node is None or node.op_type != "Max" or len(node.input) != 2:
            return name
        return next((self.other(node, one) for one in node.input if self.number(one) == number), name)

    def softmax(self, exp: NodeProto) -> None:
        less, total = self.makers.get(exp.input[0]), None
        for node in self.readers[exp.output[0]]:
            total = node if node.op_type == "Div" and node.input[0] == exp.output[0] else total
        if less is None or less.op_type != "Sub" or total is None:
            return
        x = less.input[0]
        if (shape := self.shapes.get(x)) is None:
            return
        axis = len(shape) - 1  # of other dimensions, Softmax had another meaning before opset 13
        most = self.reduced(self.largest_of(self.spread(less.input[1], x, axis), -math.inf), "ReduceMax")
        added = self.reduced(self.spread(total.input[1], x, axis), "ReduceSum")
        if most == (x, axis) and added == (exp.output[0], axis):
            self.instead[total.output[0]] = [helper.make_node("Softmax", [x], [total.output[0]], axis=axis)]

    def norm(self, inverse: NodeProto) -> None:
        root = self.makers.get(inverse.input[0])
        plus = self.makers.get(root.input[0]) if root is not None and root.op_type == "Sqrt" else None
        scaled = self.only_reader(inverse.output[0], "Mul")
        product = scaled and self.only_reader(scaled.output[0], "Mul")
        if plus is None or plus.op_type != "Add" or scaled is None or product is None:
            return
        less = self.makers.get(self.other(product, scaled.output[0]))
        eps = next((one for one in plus.input if self.number(one) is not None), None)
        if less is None or less.op_type != "Sub" or eps is None or (shape := self.shapes.get(less.input[0])) is None:
            return
        x = less.input[0]
        for axis in range(len(shape)):
            variance = self.largest_of(self.spread(self.other(plus, eps), x, axis), 0)
            middle = self.spread(less.input[1], x, axis)
            if middle and self.mean(middle) == (x, axis) and self.squares_less(variance, middle, x, axis):
                self.instead[product.output[0]] = self.written(
                    x, axis - len(shape), eps, self.other(scaled, inverse.output[0]), product.output[0]
                )

    def squares_less(self, name: str, middle: str, x: str, axis: int) -> bool:
        """Whether a value is the mean of x^2 over a dimension, less the square of `middle`."""
        node = self.makers.get(name)
        if node is None or node.op_type != "Sub" or self.power(node.input[1], middle) != (1.0, 2):
            return False
        squares = self.mean(node.input[0])
        return squares is not None and squares[1] == axis and self.power(squares[0], x) == (1.0, 2)

    def written(self, x: str, axis: int, eps: str, weight: str, result: str) -> list[NodeProto]:
        """Return a norm over a dimension, as graph/ops/written_out.py recognizes it, times a weight."""
        mean, less, square, variance, sum, root, ratio = (
            f"{result}/{part}" for part in ("mean", "less", "square", "variance", "sum", "root", "ratio")
        )
        return [
            helper.make_node("ReduceMean", [x], [mean], axes=[axis], keepdims=1),
            helper.make_node("Sub", [x, mean], [less]),
            helper.make_node("Mul", [less, less], [square]),
            helper.make_node("ReduceMean", [square], [variance], axes=[axis], keepdims=1),
            helper.make_node("Add", [variance, eps], [sum]),
            helper.make_node("Sqrt", [sum], [root]),
            helper.make_node("Div", [less, root], [ratio]),
            helper.make_node("Mul", [ratio, weight], [result]),
        ]

    def rest(self) -> list[Named]:
        """Return the pairs (node, its name in the net) that the graph's results need, after the replacements."""
        replaced = [
            (one, title if one.output[:1] == node.output[:1] else f"{title}.{one.output[0].rpartition('/')[2]}")
            for node, title in self.nodes
            for one in (self.instead.get(node.output[0], [node]) if node.output else [node])
        ]
        needed, kept = set(self.outputs), list[Named]()
        for node, title in reversed(replaced):
            if any(name in needed for name in node.output):
                needed.update(node.input)
                kept.append((node, title))
        return kept[::-1]
