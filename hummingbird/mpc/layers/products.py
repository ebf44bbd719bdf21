"""Layers that multiply private values: one opening of masked operands (protocols/lifted_product.py, beaver.py)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hummingbird.cost import Cost
from hummingbird.mpc.layers.layer import FLOOR, MAX_SCALE, Given, Layer, Spec, held
from hummingbird.mpc.protocols import beaver, lifted_product
from hummingbird.mpc.protocols.lifted_product import Operand
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared
from hummingbird.ring import SCALE


class Multiply(Layer):
    """The product of two private tensors (broadcasting), in one round.

    rounds: whether parties may round their own shares (`Comparison.takes_rounded_shares`). If so, an operand with a
        known bound ("small") is opened in the integer bits that its bound takes, and in at most 16 bits of fraction,
        without those that are zero in every share; its higher bits need not be right. An operand that is not small is
        opened in as many bits as later layers read of the result, and the result has as many valid bits as this
        operand. If both operands are small, the result has 64.
    """

    def __init__(self, rounds: bool) -> None:
        super().__init__()
        self.rounds = rounds
        if rounds:
            self.input_limit = MAX_SCALE

    def _fraction(self, given: Given) -> int:
        """Bits of fraction that an operand has in the product."""
        return min(SCALE, given.scale - given.grain) if self.rounds else given.scale

    def lifts(self, given: Given) -> bool:
        # It has a known bound, valid bits for it, and an accepted scale: the scale of a softmax's result is too high.
        small = given.bound < FLOOR and given.valid - given.scale >= held(given.bound)
        return self.rounds and small and given.scale <= self.input_limit

    def _opened(self, read: int) -> list[tuple[int, int]]:
        """For each operand, bits of fraction cut and bits opened, if later layers read `read` bits of the result."""
        read = self._right(read)
        fractions = [self._fraction(given) for given in self.given]
        return [
            (given.scale - fraction, min(read, fraction + held(given.bound)) if self.lifts(given) else read)
            for given, fraction in zip(self.given, fractions, strict=True)
        ]

    def _right(self, read: int) -> int:
        """How many low bits of the result's shares are right, if later layers read `read` bits.

        This is `read`, or fewer where rounding an operand leaves fewer. A reader that shifts the result to the left
        asks for as many bits as it has after the shift.
        """
        cut = [given.scale - self._fraction(given) for given in self.given if not self.lifts(given)]
        return max(2, min(read, 64 - max(cut, default=0)))

    @property
    def _ring(self) -> int:
        return self._right(self.read)

    def out_scale(self, scales: Sequence[int]) -> int:
        return sum(self._fraction(given) for given in self.given)

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        return min(
            64 if self.lifts(given) else given.valid - (given.scale - self._fraction(given)) for given in self.given
        )

    def needs(self, scales: Sequence[int], later: int) -> int:
        return max(self.needs_of_each(scales, later))

    def needs_of_each(self, scales: Sequence[int], later: int) -> list[int]:
        return [shift + bits for shift, bits in self._opened(later)]

    def reads(self, later: int | None) -> int | None:
        # As many low bits as of the result, which has up to 16 more bits of fraction than the operand.
        return None if later is None else later + SCALE if self.rounds else later

    def bound(self, bounds: Sequence[int]) -> int:
        return bounds[0] + bounds[1]

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        left, right = (spec.numel for spec in inputs)
        out = torch.broadcast_shapes(inputs[0].shape, inputs[1].shape).numel()
        if not self.rounds:
            return beaver.product_price(left, right, out, parties, self.read)
        (_, value), (_, factor) = self._opened(self._ring)
        return lifted_product.price(left, right, out, value, factor, self._ring, parties)

    def breadth(self, inputs: Sequence[Spec]) -> int:
        return torch.broadcast_shapes(inputs[0].shape, inputs[1].shape).numel()

    def constants(self) -> tuple[int, ...]:
        return tuple(number for sizes in self._opened(self._ring) for number in sizes) if self.rounds else ()

    def label(self) -> str:
        if not (self.rounds and self.given):
            return ""
        (_, value), (_, factor) = self._opened(self._ring)
        return f"opens {value} and {factor} bits"

    def forward(self, session: Session, x: Shared, y: Shared) -> Shared:
        if not self.rounds:
            out = beaver.product(session, "mul", x.share, y.share, {}, self.read)
            return Shared(out, x.scale + y.scale)
        left, right = (
            Operand(value.share, *sizes) for value, sizes in zip((x, y), self._opened(self._ring), strict=True)
        )
        scale = x.scale - left.shift + y.scale - right.shift
        return Shared(lifted_product.product(session, left, right, self._ring), scale)


class Square(Layer):
    """x * x, by a dealt random number and its square.

    1 round; each element costs as many bits as later layers read of the result.
    """

    def out_scale(self, scales: Sequence[int]) -> int:
        return 2 * scales[0]

    def bound(self, bounds: Sequence[int]) -> int:
        return 2 * bounds[0]

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        return beaver.square_price(inputs[0].numel, parties, self.read)

    def forward(self, session: Session, x: Shared) -> Shared:
        return Shared(beaver.square(session, x.share, self.read), 2 * x.scale)
