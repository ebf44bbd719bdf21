"""x^3 in one round: the dealer deals a mask and its square and cube, and the parties open x + a.

With e = x + a opened, x^3 = (e - a)^3 = e^3 - 3 e^2 a + 3 e a^2 - a^3, which is linear in the dealt shares.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from torch import Tensor

from hummingbird import cost
from hummingbird.cost import Cost
from hummingbird.mpc.correlations.field import Field, Fields
from hummingbird.mpc.correlations.request import Request, shape
from hummingbird.mpc.protocols.interfaces import Operation
from hummingbird.mpc.session.session import Session


class CubeShares(NamedTuple):
    """Shares of a mask a, of a^2 and of a^3; int64 of the request's shape each."""

    a: Tensor
    square: Tensor
    cube: Tensor


@dataclass(frozen=True)
class Cubes(Request[CubeShares]):
    """Request for a uniform a in Z_2^64, for a^2 and for a^3."""

    kind = "cube"
    shape: tuple[int, ...] = shape()

    @cached_property
    def free(self) -> Fields:
        return {"a": Field("ring", self.shape)}

    @cached_property
    def derived(self) -> Fields:
        return dict.fromkeys(("square", "cube"), Field("ring", self.shape))

    def derive(self, a: Tensor) -> dict[str, Tensor]:
        return {"square": a * a, "cube": a * a * a}

    def shares(self, **tensors: Tensor) -> CubeShares:
        return CubeShares(**tensors)


@dataclass(frozen=True)
class Cube(Operation):
    """Operation x^3 of integers mod 2^64. Cost: 64 bits per element, 1 round."""

    def plain(self, x: Tensor) -> Tensor:
        return x * x * x

    def run(self, session: Session, x: Tensor) -> Tensor:
        a, square, cube = session.correlation(Cubes(tuple(x.shape)))
        e = x + a
        for (theirs,) in session.channel.exchange(e).values():
            e += theirs
        out = 3 * e * square - 3 * e * e * a - cube
        return out + e * e * e if session.rank == 0 else out

    def price(self, parties: int, x: Tensor) -> Cost:
        return cost.opening(parties, 8 * x.numel(), 64 * x.numel() * 2)
