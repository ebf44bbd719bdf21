"""The costs of a private net before it runs, as figures and as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hummingbird import convert
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.cost import FREE, Cost, crypten_shipped_relu, opening, sharing, to_one
from hummingbird.errors import ConfigError, InputError, shown
from hummingbird.graph.example_shapes import batch_of, saved, settled
from hummingbird.mpc.layers.layer import FLOOR
from hummingbird.mpc.pair.dealer import in_seconds, slice_cost, transfers_of
from hummingbird.mpc.pair.price import PairCost, Stock
from hummingbird.mpc.plan.builders import CUSTOM, MOVES
from hummingbird.mpc.plan.net import PrivateNet
from hummingbird.mpc.plan.prices import PlannedCost
from hummingbird.mpc.protocols.step_tables import LINE_BITS, ROUND_BITS, TABLE_BITS, Link, TableChoice
from hummingbird.mpc.session.session import text_of
from hummingbird.pictures import Measure, by_layer, layer_name
from hummingbird.table import Report, text_table
from hummingbird.version import VERSION

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CRYPTEN, _DEALT = "CrypTen's ReLUs", "with a dealer"
_ROUNDS, _LATENCY, _LINK, PAIR = "rounds", "latency", "link", "pair"  # aims
BANDWIDTH, RTT = 10e9, 0.0002  # a data centre's link: bits per second, and seconds there and back


@dataclass(frozen=True)
class Around:
    """The price of messages before or after a net's layers, such as sharing an input, for one party that sends.

    cost: this price. by: which parties send, in words, such as "every party".
    """

    cost: Cost
    by: str


@dataclass(frozen=True, repr=False)
class Estimate:
    """The price of running a batch through a private net, for each party. Its `str` is a table of all layers.

    shape: of the batch of each lane. layers: the price of every step. setup: the price of private weights, paid once.
    bandwidth: bits per second of each party, which its lanes share. rtt: round-trip time, seconds. lanes: number of
    lanes of each party. dealer_bandwidth: bits per second of the dealer's link. aim: that of the prices in `layers`, as
    for `convert_model`. aims: for each aim, the price of a batch of one lane.
    beside: two prices to compare with, by name: of this batch by protocol `gmw`, and of its ReLUs alone by CrypTen as
    its authors ship it, with the offline bits that a dealer would send. inputs: a description of the example's inputs.
    around: prices of messages before and after the layers, by name; no total contains them.
    material: of aim "pair": the cost of making one lane's material. making: then its seconds, in words. dealt: then the
    layers' prices with a dealer.

    >>> cost = hummingbird.estimate(net, (20, 4), BitWindow(20, 12), bandwidth=352e6, rtt=0.01)
    >>> cost.rounds, round(cost.seconds, 3)
    (3, 0.015)
    >>> print(str(cost).splitlines()[0])  # the text has a line for every layer
    2 parties, input (20, 4), 0.352 Gb/s, 10 ms round trip; per party
    """

    shape: tuple[int, ...]
    layers: Sequence[PlannedCost]
    setup: Cost
    parties: int
    bandwidth: float
    rtt: float
    lanes: int = 1
    dealer_bandwidth: float = BANDWIDTH
    aim: str = "latency"
    aims: Mapping[str, Cost] = field(default_factory=dict)
    beside: Mapping[str, Cost] = field(default_factory=dict)
    inputs: str = ""
    around: Mapping[str, Around] = field(default_factory=dict)
    material: PairCost | None = None
    dealt: Sequence[PlannedCost] = ()
    making: str = ""

    @property
    def total(self) -> Cost:
        """The price of all layers for one lane's batch, as a `Cost`: rounds, bits of a party, bits of the dealer."""
        return _total(self.layers)

    @property
    def rounds(self) -> int:
        """Rounds of the layers for one batch, without sharing the input and opening the result (`around`)."""
        return self.total.rounds

    @property
    def online_bytes(self) -> float:
        """Bytes that one party sends for one lane's batch."""
        return self.total.bits / 8

    @property
    def offline_bytes(self) -> float:
        """Bytes of correlated randomness that the dealer sends for one lane's batch, to all parties together.

        Each party gets an equal part, to within the largest correction. With aim "pair", what both parties send each
        other for it, without frames.
        """
        return self.total.offline_bits / 8

    @property
    def seconds(self) -> float:
        """Seconds that one batch takes on the wire, without computation."""
        return self._seconds(self.total)

    def _seconds(self, cost: Cost) -> float:
        return cost.seconds(self.bandwidth / self.lanes, self.rtt)

    def __str__(self) -> Report:
        rows, elements = [], 0
        for planned in self._shown():
            elements += planned.elements if planned.window else 0
            names = (planned.name, planned.op, planned.window, planned.variant, f"2^{planned.range}")
            rows.append((*names, *self._figures(planned.elements, planned.cost, planned.shared)))
        rows.append(("total", "", "", "", "", *self._figures(elements, self.total)))
        counted = ("elements", "rounds", "bits each", "sent kB", "offline kB", "wire ms")
        each = f" and lane, {self.lanes} lanes at a time on the link" if self.lanes > 1 else ""
        what = f"{self._subject()}, {link_words(self.bandwidth, self.rtt)}; per party{each}"
        table = text_table(("layer", "kind", "window", "sign by", "below", *counted), rows, left=5, total=True)
        variants = " ".join(row[3] for row in rows)
        lanes = _lanes(self.total, self.shape[0], self.lanes)
        shares = any(each.shared for each in self.layers)
        notes = _notes(self.setup, variants, self.aim.startswith(("throughput", PAIR)), shares)
        return Report.of(what, table, *lanes, self._beyond(), self._in_all(), *self._replaced(), *notes)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.__str__()._repr_html_()

    def plot(self, of: str = "bytes") -> Figure:
        """Plot what every layer costs as bars, online beside offline; returns a matplotlib figure with `savefig`.

        of: "bytes", "rounds" or "seconds", which are those on the wire. As in the table, figures are of the batch of
        one lane. A notebook shows the figure after `%matplotlib inline` if a cell ends with it.
        Raises ConfigError for another `of`, and EnvironmentProblem without matplotlib.

            costs.plot("rounds").savefig("rounds.png")
        """
        layers = self._shown()
        sent = {"online, sent by each party": [each.cost.bits for each in layers]}
        by = "by both parties to each other" if self.material else "by the dealer to all parties"
        dealt = {f"offline, sent {by}": [each.cost.offline_bits for each in layers]}
        wire = {"online, between parties": [self._seconds(each.cost) for each in layers]}
        where = "between parties" if self.material else "on the dealer's link"
        link = {f"offline, {where}": [each.cost.offline_bits / self._offline_bandwidth for each in layers]}
        measures = {
            "bytes": Measure("kB", ",.1f", 8e3, [sent, dealt]),
            "rounds": Measure("rounds", ",.0f", 1, [{"online": [each.cost.rounds for each in layers]}]),
            "seconds": Measure("ms", ",.2f", 1e-3, [wire, link]),
        }
        names = [layer_name(each.name, each.op, each.window) for each in layers]
        link_of = f", {link_words(self.bandwidth, self.rtt)}" if of == "seconds" else ""
        return by_layer(f"{of} by layer: {self._subject()}{link_of}", names, of, measures)

    def _subject(self) -> str:
        """Return the number of parties and the shape of the inputs that this price is for, in words."""
        return f"{self.parties} parties, {self.inputs or f'input {self.shape}'}"

    def _shown(self) -> list[PlannedCost]:
        """Return the prices of the layers that have a row in the report: all but those that only move values."""
        return [planned for planned in self.layers if planned.range is not None and planned.op not in MOVES]

    def _beyond(self) -> Report:
        """Return a text table of `around`, the prices of messages before and after the layers; no total contains them.

        Its rows are named by the messages, such as "sharing the input".
        """
        rows = [
            (
                name,
                found.by,
                str(found.cost.rounds),
                f"{found.cost.bits / 8e3:,.1f}",
                f"{1e3 * self._seconds(found.cost):,.2f}",
            )
            for name, found in self.around.items()
        ]
        return text_table(("besides", "sent by", "rounds", "sent kB", "wire ms"), rows, left=2)

    def _in_all(self) -> Report:
        """Return a text table of the bytes of a batch of all lanes: online, offline, and both together.

        It has a row for each aim, and for each comparison in `beside`.
        """
        shown = self._aims()
        differ = len(set(shown.values())) > 1
        shown = {name.partition(":")[0] if name.startswith(_LINK) else name: cost for name, cost in shown.items()}
        rows = []
        for name, cost in {**(shown if differ else {"above": self.total}), **self.beside}.items():
            sent, offline = self.lanes * cost.bits, self.lanes * cost.offline_bits
            sizes = [f"{bits / 8e3:,.1f}" for bits in (sent, offline, self.parties * sent + offline)]
            rate = self.dealer_bandwidth if name == _DEALT else self._offline_bandwidth
            seconds = self._seconds(cost), offline / rate
            times = (f"{1e3 * each:,.2f}" for each in (*seconds, sum(seconds)))
            rows.append((name, str(cost.rounds), *sizes, *times))
        by = "material" if self.material else "dealer"
        head = ("a batch", "rounds", "sent kB", "offline kB", "in all kB", "wire ms", f"{by} ms", "both ms")
        above = f"above: aim {self.aim}; " if differ else ""
        link = f"dealer ms: on its link, {self.dealer_bandwidth / 1e9:g} Gb/s"
        if self.material is not None:
            words = "in all: from both parties, or a dealer; material ms: without its rounds"
            wire = self._seconds(Cost(self.material.rounds, self.material.all_bits // 2))
            made = f"material: {self.lanes * self.material.all_bits / 8e3:,.1f} kB with frames, from both parties"
            made += f", in {self.material.rounds} rounds: {1e3 * wire:,.2f} ms here"
            return Report.of(words, text_table(head, rows), made, self.making, between="\n")
        dealt = f"; {CRYPTEN}: what a dealer would send for them" if CRYPTEN in self.beside else ""
        words = f"{above}in all: from all parties and the dealer; {link}{dealt}"
        return Report.of(words, text_table(head, rows), *self._shortest(), *self._fewest(), between="\n")

    @property
    def _offline_bandwidth(self) -> float:
        """Bits per second of offline messages: two parties without a dealer send to each other at the same time."""
        return 2 * self.bandwidth if self.material else self.dealer_bandwidth

    def _replaced(self) -> list[Report]:
        """Return a list with a table of the layers that have another form with a dealer, or an empty list."""
        dealt = {each.name: each.cost for each in self.dealt}
        rows = []
        for each in self._shown():
            costs = each.cost, dealt.get(each.name, each.cost)
            if len({(cost.rounds, cost.bits) for cost in costs}) > 1:
                cells = ((str(c.rounds), f"{c.bits / 8e3:,.1f}", f"{c.offline_bits / 8e3:,.1f}") for c in costs)
                rows.append((each.name, each.op, *(cell for three in cells for cell in three)))
        if not rows:
            return []
        head = ("other forms", "kind", "rounds", "sent kB", "offline kB", "dealer: rounds", "sent kB", "offline kB")
        return [text_table(head, rows, left=2)]

    def _aims(self) -> dict[str, Cost]:
        """Return the aims that have a row, with their prices: "rounds" has none where it is the same as "latency".

        The aim "link" is for these links; its row has no numbers in its name.
        """
        same = self.aims.get(_ROUNDS) == self.aims.get(_LATENCY) and self.aim != _ROUNDS
        return {name: cost for name, cost in self.aims.items() if name != _ROUNDS or not same}

    def _shortest(self) -> list[str]:
        """Return lines with the aims of least time on these links, or an empty list if all aims are the same.

        Material from a store takes no time of a run. A dealer that is online sends it while the parties exchange
        messages, so that the longer of the two counts. The aim "link" has the least sum of both.
        """
        aims = self._aims()
        if len(set(aims.values())) == 1:
            return []
        stored = {name: self._seconds(cost) for name, cost in aims.items()}
        dealt = {name: self.lanes * cost.offline_bits / self.dealer_bandwidth for name, cost in aims.items()}
        streamed = {name: max(stored[name], dealt[name]) for name in aims}
        best = []
        both = {name: stored[name] + dealt[name] for name in aims}
        for where, seconds in (("from a store", stored), ("with a dealer online", streamed), ("both in turn", both)):
            name = min(aims, key=lambda name: (seconds[name], aims[name].offline_bits))  # noqa: B023
            best.append(f"{where} aim {name}, {1e3 * seconds[name]:,.2f} ms")
        line = f"shortest on these links, without computation: {'; '.join(best)}"
        default = "without an aim: latency from a store, throughput with a dealer online"
        return [line, f"from a store: the wire alone; online: the longer of wire and dealer; {default}"]

    def _fewest(self) -> list[str]:
        """Return a list with a line of advice, or an empty list.

        The line says that protocol `gmw` moves the fewest bits in all, online and offline, and is there if that is so.
        It happens if most layers are smooth functions: the splines of `gmw` are then smaller than tables.
        """
        gmw, others = self.beside.get("gmw"), [*self.aims.values(), self.total]
        if gmw is None or self._moved(gmw) >= min(map(self._moved, others)):
            return []
        return ['the fewest bytes in all: protocol="gmw", as splines of smooth functions are smaller than their tables']

    def _moved(self, cost: Cost) -> float:
        return self.parties * cost.bits + cost.offline_bits

    def _figures(self, elements: int, cost: Cost, shared: int = 0) -> tuple[str, ...]:
        """Return the cells of one row of the report's table, as texts.

        elements: how many values the work is on. cost: its price. shared: its rounds that count for another layer. The
        cells are: elements, rounds, bits sent for an element, kB sent, kB offline, and milliseconds on the wire.
        """
        return (
            f"{elements:,}",
            f"({shared})" if shared else str(cost.rounds),
            f"{cost.bits / max(1, elements):,.1f}",
            f"{cost.bits / 8e3:,.1f}",
            f"{cost.offline_bits / 8e3:,.1f}",
            f"{1e3 * self._seconds(cost):,.2f}",
        )


def estimate(
    net: nn.Module,
    shape: Sequence[int] | None = None,
    bits: BitConfig | BitWindow | str | PathLike[str] | None = None,
    *,
    example: Any = None,
    weights: str | int = "public",
    protocol: str = "masked",
    parties: int = 2,
    bandwidth: float = BANDWIDTH,
    rtt: float = RTT,
    lanes: int = 1,
    aim: str | None = None,
    dealer: str | None = None,
    dealer_bandwidth: float = BANDWIDTH,
) -> Estimate:
    """Return the price of a batch through a net, as an `Estimate`: rounds, bits and time on the wire, by layer.

    No protocol runs, and no session is needed. shape: of the batch, (B, ...).
    bits, weights, protocol: as for `convert_model`, but windows of any net with these layers are accepted: a price does
    not depend on the net's weights, which need not be trained. A net that reads shapes is traced with this shape.
    example: a batch of inputs in place of the shape, as for `convert_model`, for a net that takes several inputs,
    numbers of words or flags.
    bandwidth: bits per second of each party. rtt: round-trip time, seconds. lanes: number of lanes of each party; each
    runs such a batch at the same time, with its part of the bandwidth. aim: as for `convert_model`; None: latency.
    Totals are computed for four aims: latency, throughput for these links, rounds, and link for these links. With aim
    "pair" offline bits are those that two parties send each other for their material, on their own link; there are no
    other aims, but the costs with a dealer stand beside. dealer: "pair" or "pair:HOW", as for `init`, has this aim.
    dealer_bandwidth: bits per second of the dealer's link, or at which stored material is read.
    Raises errors of `convert_model`, InputError for a shape that the net cannot take, and ConfigError for the other
    arguments.

    >>> cost = hummingbird.estimate(net, (20, 4), BitWindow(20, 12))
    >>> cost.rounds, cost.online_bytes, cost.offline_bytes
    (3, 770.0, 8260.0)
    """
    check_link(bandwidth, rtt)
    check_link(dealer_bandwidth, rtt, "dealer_bandwidth")
    for what, value, least in (("parties", parties, 1), ("lanes", lanes, 1)):
        if type(value) is not int or value < least:
            raise ConfigError(f"{value!r} {what}", where=what, hint=f"an integer from {least}")
    if (shape is None) == (example is None):
        what = "neither a shape nor an example" if shape is None else "both a shape and an example"
        raise ConfigError(what, where="shape", hint="estimate(net, (8, 3, 32, 32)), or estimate(net, example=inputs)")
    if example is None:
        sizes, words = _sizes(shape), ""
        net = settled(net, torch.empty(sizes), any_batch=False, custom=tuple(CUSTOM))
    else:
        sizes, words = batch_of(net, example)
        net = saved(net, example, custom=tuple(CUSTOM), secret=weights != "public")
    link = Link(rtt, bandwidth / lanes, dealer_bandwidth / lanes)
    aims = [_LATENCY, str(TableChoice("throughput", bandwidth / dealer_bandwidth)), _ROUNDS, str(link.aim)]
    transfers = transfers_of(dealer)
    if dealer is not None and not (transfers and aim is None):
        what = f"dealer={dealer!r} with the aim {aim!r}"
        raise ConfigError(what, where="dealer", hint=f"{PAIR} or {PAIR}:RTT:BANDWIDTH, without an aim")
    aim = str(TableChoice(PAIR, transfers=transfers)) if transfers else aim
    if pair := aim is not None and TableChoice.of(aim).pair:
        if parties != 2:
            raise ConfigError(f"{parties} parties without a dealer", where="parties", hint="2, or another aim")
        aims = [aim]
    aim, windows = aims[0] if aim is None else aim, BitConfig.of(bits).windows
    private = convert.build(net, windows, weights, protocol, aim=aim)
    layers, setup = private.costs(sizes, parties), private.setup_cost(parties)
    totals = {aim: _total(layers)}
    for each in aims:  # smooth functions have other layers by each
        made = private if each == aim else convert.build(net, windows, weights, protocol, aim=each)
        totals[each] = _total(made.costs(sizes, parties))
    totals = {each: totals[each] for each in dict.fromkeys([*aims, aim])}
    gmw = private if protocol == "gmw" else convert.build(net, windows, weights, "gmw", aim=aim if pair else _LATENCY)
    beside = _beside(gmw.costs(sizes, parties), parties)
    if gmw is private:
        del beside["gmw"]
    material, making, dealt = None, "", list[PlannedCost]()
    if pair:
        requests, transfers = private.pair_requests(sizes), private.transfers
        material, making = slice_cost(requests, Stock(transfers)), in_seconds(requests, transfers, link.bandwidth, rtt)
        dealt = convert.build(net, windows, weights, protocol, aim=_LATENCY).costs(sizes, parties)
        beside = {_DEALT: _total(dealt), **beside}
    prices = dealer_bandwidth, aim, totals, beside, words, _around(private, sizes, parties), material, dealt, making
    return Estimate(sizes, layers, setup, parties, bandwidth, rtt, lanes, *prices)


def _around(private: PrivateNet, sizes: tuple[int, ...], parties: int) -> dict[str, Around]:
    """Return the prices of messages beside the layers, by name: comparing plans, sharing inputs, opening results.

    private: the net. sizes: the shape of the batch. parties: their number. The plans are compared once for a net, not
    for each batch.
    """
    given = [name for name, _ in private.inputs] if sizes[1:] != (0,) else []
    facts = len(text_of({"hummingbird version": VERSION, **private.facts}).encode())  # to every other party
    opened = [8 * math.prod(shape) for _, shape in private.results(sizes)[1]]
    each = "the party that has it" if len(given) < 2 else "the parties that have them"
    return {
        "agreement, once": Around(opening(parties, facts), "every party"),
        "sharing the input": Around(sum((sharing(parties, True) for _ in given), FREE), each),
        "opening the result to one party": Around(
            sum((to_one(parties, size, True) for size in opened), FREE), "every other party"
        ),
        "opening the result to all": Around(sum((opening(parties, size) for size in opened), FREE), "every party"),
    }


def _sizes(shape: Any) -> tuple[int, ...]:
    """Return the shape of a batch, which a user has given, as a tuple. Raises InputError for anything else."""
    sizes = tuple(shape) if isinstance(shape, Sequence) and not isinstance(shape, str) else ()
    if sizes and all(type(size) is int and size >= (number == 0) for number, size in enumerate(sizes)):
        return sizes  # public inputs alone are (batch, 0)
    hint = "whole numbers from 1, the first of them the batch: (8, 3, 32, 32), or tuple(images.shape); inputs "
    hint += "themselves as example="
    raise InputError(f"{shown(shape)} is no shape of a batch", where="shape", hint=hint)


def _beside(layers: Sequence[PlannedCost], parties: int) -> dict[str, Cost]:
    """Return two prices of a batch to compare with, by name: that of protocol `gmw`, and of CrypTen's ReLUs alone.

    layers: the prices of the net's steps by `gmw`, in which every ReLU of the net is a step. The second is for CrypTen
    as its authors ship it; it is absent if the net has no ReLU.
    """
    relus = [crypten_shipped_relu(planned.elements, parties) for planned in layers if planned.op == "relu"]
    return {"gmw": _total(layers), **({CRYPTEN: sum(relus, FREE)} if relus else {})}


def _total(layers: Sequence[PlannedCost]) -> Cost:
    """Return the sum of the prices of steps."""
    return sum((planned.cost for planned in layers), FREE)


def check_link(bandwidth: float, rtt: float, name: str = "bandwidth") -> None:
    """Raise ConfigError unless `bandwidth`, bits per second, is above 0, and `rtt`, the round-trip seconds, 0 or more.

    Both must be finite. name: the bandwidth's name in errors.
    """
    for what, value, least in ((name, bandwidth, math.ulp(0.0)), ("rtt", rtt, 0.0)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < math.inf:
            hint = "bits per second, above 0" if least else "seconds, 0 or more"
            raise ConfigError(f"a link's {what} of {value!r}", where=what, hint=hint)


def link_words(bandwidth: float, rtt: float) -> str:
    """Return the properties of a link as text, such as "10 Gb/s, 0.2 ms round trip".

    bandwidth: bits per second. rtt: round-trip time, seconds.
    """
    return f"{bandwidth / 1e9:g} Gb/s, {1e3 * rtt:g} ms round trip"


def _lanes(batch: Cost, images: int, lanes: int) -> list[str]:
    """Return a list with a line of the report: images and bytes of all lanes of a party together; empty for one lane.

    batch: the price of one lane's batch. images: how many images it has.
    """
    if lanes == 1:
        return []
    sent, offline = (f"{lanes * bits / 8e3:,.1f} kB" for bits in (batch.bits, batch.offline_bits))
    return [f"{lanes} lanes together: {lanes * images} images, {sent} sent, {offline} offline"]


def _notes(setup: Cost, variants: str, thrifty: bool, shared: bool) -> list[str]:
    """Return the lines below the report: what "below" means, and each other line that this report needs.

    These say what rounds in parentheses are, what private weights cost, and how each kind of table was chosen. setup:
    the price of private weights; `FREE` if there are none. variants: the names of the kinds of tables that the layers
    use, joined into one text. thrifty: whether the aim is the fewest bits, by which other trees of tables are chosen.
    shared: whether a layer has rounds in parentheses, as its messages travel in the frames of longer layers.
    """
    out = []
    if shared:
        out.append(
            "rounds (n): this layer runs beside longer ones, and its messages travel in their frames: its n rounds\n"
            "and the headers count for the longer ones alone"
        )
    if setup != FREE:
        out.append(
            f"private weights, once: {setup.bits / 8e3:,.1f} kB sent in {setup.rounds} round, "
            f"{setup.offline_bits / 8e3:,.1f} kB offline"
        )
    out.append(
        f"below: results are right if every value stays below this, with a window every value that is compared; never "
        f"less than 2^{FLOOR}\nbut for values that are known to be smaller, and for the windows that were chosen"
    )
    if "table " in variants:
        out.append("table w: one step table of 2^w bits: no other way sends less, or takes fewer rounds")
    if "lines " in variants:
        out.append(
            "lines w: a ReLU in one round, which selects one of 2^w lines; where the lines of one value have at most "
            f"{LINE_BITS // 8:,} bytes"
        )
    if "2^" in variants:
        out.append("2^w lines, parabolas or cubics: a table of polynomials, the one of the fewest bits offline")
    if "tree " in variants and thrifty:
        out.append(
            "tree of n: n step tables below a tree: the fewest bits of all parties and their material together, where "
            f"a round\ncounts for {ROUND_BITS} bits of a value"
        )
    elif "tree " in variants:
        out.append(
            "tree of n: n step tables below a tree: the fewest rounds for which the tables of one ReLU take at most "
            f"{TABLE_BITS}\nbits, and then the fewest bits, online and offline together"
        )
    return out
