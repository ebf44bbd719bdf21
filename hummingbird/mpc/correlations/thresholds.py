"""The dealer's side of several thresholds of one opening (protocols/thresholds.py): what a ReLU takes, with one mask,
and what the squares of the ReLUs take.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, reduce
from typing import NamedTuple

import torch
from torch import Tensor

from hummingbird import cost, kernels
from hummingbird.cost import packed
from hummingbird.kernels.shares.words import Words
from hummingbird.mpc.correlations.field import Field, Fields
from hummingbird.mpc.correlations.parameters import number
from hummingbird.mpc.correlations.request import Request


class ThresholdShares(NamedTuple):
    """A party's part of an opening that is compared with J numbers.

    mask: its summand of lambda in the low k bits, int32 or int64 (count,). bits: xor shares of r_b and r_s for each
    number, uint8 (J, 2, ceil(count/8)). carry: (sum of the summands - lambda) / 2^k. choice, wrap: r_b and r_s as
    numbers, (J, count). product: r_b lambda. tables: xor shares of the step tables, lowest first. Where squares are
    wanted, square: lambda^2, (count,); choice_square, wrap_product: r_b lambda^2 and r_s lambda, (J, count).
    """

    mask: Words
    bits: Words
    carry: Words
    choice: Words
    wrap: Words
    product: Words
    tables: list[Words]
    square: Words | None = None
    choice_square: Words | None = None
    wrap_product: Words | None = None


@dataclass(frozen=True)
class MaskedThresholds(Request[ThresholdShares]):
    """`count` masks for a window [k:m) that is cut into `tables`, for `knots` comparisons of each value; results are
    wanted mod 2^ring, k <= ring <= 64. squares: 1 if the squares of the ReLUs are wanted, for k < ring; else 0.
    """

    kind = "masked_thresholds"
    count: int = number()
    knots: int = number(least=1)
    k: int = number(most=64)
    m: int = number(most=64)
    tables: int = number(most=64)
    ring: int = number(most=64)
    squares: int = number(most=1)

    def check(self) -> None:
        if self.k + self.squares > self.ring:
            raise ValueError(f"k {self.k} exceeds ring {self.ring}, less 1 for squares")

    @property
    def sizes(self) -> list[int]:
        """Bits of the window that each table covers, lowest first."""
        return cost.chunks(self.k - self.m, self.tables)

    @cached_property
    def free(self) -> Fields:
        mask = Field("ring", (self.count,), width=self.k, apart=True)
        return {"mask": mask, "bits": Field("packed", (self.knots, 2, packed(self.count)))}

    @cached_property
    def derived(self) -> Fields:
        whole, high = (Field("ring", (self.knots, self.count), width=w) for w in (self.ring, self.ring - self.k))
        carry = Field("ring", (self.count,), width=self.ring - self.k)
        tables = {f"table_{place}": Field("packed", (packed(self.count << c),)) for place, c in enumerate(self.sizes)}
        relus = {"carry": carry, "choice": whole, "wrap": high, "product": whole, **tables}
        if not self.squares:
            return relus
        square = Field("ring", (self.count,), width=self.ring)
        product = Field("ring", (self.knots, self.count), width=self.ring - self.k - 1)  # is used times 2^(k + 1)
        return {**relus, "square": square, "choice_square": whole, "wrap_product": product}

    def derive(self, mask: list[Tensor], bits: Tensor) -> dict[str, Tensor]:
        choice, wrap = bits.unbind(1)
        values = kernels.mask_values(mask, choice, wrap, self.count, self.k, self.m, self.sizes)
        relus = dict(zip(self.derived, values, strict=False))
        if not self.squares:
            return relus
        lambda_ = reduce(torch.add, [share.long() for share in mask]) & ((1 << self.k) - 1)
        square = lambda_ * lambda_  # mod 2^64
        products = {"choice_square": relus["choice"] * square, "wrap_product": relus["wrap"] * lambda_}
        return {**relus, "square": square, **products}

    def shares(self, **words: Words) -> ThresholdShares:
        tables = [words.pop(f"table_{place}") for place in range(self.tables)]
        return ThresholdShares(**words, tables=tables)
