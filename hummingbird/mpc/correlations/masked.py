"""The dealer's side of the masked opening: a mask lambda mod 2^k, two bits, and what protocols/masked.py needs of them.

lambda is the sum of the low k bits of the parties' words, and the parties hold these as integers, not mod 2^k: their
carry is dealt, with as many bits as `ring` has beyond k.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, cast

from torch import Tensor

from hummingbird import cost, kernels
from hummingbird.cost import packed
from hummingbird.kernels.drawn import Drawn
from hummingbird.kernels.shares.words import Words
from hummingbird.mpc.correlations.field import Field, Fields
from hummingbird.mpc.correlations.parameters import number
from hummingbird.mpc.correlations.request import Draw, Request, layout


class MaskedShares(NamedTuple):
    """A party's part of a masked opening.

    mask: its summand of lambda in the low k bits, int32 or int64 (count,). choice_bits, wrap_bits: xor shares of r_b
    and r_s, uint8 (ceil(count/8),). choice, wrap: r_b and r_s as numbers.
    product: r_b lambda. tables: xor shares of the step tables, lowest first, uint8 (ceil(count 2^c / 8),). carry: (sum
    of the summands - lambda) / 2^k, unless the parties' shares of x are whole.
    """

    mask: Words
    choice_bits: Words
    wrap_bits: Words
    choice: Words
    wrap: Words
    product: Words
    tables: list[Words]
    carry: Words | None = None


@dataclass(frozen=True)
class MaskedOpening(Request[MaskedShares]):
    """`count` masks for a window [k:m) that is cut into `tables`; results are wanted mod 2^ring, k <= ring <= 64.

    whole: 1 if the parties' shares of what is compared are right mod 2^ring, so that no carry is dealt; else 0.
    """

    kind = "masked"
    count: int = number()
    k: int = number(most=64)
    m: int = number(most=64)
    tables: int = number(most=64)
    ring: int = number(most=64)
    whole: int = number(most=1, default=0)

    def check(self) -> None:
        if self.k > self.ring:
            raise ValueError(f"k {self.k} exceeds ring {self.ring}")

    @property
    def sizes(self) -> list[int]:
        """Bits of the window that each table covers, lowest first."""
        return cost.chunks(self.k - self.m, self.tables)

    @cached_property
    def free(self) -> Fields:
        bits = Field("packed", (packed(self.count),), left=True)
        mask = Field("ring", (self.count,), width=self.k, apart=True, left=True)
        return {"mask": mask, "choice_bits": bits, "wrap_bits": bits}

    @cached_property
    def derived(self) -> Fields:
        whole = Field("ring", (self.count,), width=self.ring, left=True)
        high = Field("ring", (self.count,), width=self.ring - self.k, left=True)  # is used times 2^k
        tables = {
            f"table_{place}": Field("packed", (packed(self.count << c),), left=True)
            for place, c in enumerate(self.sizes)
        }
        carry = {} if self.whole else {"carry": high}
        return {**carry, "choice": whole, "wrap": high, "product": whole, **tables}

    def derive(self, mask: list[Tensor], choice_bits: Tensor, wrap_bits: Tensor) -> dict[str, Tensor]:
        values = kernels.mask_values(
            mask, choice_bits, wrap_bits, self.count, self.k, self.m, self.sizes, bool(self.whole)
        )
        return dict(zip(self.derived, values, strict=True))

    def correct_at_once(self, draw: Draw) -> list[Tensor]:
        fields = [draw(item, 0) for item in self.free.values()] + [draw(item, 1) for item in self.derived.values()]
        left = cast("list[list[Drawn]]", fields)
        out = kernels.deal_masks(left, self.count, self.k, self.m, self.ring, self.sizes, bool(self.whole))
        return [x.view(dtype) for x, (dtype, _) in zip(out, layout(self), strict=True)]

    def shares(self, **words: Words) -> MaskedShares:
        tables = [words.pop(f"table_{place}") for place in range(self.tables)]
        return MaskedShares(**words, tables=tables)
