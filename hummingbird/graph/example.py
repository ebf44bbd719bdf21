"""The example: inputs that a net is traced with, and the shape and type of every traced value on them.

With an example shapes are known, so forward() may ask for them. Floating-point tensors are the private inputs. Other
tensors (masks, token numbers) are public: free, so that each call brings its own; or, if forward() asks for their
values, part of the converted net, as flags and None are. To keep the batch free, two batches of different sizes run
side by side: a size that differs between them is a multiple of the batch size (batch.py).
"""

from __future__ import annotations

import builtins
import inspect
import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from hummingbird.errors import InputError
from hummingbird.graph.batch import BatchSize, TracedBatch
from hummingbird.graph.programs import ProgramNet
from hummingbird.structure import Structure, flatten, rebuild

# Types of public tensors.
PUBLIC_TYPES = (torch.int64, torch.int32, torch.bool)
_LOG = logging.getLogger("torch._subclasses.fake_tensor")
_isinstance = isinstance  # a trace replaces it (symbols.answering)
# Attributes of a tensor that are the same for every image.
PUBLIC = frozenset(
    "shape ndim dtype device layout requires_grad is_cuda is_cpu is_meta is_sparse is_quantized is_nested is_leaf "
    "itemsize names is_mps is_xla is_xpu is_mkldnn is_hpu is_ipu is_mtia is_vulkan is_maia is_sparse_csr".split()
)
# Functions and methods that return such facts.
FACTS = frozenset(
    "getitem size dim ndimension numel nelement stride is_floating_point is_complex is_tensor is_contiguous "
    "element_size len get_device storage_offset is_signed result_type broadcast_shapes is_same_size".split()
)


class Example:
    """An example call of a net: the inputs with which the net is traced.

    structure: how (arguments, keyword arguments) are nested, without the tensors.
    leaves: in the order of the arguments, the tensors that every later call of the net replaces by its own: all private
    inputs, and those public inputs that are not taken for constants.
    names: the parameter of forward() that takes each of these tensors.
    batched: whether a public tensor whose first dimension is as long as the batch is taken to have an entry per image.
    any_batch: whether the trace may be for any batch size.
    """

    def __init__(
        self,
        structure: Structure,
        leaves: Sequence[Tensor],
        names: Sequence[str],
        batched: bool = True,
        any_batch: bool = True,
    ) -> None:
        self.structure, self.leaves, self.names = structure, list(leaves), list(names)
        self.batched, self.any_batch = batched, any_batch

    @property
    def private(self) -> list[Tensor]:
        """Return the private inputs, which the parties will hold as shares."""
        return [x for x in self.leaves if is_private(x)]

    @property
    def batch(self) -> int:
        """Return the number of images in the example."""
        return int((self.private or self.leaves)[0].shape[0])

    def follows(self, x: Tensor) -> bool:
        """Whether the first dimension of `x`, one of the example's tensors, counts images."""
        return is_private(x) or (self.batched and x.dim() > 0 and x.shape[0] == self.batch)

    def of(self, batch: int) -> list[Tensor]:
        """Make a list of uninitialized tensors with the shapes and types of the example's, for batches of
        `batch` images.
        """
        shapes = [(batch, *x.shape[1:]) if self.follows(x) else tuple(x.shape) for x in self.leaves]
        return [torch.empty(shape, dtype=x.dtype) for shape, x in zip(shapes, self.leaves, strict=True)]

    def call(self, net: Any, leaves: Sequence[Any]) -> Any:
        """Call the net as the example does, with `leaves` in place of the example's tensors; return the result."""
        args, kwargs = rebuild(self.structure, iter(leaves))
        return net(*args, **kwargs)

    def readings(self) -> list[Example]:
        """List the ways to understand this call when the net is traced, as `Example`s, the most general one first.

        A public tensor is free (each later call of the net brings its own), or a constant of the net. Free tensors may
        have the batch in their first dimension, or not. The order is: free with a batch; free without a batch;
        constants. All these come first as traces for any batch size, then again as traces for the example's batch size.
        Without public tensors, or without private ones, there is one reading in place of these three.
        """
        found = [self]
        if len(self.private) < len(self.leaves):
            if self.private:  # else the batch is known from the public tensors only
                found.append(self._like(batched=False))
            structure, leaves = flatten(rebuild(self.structure, iter(self.leaves)), is_private)
            names = [name for name, x in zip(self.names, self.leaves, strict=True) if is_private(x)]
            if leaves:
                found.append(Example(structure, leaves, names))
        return [*found, *(reading._like(any_batch=False) for reading in found)]

    def _like(self, **changes: bool) -> Example:
        return Example(self.structure, self.leaves, self.names, **{"batched": self.batched, **changes})


def given(net: nn.Module, example: Any) -> Example:
    """Make an `Example` of what the user gives: a tensor, a tuple of arguments, or a dict of keyword arguments.

    Raises InputError for anything else, for arguments that forward() does not take, and for tensors of different
    batch sizes.
    """
    kwargs = dict(example) if isinstance(example, dict) else {}
    args = () if isinstance(example, dict) else tuple(example) if isinstance(example, (tuple, list)) else (example,)
    structure, leaves = flatten((args, kwargs), is_private, is_public)
    if not leaves:
        hint = "a tensor, a tuple of arguments, or a dict of keyword arguments; private ones are floating-point tensors"
        raise InputError(f"no tensor in {type(example).__name__}", where="example", hint=hint)
    try:
        signature = net.program_signature if isinstance(net, ProgramNet) else inspect.signature(net.forward)
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InputError(
            f"forward() {error}", where="example", hint="give the arguments that forward() takes"
        ) from None
    except ValueError:  # a compiled forward() has no signature
        hint = "pass the nn.Module that it was made from: a compiled program does not say what its arguments are"
        raise InputError(f"{type(net).__name__} is no program of Python", where="example", hint=hint) from None
    # In the order of the structure, which is the order of the call.
    found = {id(x): name for name, value in bound.arguments.items() for x in flatten(value, is_private, is_public)[1]}
    call = Example(structure, [x.detach() for x in leaves], [found[id(x)] for x in leaves])
    if isinstance(net, ProgramNet):
        net.program_fits(call.leaves)
    batch = tuple((call.private or leaves)[0].shape)[:1]
    for name, x in zip(call.names, call.leaves, strict=True):
        if is_private(x) or not call.private:
            if x.dim() == 0 or not x.numel() or x.shape[:1] != batch:
                what = f"input {name!r} has shape {tuple(x.shape)}, and the batch {batch}"
                hint = "the first dimension of every private input is the batch, of one image or more"
                raise InputError(what, where="example", hint=hint)
    return call


def is_private(value: Any) -> bool:
    """Whether an argument is a private input, which the parties hold as shares: a floating-point tensor."""
    return isinstance(value, Tensor) and value.is_floating_point()


def is_public(value: Any) -> bool:
    """Whether an argument is a public input: a tensor of integers or truth values, which every party has."""
    return isinstance(value, Tensor) and value.dtype in PUBLIC_TYPES


class Running:
    """Computes the value of every node of a trace on an example. Values are fake tensors: shapes and types, no numbers.

    root: the traced net. call: the example. sizes: the batch sizes for which values are computed, one or two. With two,
    a size that grows in proportion to them is taken for a multiple of the batch size (`BatchSize`); with one, all sizes
    are plain numbers. first: the `Running` of an earlier trace of the net with the same two sizes in the other order.
    As long as this trace makes the same calls, their values are taken from there, where they took most of its time.
    """

    def __init__(self, root: nn.Module, call: Example, sizes: Sequence[int], first: Running | None = None) -> None:
        self.root, self.sizes = root, tuple(sizes)
        self.batch = TracedBatch(self.sizes[0]) if len(self.sizes) > 1 else None
        self.values: dict[fx.Node, tuple[Any, ...]] = {}
        self.busy = False  # a call is being computed here, and must not be traced
        self._asked_for_writes = False
        self._fake: FakeTensorMode = FakeTensorMode(allow_non_fake_inputs=True) if first is None else first._fake
        self._left = [call.of(size) for size in self.sizes]
        self._first = None if first is None or first._counted_writes() else EarlierValues(first)

    def compute(self, node: fx.Node) -> tuple[Any, ...]:
        """Compute a node's value for each batch size, keep these values, and return them as a tuple."""
        self.busy = True
        known = None if self._first is None else self._first.values(node)
        if known is not None:
            self.values[node], self.busy = known, False
            return known
        self._first = None  # the traces differ
        if reads_attribute(node):  # a fake tensor has no numbers
            number = getattr(attribute(self.root, node.args[0]), str(node.target))()
            self.values[node], self.busy = (number,) * len(self.sizes), False
            return self.values[node]
        # No symbol is among the values, so that torch's code, which asks for thousands of types, gets a fast answer.
        asking, builtins.isinstance = builtins.isinstance, _isinstance
        quiet, _LOG.disabled = _LOG.disabled, True  # torch logs each error that it raises, with a page of its own code
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # there attention returns a tensor for weights that are None
        try:
            with self._fake, torch.inference_mode(False), torch.no_grad():  # so that tensors count writes into them
                self.values[node] = tuple(self._value(node, run) for run in range(len(self.sizes)))
        finally:
            self.busy, _LOG.disabled = False, quiet
            builtins.isinstance = asking
            torch.backends.mha.set_fastpath_enabled(fast)
        return self.values[node]

    def _value(self, node: fx.Node, run: int) -> Any:
        if node.op == "placeholder":
            return self._fake.from_tensor(self._left[run].pop(0))
        if node.op == "get_attr":
            return self._fake.from_tensor(attribute(self.root, node))

        def actual(value: Any) -> Any:
            if isinstance(value, fx.Node):
                return self.values[value][run]
            return value.factor * self.sizes[run] if isinstance(value, BatchSize) else value

        args, kwargs = plain(fx.node.map_aggregate((node.args, node.kwargs), actual))
        if node.op == "call_module":
            return self.root.get_submodule(str(node.target))(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def written(self, node: fx.Node) -> bool:
        """Whether torch may have written into a node's tensor, or into another view of it, since it was made."""
        self._asked_for_writes = True
        return _written(self.values[node][0])

    def _counted_writes(self) -> bool:
        """Whether the trace has asked for writes and there are some: a second trace would see them too early."""
        tensors = (value for values in self.values.values() for value in values if isinstance(value, Tensor))
        return self._asked_for_writes and any(map(_written, tensors))

    def types(self) -> dict[fx.Node, torch.dtype]:
        """Return a dict: node -> dtype, for every node of the trace whose value is a tensor."""
        return {node: values[0].dtype for node, values in self.values.items() if isinstance(values[0], Tensor)}

    def attribute(self, node: fx.Node, name: str) -> Any:
        """Return a public attribute `name`, such as the shape or type, of the tensor that a node stands for."""
        return self.same([getattr(value, name) for value in self.values[node]])

    def same(self, values: Sequence[Any]) -> Any:
        """Join the values that a call has for the traced batch sizes into one value, also inside tuples and lists.

        An int that grows in proportion to the batch becomes a `BatchSize`; equal values become that value. Raises
        `BatchFixed` if the values differ in another way. values: one value for each batch size.
        """
        first, last = values[0], values[-1]
        if isinstance(first, (tuple, list)) and type(first) is type(last) and len(first) == len(last):
            return type(first)([self.same(pair) for pair in zip(first, last, strict=True)])
        if type(first) is type(last) and first == last:
            return first
        assert self.batch is not None
        if type(first) is int and type(last) is int and not first % self.sizes[0]:
            factor = first // self.sizes[0]
            if factor > 0 and last == factor * self.sizes[1]:
                return BatchSize(factor, self.batch)
        raise self.batch.fixed("a fact that depends on it")


def _written(value: Tensor) -> bool:
    return bool(value.is_inference() or value._version)  # an inference tensor does not count writes


class EarlierValues:
    """The values of an earlier trace of a net, for a second one that makes the same calls in the same order.

    first: the `Running` of the earlier trace.
    """

    def __init__(self, first: Running) -> None:
        self._first = first
        self._names: dict[fx.Node, fx.Node] = {}  # a node of the earlier trace -> that of this one
        self._left = iter(next(iter(first.values)).graph.nodes)
        self._last: fx.Node | None = None

    def values(self, node: fx.Node) -> tuple[Any, ...] | None:
        """Return the values of the earlier trace's node in the place of `node`, the last of its graph, for the batch
        sizes in the other order; None if the calls differ.
        """
        earlier, last = None, node.graph._root if self._last is None else self._last
        while last is not node:
            earlier, last = next(self._left, None), last.next
            if earlier is None:
                return None
            self._names[earlier] = last
        self._last = last
        found = None if earlier is None else self._first.values.get(earlier)
        if earlier is None or found is None or not same_call(self._first.root, earlier, node, self._names):
            return None
        return found[::-1]


def same_call(root: nn.Module, a: fx.Node, b: fx.Node, names: dict[fx.Node, fx.Node]) -> bool:
    """Whether nodes `a` and `b` of two traces of the net `root` are the same call, or constants with equal values.

    names: node of the first trace -> node of the second trace, for all nodes before.
    """
    if (a.op, a.op == "get_attr" or a.target) != (b.op, b.op == "get_attr" or b.target):
        return False
    if a.op == "get_attr" and not _equal(attribute(root, a), attribute(root, b)):
        return False
    mine, theirs = leaves((a.args, a.kwargs)), leaves((b.args, b.kwargs))
    return len(mine) == len(theirs) and all(_matches(x, y, names) for x, y in zip(mine, theirs, strict=True))


def _matches(a: Any, b: Any, names: dict[fx.Node, fx.Node]) -> bool:
    if isinstance(a, fx.Node):
        return names[a] is b
    if isinstance(a, BatchSize) and isinstance(b, BatchSize):
        return a.factor == b.factor
    return type(a) is type(b) and not isinstance(a, BatchSize) and bool(a == b)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a is b or (a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b))
    return a is b


def attribute(root: nn.Module, node: Any) -> Any:
    """Return the constant of the net `root`, such as a parameter, that a node of its graph reads."""
    value: Any = root
    for name in str(node.target).split("."):
        value = getattr(value, name)
    return value


def reads_attribute(node: fx.Node) -> bool:
    """Whether a node is a call of item() or tolist() on a parameter or buffer."""
    reads = node.op == "call_method" and node.target in ("item", "tolist")
    return reads and isinstance(node.args[0], fx.Node) and node.args[0].op == "get_attr"


def leaves(value: Any) -> list[Any]:
    """List all values in a node's arguments, without the tuples, lists and dicts around them."""
    found: list[Any] = []
    fx.node.map_aggregate(value, found.append)
    return found


def plain(value: Any) -> Any:
    """Convert torch.fx's immutable lists and dicts to ordinary ones."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return tuple(plain(item) for item in value) if type(value) is tuple else value
