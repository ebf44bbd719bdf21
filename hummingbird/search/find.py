"""`search_bits`: windows for the groups of a net, by asking for accuracies only.

no budget    HummingBird-eco: m = 0 and, per layer, the smallest k above all magnitudes, with bits to spare
a budget     HummingBird-b: the most accurate assignment that the budget pays for (tree.py)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from hummingbird.bits import EXACT, BitConfig, BitWindow
from hummingbird.errors import ConfigError
from hummingbird.search.evaluator import Evaluator, FunctionEvaluator, config_with
from hummingbird.search.journal import Journal
from hummingbird.search.objective import Objective, bit_budget
from hummingbird.search.problem import Group, check_groups
from hummingbird.search.questions import Progress, Questions
from hummingbird.search.spend import spend
from hummingbird.search.tree import PRUNINGS, Full, Tree

Choices = list[tuple[Fraction, BitWindow]]  # of a group: windows to try, with their prices


def search_bits(
    groups: Sequence[Group],
    evaluate: Evaluator | Callable[[BitConfig], float],
    budget: float | Fraction | None = None,
    *,
    objective: Objective | None = None,
    margin: float = 0.05,
    spare: int = 1,
    widths: Sequence[int] | None = None,
    reach: int = 4,
    accepts: Callable[[BitConfig], bool] | None = None,
    thrifty: bool = False,
    seed: int = 0,
    identity: str = "",
    provenance: Mapping[str, Any] | None = None,
    state: str | Path | None = None,
    progress: Callable[[Progress], None] | None = None,
    prunings: frozenset[str] = PRUNINGS,
) -> BitConfig:
    """Windows for every layer of `groups`, found with `evaluate`: the accuracy of a config, or an `Evaluator`.

    budget: in units of `objective`, by default the fraction of all bits that is kept (8 / 64); None: eco, in which
        every layer has its own window.
    margin: how far the accuracy may fall below the exact net's, 0.05 for five points.
    spare: bits that eco keeps above the largest magnitude. widths, reach: the windows that a budget search tries
        (problem.py); None: every number of bits, 0 included.
    accepts: whether the net can run a config; windows that it cannot run are not tried.
    thrifty: keep what the best assignment leaves of the budget; else it buys wider windows (spend.py).
    seed, identity: the evaluator's seed, its net and its data: recorded, and what tells one search from another.
    state: a file that keeps all answers. If it exists the search goes on from it: after a KeyboardInterrupt, which
        passes through, or a kill, it ends as it would have without.
    prunings: those of tree.py; fewer only take longer, but for "dominated".
    provenance: goes into the config, with objective, budget, cost, accuracies, evaluations and seed.
    Raises ConfigError if it finds no assignment that meets budget and margin, if eco's windows change the accuracy,
    or if `state` is of another search; InputError for no layers, or accuracies outside [0, 1].
    """
    layers = check_groups(groups)
    if not 0 <= margin <= 1:
        raise ConfigError(f"an accuracy margin of {margin!r}", where="margin", hint="a fraction: 0.05 for five points")
    if unknown := sorted(prunings - PRUNINGS):
        raise ConfigError(
            f"unknown prunings {unknown}", where="prunings", hint=f"some of {', '.join(sorted(PRUNINGS))}"
        )
    objective = objective or bit_budget(layers)
    eco = budget is None
    if eco:
        groups = [Group(layer.name, (layer,)) for layer in layers]
    choices = [_eco(group, spare, objective) if eco else _tried(group, widths, reach, objective) for group in groups]
    limit = Fraction(0) if budget is None else _checked_budget(budget, choices, objective)
    facts = {
        "groups": [[group.name, [layer.name for layer in group.layers]] for group in groups],
        "choices": [[(window.k, window.m, str(price)) for price, window in found] for found in choices],
        "objective": [objective.name, dict(objective.facts)],
        "budget": None if eco else str(limit),
        "margin": margin,
        "prunings": sorted(prunings),
        "thrifty": thrifty,
        "seed": seed,
        "identity": identity,
    }
    evaluator = evaluate if isinstance(evaluate, Evaluator) else FunctionEvaluator(evaluate, groups)
    questions = Questions(groups, evaluator, Journal(state, _fingerprint(facts)))
    exact = questions.ask((), [EXACT], 0.0)[0]
    if eco:
        found, nodes = _verified(choices, questions, exact), 1
    else:
        names = [layer.name for layer in layers]

        def runs(chosen: Sequence[BitWindow]) -> bool:
            return accepts is None or accepts(config_with(names, questions.prefix(chosen)))

        tree = Tree(choices, limit, exact, exact - margin, questions.ask, runs, prunings)
        if progress is not None:
            questions.watch = lambda: progress(_progress(tree, questions))
        best = tree.search()
        questions.watch()
        if best is None:
            raise ConfigError(
                f"found no assignment within {float(limit):g} {objective.unit} that keeps a score of "
                f"{exact - margin:.4f}: {exact:.4f} for the exact net, less a margin of {margin:g}",
                where="budget",
                hint="allow a larger budget or margin, or smaller groups",
            )
        found = best if thrifty else spend(best, groups, objective, limit, questions.ask, runs)
        nodes = tree.nodes
    return BitConfig(
        EXACT,
        questions.prefix(found.windows),
        {
            **(provenance or {}),
            "how": "HummingBird-eco" if eco else "HummingBird-b",
            "objective": {"name": objective.name, "unit": objective.unit, **objective.facts},
            "budget": None if eco else float(limit),
            "cost": float(found.price),
            "accuracy": found.accuracy,
            "exact_accuracy": exact,
            "margin": None if eco else margin,
            "spare_bits": spare if eco else None,
            "thrifty": None if eco else thrifty,
            "nodes": nodes,
            "evaluations": questions.evaluations,
            "seed": seed,
        },
    )


def _eco(group: Group, spare: int, objective: Objective) -> Choices:
    """The single window of a layer in eco: |x| < 2^(k-1) - 1, so that with m = 0 every sign is right."""
    if type(spare) is not int or spare < 0:
        raise ConfigError(f"{spare!r} bits to spare", where="spare", hint="an integer from 0")
    layer = group.layers[0]
    k = (layer.largest + 1).bit_length() + 1 + spare
    if k > layer.limit:
        what = f"a magnitude of {layer.largest / 2**16:g} takes k = {k}, but the shares allow {layer.limit}"
        raise ConfigError(what, where=layer.name, hint="spare fewer bits, or scale the net's weights down")
    window = BitWindow(k, 0)
    return [(objective.total(group.layers, window), window)]


def _verified(choices: Sequence[Choices], questions: Questions, exact: float) -> Full:
    """Eco's assignment. ConfigError if it changes the accuracy."""
    windows = tuple(found[0][1] for found in choices)
    accuracy = questions.ask(windows[:-1], windows[-1:], 0.0)[0]
    if accuracy != exact:
        hint = "measure the magnitudes on the data that `evaluate` uses, or spare more bits"
        raise ConfigError(f"eco's windows change the score from {exact} to {accuracy}", where="eco", hint=hint)
    return Full(windows, sum((found[0][0] for found in choices), Fraction(0)), accuracy, accuracy)


def _tried(group: Group, widths: Sequence[int] | None, reach: int, objective: Objective) -> Choices:
    """The windows that a budget search tries for a group, with their prices."""
    if type(reach) is not int or reach < 0:
        raise ConfigError(f"reach is {reach!r}", where="reach", hint="an integer from 0")
    for w in widths or ():
        if type(w) is not int or not 0 <= w <= 64:
            raise ConfigError(f"a window of {w!r} bits", where="widths", hint="integers from 0 to 64")
    windows = group.windows(widths, reach, objective.least_width)
    if not windows:
        hint = f"add a number from {objective.least_width} to {group.top}, or 0 for an identity"
        raise ConfigError("none of the widths fits", where=f"group {group.name}", hint=hint)
    return [(objective.total(group.layers, window), window) for window in windows]


def _checked_budget(budget: float | Fraction, choices: Sequence[Choices], objective: Objective) -> Fraction:
    """The budget as a rational. ConfigError if it is none, or less than everything costs."""
    if isinstance(budget, bool) or not 0 <= budget < float("inf"):
        raise ConfigError(f"a budget of {budget!r}", where="budget", hint=f"{objective.unit}, 0 or more")
    least = sum((min(found)[0] for found in choices), Fraction(0))
    if Fraction(budget) < least:
        what = f"no assignment meets a budget of {float(budget):g} {objective.unit}: the least is {float(least):g}"
        raise ConfigError(what, where="budget", hint="allow a larger budget, or narrower windows")
    return Fraction(budget)


def _progress(tree: Tree, questions: Questions) -> Progress:
    best = tree.best
    return Progress(
        tree.nodes, questions.evaluations, best and best.accuracy, None if best is None else float(best.price)
    )


def _fingerprint(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
