"""x // d for a public whole number d, in one round, exact to one unit for any number of parties.

Truncation (protocols/truncation.py) with a divisor in place of the power of two. The dealer shares a mask a, uniform in
Z_2^64, and its quotients. With s = x + O, O the largest multiple of d up to 2^62, the parties open e = s + a mod 2^64.
s is not negative, so that e's top bit tells how to read both: as unsigned numbers if it is set (s + a did not
overflow), as signed ones if not (if a's top bit is set, s + a overflowed). Then e = s + a holds in the integers, and

    e // d - a // d = s // d + {0, 1} = x // d + O / d + {0, 1}      (// rounds down)

Cost: `cost.truncate`, 64 bits per element, 1 round.
"""

from __future__ import annotations

from torch import Tensor

from hummingbird.mpc.correlations.truncation import Division, quotients
from hummingbird.mpc.protocols.truncation import OFFSET
from hummingbird.mpc.session.session import Session

LARGEST = 1 << 28  # divisors that a dealer takes


def divide(session: Session, x: Tensor, divisor: int) -> Tensor:
    """Shares of x // divisor (plus 0 or 1 unit), int64 (n,), from shares of |x| < 2^62 - divisor.

    divisor: 1 to 2^28, the same at all parties.
    """
    material = session.correlation(Division(x.numel(), divisor))
    offset = OFFSET - OFFSET % divisor
    opened = x + material.mask
    if session.rank == 0:
        opened += offset
    for theirs in session.channel.exchange(opened).values():
        opened += theirs[0]
    top = opened < 0
    share = -material.unsigned.where(top, material.signed)
    if session.rank == 0:
        large, small = quotients(opened, divisor)
        share += large.where(top, small) - offset // divisor
    return share
