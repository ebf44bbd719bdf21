"""The parties' channel, over real sockets between threads: exact exchange, and one clear error for everything else."""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from hummingbird.channel import channel as wire
from hummingbird.channel import meter
from hummingbird.channel.channel import Channel
from hummingbird.errors import AgreementError, HummingbirdError, PeerError
from tests.support.covering import every
from tests.support.parties import channels, together
from tests.support.patience import NEVER

BIG = 1 << 20  # words: 8 MB, above all socket buffers


@pytest.fixture(autouse=True)
def layer_per_thread(monkeypatch: pytest.MonkeyPatch) -> threading.local:
    """The current layer is a fact of the process; here, where threads are parties, of the thread."""
    place = threading.local()
    monkeypatch.setattr(meter, "current_layer", lambda: getattr(place, "layer", ""))
    return place


def run(functions: Sequence[Callable[[], Any]]) -> list[Any]:
    """Every function's result or error of ours; anything else fails the test."""

    def caught(function: Callable[[], Any]) -> Any:
        try:
            return function()
        except HummingbirdError as error:
            return error

    return together([lambda f=f: caught(f) for f in functions])


@contextlib.contextmanager
def opened(parties: int, timeout: float = NEVER) -> Iterator[list[Channel]]:
    made = channels(parties, timeout)
    try:
        yield made
    finally:
        for channel in made:
            channel.close()


def payload(rank: int, words: int) -> list[Tensor]:
    torch.manual_seed(rank)
    return [torch.randint(-(2**63), 2**63 - 1, (words, 2)), torch.randint(0, 256, (words, 3), dtype=torch.uint8)]


# Exchange -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parties", [2, 3, 4])
@pytest.mark.parametrize("words", [0, 1, 1000, 1 << 19], ids=["empty", "small", "above a buffer", "10 MB"])
def test_everybody_gets_what_the_others_sent(parties: int, words: int) -> None:
    if parties == 4 and words > 1000:
        pytest.skip("three parties show it")
    sent = [payload(rank, words) for rank in range(parties)]
    with opened(parties) as made, meter.meter() as m:
        results = run([lambda c=c: [c.exchange(*sent[c.rank]) for _ in range(2)] for c in made])
    for rank, both in enumerate(results):
        for received in both:
            assert sorted(received) == [peer for peer in range(parties) if peer != rank]
            for peer, tensors in received.items():
                assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(tensors, sent[peer], strict=True))
    # All parties report to this process's meter.
    assert m.total.bits_sent == 2 * parties * (parties - 1) * 8 * (20 + words * (16 + 3))
    assert m.total.rounds == 2 * parties


def test_a_party_alone_exchanges_nothing() -> None:
    with opened(1) as (alone,):
        assert alone.exchange(torch.ones(3)) == {} and alone.exchange_text("x") == {} and alone.others == []


def test_views_and_other_types() -> None:
    base = torch.arange(24).view(4, 6)
    values = [base.t()[::2], torch.ones(2, dtype=torch.float64), torch.tensor(3.5), torch.tensor([True, False])]
    with opened(2) as (a, b):
        got, _ = run([lambda: b.exchange(*values)[0], lambda: a.exchange(*values)])
        assert all(torch.equal(x, y) and x.shape == y.shape for x, y in zip(got, values, strict=True))


def test_many_small_messages_stay_in_order() -> None:
    with opened(2) as (a, b):

        def talk(channel: Channel) -> list[int]:
            return [int(next(iter(channel.exchange(torch.tensor([i])).values()))[0]) for i in range(500)]

        assert run([lambda: talk(a), lambda: talk(b)]) == [list(range(500))] * 2


def test_point_to_point() -> None:
    big = torch.randint(0, 9, (BIG,))
    with opened(3) as (a, b, c):
        got = run(
            [
                lambda: (a.send(1, big), a.send(2, torch.tensor([7]))),
                lambda: b.receive(0, [torch.empty_like(big)])[0],
                lambda: c.receive(0, [torch.zeros(1, dtype=torch.int64)])[0],
            ]
        )
    assert torch.equal(got[1], big) and got[2].item() == 7


@pytest.mark.parametrize("words", [3, BIG])
def test_two_parties_swap_messages_of_different_sizes(words: int) -> None:
    first, second = payload(0, words), payload(1, words // 2)
    with opened(2) as made, meter.meter() as counted:
        got = together([lambda: made[0].swap(1, first, second), lambda: made[1].swap(0, second, first)])
    assert all(torch.equal(a, b) for a, b in zip([*got[0], *got[1]], [*second, *first], strict=True))
    assert counted.total.rounds == 2


def test_texts() -> None:
    texts = ["", "ä" * 1000, "x" * (1 << 19)]
    with opened(3) as made:
        got = run([lambda c=c: c.exchange_text(texts[c.rank]) for c in made])
    for rank, received in enumerate(got):
        assert received == {peer: texts[peer] for peer in range(3) if peer != rank}


# Disagreement ---------------------------------------------------------------------------------------------------------


def disagree(first: Callable[[Channel], Any], second: Callable[[Channel], Any], timeout: float = NEVER) -> list[Any]:
    with opened(2, timeout) as (a, b):
        return run([lambda: first(a), lambda: second(b)])


@pytest.mark.parametrize("size", [4, BIG], ids=["small", "8 MB"])
def test_another_shape_is_an_agreement_error_at_both_that_names_both(size: int) -> None:
    errors = disagree(
        lambda c: c.exchange(torch.zeros(size).long()), lambda c: c.exchange(torch.zeros(size + 1).long())
    )
    for error in errors:
        assert type(error) is AgreementError, error
        assert f"int64[{size}]" in str(error) and f"int64[{size + 1}]" in str(error), error
        assert "party 0" in str(error) and "party 1" in str(error) and error.hint


def test_another_type_of_the_same_length() -> None:
    for error in disagree(lambda c: c.exchange(torch.zeros(2).long()), lambda c: c.exchange(torch.zeros(2).double())):
        assert type(error) is AgreementError and "int64[2]" in str(error) and "float64[2]" in str(error)


def test_another_layer(layer_per_thread: threading.local) -> None:
    def at(name: str) -> Callable[[Channel], Any]:
        def go(channel: Channel) -> Any:
            layer_per_thread.layer = name
            return channel.exchange(torch.zeros(3))

        return go

    for error in disagree(at("layer1.relu"), at("layer2.relu")):
        assert type(error) is AgreementError and "'layer1.relu'" in str(error) and "'layer2.relu'" in str(error)


def test_a_text_where_a_tensor_was_expected() -> None:
    for error in disagree(lambda c: c.exchange_text("hello"), lambda c: c.exchange(torch.zeros(5, dtype=torch.uint8))):
        assert type(error) is AgreementError and "a text" in str(error) and "uint8[5]" in str(error)


@pytest.mark.parametrize("delay", [0.0, 0.2], ids=["", "late thread"])
def test_one_big_one_small(monkeypatch: pytest.MonkeyPatch, delay: float) -> None:
    """The word about the place must not overtake the big message, whose thread may begin late."""
    serve = Channel._serve

    def late(self: Channel, *arguments: Any) -> None:
        time.sleep(delay)
        serve(self, *arguments)

    monkeypatch.setattr(Channel, "_serve", late)
    for error in disagree(lambda c: c.exchange(torch.zeros(BIG)), lambda c: c.exchange(torch.zeros(1))):
        assert type(error) is AgreementError and f"float32[{BIG}]" in str(error) and "float32[1]" in str(error)


def test_disagreement_of_one_of_three_reaches_all() -> None:
    """Parties 0 and 1 agree; everybody must end with an error, once those who fail say so."""

    def party(channel: Channel) -> Any:
        try:
            return channel.exchange(torch.zeros(3 if channel.rank == 2 else 4)), channel.exchange(torch.zeros(1))
        except HummingbirdError as error:
            channel.abort(str(error))
            return error

    with opened(3) as made:
        errors = run([lambda c=c: party(c) for c in made])
    assert all(isinstance(error, (AgreementError, PeerError)) for error in errors), errors
    assert any(isinstance(error, AgreementError) for error in errors)


# Ends -----------------------------------------------------------------------------------------------------------------


def test_the_reason_of_an_abort_is_delivered_to_all() -> None:
    def waits(channel: Channel) -> Any:
        return channel.exchange(torch.zeros(3))

    with opened(3) as (a, b, c):
        results = run([lambda: a.abort("the disk is full\nhint: buy one"), lambda: waits(b), lambda: waits(c)])
    for rank, error in enumerate(results[1:], 1):
        assert type(error) is PeerError and "party 0 stopped: the disk is full" in str(error)
        assert "buy one" in str(error) and f"party {rank}" in error.where


@pytest.mark.parametrize("size", [3, BIG], ids=["small", "8 MB"])
@pytest.mark.parametrize("delay", [0.0, 0.2])
def test_the_reason_is_found_by_a_party_that_sends(size: int, delay: float) -> None:
    """Also when it lies behind frames that nobody read, and when the failing send runs in another thread."""

    def stops(channel: Channel) -> None:
        channel.send(1, torch.zeros(2))
        channel.abort("because")

    def sends(channel: Channel) -> Any:
        time.sleep(delay)
        for _ in range(3):
            channel.send(0, torch.zeros(size))
            time.sleep(0.05)
        return channel.receive(0, [torch.zeros(2)]), channel.receive(0, [torch.zeros(2)])

    for _ in range(3):
        _, error = disagree(stops, sends)
        assert type(error) is PeerError and "party 0 stopped: because" in str(error), error


def test_the_reason_survives_a_big_exchange() -> None:
    for _ in range(10):
        _, error = disagree(lambda c: c.abort("because"), lambda c: c.exchange(torch.zeros(BIG)))
        assert type(error) is PeerError and "because" in str(error), error


def test_the_reason_of_a_signal_is_delivered_wherever_it_strikes() -> None:
    """An exception of a signal's handler, at any moment of sending, loses neither the count of what is sent nor why."""
    struck: list[int] = []

    def strike(number: int, frame: object) -> None:
        struck.append(number)
        raise PeerError("told to stop", where="here")

    before = signal.signal(signal.SIGALRM, strike)
    try:
        for _ in range(200):
            struck.clear()
            with opened(2) as (a, b):
                # Python drops an exception that a handler raises within a destructor: `struck` ends the loop then.
                try:
                    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-4, 4e-4))
                    for _ in range(1000):  # buffers hold so many
                        if not struck:
                            a.send(1, torch.zeros(2))
                    while not struck:
                        time.sleep(1e-4)
                except PeerError as error:
                    assert "told to stop" in str(error), error
                a.abort("because")
                with pytest.raises(PeerError, match="party 0 stopped: because"):  # noqa: PT012
                    while True:
                        b.receive(0, [torch.zeros(2)])
    finally:
        signal.signal(signal.SIGALRM, before)


def test_an_abort_during_a_big_send_is_no_data() -> None:
    """A reason written between two pieces of a message would be taken for its bytes."""

    def torn(channel: Channel) -> None:
        channel._send([1], [torch.zeros(BIG)])
        time.sleep(0.1)
        channel.abort("changed my mind")

    def slow(channel: Channel) -> Any:
        time.sleep(0.3)
        return channel.receive(0, [torch.zeros(BIG)])[0]

    result = disagree(torn, slow)[1]
    assert isinstance(result, PeerError) or not bool(result.any())


def test_a_closed_peer() -> None:
    _, error = disagree(lambda c: c.close(), lambda c: c.exchange(torch.zeros(3)))
    assert type(error) is PeerError and "party 0 closed the connection" in str(error)


def test_a_send_while_another_thread_closes() -> None:
    with opened(2) as (first, _), pytest.raises(PeerError, match="party 1 closed the connection"):
        for connection in (first._outgoing[1], first._incoming[1]):
            connection.close()
        first.send(1, torch.zeros(3, dtype=torch.int64))


def test_closing_and_aborting_twice() -> None:
    with opened(2) as (a, b):
        a.abort("x")
        a.abort("y")
        a.close()
        assert a.closed
        one = torch.zeros(1)
        for call in (lambda: a.exchange(one), lambda: a.send(1, one), lambda: a.exchange_text("")):
            with pytest.raises(PeerError, match="the session has ended"):
                call()
        b.close()


@pytest.mark.parametrize("size", [4, BIG], ids=["small", "8 MB"])
@pytest.mark.parametrize("timeout", every(2, [0.3, 1.0]))
def test_silence_ends_with_the_timeout(size: int, timeout: float) -> None:
    started = time.monotonic()
    with opened(2, timeout) as (a, _):
        with pytest.raises(PeerError, match=f"sent or took nothing for {timeout:g} s") as caught:
            a.exchange(torch.zeros(size))
        assert time.monotonic() - started >= 0.9 * timeout
        a.abort(str(caught.value))  # the peer still takes nothing
    assert "hummingbird.init(timeout=...)" in caught.value.hint


def test_a_mismatch_with_a_silent_peer_ends_too() -> None:
    with opened(2, 0.5) as (a, b):
        b.send(0, torch.zeros(7))  # and then nothing more
        with pytest.raises(AgreementError, match=r"float32\[3\]"):
            a.exchange(torch.zeros(3))


def test_a_slow_reader_is_not_a_silent_one() -> None:
    """Longer than the timeout in total, but never silent for a tenth of it: 24 MB in pieces."""

    def slowly(channel: Channel) -> int:
        total, connection = 0, channel._incoming[0]
        while total < 20 + 24 * BIG:
            time.sleep(0.025)
            total += len(connection.recv(1 << 18))
        return total

    started = time.monotonic()
    _, total = disagree(lambda c: c.send(1, torch.zeros(3 * BIG).long()), slowly, timeout=2.0)
    assert total == 20 + 24 * BIG and time.monotonic() - started > 2.0


# Garbage --------------------------------------------------------------------------------------------------------------

HEADER = struct.Struct("!2sBBIIQ")


@contextlib.contextmanager
def victim(timeout: float = 0.5) -> Iterator[tuple[Channel, socket.socket]]:
    """Party 0 of two, and the raw end of the connection on which it hears party 1."""
    ours, to_peer = socket.socketpair()
    from_peer, heard = socket.socketpair()
    channel = Channel(0, 2, {1: ours}, {1: heard}, timeout)
    try:
        yield channel, from_peer
    finally:
        channel.close()
        to_peer.close()
        from_peer.close()


@pytest.mark.parametrize(
    ("header", "what"),
    [
        (HEADER.pack(b"xx", 1, 0, 0, 0, 0), "speaks wire version b'xx'"),
        (HEADER.pack(b"hb", 2, 0, 0, 0, 0), "speaks wire version 2, party 0 speaks 1"),
        (HEADER.pack(b"hb", 0, 0, 0, 0, 0), "wire version 0"),
        (HEADER.pack(b"hb", 1, 0, 5, 0, 0), "sent frame 5, party 0 expected frame 0"),
        (b"GET / HTTP/1.1\r\nHost: a", "wire version b'GE'"),
    ],
)
def test_wrong_headers(header: bytes, what: str) -> None:
    with victim() as (channel, peer):
        peer.sendall(header)
        with pytest.raises(AgreementError, match=what) as caught:
            channel.receive(1, [torch.zeros(1)])
        assert caught.value.hint


def test_a_length_that_lies_allocates_nothing() -> None:
    for length in (2**64 - 1, 2**40, 5):
        with victim() as (channel, peer):
            checksum = channel._checksum([torch.zeros(1)])
            peer.sendall(HEADER.pack(b"hb", 1, 0, 0, checksum, length) + bytes(5))
            peer.close()
            with pytest.raises(HummingbirdError):
                channel.receive(1, [torch.zeros(1)])
    for kind in range(256):
        with victim(0.3) as (channel, peer):
            peer.sendall(HEADER.pack(b"hb", 1, kind, 0, 0, 2**63))
            peer.close()
            with pytest.raises(HummingbirdError):
                channel.exchange_text("x")


def test_garbage_gives_our_errors_and_nothing_else() -> None:
    rng = random.Random(1)
    for number in range(200):
        noise = rng.randbytes(rng.randrange(0, 200))
        header = HEADER.pack(
            b"hb" if rng.random() < 0.8 else rng.randbytes(2),
            1 if rng.random() < 0.8 else rng.randrange(256),
            rng.randrange(5),
            0 if rng.random() < 0.8 else rng.randrange(2**32),
            rng.randrange(2**32),
            rng.choice([0, 4, len(noise), 2**20, 2**63]),
        )
        with victim(1.0) as (channel, peer):
            peer.sendall((header if number % 3 else b"") + noise)
            peer.close()
            for call in (lambda c=channel: c.exchange(torch.zeros(1)), lambda c=channel: c.exchange_text("a")):
                try:
                    result = call()
                except HummingbirdError:
                    continue
                assert list(result) == [1] and isinstance(result[1], (str, list))  # a frame that happened to be right


def test_every_truncation_of_a_frame_is_a_lost_peer() -> None:
    frame = HEADER.pack(b"hb", 1, 0, 0, 0, 4) + b"abcd"
    for end in range(len(frame)):
        with victim() as (channel, peer):
            good = HEADER.pack(b"hb", 1, 0, 0, channel._checksum([torch.zeros(1)]), 4) + b"abcd"
            peer.sendall(good[:end])
            peer.close()
            with pytest.raises(PeerError, match="party 1 closed the connection"):
                channel.receive(1, [torch.zeros(1)])


def test_frames_are_documented() -> None:
    assert wire.HEADER_BYTES == HEADER.size == 20
    with victim() as (channel, _), victim() as (other, _):
        tensors = [torch.zeros(2, 3, dtype=torch.int64), torch.zeros(1, dtype=torch.uint8)]
        assert wire.describe(tensors) == "int64[2, 3], uint8[1]"
        assert channel._checksum(tensors) == other._checksum(tensors) != channel._checksum(tensors[:1])


def test_a_loss_is_seen_without_reading() -> None:
    """A party that is gone, though what it has sent before is unread."""
    with opened(3) as parties:
        assert [party.loss() for party in parties] == ["", "", ""]
        parties[2].send(0, torch.zeros(4))
        parties[2].close()
        assert parties[0].loss() == "party 2 closed the connection: it ended or was killed (at party 0)"
        assert parties[2].loss() == ""
