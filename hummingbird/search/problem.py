"""What is searched: comparing layers, groups that share one window, and the windows worth a trial.

For |x| < 2^(k-2) in ring units no bit from k - 1 upwards decides anything, with either protocol, whatever m is:
[k+1:m) gives what [k:m) gives and keeps one bit more. So a group whose largest magnitude is below 2^b needs no
k > b + 2. Going down from there, [b+1:m) still covers all values, and each further step wraps those of one more
octave: the windows tried end `reach` steps below the top.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hummingbird.bits import BitWindow
from hummingbird.errors import ConfigError, InputError


@dataclass(frozen=True)
class ComparingLayer:
    """A layer with a window.

    name: qualified name. outputs: comparisons per image. largest: the largest |x| it compares, in ring units (2^16 is
    one). limit: the highest k its shares allow, their valid bits without the surplus fraction (mpc/compare.py).
    Raises InputError for numbers that cannot be.
    """

    name: str
    outputs: int
    largest: int
    limit: int = 48

    def __post_init__(self) -> None:
        if type(self.outputs) is not int or self.outputs < 1:
            raise InputError(f"{self.outputs!r} outputs per image", where=self.name, hint="a positive integer")
        if type(self.largest) is not int or not 0 <= self.largest < 1 << 63:
            hint = "the largest |x| times 2^16, rounded up to an integer below 2^63"
            raise InputError(f"a largest magnitude of {self.largest!r}", where=self.name, hint=hint)
        if type(self.limit) is not int or not 2 <= self.limit <= 64:
            raise InputError(f"a highest k of {self.limit!r}", where=self.name, hint="an integer from 2 to 64")


@dataclass(frozen=True)
class Group:
    """Layers that get the same window. ConfigError if there is none."""

    name: str
    layers: tuple[ComparingLayer, ...]

    def __post_init__(self) -> None:
        if not self.layers:
            raise ConfigError("an empty group", where=self.name, hint="leave it out, or give it a layer")

    @property
    def top(self) -> int:
        """The highest k worth a trial."""
        largest = max(layer.largest for layer in self.layers)
        return min(largest.bit_length() + 2, *(layer.limit for layer in self.layers))

    def windows(self, widths: Sequence[int] | None, reach: int, least: int) -> list[BitWindow]:
        """Windows worth a trial, narrow ones first: w = 0 and every w from `least` bits, or those of `widths`."""
        found = []
        for w in range(self.top + 1) if widths is None else sorted(set(widths)):
            if w == 0:
                found.append(BitWindow(0, 0))
            elif w >= least:
                lowest = max(w, self.top - reach)
                found += [BitWindow(k, k - w) for k in range(self.top, lowest - 1, -1)]
        return found


def check_groups(groups: Sequence[Group]) -> list[ComparingLayer]:
    """All layers. InputError if there is nothing to search, ConfigError if a name or a layer occurs twice."""
    if not groups:
        hint = "a net without ReLU or another comparing layer needs no windows"
        raise InputError("no comparing layers", where="groups", hint=hint)
    for what, names in (
        ("group", [group.name for group in groups]),
        ("layer", [layer.name for group in groups for layer in group.layers]),
    ):
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"{what} {', '.join(twice)} occurs twice", where="groups", hint="name each one once")
    return [layer for group in groups for layer in group.layers]
