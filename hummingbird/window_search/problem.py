"""The search space: comparing layers, groups that drop the same low bits, and the windows worth a trial.

Every layer has its own k, from the range of its values, and a group shares m. For |x| < 2^(k-2) in ring units no bit
from k - 1 upwards matters, with either protocol and for any m: [k+1:m) has the same results as [k:m), with one bit
more. So no k above the range and its headroom is worth a trial. Levels define how far k goes down from there:

    level 0    2^(k-1) > (1 + headroom) x the largest |x| seen
    level 1    2^(k-1) > the largest |x| seen
    level 2    one bit less: values in the upper half of that range wrap, and have wrong signs
    ...        one bit less for every further level

The layers of a group are at one level, or share one k (layers that need less keep less); then the lowest layer
determines the level. A window too narrow for a comparison is widened upwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import floor
from typing import NamedTuple

from hummingbird.bits import BitWindow
from hummingbird.errors import ConfigError, InputError

IDENTITY = BitWindow(0, 0)


@dataclass(frozen=True)
class ComparingLayer:
    """A layer that compares, and so needs a window; a search has one such object for each.

    name: qualified name. outputs: comparisons per image. largest: the largest |x| that it compares, in ring units (2^16
    is one). limit: the highest k that its window may have: the valid bits of its shares, less the extra bits of
    fraction that a product leaves behind. Raises InputError for numbers out of range.
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

    def upper(self, level: int, headroom: float) -> int:
        """Return k, the upper end of the layer's window [k:m), at a level; k is at most `limit`.

        At level 0 the window holds values larger than the largest |x| seen by the fraction `headroom`; at level 1 it
        just holds the largest |x|; at each further level k is one bit lower.
        """
        if level == 0:
            return min(floor(self.largest * (1 + headroom)).bit_length() + 1, self.limit)
        return max(0, min(self.largest.bit_length() + 1, self.limit) - (level - 1))


class GroupWindows(NamedTuple):
    """A choice of windows for a group, one for every layer.

    windows: one for each layer, in the group's order. level: how low the upper ends k are: 0 with headroom above all
    values seen, 2 if some wrap. m: the common lower end of the windows [k:m). tops: k of every layer, before windows
    are widened upwards. Windows without bits have level 0 and m = 64.
    """

    windows: tuple[BitWindow, ...]
    level: int
    m: int
    tops: tuple[int, ...] = ()


@dataclass(frozen=True)
class Group:
    """A group of layers whose windows [k:m) share m: they drop the same low bits.

    Raises ConfigError for an empty group.
    """

    name: str
    layers: tuple[ComparingLayer, ...]

    def __post_init__(self) -> None:
        if not self.layers:
            raise ConfigError("an empty group", where=self.name, hint="leave it out, or give it a layer")

    def tops(self, headroom: float, reach: int) -> list[tuple[int, tuple[int, ...]]]:
        """Return the upper ends k that the group's windows may have: pairs (level, k of every layer), level 0 first.

        The level, from 0 to 1 + `reach`, says how low k is. At level 0 the windows hold values larger than those seen
        by the fraction `headroom`; from level 2 on some values wrap. If several levels have the same k for all layers,
        only the lowest one is listed.
        """
        levels = [tuple(layer.upper(level, headroom) for layer in self.layers) for level in range(2 + reach)]
        found = {tops: level for level, tops in reversed([*enumerate(levels)])}
        for k in range(min(levels[-1]), max(levels[0]) + 1):
            tops = tuple(min(k, most) for most in levels[0])
            over = (level for level, least in enumerate(levels) if all(map(int.__ge__, tops, least)))
            level = next(over, None)
            if level is not None:
                found.setdefault(tops, level)
        return sorted((level, tops) for tops, level in found.items())

    def windows(self, tops: Sequence[int], m: int, least: int) -> tuple[BitWindow, ...] | None:
        """Return a window [k:m) for each layer of the group, widened upwards where it has fewer than `least` bits.

        tops: k of every layer. m: the lower end of all windows. Returns None if a layer's shares are too short for its
        window.
        """
        wide = [max(top, m + least) for top in tops]
        if any(top > layer.limit for top, layer in zip(wide, self.layers, strict=True)):
            return None
        return tuple(BitWindow(top, m) for top in wide)

    def choices(self, widths: Sequence[int] | None, headroom: float, reach: int, least: int) -> list[GroupWindows]:
        """Return all choices of windows for the group that are worth a trial, each with its lowest level.

        They are windows without bits, and windows [k:m) for every m that leaves the widest of them at least `least`
        bits. widths: if given, only choices whose widest window has one of these numbers of bits. headroom: by which
        fraction values may exceed the largest |x| seen; k holds them at level 0. reach: how many bits k may go below
        the range seen.
        """
        found = [GroupWindows((IDENTITY,) * len(self.layers), 0, 64)] if widths is None or 0 in widths else []
        seen = {choice.windows for choice in found}
        for level, tops in self.tops(headroom, reach):
            for m in range(max(tops) - least + 1):
                windows = self.windows(tops, m, least)
                if windows is None or windows in seen:
                    continue
                if widths is None or max(window.w for window in windows) in widths:
                    seen.add(windows)
                    found.append(GroupWindows(windows, level, m, tops))
        return found

    def named(self, windows: Iterable[BitWindow]) -> dict[str, BitWindow]:
        """Return these windows, one for each layer of the group in its order, as a dict by the layers' names."""
        return {layer.name: window for layer, window in zip(self.layers, windows, strict=True)}


def named(groups: Sequence[Group], chosen: Sequence[GroupWindows]) -> dict[str, BitWindow]:
    """Return the windows chosen for all groups as one dict: the name of each layer -> its window."""
    pairs = zip(groups, chosen, strict=True)
    return {name: window for group, choice in pairs for name, window in group.named(choice.windows).items()}


def check_groups(groups: Sequence[Group]) -> list[ComparingLayer]:
    """Return the layers of all groups, in order, after a check of the groups' names.

    Raises InputError if there is no group, ConfigError if the name of a group or of a layer occurs twice.
    """
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


# Groups by qualified name --------------------------------------------------------------------------------------------
#
#     layer    each layer by itself
#     block    layers of the same parent module: layer1.0.relu1 and layer1.0.relu2
#     stage    layers of the same outermost module: all of layer1; a ResNet's five groups in the paper


STEM = "stem"


def _block(name: str) -> str:
    return name.partition("#")[0].rpartition(".")[0] or STEM


def _stage(name: str) -> str:
    return _block(name).partition(".")[0]


_BY_NAME: dict[str, Callable[[str], str]] = {"layer": lambda name: name, "block": _block, "stage": _stage}


def group_layers(layers: Sequence[ComparingLayer], by: str | Mapping[str, Sequence[str]] = "stage") -> list[Group]:
    """Divide `layers`, which are in the order of execution, into groups, in the order of their first layers.

    by: "layer", "block", "stage", or patterns by group name, in which * stands for any text: {"early": ["relu1",
        "layer1.*"], "late": ["layer[234].*"]}. A block is the layers of one parent module, a stage those of one
        outermost module; in both cases layers of the net itself, without a parent, form the group `stem`. Raises
        ConfigError for a pattern that matches nothing, and for a layer in no group or in several.
    """
    if not isinstance(by, (str, Mapping)) or (isinstance(by, str) and by not in _BY_NAME):
        raise ConfigError(f"unknown grouping {by!r}", where="by", hint=f"{', '.join(_BY_NAME)}, or patterns by name")
    if isinstance(by, str):
        names = [_BY_NAME[by](layer.name) for layer in layers]
    else:
        names = _by_pattern([layer.name for layer in layers], by)
    grouped: dict[str, list[ComparingLayer]] = {}
    for layer, name in zip(layers, names, strict=True):
        grouped.setdefault(name, []).append(layer)
    return [Group(name, tuple(members)) for name, members in grouped.items()]


def _by_pattern(layers: Sequence[str], patterns: Mapping[str, Sequence[str]]) -> list[str]:
    """Return, for every layer, the name of its group.

    patterns: for each group's name the patterns, in which * stands for any text, that its layers' names match.
    """
    owners: dict[str, list[str]] = {name: [] for name in layers}
    for group, wanted in patterns.items():
        if isinstance(wanted, str):
            raise ConfigError(f"{wanted!r} is not a list of patterns", where=f"group {group}", hint=f"[{wanted!r}]")
        if not wanted:
            raise ConfigError("a group without patterns", where=f"group {group}", hint="leave it out")
        for pattern in wanted:
            matched = [name for name in layers if fnmatchcase(name, pattern)]
            if not matched:
                hint = f"layers that compare: {', '.join(layers) or 'none'}"
                raise ConfigError(f"pattern {pattern!r} matches no layer", where=f"group {group}", hint=hint)
            for name in matched:
                if group not in owners[name]:
                    owners[name].append(group)
    for name, found in owners.items():
        if len(found) != 1:
            what = f"taken by groups {', '.join(found)}" if found else "in no group"
            raise ConfigError(f"layer {name} is {what}", where="groups", hint="each layer belongs to one group")
    return [found[0] for found in owners.values()]
