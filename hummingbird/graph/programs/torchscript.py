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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from hummingbird.errors import InputError, Problem
from hummingbird.graph.build import Unsupported
from hummingbird.graph.programs import ProgramNet, Value, Weight, compare, entries, mapped
from hummingbird.graph.programs.aten import bound, function_of
from hummingbird.graph.programs.script_graph import CALL, ScriptCode, ScriptLayer, ScriptNode, ScriptReader
from hummingbird.graph.programs.script_values import ALWAYS, PYTHON, computes, typed
from hummingbird.graph.symbols import is_tensor

_SAVED = "torch.jit.save(torch.jit.script(net), FILE) writes one"
_STATE_DICT = "it looks like a state dict: give the net of your own code, and this file as --weights"
_AGAIN = "leave it out, or give the torch.nn.Module that this program was made from"
_CLASSES = re.compile(rb"torch[\s.]*classes")  # their home; in a pickle a line may end within the name
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
    """Raise Unsupported unless a zip file is TorchScript that torch can read without running code of the file.

    Refused are classes with a method __setstate__, objects of C++ classes, and code that is too large to check.
    """
    listed = {name.partition("/")[2] for name in archive.namelist()}
    if "constants.pkl" not in listed:
        raise Unsupported("no file of torch.jit.save: it has no code", _STATE_DICT if "data.pkl" in listed else _SAVED)
    try:
        names = entries(archive)
    except ValueError as error:
        raise Unsupported(f"no file of torch.jit.save: {error}", _SAVED) from None
    for name, info in ((name.lower(), info) for name, info in names.items()):  # torch finds names in any case
        if name.endswith((".py", ".pkl")):
            if info.file_size > _LARGEST:
                raise Unsupported(f"{name} has {info.file_size} bytes, at most {_LARGEST} are read", _SAVED)
            text = archive.read(info)
            if name.endswith(".py") and b"__setstate__" in text:
                raise Unsupported(f"{name} has a __setstate__, which runs while the file is read", _AGAIN)
            if _CLASSES.search(text):
                raise Unsupported(f"{name} has objects of C++ classes, such as quantized weights", _AGAIN)


@dataclass
class _Frame:
    """The state of a method while it runs. layer: the layer whose method it is. values: its values by name.

    operations: how many tensors it has computed.
    """

    layer: nn.Module
    values: dict[str, Any]
    operations: int = 0


@dataclass(frozen=True)
class _Original:
    """Holds the TorchScript module from which a net was read.

    A deep copy of the net shares it, and makes no copy of it.
    """

    module: torch.jit.ScriptModule

    def __deepcopy__(self, memo: object) -> _Original:
        return self


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
        self.program_methods: Mapping[str, ScriptCode] = {}
        self.program_attributes: dict[str, Any] = {}
        reader = ScriptReader(self)
        reader.module(self, module)
        reader.attributes()
        self.program_signature = _signature(module)
        self.program_original = _Original(module)
        self.eval()

    def program_check(self, call: Callable[[Any], Any]) -> list[Problem]:
        module = self.program_original.module
        training = [layer for layer in module.modules() if getattr(layer, "training", False)]  # frozen ones have none
        try:
            if training:
                module.eval()
            with torch.no_grad():
                wanted = call(module)
        except Exception as error:  # torch's interpreter raises errors of many types for inputs that do not fit
            what = f"the TorchScript module fails on it: {str(error).strip().splitlines()[-1]}"
            raise InputError(what, where="example", hint="give inputs that the module takes") from None
        finally:
            for layer in training:
                layer.training = True
        with torch.no_grad():
            return compare(wanted, call(self))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute what the TorchScript module computes, for the arguments that its forward() takes."""
        (call := self.program_signature.bind(*args, **kwargs)).apply_defaults()
        self.program_counts.clear()
        try:
            return self._run(self, "forward", tuple(call.arguments.values()))
        finally:
            self.program_place = None
            self.program_layers = frozenset(path for path, count in self.program_counts.items() if path and count == 1)

    def _run(self, layer: Any, method: str, args: tuple[Any, ...]) -> Any:
        """Run a method of a layer and return its result.

        layer: this net, or a `ScriptLayer` in it. method: the method's name. args: its arguments after self.
        """
        code = layer.program_methods[method]
        frame = _Frame(layer, dict(zip(code.inputs, (layer, *args), strict=True)))
        (result,) = self._block(code, frame)
        if not layer._modules:
            self.program_counts[layer.program_path] = max(self.program_counts[layer.program_path], frame.operations)
        return result

    def _block(self, code: ScriptCode, frame: _Frame) -> list[Any]:
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

    def _node(self, node: ScriptNode, frame: _Frame) -> Iterable[Any]:
        """Run one operation of a graph, and return its results, one for each name in `node.results`.

        frame: the method that runs; the values of the operation's inputs are taken from it.
        """
        inputs = [self._actual(operand, frame) for operand in node.inputs]
        if node.kind == "prim::If":
            return self._block(node.blocks[self._branch(node, inputs[0])], frame)
        if node.kind == "prim::Loop":
            return self._loop(node, inputs, frame)
        if node.kind == "prim::GetAttr":
            return [self._attribute(node, inputs[0])]
        if node.kind == CALL:
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

    def _branch(self, node: ScriptNode, condition: Any) -> int:
        """Return the number of the block that an If runs: 0 for a true condition, 1 for a false one.

        If the condition is about a shape that is not known, and one of the blocks raises an error, the other block is
        taken.
        """
        raises = [block.raises for block in node.blocks]
        if any(raises) and isinstance(condition, fx.Proxy) and not is_tensor(condition.node):
            return raises.index(False)
        return 0 if condition else 1

    def _loop(self, node: ScriptNode, inputs: list[Any], frame: _Frame) -> list[Any]:
        (block,) = node.blocks
        most, goes, *carried = inputs
        turn = 0
        while goes and turn < most:
            frame.values.update(zip(block.inputs, (turn, *carried), strict=True))
            goes, *carried = self._block(block, frame)
            turn += 1
        return carried

    def _attribute(self, node: ScriptNode, owner: Any) -> Any:
        if not isinstance(owner, (ScriptLayer, ScriptedNet)):
            raise Unsupported(f"attribute {node.name} of an object of a class{self._line()}", _AGAIN)
        if node.name in owner.program_attributes:
            return mapped(owner.program_attributes[node.name], lambda part: self._actual(part, _Frame(self, {})))
        return getattr(owner, node.name)

    def _call(self, node: ScriptNode, owner: Any, args: list[Any], frame: _Frame) -> Any:
        if not isinstance(owner, (ScriptLayer, ScriptedNet)) or node.name not in owner.program_methods:
            raise Unsupported(f"a call of {node.name}() of an object that is no module{self._line()}", _AGAIN)
        if owner is frame.layer:
            return self._run(owner, node.name, tuple(args))
        return owner(node.name, *args)

    def _unpacked(self, node: ScriptNode, value: Any) -> list[Any]:
        if not isinstance(value, fx.Proxy) and len(value) != len(node.results):
            what = f"{len(node.results)} values expected, got {len(value)}{self._line()}"
            raise InputError(what, where="net", hint="give inputs of the shapes that the net takes")
        return [value[at] for at in range(len(node.results))]

    def _tensors(self, node: ScriptNode, inputs: list[Any], frame: _Frame) -> list[Any]:
        """Compute an operation of ATen by torch's function; return its results, one for each name in `node.results`.

        inputs: the values of its inputs. frame: the method that runs, whose count of tensors grows. A result that
        nobody reads may be None.
        """
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


def _operation(node: ScriptNode, line: str) -> torch._ops.OpOverload:
    """Return the operation of ATen that a node of TorchScript calls.

    line: text for the error, the place in the net's source. Raises Unsupported for an operation that ATen does not
        have, and for one that opens a file.
    """
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
    """Return an operation's arguments, positional and by keyword, in the form that `function_of`'s result takes.

    op: the operation of ATen. inputs: a value for each of its parameters. Defaults at the end of the list are left out.
    """
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
