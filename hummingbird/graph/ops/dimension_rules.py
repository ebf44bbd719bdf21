"""Rules for the rank of a value, its number of dimensions, from a step's attributes and the ranks of its inputs.

A rank is a number; INPUT if it equals the rank of the net's input, which is not known; or None if it is not known.
`hummingbird/graph/properties.py` applies the rules to a net.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

from torch import Tensor

INPUT = "input"
Rank = int | str | None
LISTED: Final = "listed"  # in place of a rule: the number of sizes that the step reads after its first input
RankRule = Callable[[dict[str, Any], list[Rank]], Rank]  # (attributes, ranks of the input tensors) -> rank
DimensionRule = RankRule | Literal["listed"]


def of_input(a: dict[str, Any], given: list[Rank]) -> Rank:
    """Return the number of dimensions of the net's input, for the step "input" with the attributes `a`.

    It is known if an example or a folded batch norm has fixed it; otherwise the result is INPUT, which stands for the
    unknown number. given: not read, as the step has no inputs.
    """
    return len(a["shape"]) if "shape" in a else a.get("rank") or INPUT


def same(a: dict[str, Any], given: list[Rank]) -> Rank:
    """Return the number of dimensions after broadcasting: the largest number among all inputs and a constant.

    a: the step's attributes. given: the number of dimensions of each input: an int, INPUT (that of the net's input,
    unknown) or None (unknown).
    If all inputs have the number INPUT, the result is INPUT too, unless a constant has more than 2 dimensions. In all
    other cases in which a number is not known, the result is None.
    """
    constant = [a["value"].dim()] if isinstance(a.get("value"), Tensor) else []
    known = [rank for rank in given if isinstance(rank, int)]
    if len(known) == len(given):
        return max(known + constant)
    return INPUT if set(given) == {INPUT} and max(constant, default=0) <= 2 else None


def more(count: Callable[[dict[str, Any]], int]) -> RankRule:
    """Make the rule for a result with `count(attributes)` dimensions more than the step's inputs have.

    count: a function of the step's attributes; a negative number stands for fewer dimensions. The rule returns None if
    the inputs' number of dimensions is not known.
    """

    def rule(a: dict[str, Any], given: list[Rank]) -> Rank:
        known = same({}, given)
        return known + count(a) if isinstance(known, int) else None

    return rule


def _kept(a: dict[str, Any]) -> int:
    dims = a["dims"] if "dims" in a else (a["dim"],)
    return 0 if a["keepdim"] else -len(dims)


def reduced(a: dict[str, Any], given: list[Rank]) -> Rank:
    """Return the number of dimensions of a reduction's result: some are dropped, all if the attribute `dims` is None.

    a: the step's attributes. given: the number of dimensions of each input: an int, INPUT (that of the net's input,
    unknown) or None (unknown).
    Returns None if the number is unknown.
    """
    return 0 if a.get("dims", ()) is None else more(_kept)(a, given)


def flattened(a: dict[str, Any], given: list[Rank]) -> Rank:
    """Return the number of dimensions after the dimensions from `start` to `end` (attributes) are flattened into one.

    a: the step's attributes. given: the number of dimensions of each input: an int, INPUT (that of the net's input,
    unknown) or None (unknown).
    Returns None if the number is unknown. With `start` 1 and `end` -1 it is 2 for an unknown number, too.
    """
    rank = given[0]
    if isinstance(rank, int) and rank:
        return rank - a["end"] % rank + a["start"] % rank
    return 2 if (a["start"], a["end"]) == (1, -1) else None


def _taken(a: dict[str, Any]) -> int:
    parts = a["index"] if isinstance(a["index"], tuple) else (a["index"],)
    return sum(part is None for part in parts) - sum(type(part) is int for part in parts)


def multiplied(a: dict[str, Any], given: list[Rank]) -> Rank:
    """Return the number of dimensions of a matrix product: the larger one of its two factors' numbers.

    a: the step's attributes. given: the number of dimensions of each input: an int, INPUT (that of the net's input,
    unknown) or None (unknown).
    Returns None if a factor's number is not known, or below 2.
    """
    known = [rank for rank in given if isinstance(rank, int) and rank >= 2]
    return max(known) if len(known) == len(given) else None


def unknown(a: dict[str, Any], given: list[Rank]) -> Rank:
    """Return None, for a step whose attributes and inputs do not say how many dimensions its value has."""
    return None


def first(a: dict[str, Any], given: list[Rank]) -> Rank:
    """Return the number of dimensions of a result that has as many as the step's first input.

    a: the step's attributes. given: the number of dimensions of each input: an int, INPUT (that of the net's input,
    unknown) or None (unknown).
    """
    return given[0]


def spatial(a: dict[str, Any], given: list[Rank]) -> Rank:
    """Return the number of dimensions of the result of a layer on images: batch, channels, and the spatial ones.

    a: the step's attributes. `stride`, or `output_size` of a layer without stride, has one number for each spatial
    dimension. given: not read.
    """
    return len(a["stride"] if "stride" in a else a["output_size"]) + 2


indexed = more(_taken)
stays = more(lambda a: 0)  # unlike `same`, None for the rank INPUT: an input of unknown rank cannot be taken for rows
