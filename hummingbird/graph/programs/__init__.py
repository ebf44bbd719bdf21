"""Programs: nets that come as a graph of another form (torch.export, TorchScript, ONNX), read as a torch module.

A `ProgramNet` runs the graph's operations by torch's own functions. So the one trace of this package reads it as it
reads a net that was written by hand, and every function that takes a net takes a program.

    exported.py      torch.export's ExportedProgram, by its ATen operations
    torchscript.py   a TorchScript module, by the same operations
    script_graph.py  the graphs of a TorchScript module, read into nodes
    script_values.py TorchScript's operations on Python's values
    aten.py          ATen operations as calls of torch's functions
    onnx/            ONNX files, by the operators of the standard
"""

from __future__ import annotations

import importlib
import inspect
import weakref
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from hummingbird.errors import InputError, Problem


@dataclass(frozen=True)
class Value:
    """A reference to an input of the program, or to an earlier call's result. Arguments of a `ProgramCall` hold it.

    name: the name of the input or result.
    """

    name: str


@dataclass(frozen=True)
class Weight:
    """A reference to a parameter or buffer of the program. Arguments of a `ProgramCall` hold it.

    path: the qualified name of the parameter or buffer.
    """

    path: str


@dataclass(frozen=True, eq=False)
class ProgramCall:
    """One operation of a program.

    result: name of its value. function: a function of torch, or of Python, that computes it. args, kwargs: its
    arguments; `Value` and `Weight` references may stand in them, also inside tuples, lists, dicts and slices.
    scope: qualified name of the layer that the operation belongs to; "" for none.
    place: file and line of the operation in the source of the net, if the program says so.
    """

    result: str
    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    scope: str = ""
    place: tuple[str, int] | None = None


class Scope(nn.Module):
    """A layer of a program: it holds the layer's weights, and gives its name to the operations that run in it."""

    def forward(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)


class ProgramNet(nn.Module):
    """A net that was read from a graph of another form: forward() runs the graph's operations one after the other.

    It is for inference: train() changes nothing. Parameters and buffers have the names that they have in the graph, so
    a state dict of the original net fits. Attributes of the program itself begin with `program_`: all other names are
    the net's own.

    calls: the operations, in order. inputs: names of the values that the graph takes. results: what forward() returns:
    not names, but `Value` and `Weight` references, or constants; a single one is returned by itself.
    weights: the parameters (`nn.Parameter`) and buffers, by qualified name.
    example: a call's arguments, with which the program is traced unless the user gives others: a tuple, or a dict of
        keyword arguments.
    any_batch: whether the graph computes batches of every size, and not only of the example's.
    names: names of forward()'s arguments, if they are not the graph's inputs.
    layers: qualified names of layers (`ProgramCall.scope`) that have only one operation; its step has the layer's name.
    hint: the hint of the error that is raised if the program cannot be converted.
    shapes: for each input that is a tensor its shape, with None for sizes that each call may choose; () if nothing is
        known of shapes.
    """

    def __init__(
        self,
        calls: Sequence[ProgramCall],
        inputs: Sequence[str],
        results: Sequence[Any],
        weights: Mapping[str, Tensor],
        example: Any,
        any_batch: bool,
        names: Sequence[str] = (),
        layers: Collection[str] = (),
        hint: str = "",
        shapes: Sequence[tuple[int | None, ...]] = (),
    ) -> None:
        super().__init__()
        self.program_calls, self.program_inputs, self.program_results = list(calls), list(inputs), list(results)
        self.program_example, self.program_any_batch = example, any_batch
        self.program_layers, self.program_hint = frozenset(layers), hint
        self.program_shapes = list(shapes)
        self.program_unread = _unread(calls, results)
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        self.program_signature = inspect.Signature([inspect.Parameter(name, kind) for name in names or inputs])
        self.program_place: tuple[str, int] | None = None  # of the call that runs now
        for path, weight in weights.items():
            home, _, name = path.rpartition(".")
            if isinstance(weight, nn.Parameter):
                self._scope(home).register_parameter(name, weight)
            else:
                self._scope(home).register_buffer(name, weight)
        for call in calls:
            self._scope(call.scope)
        self.eval()

    def _scope(self, path: str) -> nn.Module:
        """Return the submodule with the qualified name `path`; it is added to the net if there is none."""
        scope: nn.Module = self
        for name in path.split(".") if path else ():
            if name not in scope._modules:
                scope.add_module(name, Scope())
            scope = scope.get_submodule(name)
        return scope

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the net's results. The arguments are positional, or have the names that forward() gives them."""
        values = dict(zip(self.program_inputs, self._flat(args, kwargs), strict=True))
        self.program_fits([value for value in values.values() if isinstance(value, Tensor)])
        weights: dict[str, Any] = {}

        def actual(value: Any) -> Any:
            if isinstance(value, Value):
                return values[value.name]
            if isinstance(value, Weight):
                if value.path not in weights:
                    weights[value.path] = self._weight(value.path)
                return weights[value.path]
            return mapped(value, actual)

        for call, unread in zip(self.program_calls, self.program_unread, strict=True):
            self.program_place = call.place
            scope = self.get_submodule(call.scope)
            args, kwargs = actual(call.args), actual(dict(call.kwargs))
            values[call.result] = (
                scope(call.function, *args, **kwargs) if call.scope else call.function(*args, **kwargs)
            )
            del args, kwargs
            for name in unread:
                del values[name]
        self.program_place = None
        return self._rebuilt([actual(result) for result in self.program_results])

    def program_fits(self, inputs: Sequence[Tensor]) -> None:
        """Raise InputError if an input does not have the shape that the program states for it.

        inputs: the tensors among a call's arguments, in order. Sizes that the program leaves open may be any. Other
            sizes are fixed, because numbers in the graph may follow from them.
        """
        for x, sizes in zip(inputs, self.program_shapes, strict=False):
            if len(sizes) != x.dim() or any(size not in (None, own) for size, own in zip(sizes, x.shape, strict=True)):
                wanted = ", ".join("any" if size is None else str(size) for size in sizes)
                hint = "export it with free sizes, such as the batch (dynamic_shapes); all others stay as they were"
                what = f"the program takes the shape ({wanted}), got {tuple(x.shape)}"
                raise InputError(what, where="input", hint=hint)

    def program_check(self, call: Callable[[Any], Any]) -> list[Problem]:
        """Compare this net with torch's own run of the program, where torch can run it; return the differences as
        problems.

        call: a function that takes a net, calls it with the example's arguments, and returns its result.
        """
        return []

    def _weight(self, path: str) -> Any:
        home, _, name = path.rpartition(".")
        return getattr(self.get_submodule(home), name)

    def _flat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the values of the graph's inputs, in the graph's order, from the arguments of a call of forward().

        Raises TypeError if the arguments do not fit.
        """
        return list(self.program_signature.bind(*args, **kwargs).arguments.values())

    def _rebuilt(self, results: list[Any]) -> Any:
        """Return what forward() returns: a single result by itself, several in the structure that the original net has.

        results: the values of the graph's results, in order.
        """
        return results[0] if len(results) == 1 else tuple(results)


_READERS = {".onnx": "onnx", ".pt2": "exported", ".pt": "torchscript", ".pth": "torchscript"}  # modules of this folder

SUFFIXES = frozenset(_READERS)  # of files that `load_program` reads


def load_program(source: Any) -> nn.Module:
    """Read a net from a file or an object of another form, and return it as a torch module for inference.

    source: a path of an ONNX file (.onnx), of torch.export.save (.pt2) or of torch.jit.save (.pt, .pth); or an
        ExportedProgram, a TorchScript module, or an onnx.ModelProto.

    The module computes the same in plain torch, and every function that takes a net takes it. Weights become float32.
    It is traced with the example inputs of the program, so `convert_model` needs no `example=`. Raises InputError for
    a file that cannot be read, and ModelError with all operations that cannot be read.

    >>> exported = torch.export.export(torch.nn.Linear(4, 2), (torch.rand(3, 4),))
    >>> hummingbird.load_program(exported)(torch.rand(3, 4)).shape
    torch.Size([3, 2])
    """
    if isinstance(source, (str, PathLike)):
        path = Path(source)
        if path.suffix not in _READERS:
            what = f"a file of kind {path.suffix or 'without suffix'}, expected one of {', '.join(_READERS)}"
            hint = "rename the file after its kind; a state dict goes into the net of your own code: --weights"
            raise InputError(what, where=str(source), hint=hint)
        module = importlib.import_module(f"{__name__}.{_READERS[path.suffix]}")
        program: ProgramNet = module.read(path)
        return program
    if (found := from_object(source)) is not None:
        return found
    hint = "a path, or an ExportedProgram, a TorchScript module, or an onnx.ModelProto; a torch module needs no reading"
    raise InputError(f"no program: {type(source).__name__}", where="source", hint=hint)


_read: dict[int, ProgramNet] = {}  # programs of objects that are still there, by the object's id


def from_object(source: Any) -> ProgramNet | None:
    """Return the program of an object of torch.export, TorchScript or ONNX; None for any other object.

    Objects of torch are read once: later calls return the same program.
    """
    home = type(source).__module__
    if type(source).__name__ == "ModelProto" and home.startswith("onnx"):
        made: ProgramNet = importlib.import_module(f"{__name__}.onnx").read(source)
        return made
    if isinstance(source, torch.jit.ScriptModule):
        module, name = "torchscript", "ScriptedNet"
    elif home == "torch.export.exported_program":
        module, name = "exported", "ExportedNet"
    else:
        return None
    if id(source) not in _read:
        _read[id(source)] = getattr(importlib.import_module(f"{__name__}.{module}"), name)(source)
        weakref.finalize(source, _read.pop, id(source), None)
    return _read[id(source)]


def _unread(calls: Sequence[ProgramCall], results: Sequence[Any]) -> list[list[str]]:
    """Return for each call the names of the values that neither later calls nor the results read.

    forward() deletes these values after the call, which frees their memory. results: what forward() returns.
    """
    read = _names(list(results))
    found = []
    for call in reversed(calls):
        last = (_names((call.args, dict(call.kwargs))) | {call.result}) - read
        found.append(sorted(last))
        read |= last
    return found[::-1]


def _names(value: Any) -> set[str]:
    """Return the names of all `Value` references in `value`, also in tuples, lists, dicts and slices."""
    found: set[str] = set()

    def note(part: Any) -> Any:
        if isinstance(part, Value):
            found.add(part.name)
        return mapped(part, note)

    note(value)
    return found


def compare(wanted: Any, found: Any, error: float = 1e-3) -> list[Problem]:
    """Compare the results of a program that was read with those of torch's own run; return a `Problem` per difference.

    wanted: torch's results. found: the results of the program as it was read, in the same structure. error: the largest
    difference that is allowed, relative to the largest value of a result.
    """
    problems = []
    for number, (a, b) in enumerate(zip(pytree.tree_leaves(wanted), pytree.tree_leaves(found), strict=True)):
        if not isinstance(a, Tensor):
            same = type(a) is type(b) and bool(a == b)
        else:
            limit = error * float(a.double().abs().nan_to_num().max()) if a.numel() else 0.0
            same = a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=error, atol=limit, equal_nan=True)
        if not same:
            what = f"result {number} differs from torch's own run of the program: an operation was read wrongly"
            problems.append(Problem("net", what, "pass the net's torch module, and report this program"))
    return problems


def entries(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the entries of a zip file that torch has written, by their names below the one folder that it contains.

    Raises ValueError if a name occurs twice or there are several folders: torch might then read other entries than
    those that were checked. torch's reader takes large and small letters of names for equal.
    """
    listed = archive.infolist()
    names = {info.filename.partition("/")[2]: info for info in listed}
    folders, distinct = {info.filename.partition("/")[0] for info in listed}, {name.lower() for name in names}
    if len(distinct) != len(listed) or len(folders) != 1 or "" in names:
        raise ValueError("its entries are not those of one folder, each once")
    return names


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return a tuple, list, dict or slice with `function` applied to its parts; other values as they are."""
    if isinstance(value, (tuple, list)):
        return type(value)([function(part) for part in value])
    if isinstance(value, dict):
        return {key: function(part) for key, part in value.items()}
    if isinstance(value, slice):
        return slice(function(value.start), function(value.stop), function(value.step))
    return value
