"""Programs: nets that come as a graph of another form (torch.export, TorchScript, ONNX), read as a torch module.

A `Program` runs the graph's operations by torch's own functions. So the one trace of this package reads it as it reads
a net that was written by hand, and every function that takes a net takes a program.

    onnx/   ONNX files
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class Value:
    """A reference to an input, or to the result of an earlier call, by its name."""

    name: str


@dataclass(frozen=True)
class Weight:
    """A reference to a parameter or buffer of the program, by its qualified name."""

    path: str


@dataclass(frozen=True, eq=False)
class Call:
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


class Program(nn.Module):
    """A net that was read from a graph of another form: forward() runs the graph's operations one after the other.

    It is for inference: train() changes nothing. Parameters and buffers have the names that they have in the graph, so
    a state dict of the original net fits.

    calls: the operations, in order. inputs: names of the values that the graph takes.
    results: the values that forward() returns; a single one is returned by itself.
    weights: the parameters and buffers by qualified name; parameters are `nn.Parameter`.
    example: a call's arguments, with which the program is traced unless the user gives others: a tuple, or a dict of
        keyword arguments.
    any_batch: whether the graph computes batches of every size, and not only of the example's.
    names: of forward()'s arguments, if they are not the graph's inputs.
    layers: scopes with one operation, whose step is named after the scope alone, as the step of a module is.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        inputs: Sequence[str],
        results: Sequence[Any],
        weights: Mapping[str, Tensor],
        example: Any,
        any_batch: bool,
        names: Sequence[str] = (),
        layers: Collection[str] = (),
    ) -> None:
        super().__init__()
        self.inputs, self.layers = list(inputs), frozenset(layers)
        self.calls, self.results, self.example, self.any_batch = list(calls), list(results), example, any_batch
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        self.signature = inspect.Signature([inspect.Parameter(name, kind) for name in names or inputs])
        self.place: tuple[str, int] | None = None  # of the call that runs now
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
        """Return the module of this qualified name, which is made if there is none."""
        scope: nn.Module = self
        for name in path.split(".") if path else ():
            if name not in scope._modules:
                scope.add_module(name, Scope())
            scope = scope.get_submodule(name)
        return scope

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the results for these inputs, which are positional or have the names of the graph's inputs."""
        values = dict(zip(self.inputs, self.flat(args, kwargs), strict=True))
        weights: dict[str, Any] = {}

        def actual(value: Any) -> Any:
            if isinstance(value, Value):
                return values[value.name]
            if isinstance(value, Weight):
                if value.path not in weights:
                    weights[value.path] = self._weight(value.path)
                return weights[value.path]
            return mapped(value, actual)

        for call in self.calls:
            self.place = call.place
            scope = self.get_submodule(call.scope)
            args, kwargs = actual(call.args), actual(dict(call.kwargs))
            values[call.result] = (
                scope(call.function, *args, **kwargs) if call.scope else call.function(*args, **kwargs)
            )
        self.place = None
        return self.rebuilt([actual(result) for result in self.results])

    def _weight(self, path: str) -> Any:
        home, _, name = path.rpartition(".")
        return getattr(self.get_submodule(home), name)

    def flat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """List the values of the graph's inputs among the arguments of a call. Raises TypeError if they do not fit."""
        return list(self.signature.bind(*args, **kwargs).arguments.values())

    def rebuilt(self, results: list[Any]) -> Any:
        """Return the graph's results in the form in which forward() returns them."""
        return results[0] if len(results) == 1 else tuple(results)


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return a tuple, list, dict or slice with `function` applied to its parts; other values as they are."""
    if isinstance(value, (tuple, list)):
        return type(value)([function(part) for part in value])
    if isinstance(value, dict):
        return {key: function(part) for key, part in value.items()}
    if isinstance(value, slice):
        return slice(function(value.start), function(value.stop), function(value.step))
    return value
