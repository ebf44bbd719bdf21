"""Run forward() once on symbols (torch.fx) and keep, beside the graph, the module each call was made in.

A module whose forward() cannot be captured becomes a Problem and is then kept whole, so that the rest is still seen.
"""

from __future__ import annotations

import inspect
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from hummingbird.errors import Problem
from hummingbird.graph.build import Unsupported
from hummingbird.graph.hints import is_unsupported, module_hint
from hummingbird.graph.symbols import SymbolTracer, answering
from hummingbird.graph.vocabulary import module_rule

_HINTS = {  # by words of errors that torch.fx and Python raise
    "not installed as a submodule": "make the layer in __init__ and keep it as an attribute: self.layer = ...",
    "interpreted as an integer": "write sizes as numbers",
    "argument of type": "use Python's numbers and torch's tensors",
}
_HINT = "write forward() with the operations of hummingbird.graph, or give the module's type as custom"

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


class _Tracer(SymbolTracer):
    def __init__(self, custom: tuple[type[nn.Module], ...], opaque: set[str]) -> None:
        super().__init__(opaque)
        self.custom = custom
        self.failed: str | None = None
        self.paths_of_nodes: dict[fx.Node, str] = {}

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        """forward() is called with one input, as net(x) does; every other argument has its default."""
        function, (root, *arguments) = super().create_args_for_root(root_fn, is_module, concrete_args)
        positional = inspect.unwrap(root_fn).__code__.co_argcount - 1
        return function, [root, *(_given(argument, positional) for argument in arguments)]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return (
            type(m) in self.custom
            or is_unsupported(m)
            or module_qualified_name in self.opaque
            or module_rule(m) is not None
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


def _given(argument: Any, positional: int) -> Any:
    """The value of an argument of forward() in a call with one input; fx keeps defaults on placeholders."""
    if not isinstance(argument, fx.Proxy):
        return argument
    target, first = str(argument.node.target), argument.node.prev.op == "root"
    if target.startswith("**"):
        return {}
    if target.startswith("*"):
        return () if positional else (argument,)
    if first and positional:
        argument.node.args = ()  # the input itself, whatever its default
    return argument.node.args[0] if argument.node.args else argument


def is_leaf(net: nn.Module, custom: tuple[type[nn.Module], ...]) -> bool:
    """Whether a net is itself one layer, which must not be traced into."""
    return module_rule(net) is not None or type(net) in custom or is_unsupported(net)


def capture(net: nn.Module, custom: tuple[type[nn.Module], ...]) -> Capture:
    """Trace `net` (eval mode), whose optional arguments take their defaults; nothing is raised."""
    # A net that is itself one layer of torch.nn would be traced into; as a child it is a leaf like any other.
    if is_leaf(net, custom):
        net = nn.Sequential(net)
    opaque: set[str] = set()
    found: list[Problem] = []
    while True:
        tracer = _Tracer(custom, opaque)
        try:
            with _TRACING, answering():
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
    # forward() may have caught the error, and gone another way than it goes at inference.
    found += [_failure(path, error) for path, error in tracer.refused]
    for path in sorted(opaque):
        found += _unsupported_below(net, path)
    return Capture(net, graph, tracer.paths_of_nodes, frozenset(opaque), list(dict.fromkeys(found)))


def _failure(path: str, error: Exception) -> Problem:
    inner = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    lines = [line for line in traceback.extract_tb(error.__traceback__) if not line.filename.startswith(inner)]
    place = f" ({Path(lines[-1].filename).name}:{lines[-1].lineno}: {lines[-1].line})" if lines else ""
    reason = str(error).partition("\n")[0].partition(". ")[0] or type(error).__name__
    reason = reason.replace("'Symbol' object", "a traced value").replace("'_Attribute' object", "a traced value")
    known = (hint for words, hint in _HINTS.items() if words in reason)
    hint = error.hint if isinstance(error, Unsupported) else next(known, _HINT)
    return Problem(path or "net", f"forward() cannot be traced: {reason}{place}", hint)


def _unsupported_below(net: nn.Module, path: str) -> list[Problem]:
    """Known unsupported layers in a part that was not traced."""
    return [
        Problem(name, f"{type(module).__name__} is not in the vocabulary", module_hint(module))
        for name, module in net.get_submodule(path).named_modules(prefix=path)
        if is_unsupported(module)
    ]
