"""ONNX files as nets: every node of the graph is a call of torch's functions, made from the tables of this folder.

The file's nodes are layers of the net with their own names, and floating-point weights its parameters, in float32. All
other constants (shapes, indices, limits) are known numbers, which the calls take as arguments. ONNX: "Open Neural
Network Exchange", https://onnx.ai/onnx/operators.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import torch
from google.protobuf.message import DecodeError
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, defs, numpy_helper
from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_model, uses_external_data
from torch import nn

from hummingbird.errors import HummingbirdError, InputError, ModelError, Problem
from hummingbird.graph.build import Unsupported
from hummingbird.graph.programs import ProgramCall, ProgramNet, Value, Weight
from hummingbird.graph.programs.onnx import arithmetic, layers, resize, sequences  # noqa: F401  they fill the table
from hummingbird.graph.programs.onnx.patterns import joined
from hummingbird.graph.programs.onnx.shapes import torch_type
from hummingbird.graph.programs.onnx.values import OPERATORS, Operator, is_known, known, tensor

OLDEST = 7  # before it, broadcasting was an attribute
_STANDARD = ("", "ai.onnx")
_OPEN = 2  # the batch of the example where the file leaves it open
_QUANTIZED = "the net is quantized; export it in float32, before it is quantized"
_REALS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


def read(source: str | Path | ModelProto) -> ProgramNet:
    """Read an ONNX file, or a model of the package `onnx`, and return it as a net.

    Weights in files beside it are read too. Raises InputError for a file that is no valid ONNX file, is incomplete, or
    has a newer opset than the installed package knows; ModelError, which lists all nodes whose operators are not known.
    """
    where = "the ONNX model" if isinstance(source, ModelProto) else str(source)
    model = _checked(source, where)
    version = _opset(model, where)
    return _Reader(model.graph, version, where).program()


# The file ------------------------------------------------------------------------------------------------------------


def _checked(source: str | Path | ModelProto, where: str) -> ModelProto:
    """Return the model of an ONNX file, checked, with all its weights.

    Functions that the model defines are replaced by their nodes. source: the file's path, or a model. where: its name,
    for errors. Raises InputError for an invalid model.
    """
    model = source if isinstance(source, ModelProto) else _parsed(Path(source), where)
    _opset(model, where)
    folder = None if isinstance(source, ModelProto) else Path(source).parent
    outside = _outside(model, folder, where)
    try:
        onnx.checker.check_model(model if isinstance(source, ModelProto) else str(source))
        if outside:
            load_external_data_for_model(model, str(folder))
        return onnx.inliner.inline_local_functions(model) if model.functions else model
    except Exception as error:  # of several types, some of C++
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"no valid ONNX model: {reason}", where=where, hint="export it again") from None


def _parsed(path: Path, where: str) -> ModelProto:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"the file cannot be read: {error.strerror}", where=where, hint="give its path") from None
    model = ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError:
        hint = "it is cut off, or of another format; torch.onnx.export writes ONNX"
        raise InputError("no ONNX file", where=where, hint=hint) from None
    if not model.HasField("graph") or not model.opset_import:
        raise InputError("no ONNX file: it has no graph", where=where, hint="torch.onnx.export writes ONNX")
    return model


def _opset(model: ModelProto, where: str) -> int:
    found = [entry.version for entry in model.opset_import if entry.domain in _STANDARD]
    newest = defs.onnx_opset_version()
    if len(set(found)) != 1:
        what = f"the file names {len(found)} versions of ONNX's operators, and not one"
        raise InputError(what, where=where, hint="export it again")
    if found[0] > newest:
        hint = f"pip install --upgrade onnx, or export with opset_version={newest}"
        raise InputError(f"opset {found[0]}, and onnx {onnx.__version__} knows up to {newest}", where=where, hint=hint)
    if found[0] < OLDEST:
        hint = f"onnx.version_converter.convert_version(onnx.load(file), {OLDEST}) makes a newer one"
        raise InputError(f"opset {found[0]}, and the oldest that is known is {OLDEST}", where=where, hint=hint)
    return int(found[0])


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Yield all constants of a graph and of the graphs inside its nodes."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from _tensors(inner)


def _outside(model: ModelProto, folder: Path | None, where: str) -> bool:
    """Whether a model has weights in files beside it; raises InputError if one of these is missing.

    folder: of the model's file; None for a model in memory.
    """
    found = [one for one in _tensors(model.graph) if uses_external_data(one)]
    if found and folder is None:
        hint = "load the model with its weights: onnx.load(path), or give its path"
        raise InputError(f"the weights {found[0].name!r} are not in the model", where=where, hint=hint)
    for one in found:
        assert folder is not None
        name = ExternalDataInfo(one).location
        if not (folder / name).is_file():
            hint = f"put {name!r} beside the file, from where the file is"
            raise InputError(f"the weights {one.name!r} are in {name!r}, which is missing", where=where, hint=hint)
    return bool(found)


# Its nodes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Node:
    """A node of an ONNX graph, as a function from the values of its inputs to those of its outputs.

    title: its name in the net, for errors. operator: ONNX's name. function: computes the operator. attributes: the
    function's keyword arguments.
    """

    title: str
    operator: str
    function: Any
    attributes: dict[str, Any]

    def __call__(self, *inputs: Any) -> Any:
        try:
            return self.function(*inputs, **self.attributes)
        except (HummingbirdError, Unsupported) as error:
            if isinstance(error, InputError) and not error.where and type(error) is InputError:
                raise InputError(f"{self.operator}: {error.what}", where=self.title, hint=error.hint) from None
            raise
        except Exception as error:  # torch and numpy raise errors of many types for inputs that do not fit
            reason = str(error).partition("\n")[0][:200] or type(error).__name__
            hint = "the inputs have other shapes or types than the node takes"
            raise InputError(f"{self.operator} fails: {reason}", where=self.title, hint=hint) from error


class _Branches:
    """The two graphs of ONNX's operator If, as a function of the condition and of the outer values that the graphs use.

    The condition must be known when the net is traced. names: names of the outer values. steps: for "else" and for
    "then", a list of nodes, each with the names of its inputs and outputs. results: the names of the results of both
    graphs.
    """

    def __init__(self, names: Sequence[str], steps: Any, results: Any) -> None:
        self.names, self.steps, self.results = list(names), steps, results

    def __call__(self, condition: Any, *outer: Any) -> Any:
        chosen = int(bool(condition.reshape(-1)[0]) if is_known(condition) else bool(condition))
        values: dict[str, Any] = dict(zip(self.names, outer, strict=True))
        for node, inputs, outputs in self.steps[chosen]:
            found = node(*(values[name] if name else None for name in inputs))
            values.update(zip(outputs, found if isinstance(found, tuple) else (found,), strict=False))
        results = tuple(values[name] for name in self.results[chosen])
        return results[0] if len(results) == 1 else results


class _Reader:
    """Makes a `ProgramNet` of an ONNX graph. version: of ONNX's operators (the opset). where: the file, for errors."""

    def __init__(self, graph: GraphProto, version: int, where: str) -> None:
        self.graph, self.version, self.where = graph, version, where
        self.problems: list[Problem] = []
        self.weights: dict[str, Any] = {}  # by path
        self.values: dict[str, Any] = {}  # by ONNX's name: Weight, known numbers, or Value
        self.constant: set[str] = set()  # names of values that no input changes
        self.paths: set[str] = set()
        self.numbers = _numbers(graph)

    def program(self) -> ProgramNet:
        calls: list[ProgramCall] = []
        self._constants(self.graph)
        given = [value for value in self.graph.input if value.name not in self.values]
        names = self._arguments(given)
        example, any_batch = self._example(given)
        titles = [self._title(node, number) for number, node in enumerate(self.graph.node)]
        for node, title in joined(self.graph, list(zip(self.graph.node, titles, strict=True)), self.version):
            self._add(calls, node, title)
        results = []
        for value in self.graph.output:
            calls.append(ProgramCall(f"{value.name} as a result", tensor, (self._input(value.name),)))
            results.append(Value(calls[-1].result))
        if self.problems:
            raise ModelError(self.problems)
        shapes = [value.type.tensor_type.shape for value in given if value.type.tensor_type.HasField("shape")]
        sizes = [tuple(dim.dim_value if dim.dim_value > 0 else None for dim in shape.dim) for shape in shapes]
        sizes = sizes if len(sizes) == len(given) else []
        return ProgramNet(calls, names, results, self.weights, example, any_batch, layers=titles, shapes=sizes)

    # Names -----------------------------------------------------------------------------------------------------------

    def _path(self, name: str, taken: Iterable[str] = ()) -> str:
        """Return a free qualified name in the net for ONNX's name of a node or weight: slashes become dots."""
        parts = [part for part in re.split(r"[/.]", name) if part] or ["unnamed"]
        path = ".".join(part + "_" if hasattr(ProgramNet, part) or part in _OWN else part for part in parts)
        while path in self.paths or any(other.startswith(path + ".") for other in self.weights):
            path += "_"
        while any(path.startswith(weight + ".") for weight in self.weights):
            path = path.replace(".", "_")
        self.paths.add(path)
        return path

    def _title(self, node: NodeProto, number: int) -> str:
        return self._path(node.name or f"{node.op_type}_{number}")

    def _arguments(self, inputs: Sequence[Any]) -> list[str]:
        """Enter the graph's inputs into this reader's `values`, and return their names as parameters of forward()."""
        names: list[str] = []
        for value in inputs:
            name = re.sub(r"\W", "_", value.name)
            name = f"x_{name}" if not name or name[0].isdigit() or keyword.iskeyword(name) else name
            while name in names:
                name += "_"
            names.append(name)
            self.values[value.name] = Value(name)
        return names

    def _example(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...] | None, bool]:
        """Return example inputs, zeros of the shapes in the file, and whether the file leaves the batch size open.

        inputs: ONNX's descriptions of them. If the file leaves other sizes open, None takes the place of the example.
        """
        tensors, free = [], True
        first = inputs[0].type.tensor_type.shape if inputs else None
        batch = first.dim[0].dim_param if first is not None and first.dim else ""
        for value in inputs:
            kind = value.type.tensor_type
            if not value.type.HasField("tensor_type") or not kind.elem_type:
                raise InputError(f"input {value.name!r} is no tensor", where=self.where, hint="nets take tensors")
            dtype = torch_type(kind.elem_type, f"input {value.name!r}")
            sizes = [
                dim.dim_value if dim.dim_value > 0 else _OPEN if not place or (batch and dim.dim_param == batch) else 0
                for place, dim in enumerate(kind.shape.dim)
            ]
            free = free and bool(sizes) and kind.shape.dim[0].dim_value <= 0
            if not kind.HasField("shape") or 0 in sizes:
                return None, True
            tensors.append((sizes, dtype))
        return tuple(torch.zeros(sizes, dtype=dtype) for sizes, dtype in tensors), free

    # Constants -------------------------------------------------------------------------------------------------------

    def _constants(self, graph: GraphProto) -> None:
        if graph.sparse_initializer:
            name = graph.sparse_initializer[0].values.name
            raise InputError(f"the weights {name!r} are sparse", where=self.where, hint="export dense weights")
        for one in graph.initializer:
            self._constant(one.name, one, literal=False)

    def _constant(self, name: str, content: TensorProto, literal: bool) -> None:
        """Enter a constant of the file into this reader's `values`, as a parameter of the net or as a known number.

        Floating-point constants become parameters; other types, and those that must be known, such as limits, known
        numbers.
        literal: whether it stands in a node of the graph; then a constant of one element is a known number too.
        """
        try:
            torch_type(content.data_type, f"the weights {name!r}")
            array = numpy_helper.to_array(content)
        except HummingbirdError:
            raise
        except Exception as error:  # sizes that do not fit the bytes
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"the weights {name!r} cannot be read: {reason}", where=self.where) from None
        self.constant.add(name)
        if content.data_type not in _REALS or name in self.numbers or (literal and array.size == 1):
            self.values[name] = known(array)
            return
        path = self._path(name)
        weight = torch.from_numpy(np.array(array, dtype=np.float32))
        self.weights[path] = nn.Parameter(weight, requires_grad=False)
        self.values[name] = Weight(path)

    # Calls -----------------------------------------------------------------------------------------------------------

    def _input(self, name: str) -> Any:
        if name and name not in self.values:
            what = f"the value {name!r}, which no node computes"
            raise InputError(
                what, where=self.where, hint="an output that is optional in ONNX, such as indices of MaxPool"
            )
        return self.values[name] if name else None

    def _add(self, calls: list[ProgramCall], node: NodeProto, title: str) -> None:
        """Append the call of a node, named `title`, to `calls`; enter its outputs into this reader's `values`."""
        if node.op_type == "Constant" and node.domain in _STANDARD:
            self._literal(node, title)
            return
        function: Any
        if node.op_type == "If" and node.domain in _STANDARD:
            function, names = self._branches(node, title)
        else:
            function, names = self._node(node, title), [*node.input]
        inputs = tuple(self._input(name) for name in names)
        if self._all_constant(names):
            self.constant.update(node.output)
        first = node.output[0] if len(node.output) == 1 else f"{title} as a tuple"
        calls.append(ProgramCall(first, function, inputs, scope=title))
        self.values.update({name: Value(name) for name in node.output if name})
        if len(node.output) > 1:
            for number, name in enumerate(node.output):
                if name:
                    calls.append(ProgramCall(name, _part, (Value(first), number)))

    def _all_constant(self, names: Iterable[str]) -> bool:
        return all(name in self.constant for name in names if name)

    def _literal(self, node: NodeProto, title: str) -> None:
        attribute = node.attribute[0]
        name, output = attribute.name, node.output[0]
        if name == "value":
            self._constant(output, attribute.t, literal=True)
        elif name in ("value_float", "value_floats", "value_int", "value_ints"):
            value = onnx.helper.get_attribute_value(attribute)
            self.values[output] = known(np.asarray(value, np.float32 if "float" in name else np.int64))
            self.constant.add(output)
        else:
            self._problem(title, f"a constant by {name}", "give its value as a dense tensor of numbers")
            self.values[output] = known(0)

    def _problem(self, title: str, what: str, hint: str) -> None:
        self.problems.append(Problem(title, what, hint))

    def _node(self, node: NodeProto, title: str) -> Any:
        """Return the `Node` of a node, named `title` in the net; None, and a problem noted, for an unknown operator."""
        found = self._operator(node, title)
        if found is None:
            return None
        attributes = {}
        for attribute in node.attribute:
            if attribute.name not in found.parameters:
                self._problem(title, f"{node.op_type} with the attribute {attribute.name}", "export the net without it")
                continue
            attributes[attribute.name] = self._attribute(title, attribute)
        version = self._since(node.op_type)
        constant = tuple(name in self.constant for name in node.input) + (False,) * 8
        filled = {"op": node.op_type, "version": version, "outputs": len(node.output), "constant": constant}
        attributes |= {name: value for name, value in filled.items() if name in found.parameters}
        return Node(title, node.op_type, found.function, attributes)

    def _attribute(self, title: str, attribute: AttributeProto) -> Any:
        if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS, AttributeProto.SPARSE_TENSOR):
            self._problem(title, f"an attribute {attribute.name} that is a graph", "write the loop out")
            return None
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, TensorProto):
            return numpy_helper.to_array(value)
        if isinstance(value, bytes):
            return value.decode(errors="replace")
        if isinstance(value, (list, tuple)) or not isinstance(value, (int, float)):
            return [item.decode(errors="replace") if isinstance(item, bytes) else item for item in value]
        return value

    def _operator(self, node: NodeProto, title: str) -> Operator | None:
        name = node.op_type
        if node.domain not in _STANDARD:
            hint = "export with ONNX's own operators, and not from a file that a runtime has optimized"
            self._problem(title, f"operator {name} of {node.domain}", hint)
            return None
        if name.startswith(("Quantize", "Dequantize", "QLinear", "DynamicQuantize")) or name.endswith("Integer"):
            self._problem(title, f"operator {name}", _QUANTIZED)
            return None
        found = OPERATORS.get(name)
        if found is None:
            hint = "cut the file before it (onnx.utils.extract_model), and compute the rest in clear"
            self._problem(title, f"operator {name} is not known", hint)
            return None
        version = self._since(name)
        if version > found.newest:
            hint = f"export with opset_version={version - 1}"
            self._problem(title, f"{name} of version {version}; {found.newest} is the last that is known", hint)
            return None
        return found

    def _since(self, name: str) -> int:
        """Return the version of operator `name` in the file's opset, or its last known one if the opset lacks it."""
        known = defs.has(name, self.version, "")
        return int(defs.get_schema(name, self.version, "").since_version) if known else OPERATORS[name].newest

    def _branches(self, node: NodeProto, title: str) -> tuple[_Branches, list[str]]:
        """Return the function that computes an If, and the names of the values that it takes, the condition first.

        The others are outer values that the two graphs of the If use. title: the node's name in the net.
        """
        graphs = {attribute.name: attribute.g for attribute in node.attribute}
        sides = [graphs["else_branch"], graphs["then_branch"]]
        steps, outer = [], dict[str, None]()
        for side, graph in zip(("else", "then"), sides, strict=True):
            found: list[Any] = []
            inner = self._inner(graph, f"{title}.{side}", found, outer)
            for value in graph.output:
                if value.name not in inner:
                    outer[value.name] = None
            steps.append(found)
        results = [[value.name for value in graph.output] for graph in sides]
        return _Branches(list(outer), steps, results), [node.input[0], *outer]

    def _inner(self, graph: GraphProto, title: str, steps: list[Any], outer: dict[str, None]) -> set[str]:
        """Read a graph inside a node, append its nodes to `steps`, and return the names of the values they compute.

        title: text before the nodes' names in the net. steps: gets for each node its function, and the names of its
        inputs and outputs. outer: gets, as keys, the names of all other values that the nodes read, also of the graph's
        constants.
        """
        self._constants(graph)
        made: set[str] = set()
        for number, node in enumerate(graph.node):
            place = self._path(f"{title}.{node.name or f'{node.op_type}_{number}'}")
            if node.op_type == "Constant" and node.domain in _STANDARD:
                self._literal(node, place)
                continue
            function: Any
            if node.op_type == "If" and node.domain in _STANDARD:
                function, names = self._branches(node, place)
            else:
                function, names = self._node(node, place), [*node.input]
            outer.update(dict.fromkeys(name for name in names if name and name not in made))
            made.update(node.output)
            steps.append((function, names, list(node.output)))
        return made


_OWN = frozenset(vars(nn.Module()))


def _part(value: Any, number: int) -> Any:
    """Return output number `number` of a node. value: all its outputs as a tuple, or the first output alone.

    In the second case InputError is raised for any other number, as that output is not computed.
    """
    if not isinstance(value, tuple):
        if number:
            raise InputError("an output that is not computed", hint="indices of MaxPool and masks of Dropout are not")
        return value
    return getitem(value, number)


# The operators through which a number may pass on its way to where it must be known.
_PASSING = frozenset("Cast Identity Squeeze Unsqueeze Reshape Concat Add Sub Mul Div Floor Ceil Slice Gather".split())


def _numbers(graph: GraphProto) -> set[str]:
    """Return the names of values that must be known numbers, such as limits; constants among them are no weights."""
    nodes = [*_nodes(graph)]
    makers = {name: node for node in nodes for name in node.output}
    found: set[str] = set()
    left = [
        node.input[place]
        for node in nodes
        if node.domain in _STANDARD and node.op_type in OPERATORS
        for place in OPERATORS[node.op_type].numbers
        if place < len(node.input)
    ]
    while left:
        name = left.pop()
        if not name or name in found:
            continue
        found.add(name)
        if name in makers and makers[name].op_type in _PASSING:
            left += makers[name].input
    return found


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)
