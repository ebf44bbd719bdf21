"""Correlations for ANDs of packed bits: protocols/boolean.py says how they are used, protocols/gmw.py for what."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from torch import Tensor

from hummingbird.mpc.correlations.field import Fields, planes
from hummingbird.mpc.correlations.parameters import number
from hummingbird.mpc.correlations.request import Request


class AndShares(NamedTuple):
    """Xor shares of masks a and b, and of c = a & b; uint8 (planes, ceil(count/8))."""

    a: Tensor
    b: Tensor
    c: Tensor


@dataclass(frozen=True)
class And(Request[AndShares]):
    """a, b uniform; a & b, on planes of `count` bits each."""

    kind = "and"
    planes: int = number()
    count: int = number()

    @cached_property
    def free(self) -> Fields:
        return {"a": planes(self.planes, self.count), "b": planes(self.planes, self.count)}

    @cached_property
    def derived(self) -> Fields:
        return {"c": planes(self.planes, self.count)}

    def derive(self, a: Tensor, b: Tensor) -> dict[str, Tensor]:
        return {"c": a & b}

    def shares(self, **tensors: Tensor) -> AndShares:
        return AndShares(**tensors)


@dataclass(frozen=True)
class PrivateAnd(And):
    """a is party 0's alone, b is party 1's; shares of a & b: the first AND of a two-party sum."""

    kind = "and_private"

    @cached_property
    def free(self) -> Fields:
        return {"a": planes(self.planes, self.count, owner=0), "b": planes(self.planes, self.count, owner=1)}


class AndPairShares(NamedTuple):
    """Xor shares of masks p, g and q, of p & g, and of q & the last planes of p; uint8 (planes, ceil(count/8))."""

    p: Tensor
    g: Tensor
    q: Tensor
    pg: Tensor
    pq: Tensor


@dataclass(frozen=True)
class AndPair(Request[AndPairShares]):
    """p, g (planes) and q (second <= planes) uniform; p & g, and q & the last planes of p: two ANDs with a common
    operand, one level of a carry tree.
    """

    kind = "and_pair"
    planes: int = number()
    second: int = number()
    count: int = number()

    def check(self) -> None:
        if self.second > self.planes:
            raise ValueError(f"second {self.second} exceeds planes {self.planes}")

    @cached_property
    def free(self) -> Fields:
        first, second = planes(self.planes, self.count), planes(self.second, self.count)
        return {"p": first, "g": first, "q": second}

    @cached_property
    def derived(self) -> Fields:
        return {"pg": planes(self.planes, self.count), "pq": planes(self.second, self.count)}

    def derive(self, p: Tensor, g: Tensor, q: Tensor) -> dict[str, Tensor]:
        return {"pg": p & g, "pq": p[self.planes - self.second :] & q}

    def shares(self, **tensors: Tensor) -> AndPairShares:
        return AndPairShares(**tensors)
