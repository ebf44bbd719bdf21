"""The event engine: against the recurrence where nothing is shared, and closed forms and hand counts where it is."""

from __future__ import annotations

import numpy as np

from hummingbird.capacity import events, recurrence
from hummingbird.capacity.service import Compute, Host, Phase, Rounds, Send, Service, Step, chain
from hummingbird.capacity.system import Draws, Load, System
from tests.capacity.systems import random_case
from tests.capacity.test_recurrence import near

DIAMOND = Phase(
    (
        Step("ask", Rounds(2)),
        Step("left", Compute("server", 3.0, width=4), ("ask",)),
        Step("right", Send("client", "server", 40.0), ("ask",)),
        Step("join", Compute("client", 0.5), ("left", "right")),
    )
)


def wide(system: System) -> Service:
    """A service whose hosts and links nobody shares: as many cores and as many bits as all phases together use."""
    many = 1000
    hosts = {"client": Host(cores=many, up=3e4), "server": Host(cores=many, store=100, down=100.0)}
    return Service(
        "wide",
        hosts,
        request=chain(("think", Compute("server", 1.0)), ("send", Rounds(0.5))),
        refill=Phase((Step("a", Compute("client", 0.5)), Step("b", Compute("server", 2.0, width=3)))),
        session=chain(("setup", Compute("client", 1.0))),
        token_bytes={"server": 1},
        refill_tokens=system.per_refill,
        request_tokens=system.per_request,
        rtt=0.3,
    )


def seconds_of(service: Service, load: Load, factors: Draws) -> Draws:
    def of(phase: Phase, values: np.ndarray) -> np.ndarray:
        return np.vectorize(lambda factor: service.seconds(phase, factor))(values)

    session = None if factors.session is None else of(service.session, factors.session)
    refill = None if factors.refill is None else of(service.refill, factors.refill)
    return Draws(of(service.request, factors.request) * load.sizes(), refill, session)


def test_it_agrees_with_the_recurrence_where_nothing_is_shared() -> None:
    for seed in range(1000, 1150):
        system, load, factors = random_case(seed, plain=True)
        service = wide(system)
        wanted = recurrence.simulate(system, load, seconds_of(service, load, factors))
        got = events.simulate(service, system, load, factors)
        assert (got.fate == wanted.fate).all(), (seed, system)
        for name in ("arrived", "began", "went", "left"):
            near(getattr(got, name), getattr(wanted, name), f"{name} of {seed}: {system}")
