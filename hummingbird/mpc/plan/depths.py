"""Depths: which steps of a plan run side by side, so that their openings share frames and rounds.

The depth of a step is the number of rounds that pass before it begins: the longest path to it, where a step's length is
its rounds. A step begins as soon as the steps that it reads have ended. So two branches of an inception begin at the
same depth, and at every depth the openings of all steps that are at work travel in one frame.

    step      reads         rounds    begins    ends
    a         the input     2         0         2
    b         the input     1         0         1        its opening travels with a's first one
    c         a and b       1         2         3

The rounds of a net are those of its longest path: three here, for four of the steps one after the other. A shared
round, and the header of its frame, count for one step alone, a step of the longest path (`leads`). So the rounds and
bits of steps still add up to those of the net.

At most `AT_ONCE` steps are at work at a time; a further one begins when one of them has ended.

A step that sends nothing is computed just before the first step that reads it. A module that a user has registered may
exchange messages of its own: it begins when all earlier steps have ended, and ends before later ones begin.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Sequence
from dataclasses import dataclass

AT_ONCE = 256  # a step at work has a thread of its own, and holds its memory (channel/branches.py)


@dataclass(frozen=True)
class Depths:
    """The order in which a plan's steps begin, and which of them share rounds with others; `of` makes it.

    order: the steps' numbers, as the steps begin. starts: the depth at which each step begins, by number.
    beside: the steps whose openings travel with those of other steps, in part at least. leads: those of them for which
    shared rounds count. rounds: those of the net. breadth: how many values the net works on at once.

    >>> from hummingbird.mpc.plan.depths import Depths
    >>> found = Depths.of(reads=[[], [0], [0], [1, 2]], rounds=[0, 2, 1, 1], alone=[], breadths=[4, 4, 4, 8])
    >>> found.starts, found.rounds, sorted(found.beside), sorted(found.leads), found.breadth
    ((0, 0, 0, 2), 3, [1, 2], [1], 8)
    """

    order: tuple[int, ...]
    starts: tuple[int, ...]
    beside: frozenset[int]
    leads: frozenset[int]
    rounds: int
    breadth: int

    @classmethod
    def of(
        cls,
        reads: Sequence[Collection[int]],
        rounds: Sequence[int],
        alone: Collection[int],
        breadths: Sequence[int],
    ) -> Depths:
        """Find the depths of a plan's steps.

        reads: for each step the earlier steps that it reads, by number. rounds: of each step, by number.
        alone: the steps beside which no other one runs. breadths: how many values each step works on at once.
        """
        starts, ends = _as_soon_as_possible(reads, rounds, alone)
        opening = [number for number, length in enumerate(rounds) if length]
        at_work: list[list[int]] = [[] for _ in range(max(ends, default=0))]  # the steps of each depth
        for number in opening:
            for depth in range(starts[number], ends[number]):
                at_work[depth].append(number)
        beside = frozenset(number for together in at_work if len(together) > 1 for number in together)
        breadth = max((sum(breadths[number] for number in together) for together in at_work), default=0)
        breadth = max([breadth, *breadths])
        if not beside:
            return cls(tuple(range(len(reads))), starts, beside, beside, len(at_work), breadth)
        begins = list(starts)
        readers: list[list[int]] = [[] for _ in reads]
        for number, sources in enumerate(reads):
            for source in sources:
                readers[source].append(number)
        for number in reversed(range(len(reads))):
            if not rounds[number] and number not in alone:
                begins[number] = min((begins[reader] for reader in readers[number]), default=starts[number])
        order = sorted(range(len(reads)), key=lambda number: (begins[number], number))
        leads = beside & _longest_path(opening, starts, ends)
        return cls(tuple(order), tuple(begins), beside, leads, len(at_work), breadth)


def _as_soon_as_possible(
    reads: Sequence[Collection[int]], rounds: Sequence[int], alone: Collection[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the depths at which each step begins and ends, by number, if it begins as soon as it can."""
    starts, ends = [], list[int]()
    free = [0] * AT_ONCE  # the depth from which each place for a step at work is free, in order
    all_ended = 0  # the depth at which all steps so far have ended
    earliest = 0  # the end of the last step that runs alone
    for number, length in enumerate(rounds):
        start = max([earliest, *(ends[source] for source in reads[number])])
        if number in alone:
            start = max(start, all_ended)
            earliest = start + length
        if length:
            # The place that became free last, but not after `start`; or else the first one that becomes free.
            start = max(start, free.pop(max(0, bisect_right(free, start) - 1)))
            insort(free, start + length)
        starts.append(start)
        ends.append(start + length)
        all_ended = max(all_ended, ends[-1])
    return tuple(starts), tuple(ends)


def _longest_path(opening: Sequence[int], starts: Sequence[int], ends: Sequence[int]) -> set[int]:
    """Return steps that follow one another without a gap from depth 0 to the last depth; there is one at each depth."""
    by_end = {ends[number]: number for number in reversed(opening)}
    path, depth = set[int](), max(ends)
    while depth:
        path.add(by_end[depth])
        depth = starts[by_end[depth]]
    return path
