"""ANDs of xor-shared bits, packed, with dealt triples: a layer of a circuit is one round.

Open u = x ^ a and v = y ^ b; then xy = c ^ ub ^ av ^ uv with c = ab (Goldreich, Micali, Wigderson 1987; Beaver 1991).
"""

from __future__ import annotations

from torch import Tensor

from hummingbird.mpc.correlations.bits import And, AndPair
from hummingbird.mpc.session.session import Session


def open_bits(session: Session, *masked: Tensor) -> list[Tensor]:
    """Xor of all parties' shares: one round, and as many bits as are given."""
    out = list(masked)
    for theirs in session.channel.exchange(*masked).values():
        out = [mine ^ other for mine, other in zip(out, theirs, strict=True)]
    return out


def and_(session: Session, x: Tensor, y: Tensor, count: int) -> Tensor:
    """x & y for uint8 (planes, ceil(count/8)): 2 bits per element and plane, 1 round."""
    a, b, c = session.correlation(And(x.shape[0], count))
    u, v = open_bits(session, x ^ a, y ^ b)
    out = c ^ (u & b) ^ (a & v)
    return out ^ (u & v) if session.rank == 0 else out


def and_pair(session: Session, x: Tensor, y: Tensor, z: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """x & y, and z and the last planes of x (as many as z has), opening the common operand once: 3 bits
    where both have all planes, 1 round.
    """
    material = session.correlation(AndPair(planes=x.shape[0], second=z.shape[0], count=count))
    u, v, t = open_bits(session, x ^ material.p, y ^ material.g, z ^ material.q)
    common, mask = u[x.shape[0] - z.shape[0] :], material.p[x.shape[0] - z.shape[0] :]
    first = material.pg ^ (u & material.g) ^ (material.p & v)
    second = material.pq ^ (common & material.q) ^ (mask & t)
    if session.rank == 0:
        first, second = first ^ (u & v), second ^ (common & t)
    return first, second
