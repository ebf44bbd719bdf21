"""Working ahead: order, the bound on memory, two slices in turns, errors that surface, an end in any case."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from hummingbird.errors import DealerError
from hummingbird.kernels.streams import Drawn
from hummingbird.mpc.correlations.request import Material, ReceiverTurn, Request, corrections, expand, received
from hummingbird.mpc.dealer.folder import chunk_checksum
from hummingbird.mpc.dealer.supplies import Supplies, Supply
from hummingbird.mpc.protocols.beaver import SquarePair
from tests.support.correlation_checks import CASES
from tests.support.patience import HANG, NEVER, until

UNIT = SquarePair((1,)).share_bytes


def square(size: int) -> SquarePair:
    """A request of `size` units of memory."""
    return SquarePair((size,))


class Maker:
    """Material whose only content is its index; notes what was made in one go."""

    def __init__(self, fail_at: int = -1, gate: threading.Event | None = None) -> None:
        self.fail_at, self.gate = fail_at, gate
        self.calls: list[tuple[int, int]] = []

    def __call__(self, turns: Sequence[ReceiverTurn], requests: Sequence[Request[Any]]) -> Iterator[Material]:
        first = turns[0].number
        assert turns == [ReceiverTurn(0, first + place) for place in range(len(requests))]
        self.calls.append((first, len(requests)))
        for index in range(first, first + len(requests)):
            if self.gate is not None:
                self.gate.wait(NEVER)
            if index == self.fail_at:
                raise DealerError(f"no material {index}", where="the maker", hint="none")
            yield Material({"r": torch.tensor(index)}, 3, 2, expanding_seconds=0.5, dealer_seconds=0.25)

    @property
    def made(self) -> list[int]:
        return [index for first, count in self.calls for index in range(first, first + count)]


def begin(maker: Maker, units: int = 10, call: int = 4, patience: float = NEVER, **options: Any) -> Supplies:
    return Supplies(maker, "here", lambda size: patience, buffer_bytes=units * UNIT, call_bytes=call * UNIT, **options)


def reserve(supplies: Supplies, first: int, requests: Sequence[Request[Any]]) -> Supply:
    """Reserve requests whose turns have the numbers from `first` on."""
    return supplies.reserve([ReceiverTurn(0, first + place) for place in range(len(requests))], requests)


def number(supply: Supply, request: Request[Any]) -> int:
    return int(supply.correlation(request).shares["r"])


def test_in_order_and_with_its_cost() -> None:
    supplies = begin(Maker())
    first, second = reserve(supplies, 0, [square(1)] * 5), reserve(supplies, 5, [square(1)] * 3)
    taken = [first.correlation(square(1)) for _ in range(5)]
    assert [int(material.shares["r"]) for material in taken] == [0, 1, 2, 3, 4]
    for material in taken:
        assert (material.offline_bits, material.received_bits) == (3, 2)
        assert (material.expanding_seconds, material.dealer_seconds) == (0.5, 0.25)
        assert material.waiting_seconds > 0
    assert [number(second, square(1)) for _ in range(3)] == [5, 6, 7]
    supplies.close()


def test_the_buffer_is_filled_and_never_exceeded() -> None:
    maker = Maker()
    supplies = begin(maker, units=10, call=4)
    supply = reserve(supplies, 0, [square(1)] * 100)
    until(lambda: len(maker.made) == 10)
    time.sleep(0.1)
    assert maker.made == list(range(10)) and max(count for _, count in maker.calls) <= 4
    for index in range(100):
        assert number(supply, square(1)) == index
        assert len(maker.made) <= index + 11
    assert supplies.most_held <= 10 * UNIT
    supplies.close()


def test_a_request_beyond_the_bound_is_made_when_somebody_waits_for_it() -> None:
    maker = Maker()
    supplies = begin(maker, units=10)
    supply = reserve(supplies, 0, [square(2), square(50), square(2)])
    until(lambda: maker.made == [0])
    time.sleep(0.1)
    assert maker.made == [0]
    assert [number(supply, request) for request in (square(2), square(50), square(2))] == [0, 1, 2]
    supplies.close()


@pytest.mark.parametrize("units", [1, 3, 10, 1000])
def test_two_supplies_in_turns_cannot_block_each_other(units: int) -> None:
    """Whatever the bound: the first one's material must not fill it while somebody waits for the second one's."""
    supplies = begin(Maker(), units=units)
    parts = [reserve(supplies, start, [square(1)] * 60) for start in (0, 60, 120)]
    for step in range(60):
        for place in (1, 0):
            assert number(parts[place], square(1)) == 60 * place + step
    assert supplies.most_held <= (units + 1) * UNIT  # and the one that somebody waits for
    assert [number(parts[2], square(1)) for _ in range(60)] == list(range(120, 180))
    supplies.close()


def test_another_request_than_the_reserved_one_is_refused_and_costs_nothing() -> None:
    supplies = begin(Maker())
    supply = reserve(supplies, 0, [square(1), square(2)])
    with pytest.raises(DealerError, match=r"for square .*\[3\].*, but square .*\[1\].* was reserved") as caught:
        supply.correlation(square(3))
    assert caught.value.where == "here" and caught.value.hint
    assert [number(supply, request) for request in (square(1), SquarePair((2,)))] == [0, 1]
    with pytest.raises(DealerError, match="but nothing more was reserved"):
        supply.correlation(square(1))
    supplies.close()


def test_an_error_surfaces_where_its_material_is_missing() -> None:
    supplies = begin(Maker(fail_at=2))
    supply, other = reserve(supplies, 0, [square(1)] * 5), reserve(supplies, 5, [square(1)])
    assert [number(supply, square(1)) for _ in range(2)] == [0, 1]
    with pytest.raises(DealerError, match="no material 2"):
        supply.correlation(square(1))
    for later in (supply, other, reserve(supplies, 6, [square(1)])):
        with pytest.raises(DealerError, match="an earlier request failed"):
            later.correlation(square(1))
    supplies.close()
    assert supplies._thread is not None and not supplies._thread.is_alive()


def test_a_take_waits_only_while_something_is_made() -> None:
    gate = threading.Event()
    supplies = begin(Maker(gate=gate), patience=0.3)
    started = time.monotonic()
    with pytest.raises(DealerError, match="no correlated randomness for 0 s") as caught:
        reserve(supplies, 0, [square(1)]).correlation(square(1))
    assert time.monotonic() - started >= 0.3 and caught.value.hint
    gate.set()
    supplies.close()


def test_closing_ends_the_thread_and_those_who_wait() -> None:
    gate = threading.Event()
    supplies = begin(Maker(gate=gate), cancel=gate.set)
    supply, errors = reserve(supplies, 0, [square(1)] * 3), []

    def wait() -> None:
        try:
            while True:
                supply.correlation(square(1))
        except DealerError as error:
            errors.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.05)
    supplies.close()
    supplies.close()
    waiting.join(HANG)
    assert "the client is closed" in errors[0]
    assert supplies._thread is not None and not supplies._thread.is_alive()


def test_closing_after_a_signal_has_struck_while_the_thread_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def struck(self: threading.Thread) -> None:
        raise DealerError("told to stop")

    supplies = begin(Maker())
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", struck)
        with pytest.raises(DealerError, match="told to stop"):
            reserve(supplies, 0, [square(1)])
    supplies.close()  # has nobody to wait for


def test_closing_does_not_wait_for_a_maker_that_never_ends() -> None:
    gate = threading.Event()
    maker = Maker(gate=gate)
    supplies = begin(maker)
    supply = reserve(supplies, 0, [square(1)])
    until(lambda: maker.made == [0])
    supplies.close()
    assert supplies._thread is not None and supplies._thread.is_alive()
    with pytest.raises(DealerError, match="the client is closed"):
        supply.correlation(square(1))
    gate.set()


def test_a_slice_that_was_given_up_holds_no_memory() -> None:
    maker = Maker()
    supplies = begin(maker, units=4)
    given_up = reserve(supplies, 0, [square(1)] * 4)
    until(lambda: len(maker.made) == 4)
    del given_up
    gc.collect()
    supply = reserve(supplies, 4, [square(1)] * 4)
    until(lambda: maker.made == list(range(8)))
    assert [number(supply, square(1)) for _ in range(4)] == [4, 5, 6, 7]
    supplies.close()


def test_the_size_of_shares_in_memory() -> None:
    """A share that a kernel draws later takes no memory; the receiver's counts as if it were drawn."""
    for request, _ in CASES:
        seeds = [bytes(16), bytes(range(16))]
        for rank in range(2):
            turn = ReceiverTurn(0, 0)
            shares = expand(request, turn, seeds[rank], rank)
            shares |= received(request, corrections(request, turn, seeds)) if rank == 0 else {}
            stored = [share for share in shares.values() if rank == 0 or not isinstance(share, Drawn)]
            size = sum(share.nbytes for share in stored)
            assert request.share_bytes == size if rank == 0 else request.share_bytes >= size, request


def test_a_dealer_killed_while_nobody_waits_is_an_error_of_the_next_take(running: Any) -> None:
    """Through real clients: party 0's error, in the background, is what its next take says."""
    client = running.all(1)[0]
    requests = [square(1 << 16)] * 40
    supply = client.reserve(requests)
    supply.correlation(requests[0])
    client._cancel()
    with pytest.raises(DealerError):
        for request in requests[1:]:
            supply.correlation(request)
            client._cancel()
    with pytest.raises(DealerError, match="an earlier request failed"):
        client.correlation(square(1))


def test_interleaved_slices_and_takes_from_real_clients(running: Any) -> None:
    """Turns are given out by reservations and takes, whatever is fetched first: the shares fit each other."""
    clients = running.all(2)
    request = square(3)
    columns = []
    for client in clients:
        one, two = client.reserve([request] * 4), client.reserve([request] * 4)
        orders = "2 1 0 2 1 1 2 0 1 2".split()
        sources = [{"0": client, "1": one, "2": two}[who] for who in orders]
        columns.append([tuple(source.correlation(request).shares.values()) for source in sources])
    seen = set()
    for (r0, s0), (r1, s1) in zip(*columns, strict=True):
        assert torch.equal(s0 + s1, (r0 + r1) ** 2)
        seen.add(tuple((r0 + r1).tolist()))
    assert len(seen) == 10


def test_other_threads_go_on_while_a_checksum_is_computed() -> None:
    """It gives the interpreter's lock back, which nobody else is given here: no thread is interrupted for hours."""
    interval, steps, over = sys.getswitchinterval(), 0, threading.Event()

    def other() -> None:
        nonlocal steps
        while not over.is_set():
            time.sleep(1e-4)
            steps += 1

    data, thread = bytes(16 << 20), threading.Thread(target=other)
    sys.setswitchinterval(HANG)
    try:
        thread.start()
        before, seen = steps, []
        for number in range(50):
            chunk_checksum(bytes(16), number, [data])
            seen.append(steps)
    finally:
        sys.setswitchinterval(interval)
        over.set()
        thread.join()
    assert seen[-1] > before
