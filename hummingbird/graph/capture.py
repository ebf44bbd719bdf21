"""Capture of a net: run forward() once on symbols (torch.fx), and note the module in which each call was made.

A module whose forward() cannot be captured becomes a Problem and is then kept whole, so that the rest of the net is
still examined.
"""

from __future__ import annotations

import inspect
import linecache
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hummingbird.errors import Problem
from hummingbird.graph.build import Unsupported
from hummingbird.graph.example import Example, Running, same_call
from hummingbird.graph.hints import ANY, is_unsupported, module_hint
from hummingbird.graph.ops.packed import stand_ins
from hummingbird.graph.ops.recurrent import UNROLLED, unrolled
from hummingbird.graph.ops.vocabulary import module_rule
from hummingbird.graph.programs import ProgramNet
from hummingbird.graph.symbols import Sizing, SymbolTracer, answering
from hummingbird.structure import TENSOR, Structure, flatten

_HINTS = {  # by words of errors that torch.fx and Python raise
    "not installed as a submodule": "make the layer in __init__ and keep it as an attribute: self.layer = ...",
    "interpreted as an integer": "write sizes as numbers",
    "_pack_padded_sequence": "call torch's pack_padded_sequence by this name",
    "'Sequences' object": "give packed sequences to recurrent layers and to pad_packed_sequence only",
    "argument of type": "use Python's numbers and torch's tensors",
}
_SIZES = 2, 7  # batch sizes of the two traces that leave the batch free

# torch.fx replaces nn.Module.__call__ for all threads while it traces: one trace at a time.
_TRACING = threading.Lock()


@dataclass(frozen=True)
class Capture:
    """The graph that one trace of a net recorded, with all that the later conversion to steps needs.

    root: the traced net. graph: None if the net cannot be traced. problems: reasons why the net cannot be converted.
    scopes: node -> the path of the module in whose forward() the call is.
    opaque: paths of modules that the trace did not enter: each is one node.
    structure: the structure of forward()'s result. example: the call that was traced, or None.
    running: the values of all nodes on the example, which are needed while the graph is checked.
    fixed: whether the net can take batches of the example's size only.
    types: dtypes of nodes that are tensors; empty without an example.
    places: node -> file and line of the call in the net's own code.
    """

    root: nn.Module
    graph: fx.Graph | None
    scopes: dict[fx.Node, str]
    opaque: frozenset[str]
    problems: list[Problem]
    structure: Structure = TENSOR
    example: Example | None = None
    running: Running | None = None
    fixed: bool = False
    types: dict[fx.Node, torch.dtype] = field(default_factory=dict)
    places: dict[fx.Node, tuple[str, int]] = field(default_factory=dict)

    def place(self, node: fx.Node) -> str:
        """Return where the net's own code makes a call, as text: " (net.py:12: x = x[y])"; "" if that is not known."""
        if node.op not in ("call_function", "call_method") or node not in self.places:
            return ""
        file, line = self.places[node]
        return f" ({Path(file).name}:{line}: {linecache.getline(file, line).strip()})"


class _Tracer(SymbolTracer):
    def __init__(
        self,
        custom: tuple[type[nn.Module], ...],
        opaque: set[str],
        example: Example | None = None,
        running: Running | None = None,
    ) -> None:
        super().__init__(opaque, running)
        self.custom, self.example = custom, example
        self.structure: Structure = TENSOR  # of the result
        self.failed: str | None = None
        self.paths_of_nodes: dict[fx.Node, str] = {}
        self.places: dict[fx.Node, tuple[str, int]] = {}

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        """Return the function that torch.fx traces, and its arguments: forward(), called as in the example.

        Without an example forward() gets one input, as in net(x), and every other argument has its default. root_fn,
        is_module, concrete_args: as torch.fx's method of this name takes them.
        """
        if self.example is not None:
            example = self.example
            names = (f"{name}_{n}" if example.names.count(name) > 1 else name for n, name in enumerate(example.names))
            leaves = [self.create_proxy("placeholder", name, (), {}) for name in names]
            return self._flattened(lambda root: example.call(partial(root_fn, root), leaves)), [self.root]
        function, (root, *arguments) = super().create_args_for_root(root_fn, is_module, concrete_args)
        positional = inspect.unwrap(root_fn).__code__.co_argcount - 1
        return self._flattened(function), [root, *(_given(argument, positional) for argument in arguments)]

    def _flattened(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that it returns one tensor or a flat tuple of tensors; return the wrapped function.

        The tracer's attribute `structure` keeps how the function's own result was nested.
        """

        def flat(*arguments: Any) -> Any:
            result = self._unpacked(function(*arguments))
            self.structure, leaves = flatten(result, lambda value: isinstance(value, (fx.Proxy, Tensor)))
            return leaves[0] if self.structure == TENSOR else tuple(leaves)

        return flat

    def _unpacked(self, value: Any) -> Any:
        """Return forward()'s result `value`, in which a symbol of a tuple becomes a tuple of symbols.

        The result of chunk(), for instance, is a tuple. How many tensors it has is known from the value that the symbol
        has on the example inputs. If the net is traced without example inputs, the result stays as it is.
        """
        if isinstance(value, fx.Proxy):
            known = self.known(value)
            return tuple(self._unpacked(part) for part in value) if isinstance(known, (tuple, list)) else value
        if type(value) is dict:
            return {key: self._unpacked(part) for key, part in value.items()}
        return type(value)(map(self._unpacked, value)) if type(value) in (tuple, list) else value

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if self.running is not None and self.running.busy:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def _unrolls(self, m: nn.Module) -> bool:
        """Whether the trace replaces `m`, a recurrent layer, by calls for each time step; this needs an example."""
        known = type(m) in UNROLLED and type(m) not in self.custom
        return known and self.running is not None and self.path_of_module(m) not in self.opaque

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not self._unrolls(m) and (
            type(m) in self.custom
            or is_unsupported(m)
            or module_qualified_name in self.opaque
            or module_rule(m) is not None
            or super().is_leaf_module(m, module_qualified_name)
        )

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self.running is not None and self.running.busy:
            return forward(*args, **kwargs)
        self.paths.append(self.path_of_module(m))
        try:
            if self._unrolls(m):
                if m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m):
                    self.refuse("a hook, or another forward(), on a recurrent layer would be lost", "remove it first")
                assert isinstance(m, (nn.RNNBase, nn.RNNCellBase))
                forward = partial(unrolled, m)
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            self.failed = self.paths[-1] if self.failed is None else self.failed
            raise
        finally:
            self.paths.pop()

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        self.paths_of_nodes[node] = self.paths[-1]
        if (place := self.root.program_place if isinstance(self.root, ProgramNet) else _place()) is not None:
            self.places[node] = place
        if self.running is not None and node.op == "get_attr":  # fx makes those of constants by itself
            self.running.compute(node)
        return node


@contextmanager
def _wrapped_functions_open() -> Iterator[None]:
    """Let torch.fx trace, in this block, into functions that a library marked with `fx.wrap` to be kept whole."""
    table = fx._symbolic_trace._wrapped_fns_to_patch
    kept = {key: home for key, home in table.items() if isinstance(home.get(key[1]), FunctionType)}
    for key in kept:
        del table[key]
    try:
        yield
    finally:
        table.update(kept)


def _given(argument: Any, positional: int) -> Any:
    """Return what forward() gets for one of its arguments when the net is called with its input only, as net(x).

    The first positional argument gets `argument`, which stands for the input. Every other one gets its default; without
    a default it gets `argument`. `*args` takes the input if there are no positional arguments, else nothing.
    argument: what torch.fx has made for the argument: a placeholder that stores the default, or a value. positional:
    number of positional arguments of forward().
    """
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
    """Whether a net is itself a single layer, which becomes one step and is not traced into.

    custom: module types kept whole.
    """
    return module_rule(net) is not None or type(net) in custom or is_unsupported(net)


def capture(net: nn.Module, custom: tuple[type[nn.Module], ...], call: Example | None = None) -> Capture:
    """Trace `net`, in eval mode, and return the `Capture`; optional arguments of forward() take their defaults.

    custom: module types to keep whole. call: the example, or None.
    No error is raised for a net that cannot be traced: the result lists the problems.
    """
    # A net that is itself one layer of torch.nn would be traced into; as a child module it is a leaf.
    if is_leaf(net, custom):
        net = nn.Sequential(net)
    if call is None:
        return _capture(net, custom, None, ())
    free = _free(net, custom, call) if call.any_batch else None
    return replace(_capture(net, custom, call, (call.batch,)), running=None, fixed=True) if free is None else free


def _free(net: nn.Module, custom: tuple[type[nn.Module], ...], call: Example) -> Capture | None:
    """Trace the net for batches of any size, and return the `Capture`; None if its calls depend on the size.

    The net is traced twice with different sizes. If code that the trace does not see depends on the size, such as a
    loop over the batch, the two traces differ. Also returns None for a net with problems. custom: module types to keep
    whole. call: the example.
    """
    first: Capture | None = None
    for sizes in (_SIZES, _SIZES[::-1]):
        captured = _capture(net, custom, call, sizes, None if first is None else first.running)
        fixed = captured.running is None or captured.running.batch is None or captured.running.batch.asked
        if fixed or captured.problems or captured.graph is None:
            return None
        if first is not None and not _alike(first, captured):
            return None
        first = captured if first is None else first
    assert first is not None
    return replace(first, running=None)


def _alike(first: Capture, second: Capture) -> bool:
    """Whether two traces of one net have the same calls and the same constants."""
    assert first.graph is not None and second.graph is not None
    pairs = list(zip(first.graph.nodes, second.graph.nodes, strict=False))
    names = {a: b for a, b in pairs}
    if len(first.graph.nodes) != len(second.graph.nodes) or repr(first.structure) != repr(second.structure):
        return False
    return all(same_call(first.root, a, b, names) for a, b in pairs)


def _capture(
    net: nn.Module,
    custom: tuple[type[nn.Module], ...],
    example: Example | None,
    sizes: Sequence[int],
    first: Running | None = None,
) -> Capture:
    opaque: set[str] = set()
    found: list[Problem] = []
    while True:
        running = None if example is None else Running(net, example, sizes, first)
        tracer = _Tracer(custom, opaque, example, running)
        try:
            opened = nullcontext() if example is None else _wrapped_functions_open()
            packing = nullcontext() if example is None else stand_ins(net)
            with _TRACING, answering(), Sizing(tracer), opened, packing:
                graph = tracer.trace(net)
            break
        except Exception as error:  # forward() is the user's code: it may raise anything on symbols
            path = tracer.failed or ""
            # A module kept whole returns one value; if its caller fails to unpack it, that is no new problem.
            if not (opaque and "cannot be iterated" in str(error)):
                found.append(_failure(path, error))
            if not path or path in opaque:
                found += _unsupported_below(net, "", example)
                return Capture(net, None, {}, frozenset(opaque), list(dict.fromkeys(found)))
            opaque.add(path)
    # forward() may have caught the error and continued differently than at inference.
    found += [_failure(path, error) for path, error in tracer.refused]
    for path in sorted(opaque):
        found += _unsupported_below(net, path, example)
    found = list(dict.fromkeys(found))
    types = {} if running is None else running.types()
    made = Capture(net, graph, tracer.paths_of_nodes, frozenset(opaque), found, tracer.structure, example, running)
    return replace(made, types=types, places=tracer.places)


_INNER = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


def _place() -> tuple[str, int] | None:
    """Return file and line, in the net's own code, of the call that is being traced; None if there is none."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INNER):
        frame = frame.f_back
    file = frame.f_code.co_filename
    return None if file.startswith(_INNER) else (file, frame.f_lineno)


def _failure(path: str, error: Exception) -> Problem:
    lines = [line for line in traceback.extract_tb(error.__traceback__) if not line.filename.startswith(_INNER)]
    place = f" ({Path(lines[-1].filename).name}:{lines[-1].lineno}: {lines[-1].line})" if lines else ""
    reason = str(error).partition("\n")[0].partition(". ")[0] or type(error).__name__
    reason = reason.replace("'Symbol' object", "a traced value").replace("'_Attribute' object", "a traced value")
    known = (hint for words, hint in _HINTS.items() if words in reason)
    hint = error.hint if isinstance(error, Unsupported) else next(known, ANY)
    return Problem(path or "net", f"forward() cannot be traced: {reason}{place}", hint)


def _unsupported_below(net: nn.Module, path: str, example: Example | None) -> list[Problem]:
    """List a problem for each layer without a private form inside the module at `path`, which the trace did not enter.

    example: the example of the trace, or None. With an example, recurrent layers are no problem, because they are
    unrolled.
    """
    return [
        Problem(name, f"{type(module).__name__} is not in the vocabulary", module_hint(module))
        for name, module in net.get_submodule(path).named_modules(prefix=path)
        if is_unsupported(module) and not (example is not None and type(module) in UNROLLED)
    ]


# Random numbers ------------------------------------------------------------------------------------------------------
#
# A net that draws random numbers has no one answer, and a trace would keep a single draw for ever: it is refused.


class RandomnessCheck(TorchDispatchMode):
    """A context that watches all torch operations of this thread; `drawn` names the first that drew random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = ""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep PyTorch from wrapping `__torch_dispatch__` for torch.compile, which it would load: 2 s of a core."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags and not _drops_nothing(func, args, kwargs or {}):
            self.drawn = self.drawn or func.__name__.partition(".")[0]
        return func(*args, **(kwargs or {}))


def _drops_nothing(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether an operation draws random numbers only for a dropout whose probability is 0, such as torch's attention.

    func: the operation of ATen. args, kwargs: its arguments.
    """
    names = [argument.name for argument in func._schema.arguments]
    if "dropout_p" not in names:
        return False
    place = names.index("dropout_p")
    given = args[place] if place < len(args) else kwargs.get("dropout_p", func._schema.arguments[place].default_value)
    return bool(given == 0)
