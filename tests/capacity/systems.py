"""Random systems, loads and draws, for comparisons of engines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hummingbird.capacity.system import Draws, Load, System
from hummingbird.errors import ConfigError


def random_case(seed: int, *, requests: int = 40, runs: int = 2, plain: bool = False) -> tuple[System, Load, Draws]:
    """A system near its limit with any of the mechanisms but batches; plain: without replicas."""
    rng = np.random.default_rng(seed)

    def chance(p: float) -> bool:
        return bool(rng.random() < p)

    while True:
        tokens = [None, 0, int(rng.integers(1, 9))][int(rng.choice(3, p=[0.15, 0.15, 0.7]))]
        system = System(
            slots=int(rng.integers(1, 4)),
            workers=int(rng.integers(1, 5)),
            tokens=tokens,
            stored=int(rng.integers(0, (tokens or 0) + 1)),
            per_refill=int(rng.integers(1, 4)),
            per_request=int(rng.integers(1, 3)),
            queue=int(rng.integers(0, 5)) if chance(0.3) else None,
            replicas=1 if plain or chance(0.7) else int(rng.integers(2, 4)),
            kept=False,
        )
        if system.replicas > 1 and chance(0.7):
            choices = int(rng.integers(1, system.replicas + 1))
            system = replace(system, choices=choices, slow=float(rng.choice([1.0, 3.0])))
        if chance(0.15):
            system = System(**{**vars(system), "slots": 1, "kept": True})
        shape = (runs, requests)
        size = rng.integers(1, 4, shape) if chance(0.4) else None
        load_rate = rng.uniform(0.3, 1.5) * system.slots * system.replicas / 1.5
        users = int(rng.integers(1, 8)) if chance(0.3) else 0
        think = rng.exponential(1.0, (runs, users + requests)) if users else None
        due = None if users else np.cumsum(rng.exponential(1 / load_rate, shape), axis=1)
        patience = rng.exponential(2.0, shape) if chance(0.3) else None
        first = None if users else rng.random(shape) < 0.3
        load = Load(due=due, think=think, users=users, size=size, patience=patience, first=first)
        rows = runs * system.replicas
        session = rng.gamma(2.0, 0.2, shape) if chance(0.3) else None
        refill = rng.gamma(2.0, 0.3 * system.per_refill, (rows, 50)) if tokens is not None else None
        picks = None
        if system.choices is not None:
            picks = np.argsort(rng.random((*shape, system.replicas)), -1)[..., : system.choices]
        draws = Draws(rng.gamma(2.0, 0.5, shape), refill, session, picks)
        try:
            system.check_tokens(system.per_request * load.sizes())
        except ConfigError:  # the store is too small for the requests: another one
            continue
        return system, load, draws


def random_batches(seed: int, *, requests: int = 40, runs: int = 2) -> tuple[System, Load, Draws]:
    """A system near its limit that serves several requests as one."""
    rng = np.random.default_rng(seed)
    slots, batch = int(rng.integers(1, 4)), int(rng.integers(2, 6))
    tokens = [None, 0, 40][int(rng.choice(3))]
    system = System(
        slots=slots,
        workers=int(rng.integers(1, 5)),
        tokens=tokens,
        stored=int(rng.integers(0, (tokens or 0) + 1)),
        per_refill=int(rng.integers(1, 4)),
        batch=batch,
        hold=float(rng.choice([0.0, rng.exponential(1.0)])),
        each=float(rng.choice([0.0, 0.2])),
    )
    shape = (runs, requests)
    rate = rng.uniform(0.3, 1.5) * slots * batch / 1.5
    due = np.cumsum(rng.exponential(1 / rate, shape), axis=1)
    size = rng.integers(1, 4, shape) if rng.random() < 0.4 else None
    refill = rng.gamma(2.0, 0.3 * system.per_refill, (runs, 50)) if tokens is not None else None
    return system, Load(due=due, size=size), Draws(rng.gamma(2.0, 0.5, shape), refill)
