"""The random nets of tests/fuzz/make.py for two parties without a dealer: the aim "pair", public and private weights.

The parties' material is a dealer's, as tests/mpc/pair shows that two parties make the same. What they cannot make is
refused as the net is priced.
"""

from __future__ import annotations

from tests.fuzz import make, run


def recipe(number: int) -> make.Recipe:
    """Net number `number`, the same whenever and wherever it is made."""
    made = make.recipe(number)
    made.aim, made.parties = "pair", 2
    if isinstance(made.weights, int):
        made.weights %= 2
    return made


def judge(number: int) -> run.Result:
    return run.judged(recipe(number))


def details(number: int) -> str:
    return run.shown(recipe(number), judge(number))
