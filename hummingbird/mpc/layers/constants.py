"""Public numbers among private values: factors, constants, padding, public inputs, and rows of tables. Nothing is sent.

A factor has the bits of fraction that hold it exactly, or that its precision needs (`ring.fraction`). The result has
the bits of fraction of input and factor together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hummingbird import ring
from hummingbird.errors import InputError
from hummingbird.graph.ops.public import check_rows, check_values, shown_part
from hummingbird.kernels.devices import put
from hummingbird.mpc.layers.layer import FLOOR, MAX_SCALE, Layer, room
from hummingbird.mpc.layers.linear import WeightOwner, check_private
from hummingbird.mpc.session import sharing
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared
from hummingbird.ring import FINE_FACTOR, SCALE, WEIGHT_SCALE


class Scale(Layer):
    """Layer that multiplies x by a public number. The result has the number's bits of fraction beside those of x.

    The number 3 has no bits of fraction, 0.25 has two.
    factor: the number. Raises InputError if it is too small for fixed-point numbers.
    terms: for a mean, how many values were added to get x; the result's bound follows from it.
    """

    input_limit = 24

    def __init__(self, factor: float, terms: int = 1) -> None:
        super().__init__()
        self.factor = factor
        self.growth = ring.exponent_of(factor * terms)
        number = torch.tensor([factor], dtype=torch.float64)
        most = room(FLOOR + self.growth)
        fine = ring.fraction(number, most, precision=FINE_FACTOR, where="factor")
        # No finer than the next layer's input limit, or the result would be rounded to 16 bits before it.
        self.fraction = max(ring.fraction(number, most, where="factor"), min(fine, MAX_SCALE - SCALE))
        self.integer = int(ring.encode(number, self.fraction, where="factor"))

    def out_scale(self, scales: Sequence[int]) -> int:
        return scales[0] + self.fraction

    def bound(self, bounds: Sequence[int]) -> int:
        return bounds[0] + self.growth

    def weight_scale(self, later: int) -> int:
        return later if abs(self.factor) <= 1 else WEIGHT_SCALE

    def forward(self, session: Session, x: Shared) -> Shared:
        share = x.share if self.integer == 1 else x.share * self.integer
        return Shared(share, x.scale + self.fraction)

    def label(self) -> str:
        return f"{self.factor:g}"


class Pad(Layer):
    """Layer for torch's constant padding of a private value.

    pads: as in `torch.nn.functional.pad`: how many elements are added at the beginning and at the end of each
        dimension, from the last dimension on.
    value: the real number to pad with, rounded to the scale of x.
    """

    input_limit = MAX_SCALE

    def __init__(self, pads: Sequence[int], value: float) -> None:
        super().__init__()
        self.pads, self.value = list(pads), value

    def out_scale(self, scales: Sequence[int]) -> int:
        fits(torch.tensor([self.value]), scales[0])
        return scales[0]

    def bound(self, bounds: Sequence[int]) -> int:
        return max(bounds[0], ring.exponent_of(self.value))

    def weight_scale(self, later: int) -> int:
        return later

    def forward(self, session: Session, x: Shared) -> Shared:
        fill = int(ring.encode(torch.tensor([self.value], dtype=torch.float64), x.scale)) if session.rank == 0 else 0
        return Shared(torch.nn.functional.pad(x.share, self.pads, value=fill), x.scale)

    def label(self) -> str:
        return f"{self.pads} with {self.value:g}"


def fits(constant: Tensor, scale: int) -> None:
    """Raise InputError unless the constant can be added within the ring to values with `scale` bits of fraction."""
    try:
        ring.encode(constant.double(), scale, where="constant")
    except InputError as error:
        what = f"a constant is added to a value with {scale} bits of fraction: {error.what}"
        raise InputError(what, hint="keep constants below 2^14, or put a layer that compares before this one") from None


class AddConstant(Layer):
    """Layer for x + c, or c - x with sign=-1, for a constant c: a real number, or a tensor that broadcasts.

    owner: the party with a private constant; None for a public one. `PrivateNet.set_up` shares a private constant once,
        at the scale that the plan gives to x.
    Raises InputError for a constant that may leave the ring.
    """

    input_limit = MAX_SCALE

    value: Tensor  # the constant, float64; if it is private, an int64 share of it after `share_weights`

    def __init__(self, value: Tensor, sign: int = 1, owner: WeightOwner | None = None) -> None:
        super().__init__()
        self.sign, self.owner = sign, owner
        if owner is None:
            ring.encode(value, where="constant")  # raises now, not at the first call
        else:
            check_private(value, owner)
        self.register_buffer("value", value.double())
        self.size = size_of(value, owner)
        self._code: tuple[int, Tensor] | None = None  # a scale, and the constant at it, until it moves

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> AddConstant:
        self._code = None
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._code = None
        super()._load_from_state_dict(*args, **kwargs)

    def code(self, scale: int) -> Tensor:
        """Return the public constant encoded in the ring with `scale` bits of fraction, int64.

        The result is cached: encoding reads the values, for which the CPU waits for a GPU.
        """
        if self._code is None or self._code[0] != scale:
            self._code = scale, ring.encode(self.value, scale)
        return self._code[1]

    def out_scale(self, scales: Sequence[int]) -> int:
        if self.owner is None and not self.value.is_meta:
            fits(self.value, scales[0])
        return scales[0]

    def bound(self, bounds: Sequence[int]) -> int:
        return max(bounds[0], self.size) + 1

    def grain(self) -> int:
        given = self.given[0]
        if self.owner is not None or self.value.is_meta or not given.grain:
            return 0
        unit = 1 << given.grain
        return 0 if bool((self.code(given.scale) % unit).any()) else given.grain

    def weight_scale(self, later: int) -> int:
        return later

    def share_weights(self, session: Session) -> None:
        if self.owner is not None:
            code = ring.encode(self.value, self.scales[0], where="") if session.rank == self.owner.rank else None
            self.value = sharing.share_secret(session, code, tuple(self.value.shape), self.owner.rank)
        elif self.scales:
            self.code(self.scales[0])

    def forward(self, session: Session, x: Shared) -> Shared:
        share, scale = x.share * self.sign, x.scale
        if self.owner is not None:
            return Shared(share + self.value, scale)
        constant = self.code(scale)
        return Shared(share + (constant if session.rank == 0 else torch.zeros_like(constant)), scale)

    def label(self) -> str:
        return "" if self.owner is None else str(self.owner)


class Constant(Layer):
    """Layer without an input that gives a real constant as a private value of scale 2^16.

    A public constant is shared as (constant, 0, ..., 0).
    owner: the party with a private constant, which `PrivateNet.set_up` shares once; None for a public one.
    """

    value: Tensor

    def __init__(self, value: Tensor, owner: WeightOwner | None = None) -> None:
        super().__init__()
        self.owner = owner
        if owner is not None:
            check_private(value, owner)
        known = owner is None or owner.known
        code = ring.encode(value, where="constant") if known else torch.zeros(value.shape, dtype=torch.int64)
        self.register_buffer("value", code)
        self.size = size_of(value, owner)

    def bound(self, bounds: Sequence[int]) -> int:
        return max(0, self.size)

    def share_weights(self, session: Session) -> None:
        if self.owner is not None:
            self.value = sharing.share_secret(session, self.value, tuple(self.value.shape), self.owner.rank)

    def forward(self, session: Session) -> Shared:
        mine = self.owner is not None or session.rank == 0
        return Shared(self.value.clone() if mine else torch.zeros_like(self.value))

    def label(self) -> str:
        return "" if self.owner is None else str(self.owner)


def size_of(value: Tensor, owner: WeightOwner | None) -> int:
    """Return log2 of a constant's largest magnitude; FLOOR (20), which reveals nothing, if the constant is private.

    Every value of a net is below 2^20.
    owner: the party with a private constant; None for a public one.
    """
    if owner is not None:
        return FLOOR
    return ring.exponent_of(float(value.abs().max())) if value.numel() else 0


# Public inputs and tables ---------------------------------------------------------------------------------------------
#
# A public value v is shared as (v, 0, ..., 0), like a public constant. A private table is shared once, like weights;
# every party selects rows of its own share.


class _Public(Layer):
    """Base of layers whose result follows from a public value.

    Each takes a private input as well, whose value it does not read: this input only fixes the layer's position in the
    plan.
    """

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        return 64

    def needs(self, scales: Sequence[int], later: int) -> int:
        return 0

    def reads(self, later: int | None) -> int | None:
        return 0


class SharePublic(_Public):
    """Layer that turns a public input of a call into a private value of scale 2^16.

    shown: whether the input is an attention mask that the softmax itself applies. The result is then the mask's values
        at the logits that it does not hide, and 0 at others.
    Raises InputError for values of 2^20 or more.
    """

    def __init__(self, shown: bool = False) -> None:
        super().__init__()
        self.shown = shown

    def bound(self, bounds: Sequence[int]) -> int:
        return FLOOR

    def forward(self, session: Session, value: Tensor, x: Shared) -> Shared:
        check_values(value)
        value = shown_part(value) if self.shown else value
        code = put(ring.encode(value.double()), session.device)
        return Shared(code if session.rank == 0 else torch.zeros_like(code))


class Embedding(_Public):
    """Layer that looks up rows of a table at public indices; a row becomes private values of scale 2^16.

    The indices are int64 (...), the result is (..., values).
    weight: the real table, (rows, values).
    owner: the party that knows the table; None for a public table.
    """

    table: Tensor

    def __init__(self, weight: Tensor, owner: WeightOwner | None) -> None:
        super().__init__()
        self.owner = owner
        if owner is not None:
            check_private(weight, owner)
        self.register_buffer("table", ring.encode(weight, where="weight"))
        self.size = size_of(weight, owner)

    def share_weights(self, session: Session) -> None:
        if self.owner is not None:
            self.table = sharing.share_secret(session, self.table, tuple(self.table.shape), self.owner.rank)

    def bound(self, bounds: Sequence[int]) -> int:
        return max(0, self.size)

    def forward(self, session: Session, numbers: Tensor, x: Shared) -> Shared:
        check_rows(numbers, len(self.table))
        rows = self.table[put(numbers.long(), self.table.device)]
        return Shared(rows if self.owner is not None or session.rank == 0 else torch.zeros_like(rows))

    def label(self) -> str:
        return f"{len(self.table)} rows, {'public' if self.owner is None else self.owner}"
