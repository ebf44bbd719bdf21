"""The figures of a simulation: latency and its parts, rejected requests, utilisation, money; and their statistics."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from hummingbird.capacity.arrivals import Arrivals, Trace
from hummingbird.capacity.limit import Limit, Resource, asked, binding, capacity_of
from hummingbird.capacity.service import Service
from hummingbird.capacity.system import GAVE_UP, REJECTED, Floats, Load, LoadOutcome, System, transits
from hummingbird.errors import ConfigError
from hummingbird.table import Report, text_table

# Statistics of runs: the beginning of the steady state, quantiles, confidence intervals, growth -----------------------
#
# Warm-up: MSER-5 (K. P. White, "An effective truncation heuristic for bias reduction in simulation output", Simulation
# 1997) on the mean over runs: of means of five requests each, leave out the first d, at most half, for which the
# standard error of the others is least. Quantiles are those of all runs' requests together, since a mean of the runs'
# quantiles is biased low. Intervals: sectioning (S. Asmussen and P. Glynn, "Stochastic Simulation", 2007, section
# III.5), Student's t with the spread of ten sections about the pooled value. A quantile q needs n requests with 1 - q^n
# >= 0.99: 459 for p99.

BATCH = 5
SECTIONS = 10
LIKELY = 0.99  # probability that the largest of the requests is above the quantile


class Interval(NamedTuple):
    """An estimate with the bounds of its 95 % confidence interval."""

    value: float
    low: float
    high: float


def warm_up(series: Floats) -> int:
    """Choose how many requests at the beginning of every run to leave out, because the steady state begins after them.

    series: one value for each request, such as its latency, (runs, requests); NaN for no value. The result is 0 for
    fewer than 20 requests in a run.
    """
    count = np.isfinite(series).sum(0)
    total = np.where(np.isfinite(series), series, 0.0).sum(0)
    whole = series.shape[1] // BATCH * BATCH
    counts, totals = count[:whole].reshape(-1, BATCH).sum(1), total[:whole].reshape(-1, BATCH).sum(1)
    places = np.flatnonzero(counts)  # batches of five with a served request
    means = totals[places] / counts[places]
    if len(means) < 4:
        return 0
    left = np.arange(len(means), 0, -1)
    centred = means - means.mean()
    tail, squares = np.cumsum(centred[::-1])[::-1], np.cumsum(centred[::-1] ** 2)[::-1]
    error = (squares - tail**2 / left) / left**2
    return int(places[error[: len(means) // 2 + 1].argmin()]) * BATCH


def student(degrees: int) -> float:
    """Compute the 97.5 % quantile of Student's t distribution with this number of degrees of freedom.

    It is right within 0.001 from 4 degrees of freedom on (Abramowitz and Stegun, 26.7.5).
    """
    z, v = statistics.NormalDist().inv_cdf(0.975), degrees
    g1, g2 = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    g3 = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    g4 = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160
    return z + g1 / v + g2 / v**2 + g3 / v**3 + g4 / v**4


def sections(values: Floats) -> list[Floats]:
    """Divide values (runs, requests) into sections that are nearly independent of each other, for confidence intervals.

    A section has the values of a group of runs or, if there are fewer than ten runs, of consecutive requests of one
    run. NaN is left out, and so are sections without a value.
    """
    runs = len(values)
    parts = np.array_split(values, min(runs, SECTIONS))
    if runs < SECTIONS:
        parts = [cut for run in parts for cut in np.array_split(run, math.ceil(SECTIONS / runs), axis=1)]
    return [found for part in parts if (found := part[np.isfinite(part)]).size]


def estimate(values: Floats, of: Callable[[Floats], float]) -> Interval:
    """Estimate a figure, such as a mean, from values (runs, requests), with its 95 % confidence interval.

    NaN values are left out. of: computes the figure from an array of values. The estimate is the figure of all values.
    The width of the interval follows from how much the figures of the parts made by `sections` differ. If all of them
    are above 0, their logarithms are compared, because errors of a queue are factors. Without any value the estimate is
    NaN; with fewer than five parts the interval is NaN.
    """
    parts = sections(values)
    if not parts:
        return Interval(math.nan, math.nan, math.nan)
    value, values_of = of(np.concatenate(parts)), [of(part) for part in parts]
    if len(parts) < 5:
        return Interval(value, math.nan, math.nan)
    scale = min(value, *values_of) > 0
    errors = [math.log(part / value) if scale else part - value for part in values_of]
    spread = math.fsum(error**2 for error in errors) / (len(parts) - 1)
    half = student(len(parts) - 1) * math.sqrt(spread / len(parts))
    low, high = (value / math.exp(half), value * math.exp(half)) if scale else (value - half, value + half)
    return Interval(value, low, high)


def mean(values: Floats) -> Interval:
    """Estimate the mean of values (runs, requests), without those that are NaN; returns it with its confidence
    interval.
    """
    return estimate(values, lambda part: float(part.mean()))


def least_requests(q: float) -> int:
    """Return how many requests must be served to estimate the quantile q of their latency. q: above 0, below 1."""
    return math.ceil(math.log(1 - LIKELY) / math.log(q))


def quantile(values: Floats, q: float) -> Interval:
    """Estimate the quantile q of values (runs, requests), without those that are NaN; returns it with its interval.

    q: above 0, below 1. Raises ConfigError for fewer values than `least_requests(q)`.
    """
    if not 0 < q < 1:
        raise ConfigError(f"{q!r} is no quantile", where="q", hint="between 0 and 1: 0.99")
    count, least = int(np.isfinite(values).sum()), least_requests(q)
    if count < least:
        what = f"the quantile {q:g} of {count} requests"
        raise ConfigError(what, where="requests", hint=f"simulate {least} requests at least, after the warm-up")
    return estimate(values, lambda part: float(np.quantile(part, q)))


def growth(outcome: LoadOutcome) -> Interval:
    """Estimate how much the latency grows in the later half of every run, in seconds per second, with its interval.

    The growth is positive if more requests arrive than can be served.
    """
    half = outcome.arrived.shape[1] // 2
    arrived, latency = outcome.arrived[:, half:], outcome.latency[:, half:]
    slopes = [_slope(x[np.isfinite(y)], y[np.isfinite(y)]) for x, y in zip(arrived, latency, strict=True)]
    return mean(np.array(slopes)[:, None])


def _slope(x: Floats, y: Floats) -> float:
    if len(x) < 2 or not np.ptp(x):
        return math.nan
    centred = x - x.mean()
    return float(centred @ y / (centred @ centred))


def little(outcome: LoadOutcome, cut: int = 0) -> float:
    """Compare a simulation with Little's law L = lambda W; returns L / (lambda W) - 1.

    All three are taken from request `cut` of each run on. L: the mean number of requests in the system, from the
    arrival of request `cut` to the arrival of the last. lambda: requests that arrive per second in this time. W: their
    mean time in the system. The result is about 0 in a steady state; negative if requests pile up, positive if there
    were more requests in the system at the start than later.
    """
    low, high = outcome.arrived[:, cut, None], outcome.arrived[:, -1:]
    there = (np.clip(outcome.left, low, high) - np.clip(outcome.arrived, low, high)).sum()
    came = (outcome.left - outcome.arrived)[:, cut:].sum()
    return float(there / came - 1) if came else 0.0


# Figures --------------------------------------------------------------------------------------------------------------

QUANTILES = (0.5, 0.95, 0.99)
RECURRENCE, EVENTS = "recurrence", "events"
_ASKED = 1.02  # demand over capacity of a core or link: up to this it is an effect of where the window begins and ends
_GROWS = 0.01  # seconds of latency per second above which growth is no chance


@dataclass(frozen=True)
class Result:
    """The outcome of a simulation and the figures computed from it, with the service, rules and load that were
    simulated.

    engine: "recurrence" or "events". why: the reason for this engine, in words. limits: upper bounds on the requests of
    the service per second; one arrival may bring several such requests.

    >>> phase = capacity.chain(("compute", capacity.Compute("server", 0.2)))
    >>> service = capacity.Service("one server", {"server": capacity.Host()}, request=phase)
    >>> result = capacity.run(service, None, capacity.poisson(2.5), runs=10, requests=1000)
    >>> result.limit.rate, result.quantile(0.99).value > result.quantile(0.5).value
    (5.0, True)
    """

    service: Service
    system: System
    arrivals: Arrivals
    load: Load
    outcome: LoadOutcome
    engine: str
    why: str
    limits: list[Limit]

    @property
    def limit(self) -> Limit:
        """The largest rate of arrivals that the service can serve, and its cause; from a formula, not from the
        simulation.

        After a run of the recurrence, limits of cores and links are left out: that engine does not model them.
        """
        least = binding(self.limits, self.service, shared=self.engine != RECURRENCE)
        return least._replace(rate=least.rate * self.system.replicas / float(self.load.sizes().mean()))

    @cached_property
    def growth(self) -> Interval:
        """Growth of the latency while a run goes on, in seconds per second, with its confidence interval."""
        return growth(self.outcome)

    @cached_property
    def overloaded(self) -> bool:
        """Whether more requests arrive than can be served: then there is no steady state, and so no quantile."""
        bounded = self.system.queue is not None or self.load.patience is not None or self.load.due is None
        if bounded or isinstance(self.arrivals, Trace):  # the number of requests that stay is bounded, or the load ends
            return False
        if self.arrivals.per_second() >= self.limit.rate:
            return True
        return self.arrivals.steady and self.growth.low > _GROWS

    @cached_property
    def cut(self) -> int:
        """Number of requests at the beginning of every run that the figures leave out, because the steady state begins
        later.

        It is 0 if there is no steady state.
        """
        return warm_up(self.outcome.latency) if self.arrivals.steady and not self.overloaded else 0

    def _steady(self, values: Floats) -> Floats:
        return np.where(self.outcome.served, values, math.nan)[:, self.cut :]

    def quantile(self, q: float) -> Interval:
        """Estimate the quantile q of the latency, in seconds.

        q: from 0 to 1. Raises ConfigError if more requests arrive than can be served, and for too few requests.
        """
        if self.overloaded:
            limit, rate = self.limit, self.arrivals.per_second()
            what = f"{rate:.4g} requests/s are above the limit of {limit.rate:.4g} ({limit.cause}): latency grows "
            hint = "fewer requests, or a service that serves more; a bounded queue turns the others away"
            raise ConfigError(
                f"{what}{self.growth.value:.3g} s per second, and has no quantiles", where="rate", hint=hint
            )
        return quantile(self._steady(self.outcome.latency), q)

    @cached_property
    def _came(self) -> Floats:
        """Times at which the requests reached the service: arrival plus transit, in seconds, (runs, requests)."""
        return self.outcome.arrived + transits(self.service, self.load)

    @cached_property
    def means(self) -> dict[str, Interval]:
        """Mean seconds of the latency and of its parts, by name, with confidence intervals.

        The parts are "wait" for a slot, "blocked" in the slot until the tokens are there, "transit", and the "online"
        phase.
        """
        o = self.outcome
        parts = {"latency": o.latency, "wait": o.began - self._came, "blocked": o.went - o.began}
        if self.service.transit is not None:
            parts["transit"] = np.where(o.served, self._came - o.arrived, np.nan)
        return {name: mean(self._steady(part)) for name, part in (parts | {"online": o.left - o.went}).items()}

    @cached_property
    def _window(self) -> tuple[Floats, Floats, Floats]:
        """When the first and the last counted request of each run reached the service, and the time between (or NaN).

        Three arrays (runs, 1), in seconds.
        """
        low, high = self._came[:, self.cut, None], self._came[:, -1:]
        return low, high, np.where(high > low, high - low, math.nan)

    def _inside(self, begin: Floats, end: Floats, weights: Floats | float = 1.0) -> float:
        """Compute how many of some intervals are open at a moment, on average over the counted time of each run.

        This time goes from the first to the last counted arrival. begin, end: where each interval begins and ends, in
        seconds, (runs, n); intervals with NaN are left out. weights: how much each interval counts.
        """
        low, high, length = self._window
        total = np.nansum(weights * (np.clip(end, low, high) - np.clip(begin, low, high)), axis=1, keepdims=True)
        return float((total / length).mean())

    @cached_property
    def levels(self) -> dict[str, float]:
        """Mean numbers of requests over time, by name: "waiting" for a slot, "in slots", and "blocked".

        A request is blocked while it is in a slot and waits for tokens. With a store, "stored" is the mean number of
        tokens in the store.
        """
        o, system = self.outcome, self.system
        waited = np.where(np.isnan(o.began), o.left, o.began)
        got = np.where(np.isnan(o.went), o.left, o.went)
        found = {
            "waiting": self._inside(self._came, waited),
            "in slots": self._inside(o.began, o.left),
            "blocked": self._inside(o.began, got),
        }
        if system.store:
            low, high, length = self._window
            made = high - np.clip(o.refilled.reshape(len(low), -1), low, high)
            taken = o.tokens * (high - np.clip(o.went, low, high))
            lasting = system.per_refill * made.sum(1, keepdims=True) - np.nansum(taken, axis=1, keepdims=True)
            found["stored"] = float(system.stored * system.replicas + (lasting / length).mean())
        return found

    @cached_property
    def shares(self) -> dict[str, float]:
        """The fractions of the counted requests that were "served", "rejected" because the queue was full, or "gave
        up".
        """
        fate = self.outcome.fate[:, self.cut :]
        names = {"served": 0, "rejected": REJECTED, "gave up": GAVE_UP}
        return {name: float((fate == number).mean()) for name, number in names.items()}

    @cached_property
    def goodput(self) -> float:
        """Number of requests served per second, averaged over the time from the first to the last counted arrival."""
        low, high, length = self._window
        done = self.outcome.served & (self.outcome.left > low) & (self.outcome.left <= high)
        return float((done.sum(1, keepdims=True) / length).mean())

    @cached_property
    def utilisation(self) -> dict[str, float]:
        """The fraction that is in use, on average: of all slots, and of each core and link, by name.

        A fraction is at most 1; `overcommitted` names the cores and links for which there is more demand.
        """
        return {name: min(1.0, part) for name, part in self._demand.items()}

    @cached_property
    def overcommitted(self) -> dict[str, float]:
        """Demand divided by capacity for each core and link for which this is above 1.02, by name.

        If there are any, latencies that the recurrence has computed are too small, as it lets no phases share cores and
        links.
        """
        return {name: part for name, part in self._demand.items() if part > _ASKED}

    @cached_property
    def _demand(self) -> dict[str, float]:
        service, slots = self.service, self._inside(self.outcome.began, self.outcome.left, self._parts)
        found = {"slots": slots / (self.system.slots * self.system.replicas)}
        rate = self.goodput * float(self.load.sizes().mean()) / self.system.replicas
        for (role, kind), amount in self.asked.items():
            if capacity_of(service, (role, kind)) < math.inf:
                found[f"{role} {kind}"] = rate * amount / capacity_of(service, (role, kind))
        return found

    @cached_property
    def asked(self) -> dict[Resource, float]:
        """Mean core-seconds and bits of every core and link that a request of the service uses, with the refills for
        it.

        A key is (host, "cores", "up" or "down").
        """
        return asked(self.service, self._together)

    @cached_property
    def _together(self) -> float:
        """Mean number of requests that were served as one batch."""
        return 1.0 if self.system.batch == 1 else float(1 / self._parts.mean())

    @cached_property
    def _parts(self) -> Floats:
        """For each request, 1 / (number of requests in its batch): (runs, requests).

        Requests that began at the same time are assumed to be in as few batches as can hold them.
        """
        found = np.ones(self.load.shape)
        for part, began in zip(found, self.outcome.began, strict=True) if self.system.batch > 1 else ():
            _, places, counts = np.unique(began, return_inverse=True, return_counts=True)
            part[:] = (np.ceil(counts / self.system.batch) / counts)[places]
        return found

    @cached_property
    def latencies(self) -> Floats:
        """Latencies, in seconds, of all served requests that are counted, ascending."""
        values = self._steady(self.outcome.latency)
        return np.sort(values[np.isfinite(values)])

    @cached_property
    def estimates(self) -> dict[str, Interval]:
        """Estimates of the mean latency, the means of its parts, and quantiles of the latency, with confidence
        intervals.

        The keys are "latency_mean", "wait_mean" and so on, "p50", "p95" and "p99"; a quantile for which there are too
        few requests is left out. If more requests arrive than can be served, the only key is "growth".
        """
        if self.overloaded:
            return {"growth": self.growth}
        count = int(np.isfinite(self._steady(self.outcome.latency)).sum())
        known = [q for q in QUANTILES if count >= least_requests(q)]
        means = {f"{name}_mean": value for name, value in self.means.items()}
        return means | {f"p{100 * q:g}": self.quantile(q) for q in known}

    def figures(self) -> dict[str, Any]:
        """Return all figures by name, ready for JSON, in seconds, requests per second or fractions.

        A figure that is unknown or infinite is None.
        """
        found = {
            "engine": self.engine,
            "why": self.why,
            "runs": self.load.shape[0],
            "requests": self.load.shape[1],
            "left_out": self.cut,
            "rate": self.arrivals.per_second(),
            "limit": self.limit.rate,
            "limit_cause": self.limit.cause,
            "overloaded": self.overloaded,
            **{name: value._asdict() for name, value in self.estimates.items()},
            "little": little(self.outcome, self.cut),
            "goodput": self.goodput,
            "shares": self.shares,
            "levels": self.levels,
            "utilisation": self.utilisation,
            "overcommitted": self.overcommitted,
        }
        return {name: _known(value) for name, value in found.items()}

    def table(self) -> Report:
        """Return the figures as a text table."""
        rows = [
            (
                name.replace("_", " "),
                f"{value:.4g} s",
                f"{low:.4g} .. {high:.4g}" if math.isfinite(low) else "not known",
            )
            for name, (value, low, high) in self.estimates.items()
        ]
        rows += [("goodput", f"{self.goodput:.4g}/s", ""), ("limit", f"{self.limit.rate:.4g}/s", self.limit.cause)]
        for title, values in (("", self.shares), ("mean ", self.levels), ("use of ", self.utilisation)):
            rows += [(f"{title}{name}", f"{value:.4g}", "") for name, value in values.items()]
        unfit = "times of what there is: these latencies are too small, --engine events follows it"
        rows += [(f"asked of {name}", f"{value:.4g}", unfit) for name, value in self.overcommitted.items()]
        head = ("", "value", "95 % interval, or cause")
        runs, requests = self.load.shape
        note = f"engine: {self.engine}, as {self.why}; {runs} runs of {requests} requests"
        return Report.of(text_table(head, rows), f"{note}, without the first {self.cut} of each")


def _known(value: Any) -> Any:
    """Return `value` with None in place of every number that is not finite, also inside dicts; JSON has no such
    numbers.
    """
    if isinstance(value, dict):
        return {name: _known(part) for name, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


# Money ----------------------------------------------------------------------------------------------------------------

HOURS_PER_MONTH = 730.0


class HostCost(NamedTuple):
    """The money that a service costs.

    cores, sent, stored: money per hour for cores, bytes sent, and bytes stored. per_thousand_images: the money for
    1,000 images, all three together.
    """

    cores: float
    sent: float
    stored: float
    per_thousand_images: float

    @property
    def hour(self) -> float:
        """Money per hour for cores, bytes sent and bytes stored together."""
        return self.cores + self.sent + self.stored


def cost_of(run: Result) -> HostCost:
    """Compute the cost of a simulated service: the hosts of all replicas, and the bytes that they send at the goodput.

    Hosts are paid for all the time, also while they are idle.
    """
    service, replicas = run.service, run.system.replicas
    per_hour = 3600 * run.goodput * float(run.load.sizes().mean())  # requests of the service
    cores = sum(host.cores * host.prices.core_hour for host in service.hosts.values()) * replicas
    stored = (
        sum(host.store / 1e9 * host.prices.gb_month for host in service.hosts.values()) / HOURS_PER_MONTH * replicas
    )
    sent = sum(
        per_hour * bits / 8e9 * service.hosts[role].prices.gb_sent
        for (role, kind), bits in run.asked.items()
        if kind == "up"
    )
    hour = cores + sent + stored
    images = 3600 * run.goodput * run.arrivals.mean_images
    return HostCost(cores, sent, stored, 1000 * hour / images if images else 0.0)
