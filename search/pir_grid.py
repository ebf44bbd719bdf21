"""The plans of a grid: how they are named, made from a profile, priced, and tried on what inferences want.

    plain      a key over the whole table for each row: no co-design
    bins       partial batch retrieval, one or two rounds (Lam et al., ASPLOS 2024)
    cuckoo     the 3-way cuckoo batch code

bins and cuckoo come with and without a hot table and companions, as sizes and shares of the grid say. Sizes reach what
a budget of 300 kB pays for rows of 64 bytes, so that no kind of plan is held back by the grid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hummingbird.pir.batching import access_stats
from hummingbird.pir.batching.batch_code import BatchCode
from hummingbird.pir.batching.cost_model import Price, price
from hummingbird.pir.batching.plan import Plan

KINDS = ("plain", "bins", "cuckoo")
SIZES = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384)
SHARES = (0.1, 0.25)
COMPANIONS = (0, 1, 2, 3, 4, 5)
ROUNDS = {"bins": (1, 2, 3, 4), "cuckoo": (1,)}  # keys for each bin; the paper's co-design has one or two
_CODESIGN_ROUNDS = 2
_PROFILED = 4096  # inferences of the training split whose pairs of rows are counted


@dataclass(frozen=True)
class Recipe:
    """A plan for lookups as a few numbers, from which the plan is made.

    kind: one of KINDS. full, hot: keys for the full table and for the hot table (rounded up to a multiple of 3 for
    cuckoo). share: the fraction of all rows that are in the hot table, 0 for none. companions: how many rows are stored
    beside each row. rounds: keys for each bin.
    """

    kind: str
    full: int
    hot: int = 0
    share: float = 0.0
    companions: int = 0
    rounds: int = 1

    @property
    def family(self) -> str:
        """Name of the family of plans, `bins` or `bins + hot + companions`; each family is a line of the picture."""
        return " + ".join([self.kind, *(["hot"] if self.hot else []), *(["companions"] if self.companions else [])])

    def code(self, rows: int, keys: int) -> BatchCode | None:
        """Return the code with `keys` keys for a table of `rows` rows; None if it would have more buckets than rows."""
        choices = 3 if self.kind == "cuckoo" else 1
        buckets = 1 if self.kind == "plain" else -(-keys // self.rounds)
        buckets += -buckets % choices
        rounds = keys if self.kind == "plain" else self.rounds
        return BatchCode(rows, buckets, choices, rounds) if buckets // choices <= rows else None

    def codes(self, rows: int) -> tuple[BatchCode, ...]:
        """Return the codes of the hot table, if there is one, and of the full table, which has `rows` rows.

        The result is empty if the recipe does not fit the table.
        """
        wanted = [(round(self.share * rows), self.hot)] if self.hot else []
        codes = [self.code(size, keys) for size, keys in [*wanted, (rows, self.full)] if size]
        return tuple(code for code in codes if code) if all(codes) else ()

    def price(self, rows: int, row_bytes: int) -> Price:
        """Compute the price of one inference's lookups by the recipe's plan.

        rows, row_bytes: number of the table's rows, and bytes of each.
        """
        return price(self.codes(rows), (1 + self.companions) * row_bytes)


class Profile:
    """Statistics of a training split's lookups: its hottest rows, and each row's companions; counted once.

    accesses: for each inference, the numbers of the rows that it wants, int64 (n,). rows: number of rows in the table.
    """

    def __init__(self, accesses: Sequence[Tensor], rows: int) -> None:
        self._accesses, self.rows = accesses, rows

    @cached_property
    def counts(self) -> Tensor:
        return access_stats.frequencies(self._accesses, self.rows)

    @cached_property
    def companions(self) -> Tensor:
        step = -(-len(self._accesses) // _PROFILED)
        return access_stats.companions(self._accesses[::step], self.rows, max(COMPANIONS))

    def plan(self, recipe: Recipe) -> Plan:
        """Make the plan of a recipe, which must fit the table."""
        *hot, full = recipe.codes(self.rows)
        beside = self.companions[:, : recipe.companions] if recipe.companions else None
        if not hot:
            return Plan(full, companions=beside)
        return Plan(full, hot[0], access_stats.hottest(self.counts, recipe.share), beside)


def recipes(kinds: Sequence[str] = KINDS) -> Iterator[Recipe]:
    """Yield all recipes of the grid, for these kinds of plans.

    A hot table has at least as many keys as the full table, and companions come with or without it, as in the paper.
    Bins alone, with which all other plans are compared, have up to four rounds.
    """
    for kind in kinds:
        if kind == "plain":
            yield from (Recipe(kind, size) for size in SIZES)
            continue
        for rounds in ROUNDS[kind]:
            codesign = rounds <= _CODESIGN_ROUNDS
            for full in SIZES:
                for companions in COMPANIONS if codesign else (0,):
                    yield Recipe(kind, full, companions=companions, rounds=rounds)
                    hot = [size for size in SIZES if size >= full] if codesign else []
                    yield from (Recipe(kind, full, h, share, companions, rounds) for share in SHARES for h in hot)


def found(plan: Plan, wanted: Sequence[Tensor]) -> list[Tensor]:
    """Return for each inference which of the rows that it wants are found by the plan's keys, bool (n,).

    wanted: for each inference, the numbers of these rows, int64 (n,).
    """
    return [plan.look_up(rows).key >= 0 for rows in wanted]


def share_dropped(marks: Sequence[Tensor]) -> float:
    """Return the fraction of all wanted rows that are not found. marks: result of `found`."""
    return 1 - float(torch.cat(list(marks)).double().mean())
