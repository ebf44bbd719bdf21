"""Run forward() once on symbols (torch.fx) and keep, beside the graph, the module each call was made in.

A module whose forward() cannot be captured becomes a Problem and is then kept whole, so that the rest is still seen.
"""

from __future__ import annotations

import operator
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from hummingbird.errors import Problem
from hummingbird.graph.hints import UNSUPPORTED, module_hint
from hummingbird.graph.vocabulary import IDENTITY_NAMES, module_rule

_CONTROL_FLOW = (
    "only straight-line code can be converted: a private value, or a shape, cannot choose a branch; remove the test, "
    "decide it in __init__, or give the module's type as custom"
)

_ITERATION = "unpack into names, as in a, b = x.chunk(2, 1); a tensor's rows cannot be walked over"
# torch.fx replaces nn.Module.__call__ for all threads while it traces: one trace at a time.
_TRACING = threading.Lock()


@dataclass(frozen=True)
class Capture:
    """The graph (None if there is none), the module path of every node, and the modules that were kept whole."""

    root: nn.Module
    graph: fx.Graph | None
    scopes: dict[fx.Node, str]
    opaque: frozenset[str]
    problems: list[Problem]


class _Proxy(fx.Proxy):
    """fx turns `x += y` into an addition; here it stays an in-place call, because other names of x change too."""

    def _write(self, function: Callable[..., Any], other: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    def __iadd__(self, other: Any) -> Any:
        return self._write(operator.iadd, other)

    def __isub__(self, other: Any) -> Any:
        return self._write(operator.isub, other)

    def __imul__(self, other: Any) -> Any:
        return self._write(operator.imul, other)

    def __itruediv__(self, other: Any) -> Any:
        return self._write(operator.itruediv, other)

    def __ipow__(self, other: Any) -> Any:
        return self._write(operator.ipow, other)


class _Tracer(fx.Tracer):
    def __init__(self, custom: tuple[type[nn.Module], ...], opaque: set[str]) -> None:
        super().__init__()
        self.custom, self.opaque = custom, opaque
        self.paths = [""]
        self.failed: str | None = None
        self.paths_of_nodes: dict[fx.Node, str] = {}

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        function, arguments = super().create_args_for_root(root_fn, is_module, concrete_args)
        return function, [_default(argument) for argument in arguments]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return (
            type(m) in self.custom
            or isinstance(m, UNSUPPORTED)
            or module_qualified_name in self.opaque
            or type(m).__name__ in IDENTITY_NAMES
            or super().is_leaf_module(m, module_qualified_name)
        )

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self.paths.append(self.path_of_module(m))
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            self.failed = self.paths[-1] if self.failed is None else self.failed
            raise
        finally:
            self.paths.pop()

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        self.paths_of_nodes[node] = self.paths[-1]
        return node

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)


def _default(argument: Any) -> Any:
    """An optional argument of forward() is its default; fx keeps that on the placeholder."""
    optional = isinstance(argument, fx.Proxy) and argument.node.op == "placeholder" and argument.node.args
    return argument.node.args[0] if optional else argument


def capture(net: nn.Module, custom: tuple[type[nn.Module], ...]) -> Capture:
    """Trace `net` (eval mode), whose optional arguments take their defaults; nothing is raised."""
    # A net that is itself one layer of torch.nn would be traced into; as a child it is a leaf like any other.
    if module_rule(net) is not None or type(net) in custom or isinstance(net, UNSUPPORTED):
        net = nn.Sequential(net)
    opaque: set[str] = set()
    found: list[Problem] = []
    while True:
        tracer = _Tracer(custom, opaque)
        try:
            with _TRACING:
                graph = tracer.trace(net)
            break
        except Exception as error:  # forward() is the user's code: it may raise anything on symbols
            path = tracer.failed or ""
            # A module kept whole gives one value; its caller may then fail to unpack it, which is no news.
            if not (opaque and "cannot be iterated" in str(error)):
                found.append(_failure(path, error))
            if not path or path in opaque:
                found += _unsupported_below(net, "")
                return Capture(net, None, {}, frozenset(opaque), list(dict.fromkeys(found)))
            opaque.add(path)
    for path in sorted(opaque):
        found += _unsupported_below(net, path)
    return Capture(net, graph, tracer.paths_of_nodes, frozenset(opaque), list(dict.fromkeys(found)))


def _failure(path: str, error: Exception) -> Problem:
    inner = (str(Path(torch.__file__).parent), __file__)
    lines = [line for line in traceback.extract_tb(error.__traceback__) if not line.filename.startswith(inner)]
    place = f" ({Path(lines[-1].filename).name}:{lines[-1].lineno}: {lines[-1].line})" if lines else ""
    reason = str(error).partition("\n")[0].partition(". ")[0] or type(error).__name__
    hint = _ITERATION if "iterated" in reason else _CONTROL_FLOW
    return Problem(path or "net", f"forward() cannot be traced: {reason}{place}", hint)


def _unsupported_below(net: nn.Module, path: str) -> list[Problem]:
    """Known unsupported layers in a part that was not traced."""
    return [
        Problem(name, f"{type(module).__name__} is not in the vocabulary", module_hint(module))
        for name, module in net.get_submodule(path).named_modules(prefix=path)
        if isinstance(module, UNSUPPORTED)
    ]
