"""ANDs of xor-shared packed bits with dealt triples. All ANDs of one layer of a circuit take one round.

Open u = x ^ a and v = y ^ b; then xy = c ^ ub ^ av ^ uv with c = ab (Goldreich, Micali, Wigderson 1987; Beaver 1991).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from torch import Tensor

from hummingbird import cost
from hummingbird.cost import Cost, packed
from hummingbird.mpc.correlations.field import Fields, planes
from hummingbird.mpc.correlations.request import Request, number
from hummingbird.mpc.session.session import Session


def open_bits(session: Session, *masked: Tensor) -> list[Tensor]:
    """Open bits: return the xor of all parties' shares. Each party sends its shares: one round.

    masked: this party's xor shares of packed bits that random bits hide.
    """
    out = list(masked)
    for theirs in session.channel.exchange(*masked).values():
        out = [mine ^ other for mine, other in zip(out, theirs, strict=True)]
    return out


class AndShares(NamedTuple):
    """Xor shares of masks a and b, and of c = a & b; uint8 (planes, ceil(count/8))."""

    a: Tensor
    b: Tensor
    c: Tensor


@dataclass(frozen=True)
class And(Request[AndShares]):
    """Request for random masks a and b, and for a & b, xor-shared, each in `planes` planes of `count` bits.

    A plane has one bit of each of `count` values, packed into bytes.
    """

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


def and_(session: Session, x: Tensor, y: Tensor, count: int) -> Tensor:
    """Compute this party's xor shares of x & y. Cost: 2 bits per element and plane, 1 round.

    x, y: its xor shares, uint8 (planes, ceil(count/8)). A plane has one bit of each of `count` values.
    """
    a, b, c = session.correlation(And(x.shape[0], count))
    u, v = open_bits(session, x ^ a, y ^ b)
    out = c ^ (u & b) ^ (a & v)
    return out ^ (u & v) if session.rank == 0 else out


def and_price(n: int, planes: int, parties: int) -> Cost:
    """Return the price of `and_` of planes of n bits: 2 bits per element and plane, 1 round.

    A plane has one bit of each of n values.
    """
    return cost.opening(parties, 2 * planes * packed(n), 8 * planes * packed(n))


class AndPairShares(NamedTuple):
    """Xor shares of masks p, g and q, of p & g, and of q & (the last planes of p); uint8 (planes, ceil(count/8))."""

    p: Tensor
    g: Tensor
    q: Tensor
    pg: Tensor
    pq: Tensor


@dataclass(frozen=True)
class AndPair(Request[AndPairShares]):
    """Request for random masks p, g and q by which two ANDs with a common operand are computed in one round.

    Also dealt: p & g, and q & (the last planes of p). A plane has one bit of each of `count` values, packed into bytes.
    p and g have `planes` planes; q has `second`, at most as many. A tree that computes carries takes two such ANDs at
    each level.
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


def and_pair(session: Session, x: Tensor, y: Tensor, z: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Compute this party's xor shares of x & y, and of z & (the last planes of x, as many as z has), in one round.

    x, y, z: its xor shares, uint8 (planes, ceil(count/8)), where z may have fewer planes than x and y. A plane has one
        bit of each of `count` values.
    x is opened once for both, so it takes 3 bits per element and plane where z has as many planes, 2 where it has none.
    """
    material = session.correlation(AndPair(planes=x.shape[0], second=z.shape[0], count=count))
    u, v, t = open_bits(session, x ^ material.p, y ^ material.g, z ^ material.q)
    common, mask = u[x.shape[0] - z.shape[0] :], material.p[x.shape[0] - z.shape[0] :]
    first = material.pg ^ (u & material.g) ^ (material.p & v)
    second = material.pq ^ (common & material.q) ^ (mask & t)
    if session.rank == 0:
        first, second = first ^ (u & v), second ^ (common & t)
    return first, second


def and_pair_price(n: int, planes: int, second: int, parties: int) -> Cost:
    """Return the price of `and_pair` where x and y have `planes` planes of n bits, and z has `second` planes: 1 round.

    A plane has one bit of each of n values.
    """
    return cost.opening(parties, (2 * planes + second) * packed(n), 8 * (planes + second) * packed(n))
