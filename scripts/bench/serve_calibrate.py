"""Seconds of a service on this host, for a plan: of a lone request, between answers where requests wait, of a refill.

A request's latency when nothing else is asked is more than the seconds for which it keeps others waiting: clients and
parties take requests apart and put answers together while other requests compute. So both are measured. Two that wait
are computed in turns, in less time than one after the other. A keeper that deals on the same cores makes all longer.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from hummingbird.capacity.profile import Measurement, Profile
from hummingbird.capacity.service import Compute, Host, Phase, Rounds, Service, WorkStep
from hummingbird.errors import ConfigError
from scripts.bench.serve_offered import ask_alone
from scripts.bench.serve_watched import Watched

KIND = "serve"
_WARM, _WAITING, _SETTLED = 5, 6, 0.1
_IDLE = 3.0  # seconds without a request before a lone one, in those of a busy one: as at a third of the largest rate
_PARTIES = 2  # or servers
_ROOM = 6  # sets for which there is room one after another


@dataclass(frozen=True)
class Calibrated:
    """Samples of a service. alone: seconds of requests that find no other, as a client sees them. inside: those of them
    from the request's place in the line to its answer. busy: seconds from one answer to the next while requests wait.
    cores: core-seconds of parties and client for a request meanwhile. refill: seconds from room in a kept store to the
    set that fills it, `deal` of them the keeper's; () without one.
    """

    alone: tuple[float, ...]
    inside: tuple[float, ...]
    busy: tuple[float, ...]
    cores: float
    refill: tuple[float, ...] = ()
    deal: tuple[float, ...] = ()

    def beside(self, plan: Service) -> float:
        """Seconds of a lone request's latency that are not in the service's plan: before the line, after the answer."""
        return max(0.0, statistics.median(self.alone) - plan.seconds(plan.request))

    def row(self, name: str) -> Measurement:
        """The row of a profile."""
        seconds = {"alone": self.alone, "inside": self.inside, "busy": self.busy, "cores": (self.cores,)}
        dealt = {"refill": self.refill, "deal": self.deal} if self.refill else {}
        return Measurement(KIND, name, "", {"requests": 1.0}, seconds | dealt)

    @classmethod
    def joined(cls, parts: Sequence[Calibrated]) -> Calibrated:
        """The samples of all parts."""
        cores = statistics.median(part.cores for part in parts)
        alone, inside, busy, refill, deal = (
            sum((getattr(part, name) for part in parts), ()) for name in ("alone", "inside", "busy", "refill", "deal")
        )
        return cls(alone, inside, busy, cores, refill, deal)

    @classmethod
    def of(cls, profile: Profile, name: str) -> Calibrated:
        """The samples of a profile; ConfigError where it has none."""
        for row in profile.rows:
            if (row.kind, row.name) == (KIND, name):
                seconds = row.seconds
                dealt = seconds.get("refill", ()), seconds.get("deal", ())
                return cls(seconds["alone"], seconds["inside"], seconds["busy"], seconds["cores"][0], *dealt)
        hint = "python -m scripts.tools.calibrate --only serve --json profile.json measures it"
        raise ConfigError(f"no measurements of a service: {name}", where="profile", hint=hint)

    def drift(self, other: Calibrated) -> float:
        """The larger relative difference of the two in lone requests and in busy ones."""
        pairs = ((self.alone, other.alone), (self.busy, other.busy))
        return max(abs(statistics.median(after) / statistics.median(before) - 1) for before, after in pairs)

    def at_pace(self, now: Sequence[Calibrated]) -> Calibrated:
        """These samples, slower or faster as short calibrations `now` say."""

        def scaled(samples: tuple[float, ...], others: list[tuple[float, ...]]) -> tuple[float, ...]:
            if not samples or not all(others):
                return samples
            pace = statistics.fmean(statistics.median(other) for other in others) / statistics.median(samples)
            return tuple(pace * sample for sample in samples)

        return Calibrated(
            scaled(self.alone, [each.alone for each in now]),
            scaled(self.inside, [each.inside for each in now]),
            scaled(self.busy, [each.busy for each in now]),
            scaled((self.cores,), [(each.cores,) for each in now])[0],
            scaled(self.refill, [each.refill for each in now]),
            scaled(self.deal, [each.deal for each in now]),
        )

    def service(self, name: str, kept: int, cores: int, keepers: int = 1, at_once: int = 1) -> Service:
        """The service as data, on a host of `cores` cores: a core for each party, which those of two share with the
        keeper of `kept` slots, and with others, who deal as much in the same time for other stores.

        at_once: requests that are computed in turns where so many wait: that many times the seconds of `busy`. One that
        begins alone goes on alone, for the seconds of `inside`. Each party is taken to compute all of the time: where
        it waits for a link, cores are left for a keeper, of whose work a part only is in the way, as large as that of
        the cores that the parties use. kept: 0 for material for all.
        """
        mean, shared = statistics.fmean(self.busy), min(cores, _PARTIES)
        lone = min(statistics.fmean(self.inside), at_once * mean) if at_once > 1 else mean
        # On one core both take turns, and are one step.
        parties = tuple(WorkStep(f"party {rank}", Compute("host", lone)) for rank in range(shared))
        hosts, refill = {"host": Host(cores=shared, store=kept)}, None
        if kept:
            keeper, used = ("host", min(1.0, self.cores / (shared * mean))) if cores <= _PARTIES else ("keeper", 1.0)
            hosts |= {} if keeper in hosts else {keeper: Host(cores=cores - _PARTIES)}
            dealing = used * statistics.median(self.deal)
            beside = Rounds(max(0.0, statistics.median(self.refill) - dealing))
            deals = (WorkStep(f"deal {number}", Compute(keeper, dealing), ("beside",)) for number in range(keepers))
            refill = Phase((WorkStep("beside", beside), *deals))
        return Service(
            name=name,
            hosts=hosts,
            request=Phase(parties, tuple(sample / mean for sample in self.busy)),
            refill=refill,
            token_bytes={"host": 1} if kept else {},
            batch=at_once,
            each=(at_once * mean - lone) / max(1, at_once - 1),
            rtt=2.0,  # a round is a second
        )


def calibrate(service: Watched, samples: int) -> Calibrated:
    """Measure a service with `samples` lone requests, and twice as many while others wait.

    A lone one comes at a random time after the last answer: what a client meets there differs from what it meets in
    requests that follow each other at once (caches and sleeping cores, other clients' requests).
    """
    refill = service.refill(_ROOM)  # first: a keeper of a large store looks seldom
    busy = _WARM + 2 * samples
    deal = service.fill(busy + samples + service.kept)
    service.times()
    before = service.core_seconds + time.process_time()
    with ThreadPoolExecutor(_WAITING) as pool:
        list(pool.map(service.ask, range(busy)))
    time.sleep(_SETTLED)
    spent = service.core_seconds + time.process_time() - before
    ends = service.times()[_WARM - 2 :, 2]
    between = (ends[2:] - ends[:-2]) / 2  # two are under way at a time, and may end together
    idle = np.random.default_rng(busy).exponential(_IDLE * float(between.mean()), samples)
    alone = ask_alone(service, idle)
    time.sleep(_SETTLED)
    lined, _, done = service.times().T
    return Calibrated(
        tuple(alone.tolist()),
        tuple((done - lined).tolist()),
        tuple(between.tolist()),
        spent / busy,
        refill,
        deal if refill else (),
    )
