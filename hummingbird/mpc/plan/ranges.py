"""The assumptions on rows and values, `BitConfig.rows`, against the steps of a net: errors, and warnings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hummingbird.bits import BitConfig
from hummingbird.errors import ConfigError
from hummingbird.graph import Step
from hummingbird.graph.steps import refs
from hummingbird.mpc.functions.tabulated import RANGE_HINT
from hummingbird.mpc.plan.builders import ON_SQUARES, compares, in_range, ranged
from hummingbird.ring import SCALE


def check_rows(config: BitConfig, steps: Sequence[Step]) -> None:
    """Raise ConfigError if `config.rows` names a layer that has no rows, or has the wrong range for one.

    steps: all steps of the net.
    """
    kinds = {step.name: "norm" if step.op in ON_SQUARES else step.op for step in steps if ranged(step)}
    config.check_rows({name: kind if kind in ("softmax", "norm") else "function" for name, kind in kinds.items()})


def check_ranges(config: BitConfig, steps: Sequence[Step]) -> None:
    """Raise ConfigError if a function without tails, such as log, has no range in `config.rows`.

    steps: all steps of the net.
    """
    for step in steps:
        if step.op == "function" and not compares(step) and config.rows_of(step.name) is None:
            what = f"the range of the values of {step.attrs['expression']} is not known"
            raise ConfigError(what, where=step.name, hint=RANGE_HINT)


def narrow(config: BitConfig, steps: Sequence[Step], looks_up: bool) -> list[str]:
    """Warn of softmaxes that compare values in a window smaller than their rows' range; return a text for each.

    steps: all steps of the net. A softmax with a range compares if the range is too wide for look-ups, or if the
    net has none: looks_up says whether it has.
    """
    said = []
    for step in steps:
        rows, window = config.rows_of(step.name), config.window(step.name)
        if step.op != "softmax" or rows is None or not window.k or (looks_up and in_range(step, rows)):
            continue
        spread, reach = rows.most - rows.least, 2.0 ** (window.k - SCALE - 1)
        if spread > reach:
            said.append(
                f"{step.name}: values of a row may differ by {spread:.3g} (rows), and window {window} compares "
                f"differences below {reach:g}: larger ones give wrong results. Use a window with a larger k, or none"
            )
    return said


def uneven(config: BitConfig, steps: Sequence[Step]) -> list[str]:
    """Warn of functions that apply to results of the same weights, but have different ranges; return a text for each.

    steps: all steps of the net. Functions are numbered layer by layer. So the ranges of a recurrent net that were found
    with inputs of another length belong to other steps here, and their values may leave them.
    """
    first, said = dict[tuple[Any, ...], str](), dict[tuple[Any, ...], str]()
    for name, key in by_weights(steps).items():
        one, other = config.rows_of(first.setdefault(key, name)), config.rows_of(name)
        if one is other or (one and other and (one.least, one.most) == (other.least, other.most)):
            continue
        what = f"{first[key]} and {name} apply one function to results of the same weights, in ranges {one} and {other}"
        hint = "values beyond a range give wrong results. Find the ranges with inputs of this length: find_rows(net, x)"
        said.setdefault(key, f"{what}: {hint}")
    return list(said.values())


def by_weights(steps: Sequence[Step]) -> dict[str, tuple[Any, ...]]:
    """Return a key for the functions of recurrent layers, by name: those with equal keys share the range of values.

    They are the same function of results of the same weights, which several steps apply, behind as many other
    functions: the time steps of one layer. (An LSTM's tanh(g) reads weights' results, its tanh(c) a function of them.)
    A value that one time step has not reached, another one may reach with other inputs. So the first time step, which
    has no state and so no weights of a state, shares their range too, if its name is theirs without #.
    """
    applied = Counter(id(step.attrs["weight"]) for step in steps if step.op == "linear")
    found, sources = dict[str, tuple[Any, ...]](), list[frozenset[int]]()
    behind: list[int] = []  # functions between a step's value and the weights before it
    for step in steps:
        if step.op == "linear":
            weight = id(step.attrs["weight"])
            sources.append(frozenset({weight} if applied[weight] > 1 else ()))
            behind.append(0)
            continue
        reads = [ref.index for ref in refs(step.inputs)]
        sources.append(frozenset[int]().union(*(sources[number] for number in reads)))
        behind.append(max((behind[number] for number in reads), default=0))
        if sources[-1] and ranged(step) and step.op not in (*ON_SQUARES, "softmax"):
            found[step.name] = step.op, step.attrs.get("expression", ""), behind[-1], sources[-1]
            behind[-1] += 1
    calls: dict[str, list[str]] = {}
    for step in steps:
        if ranged(step):
            calls.setdefault(step.name.partition("#")[0], []).append(step.name)
    for first, *others in calls.values():
        keys = {found.get(name) for name in others}
        if len(keys) == 1 and (key := keys.pop()) is not None:
            found[first] = key
    return found
