"""Objectives: the cost of an assignment of windows, a sum over its layers, exact in rationals; and budgets as text.

    bits       sum of w x outputs / sum of 64 x outputs, HummingBird's budget (section 4.3): 8/64 keeps 8 bits of each
    bytes      bytes that a party sends online per image, frames included
    seconds    time on the network for a batch of images, at a bandwidth and a round-trip time

The last two are closed forms from the protocols' prices. The masked opening sends k + 2 bits for any m, so with it a
lower k saves, not a narrower window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from hummingbird.bits import BitWindow
from hummingbird.cost import Cost
from hummingbird.errors import ConfigError
from hummingbird.hybrid.convert import PROTOCOL
from hummingbird.hybrid.plan import WIDTHS
from hummingbird.mpc.protocols.registry import named
from hummingbird.ring import SCALE
from hummingbird.window_search.problem import ComparingLayer

# A budget as people write it: 8/64 of all bits, 120kB, 0.05 seconds --------------------------------------------------

_SIZES = {"kB": 1000, "MB": 1000_000}
_HINTS = {"bits": "a fraction of 64 bits, such as 8/64", "bytes": "such as 120kB or 1.5MB", "seconds": "such as 0.05"}


def read_budget(text: str, objective: str, where: str = "budget") -> Fraction:
    """Parse a budget, written in the unit of an objective; return it in bits kept of all bits, bytes, or seconds.

    text: "8/64" for "bits", "120kB" for "bytes", "0.05" for "seconds". objective: one of these names. where: the
    option, for errors. Raises ConfigError for a text that is no number, a number not above 0, and for "bits" a number
    above 1.
    """
    size, factor = text, 1
    if objective == "bytes" and text[-2:] in _SIZES:
        size, factor = text[:-2], _SIZES[text[-2:]]
    above, *below = size.split("/")
    hint = _HINTS.get(objective, "a number above 0")
    try:
        if below and objective != "bits":
            raise ValueError("a fraction of what?")
        (divisor,) = below or ["1"]
        budget = Fraction(above) / Fraction(divisor) * factor
    except (ValueError, ZeroDivisionError):
        raise ConfigError(f"{text!r} is no budget of {objective}", where=where, hint=hint) from None
    if budget <= 0 or (objective == "bits" and budget > 1):
        raise ConfigError(f"a budget of {text} {objective}", where=where, hint=hint)
    return budget


# ---------------------------------------------------------------------------------------------------------------------

Prices = Callable[[ComparingLayer, BitWindow, int], Cost]  # of a layer with a window, for a number of images


@dataclass(frozen=True)
class Objective:
    """The quantity that a budget limits: a price for every layer and window.

    name: such as "bits", "bytes" or "seconds". unit: in words, for errors. price: a function that takes a layer and its
    window, and returns the price. facts: parameters of the objective, for provenance and for the identity of a search.
    least_width: the fewest bits of a window that is not empty.
    """

    name: str
    unit: str
    price: Callable[[ComparingLayer, BitWindow], Fraction]
    facts: Mapping[str, Any] = field(default_factory=dict)
    least_width: int = 2

    def total(self, layers: Iterable[ComparingLayer], windows: Iterable[BitWindow]) -> Fraction:
        """Sum the prices of these layers, each with its window."""
        return sum(map(self.price, layers, windows), Fraction(0))


def relu_prices(protocol: str, parties: int) -> Prices:
    """Return a function that prices ReLUs behind a linear layer.

    The function takes a layer, its window and the number of images in a batch, and returns the layer's `Cost`. Raises
    ConfigError for an unknown protocol or too few parties.
    """
    comparison = named(protocol)
    if type(parties) is not int or parties < 2:
        raise ConfigError(f"{parties!r} parties", where="parties", hint="an integer from 2")

    def price(layer: ComparingLayer, window: BitWindow, images: int) -> Cost:
        return comparison(window).cost(layer.outputs * images, 2 * SCALE, parties)

    return price


def bit_budget(layers: Iterable[ComparingLayer], protocol: str = "masked") -> Objective:
    """Return HummingBird's objective: which fraction of all compared bits the windows of these layers keep.

    A layer counts with all its comparisons per image, of 64 bits each. protocol: the one that decides signs; the
    search takes no window that is narrower than this protocol allows.
    """
    whole = 64 * sum(layer.outputs for layer in layers)

    def price(layer: ComparingLayer, window: BitWindow) -> Fraction:
        return Fraction(window.w * layer.outputs, whole)

    least = WIDTHS[0] if protocol == PROTOCOL else named(protocol).least_width
    return Objective("bits", "of 64 bits per output", price, {"protocol": protocol}, least)


def online_bytes(protocol: str, parties: int, *, images: int = 1, prices: Prices | None = None) -> Objective:
    """Return the objective of bytes: what a window costs is how many bytes a party sends online for it, per image.

    images: how many images form a batch, which share frame headers. prices: a function that prices the net's layers
    (`SearchedNet.prices`); None: all layers are ReLUs behind a linear layer.
    """
    priced = prices or relu_prices(protocol, parties)
    _positive("images", images)

    def price(layer: ComparingLayer, window: BitWindow) -> Fraction:
        return Fraction(priced(layer, window, images).bits, 8 * images)

    facts = {"protocol": protocol, "parties": parties, "images": images}
    return Objective("bytes", "bytes sent per party and image", price, facts, named(protocol).least_width)


def predicted_seconds(
    protocol: str,
    parties: int,
    *,
    bandwidth: float,
    rtt: float,
    images: int = 1,
    prices: Prices | None = None,
) -> Objective:
    """Return the objective of seconds: what a window costs is its time on the network, for a batch of images.

    bandwidth: bits per second. rtt: round-trip time in seconds. images: how many form the batch. prices: a function
    that prices the net's layers (`SearchedNet.prices`); None: all layers are ReLUs behind a linear layer.
    """
    priced = prices or relu_prices(protocol, parties)
    _positive("images", images)
    _positive("bandwidth", bandwidth)
    if not 0 <= rtt < float("inf"):
        raise ConfigError(f"a round-trip time of {rtt!r}", where="rtt", hint="seconds, 0 or more")

    def price(layer: ComparingLayer, window: BitWindow) -> Fraction:
        return Fraction(priced(layer, window, images).seconds(bandwidth, rtt))

    facts = {"protocol": protocol, "parties": parties, "images": images, "bandwidth": bandwidth, "rtt": rtt}
    return Objective("seconds", "seconds per batch", price, facts, named(protocol).least_width)


def _positive(what: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise ConfigError(f"{what} is {value!r}", where=what, hint="a positive number")
