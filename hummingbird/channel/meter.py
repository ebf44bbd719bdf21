"""The meter: rounds, bits and seconds of every layer, beside the layer's predicted price.

    with hummingbird.meter() as m:
        logits = private_net(x)
    print(m.table())

The channel and the dealer's client report here (`count`); the private net marks where a layer begins and ends
(`layer`). Counts outside of every layer go to a row named "(outside)". Meters can be nested; each counts while its
block runs.
"""

from __future__ import annotations

import contextlib
import contextvars
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from hummingbird.cost import Cost
from hummingbird.pictures import Measure, by_layer, layer_name
from hummingbird.table import Report, text_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OUTSIDE = "(outside)"
_MEANWHILE = ("compute_seconds", "wait_seconds", "offline_seconds", "expanding_seconds")  # pass at all lanes at once


@dataclass
class MeterRow:
    """The counts of one layer at this party, summed over the layer's calls.

    Two parties without a dealer: offline_bits are those that both send for their material, received_bits half of them.
    rounds: a round that layers share counts for one of them, on the net's longest path (mpc/plan/depths.py).
    bits_sent, bits_predicted: bits that this party sends. offline_bits: bits that the dealer sends to all parties
    together; received_bits: how many of these this party receives. elements: how many values the layer works on.
    offline_seconds: those of waiting for correlated randomness. expanding_seconds: those of expanding this party's
    seeds, perhaps in the background. dealer_seconds: the dealer's work by its own reports, meaningful in the total
    only.
    Fields named "predicted" follow from the price; all others are measured.
    """

    layer: str
    kind: str = ""
    window: str = ""
    calls: int = 0
    elements: int = 0
    rounds_predicted: int = 0
    rounds: int = 0
    bits_predicted: int = 0
    bits_sent: int = 0
    offline_bits_predicted: int = 0
    offline_bits: int = 0
    received_bits: int = 0
    compute_seconds: float = 0.0
    wait_seconds: float = 0.0
    offline_seconds: float = 0.0  # waits of this layer for its correlated randomness
    expanding_seconds: float = 0.0  # expanding this party's seeds for it, perhaps ahead in the background
    dealer_seconds: float = 0.0  # the dealer's work, by its own reports meanwhile: meaningful in the total only


@dataclass(eq=False, repr=False)  # nested meters with equal rows are still two
class Meter:
    """The counts of a block of code: rounds, bits and seconds of each layer, and their sum (`total`).

    `hummingbird.meter()` makes it. rows: a `MeterRow` for each layer by its name, in the order of first calls. seconds:
    the duration of the block.

    >>> def count(session, net, images):
    ...     private = hummingbird.convert_model(net, bits=BitWindow(20, 12))
    ...     shared = hummingbird.cryptensor(images if session.rank == 0 else None, src=0)
    ...     with hummingbird.meter() as meter:
    ...         private(shared)
    ...     return meter.total.rounds, meter.total.bits_sent, meter.total.bits_predicted
    >>> hummingbird.launch(count, net, images)
    [(4, 6960, 6960), (4, 6960, 6960)]
    """

    rows: dict[str, MeterRow] = field(default_factory=dict)
    seconds: float = 0.0  # duration of its block
    caption: str = ""  # line above its table, if its numbers are those of several lanes

    def __repr__(self) -> str:
        total = self.total
        sent, dealt = f"{total.bits_sent / 8e3:,.1f} kB sent", f"{total.offline_bits / 8e3:,.1f} kB offline"
        return f"Meter({len(self.rows)} layers, {total.rounds} rounds, {sent}, {dealt}; table() has all)"

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def row(self, name: str) -> MeterRow:
        return self.rows.setdefault(name, MeterRow(name))

    @property
    def total(self) -> MeterRow:
        """One row, a `MeterRow` named "total", that holds the sums over this meter's layers."""
        total = MeterRow("total")
        for row in self.rows.values():
            for key, value in asdict(row).items():
                if isinstance(value, (int, float)):
                    setattr(total, key, getattr(total, key) + value)
        return total

    def to_json(self) -> str:
        """Return this meter's rows as the text of a JSON list, with one object for each layer.

        An object has the fields of `MeterRow`, whose names say the units.
        """
        return json.dumps([asdict(row) for row in self.rows.values()], indent=2)

    @classmethod
    def over_lanes(cls, meters: Sequence[Meter]) -> Meter:
        """Return one meter that adds up the meters of all lanes of a party, given in the order of the lanes.

        Calls, elements, rounds, bits and the dealer's seconds are sums over the lanes. All other seconds pass at all
        lanes at the same time: they are taken from the lane whose meter ran longest.
        """
        slowest = max(range(len(meters)), key=lambda lane: meters[lane].seconds)
        caption = f"{len(meters)} lanes: rounds, kB and dealer s are sums; other seconds: lane {slowest}, the slowest"
        out = cls(seconds=meters[slowest].seconds, caption=caption)
        for lane, meter in enumerate(meters):
            for name, row in meter.rows.items():
                sum_ = out.row(name)
                sum_.kind, sum_.window = row.kind or sum_.kind, row.window or sum_.window
                for key, value in asdict(row).items():
                    if isinstance(value, (int, float)) and (key not in _MEANWHILE or lane == slowest):
                        setattr(sum_, key, getattr(sum_, key) + value)
        return out

    def plot(self, of: str = "bytes") -> Figure:
        """Plot what was counted for every layer as bars, online beside offline; returns a matplotlib figure.

        of: "bytes", "rounds" or "seconds". Seconds are this party's; offline are those in which it expanded seeds,
        mostly in the background. A notebook shows the figure after `%matplotlib inline` if a cell ends with it.
        Raises ConfigError for another `of`, and EnvironmentProblem without matplotlib.

            meter.plot("seconds").savefig("seconds.png")
        """
        rows = list(self.rows.values())
        sent = {"online, sent by this party": [row.bits_sent for row in rows]}
        dealt = {"offline, sent by the dealer to all parties": [row.offline_bits for row in rows]}
        online = {
            "computing": [max(0.0, row.compute_seconds) for row in rows],
            "waiting for other parties": [row.wait_seconds for row in rows],
            "waiting for correlated randomness": [row.offline_seconds for row in rows],
        }
        expanding = {"expanding seeds": [row.expanding_seconds for row in rows]}
        measures = {
            "bytes": Measure("kB", ",.1f", 8e3, [sent, dealt]),
            "rounds": Measure("rounds", ",.0f", 1, [{"online": [row.rounds for row in rows]}]),
            "seconds": Measure("s", ".3f", 1, [online, expanding]),
        }
        names = [layer_name(row.layer, row.kind, row.window) for row in rows]
        return by_layer(f"{of} by layer: {self.caption or 'counted at this party'}", names, of, measures)

    def table(self, every_layer: bool = True) -> Report:
        """Return this meter's rows as a text table; layers without messages are summed into one line.

        every_layer: whether the table has the rows, or only the total.
        Columns: "offline" is what the dealer sends to all parties, "own" this party's part of it; "material" is the
        time spent waiting for correlated randomness, "seeds" the time for expanding seeds (mostly in the background),
        and "dealer" the dealer's own report of its time, for the total only.
        """
        head = (
            "layer",
            "kind",
            "window",
            "rounds",
            "predicted kB",
            "sent kB",
            "offline kB",
            "own kB",
            "compute s",
            "wait s",
            "material s",
            "seeds s",
            "dealer s",
        )
        local = MeterRow("layers without messages")
        shown = []
        for row in self.rows.values():
            if row.rounds or row.bits_sent or row.offline_bits:
                shown.append(row)
            else:
                local.compute_seconds += row.compute_seconds
        rows = [*shown, local] if every_layer else []
        total = self.total
        dealer = f"{total.dealer_seconds:.3f}" if total.dealer_seconds else ""
        lines = [*((*_cells(row), "") for row in rows), (*_cells(total), dealer)]
        table = text_table(head, lines, left=3, total=True)
        return Report.of(self.caption, table, between="\n") if self.caption else table


def _cells(row: MeterRow) -> tuple[str, ...]:
    return (
        row.layer,
        row.kind,
        row.window,
        str(row.rounds),
        f"{row.bits_predicted / 8e3:,.1f}",
        f"{row.bits_sent / 8e3:,.1f}",
        f"{row.offline_bits / 8e3:,.1f}",
        f"{row.received_bits / 8e3:,.1f}",
        f"{row.compute_seconds:.3f}",
        f"{row.wait_seconds:.3f}",
        f"{row.offline_seconds:.3f}",
        f"{row.expanding_seconds:.3f}",
    )


_open: list[Meter] = []


class _At(NamedTuple):
    """The meter's knowledge of one computation: the layer that it is in, and how long it did not compute.

    layer: the layer's qualified name, "" outside of layers. idle: seconds so far, for which it waited or another one
    ran. counted: whether its messages count.
    """

    layer: str = ""
    idle: float = 0.0
    counted: bool = True


# Each computation has its own: two slices of a net may take turns (channel/interleave.py).
_START = _At()
_at: contextvars.ContextVar[_At] = contextvars.ContextVar("at", default=_START)


@contextlib.contextmanager
def meter() -> Iterator[Meter]:
    """Return a context that counts the messages, rounds and seconds of its block in a new `Meter`.

    >>> session = hummingbird.init()
    >>> private = hummingbird.convert_model(net)
    >>> shared = hummingbird.cryptensor(images, src=0)
    >>> with hummingbird.meter() as meter:
    ...     result = private(shared)
    >>> list(meter.rows), meter.total.rounds
    (['0', '1', '2', '2.lift'], 0)
    >>> hummingbird.uninit()
    """
    opened, started = Meter(), time.perf_counter()
    _open.append(opened)
    try:
        yield opened
    finally:
        opened.seconds = time.perf_counter() - started
        _open.remove(opened)


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Stop all meters of this process from counting within a `with` block, as for messages that are not a net's."""
    before, layer_before = _open[:], _open_layer("")
    _open.clear()
    try:
        yield
    finally:
        _open[:] = before
        _open_layer(layer_before)


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """Return a context whose messages no meter counts, as those of a thread that makes material in the background."""
    before = _at.get()
    _at.set(before._replace(counted=False))
    try:
        yield
    finally:
        _at.set(before)


def current_layer() -> str:
    """Return the qualified name of the layer that the calling code computes; "" outside of layers."""
    return _at.get().layer


def _open_layer(name: str) -> str:
    """Set the name of the layer that the calling computation is now in; return the name of the layer before."""
    at = _at.get()
    _at.set(at._replace(layer=name))
    return at.layer


@contextlib.contextmanager
def within(name: str) -> Iterator[None]:
    """Return a context whose messages and waits count for the layer `name`, beside what the layer itself counts."""
    before = _open_layer(name)
    try:
        yield
    finally:
        _open_layer(before)


def count(
    *,
    bits: int = 0,
    rounds: int = 0,
    waited: float = 0.0,
    offline_bits: int = 0,
    received_bits: int = 0,
    offline_seconds: float = 0.0,
    expanding_seconds: float = 0.0,
    dealer_seconds: float = 0.0,
) -> None:
    """Add these numbers to the current layer's row in every meter that is counting.

    bits: those that this party sends. waited: seconds of waiting for the other parties. The other arguments are named
    as the fields of `MeterRow` to which they are added.
    """
    away(waited + offline_seconds)
    for opened in _open if _at.get().counted else ():
        row = opened.row(current_layer() or OUTSIDE)
        row.bits_sent += bits
        row.rounds += rounds
        row.wait_seconds += waited
        row.offline_bits += offline_bits
        row.received_bits += received_bits
        row.offline_seconds += offline_seconds
        row.expanding_seconds += expanding_seconds
        row.dealer_seconds += dealer_seconds


def away(seconds: float) -> None:
    """Note that the current layer did not compute for these seconds: the computation waited, or another one ran."""
    at = _at.get()
    _at.set(at._replace(idle=at.idle + seconds))


@contextlib.contextmanager
def layer(name: str, kind: str, predicted: Cost, *, window: str = "", elements: int = 0) -> Iterator[None]:
    """Return a context that counts messages and seconds of its block for one layer, in every meter that counts.

    name: the layer's qualified name. kind: its operation. predicted: its price. window: its window as text. elements:
    how many values it works on.
    """
    before, idle, started = _open_layer(name), _at.get().idle, time.perf_counter()
    try:
        yield
    finally:
        computing = time.perf_counter() - started - (_at.get().idle - idle)
        _open_layer(before)
        for opened in _open:
            row = opened.row(name)
            row.kind, row.window = kind, window
            row.calls += 1
            row.elements += elements
            row.rounds_predicted += predicted.rounds
            row.bits_predicted += predicted.bits
            row.offline_bits_predicted += predicted.offline_bits
            row.compute_seconds += computing
