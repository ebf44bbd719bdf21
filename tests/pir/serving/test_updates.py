"""Updates while tables are served: durable through kills, whole at every moment, resumed."""

from __future__ import annotations

import contextlib
import hashlib
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hummingbird.errors import AgreementError, HummingbirdError, InputError, PeerError
from hummingbird.pir import (
    BatchedEmbedding,
    Client,
    Owner,
    Plan,
    Server,
    Source,
    local_servers,
)
from hummingbird.pir import client as client_module
from hummingbird.pir import pair as pair_module
from hummingbird.pir.messages import TableDescription
from hummingbird.pir.updating import Updater
from tests.jobs.pir_servers import Pair
from tests.support.patience import HANG, until
from tests.support.updates import DIM, OWNER, PLANS, ROWS, TABLE, change, table_at


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A place for tables, with the owner's keys, and one for sockets."""
    (tmp_path / "key").write_text(OWNER.key.hex())
    (tmp_path / "key.pub").write_text(OWNER.public.hex())
    sockets = Path(tempfile.mkdtemp(prefix="hb"))
    yield tmp_path, sockets
    shutil.rmtree(sockets)


class Noting:
    """A link that notes the last version which its server has acknowledged."""

    def __init__(self, link, acknowledged: list[int], party: int) -> None:
        self.link, self.name, self.acknowledged, self.party = link, link.name, acknowledged, party

    def begin(self, message: bytes, method: str = "Answer"):
        finish = self.link.begin(message, method)

        def noted() -> bytes:
            answer = finish()
            if method in ("Switch", "Update") and answer:
                self.acknowledged[self.party] = TableDescription.unpack(answer).state.version
            return answer

        return noted


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        ("table", 4),
        pytest.param("plan", 2, marks=pytest.mark.slow),
        pytest.param("table", 100, marks=pytest.mark.slow),
        pytest.param("plan", 40, marks=pytest.mark.slow),
    ],
)
def test_what_is_acknowledged_survives_kills(folder: tuple[Path, Path], kind: str, kills: int) -> None:
    """kill -9 of either server or both at random moments: each then has every update that it has acknowledged, and
    perhaps the next one, whole; the one behind is brought up; rows are those of the version. Journals are merged often.
    """
    place, sockets = folder
    rng, plan = random.Random(kills), PLANS["hot and companions"]
    options = ["--owner", str(place / "key.pub"), "--max-wait", "0"]
    if kind == "table":
        np.save(place / "t.npy", TABLE.numpy())
        options += ["--table", str(place / "t.npy")]
    else:
        OWNER.sign(Source.of(TABLE)).save(place / "t.safetensors")
        (place / "plan.json").write_text(plan.to_json())
        options += ["--table", str(place / "t.safetensors"), "--plan", str(place / "plan.json")]
    whole = plan.table if kind == "plan" else lambda facts: facts
    pair = Pair(sockets, *options, tables=2 if kind == "plan" else 1, grown=20_000)
    acknowledged, seen = [0, 0], set()
    try:
        for _ in range(kills):
            pair.wait()
            with Updater(OWNER, pair.last, timeout=HANG, table=whole) as updater:
                versions = [description.state.version for description in updater.describe()]
                for had, has in zip(acknowledged, versions, strict=True):
                    assert had <= has <= had + 1
                seen.add(versions[0] - versions[1])
                updater.bring_up()
                version = updater.describe()[0].state.version
                check_rows(pair, plan if kind == "plan" else None, version)
                updater.links = [Noting(link, acknowledged, party) for party, link in enumerate(updater.links)]
                acknowledged[:] = [version, version]
                victims = rng.choice([[0], [1], [0, 1]])
                timer = threading.Timer(rng.random() * 0.4, lambda victims=victims: [pair.kill(n) for n in victims])
                timer.start()
                try:
                    while timer.is_alive():
                        updater.update(*change(version))
                        version += 1
                except HummingbirdError:
                    pass
                timer.join(HANG)
            for victim in victims:
                pair.start(victim)
        pair.wait()
        with Updater(OWNER, pair.last, timeout=HANG, table=whole) as updater:
            updater.bring_up()
            version = updater.describe()[0].state.version
        check_rows(pair, plan if kind == "plan" else None, version)
        assert version >= max(acknowledged) > kills
        print(f"MEASURED {kills} kills, {version} updates, servers apart by {sorted(seen)}")
    finally:
        pair.close()


def check_rows(pair: Pair, plan: Plan | None, version: int) -> None:
    rows = table_at(version)
    if plan is None:
        client = Client(pair.last, timeout=HANG)
        assert client.state.version == version and torch.equal(client.rows(torch.arange(ROWS)), rows)
        client.close()
        return
    clients = [Client(both, timeout=HANG, owner=OWNER.public) for both in zip(*pair.addresses, strict=True)]
    wanted = torch.randperm(ROWS, generator=torch.Generator().manual_seed(version)).view(-1, 10)
    layer = BatchedEmbedding(plan, clients)
    assert torch.equal(layer(wanted), rows[wanted]) and layer.dropped == 0
    for client in clients:
        assert client.state.version == version
        client.close()


# One state at every moment --------------------------------------------------------------------------------------------


def test_lookups_during_updates_see_one_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every update writes its number into all rows; whatever is read meanwhile is of one number, also over messages."""
    monkeypatch.setattr(client_module, "keys_in_a_query", lambda facts: 100)
    servers = local_servers(torch.zeros(150, 16, dtype=torch.uint8), owner=OWNER.public)
    end, seen, errors = threading.Event(), set[int](), list[BaseException]()

    def look() -> None:
        client = Client(servers, timeout=HANG)
        try:
            while not end.is_set():
                with contextlib.suppress(AgreementError):  # there is no rest
                    rows = client.rows(torch.arange(150).repeat(2))  # three messages
                    assert (rows == rows[0, 0]).all()
                    seen.add(int(rows[0, 0]))
        except BaseException as error:
            errors.append(error)

    updating = Client(servers, timeout=HANG)
    thread = threading.Thread(target=look)
    thread.start()
    for number in range(1, 20):
        rows = torch.full((150, 16), number, dtype=torch.uint8)
        updating.update(OWNER.update(updating.facts, updating.state, torch.arange(150), rows))
        if number % 4 == 0:
            until(lambda number=number: number in seen or errors, "a lookup")
    end.set()
    thread.join(HANG)
    assert errors == [] and seen >= {4, 8, 12, 16}


def test_a_table_that_never_rests_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = local_servers(TABLE, owner=OWNER.public)
    client, other = Client(servers), Client(servers)
    monkeypatch.setattr(client_module, "keys_in_a_query", lambda facts: 2)
    real = client._lookup

    def lookup(*arguments):
        other.update(OWNER.update(other.facts, other.state, *change(other.state.version)))
        return real(*arguments)

    monkeypatch.setattr(client, "_lookup", lookup)
    with pytest.raises(AgreementError, match="updated during each of 5 lookups") as caught:
        client.rows(torch.arange(5))
    assert "2 go into one message" in caught.value.hint
    assert torch.equal(client.rows(torch.arange(2)), table_at(other.state.version)[:2])


# Bringing a server up -------------------------------------------------------------------------------------------------


def pair_with_journals(folder: Path) -> list[Server]:
    return [Server(TABLE, party, owner=OWNER.public, journal=folder / f"{party}.journal") for party in (0, 1)]


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_server_that_missed_updates_is_brought_up(
    tmp_path: Path, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = pair_with_journals(tmp_path)
    for version in range(4):
        message = OWNER.update(servers[ahead].facts, servers[ahead].state, *change(version))
        servers[ahead].update(message)
        if version == 0:
            servers[1 - ahead].update(message)
    monkeypatch.setattr(pair_module, "_SETTLE", 0.1)
    with pytest.raises(AgreementError, match="server 0.*version.*server 1.*version") as caught:
        Client(servers)
    assert "pir-owner update" in caught.value.hint
    with Updater(OWNER, servers) as updater:
        with pytest.raises(AgreementError, match="server 0.*version.*server 1.*version"):
            updater.update(*change(4))
        assert updater.bring_up() == 3 and updater.bring_up() == 0
        assert updater.update(*change(4)).version == 5
    assert torch.equal(Client(servers).rows(torch.arange(ROWS)), table_at(5))
    for server in servers:
        server.close()
    again = pair_with_journals(tmp_path)
    assert torch.equal(Client(again).rows(torch.arange(ROWS)), table_at(5))


def test_servers_that_have_parted_are_named(tmp_path: Path) -> None:
    """Two updates of one version: the owner is told, and nothing is sent."""
    servers = pair_with_journals(tmp_path)
    for party, server in enumerate(servers):
        server.update(OWNER.update(server.facts, server.state, *change(party)))
    with Updater(OWNER, servers) as updater:
        with pytest.raises(
            AgreementError, match="different contents.*server 0.*version 1.*server 1.*version 1"
        ) as caught:
            updater.bring_up()
    assert "a copy of the other's journal" in caught.value.hint
    servers[0].update(OWNER.update(servers[0].facts, servers[0].state, *change(2)))
    with Updater(OWNER, servers) as updater, pytest.raises(AgreementError, match="version 1, of another table"):
        updater.bring_up()
    for server in servers:
        server.close()
    shutil.copy(tmp_path / "0.journal", tmp_path / "1.journal")  # as the hint has it
    zero, one = pair_with_journals(tmp_path)
    assert zero.state == one.state and zero.state.version == 2


class Far:
    """A server at the end of a line of its own, over which updates take a while."""

    def __init__(self, server: Server, delay: float) -> None:
        self.name, self._server, self._delay = server.name, server, delay
        self._pool = ThreadPoolExecutor(8)

    def begin(self, message: bytes, method: str = "Answer") -> Callable[[], bytes]:
        def answer() -> bytes:
            time.sleep(self._delay if len(message) >= 32 else 0.0)  # a digest, or more
            return self._server.begin(message, method)()

        return self._pool.submit(answer).result


@pytest.mark.slow
def test_lookups_go_on_while_an_update_travels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update takes longer to one of the servers than lookups wait for two that differ, on either side."""
    monkeypatch.setattr(pair_module, "_SETTLE", 0.5)
    wide = torch.zeros(1000, 3000, dtype=torch.uint8)
    servers = local_servers(wide, owner=OWNER.public)
    for slow in (0, 1):
        links: list[Any] = [Slow(server, 2.0 if party == slow else 0.0) for party, server in enumerate(servers)]
        client, seen, end = Client(servers, timeout=HANG), set[int](), threading.Event()

        def look(client: Client = client, seen: set[int] = seen, end: threading.Event = end) -> None:
            while not end.wait(0.02):
                rows = client.rows(torch.arange(3))  # raises where the servers differ for too long
                assert (rows == rows[0, 0]).all()
                seen.add(int(rows[0, 0]))

        with ThreadPoolExecutor(1) as pool, Updater(OWNER, links) as updater:
            looking = pool.submit(look)
            number = 10 * (slow + 1)
            updater.update(torch.arange(1000), torch.full((1000, 3000), number, dtype=torch.uint8))
            until(lambda n=number, s=seen, asked=looking: n in s or asked.done(), "a lookup of the new rows")
            end.set()
            looking.result(HANG)
        assert [link.sent for link in links] == [1, 1]


class Slow:
    """A server at the end of a slow link: whole updates take seconds to it, short messages do not."""

    def __init__(self, server: Server, seconds: float) -> None:
        self.name, self._server, self._seconds, self.sent = server.name, server, seconds, 0
        self._pool = ThreadPoolExecutor(8)

    def begin(self, message: bytes, method: str = "Answer") -> Callable[[], bytes]:
        def answer() -> bytes:
            if len(message) > 1000:
                self.sent += 1
                time.sleep(self._seconds)
            return self._server.begin(message, method)()

        return self._pool.submit(answer).result


def test_an_offer_changes_nothing_until_it_is_to_be_made(tmp_path: Path) -> None:
    zero, one = pair_with_journals(tmp_path)
    first, second = (OWNER.update(zero.facts, zero.state, *change(number)) for number in (0, 1))
    digest, other = (hashlib.sha256(message).digest() for message in (first, second))
    assert zero.switch(digest) == b""  # nothing was offered
    size = (tmp_path / "0.journal").stat().st_size
    assert TableDescription.unpack(zero.offer(first)).state == one.state and zero.switch(other) == b""
    assert (tmp_path / "0.journal").stat().st_size == size and torch.equal(
        Client([zero, one]).rows(torch.arange(ROWS)), TABLE
    )
    zero.offer(second)  # in place of the first
    assert zero.switch(digest) == b"" and zero.state.version == 0
    assert TableDescription.unpack(zero.switch(other)).state == zero.state != one.state and zero.state.version == 1
    assert zero.switch(other) == zero.offer(second) == zero.update(second) == zero.describe()  # once more: it is made
    with pytest.raises(AgreementError, match="the update is for version 0, of another table|the table is at 1"):
        zero.offer(first)
    for message, error in ((Owner().update(one.facts, one.state, *change(0)), "not signed"), (b"", ".")):
        with pytest.raises(InputError, match=error):
            one.offer(message)
    with pytest.raises(InputError, match="takes no updates"):
        local_servers(TABLE)[0].switch(digest)
    zero.close()
    again = Server(TABLE, 0, owner=OWNER.public, journal=tmp_path / "0.journal")
    assert again.state.version == 1 and again.switch(other) == again.describe()
    again.offer(OWNER.update(again.facts, again.state, *change(1)))
    again.close()  # what was offered only is forgotten
    last = Server(TABLE, 0, owner=OWNER.public, journal=tmp_path / "0.journal")
    assert last.state.version == 1


@pytest.mark.parametrize("party", [0, 1])
def test_a_server_that_was_started_again_behind_an_offer_is_sent_it_once_more(tmp_path: Path, party: int) -> None:
    servers = pair_with_journals(tmp_path)

    class Forgetful:
        """Loses what was offered to it."""

        name, sent = servers[party].name, list[str]()

        def begin(self, message: bytes, method: str = "Answer") -> Callable[[], bytes]:
            self.sent.append(method)
            if method == "Switch":
                assert servers[party].updates is not None
                servers[party].updates._offered = None
            return servers[party].begin(message, method)

    links = [Forgetful() if number == party else server for number, server in enumerate(servers)]
    with Updater(OWNER, links) as updater:
        assert updater.update(*change(0)).version == 1
    assert Forgetful.sent[-3:] == ["Offer", "Switch", "Update"]
    assert torch.equal(Client(servers).rows(torch.arange(ROWS)), table_at(1))


@pytest.mark.parametrize("away", [0, 1])
def test_an_update_that_one_server_does_not_take_is_made_at_neither(tmp_path: Path, away: int) -> None:
    """Lookups are not interrupted for it."""
    servers = pair_with_journals(tmp_path)

    class Away:
        name = servers[away].name

        def begin(self, message: bytes, method: str = "Answer") -> Callable[[], bytes]:
            def lost() -> bytes:
                raise PeerError("the server is gone", where=self.name)

            return lost if method == "Offer" else servers[away].begin(message, method)

    links = [Away() if number == away else server for number, server in enumerate(servers)]
    with Updater(OWNER, links) as updater, pytest.raises(PeerError, match="the server is gone"):
        updater.update(*change(0))
    assert [server.state.version for server in servers] == [0, 0]


def test_two_owners_at_once_do_not_part_the_servers(tmp_path: Path) -> None:
    """One is nearer to server 0, the other to server 1: one of both updates is made, at both, and the other refused."""
    servers = pair_with_journals(tmp_path)
    both = [
        [Far(server, delay) for server, delay in zip(servers, way, strict=True)] for way in ((0.5, 0.0), (0.0, 0.5))
    ]

    def update(number: int) -> str:
        with Updater(OWNER, both[number]) as updater:
            try:
                return f"version {updater.update(*change(number)).version}"
            except (PeerError, AgreementError) as error:  # the second where one has only just begun
                return error.what

    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(update, range(2)))
    assert "version 1" in told and servers[0].state == servers[1].state, told


def test_what_a_lying_server_hands_over_is_refused(tmp_path: Path) -> None:
    servers = pair_with_journals(tmp_path)
    servers[0].update(OWNER.update(servers[0].facts, servers[0].state, *change(0)))
    forged = Owner().update(servers[1].facts, servers[1].state, *change(1))
    for message, what in ((forged, "not the owner's"), (b"", "not the owner's")):
        servers[0].past_update = lambda _, message=message: message
        with Updater(OWNER, servers) as updater, pytest.raises(PeerError, match=what) as caught:
            updater.bring_up()
        assert caught.value.where == servers[0].name
    assert servers[1].state.version == 0


def test_updates_that_are_not_kept(tmp_path: Path) -> None:
    zero, one = local_servers(TABLE, owner=OWNER.public)
    zero.update(OWNER.update(zero.facts, zero.state, *change(0)))
    with Updater(OWNER, (zero, one)) as updater, pytest.raises(InputError, match="keeps no journal"):
        updater.bring_up()
    for message in (b"", bytes(7), bytes(9)):
        with pytest.raises(InputError, match="malformed version"):
            zero.past_update(message)


def test_rows_are_checked_before_anything_is_sent(tmp_path: Path) -> None:
    servers = pair_with_journals(tmp_path)
    with Updater(OWNER, servers) as updater:
        for indices, rows, what in (
            (torch.tensor([1, 1]), torch.zeros(2, DIM), "or a duplicate"),
            (torch.tensor([ROWS]), torch.zeros(1, DIM), "outside of the table"),
            (torch.tensor([-1]), torch.zeros(1, DIM), "outside of the table"),
            (torch.tensor([1]), torch.zeros(1, DIM).double(), "rows of torch.float64, the table's are float32"),
            (torch.tensor([1]), torch.zeros(1, DIM + 1), r"rows \(1, 5\)"),
            (torch.arange(ROWS + 1), torch.zeros(ROWS, DIM), r"indices torch.int64 \(301,\)"),
            (torch.tensor(1), torch.zeros(1, DIM), "indices torch.int64"),
            (torch.tensor([1], dtype=torch.int32), torch.zeros(1, DIM), "indices torch.int32"),
            (torch.empty(0, dtype=torch.int64), torch.zeros(0, DIM), "indices torch.int64"),
        ):
            with pytest.raises(InputError, match=what):
                updater.update(indices, rows)
    assert servers[0].state.version == servers[1].state.version == 0


def test_more_rows_than_an_update_holds_are_several() -> None:
    wide = torch.randint(0, 256, (500, 20_000), dtype=torch.uint8)
    servers = local_servers(wide, owner=OWNER.public)
    new, told = wide.flip(0), list[int]()
    with Updater(OWNER, servers) as updater:
        assert updater.update(torch.arange(500), new, told.append).version == 3
    assert sum(told) == 500 and torch.equal(Client(servers).rows(torch.arange(500)), new)


# For parts that are loaded again --------------------------------------------------------------------------------------


@pytest.mark.parametrize("merged", [False, True])
def test_all_changes_can_be_read_again_while_none_is_made(tmp_path: Path, merged: bool) -> None:
    server = Server(TABLE, 0, owner=OWNER.public, journal=tmp_path / "journal")
    for version in range(4):
        server.update(OWNER.update(server.facts, server.state, *change(version)))
    updates = server.updates
    assert updates is not None and updates._journal is not None
    if merged:
        states = updates._after(updates._before, updates._made[:3])
        updates._journal.adopt(3, updates._journal.merge(3, states))
    again = Source.of(TABLE.clone())
    message, done = OWNER.update(server.facts, server.state, *change(4)), threading.Event()
    with updates.unchanging() as changes:
        other = threading.Thread(target=lambda: (server.update(message), done.set()))
        other.start()
        for indices, records in changes:
            again.records[indices.numpy()] = records.numpy()
        assert not done.wait(0.2) and server.state.version == 4
    other.join(HANG)
    assert done.is_set() and server.state.version == 5
    assert again.records.tobytes() == Source.of(table_at(4)).records.tobytes()
    server.close()


def test_changes_without_a_journal_are_lost() -> None:
    server = Server(TABLE, 0, owner=OWNER.public)
    assert server.updates is not None
    with server.updates.unchanging() as changes:
        assert list(changes) == []
    server.update(OWNER.update(server.facts, server.state, *change(0)))
    with pytest.raises(PeerError, match="no journal has them"), server.updates.unchanging():
        pass
