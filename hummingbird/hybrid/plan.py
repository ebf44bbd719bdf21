"""The plan of a net for two parties that share every value: steps as data, without weights, known to both sides.

A value x is an integer X with x = X * unit. The data's side holds the share r, the model's side X - r, mod 2^ring.

    input     r is a mask that the data's side draws                                            one message online
    linear    d = W r - s at the data's side, u = W (X - r) + s + bias at the model's           encrypted, offline
    gate      relu or lift (the identity) of the low `width` bits, under a new mask r           garbled, a round trip
    else      LOCAL, the same on both shares: sums, views, pools, and the cut that drops low bits (arithmetic.py)

The plan has no weights; the model's side has them as `LinearWeights`. A plan reveals shapes, windows, rings and units.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from hummingbird import records
from hummingbird.errors import InputError
from hummingbird.graph.steps import Ref, refs
from hummingbird.records import field
from hummingbird.structure import TENSOR, Structure, rebuild

MOST_RING = 32  # bits of a share, at most: limit of garbled rows and of the encryption
WIDTHS = range(2, 25)  # allowed widths of a gate, bits
GARBLERS = ("data", "model")
MOST_SIZE = 1 << 24  # limit on every size and index in a step
SET = 14  # slots dealt at once where that is less work: images of 16 x 16, padded for 3 x 3, that a polynomial holds
LOCAL = frozenset({"sum", "cut", "sum_pool", "taps", "rows", "cat", "reshape", "permute", "pad"})


def tuples(value: Any) -> Any:
    """Convert nested lists to tuples."""
    return tuple(map(tuples, value)) if isinstance(value, list) else value


def _lists(value: Any) -> Any:
    """Convert nested tuples to lists, the inverse of `tuples`."""
    return list(map(_lists, value)) if isinstance(value, tuple) else value


def _sizes(count: int, least: int = 0) -> records.Kind:
    return records.row(*[records.whole(least, MOST_SIZE)] * count)


UNIT = records.real(2.0**-128, 2.0**128, above=True)
_REF = records.through(records.whole(0, MOST_SIZE), Ref, lambda ref: ref.index)
ATTR = records.through(records.anything(), tuples, _lists)


@dataclass(frozen=True, eq=False)
class Step:
    """A step of a plan and its value; `str(step)` is `conv1 = linear(%0) (64, 16, 16) mod 2^20`, for example.

    name: unique; the name of the net's layer, with a suffix for its purpose if a layer becomes several steps.
    op: "input", "linear", "gate", "output", or an operation that each side computes alone, such as "sum" (`LOCAL`).
    inputs: a Ref, which has a step's number, for each step that this one reads.
    shape: of the value for one image.
    ring: shares of the value are mod 2^ring.
    unit: the real number that the integer 1 stands for.
    attrs: integers, strings and tuples of them, by name; arithmetic.py lists those of each operation. An output of
    several results, which are concatenated in it, has their structure and shapes.
    """

    name: str = field(records.text(1024, 1, printable=True))
    op: str = field(records.text(32))
    inputs: tuple[Any, ...] = field(records.many(_REF, 1 << 12))
    shape: tuple[int, ...] = field(records.many(records.whole(1, MOST_SIZE), 8))
    ring: int = field(records.whole(1, MOST_RING))
    unit: float = field(UNIT)
    attrs: Mapping[str, Any] = field(records.mapping(ATTR, 8), default_factory=dict)

    def __str__(self) -> str:
        said = ", ".join([*map(str, self.inputs), *(f"{key}={value}" for key, value in self.attrs.items())])
        return f"{self.name} = {self.op}({said}) {self.shape} mod 2^{self.ring}"

    @property
    def count(self) -> int:
        """Number of values that the step's result has for one image."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Linear(Step):
    """A layer with weights as a step of a plan: a convolution without bias, mod 2^ring.

    The input's shares are reduced mod 2^ring too. image: shape of the input (C, H, W). weight: shape (O, C // groups,
    h, w). stride, padding, dilation: (rows, columns). A linear layer is a 1x1 convolution on (features, 1, 1); a layer
    with one spatial dimension has H = 1.
    together: how many slots of a set share the layer's ciphertexts; 1: none do. Slots that are dealt singly never do.
    """

    image: tuple[int, int, int] = field(_sizes(3, 1), default=(1, 1, 1))
    weight: tuple[int, int, int, int] = field(_sizes(4, 1), default=(1, 1, 1, 1))
    stride: tuple[int, int] = field(_sizes(2, 1), default=(1, 1))
    padding: tuple[int, int] = field(_sizes(2), default=(0, 0))
    dilation: tuple[int, int] = field(_sizes(2, 1), default=(1, 1))
    groups: int = field(records.whole(1, MOST_SIZE), default=1)
    together: int = field(records.whole(1, SET), default=1)


@dataclass(frozen=True, eq=False)
class Gate(Step):
    """A step of a plan that garbled gates compute: each reads a shared number, and gives new shares of the result.

    kind: "relu", or "lift", which leaves the number as it is and only gives it shares in another ring.
    width: each gate reads the low `width` bits of both shares, as a signed number. The shares of its result are mod
    2^ring.
    """

    kind: str = field(records.one_of(("relu", "lift")), default="relu")
    width: int = field(records.whole(WIDTHS.start, WIDTHS.stop - 1), default=2)


S = TypeVar("S", bound=Step)


@dataclass(frozen=True)
class Plan:
    """The plan of a net for two parties: its steps in order, with "output" last, without weights.

    garbler: the side that garbles, "data" or "model". input_range: bound on |x| of an image.
    """

    steps: tuple[Step, ...]
    garbler: str
    input_range: float

    def __str__(self) -> str:
        return "\n".join(f"%{number}: {step}" for number, step in enumerate(self.steps))

    @property
    def input(self) -> Step:
        """The input step: an image, (C, H, W)."""
        return self.steps[self.input_number]

    @cached_property
    def input_number(self) -> int:
        """Number of the input step."""
        return next(number for number, step in enumerate(self.steps) if step.op == "input")

    @property
    def output(self) -> Step:
        """The output step: the logits."""
        return self.steps[-1]

    def _all(self, kind: type[S]) -> Iterator[tuple[int, S]]:
        return ((number, step) for number, step in enumerate(self.steps) if isinstance(step, kind))

    @cached_property
    def linears(self) -> dict[int, Linear]:
        """The layers with weights, by number of the step, in order."""
        return dict(self._all(Linear))

    @cached_property
    def gates(self) -> dict[int, Gate]:
        """The steps with garbled gates, by number, in order."""
        return dict(self._all(Gate))

    @property
    def in_sets(self) -> bool:
        """Whether slots are dealt in sets of `SET`, because some layer's ciphertexts serve several slots."""
        return any(step.together > 1 for step in self.linears.values())

    def dealt(self, slots: int) -> list[int]:
        """Return how many slots are dealt at once, time after time, if one call deals `slots` slots: sets, then 1."""
        sets = slots // SET if self.in_sets else 0
        return [SET] * sets + [1] * (slots - sets * SET)

    @property
    def masked(self) -> dict[int, Step]:
        """The steps whose values the data's side masks, by number: the input and all gates.

        The masks are uniform mod the step's 2^ring.
        """
        return {self.input_number: self.input, **self.gates}

    def encode(self, images: Tensor) -> Tensor:
        """Return real images (B, *shape) as integers in the input's unit, int64 (B, *shape).

        Raises InputError for images of another shape, or with values beyond the input's range.
        """
        step = self.input
        if not isinstance(images, Tensor) or not images.is_floating_point():
            got = str(images.dtype) if isinstance(images, Tensor) else type(images).__name__
            raise InputError(f"images are {got}", where="images", hint="a float32 tensor, (B, C, H, W)")
        if images.dim() != 1 + len(step.shape) or tuple(images.shape[1:]) != step.shape or not len(images):
            hint = f"(B, {', '.join(map(str, step.shape))}): a batch, for one image x[None]"
            raise InputError(f"images of shape {tuple(images.shape)}", where="images", hint=hint)
        least, most = (float(end) for end in torch.aminmax(images))
        if not max(-least, most) <= self.input_range:
            hint = "normalize them as in training, or convert the net with windows for a larger input_range"
            what = f"images reach {max(-least, most):g}, beyond +-{self.input_range:g} of this plan"
            raise InputError(what, where="images", hint=hint)
        return (images.double() / step.unit).round().long()

    @property
    def structure(self) -> Structure:
        """The structure of the net's results, such as a tensor or a tuple of tensors (hummingbird/structure.py)."""
        found: Structure = self.output.attrs.get("structure", TENSOR)
        return found

    def results(self, logits: Tensor) -> Any:
        """Split the logits, (B, *shape), into the net's results, in the structure that the net returns."""
        if self.structure == TENSOR:
            return logits
        shapes: Sequence[tuple[int, ...]] = self.output.attrs["shapes"]
        parts = zip(logits.split([math.prod(shape) for shape in shapes], 1), shapes, strict=True)
        return rebuild(self.structure, iter([part.reshape(len(logits), *shape) for part, shape in parts]))

    def decode(self, values: Tensor) -> Tensor:
        """Return the logits, float32, that integers stand for.

        values: the sum of both sides' shares, int64 (B, *shape); only their remainders mod 2^ring matter.
        """
        return (signed(values, self.output.ring).double() * self.output.unit).float()


@dataclass(frozen=True)
class LinearWeights:
    """The secret integers of a `Linear`, which only the model's side has.

    weight: int64 of the step's `weight` shape. bias: int64 (O,), in the step's unit.
    """

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class Model:
    """A plan with the weights of its layers, by number of the step: everything that the model's side needs."""

    plan: Plan
    parameters: Mapping[int, LinearWeights]


def reduced(x: Tensor, ring: int) -> Tensor:
    """Return x mod 2^ring, as numbers from 0 to 2^ring - 1."""
    return x & ((1 << ring) - 1)


def signed(x: Tensor, ring: int) -> Tensor:
    """Return x mod 2^ring, as numbers from -2^(ring-1) to 2^(ring-1) - 1."""
    half = 1 << (ring - 1)
    return reduced(x + half, ring) - half


def at_rest(plan: Plan) -> set[int]:
    """Return the numbers of the steps whose values layers may read.

    The data's side knows its share of such a value in advance, from its masks alone, without any image.
    """
    found: set[int] = set()
    for number, step in enumerate(plan.steps):
        read = {ref.index for ref in refs(step.inputs)}
        if step.op in ("input", "gate") or (step.op in LOCAL and read <= found):
            found.add(number)
    return found
