"""Random recurrent nets: a layer, cells in a loop or packed sequences, before and between other operations.

python -m tests.fuzz.nets --recurrent --nets 100
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.fuzz import run
from tests.fuzz.draw import Draw, Impossible
from tests.fuzz.grammar import KINDS as GRAMMAR
from tests.fuzz.make import TRIES, Growing, Recipe

_VALUES = 300  # of a sequence: seconds, not minutes


def _sequence(d: Draw) -> None:
    d.need(len(d.shape) == 3 and d.numel <= _VALUES and d.shape[1] <= 12)


def _made(d: Draw, kind: str, features: int, **options: object) -> str:
    """A new recurrent module, by its name; its weights keep the gates' sums below 16 or so."""
    if kind.startswith("RNN") and d.chance(0.4):
        options["nonlinearity"] = "relu"
    hidden = d.rng.choice((1, 3, 4))
    if kind == "LSTM" and hidden > 1 and d.chance(0.3):
        options["proj_size"] = d.rng.randint(1, hidden - 1)
    text = "".join(f", {name}={value!r}" for name, value in {"bias": d.chance(0.7), **options}.items())
    gain = min(0.5, 4 / (d.size * features**0.5))
    return d.module(f"nn.{kind}({features}, {hidden}{text})", gain).removesuffix("({x})")


def _layer(d: Draw, **options: object) -> tuple[str, str]:
    kind = d.pick("LSTM", "GRU", "RNN")
    options |= {"num_layers": d.rng.choice((1, 1, 2)), "bidirectional": d.chance(0.4)}
    return kind, _made(d, kind, d.shape[2], **options)


def layer(d: Draw) -> str:
    """All states of a layer."""
    _sequence(d)
    if d.chance(0.5):
        return f"{_layer(d, batch_first=True)[1]}({{x}})[0]"
    return f"{_layer(d)[1]}({{x}}.transpose(0, 1))[0].transpose(0, 1)"


def last(d: Draw) -> str:
    """The last states of a layer, h or c."""
    _sequence(d)
    kind, made = _layer(d, batch_first=True)
    return f"{made}({{x}})[1]{f'[{d.rng.randint(0, 1)}]' if kind == 'LSTM' else ''}.transpose(0, 1)"


def cells(d: Draw) -> str:
    """A cell in a loop."""
    _sequence(d)
    return f"by_hand({_made(d, d.pick('LSTMCell', 'GRUCell', 'RNNCell'), d.shape[2])}, {{x}})"


def packed(d: Draw) -> str:
    """A layer on sequences of lengths that the net's code has."""
    _sequence(d)
    lengths = [d.rng.randint(1, d.shape[1]) for _ in range(d.shape[0])]
    return f"on_packed({_layer(d, batch_first=True)[1]}, {{x}}, {lengths})"


FORMS: dict[str, Callable[[Draw], str]] = {"layer": layer, "last": last, "cells": cells, "packed": packed}
_OTHERS = "linear relu add cat stack transpose mean getitem tanh scale".split()
KINDS: dict[str, Callable[[Draw], str]] = FORMS | {kind: GRAMMAR[kind] for kind in _OTHERS}


def recipe(number: int) -> Recipe:
    """Net number `number`, the same whenever and wherever it is made: every form, each first in its turn."""
    rng = random.Random(f"recurrent {number}")
    for _ in range(TRIES):
        made = Recipe(number, example=True)
        growing = Growing(rng, made, kinds=KINDS, highest=64.0, most=8.0, scale=(-1, 0.5))
        try:
            growing.grow([*FORMS][number % len(FORMS)])
        except Impossible:
            continue
        for kind in rng.choices([*KINDS], k=rng.randint(1, 3)):
            try:
                growing.grow(kind)
            except Impossible:
                continue
        break
    made.body.append(f"return x{len(made.kinds)}")
    made.protocol, made.parties = rng.choice(("masked", "masked", "masked", "gmw")), rng.choice((2, 2, 2, 3))
    made.weights = rng.randrange(made.parties) if rng.random() < 0.35 else "public"
    made.slices = 1 if rng.random() < 0.3 else None
    return made


def judge(number: int) -> run.Result:
    return run.judged(recipe(number), example=True)


def details(number: int) -> str:
    return run.shown(recipe(number), judge(number), example=True)
