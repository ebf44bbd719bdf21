"""The graphs of a TorchScript module, read into nodes: methods, weights and attributes, by the modules that have them.

Functions are inlined, methods are not: so every operation belongs to the module in whose method it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hummingbird.graph.programs import ProgramNet, Value, Weight
from hummingbird.graph.programs.exported import single

CALL = "hummingbird::call"  # a call of a method, while functions are inlined
_LINE = re.compile(r'File "(.+?)", line (\d+)|^(\S.*?)\((\d+)\): ', re.MULTILINE)


@dataclass(frozen=True, eq=False)
class ScriptNode:
    """One operation in a graph of TorchScript.

    kind: its name in TorchScript, such as "aten::relu" or "prim::If". results: names of the values that it computes; ""
    for one that nobody reads. inputs: `Value` and `Weight` references, and constants. schema: its signature in torch,
    if it has one. blocks: the graphs that it runs, such as the two branches of an If. name: the attribute or method
    that it reads or calls, if it does. lists: whether its one result is a list. tensors: how many of its results are
    tensors. scope: qualified name of the layer whose weights it reads, if these are constants of the graph, as in a
    frozen module; else "".
    place: file and line in the net's own source, if the program says so.
    """

    kind: str
    results: tuple[str, ...]
    inputs: tuple[Any, ...]
    schema: Any = None
    blocks: tuple[ScriptCode, ...] = ()
    name: str = ""
    lists: bool = False
    tensors: int = 0
    scope: str = ""
    place: tuple[str, int] | None = None


@dataclass(frozen=True, eq=False)
class ScriptCode:
    """The graph of a TorchScript method or block: the names of its inputs, its operations in order, and its results.

    results: `Value` and `Weight` references, and constants.
    """

    inputs: tuple[str, ...]
    nodes: tuple[ScriptNode, ...]
    results: tuple[Any, ...]

    def __deepcopy__(self, memo: object) -> ScriptCode:
        return self  # nothing in it changes

    @property
    def raises(self) -> bool:
        return any(node.kind == "prim::RaiseException" for node in self.nodes)


class ScriptLayer(nn.Module):
    """A module inside a TorchScript net, as a module of torch: it has the graphs of its methods, and its attributes.

    home: the `ScriptedNet` that runs the graphs. path: the module's qualified name in it. methods: name of a method ->
    its graph.
    """

    def __init__(self, home: Any, path: str, methods: Mapping[str, ScriptCode]) -> None:
        super().__init__()
        self.program_path, self.program_methods, self.program_home = path, methods, (home,)
        self.program_attributes: dict[str, Any] = {}

    def forward(self, method: str, *args: Any) -> Any:
        return self.program_home[0]._run(self, method, args)


@dataclass
class ScriptReader:
    """Reads the modules, weights, attributes and graphs of a TorchScript module into a `ScriptedNet`.

    Call `module` first, then `attributes`.
    """

    net: ProgramNet
    codes: dict[str, dict[str, ScriptCode]] = field(default_factory=dict)  # methods by the type of their module
    names: set[str] = field(default_factory=set)  # of all attributes that graphs read
    made: dict[tuple[Any, ...], tuple[Any, Any]] = field(
        default_factory=dict
    )  # tensors of the program, and the net's own
    paths: dict[tuple[Any, ...], str] = field(default_factory=dict)  # of weights, by their memory
    modules: list[tuple[Any, Any]] = field(default_factory=list)

    def module(self, layer: Any, module: Any) -> None:
        """Read the weights and methods of a TorchScript module, and of all modules in it, into the net.

        layer: the net, or the `ScriptLayer` in it, that gets them. module: the TorchScript module.
        """
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            self.paths.setdefault(_memory(tensor), f"{layer.program_path}.{name}".lstrip("."))
        for name, tensor in module._parameters.items():
            layer.register_parameter(name, self._own(tensor, parameter=True))
        for name, tensor in module._buffers.items():
            layer.register_buffer(name, self._own(tensor))
        layer.program_methods = self._methods(module._c)
        self.modules.append((layer, module))
        for name, child in module._modules.items():
            inner = ScriptLayer(self.net, f"{layer.program_path}.{name}".lstrip("."), {})
            layer.add_module(name, inner)
            self.module(inner, child)

    def attributes(self) -> None:
        """Read those attributes of all modules that graphs use and that are no weights, such as flags, sizes and lists.

        They go into each layer's `program_attributes`.
        """
        for layer, module in self.modules:
            known = layer._parameters.keys() | layer._buffers.keys() | layer._modules.keys() | {"training"}
            for name in sorted(self.names - known):
                if module._c.hasattr(name):
                    layer.program_attributes[name] = self._constant(
                        module._c.getattr(name), f"{layer.program_path}.{name}".lstrip(".")
                    )

    def _own(self, tensor: Any, parameter: bool = False) -> Any:
        """Return the net's own copy of a tensor, with floating-point numbers in float32.

        Tensors that share memory in the program give the same copy. parameter: whether to return an nn.Parameter.
        """
        key = _memory(tensor)
        if key not in self.made:
            own = single(tensor)  # a file's parameters are plain tensors
            own = nn.Parameter(own) if parameter and not isinstance(own, nn.Parameter) else own
            self.made[key] = (tensor, own)
        return self.made[key][1]

    def _constant(self, value: Any, name: str) -> Any:
        """Convert a constant of the program: a tensor of one number becomes this number, others `Weight` references.

        Lists, tuples and dicts are converted part by part. name: a qualified name for a tensor that the net does not
        have yet.
        """
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
        """Return the qualified name that a tensor of the program has among the net's weights.

        A tensor that is not among them is registered as a buffer, called `path` or a free name like it.
        """
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

    def _methods(self, module: Any) -> dict[str, ScriptCode]:
        kind = module.qualified_name
        if kind not in self.codes:
            self.codes[kind] = {}
            for name in module._method_names():
                graph = module._get_method(name).graph.copy()
                _keep_methods(graph, graph)
                torch._C._jit_pass_inline(graph)
                self.codes[kind][name] = self._code(graph, {})
        return self.codes[kind]

    def _code(self, block: Any, constants: dict[str, Any]) -> ScriptCode:
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
        return ScriptCode(tuple(value.debugName() for value in block.inputs()), tuple(nodes), results)

    def _node(self, node: Any, constants: dict[str, Any]) -> ScriptNode:
        kind, outputs = node.kind(), list(node.outputs())
        name = node.s("name") if node.hasAttribute("name") and node.kindOf("name") == "s" else ""
        if kind == "prim::GetAttr":
            self.names.add(name)
        inputs = tuple(_operand(value, constants) for value in node.inputs())
        weights = [value.path for value in _flat(inputs) if isinstance(value, Weight)]
        scope = weights[0].rpartition(".")[0] if weights and kind.startswith("aten::") else ""
        schema = node.schema()
        return ScriptNode(
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
    """Rename the calls of methods in a TorchScript graph, so that torch's inlining takes in functions, but not methods.

    graph: the whole graph. block: the part whose nodes are renamed, with all blocks inside it.
    """
    for node in list(block.nodes()):
        for inner in node.blocks():
            _keep_methods(graph, inner)
        if node.kind() == "prim::CallMethod":
            call = graph.create(CALL, list(node.inputs()), len(list(node.outputs())))
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
    """Return a key for the memory of a tensor: it is equal for two tensor objects that are the same weight.

    None, an empty tensor and a tensor that is not dense have keys of their own.
    """
    if tensor is None or not tensor.numel() or tensor.layout != torch.strided:
        return (id(tensor),)
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _place(text: str) -> tuple[str, int] | None:
    """Return file and line of an operation in the net's own source; None if the program does not say so.

    text: the call stack that TorchScript keeps for the operation.
    """
    lines = [(a or b, int(c or d)) for a, c, b, d in _LINE.findall(text)]
    return next((line for line in lines if "/torch/" not in line[0] and not line[0].startswith("<")), None)
