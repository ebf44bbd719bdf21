"""`search_bits`: find windows for the groups of a net by asking an evaluator for scores.

no budget    HummingBird-eco: m = 0 and, per layer, the smallest k above all magnitudes, plus spare bits
a budget     HummingBird-b: the best of the assignments within the budget that were tried (budgeted.py)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from hummingbird import ranks
from hummingbird.bits import EXACT, BitConfig, BitWindow
from hummingbird.errors import ConfigError
from hummingbird.window_search.budgeted import Budgeted, Found
from hummingbird.window_search.evaluator import Evaluator, FunctionEvaluator, Journal, Progress, Questions, Score
from hummingbird.window_search.objective import Objective, bit_budget
from hummingbird.window_search.problem import ComparingLayer, Group, GroupWindows, check_groups, named
from hummingbird.window_search.rounding import Rounding


def search_bits(
    groups: Sequence[Group],
    evaluate: Evaluator | Callable[[BitConfig], float],
    budget: float | Fraction | None = None,
    *,
    objective: Objective | None = None,
    margin: float = 0.05,
    spare: int = 1,
    headroom: float = 0.25,
    reach: int = 2,
    widths: Sequence[int] | None = None,
    trials: int = 64,
    uniform: bool = False,
    accepts: Callable[[BitConfig], bool] | None = None,
    thrifty: bool = False,
    in_all: Callable[[BitConfig], int] | None = None,
    seed: int = 0,
    identity: str = "",
    provenance: Mapping[str, Any] | None = None,
    state: str | Path | None = None,
    before: float = 0.0,
    progress: Callable[[Progress], None] | None = None,
) -> BitConfig:
    """Find windows for every layer of `groups`; return the configuration.

    evaluate: a function that returns the accuracy with a config, or an `Evaluator`.
    budget: in units of `objective`, by default the fraction of all bits that is kept (8 / 64). None: HummingBird-eco:
        windows from bit 0 up that hold all values, so that no sign is wrong.
    margin: how far the accuracy may fall below the exact net's; 0.05 is five points.
    spare: how many bits eco's windows have above the largest |x| seen.
    headroom: with a budget, by which fraction values may exceed the largest |x| seen; 0.25 is a quarter.
    reach: how many bits the upper end k may lie below the range seen, if the budget forces it down (budgeted.py).
    widths: allowed numbers of bits in the widest window of a group; None: any number, 0 included.
    trials: how many assignments of a level (problem.py) are tried in full, the most promising ones.
    uniform: find one window for all layers, the best of all k; headroom, reach and margin are ignored.
    accepts: returns whether the net can run a config; windows that it cannot run are not tried.
    thrifty: do not spend the rest of the budget; otherwise an assignment is widened with it before it is tried.
    in_all: returns, for a config, the bits of all parties and the dealer for an image; each group then also gets a q
        that reduces these bits (rounding.py). None: q = 0.
    seed, identity: the evaluator's seed, and a name of its net and data; recorded, and part of the identity of the
        search.
    state: a file of all answers. If it exists the search resumes from it: after a KeyboardInterrupt, which is passed
        on, or a kill, the result is the same as that of a search without a break.
    before: seconds spent before this call, to be counted in the search's time.
    provenance: stored in the config, together with objective, budget, cost, accuracies, evaluations, seconds and seed.
    progress: called with a `Progress` after every answer; without a budget only in the search for q.
    Raises ConfigError if no assignment meets budget and margin, if eco's windows change the accuracy, or if `state`
    belongs to another search; InputError for no layers, or accuracies outside [0, 1].

    >>> images = torch.rand(400, 4)
    >>> def agreement(config):
    ...     twin = hummingbird.simulate(net, config, seed=0)
    ...     return float((twin(images).argmax(1) == net(images).argmax(1)).float().mean())
    >>> groups = hummingbird.Study(net, images).groups
    >>> config = hummingbird.search_bits(groups, agreement, 8 / 64)
    >>> config.window("1").w <= 8, agreement(config) > 0.9
    (True, True)
    """
    layers = check_groups(groups)
    check_margin(margin)
    if not -1 < headroom <= 1024:
        raise ConfigError(f"a headroom of {headroom!r}", where="headroom", hint="a fraction: 0.25 for a quarter more")
    for what, value, least in (("reach", reach, 0), ("trials", trials, 1)):
        if type(value) is not int or value < least:
            raise ConfigError(f"{what} is {value!r}", where=what, hint=f"an integer from {least}")
    for w in widths or ():
        if type(w) is not int or not 0 <= w <= 64:
            raise ConfigError(f"a window of {w!r} bits", where="widths", hint="integers from 0 to 64")
    objective, eco = objective or bit_budget(layers), budget is None
    together = [Group("all", tuple(layers))] if uniform else groups  # the layers that share a q
    if eco:
        groups = [Group(layer.name, (layer,)) for layer in layers]
        choices = [[_eco(layer, spare)] for layer in layers]
    else:
        choices = [_tried(group, widths, headroom, reach, objective) for group in groups]
    limit = Fraction(0) if budget is None else _checked_budget(budget, groups, choices, objective)
    facts = {
        "groups": [[group.name, [_told(layer) for layer in group.layers]] for group in groups],
        "choices": [[str(choice) for choice in found] for found in choices],
        "objective": [objective.name, dict(objective.facts)],
        "budget": None if eco else str(limit),
        "options": [margin, headroom, reach, trials, uniform, thrifty, in_all is not None, seed, identity],
    }
    ranks.agree(lambda: facts)
    evaluator = evaluate if isinstance(evaluate, Evaluator) else FunctionEvaluator(evaluate)
    journal = Journal(state, _fingerprint(facts), before)
    questions = Questions([layer.name for layer in layers], evaluator, journal)
    exact = questions.full({})
    told: dict[str, Any]

    def runs(windows: Mapping[str, BitWindow]) -> bool:
        return accepts is None or accepts(questions.config(windows))

    if eco:
        found, held = _verified(groups, choices, questions, objective, exact), exact
        told = {"how": "HummingBird-eco", "spare_bits": spare}
    else:
        search = Budgeted(
            groups, choices, objective, limit, questions, runs, exact, trials, margin, headroom, reach, widths, thrifty
        )
        if progress is not None:
            questions.watch = lambda: progress(_progress(questions, search.best))
        found = _only(search.best_uniform(), limit, objective) if uniform else search.search()
        questions.watch()
        held = found.score if uniform else search.held
        told = {
            "how": "uniform" if uniform else "HummingBird-b",
            "margin": margin,
            "headroom": headroom,
            "thrifty": thrifty,
            "uniform": None if search.uniform is None else _uniform(search.uniform),
        }
    if in_all is not None:
        bits = in_all
        rounding = Rounding(
            together, found, objective, questions, lambda windows: bits(questions.config(windows)), runs, held
        )
        if progress is not None:
            questions.watch = lambda: progress(_progress(questions, rounding.found))
        plain, found = found, rounding.search()
        told["rounding"] = _rounding(together, plain, found, rounding.in_all)
    return BitConfig(
        EXACT,
        found.windows,
        {
            **(provenance or {}),
            "objective": {"name": objective.name, "unit": objective.unit, **objective.facts},
            "budget": None if eco else float(limit),
            "cost": float(found.price),
            "accuracy": found.score.answers,
            "exact_accuracy": exact.answers,
            "score": found.score.fine,
            **told,
            "evaluations": questions.evaluations,
            "seconds": round(journal.seconds, 3),
            "seed": seed,
        },
    )


def check_margin(margin: object) -> None:
    """Raise ConfigError unless a margin is a proportion of answers, from 0 to 1."""
    if isinstance(margin, bool) or not isinstance(margin, (int, float)) or not 0 <= margin <= 1:
        raise ConfigError(f"an accuracy margin of {margin!r}", where="margin", hint="a fraction: 0.05 for five points")


def _eco(layer: ComparingLayer, spare: int) -> GroupWindows:
    """Return the window [k:0) that a layer gets without a budget (eco): it holds all values seen, so that no sign is
    wrong.

    It holds |x| < 2^(k-1) - 1. spare: how many bits k has more than the largest |x| seen needs. Raises ConfigError for
    a wrong `spare`, and if the layer's shares are too short for k.
    """
    if type(spare) is not int or spare < 0:
        raise ConfigError(f"{spare!r} bits to spare", where="spare", hint="an integer from 0")
    k = (layer.largest + 1).bit_length() + 1 + spare
    if k > layer.limit:
        what = f"a magnitude of {layer.largest / 2**16:g} takes k = {k}, but the shares allow {layer.limit}"
        raise ConfigError(what, where=layer.name, hint="spare fewer bits, or scale the net's weights down")
    return GroupWindows((BitWindow(k, 0),), 0, 0)


def _verified(
    groups: Sequence[Group],
    choices: Sequence[Sequence[GroupWindows]],
    questions: Questions,
    objective: Objective,
    exact: Score,
) -> Found:
    """Return eco's windows with price and score, after a run on all images has shown that they change no answer.

    choices: for each group its single choice, which holds all values seen. exact: the score without windows. Raises
    ConfigError if the windows change the proportion of right answers.
    """
    chosen = [choice for (choice,) in choices]
    windows = named(groups, chosen)
    score = questions.full(windows)
    if score.answers != exact.answers:
        hint = "measure the magnitudes on the data that `evaluate` uses, or spare more bits"
        what = f"eco's windows change the score from {exact.answers} to {score.answers}"
        raise ConfigError(what, where="eco", hint=hint)
    pairs = zip(groups, chosen, strict=True)
    price = sum((objective.total(group.layers, choice.windows) for group, choice in pairs), Fraction(0))
    return Found(windows, price, score)


def _only(found: Found | None, budget: Fraction, objective: Objective) -> Found:
    """Return `found`, the best uniform window (one for all layers); raise ConfigError if it is None.

    It is None if the budget allows no uniform window.
    """
    if found is None:
        what = f"no uniform window meets a budget of {float(budget):g} {objective.unit}"
        raise ConfigError(what, where="budget", hint="allow a larger budget")
    return found


def _uniform(found: Found) -> dict[str, int | float]:
    """Return what a config's provenance records of the best uniform window, one for all layers.

    It is a dict with k and m, the proportion of right answers ("accuracy") and the finer score ("score").
    """
    window = next(iter(found.windows.values()))
    return {"k": window.k, "m": window.m, "accuracy": found.score.answers, "score": found.score.fine}


def _rounding(
    groups: Sequence[Group], plain: Found, found: Found, in_all: Callable[[Mapping[str, BitWindow]], int]
) -> dict[str, Any]:
    """Return what a config's provenance records of the search for q, the number of fraction bits that results drop.

    It is a dict with the q of every group, the bytes that all parties and the dealer send with these q and with q = 0,
    and the score with q = 0. plain: the windows with q = 0, and their score. found: the windows with the chosen q.
    in_all: a function from windows, by layer name, to the bits that all parties and the dealer send.
    """
    return {
        "q": {group.name: max(found.windows[layer.name].q for layer in group.layers) for group in groups},
        "bytes_in_all": in_all(found.windows) / 8,
        "bytes_in_all_without": in_all(plain.windows) / 8,
        "kept_without": plain.score.answers,
        "score_without": plain.score.fine,
    }


def _tried(
    group: Group, widths: Sequence[int] | None, headroom: float, reach: int, objective: Objective
) -> list[GroupWindows]:
    """Return the choices of windows for a group that are worth a trial; raise ConfigError if there is none.

    widths: allowed numbers of bits in the widest window; None: any number. headroom: by which fraction values may
    exceed the largest |x| seen. reach: how many bits k may lie below the range seen. objective: has the least width of
    a window.
    """
    found = group.choices(widths, headroom, reach, objective.least_width)
    if not found:
        hint = f"add a number from {objective.least_width} upwards, or 0 for an identity"
        raise ConfigError("none of the widths fits", where=f"group {group.name}", hint=hint)
    return found


def _checked_budget(
    budget: float | Fraction, groups: Sequence[Group], choices: Sequence[Sequence[GroupWindows]], objective: Objective
) -> Fraction:
    """Return the budget as a fraction, after a check.

    choices: for each group, the windows that are worth a trial. Raises ConfigError for no valid number, and for a
    budget below the cheapest assignment: the sum over groups of the lowest price that `objective` gives to a choice.
    """
    if isinstance(budget, bool) or not isinstance(budget, (int, float, Fraction)) or not 0 <= budget < float("inf"):
        raise ConfigError(f"a budget of {budget!r}", where="budget", hint=f"{objective.unit}, 0 or more")
    if objective.name == "bits" and budget > 1:
        hint = "a fraction of 64 bits: 8/64 keeps 8 of them"
        raise ConfigError(f"a budget of {budget} is more than all bits", where="budget", hint=hint)
    least = sum(
        (
            min(objective.total(group.layers, choice.windows) for choice in found)
            for group, found in zip(groups, choices, strict=True)
        ),
        Fraction(0),
    )
    if Fraction(budget) < least:
        what = f"no assignment meets a budget of {float(budget):g} {objective.unit}: the least is {float(least):g}"
        raise ConfigError(what, where="budget", hint="allow a larger budget, or narrower windows")
    return Fraction(budget)


def _progress(questions: Questions, best: Found | None) -> Progress:
    return Progress(questions.evaluations, best and best.score.answers, None if best is None else float(best.price))


def _told(layer: ComparingLayer) -> list[str | int]:
    return [layer.name, layer.outputs, layer.largest, layer.limit]


def _fingerprint(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
