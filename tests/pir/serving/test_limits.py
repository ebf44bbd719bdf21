"""Limits on one client of a pir-server: frames of many tensors, half a pair of keys."""

from __future__ import annotations

import os
import struct
import tracemalloc

import numpy as np
import pytest
import torch

from hummingbird.errors import InputError
from hummingbird.pir import Client, Server, Source
from hummingbird.pir.integrity import Identity
from hummingbird.pir.messages import (
    unpack_answer,
    unpack_query,
    unpack_update,
)
from hummingbird.rpc.admission import MAX_MESSAGE
from hummingbird.rpc.frame import unpack_tensors
from tests.support.disk import Order

ROWS = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))


def empty_tensors() -> bytes:
    """As many tensors as a message holds, none with data: 262,143."""
    count = (MAX_MESSAGE - 8) // 16
    return struct.pack("<2sBBI", b"HB", 1, 0, count) + struct.pack("<BB6sQ", 1, 1, bytes(6), 0) * count


def test_a_frame_has_as_many_tensors_as_its_message_needs() -> None:
    frame, facts = empty_tensors(), Source.of(ROWS).facts
    for parse in (
        lambda data: unpack_tensors(data, max_tensors=64),
        lambda data: unpack_query(data, facts, 0),
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


def test_a_table_is_saved_whole_over_the_file_it_is_mapped_from(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.safetensors"
    Source.of(ROWS).save(path)
    mapped = Source.open(path)
    order = Order(monkeypatch, tmp_path)
    mapped.save(path)
    whole = order.place("fsync", "t.safetensors.new")  # a crash leaves the old file or the new one
    named = order.place("rename", "t.safetensors.new", "t.safetensors", after=whole)
    order.place("fsync", ".", after=named)  # and once it has returned, the new one
    assert np.array_equal(Source.open(path).records, mapped.records)
    assert [file.name for file in tmp_path.iterdir()] == ["t.safetensors"]
