"""Frames as the channel writes them: none passes another, and nothing follows one that was cut short."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest
import torch

from hummingbird.channel.channel import Channel
from hummingbird.errors import AgreementError, PeerError
from tests.channel.test_channel import BIG, opened
from tests.support.patience import HANG


def test_a_short_frame_does_not_pass_a_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computations that take turns send while another's long message waits for its thread."""
    begin, serve = threading.Event(), Channel._serve
    monkeypatch.setattr(Channel, "_serve", lambda self, *given: (begin.wait(HANG), serve(self, *given)))
    long, short = torch.arange(BIG), torch.tensor([7])
    with opened(2) as (a, b):
        sending = [*a._send([1], [long]), *a._send([1], [short])]
        begin.set()
        assert torch.equal(b.receive(0, [long])[0], long) and torch.equal(b.receive(0, [short])[0], short)
        a._finish([1, 1], sending)


class Torn:
    """A connection that takes 24 bytes of a frame: its header, and 4 of the payload. Then a signal comes."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._sent = connection, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def send(self, piece: memoryview) -> int:
        if self._sent:
            raise KeyboardInterrupt
        self._sent = self._connection.send(piece[:24])
        return self._sent


def test_nothing_is_said_into_a_torn_frame() -> None:
    """The reason of an end would be read as the rest of the numbers, which would be wrong, and taken for right."""
    numbers = torch.tensor([1, 2])
    with opened(2) as (a, b):
        a._outgoing[1] = Torn(a._outgoing[1])  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            a.send(1, numbers)
        a.abort("a reason that is long enough")
        with pytest.raises(PeerError, match="party 0 closed the connection"):
            b.receive(0, [numbers])


def test_a_frame_is_taken_once() -> None:
    """The same bytes again, or those of a frame that was left out, are another place of the program."""
    numbers = torch.tensor([1, 2])
    for sent, says in ((0, "sent frame 0, party 1 expected frame 1"), (2, "sent frame 2, party 1 expected frame 1")):
        with opened(2) as (a, b):
            a.send(1, numbers)
            assert torch.equal(b.receive(0, [numbers])[0], numbers)
            a._sent[1] = sent
            a.send(1, numbers)
            with pytest.raises(AgreementError, match=says):
                b.receive(0, [numbers])
