"""How much each function of a net may err so that the net's results err little, for the fewest bytes: `find_errors`.

A table of polynomials errs, and the error decides its bytes. Some errors vanish on their way to the results, others
grow: in a trained LSTM of three layers an error of the lowest g was 20 times worse than one of the gates beside it.

Functions that share a range, as the time steps of a recurrent layer do, form a group g, which shares an error e_g.
With the group's real table in place of its functions, and everything else exact, the results err by r_g. Errors of
groups are nearly independent, so all groups together err by about the root of the sum of r_g^2. Small errors r_g follow
e_g as long as the polynomials' degree is the same: parabolas err by more at 0 than cubics of the same largest error,
and the time steps of a quiet input add that up. So r_g is measured for a table that is chosen. While tables are
compared, it is estimated by e_g from a table of the same degree.

From the largest errors on, the group whose finer table saves most of r^2 for a bit gets it, until r is below the goal;
then groups go back where r stays below it. At last all tables run together, a few times: if the results err by more
than they may, the goal of r is lowered, and if they err by much less, it is raised.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hummingbird import graph
from hummingbird.bits import EXACT, BitConfig, Rows
from hummingbird.errors import ConfigError, InputError
from hummingbird.graph.example_shapes import settled
from hummingbird.graph.steps import Step
from hummingbird.mpc.functions.function_table import TYPICAL
from hummingbird.mpc.functions.tabulated import FunctionInRange, Tabulated
from hummingbird.mpc.layers.layer import Layer, Spec
from hummingbird.mpc.plan import builders
from hummingbird.mpc.plan.builders import CUSTOM
from hummingbird.mpc.plan.ranges import by_weights, check_rows
from hummingbird.mpc.protocols.registry import named
from hummingbird.mpc.protocols.step_tables import TableChoice
from hummingbird.ring import SCALE
from hummingbird.simulation.compare import Compare
from hummingbird.simulation.folded import FoldedNet
from hummingbird.simulation.layers import Twin, Windows, build, check_protocol
from hummingbird.simulation.observe import check_images

_LEVELS = [2.0 ** (-half / 2) for half in range(12, 25)]  # errors that a function may have: 2^-6 to 2^-12
_PROBE = 6  # the level at which a group's effect is measured, if it has a table: 2^-9
_PARTIES, _VALUES, _FRACTION = 2, 1 << 14, 36  # of the prices compared: a linear layer's results have 36 bits or so
_TRIES = 6  # goals of r
_SETTLED = 3  # times that groups are measured for a goal, and chosen again
_CLOSE = 0.65  # other inputs err by more: 1.4 times as much was seen
_NEAR = 0.7  # results that err by at least this part of what they may are as good as those of any other goal


class _Table(NamedTuple):
    """A group's layer at one level. bits: of parties and dealer, for a value. run: the simulated layer."""

    layer: Tabulated | FunctionInRange
    rounds: int
    bits: float
    degree: int
    run: Twin


class _Group:
    """Functions of a net that share a range. step: one of them. rows: the range. names: of all of them.

    few: whether no table may take more rounds than the coarsest one. measure: takes a group and a table, and returns
    the error of the net's results with this table for the group's functions.
    """

    def __init__(self, step: Step, rows: Rows, make: Callable[[Step, Rows, int], _Table | None], few: bool) -> None:
        self.step, self.rows, self.names, self.few = step, rows, list[str](), few
        self._make, self._tables = make, dict[int, _Table | None]()
        self._read = TYPICAL + SCALE
        self._measured = dict[int, float]()  # the results' errors, by level
        self.measure: Callable[[_Group, _Table], float] = lambda group, table: 0.0
        self.level = 0  # of the chosen table
        self.values = 1  # of one of the functions, for one image

    def reads(self, read: int) -> None:
        """Let the tables be those whose results are read in `read` bits, as a plan of the net says."""
        self._read = read
        self._tables.clear()

    def table(self, level: int) -> _Table | None:
        """The table at a level; None if none keeps its error, or if it takes too many rounds."""
        if level not in self._tables:
            known = replace(self.rows, error=_LEVELS[level])
            self._tables[level] = self._make(self.step, known, self._read)
        table, coarser = self._tables[level], [self._tables[at] for at in range(level) if at in self._tables]
        least = next((found.rounds for found in coarser if found), math.inf)
        return None if table and self.few and table.rounds > least else table

    @property
    def levels(self) -> list[int]:
        """The levels that have tables. Raises ConfigError if none has."""
        found = [level for level in range(len(_LEVELS)) if self.table(level)]
        if not found:
            what = f"no table serves {self.step.op} in {self.rows}"
            raise ConfigError(what, where=self.step.name, hint="give a smaller range")
        return found

    @property
    def probe(self) -> int:
        """A level in the middle, if it has a table."""
        return max([self.levels[0], *(level for level in self.levels if level <= _PROBE)])

    def error(self, level: int) -> float:
        """The error of the net's results with a level's table for the group's functions, measured or estimated."""
        table = self.table(level)
        assert table is not None, "a level that has a table"
        known = [at for at in self._measured if (other := self.table(at)) and other.degree == table.degree]
        if not known:
            self.settle(level)
            return self._measured[level]
        near = min(known, key=lambda at: abs(at - level))
        return self._measured[near] * _LEVELS[level] / _LEVELS[near]

    def settle(self, level: int) -> bool:
        """Measure the error at a level, unless it has been; return whether it had not."""
        table = self.table(level)
        assert table is not None, "a level that has a table"
        new = level not in self._measured
        if new:
            self._measured[level] = self.measure(self, table)
        return new

    def bits(self, level: int) -> float:
        """How many bits the tables of all functions of the group have, for an image."""
        table = self.table(level)
        return math.inf if table is None else len(self.names) * self.values * table.bits

    def finer(self) -> tuple[float, int]:
        """By how much r^2 falls for a bit more, at best, and the level with which it does; (0, the level) for none."""
        now, bits = self.error(self.level) ** 2, self.bits(self.level)
        better = [(now - self.error(level) ** 2, level) for level in self.levels if level > self.level]
        gains = [(less / max(self.bits(level) - bits, 2.0**-20), level) for less, level in better if less > 0]
        return max(gains, default=(0.0, self.level))

    def coarser(self, room: float) -> tuple[float, int]:
        """How many bits a table saves that raises r^2 by `room` at most, at best, and its level."""
        most = self.error(self.level) ** 2 + room
        fitting = [level for level in self.levels if self.error(level) ** 2 <= most]
        return max((self.bits(self.level) - self.bits(level), level) for level in fitting)


def find_errors(
    net: nn.Module,
    images: Tensor,
    rows: Mapping[str, Rows],
    *,
    within: float,
    aim: str = "latency",
    protocol: str = "masked",
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Rows]:
    """Choose the error of each smooth function of a net so that the net's results err by at most `within`.

    The results' error is the largest one of an input's results, relative to the largest of these results, on `images`
    (N, ...). Returns `rows` (`find_rows` finds them) with an `error` for each function; ranges stay, and so do rows of
    softmaxes and norms. Of all choices it takes nearly the one with the fewest bits; with other aims than "throughput"
    it takes tables that need more rounds than coarser ones only if the results would err by more than `within`.

    aim, protocol: of `convert_model`. progress: called with (passes over the images, of all) after every pass.
    Cost: a plan of the net, and some five passes for each group of functions that share a range, in float32; a few
    images are enough.
    Raises ConfigError if no tables keep the results within `within`, for rows of other layers than the net's, and for
    the other arguments; InputError for no images; ModelError for a net that cannot be converted.

    >>> net = torch.nn.Sequential(net, torch.nn.Tanh(), torch.nn.Linear(3, 3))
    >>> rows = hummingbird.find_rows(net, images)
    >>> rows = hummingbird.find_errors(net, images, rows, within=0.01)
    >>> rows["1"].error < 0.01
    True
    """
    if isinstance(within, bool) or not isinstance(within, (int, float)) or not 0 < within < 1:
        raise ConfigError(f"within={within!r}", where="find_errors", hint="a number between 0 and 1: 0.01 is 1 %")
    check_images(images, 1)
    check_protocol(protocol, _PARTIES)
    chosen = TableChoice.of(aim)
    net = settled(graph.unwrapped(net), images[:1], any_batch=False, custom=tuple(CUSTOM))
    folded = FoldedNet(net, protocol, rows=rows)
    check_rows(BitConfig(rows=dict(rows)), folded.traced)
    groups = _groups(folded.traced, rows, chosen, protocol)
    if not groups:
        return dict(rows)
    _plan(groups, folded.traced, rows, chosen, protocol)
    done, total = 0, 2 * _TRIES

    def measure(group: _Group, table: _Table) -> float:
        nonlocal total
        total += 1

        def run(x: Tensor, *others: Tensor) -> Tensor:
            group.values = x[0].numel()
            return table.run(x, *others)

        return error(dict.fromkeys(group.names, run), exact)

    def error(instead: Mapping[str, Twin], wanted: Tensor) -> float:
        nonlocal done
        got = folded.finish(folded.start(images), instead)
        done += 1
        if progress is not None:
            progress(done, total)
        return float(((got - wanted).abs().flatten(1).amax(1) / largest).max())

    with torch.inference_mode():
        plain = folded.finish(folded.start(images, rounds=False), {})
        if not bool(plain.isfinite().all()):
            raise InputError("results that are not finite", where="images", hint="scale the net's weights down")
        largest = plain.abs().flatten(1).amax(1).clamp(min=2.0**-SCALE)
        exact = folded.finish(folded.start(images), {})
        _check_inputs(float(((exact - plain).abs().flatten(1).amax(1) / largest).max()), _CLOSE * within)
        for group in groups:
            group.measure = measure
            group.settle(group.probe)
        for few in dict.fromkeys((chosen.name != "throughput", False)):  # more rounds only if nothing else helps
            for group in groups:
                group.few = few
            goal = most = _CLOSE * within
            kept, good, bad = dict[str, float](), 0.0, math.inf  # the errors for the largest goal that was good
            for _ in range(_TRIES):
                reached = _choose(groups, goal)
                for _ in range(_SETTLED):
                    if not any([group.settle(group.level) for group in groups]):
                        break
                    reached = _choose(groups, goal)
                tables = [(group, table) for group in groups if (table := group.table(group.level)) is not None]
                found = error({name: table.run for group, table in tables for name in group.names}, plain)
                if found <= most:
                    kept = {name: _LEVELS[group.level] for group in groups for name in group.names}
                    good = goal
                    if found >= _NEAR * most and reached:
                        break
                    more = goal * most / max(found, most / 8) if reached else math.inf
                    goal = min(more, math.sqrt(goal * bad))
                elif reached or good:
                    bad = goal
                    goal = math.sqrt(good * goal) if good else goal * min(0.8, most / found)
                else:
                    break
            if kept:
                return {name: replace(old, error=kept.get(name, old.error)) for name, old in rows.items()}
    what = f"the results err by {found:.2g} of the largest, more than {within:g}, with the finest tables of aim {aim!r}"
    raise ConfigError(what, where="find_errors", hint="allow a larger error, or give smaller ranges")


def _check_inputs(error: float, most: float) -> None:
    """Raise InputError if the results err by more than `most` because the inputs are rounded."""
    if error <= most:
        return
    bits = math.ceil(math.log2(4 * error / most))
    what = f"inputs are shared as multiples of 2^-{SCALE}, and that alone changes results by {error:.2g} of the largest"
    hint = f"multiply the inputs by 2^{bits} and divide the weights that multiply them by it, or allow a larger error"
    raise InputError(what, where="find_errors", hint=hint)


def _choose(groups: Sequence[_Group], goal: float) -> bool:
    """Set the level of each group, so that the results' error by the sum of squares is at most `goal`.

    Returns whether there are such levels; if not, each group has its last one that still helps.
    """

    def left() -> float:
        return goal**2 - sum(group.error(group.level) ** 2 for group in groups)

    for group in groups:
        group.level = group.levels[0]
    while left() < 0:
        (gain, level), best = max(((group.finer(), group) for group in groups), key=lambda pair: pair[0][0])
        if not gain:
            return False
        best.level = level
    while True:
        room = left()
        (saved, level), best = max(((group.coarser(room), group) for group in groups), key=lambda pair: pair[0][0])
        if saved <= 0:
            return True
        best.level = level


def _plan(
    groups: Sequence[_Group], steps: Sequence[Step], rows: Mapping[str, Rows], aim: TableChoice, protocol: str
) -> None:
    """Let the groups' tables be those of a plan of the net: how many bits of results are read decides their form."""
    probed = {name: replace(group.rows, error=_LEVELS[group.probe]) for group in groups for name in group.names}
    known = {**rows, **{name: probed[name] for name in rows if name in probed}}
    plan = {step.name: step.layer for step in Windows(steps, protocol, rows).plan(BitConfig(rows=known), aim)}
    for group in groups:
        group.reads(max(layer.read for name in group.names if isinstance(layer := plan[name], Layer)))


def _groups(steps: Sequence[Step], rows: Mapping[str, Rows], aim: TableChoice, protocol: str) -> list[_Group]:
    """Return the groups of functions for which `rows` have a range, in the net's order."""
    exact, pooled = named(protocol)(EXACT, aim=aim), by_weights(steps)
    exact.valid = 64
    compare, groups = Compare(0, clamp=False), dict[tuple[Any, ...], _Group]()
    compare.random = compare.uniform

    def make(step: Step, known: Rows, read: int) -> _Table | None:
        layer = builders.ON_ROWS[step.op](step, exact, known)
        assert isinstance(layer, (Tabulated, FunctionInRange))
        layer.read = read
        try:
            cost = layer.cost([Spec((_VALUES,), _FRACTION)], _PARTIES)
        except ConfigError:  # no table of at most 16 kB for a value
            return None
        bits = (_PARTIES * cost.bits + aim.dealer * cost.offline_bits) / _VALUES
        degree = (layer.look_up(_FRACTION) if isinstance(layer, Tabulated) else layer.table).table.degree
        return _Table(layer, cost.rounds, bits, degree, build(layer, step, _FRACTION, _PARTIES, compare))

    told = BitConfig(rows=dict(rows))
    for step in steps:
        known = told.rows_of(step.name)
        if known is not None and step.op in ("function", *builders.SMOOTH):
            owner = step.name if step.name in rows else step.name.partition("#")[0]  # of these rows
            key = (*pooled.get(owner, (owner,)), known.least, known.most)
            group = groups.setdefault(key, _Group(step, known, make, aim.name != "throughput"))
            group.names.append(step.name)
    return list(groups.values())
