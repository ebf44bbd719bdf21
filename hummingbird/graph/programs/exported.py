"""Programs of torch.export: an ExportedProgram, in memory or from a .pt2 file, as a `ProgramNet`.

The graph of an ExportedProgram has no Python control flow and no modules; each operation is one of ATen, and names the
layer and the line of source from which it comes. Weights are inputs of the graph, and the signature says which.
PyTorch's documentation of torch.export describes this form.
"""

from __future__ import annotations

import io
import operator
import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.utils import _pytree as pytree

from hummingbird import records
from hummingbird.errors import InputError, ModelError, Problem
from hummingbird.graph.build import Unsupported
from hummingbird.graph.programs import ProgramCall, ProgramNet, Value, Weight, compare, entries
from hummingbird.graph.programs.aten import bound, function_of, is_check

_LINE = re.compile(r'File "(.+)", line (\d+)')
_PARTS = frozenset("convolution addmm bmm _softmax native_layer_norm _native_batch_norm_legit_no_training".split())
_WHOLE = "export the net again, without run_decompositions(): attention and norms are known as wholes"
_OWN = "torch.nn.modules."  # home of torch's layers
_INLINED = "wrap_with_set_grad_enabled", "wrap_with_autocast"  # operations that run a graph of their own


def read(path: str | PathLike[str]) -> ExportedNet:
    """Read a .pt2 file, which torch.export.save writes, and return its net.

    torch's own reader runs code that such a file may hold: pickled objects, and expressions of sizes that it evaluates.
    A file with objects, or with other expressions than arithmetic of sizes, is refused before torch reads it. Raises
    InputError for such a file, one of another form or release, and a missing one; ModelError as `ExportedNet`.
    """
    where = str(path)
    try:
        release = _check_file(path)
    except OSError as error:
        raise InputError(f"cannot read it: {error.strerror or error}", where=where, hint=_SAVED) from None
    except Exception as error:  # the content is anything
        what = f"no file of torch.export.save that is read: {str(error).partition(chr(10))[0]}"
        raise InputError(what, where=where, hint=_SAVED) from None
    try:
        exported = torch.export.load(path)
    except Exception as error:  # what a damaged file leads to in torch's reader is not documented
        reason = str(error).partition("\n")[0]
        what = f"written by torch {release}, torch {torch.__version__} cannot read it: {reason}"
        hint = "read it with the torch that wrote it, or export the net again with this one"
        raise InputError(what, where=where, hint=hint) from None
    return ExportedNet(exported)


_SAVED = "torch.export.save(torch.export.export(net, (x,)), FILE) of torch 2.8 or later writes one"
# What torch writes for a size: sympy's symbols and arithmetic. torch hands these texts to Python's eval.
_NAMES = "Symbol Integer Rational Add Mul Pow Max Min Mod FloorDiv CleanDiv CeilDiv PythonMod IntTrueDiv int_oo"
_NAMES += " Eq Ne Ge Gt Le Lt positive nonnegative integer real nonzero True False"
_SIZE = re.compile(rf"(?:\b(?:[su]\d+|\d+|{'|'.join(_NAMES.split())})\b|'[a-z]+\d+'|[-+*/(),<>= ])+")
_LARGEST = 1 << 26  # bytes of a graph's JSON
_GOLDEN = (5**0.5 - 1) / 2  # fractions of its multiples are spread evenly
_DEEPEST = 128  # nested lists and objects in it


def _check_file(path: str | PathLike[str]) -> str:
    """Check a .pt2 file before torch reads it, and return the release of torch that wrote it.

    Raises ValueError for a file that may hold code of its own, and for one of another form.
    """
    with zipfile.ZipFile(path) as archive:
        if "serialized_exported_program.json" in archive.namelist():
            raise ValueError("it has the form that torch wrote before 2.8, whose tensors are pickled")
        names = entries(archive)
        if "archive_format" not in names or archive.read(names["archive_format"]) != b"pt2":
            raise ValueError("it has no archive_format pt2, as torch 2.8 and later write")
        for name, info in ((name.lower(), info) for name, info in names.items()):  # torch finds names in any case
            if name.rpartition("/")[2].startswith(("custom_obj", "opaque_obj")):
                raise ValueError(f"{name} is a pickled object, which is not read: export a net of tensors alone")
            # torch unpickles these, in the form of 2.8 weights and constants too, and any object if tensors fail.
            if name.startswith("data/") and name.endswith(".pt"):
                torch.load(io.BytesIO(archive.read(info)), map_location="cpu", weights_only=True)
            if name.endswith("_config.json"):
                config = _json(archive, info)["config"]
                if pickled := [key for key, entry in config.items() if entry["use_pickle"]]:
                    raise ValueError(f"{pickled[0]} is pickled, which is not read: export a net of plain tensors")
        models = [_json(archive, info) for name, info in names.items() if name.startswith("models/")]
    if len(models) != 1:
        raise ValueError(f"it has {len(models)} programs, expected one")
    for text in (*models[0]["range_constraints"], *_expressions(models[0])):
        if len(text) > 1 << 12 or not _SIZE.fullmatch(text):
            raise ValueError(f"{text[:80]!r} is no arithmetic of sizes")
    return str(models[0].get("torch_version", "of an earlier release"))


def _json(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Any:
    if info.file_size > _LARGEST:
        raise ValueError(f"{info.filename} has {info.file_size} bytes, at most {_LARGEST} are read")
    return records.parse(archive.read(info), name=info.filename, most=_LARGEST, deepest=_DEEPEST)


def _expressions(value: Any) -> Iterator[str]:
    """Yield every expression of sizes, a text of Python, in the JSON of a graph that torch.export has saved.

    value: the JSON, or a part of it, as Python's dicts and lists.
    """
    if isinstance(value, dict):
        if "expr_str" in value:
            yield str(value["expr_str"])
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _expressions(item)


class ExportedNet(ProgramNet):
    """The net of an ExportedProgram (torch.export): it takes and returns what the exported module takes and returns.

    Raises ModelError with all operations that cannot be read.
    """

    def __init__(self, exported: ExportedProgram) -> None:
        reader = _Reader(exported)
        reader.read()
        if reader.problems:
            raise ModelError(reader.problems)
        signature = exported.module_call_graph[0].signature
        assert signature is not None  # only calls of inner modules may have none
        args, kwargs = exported.example_inputs or ((), {})
        names = signature.forward_arg_names or [f"x{number}" for number in range(len(args) + len(kwargs))]
        example = dict(zip(names, (*args, *kwargs.values()), strict=True)) if kwargs else tuple(args)
        example = pytree.tree_map(single, example)
        graph = reader.calls, reader.inputs, reader.results, reader.weights
        super().__init__(*graph, example, reader.any_batch, names, reader.layers(), reader.hint, reader.shapes)
        self.program_constants = reader.constants
        self.program_in_spec, self.program_out_spec = signature.in_spec, signature.out_spec
        _compare(self, exported, args, kwargs)

    def _flat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        arguments = list(self.program_signature.bind(*args, **kwargs).arguments.items())
        spec = self.program_in_spec
        count = len(pytree.tree_unflatten([None] * spec.num_leaves, spec)[0])
        leaves, spec = pytree.tree_flatten((tuple(value for _, value in arguments[:count]), dict(arguments[count:])))
        if spec != self.program_in_spec:
            raise TypeError(f"takes arguments of the form {self.program_in_spec}, got {spec}")
        for name, leaf in zip(self.program_inputs, leaves, strict=True):
            constant = self.program_constants.get(name, leaf)
            if constant is not leaf and (type(leaf), leaf) != (type(constant), constant):
                raise TypeError(f"was exported with {name}={constant!r}, got {leaf!r}")
        return leaves

    def _rebuilt(self, results: list[Any]) -> Any:
        return pytree.tree_unflatten(results, self.program_out_spec)


def _compare(net: ExportedNet, exported: ExportedProgram, args: Any, kwargs: Any) -> None:
    """Raise ModelError if the results of a program as it was read differ from those of torch's own run of its graph.

    net: the program as it was read. exported: the program as torch has it. args, kwargs: the example's arguments, of
    which the floating-point tensors are replaced by numbers spread from -2 to 2. It costs two passes on plain values.
    """

    def drawn(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        spread = torch.arange(1, value.numel() + 1, dtype=torch.float64) * _GOLDEN
        return (4 * spread.frac() - 2).reshape(value.shape).to(value.device, value.dtype)

    args, kwargs = pytree.tree_map(drawn, (args, kwargs))
    with torch.no_grad():
        wanted = pytree.tree_leaves(_run(exported, pytree.tree_leaves((args, kwargs))))
        args, kwargs = pytree.tree_map(single, (args, kwargs))
        found = pytree.tree_leaves(net(*args, **kwargs))
    half = any(isinstance(leaf, Tensor) and leaf.dtype in (torch.float16, torch.bfloat16) for leaf in wanted)
    if problems := compare(wanted, found, 3e-2 if half else 1e-3):
        raise ModelError(problems)


def _run(exported: ExportedProgram, leaves: list[Any]) -> Any:
    """Run the graph of an exported program by torch's own interpreter, and return its results.

    leaves: the values of the user's inputs, in order, without the tuples and dicts around them.
    """
    given, inputs = iter(leaves), []
    for spec in exported.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            inputs.append(next(given))
        else:
            state, constants = exported.state_dict, exported.constants
            inputs.append(state[spec.target] if spec.target in state else constants[spec.target])
    return fx.Interpreter(exported.graph_module).run(*inputs)


def single(value: Any) -> Any:
    """Return a floating-point tensor as float32, still a parameter if it was one; other values as they are."""
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.dtype == torch.float32:
        return value
    return nn.Parameter(value.float()) if isinstance(value, nn.Parameter) else value.float()


class _Reader:
    """Reads an ExportedProgram (torch.export) into the parts of a `ProgramNet`: inputs, calls, results and weights.

    What cannot be read is listed in the attribute `problems`.
    """

    def __init__(self, exported: ExportedProgram) -> None:
        self.exported = exported
        self.inputs: list[str] = []
        self.constants: dict[str, Any] = {}  # inputs that are part of the program, such as flags
        self.calls: list[ProgramCall] = []
        self.results: list[Any] = []
        self.weights: dict[str, Tensor] = {}
        self.problems: list[Problem] = []
        self.any_batch = False
        self.shapes: list[tuple[int | None, ...]] = []
        self.values: dict[fx.Node, Any] = {}
        self.runs: Counter[tuple[str, str]] = Counter()  # operations by layer, and run of the layer

    @property
    def hint(self) -> str:
        """The hint for a program in which torch has split attention or norms into parts; "" for any other program."""
        names = {getattr(node.target, "_opname", "") for node in self.exported.graph.nodes}
        return _WHOLE if names & _PARTS else ""

    def layers(self) -> set[str]:
        """Return the qualified names of torch's layers that compute a single operation each time they run."""
        several = {path for (path, _), count in self.runs.items() if count > 1}
        return {path for path, run in self.runs if path and run.startswith(_OWN)} - several

    def read(self) -> None:
        """Read the whole program into this reader: inputs, weights, calls, results, shapes, and a list of problems."""
        graph = self.exported.graph
        nodes = {node.name: node for node in graph.nodes if node.op == "placeholder"}
        private = []
        for spec in self.exported.graph_signature.input_specs:
            node = nodes[spec.arg.name]
            if spec.kind == InputKind.USER_INPUT:
                self.inputs.append(node.name)
                if isinstance(spec.arg, ConstantArgument):
                    self.constants[node.name] = spec.arg.value
                self.values[node] = Value(node.name)
                value = node.meta.get("val")
                if isinstance(value, Tensor):
                    self.shapes.append(tuple(size if type(size) is int else None for size in value.shape))
                if isinstance(value, Tensor) and value.is_floating_point():
                    private.append(value)
            else:
                self.values[node] = self._weight(spec, node)
        sizes = {str(value.shape[0]) if value.dim() else "" for value in private}
        self.any_batch = len(sizes) == 1 and all(
            value.dim() and isinstance(value.shape[0], torch.SymInt) for value in private
        )
        for spec in self.exported.graph_signature.output_specs:
            if spec.kind != OutputKind.USER_OUTPUT:
                what = f"the program writes into {spec.target or spec.arg.name}"
                self.problems.append(Problem("net", what, "export the net in eval mode, and compute new tensors"))
        self.results = self._graph(graph, "")

    def _weight(self, spec: Any, node: fx.Node) -> Any:
        target = str(spec.target)
        if spec.kind == InputKind.PARAMETER:
            found = self.exported.state_dict.get(target)
            found = found if found is None or isinstance(found, nn.Parameter) else nn.Parameter(found)
        elif spec.kind == InputKind.BUFFER:
            found = self.exported.state_dict.get(target, self.exported.constants.get(target))
        elif spec.kind == InputKind.CONSTANT_TENSOR:
            found = self.exported.constants.get(target)
        else:
            self.problems.append(Problem(target, f"an input of kind {spec.kind.name}", "export the net alone"))
            return None
        if not isinstance(found, Tensor) or found.is_meta:
            what = "its values are not in the program"
            self.problems.append(Problem(target, what, "export the net with its trained weights, and save it whole"))
            return None
        path = re.sub(r"[^\w.]", "_", target)
        self.weights[path] = single(found)
        return Weight(path)

    def _graph(self, graph: fx.Graph, prefix: str) -> list[Any]:
        """Read the nodes of a graph into this reader's `calls`, and return its results: references and constants.

        The values of the graph's inputs are in `values` before. prefix: text before the names of the calls' results,
        which makes them unique where a graph is inside another one.
        """
        needed = _needed(graph)
        for node in graph.nodes:
            if node.op == "output":
                return list(fx.node.map_aggregate(node.args[0], self._argument))
            if node.op == "call_function" and node in needed:
                try:
                    self._call(node, prefix)
                except Unsupported as problem:
                    self.problems.append(Problem(_scope(node) or node.name, problem.what + _line(node), problem.hint))
                    self.values[node] = None
        return []

    def _argument(self, value: Any) -> Any:
        return self.values[value] if isinstance(value, fx.Node) else value

    def _call(self, node: fx.Node, prefix: str) -> None:
        target = node.target
        if getattr(target, "__name__", "") in _INLINED:
            self.values[node] = self._inline(node, prefix)
            return
        if isinstance(target, torch._ops.HigherOrderOperator):
            hint = "write the net without control flow on values: decide in __init__, or from sizes"
            raise Unsupported(f"operation {target} has no private form", hint)
        args: Any = fx.node.map_aggregate(node.args, self._argument)
        kwargs: Any = fx.node.map_aggregate(node.kwargs, self._argument)
        if target is operator.getitem and isinstance(args[0], tuple):
            self.values[node] = args[0][args[1]]
            return
        if isinstance(target, torch._ops.OpOverload):
            args, kwargs = bound(target, args, kwargs)
        name = prefix + node.name
        function = function_of(target)
        scope, stack = _scope(node), node.meta.get("nn_module_stack") or {"": ("", "")}
        run = next(reversed(stack))
        self.runs[scope, f"{stack[run][1]} {run}"] += 1
        self.calls.append(ProgramCall(name, function, tuple(args), dict(kwargs), scope, _place(node)))
        self.values[node] = Value(name)

    def _inline(self, node: fx.Node, prefix: str) -> tuple[Any, ...]:
        """Read the graph that a node runs without gradients, or with a setting of autocast; return the graph's results.

        The calls of this inner graph become calls of the outer one. prefix: text before the names of their results.
        Raises Unsupported if autocast is on.
        """
        given: tuple[Any, ...] = node.args
        at = next(at for at, value in enumerate(given) if isinstance(value, fx.Node) and value.op == "get_attr")
        if "autocast" in str(node.target) and given[2]:
            raise Unsupported("autocast in the net", "export it in one floating-point type, without autocast")
        inner = getattr(self.exported.graph_module, str(given[at].target))
        inputs = [inside for inside in inner.graph.nodes if inside.op == "placeholder"]
        self.values.update(zip(inputs, map(self._argument, given[at + 1 :]), strict=True))
        return tuple(self._graph(inner.graph, f"{prefix}{node.name}."))


def _needed(graph: fx.Graph) -> set[fx.Node]:
    """Return the nodes of a graph that must be read: those that its result needs, and those that write into a tensor.

    Assertions are left out.
    """
    needed: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        op = node.target
        writes = isinstance(op, torch._ops.OpOverload) and op._schema.is_mutable and not is_check(op._opname)
        if node.op == "output" or writes or node in needed:
            needed.update((node, *node.all_input_nodes))
    return needed


def _scope(node: fx.Node) -> str:
    """Return the qualified name of the layer in whose forward() a node's operation is; "" if that is not known."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed(list(stack.values())))[0] if stack else ""
    path = path if isinstance(path, str) and not path.startswith("_empty_nn_module") else ""
    return re.sub(r"[^\w.]", "_", path)


def _place(node: fx.Node) -> tuple[str, int] | None:
    """Return file and line of a node's operation in the net's own source; None if the program does not say so."""
    lines = [(file, int(line)) for file, line in _LINE.findall(node.meta.get("stack_trace") or "")]
    own = [line for line in lines if "/torch/" not in line[0]]
    return own[-1] if own else None


def _line(node: fx.Node) -> str:
    place = _place(node)
    return f" ({Path(place[0]).name}:{place[1]})" if place else ""
