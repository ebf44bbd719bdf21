"""Choose the units of values: one for each group of layers whose results meet in a sum or a cut.

A value's unit is the real number that its integer 1 stands for. After a cut to a window [k:m), whose k and m count bits
in units of 2^-16, the unit is 2^(m-16). Results of layers that are not cut yet form a group, in which the ratios of all
units are known. The group's own unit, 2^-F, is the coarsest that meets these demands:

    weights    the root mean square of a layer's integers is at least HELD: then rounding changes results by 1/55 of it
    factors    the factor that brings a value to a sum's unit is within FACTOR of an integer; powers of two are exact
    cuts       no window begins below the unit

The group's shares need rings of k + F - 16 bits for a window [k:m), so each unneeded fraction bit would add a bit to
every row that is garbled before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hummingbird.errors import ModelError, Problem
from hummingbird.ring import SCALE

HELD = 16.0  # rounding errors have a deviation of 12^-0.5 = 0.29: 0.29 / 16 = 1/55
FACTOR = 2.0**-7
_FRACTIONS = range(-32, 64)


@dataclass(eq=False)
class UnitGroup:
    """A group of values whose units have known ratios to each other, because sums add the values.

    unit: the unit of the group; the unit of a value is a known factor times it. It is None until `resolve` has chosen
    it.
    scales: the scale of each value in the group.
    demands: functions without arguments; each returns whether the group's present unit is fine enough for one of its
    users.
    anchored: whether the group's ratios are fixed, because a value of the group is cut: its unit must become a power of
    two.
    """

    unit: float | None = None
    anchored: bool = False
    scales: list[ValueScale] = field(default_factory=list)
    demands: list[Callable[[], bool]] = field(default_factory=list)

    def resolve(self, name: str) -> None:
        """Set `unit` to the coarsest power of two that meets all demands.

        Raises ModelError, naming step `name`, if there is none.
        """
        for fraction in _FRACTIONS:
            self.unit = 2.0**-fraction
            if all(demand() for demand in self.demands):
                return
        what = "no fixed-point unit is fine enough for its weights and for the values that are added to it"
        raise ModelError([Problem(name, what, "bring the branches of the sum to similar sizes")])


@dataclass(eq=False)
class ValueScale:
    """The unit of a value, which may be unknown yet: `ratio` times the unit of its group."""

    group: UnitGroup
    ratio: float = 1.0

    def __post_init__(self) -> None:
        self.group.scales.append(self)

    @property
    def known(self) -> bool:
        """Whether the value's unit has been chosen."""
        return self.group.unit is not None

    @property
    def unit(self) -> float:
        """The real number that the integer 1 stands for; it must be known already."""
        assert self.group.unit is not None
        return self.group.unit * self.ratio

    def times(self, factor: float) -> ValueScale:
        """Return the scale of a value whose unit is `factor` times the unit of this scale."""
        return ValueScale(self.group, self.ratio * factor)


def known(unit: float) -> ValueScale:
    """Return the scale of a value whose unit is known already."""
    return ValueScale(UnitGroup(unit, anchored=True))


def fraction(unit: float) -> int:
    """Return F of a unit 2^-F: the number of bits behind the binary point."""
    exponent = -math.log2(unit)
    assert exponent == round(exponent), f"{unit} is no power of two"
    return round(exponent)


def precise(factor: float) -> bool:
    """Return whether a positive factor is nearly an integer: the difference is at most 1/128 of the factor."""
    return abs(round(factor) - factor) <= FACTOR * factor


def finest(units: Sequence[float]) -> float:
    """Return the coarsest unit of which all given units are nearly integer multiples.

    It is the least given unit, divided by a power of two.
    """
    least = min(units)
    for j in range(16):
        if all(precise(unit / (least / 2**j)) for unit in units):
            break
    return least / 2**j


def power(scale: ValueScale) -> ValueScale:
    """Return a scale whose unit is a power of two, so that a value can be cut.

    If the unit of `scale` is a power of two, this is `scale` itself. It is, too, if nothing about the unit is fixed
    yet; from then on only a power of two may be chosen. Otherwise it is a new scale with a finer unit, and the old unit
    is nearly an integer times the new one. The caller must then multiply the value by that integer.
    """
    if not scale.known and not scale.group.anchored:
        ratio = scale.ratio
        for other in scale.group.scales:
            other.ratio /= ratio
        scale.group.anchored = True
    size = scale.unit if scale.known else scale.ratio
    exponent = math.floor(math.log2(size))
    while not precise(size / 2.0**exponent):  # ends at 6 bits below: every factor from 64 on is precise
        exponent -= 1
    return scale if size == 2.0**exponent else scale.times(2.0**exponent / size)


def joined(scales: Sequence[ValueScale]) -> ValueScale:
    """Return the scale of a sum of values that have these scales.

    Values whose units are not chosen yet come into one group with the sum. Values whose units are known add a demand to
    this group: their unit must nearly be an integer multiple of the sum's unit.
    """
    pending = [scale for scale in scales if not scale.known]
    if not pending:
        return known(finest([scale.unit for scale in scales]))
    first = pending[0]
    for other in pending[1:]:
        if other.group is not first.group:
            _merge(first.group, other.group, first.ratio / other.ratio)
    out = ValueScale(first.group, finest([scale.ratio for scale in pending]))
    for scale in scales:
        if scale.known:
            out.group.demands.append(lambda scale=scale: precise(scale.unit / out.unit))  # type: ignore[misc]
    return out


def _merge(into: UnitGroup, group: UnitGroup, ratio: float) -> None:
    if into.anchored and group.anchored:
        ratio = 2.0 ** round(math.log2(ratio))
    elif group.anchored:  # the unit that must be a power of two stays one
        for scale in into.scales:
            scale.ratio /= ratio
        ratio = 1.0
    into.anchored = into.anchored or group.anchored
    for scale in group.scales:
        scale.group, scale.ratio = into, scale.ratio * ratio
    into.scales += group.scales
    into.demands += group.demands


def holds_weights(rms: float, source: ValueScale, result: ValueScale) -> Callable[[], bool]:
    """Return a layer's demand on its result's unit: a function that says whether integer weights are precise enough.

    They are if their root mean square is at least 16. The function has no arguments; `UnitGroup.demands` takes it.
    rms: root mean square of the real weights. source, result: scales of the layer's input and result.
    """
    return lambda: rms == 0 or rms * source.unit / result.unit >= HELD


def holds_window(m: int, source: ValueScale) -> Callable[[], bool]:
    """Return a cut's demand on its input's unit: a function that says whether the unit is small enough to cut at bit m.

    It must be at most 2^(m-16). The function has no arguments; `UnitGroup.demands` takes it.
    m: the lowest bit of the cut's window. source: scale of the input.
    """
    return lambda: source.unit <= 2.0 ** (m - SCALE)
