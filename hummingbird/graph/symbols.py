"""Symbols: the values of forward() while it is traced, torch.fx's proxies that answer as tensors or refuse.

A symbol has no numbers and, without an example, no shape. Python code may still ask for them: `isinstance(x, Tensor)`,
`hasattr(x, "mask")`, `if x.sum() > 0`, `len(x)`. A symbol answers where the answer at inference is known. Otherwise it
raises an error, which is recorded even if forward() catches it: a wrong answer would silently lead forward() down
another branch than at inference.
"""

from __future__ import annotations

import builtins
import contextlib
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

from hummingbird.graph.batch import BatchSize
from hummingbird.graph.build import Unsupported
from hummingbird.graph.example import FACTS, PUBLIC, Running, reads_attribute

_VALUE_TEST = (
    "only straight-line code can be converted: a private value, or a shape, cannot choose a branch; remove the test, "
    "decide it in __init__, or give the module's type as custom"
)
SHAPE_TEST = (
    "a net is converted before any shape is known: give an input to hummingbird.convert_model(net, example=x), "
    "or remove the test; "
    "for a library's net, subclass the module and write its forward() without the test"
)
_ROWS = (
    "unpack into names, as in a, b = x.chunk(2, 1), and take sizes one by one, as in x.shape[0]; a tensor's rows "
    "cannot be walked over"
)
_isinstance = builtins.isinstance
# Methods whose result is not one tensor, and attributes whose value is one.
_NO_TENSOR = frozenset("size dim ndimension numel nelement stride chunk split unbind item tolist".split())
_TENSOR_ATTRIBUTES = frozenset({"T", "mT", "H", "mH", "data", "real"})
# Calls that return the tensor itself if it has the requested type and device already.
_CASTS = frozenset("to float double half bfloat16 int long type type_as cpu cuda".split())
# Calls that use only the shape or type of a tensor.
_FILLS = frozenset("new_zeros new_ones new_full zeros_like ones_like full_like".split())


def is_tensor(node: fx.Node) -> bool:
    """Whether the value of a node is one tensor at inference; False for shapes, sizes, tuples, dtypes and devices."""
    if node.op not in ("call_function", "call_method"):
        return True
    first = node.args[0] if node.args else None
    if node.target is getattr:
        return node.args[1] in _TENSOR_ATTRIBUTES
    if node.target is operator.getitem and isinstance(first, fx.Node):
        return is_tensor(first) or first.target in ("chunk", "split", torch.chunk, torch.split)
    if getattr(node.target, "__module__", "") == "_operator":
        return any(is_tensor(source) for source in node.all_input_nodes)
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name not in _NO_TENSOR and not name.startswith("is_")


class _Questions:
    """Python's special methods and attributes of a symbol, such as len(x), float(x) or x.shape.

    Each returns the answer that a tensor gives at inference, if that is known while the net is traced; else it raises
    an error (`SymbolTracer.refuse`).
    """

    tracer: Any
    node: fx.Node

    def __getattr__(self, name: str) -> Any:
        own = self.tracer.own(self.node)
        if own is not None and name in PUBLIC:
            return getattr(own, name)
        known = self.tracer.known(self)
        if known is not None:
            if not hasattr(known, name):
                raise AttributeError(f"{type(known).__name__} has no attribute {name!r}")
            if _isinstance(known, Tensor) and name in PUBLIC:
                return self.tracer.running.attribute(self.node, name)
        # A module kept whole is one value in the trace, whatever it really returns.
        if not hasattr(Tensor, name) and not self.tracer.opaque:
            raise AttributeError(f"a tensor has no attribute {name!r}")
        return _Attribute(self, name)  # type: ignore[arg-type]

    def __len__(self) -> int:
        if (own := self.tracer.own(self.node)) is not None:
            return len(own)
        if self.tracer.known(self) is not None:
            length = self.tracer.running.same([len(value) for value in self.tracer.running.values[self.node]])
            if not _isinstance(length, BatchSize):
                return int(length)
            raise length.batch.fixed("len")
        return self.tracer.refuse("the length of a traced value", "write the number, or x.shape[0]")

    def _number(self, *rest: Any) -> Any:
        self.tracer.refuse("a traced value turned into a Python number", "keep it a tensor; write sizes as numbers")

    # Without __index__: torch tries it on sizes in its arguments, and goes on without.
    __int__ = __float__ = __complex__ = _number

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "data":
            self.tracer.refuse("writes to the .data of a tensor", "compute a new tensor")
        super().__setattr__(name, value)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.tracer.refuse("writes into a part of a tensor", "join parts with torch.cat, or multiply by a number")

    def _write(self, function: Callable[..., Any], other: Any) -> Any:
        """Record `x += y` as a call that writes in place, because other names of x change too; return x's new symbol.

        fx alone would record a sum. function: the operator, such as iadd. other: y.
        """
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


class Symbol(_Questions, fx.Proxy):
    """A value of forward() while it is traced, in place of a tensor: it records the calls that it takes part in."""


class _Attribute(_Questions, fx.proxy.Attribute):
    """An attribute x.name of a symbol; it becomes a node of the graph unless it is a method that is called."""


class SymbolTracer(fx.Tracer):
    """A tracer of torch.fx that makes symbols; it raises an error where forward() asks a symbol for what is not known.

    refused: all these errors, each with the path of the module whose code asked. opaque: paths of modules that the
    trace does not enter. running: the values of all nodes on an example; None without one.
    """

    def __init__(self, opaque: set[str], running: Running | None = None) -> None:
        super().__init__()
        self.opaque, self.running = opaque, running
        self.paths = [""]
        self._parameters: dict[str, Tensor] = {}
        self.refused: list[tuple[str, Unsupported]] = []

    def refuse(self, what: str, hint: str) -> Any:
        """Note a refusal in `refused`, and raise it as Unsupported.

        what: what forward() asks. hint: what to write instead.
        """
        error = Unsupported(what, hint)
        self.refused.append((self.paths[-1], error))
        raise error

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return Symbol(node, self)

    def known(self, obj: Any) -> Any:
        """Return the value, a fake tensor or a Python value, that a symbol has on the example; None without an example.

        obj: the symbol.
        """
        return None if self.running is None else self.running.values[obj.node][0]

    def own(self, node: fx.Node) -> Tensor | None:
        """Return the parameter of the net that a node reads; None for other nodes.

        A parameter's shape is known without an example.
        """
        if node.op != "get_attr":
            return None
        if not self._parameters:  # while fx traces, a module's attributes are symbols
            self._parameters = dict(self.root.named_parameters(remove_duplicate=False))
        return self._parameters.get(str(node.target))

    def _fact(self, kind: str, target: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Return the result of a call that asks a parameter for its shape, type or the like, which needs no example.

        Returns None for a call that asks anything else or has another tensor among its arguments. kind, target: the
        call as torch.fx records it. name: of the called function or method. args, kwargs: its arguments.
        """
        given = [leaf.node for leaf in (*_leaves(args), *_leaves(kwargs)) if _isinstance(leaf, fx.Proxy)]
        if name not in FACTS or name == "getitem" or not given or any(self.own(node) is None for node in given):
            return None
        actual = [fx.node.map_aggregate(part, self._actual) for part in (args, kwargs)]
        function = getattr(actual[0][0], target) if kind == "call_method" else partial(target, actual[0][0])
        return function(*actual[0][1:], **actual[1])

    def _actual(self, value: Any) -> Any:
        return self.own(value.node) if _isinstance(value, fx.Proxy) else value

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **more: Any) -> Any:
        """Return a symbol for a call, or the shape or type that a call asks for, if that is known.

        It is known for all tensors with an example, for parameters without one. With an example, a cast that changes
        nothing returns its input. kind, target, args, kwargs: the call as torch.fx records it; the others are
        torch.fx's too.
        """
        name = target if _isinstance(target, str) else getattr(target, "__name__", "")
        if self.running is None:
            fact = self._fact(kind, target, name, args, kwargs) if kind.startswith("call_") else None
            return super().create_proxy(kind, target, args, kwargs, *rest, **more) if fact is None else fact
        proxy = super().create_proxy(kind, target, args, kwargs, *rest, **more)
        values = self.running.compute(proxy.node)
        if reads_attribute(proxy.node):
            return proxy
        if name in _FILLS:
            return self._filled(name, values, args, kwargs)
        if any(_isinstance(leaf, Tensor) for leaf in _leaves(values[0])):
            if name in _CASTS and values[0] is self.known(args[0]):
                return args[0]
            return proxy
        if name not in FACTS:
            self.refuse("a private value turned into a Python value", _VALUE_TEST)
        return self.running.same(values)

    def _filled(self, name: str, values: Sequence[Tensor], args: Any, kwargs: dict[str, Any]) -> Any:
        """Return the constant that a call such as zeros_like(x) makes, in a shape that grows with the batch.

        name: of the called function. values: its result for each batch size of the example. args, kwargs: its
        arguments. If the shape depends on the batch, the constant is a symbol: it stands for a call that expands a
        tensor to this shape. Otherwise it is a tensor.
        """
        rest = [*args[1:], kwargs.get("fill_value")]
        number = 0 if "zeros" in name else 1 if "ones" in name else rest[-1] if rest[-1] is not None else rest[-2]
        pairs = list(zip(values[0].shape, values[-1].shape, strict=True))
        one = torch.full([first if first == last else 1 for first, last in pairs], number, dtype=values[0].dtype)
        if values[0].shape == values[-1].shape:
            return one
        assert self.running is not None
        sizes = self.running.same([tuple(value.shape) for value in values])
        return self.create_proxy("call_method", "expand", (one, *sizes), {})

    def to_bool(self, obj: fx.Proxy) -> bool:
        if self.running is not None and not _isinstance(self.known(obj), Tensor):
            return bool(self.known(obj))
        if self.running is not None or is_tensor(obj.node):
            return bool(self.refuse("a private value is used as control flow", _VALUE_TEST))
        return bool(self.refuse("a shape, a type or a device is used as control flow", SHAPE_TEST))

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        if self.running is not None or self.own(obj.node) is not None:
            return iter([operator.getitem(obj, place) for place in range(len(obj))])
        refused: Iterator[Any] = self.refuse("a traced value cannot be iterated", _ROWS)
        return refused

    def keys(self, obj: fx.Proxy) -> Any:
        return self.refuse("a traced value has no keys", "return tensors from modules, not dictionaries")


class Sizing(TorchFunctionMode):
    """A context in which torch functions that get a size of the batch, but no traced tensor, return symbols.

    Without it torch.arange(x.shape[0]) would be a tensor of the example's batch size.
    """

    def __init__(self, tracer: SymbolTracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = [*_leaves(args), *_leaves(kwargs)]
        busy = self.tracer.running is None or self.tracer.running.busy
        if busy or not any(type(x) is BatchSize for x in found) or any(_isinstance(x, fx.Proxy) for x in found):
            return func(*args, **kwargs)
        if torch.overrides.is_tensor_method_or_property(func):
            return self.tracer.create_proxy("call_method", func.__name__, args, kwargs)
        return self.tracer.create_proxy("call_function", func, args, kwargs)


def _leaves(value: Any) -> Iterator[Any]:
    if _isinstance(value, dict):
        value = list(value.values())
    if _isinstance(value, (tuple, list)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _answer(value: Any, kinds: Any) -> bool:
    """Return what isinstance(value, kinds) gives in traced code.

    A symbol counts as the tensor that it stands for, but not for callers inside torch.
    """
    if not _isinstance(value, _Questions):
        return _isinstance(value, kinds)
    asking = sys._getframe(1)
    home = asking.f_globals.get("__name__", "").partition(".")[0]
    if home in ("hummingbird", "abc") or (home == "torch" and asking.f_code.co_name != "is_tensor"):
        return _isinstance(value, kinds)
    if value.tracer.running is not None:
        return _isinstance(value.tracer.known(value), kinds)
    if not is_tensor(value.node):
        value.tracer.refuse("a test of the type of a shape or a tuple", SHAPE_TEST)
    return issubclass(Tensor, kinds)


@contextlib.contextmanager
def answering() -> Iterator[None]:
    """Replace isinstance() in this block by `_answer`, for which a symbol is a tensor.

    Only Python code calls it; C code still sees a symbol as a proxy of torch.fx, as it must.
    """
    builtins.isinstance = _answer
    try:
        yield
    finally:
        builtins.isinstance = _isinstance
