"""Limits on one client of a pir-server: waiting for results, frames of many tensors, half a pair of keys."""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
import tracemalloc

import pytest
import torch

from hummingbird import ring
from hummingbird.errors import AgreementError, HummingbirdError, InputError, OverloadError, PeerError
from hummingbird.pir import Client, Server, Source, local_servers
from hummingbird.pir import client as client_module
from hummingbird.pir.integrity import Identity
from hummingbird.pir.messages import (
    unpack_answer,
    unpack_deposit,
    unpack_query,
    unpack_result,
    unpack_update,
)
from hummingbird.pir.serving.service import MAX_WAITING
from hummingbird.wire.frame import unpack_tensors
from hummingbird.wire.gate import Limits
from hummingbird.wire.service import MAX_MESSAGE
from tests.pir.serving.test_service import served
from tests.support.patience import HANG, NEVER, until

ROWS = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
WAITING = 40  # more than may wait, and more than the calls of a small service


@pytest.mark.parametrize("limits", [None, Limits(requests=8)])
def test_waiting_collects_leave_room_for_everybody_else(limits: Limits | None) -> None:
    """40 clients wait for results that come late: others are served meanwhile, and all 40 get theirs."""
    assert WAITING > MAX_WAITING > 8 // 2
    servers = list(local_servers(Source.of(ROWS).for_shares()))
    with served(*servers, limits=limits) as addresses:
        client = Client(addresses, timeout=HANG)
        tickets = [client.deposit(torch.tensor([row])) for row in range(WAITING)]
        results: list[torch.Tensor | HummingbirdError | None] = [None] * WAITING

        def collect(number: int) -> None:
            try:
                results[number] = client.collect(tickets[number])
            except HummingbirdError as error:
                results[number] = error

        threads = [threading.Thread(target=collect, args=(number,), daemon=True) for number in range(WAITING)]
        for thread in threads:
            thread.start()
        time.sleep(1.0)

        def is_served() -> bool:
            """Ping, Describe and Deposit at both servers; those who ask again may have all room for a moment."""
            with contextlib.suppress(OverloadError):
                other = Client(addresses, timeout=HANG)
                assert other.deposit(torch.tensor([0]))
                other.close()
                return True
            return False

        until(is_served, "another client to be served")
        assert results == [None] * WAITING
        for number, ticket in enumerate(tickets):
            for server in servers:
                signs, rows = server.take(ticket, 1)[:2]
                server.publish(ticket, signs * 0 + (number << ring.SCALE) * (1 - server.party))
        for thread in threads:
            thread.join(HANG)
        assert [float(result) for result in results if isinstance(result, torch.Tensor)] == list(range(WAITING))
        client.close()


def test_a_client_that_finds_no_room_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(Server):
        def collect(self, message, timeout, wanted=lambda: True):
            return b""

    monkeypatch.setattr(client_module, "_ASK_AGAIN", 0.01)
    servers = [Full(Source.of(ROWS).for_shares(), party) for party in range(2)]
    client = Client(servers, timeout=0.1)
    with pytest.raises(PeerError, match="no room for one more who waits") as caught:
        client.collect(client.deposit(torch.tensor([1])))
    assert "collect again" in caught.value.hint


def test_who_has_gone_gives_the_place_back() -> None:
    server = Server(Source.of(ROWS).for_shares(), 0)
    other = Server(Source.of(ROWS).for_shares(), 1)
    client = Client((server, other))
    ticket = client.deposit(torch.tensor([1]))
    message = ticket + client._receipt(ticket, 0)
    with pytest.raises(PeerError, match="no result"):
        server.collect(message, NEVER, lambda: False)
    assert server.collect(message, None) == b""


def empty_tensors() -> bytes:
    """As many tensors as a message holds, none with data: 262,143."""
    count = (MAX_MESSAGE - 8) // 16
    return struct.pack("<2sBBI", b"HB", 1, 0, count) + struct.pack("<BB6sQ", 1, 1, bytes(6), 0) * count


def test_a_frame_has_as_many_tensors_as_its_message_needs() -> None:
    frame, facts = empty_tensors(), Source.of(ROWS).facts
    shares = Source.of(ROWS).for_shares().facts
    for parse in (
        lambda data: unpack_tensors(data, max_tensors=64),
        unpack_result,
        lambda data: unpack_query(data, facts, 0),
        lambda data: unpack_deposit(data, shares, 0),
        lambda data: unpack_update(data, facts),
        lambda data: unpack_answer(data, 1, facts, True),
    ):
        tracemalloc.start()
        with pytest.raises(InputError, match="262143 tensors exceed the limit"):
            parse(frame)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2 * len(frame)  # a copy of the bytes, but no tensors; a minute and GBs of memory before


def test_identities_are_of_both_servers() -> None:
    secrets = [os.urandom(32), os.urandom(32)]
    public = [Identity(secret).public for secret in secrets]
    servers = [Server(Source.of(ROWS), party, identity=secret) for party, secret in enumerate(secrets)]
    for wrong in ([], public[:1], [*public, public[0]], public[0]):
        with pytest.raises(InputError, match="public keys of both servers are needed"):
            Client(servers, identities=wrong)
    assert torch.equal(Client(servers, identities=public).rows(torch.tensor([5])), ROWS[5:6])
    shares = [Server(Source.of(ROWS).for_shares(), party, identity=secret) for party, secret in enumerate(secrets)]
    with pytest.raises(AgreementError, match="answers for shares are not signed"):
        Client(shares, identities=public)


def test_a_table_is_saved_whole_over_the_file_it_is_mapped_from(tmp_path) -> None:
    path = tmp_path / "t.safetensors"
    Source.of(ROWS).save(path)
    mapped = Source.open(path)
    mapped.save(path)
    assert torch.equal(torch.from_numpy(Source.open(path).records.copy()), torch.from_numpy(mapped.records.copy()))
    assert [file.name for file in tmp_path.iterdir()] == ["t.safetensors"]
