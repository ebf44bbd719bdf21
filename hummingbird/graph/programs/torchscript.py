"""TorchScript: a scripted, traced or frozen module, in memory or from a file of torch.jit.save, as a `ProgramNet`.

A TorchScript module has modules, weights and methods as the net that it was made from; a method is a graph with blocks
for branches and loops. `ScriptedNet` runs these graphs node by node. Sizes, flags and lists are Python's own values, so
they decide branches and loops; operations on tensors become calls of torch's functions (aten.py). PyTorch's "JIT
Technical Overview" (torch/csrc/jit/OVERVIEW.md) describes this form.
"""

from __future__ import annotations

import inspect
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from hummingbird.errors import InputError
from hummingbird.graph.build import Unsupported
from hummingbird.graph.programs import ProgramNet, Value, Weight, mapped
from hummingbird.graph.programs.aten import bound, function_of
from hummingbird.graph.programs.exported import single
from hummingbird.graph.programs.script_values import ALWAYS, PYTHON, computes, typed
from hummingbird.graph.symbols import is_tensor

_SAVED = "torch.jit.save(torch.jit.script(net), FILE) writes one"
_STATE_DICT = "it looks like a state dict: give the net of your own code, and this file as --weights"
_AGAIN = "leave it out, or give the torch.nn.Module that this program was made from"
_LINE = re.compile(r'File "(.+?)", line (\d+)|^(\S.*?)\((\d+)\): ', re.MULTILINE)
_CALL = "hummingbird::call"  # a call of a method, while functions are inlined
_LARGEST = 1 << 26  # bytes of one file of code in an archive


def read(path: str | PathLike[str]) -> ScriptedNet:
    """Read a .pt or .pth file, which torch.jit.save writes, and return its net.

    torch's reader of such a file runs no Python code and reads no pickled objects of Python. It would run code of the
    file in TorchScript's own interpreter for classes with a method __setstate__, and make objects of C++ classes; a
    file with either is refused before torch reads it. Raises InputError for such a file, a state dict, any other file,
    and a missing one.
    """
    where = str(path)
    try:
        with zipfile.ZipFile(path) as archive:
            _check_archive(archive)
    except OSError as error:
        raise InputError(f"cannot read it: {error.strerror or error}", where=where, hint=_SAVED) from None
    except (zipfile.BadZipFile, EOFError):
        hint = f"{_SAVED}; if it is a state dict, give the net of your own code, and this file as --weights"
        raise InputError("no file of torch.jit.save: it is no zip archive", where=where, hint=hint) from None
    except Unsupported as problem:
        raise InputError(problem.what, where=where, hint=problem.hint) from None
    try:
        module = torch.jit.load(path, map_location="cpu")
    except Exception as error:  # what a damaged file leads to in torch's reader is not documented
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        hint = "it is damaged, or an older or newer torch wrote it: write it again with this one"
        raise InputError(f"torch {torch.__version__} cannot read it: {reason}", where=where, hint=hint) from None
    return ScriptedNet(module)


def _check_archive(archive: zipfile.ZipFile) -> None:
    """Raise Unsupported for an archive that is no TorchScript, or of which torch would run code while it reads it."""
    names = {info.filename.partition("/")[2]: info for info in archive.infolist()}
    if "constants.pkl" not in names:
        known = "data.pkl" in names
        raise Unsupported("no file of torch.jit.save: it has no code", _STATE_DICT if known else _SAVED)
    for name, info in names.items():
        if name.endswith((".py", ".pkl")):
            if info.file_size > _LARGEST:
                raise Unsupported(f"{name} has {info.file_size} bytes, at most {_LARGEST} are read", _SAVED)
            text = archive.read(info)
            if name.endswith(".py") and b"def __setstate__" in text:
                raise Unsupported(f"{name} has a __setstate__, which runs while the file is read", _AGAIN)
            if b"__torch__.torch.classes" in text:
                raise Unsupported(f"{name} has objects of C++ classes, such as quantized weights", _AGAIN)


@dataclass(frozen=True, eq=False)
class _Node:
    """One operation of a graph.

    kind: its name in TorchScript, such as "aten::relu" or "prim::If". results: names of its values; "" for one that
    nobody reads. inputs: `Value` and `Weight` references, and constants. schema: its signature, for those of aten.
    blocks: the graphs that it runs. name: of the attribute or method, for operations on modules. lists: whether the one
    result is a list. tensors: how many results are tensors. scope: the layer whose weights a frozen graph holds.
    place: file and line in the net's own source, if the program says so.
    """

    kind: str
    results: tuple[str, ...]
    inputs: tuple[Any, ...]
    schema: Any = None
    blocks: tuple[_Code, ...] = ()
    name: str = ""
    lists: bool = False
    tensors: int = 0
    scope: str = ""
    place: tuple[str, int] | None = None


@dataclass(frozen=True, eq=False)
class _Code:
    """A graph: the names of its inputs, its operations in order, and what it returns."""

    inputs: tuple[str, ...]
    nodes: tuple[_Node, ...]
    results: tuple[Any, ...]

    def __deepcopy__(self, memo: object) -> _Code:
        return self  # nothing in it changes

    @property
    def raises(self) -> bool:
        return any(node.kind == "prim::RaiseException" for node in self.nodes)


@dataclass
class _Frame:
    """A method that runs: its layer, its values by name, and how many tensors it has computed."""

    layer: nn.Module
    values: dict[str, Any]
    operations: int = 0


class _Layer(nn.Module):
    """A module of a TorchScript net, by its qualified name: its methods' graphs, and its values that are no tensors.

    home: the net, kept in a tuple, because it is no part of the layer.
    """

    def __init__(self, home: ScriptedNet, path: str, methods: Mapping[str, _Code]) -> None:
        super().__init__()
        self.program_path, self.program_methods, self.program_home = path, methods, (home,)
        self.program_attributes: dict[str, Any] = {}

    def forward(self, method: str, *args: Any) -> Any:
        return self.program_home[0]._run(self, method, args)


class ScriptedNet(ProgramNet):
    """The net of a TorchScript module, which takes and returns what the module takes and returns.

    Layers, parameters and buffers have the names that they have in the module. There is no example: TorchScript does
    not say what shapes inputs have.

        >>> ScriptedNet(torch.jit.script(nn.Linear(4, 2)))(torch.rand(3, 4)).shape
        torch.Size([3, 2])
    """

    program_path = ""

    def __init__(self, module: torch.jit.ScriptModule) -> None:
        super().__init__([], [], [], {}, None, True)
        self.program_counts: Counter[str] = Counter()  # by layer: the most tensors that one run of its method computed
        self.program_methods: Mapping[str, _Code] = {}
        self.program_attributes: dict[str, Any] = {}
        reader = _Reader(self)
        reader.module(self, module)
        reader.attributes()
        self.program_signature = _signature(module)
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute what the module computes, for the arguments that its forward() takes."""
        (call := self.program_signature.bind(*args, **kwargs)).apply_defaults()
        self.program_counts.clear()
        try:
            return self._run(self, "forward", tuple(call.arguments.values()))
        finally:
            self.program_place = None
            self.program_layers = frozenset(path for path, count in self.program_counts.items() if path and count == 1)

    def _run(self, layer: Any, method: str, args: tuple[Any, ...]) -> Any:
        """Run a method of a layer and return its result."""
        code = layer.program_methods[method]
        frame = _Frame(layer, dict(zip(code.inputs, (layer, *args), strict=True)))
        (result,) = self._block(code, frame)
        if not layer._modules:
            self.program_counts[layer.program_path] = max(self.program_counts[layer.program_path], frame.operations)
        return result

    def _block(self, code: _Code, frame: _Frame) -> list[Any]:
        for node in code.nodes:
            before, self.program_place = self.program_place, node.place or self.program_place
            found = self._node(node, frame)
            self.program_place = before
            for name, value in zip(node.results, found, strict=True):
                if name:
                    frame.values[name] = value
        return [self._actual(result, frame) for result in code.results]

    def _actual(self, operand: Any, frame: _Frame) -> Any:
        if isinstance(operand, Value):
            return frame.values[operand.name]
        if isinstance(operand, Weight):
            return self._weight(operand.path)
        if isinstance(operand, (list, dict)):  # a new one each time: the program may change it
            return mapped(operand, lambda part: self._actual(part, frame))
        return operand

    def _node(self, node: _Node, frame: _Frame) -> Iterable[Any]:
        """Run an operation, and return its results."""
        inputs = [self._actual(operand, frame) for operand in node.inputs]
        if node.kind == "prim::If":
            return self._block(node.blocks[self._branch(node, inputs[0])], frame)
        if node.kind == "prim::Loop":
            return self._loop(node, inputs, frame)
        if node.kind == "prim::GetAttr":
            return [self._attribute(node, inputs[0])]
        if node.kind == _CALL:
            return [self._call(node, inputs[0], inputs[1:], frame)]
        if node.kind == "prim::RaiseException":
            where, hint = str(frame.layer.program_path) or "net", "give what its forward() takes"
            raise InputError(str(inputs[0]), where=where, hint=hint)
        if node.kind in ("prim::ListUnpack", "prim::TupleUnpack"):
            return self._unpacked(node, inputs[0])
        function = ALWAYS.get(node.kind)
        if function is None and not computes(node.schema, inputs):
            function = PYTHON.get(node.kind)
        if function is not None:
            return [function(*inputs)][: len(node.results)]
        return self._tensors(node, inputs, frame)

    def _line(self) -> str:
        return f" ({Path(self.program_place[0]).name}:{self.program_place[1]})" if self.program_place else ""

    def _branch(self, node: _Node, condition: Any) -> int:
        """Return which block an If runs. An assertion on a shape that is not known counts as fulfilled."""
        raises = [block.raises for block in node.blocks]
        if any(raises) and isinstance(condition, fx.Proxy) and not is_tensor(condition.node):
            return raises.index(False)
        return 0 if condition else 1

    def _loop(self, node: _Node, inputs: list[Any], frame: _Frame) -> list[Any]:
        (block,) = node.blocks
        most, goes, *carried = inputs
        turn = 0
        while goes and turn < most:
            frame.values.update(zip(block.inputs, (turn, *carried), strict=True))
            goes, *carried = self._block(block, frame)
            turn += 1
        return carried

    def _attribute(self, node: _Node, owner: Any) -> Any:
        if not isinstance(owner, (_Layer, ScriptedNet)):
            raise Unsupported(f"attribute {node.name} of an object of a class{self._line()}", _AGAIN)
        if node.name in owner.program_attributes:
            return mapped(owner.program_attributes[node.name], lambda part: self._actual(part, _Frame(self, {})))
        return getattr(owner, node.name)

    def _call(self, node: _Node, owner: Any, args: list[Any], frame: _Frame) -> Any:
        if not isinstance(owner, (_Layer, ScriptedNet)) or node.name not in owner.program_methods:
            raise Unsupported(f"a call of {node.name}() of an object that is no module{self._line()}", _AGAIN)
        if owner is frame.layer:
            return self._run(owner, node.name, tuple(args))
        return owner(node.name, *args)

    def _unpacked(self, node: _Node, value: Any) -> list[Any]:
        if not isinstance(value, fx.Proxy) and len(value) != len(node.results):
            what = f"{len(node.results)} values expected, got {len(value)}{self._line()}"
            raise InputError(what, where="net", hint="give inputs of the shapes that the net takes")
        return [value[at] for at in range(len(node.results))]

    def _tensors(self, node: _Node, inputs: list[Any], frame: _Frame) -> list[Any]:
        """Compute an operation on tensors by torch's function for it."""
        op = _operation(node, self._line())
        names = [argument.name for argument in op._schema.arguments]
        inputs = [typed(name, value) for name, value in zip(names, inputs, strict=True)]
        if str(op._schema.arguments[0].type) == "Tensor" and isinstance(inputs[0], (int, float)):
            inputs[0] = torch.tensor(inputs[0])  # a number that stands for a tensor
        args, kwargs = _given(op, inputs)
        function = function_of(op)
        if node.scope:
            found = self.get_submodule(node.scope)(function, *args, **kwargs)
            self.program_counts[node.scope] += node.tensors
        else:
            found = function(*args, **kwargs)
            frame.operations += node.tensors
        if len(node.results) == 1:
            return [list(found) if node.lists and isinstance(found, tuple) else found]
        return [found[at] if name else None for at, name in enumerate(node.results)]


def _operation(node: _Node, line: str) -> torch._ops.OpOverload:
    """Return torch's operation of a node; raise Unsupported if there is none that a private net could have."""
    space, _, name = node.kind.partition("::")
    packet = getattr(torch.ops.aten, name, None) if space == "aten" and node.schema is not None else None
    found = getattr(packet, node.schema.overload_name or "default", None) if packet is not None else None
    # Some operations open files; a program must not.
    if found is None or any(
        str(argument.type) == "str" and "file" in argument.name for argument in node.schema.arguments
    ):
        raise Unsupported(f"operation {node.kind} has no private form{line}", _AGAIN)
    operation: torch._ops.OpOverload = found
    return operation


def _given(op: torch._ops.OpOverload, inputs: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return an operation's arguments as `function_of` takes them, without defaults at the end of the list."""
    arguments = op._schema.arguments
    kwargs = {}
    positional = list(zip(arguments, inputs, strict=True))
    while positional and (positional[-1][0].kwarg_only or _is_default(*positional[-1])):
        argument, value = positional.pop()
        if not _is_default(argument, value):
            kwargs[argument.name] = value
    return bound(op, tuple(value for _, value in positional), kwargs)


def _is_default(argument: Any, value: Any) -> bool:
    if not argument.has_default_value() or isinstance(value, (Tensor, fx.Proxy)):
        return False
    return type(value) is type(argument.default_value) and bool(value == argument.default_value)


def _signature(module: torch.jit.ScriptModule) -> inspect.Signature:
    kind, empty = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
    arguments = module._c._get_method("forward").schema.arguments[1:]
    return inspect.Signature(
        [
            inspect.Parameter(a.name, kind, default=a.default_value if a.has_default_value() else empty)
            for a in arguments
        ]
    )


# Reading ------------------------------------------------------------------------------------------------------------


@dataclass
class _Reader:
    """Reads the modules, weights, attributes and graphs of a TorchScript module into a `ScriptedNet`."""

    net: ScriptedNet
    codes: dict[str, dict[str, _Code]] = field(default_factory=dict)  # methods by the type of their module
    names: set[str] = field(default_factory=set)  # of all attributes that graphs read
    made: dict[tuple[Any, ...], tuple[Any, Any]] = field(
        default_factory=dict
    )  # tensors of the program, and the net's own
    paths: dict[tuple[Any, ...], str] = field(default_factory=dict)  # of weights, by their memory
    modules: list[tuple[Any, Any]] = field(default_factory=list)

    def module(self, layer: Any, module: Any) -> None:
        """Read a module with all modules in it: weights and methods."""
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            self.paths.setdefault(_memory(tensor), f"{layer.program_path}.{name}".lstrip("."))
        for name, tensor in module._parameters.items():
            layer.register_parameter(name, self._own(tensor, parameter=True))
        for name, tensor in module._buffers.items():
            layer.register_buffer(name, self._own(tensor))
        layer.program_methods = self._methods(module._c)
        self.modules.append((layer, module))
        for name, child in module._modules.items():
            inner = _Layer(self.net, f"{layer.program_path}.{name}".lstrip("."), {})
            layer.add_module(name, inner)
            self.module(inner, child)

    def attributes(self) -> None:
        """Read the attributes of all modules: flags, sizes, lists."""
        for layer, module in self.modules:
            known = layer._parameters.keys() | layer._buffers.keys() | layer._modules.keys() | {"training"}
            for name in sorted(self.names - known):
                if module._c.hasattr(name):
                    layer.program_attributes[name] = self._constant(
                        module._c.getattr(name), f"{layer.program_path}.{name}".lstrip(".")
                    )

    def _own(self, tensor: Any, parameter: bool = False) -> Any:
        """Return a weight in float32; weights that modules share stay shared."""
        key = _memory(tensor)
        if key not in self.made:
            own = single(tensor)  # a file's parameters are plain tensors
            own = nn.Parameter(own) if parameter and not isinstance(own, nn.Parameter) else own
            self.made[key] = (tensor, own)
        return self.made[key][1]

    def _constant(self, value: Any, name: str) -> Any:
        """Return a constant of the program with a `Weight` for each tensor in it; name: a path for a new buffer."""
        if isinstance(value, Tensor):
            if value.dim() == 0 and value.dtype in (torch.int64, torch.float64, torch.bool):
                return value.item()  # a number in the code of a traced net
            return Weight(self._buffer(value, re.sub(r"[^\w.]", "_", name)))
        if isinstance(value, (list, tuple)):
            return type(value)(self._constant(part, f"{name}_{at}") for at, part in enumerate(value))
        if isinstance(value, dict):
            return {key: self._constant(part, f"{name}_{key}") for key, part in value.items()}
        return value

    def _buffer(self, tensor: Tensor, path: str) -> str:
        """Return the path of a tensor among the net's weights; one that is not there becomes a buffer."""
        if (found := self.paths.get(_memory(tensor))) is not None:
            return found
        home, _, name = path.rpartition(".")
        scope = self.net._scope(home)
        while hasattr(scope, name):
            name += "_"
        scope.register_buffer(name, self._own(tensor), persistent=False)
        path = f"{home}.{name}" if home else name
        self.paths[_memory(tensor)] = path
        return path

    def _methods(self, module: Any) -> dict[str, _Code]:
        kind = module.qualified_name
        if kind not in self.codes:
            self.codes[kind] = {}
            for name in module._method_names():
                graph = module._get_method(name).graph.copy()
                _keep_methods(graph, graph)
                torch._C._jit_pass_inline(graph)
                self.codes[kind][name] = self._code(graph, {})
        return self.codes[kind]

    def _code(self, block: Any, constants: dict[str, Any]) -> _Code:
        constants = dict(constants)
        nodes = []
        for node in block.nodes():
            if node.kind() == "prim::Constant":
                value = node.output().toIValue()
                name = node.output().debugName().removeprefix("self.") if isinstance(value, (Tensor, list)) else ""
                constants[node.output().debugName()] = self._constant(
                    value, f"constant_{name}" if name.isdigit() else name
                )
            elif node.kind() == "prim::GetAttr" and not node.output().uses():
                continue
            else:
                nodes.append(self._node(node, constants))
        results = tuple(_operand(value, constants) for value in block.outputs())
        return _Code(tuple(value.debugName() for value in block.inputs()), tuple(nodes), results)

    def _node(self, node: Any, constants: dict[str, Any]) -> _Node:
        kind, outputs = node.kind(), list(node.outputs())
        name = node.s("name") if node.hasAttribute("name") and node.kindOf("name") == "s" else ""
        if kind == "prim::GetAttr":
            self.names.add(name)
        inputs = tuple(_operand(value, constants) for value in node.inputs())
        weights = [value.path for value in _flat(inputs) if isinstance(value, Weight)]
        scope = weights[0].rpartition(".")[0] if weights and kind.startswith("aten::") else ""
        schema = node.schema()
        return _Node(
            kind,
            tuple(value.debugName() if value.uses() else "" for value in outputs),
            inputs,
            None if schema.startswith("(") else torch._C.parse_schema(schema),
            tuple(self._code(block, constants) for block in node.blocks()),
            name,
            len(outputs) == 1 and outputs[0].type().kind() == "ListType",
            sum(value.type().kind() == "TensorType" for value in outputs),
            scope,
            _place(node.sourceRange()),
        )


def _keep_methods(graph: Any, block: Any) -> None:
    """Rename calls of methods in a graph, so that torch inlines functions and not methods."""
    for node in list(block.nodes()):
        for inner in node.blocks():
            _keep_methods(graph, inner)
        if node.kind() == "prim::CallMethod":
            call = graph.create(_CALL, list(node.inputs()), len(list(node.outputs())))
            call.s_("name", node.s("name"))
            call.copyMetadata(node)
            call.insertBefore(node)
            for old, new in zip(node.outputs(), call.outputs(), strict=True):
                new.setType(old.type())
                old.replaceAllUsesWith(new)
            node.destroy()


def _operand(value: Any, constants: dict[str, Any]) -> Any:
    name = value.debugName()
    return constants[name] if name in constants else Value(name)


def _flat(value: Any) -> Iterable[Any]:
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _flat(part)
    else:
        yield value


def _memory(tensor: Tensor | None) -> tuple[Any, ...]:
    """Return where a tensor lies: the same for two objects that are one weight. An empty tensor is like no other."""
    if tensor is None or not tensor.numel() or tensor.layout != torch.strided:
        return (id(tensor),)
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _place(text: str) -> tuple[str, int] | None:
    """Return file and line of an operation in the net's own source; None if the program does not say so."""
    lines = [(a or b, int(c or d)) for a, c, b, d in _LINE.findall(text)]
    return next((line for line in lines if "/torch/" not in line[0] and not line[0].startswith("<")), None)
