"""A connection's ends: bytes of a known length, silence, ends, and errors of either role."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hummingbird.errors import InputError, PeerError, StoreError
from hummingbird.hybrid.message_stream import MessageStream, Outgoing, answered, both, called, paired
from hummingbird.rpc import client as rpc_client
from hummingbird.rpc import service
from tests.support.patience import HANG, NEVER


def test_bytes_arrive_and_are_counted_by_name() -> None:
    data, model = paired(HANG)
    sent = torch.arange(3 << 20).to(torch.uint8)
    data.send("tables", sent)
    data.send("end", b"x")
    assert torch.equal(model.receive("tables", len(sent)), sent)
    assert model.receive("end", 1).tolist() == [ord("x")]
    assert data.sent == model.received == {"tables": len(sent), "end": 1}
    assert model.receive("nothing", 0).shape == (0,)


def test_other_lengths_are_errors() -> None:
    data, model = paired(HANG)
    data.send("a", bytes(9))
    with pytest.raises(InputError, match="malformed message: 9 bytes for b, of which 8 are missing"):
        model.receive("b", 8)
    for size in (6, 3):
        data.send("a", bytes(size))
    with pytest.raises(InputError, match="malformed message: 3 bytes for b, of which 2 are missing"):
        model.receive("b", 8)
    data.send("a", bytes(7))
    data.end()
    with pytest.raises(PeerError, match="ended before it sent b"):
        model.receive("b", 8)


def test_silence_is_an_error() -> None:
    data, _ = paired(0.1)
    with pytest.raises(PeerError, match="nothing came for 0 s, awaited: x"):
        data.receive("x", 1)


def test_sending_waits_for_a_side_that_does_not_read() -> None:
    outgoing, sent = Outgoing(4), threading.Event()
    link = MessageStream(None, outgoing, "the other side", 0.1)  # type: ignore[arg-type]
    link.send("a", bytes(3))
    link.send("a", bytes(3))  # below what may be unread until now
    with pytest.raises(PeerError, match="it has read nothing for 0 s, unread: b"):
        link.send("b", bytes(1))
    patient = MessageStream(None, outgoing, "the other side", NEVER)  # type: ignore[arg-type]
    threading.Thread(target=lambda: (patient.send("c", b"c"), sent.set()), daemon=True).start()
    assert outgoing.get(HANG) == bytes(3) and sent.wait(HANG)
    lost: list[str] = []

    def sends() -> None:
        with pytest.raises(PeerError, match="the connection is lost, unsent: d") as caught:
            patient.send("d", bytes(9))
            patient.send("d", bytes(9))
        lost.append(caught.value.what)

    thread = threading.Thread(target=sends, daemon=True)
    thread.start()
    outgoing.close()
    thread.join(HANG)
    assert lost
    link.end()  # says so all the same
    assert [outgoing.get(HANG) for _ in range(2)] == [bytes(3), b"c"]


def test_both_returns_results_and_raises_the_first_error() -> None:
    def asks(link: MessageStream) -> int:
        link.send("q", b"1")
        return int(link.receive("a", 2)[1])

    def answers(link: MessageStream) -> None:
        link.send("a", bytes([0, 1 + int(link.receive("q", 1)[0])]))

    def fails(link: MessageStream) -> None:
        raise StoreError("no slot")

    assert both(asks, answers, NEVER) == (ord("1") + 1, None)
    with pytest.raises(StoreError, match="no slot"):
        both(asks, fails, NEVER)


def test_a_service_answers_by_a_role(tmp_path: Path) -> None:
    gone = threading.Event()

    def role(link: MessageStream) -> None:
        kind = bytes(link.receive("kind", 1).tolist())
        if kind == b"e":
            raise StoreError("no slot", hint="prepare one")
        link.send("begun", b"b")
        try:
            link.send("answer", link.receive("body", 3 << 20))
        except PeerError:
            gone.set()

    def method(requests: Iterator[bytes], context: object) -> Iterator[bytes]:
        yield from answered(role, requests, context, NEVER)  # type: ignore[arg-type]

    address = f"unix:{tmp_path}/s"
    server = service.serve({"Role": service.Exchange(method)}, address)
    channel = rpc_client.connect(address, timeout=HANG)
    body = torch.arange(3 << 20).to(torch.uint8)
    try:
        with called(channel, "Role", "the server", HANG) as link:
            link.send("kind", b"a")
            link.send("body", body)
            link.receive("begun", 1)
            assert torch.equal(link.receive("answer", len(body)), body)
        with called(channel, "Role", "the server", HANG) as link:
            link.send("kind", b"e")
            with pytest.raises(PeerError, match=r"no slot \(at the server\)\nhint: prepare one"):
                link.receive("answer", 1)
        assert not gone.is_set()
        with called(channel, "Role", "the server", HANG) as link:
            link.send("kind", b"a")
            link.send("body", bytes(9))
            link.receive("begun", 1)
        assert gone.wait(HANG)  # leaving a call ends the other side's role
    finally:
        channel.close()
        server.stop(0).wait()
    with pytest.raises(PeerError):
        channel = rpc_client.connect(address, timeout=0.1)
