"""The material of a session of two parties without a dealer: a background thread makes it with the other party.

The thread has a connection of its own (`init(dealer="pair")`). What it makes next depends on what a party waits for,
and on its memory. Party 0 decides, and announces each piece of work; party 1 follows. All requests of a piece are made
in lock-step. Where a slice is cut into pieces follows from its requests alone (`calls_of`), so that the rounds of its
material are known before. An announcement has four numbers: which supply, its first request, how many requests, and a
digest of them, which party 1 compares with its own. Without work, party 0 announces nothing to do every quarter of the
timeout, so that party 1 notices if it is gone.

Reservations come in the same order at both parties, so a supply has the same number at both. Party 1 may get an
announcement before it reserves the supply; it waits for that, `timeout` seconds at most. Party 1 never waits for
material that party 0 does not need as well: both make the same requests between two messages of the net.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from hummingbird.channel import meter
from hummingbird.channel.channel import Channel
from hummingbird.errors import AgreementError, ConfigError, DealerError, PeerError
from hummingbird.mpc.correlations.request import Material, ReceiverTurn, Request
from hummingbird.mpc.dealer.store import OWNER
from hummingbird.mpc.dealer.supplies import (
    CALL_REQUESTS,
    OnDemand,
    Requests,
    StepSupplies,
    Supplies,
    Supply,
    SupplyState,
)
from hummingbird.mpc.pair.material import PairMaterial, cost_from, fastest, recipe_of, seconds
from hummingbird.mpc.pair.price import DEFAULT, EMPTY, KINDS, PairCost, Stock
from hummingbird.mpc.protocols.step_tables import Link, TableChoice, TransferKind

_NAME = "pair"  # in place of a dealer's address
BUFFER_BYTES = 256 << 20
CALL_BYTES = 8 << 20  # of the shares that one call makes: a call works with some 25 times as much memory
_SLOWEST = 1e5  # bytes of shares per second; a slower link counts as dead
_NOTHING = -1  # in place of a supply's number
_WHERE = "material of two parties"
_SAME = "both parties must run the same net on the same batches"


def _digest(requests: Requests) -> int:
    """Return a digest of requests as a number of 64 bits, signed."""
    text = "\n".join(map(str, requests)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big", signed=True)


def calls_of(requests: Requests) -> list[Requests]:
    """Cut a slice's requests into those of each call that makes material, in order.

    A call has as many requests as have `CALL_BYTES` of shares together, at most `CALL_REQUESTS`, and at least one.
    """
    sizes, found, at = [request.share_bytes for request in requests], list[Requests](), 0
    while at < len(sizes):
        found.append(requests[at : at + _call(sizes, at, CALL_BYTES)])
        at += len(found[-1])
    return found


def _call(sizes: Sequence[int], at: int, call_bytes: int) -> int:
    """Return how many requests one call makes, which begins with the request of index `at`.

    sizes: bytes of the shares of each request. call_bytes: bound on those of a call with several requests.
    """
    left, count = call_bytes, 0
    for size in sizes[at : at + CALL_REQUESTS]:
        if size > left:
            break
        left, count = left - size, count + 1
    return max(count, 1)


def slice_cost(requests: Requests, stock: Stock = EMPTY) -> PairCost:
    """Return what two parties send each other for the material of one slice, without the announcements; exact.

    stock: the transfers that the parties have. Raises ConfigError for a kind that two parties cannot make.
    """
    total = PairCost(0, 0, 0, 0, 0)
    for call in calls_of(requests):
        each, stock = cost_from(stock, call)
        total += each
    return total


def in_seconds(requests: Requests, transfers: TransferKind, bandwidth: float, rtt: float) -> str:
    """Return in words how long the material of one slice takes, with the processor's time, by several transfers.

    transfers: those of the plan. bandwidth: bits per second of each party. rtt: round-trip time, seconds.
    """
    best = fastest(rtt, bandwidth)
    times = {
        str(TableChoice(_NAME, transfers=kind)): sum(seconds(call, kind, bandwidth, rtt) for call in calls_of(requests))
        for kind in (transfers, *KINDS.values(), best)
    }
    each = "; ".join(f"{name} {1e3 * time:,.2f} ms" for name, time in times.items())
    chosen = f"dealer {_NAME}:{rtt:g}:{bandwidth:g} is {TableChoice(_NAME, transfers=best)}"
    return f"material with the processor's time: {each}\nthe fastest for many ReLUs on this link: {chosen}"


def link_of(dealer: object) -> Link | None:
    """Return the link that "pair:RTT:BANDWIDTH" describes; None for another dealer of `init`."""
    name, _, how = dealer.partition(":") if isinstance(dealer, str) else ("", "", "")
    try:
        return TableChoice.of(f"link:{how}").link if name == _NAME and how.count(":") == 1 else None
    except ConfigError:
        return None


def transfers_of(dealer: object) -> TransferKind | None:
    """Return how two parties make transfers if `init` has this dealer; None unless they make their material.

    dealer: "pair", "pair:KIND" (`TransferKind`), or "pair:RTT:BANDWIDTH" for the `fastest` ones on a link with so many
    seconds there and back and bits per second of each party. Raises ConfigError for another text behind "pair:".
    """
    name, _, how = dealer.partition(":") if isinstance(dealer, str) else ("", "", "")
    if name != _NAME or how.isdigit():  # a host of that name, and its port
        return None
    if not how:
        return DEFAULT
    try:
        if how.partition(":")[0] in KINDS:
            return TransferKind.of(how)
    except ConfigError:
        pass
    if (link := link_of(dealer)) is None:
        kinds = ", ".join(f'"{_NAME}:{each}"' for each in KINDS)
        hint = f'"{_NAME}", {kinds}, or "{_NAME}:RTT:BANDWIDTH" with seconds there and back and bits per second; '
        raise ConfigError(f"dealer={dealer!r}", where="init", hint=f"{hint}else a dealer's address")
    return fastest(link.rtt, link.bandwidth)


class PairDealer:
    """A party's source of material that it makes with one other party; `correlation(request)` returns its shares.

    channel: between the two parties, for this object alone; `close` closes it. Both parties make this object at the
        same time, which takes three rounds.
    transfers: how random transfers are made, as `PairMaterial` takes it.
    buffer_bytes: bound on the bytes of shares that are made ahead of their use.
    Raises ConfigError unless there are two parties, and AgreementError if they name different transfers.
    """

    slice_shape = None
    bound: dict[str, bytes]  # by name: digests of what the material is made for; a store serves nothing else

    def __init__(self, channel: Channel, transfers: TransferKind = DEFAULT, buffer_bytes: int = BUFFER_BYTES) -> None:
        with meter.uncounted():
            self._material = PairMaterial(channel, transfers)
        self._channel, self.aim, self.bound = channel, str(TableChoice(_NAME, transfers=transfers)), {}
        kind = _Leading if channel.rank == 0 else _Following
        self._supplies: Supplies = kind(channel, self._make, buffer_bytes)
        self._supplies.begin()

    def __repr__(self) -> str:
        return "no dealer: the two parties make their material"

    def correlation(self, request: Request[Any]) -> Material:
        """Return this party's shares for one request, as `Material`.

        Raises ConfigError for a kind that two parties cannot make, and DealerError or PeerError if the other party
        fails.
        """
        return self.reserve([request]).correlation(request)

    def reserve(self, requests: Requests | None, conversation: int = 0) -> Supply | OnDemand:
        """Begin to make the material of one slice in the background, in the order of `requests`; return it as a supply.

        requests: None if they are not known: then each request's material is made when the slice asks for it.
        conversation: 0; there are none (`converse`).
        """
        if requests is None:
            return OnDemand(lambda request: self.reserve([request]).correlation(request))
        for request in requests:
            recipe_of(request)
        return self._supplies.reserve([ReceiverTurn(0, 0, 0)] * len(requests), requests)

    def converse(self, facts: dict[str, str], steps: Sequence[Requests] | None) -> StepSupplies:
        """Raise ConfigError: two parties cannot make masks that stay for a conversation. facts, steps: not read."""
        raise ConfigError("a conversation without a dealer", where="dealer", hint="name a dealer: dealer=HOST:PORT")

    def own(self, key: int, weight: Tensor) -> None:
        """Keep a private weight of this party, int64, for requests with this key; it never leaves the process."""
        self._material.weights[key] = weight

    def bind(self, name: str, digest: bytes) -> None:
        """Keep the digest of private weights, or of their owner's name, for a store of this material (`bound`)."""
        self.bound[name] = digest

    def admit(self, facts: dict[str, str], shapes: Sequence[tuple[int, ...]]) -> None:
        """Raise ConfigError unless two parties can make the material of a net with these facts.

        facts: of the net. shapes: of its slices, which are not read here: material is made for any shape.
        """
        if facts["aim"] != self.aim:
            what = (
                f"the net was converted with aim={facts['aim']!r}, and the two parties make material for {self.aim!r}"
            )
            raise ConfigError(what, where="aim", hint=f"leave aim out, or convert the net with aim={self.aim!r}")
        if facts["weights"] != "public":
            self.bind(OWNER, facts["weights"].encode())

    def stay(self) -> None:
        """Do nothing: no third party could drop this session."""

    def close(self) -> None:
        """End the background thread and its connection. Never raises; may be called twice."""
        self._supplies.close()

    def _make(self, turns: Sequence[ReceiverTurn], requests: Requests) -> Iterator[Material]:
        try:
            yield from self._material.make(requests)
        except PeerError as error:
            raise DealerError(error.what, where=_WHERE, hint=error.hint) from None


class _PairSupplies(Supplies):
    """The background thread of one of the two parties. channel: its own. make, buffer_bytes: as `Supplies` has them."""

    late = "is the link to the other party too slow, or a machine overloaded? init(timeout=...) takes more seconds"

    def __init__(self, channel: Channel, make: Any, buffer_bytes: int) -> None:
        self.channel, timeout, most = channel, channel.timeout, min(CALL_BYTES, buffer_bytes // 4)
        super().__init__(make, _WHERE, lambda size: 2 * timeout + size / _SLOWEST, channel.close, buffer_bytes, most)

    def _fitting(self, work: SupplyState, room: int) -> int:
        """Return the number of requests of the supply's next call, which does not depend on memory; 0: it must wait."""
        count = _call(work.sizes, work.made, self._call)
        fits = sum(work.sizes[work.made : work.made + count]) <= room
        return count if fits or (work.wanted and work.made == work.taken) else 0

    def _run(self) -> None:
        with meter.uncounted():
            super()._run()
        if self.reason:
            self.channel.abort(self.reason)  # the other party would wait until the timeout


class _Leading(_PairSupplies):
    """Party 0's thread: it chooses what is made next, and announces it."""

    def __init__(self, channel: Channel, make: Any, buffer_bytes: int) -> None:
        super().__init__(channel, make, buffer_bytes)
        self.pulse = channel.timeout / 4

    def idle(self) -> None:
        self._announce(_NOTHING, 0, 0, 0)

    def next_job(self) -> tuple[SupplyState, int, int] | None:
        if (job := super().next_job()) is not None:
            work, start, count = job
            self._announce(work.number, start, count, _digest(work.requests[start : start + count]))
        return job

    def _announce(self, *numbers: int) -> None:
        self.channel.send(1, torch.tensor(numbers))


class _Following(_PairSupplies):
    """Party 1's thread: it makes what party 0 announces."""

    def __init__(self, channel: Channel, make: Any, buffer_bytes: int) -> None:
        super().__init__(channel, make, buffer_bytes)
        self._open: dict[int, SupplyState] = {}  # supplies that are not made to their end, by number

    def reserve(self, turns: Sequence[ReceiverTurn], requests: Requests, make: Any = None) -> Supply:
        with self._changed:
            supply = super().reserve(turns, requests, make)
            if requests:
                self._open[supply.work.number] = supply.work
            self._changed.notify_all()
        return supply

    def next_job(self) -> tuple[SupplyState, int, int] | None:
        while not self._over:
            number, start, count, digest = self.channel.receive(0, [torch.empty(4, dtype=torch.int64)])[0].tolist()
            if number == _NOTHING:
                continue
            work = self._reserved_as(number)
            if work is None:
                return None
            if start != work.made or not 0 < count <= len(work.requests) - start:
                what = (
                    f"party 0 makes requests {start} to {start + count} of supply {number}, this party {work.made} on"
                )
                raise AgreementError(what, where=_WHERE, hint=_SAME)
            if digest != _digest(asked := work.requests[start : start + count]):
                what = f"party 0 makes material of other requests than this party, which needs {asked[0]}"
                what = f"{what} and {count - 1} more" if count > 1 else what
                raise AgreementError(what, where=_WHERE, hint=_SAME)
            work.made += count
            if work.made == len(work.requests):
                del self._open[number]
            return work, start, count
        return None

    def _reserved_as(self, number: int) -> SupplyState | None:
        """Wait until this party reserves the supply with this number; return its state, or None after `close`."""
        deadline = time.monotonic() + self.channel.timeout
        with self._changed:
            while number not in self._open and not self._over:
                if not self._changed.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                    what = f"party 0 makes material for slice {number}, which this party did not begin"
                    hint = f"within {self.channel.timeout:g} s: is it much slower? init(timeout=...) takes more seconds"
                    raise PeerError(what, where=_WHERE, hint=hint)
            return None if self._over else self._open[number]
