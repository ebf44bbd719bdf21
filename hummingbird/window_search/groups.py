"""Groups of comparing layers, by qualified name.

    layer    each its own
    block    those of the same parent module: layer1.0.relu1 and layer1.0.relu2
    stage    those of the same outermost module: all of layer1; a ResNet's five groups in the paper

Layers of the net itself, without a parent, are the group `stem`. Groups come in the order of their first layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

from hummingbird.errors import ConfigError
from hummingbird.window_search.problem import ComparingLayer, Group

STEM = "stem"


def _block(name: str) -> str:
    return name.partition("#")[0].rpartition(".")[0] or STEM


def _stage(name: str) -> str:
    return _block(name).partition(".")[0]


_BY_NAME: dict[str, Callable[[str], str]] = {"layer": lambda name: name, "block": _block, "stage": _stage}


def group_layers(layers: Sequence[ComparingLayer], by: str | Mapping[str, Sequence[str]] = "stage") -> list[Group]:
    """Groups of `layers`, which are in the order of execution.

    by: "layer", "block", "stage", or patterns by group name, in which * stands for any text: {"early": ["relu1",
    "layer1.*"], "late": ["layer[234].*"]}. ConfigError for a pattern that matches nothing, and for a layer that no
    group or more than one takes.
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
    """The group of every layer."""
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
