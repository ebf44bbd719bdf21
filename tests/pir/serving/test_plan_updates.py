"""Updates and signed rows of a table that is served by a plan: every place of a row, all tables at once."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from hummingbird.errors import AgreementError, InputError, PeerError
from hummingbird.pir import BatchedEmbedding, Client, Owner, Server, Source, audit, plan_servers
from hummingbird.pir.integrity import IntegrityError
from hummingbird.pir.updating import Updater
from tests.support.patience import HANG
from tests.support.updates import DIM, OWNER, PLANS, ROWS, TABLE, change


@pytest.mark.parametrize("signed", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_lookups_by_a_plan_during_updates_see_one_version(signed: bool) -> None:
    """A row of the hot table and one of the full table are read by two messages; their updates are one."""
    plan = PLANS["hot and companions"]
    source = OWNER.sign(Source.of(TABLE)) if signed else Source.of(TABLE)
    servers = [plan_servers(source, plan, party, owner=OWNER.public) for party in (0, 1)]
    options = {"owner": OWNER.public} if signed else {}
    layer = BatchedEmbedding(plan, [Client(pair, timeout=HANG, **options) for pair in zip(*servers, strict=True)])
    end, errors = threading.Event(), list[BaseException]()

    def update() -> None:
        try:
            with Updater(OWNER, [tables[-1] for tables in servers], table=plan.table) as updater:
                number = 0
                while not end.wait(0.01):
                    number += 1
                    updater.update(torch.tensor([10, 13]), torch.full((2, DIM), float(number)))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=update)
    thread.start()
    try:
        seen = set[float]()
        while len(seen) < 10 and thread.is_alive():
            with contextlib.suppress(AgreementError):  # there is no rest
                rows = layer(torch.tensor([10, 13]))
                if one_value(rows):
                    seen.add(float(rows[0, 0]))
    finally:
        end.set()
        thread.join(HANG)
    assert errors == [] and len(seen) == 10


def one_value(rows: torch.Tensor) -> bool:
    """Whether both rows have been updated; they never differ then."""
    if torch.equal(rows, TABLE[[10, 13]]):
        return False
    assert (rows == rows[0, 0]).all()
    return True


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("kind", PLANS)
def test_an_update_reaches_every_place_of_a_row(tmp_path: Path, kind: str, signed: bool) -> None:
    """After some updates the buckets are those that are laid out from the updated table, to the byte."""
    plan = PLANS[kind]
    source = OWNER.sign(Source.of(TABLE)) if signed else Source.of(TABLE)
    servers = [
        plan_servers(source, plan, party, owner=OWNER.public, journal=tmp_path / f"{party}.journal") for party in (0, 1)
    ]
    with Updater(OWNER, [tables[-1] for tables in servers], table=plan.table) as updater:
        for version in range(12):
            updater.update(*change(version))
    now = torch.from_numpy(source.records.copy())
    for version in range(12):
        indices, rows = change(version)
        data = rows.view(torch.uint8).numpy()
        if signed:
            data = OWNER._records(source.facts, version + 1, indices.tolist(), data)
        now[indices] = torch.from_numpy(np.ascontiguousarray(data))
    fresh = plan_servers(Source(source.facts, 12, now.numpy()), plan, 0)
    everywhere(servers[0], fresh)
    states = [server.state for server in servers[0]]
    assert {state.version for state in states} == {12}
    for server in servers[0]:
        server.close()
    again = plan_servers(source, plan, 0, journal=tmp_path / "0.journal")
    everywhere(again, fresh)
    assert [server.state for server in again] == states == [server.state for server in servers[1]]


def everywhere(some: list[Server], others: list[Server]) -> None:
    """All buckets hold the same."""
    for one, other in zip(some, others, strict=True):
        for here, there in zip(one._shard._tables, other._shard._tables, strict=True):
            bits = torch.zeros(here.rows, (here.rows + 7) // 8, dtype=torch.uint8)
            for row in range(here.rows):
                bits[row, row // 8] = 1 << row % 8
            assert torch.equal(here._store.select(bits, 0), there._store.select(bits, 0))


def test_signed_rows_of_a_plan_are_checked_at_the_client() -> None:
    """In the record of every key, dummies too, whatever is wanted: a changed byte of a row or of a proof."""
    plan, signed = PLANS["hot and companions"], OWNER.sign(Source.of(TABLE))
    servers = [plan_servers(signed, plan, party, owner=OWNER.public) for party in (0, 1)]
    wanted = torch.tensor([3, 10, 14])

    def layer(owner: bytes | None = OWNER.public) -> BatchedEmbedding:
        clients = [Client(pair, owner=owner) for pair in zip(*servers, strict=True)]
        return BatchedEmbedding(plan, clients)

    assert torch.equal(layer()(wanted), TABLE[wanted])
    layout = plan.layouts()[1]
    gap = next(bucket for bucket in range(len(layout)) if layout[bucket, 0, 2] < 0)  # a row without its last companion
    for bucket, byte in ((0, 0), (1, 18), (2, 90), (gap, 180)):
        tables = [both[1]._shard._tables[bucket] for both in servers]
        first = torch.zeros(1, (tables[0].rows + 7) // 8, dtype=torch.uint8)
        first[0, 0] = 1  # the place that a dummy selects
        good = tables[0]._store.select(first, 0)
        bad = good.clone()
        bad[0, byte] ^= 1
        for table in tables:
            table.update(torch.tensor([0]), bad)
        with pytest.raises(IntegrityError, match="lied"):
            layer()(wanted[:0])
        assert layer(None)(wanted[:0]).shape == (0, DIM)  # nobody looks without the owner's key
        for table in tables:
            table.update(torch.tensor([0]), good)
    assert torch.equal(layer()(wanted), TABLE[wanted])
    with pytest.raises(AgreementError, match="rows are not signed"):
        plain = [plan_servers(TABLE, plan, party) for party in (0, 1)]
        BatchedEmbedding.from_torch(torch.nn.Embedding.from_pretrained(TABLE), plan, *plain, owner=OWNER.public)


def test_a_liar_is_named_by_its_statement() -> None:
    """As for a single table (tests/pir/test_integrity.py): the owner's own buckets tell who it was."""
    plan, signed = PLANS["cuckoo"], OWNER.sign(Source.of(TABLE))
    (zero,), (one,) = (plan_servers(signed, plan, party, owner=OWNER.public) for party in (0, 1))
    own = [plan_servers(signed, plan, party)[0] for party in (0, 1)]
    one._shard._tables[3].update(torch.arange(50), torch.zeros(50, signed.facts.record_bytes, dtype=torch.uint8))
    layer = BatchedEmbedding(plan, [Client((zero, one), owner=OWNER.public)])
    with pytest.raises(IntegrityError, match="lied") as caught:
        layer(torch.tensor([1, 2, 3]))  # of 50 zeroed rows the key selects some
    assert [audit(own[party], caught.value.statements[party]) for party in (0, 1)] == [1, 1]


def test_updates_of_a_plan_that_are_refused() -> None:
    plan = PLANS["hot and companions"]
    hot, full = plan_servers(TABLE, plan, 0, owner=OWNER.public)
    facts, state = plan.table(full.facts), full.state
    good = OWNER.update(facts, state, *change(5))
    with pytest.raises(InputError, match="of a plan, the full table's server takes them"):
        str(hot.update(good))
    for message, what in (
        (Owner().update(facts, state, *change(5)), "not signed"),
        (OWNER.update(full.facts, state, torch.tensor([1]), torch.zeros(1, full.facts.dim)), "rows do not fit"),
        (OWNER.update(facts, state, torch.tensor([ROWS]), torch.zeros(1, DIM)), "distinct rows"),
        (good[:-8], "malformed"),
    ):
        with pytest.raises(InputError, match=what):
            full.update(message)
    with pytest.raises(AgreementError, match="for version 0, of another table"):
        full.update(OWNER.update(facts, hot.state, *change(5)))
    assert full.state == state and hot.state.version == 0
    full.update(good)
    assert full.state.version == hot.state.version == 1
    full.update(good)  # again: nothing happens
    assert full.state.version == hot.state.version == 1


def test_a_table_changed_in_part_answers_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it take that update again, which is in the journal; the next start makes it."""
    plan, path = PLANS["hot and companions"], tmp_path / "journal"
    hot, full = plan_servers(TABLE, plan, 0, owner=OWNER.public, journal=path)
    message = OWNER.update(plan.table(full.facts), full.state, *change(5))

    def broken(*_: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(full._shard, "write", broken)
    with pytest.raises(RuntimeError):
        full.update(message)
    assert [server.state.version for server in (hot, full)] == [0, 0]  # neither names a state that it is not in
    size = path.stat().st_size
    for call in (
        *(hot.check, full.check, lambda: full.update(message), lambda: full.past_update(bytes(8))),
        *(lambda server=server: server.answer(torch.empty(0), "xor") for server in (hot, full)),
    ):
        with pytest.raises(PeerError, match="made in part"):
            call()
    full.close()
    assert path.stat().st_size == size
    again = plan_servers(TABLE, plan, 0, owner=OWNER.public, journal=path)
    assert [server.state.version for server in again] == [1, 1]
    again[-1].update(message)  # it is made
    assert again[-1].state.version == 1
    again[-1].close()
