"""Changes of tables by keyword while they are served: moves, updates, journals, two owners, and kills."""

from __future__ import annotations

import contextlib
import random
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hummingbird.errors import AgreementError, HummingbirdError, InputError, PeerError
from hummingbird.pir import KeywordClient, KeywordTable, Owner, Source, local_servers
from hummingbird.pir import keyword_table as module
from hummingbird.pir.serving.server import Server, open_server
from hummingbird.pir.serving.service import Service
from hummingbird.pir.updating import Updater
from tests.jobs.pir_servers import Pair
from tests.pir.test_keywords import ROWS, WORDS, asking, made
from tests.support.patience import HANG


@pytest.mark.slow
def test_keywords_come_and_go_while_the_table_is_served() -> None:
    """300 random changes, in a table that becomes full: rows move, and every keyword is right after each."""
    owner, random_ = Owner(), random.Random(1)
    table = KeywordTable(WORDS[:400], ROWS[:400], room=450, seed=bytes(16))
    room = table.room
    servers = local_servers(owner.sign(table.source), owner=owner.public)
    expected = dict(zip(WORDS[:400], ROWS[:400], strict=True))
    moved = 0
    with Updater(owner, servers) as updater, asking(servers, owner=owner.public) as client:
        send = updater.update

        def counted(indices: torch.Tensor, rows: torch.Tensor, **options: Any) -> object:
            nonlocal moved
            moved += len(indices) - 1
            return send(indices, rows, **options)

        updater.update = counted  # type: ignore[method-assign, assignment]
        for number in range(300):
            word = random_.choice(WORDS)
            if word in expected and random_.random() < 0.4:
                table.remove(word, updater)
                del expected[word]
            elif word in expected or len(expected) < room:
                expected[word] = torch.full((6,), float(number))
                table.put(word, expected[word], updater)
            assert len(table) == len(expected) and (word in table) == (word in expected)
            if number % 50 == 49:
                rows, found = client.rows(WORDS)
                assert found.tolist() == [each in expected for each in WORDS]
                assert all(torch.equal(rows[at], expected[WORDS[at]]) for at in found.nonzero().flatten().tolist())
    assert moved > 0, "no row had to move"
    assert client.client.state.version > 200


def test_a_change_that_the_servers_refuse_leaves_the_owners_table_as_it_was() -> None:
    owner, table = Owner(), made(room=600)
    servers = local_servers(table.source)  # which take no updates
    before = table.source.records.copy()
    with Updater(owner, servers) as updater:
        for change in (lambda: table.put("new", ROWS[0], updater), lambda: table.remove(WORDS[0], updater)):
            with pytest.raises(Exception, match="takes no updates"):
                change()
    assert "new" not in table and WORDS[0] in table and (table.source.records == before).all()
    table.put("new", ROWS[0])
    assert torch.equal(KeywordClient(local_servers(table.source))["new"], ROWS[0])  # type: ignore[arg-type]


def test_an_old_copy_catches_up_from_the_journals(tmp_path: Path) -> None:
    """A table that was saved before the servers' last changes gets them; without journals it is refused."""
    owner, table = Owner(), made(room=600)
    table.source.save(tmp_path / "old.safetensors")
    for kept in (True, False):
        servers = [
            Server(
                Source.open(tmp_path / "old.safetensors"),
                party,
                owner=owner.public,
                journal=tmp_path / f"{party}.journal" if kept else None,
            )
            for party in range(2)
        ]
        table, old = (KeywordTable.open(Source.open(tmp_path / "old.safetensors")) for _ in range(2))
        with Updater(owner, servers) as updater:
            table.put(WORDS[0], ROWS[1], updater)
            table.put([f"new {number}" for number in range(40)], ROWS[:40], updater)
            table.remove([WORDS[1], WORDS[2]], updater)
            assert len(table) == 538
            if kept:
                old.put("more", ROWS[2], updater)
                assert len(old) == 539 and old.source.version == 4
                table.remove("more", updater)
                assert len(table) == 538 and np.array_equal(table.source.records, again(servers[0], table))
            else:
                with pytest.raises(AgreementError, match="the servers' table has had 3 updates, this one 0"):
                    old.put("more", ROWS[2], updater)
            with pytest.raises(AgreementError, match="the servers have another table"):
                KeywordTable(WORDS, ROWS, room=600).put("more", ROWS[2], updater)
        with asking(servers) as client:
            rows, found = client.rows(["more", WORDS[0], WORDS[1], "new 7", *WORDS[3:]])
            assert found.tolist() == [False, True, False] + [True] * 498
            assert torch.equal(rows[3:], torch.cat([ROWS[7:8], ROWS[3:]])) and torch.equal(rows[1], ROWS[1])
        for server in servers:
            server.close()


def again(server: Server, table: KeywordTable) -> np.ndarray:
    """Return the records that a server has, read through selection bits of one row each."""
    records = np.empty_like(table.source.records)
    for number, part in enumerate(server._shard._tables):  # type: ignore[attr-defined]
        records[number * part.rows : (number + 1) * part.rows] = part.read_range(0, part.rows).numpy()
    return records


def test_a_change_whose_answer_was_lost_is_made_again(tmp_path: Path) -> None:
    """Both servers have it, and the owner does not know: the same change goes on, and so does another one."""
    owner, table = Owner(), made(room=600)
    servers = [
        Server(table.source, party, owner=owner.public, journal=tmp_path / f"{party}.journal") for party in range(2)
    ]
    with Updater(owner, servers) as updater:
        send = updater.update

        def lost(indices: torch.Tensor, rows: torch.Tensor, **options: Any) -> object:
            send(indices, rows, **options)
            raise PeerError("no answer")

        for word in ("new", "newer"):
            updater.update = lost  # type: ignore[method-assign, assignment]
            with pytest.raises(PeerError, match="no answer"):
                table.put(word, ROWS[0], updater)
            updater.update = send  # type: ignore[method-assign]
            if word == "new":
                table.put("new", ROWS[0], updater)  # it is there: nothing is sent
        table.put("other", ROWS[1], updater)
    with asking(servers) as client:
        rows, found = client.rows(["new", "newer", "other"])
        assert found.all() and torch.equal(rows, ROWS[[0, 0, 1]])
    assert table.source.version == 3 and len(table) == 503


def test_two_owners_at_once_lose_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program's change between catching up and sending is noticed, and the change is made when tried again."""
    owner, table = Owner(), KeywordTable(WORDS[:200], ROWS[:200], room=220, seed=bytes(16))
    other = KeywordTable.open(replace(table.source, records=table.source.records.copy()))
    servers = local_servers(table.source, owner=owner.public)
    with Updater(owner, servers) as updater, Updater(owner, servers) as second:
        catch_up = table.catch_up

        def overtaken(to: Updater) -> object:
            state = catch_up(to)
            other.put("other 0", ROWS[0], second)
            return state

        monkeypatch.setattr(table, "catch_up", overtaken)
        with pytest.raises(AgreementError, match="the servers have had another update"):
            table.put("mine 0", ROWS[8], updater)
    with asking(servers) as client:
        rows, found = client.rows([*WORDS[:200], "other 0", "mine 0"])
        assert found.tolist() == [True] * 201 + [False] and torch.equal(rows[:201], torch.cat([ROWS[:200], ROWS[:1]]))


def test_servers_with_other_contents_are_refused(tmp_path: Path) -> None:
    """The same seed, size and version, but a change that was made here alone, or another history."""
    owner = Owner()
    for signed in (False, True):
        table = made(room=600)
        served = owner.sign(table.source) if signed else replace(table.source, records=table.source.records.copy())
        servers = [
            Server(served, party, owner=owner.public, journal=tmp_path / f"{signed}{party}.journal")
            for party in range(2)
        ]
        with Updater(owner, servers) as updater:
            table.put("new", ROWS[1], updater)
            table.source.save(tmp_path / "at 1.safetensors")
            changed = KeywordTable.open(Source.open(tmp_path / "at 1.safetensors"))
            changed.put("here alone", ROWS[2])
            changed.remove("here alone")
            with pytest.raises(AgreementError, match="other contents") as caught:
                changed.put("more", ROWS[3], updater)
            assert "it was changed without them" in caught.value.hint
            stranger = made(room=600)
            stranger.put("old", ROWS[4])
            stranger.source = replace(stranger.source, version=1)
            stranger.source = replace(stranger.source, local=False)
            with pytest.raises(AgreementError, match="other contents"):
                stranger.put("more", ROWS[3], updater)
            again_ = KeywordTable.open(Source.open(tmp_path / "at 1.safetensors"))
            table.put("newer", ROWS[5], updater)
            again_.put("newest", ROWS[6], updater)
            assert len(again_) == 503 and "newer" in again_
        for server in servers:
            server.close()


def test_a_change_without_the_servers_is_remembered_in_the_file(tmp_path: Path) -> None:
    """The servers' first signed contents are known only to the table that was signed itself."""
    owner, table = Owner(), made(room=600)
    servers = local_servers(owner.sign(table.source), owner=owner.public)
    table.put("offline", ROWS[1])
    table.source.save(tmp_path / "t.safetensors")
    again_ = KeywordTable.open(Source.open(tmp_path / "t.safetensors"))
    with Updater(owner, servers) as updater:
        for own in (table, again_):
            with pytest.raises(AgreementError, match="other contents") as caught:
                own.put("more", ROWS[2], updater)
            assert "KeywordTable.sign" in caught.value.hint
    servers = local_servers(again_.sign(owner), owner=owner.public)
    again_.source.save(tmp_path / "t.safetensors")
    third = KeywordTable.open(Source.open(tmp_path / "t.safetensors"))
    with Updater(owner, servers) as updater, asking(servers, owner=owner.public) as client:
        third.put("more", ROWS[2], updater)
        rows, found = client.rows(["offline", "more", WORDS[3]])
        assert found.all() and torch.equal(rows, ROWS[[1, 2, 3]])


def test_servers_that_began_from_the_saved_file_are_its_own(tmp_path: Path) -> None:
    owner, table = Owner(), made(room=600)
    with Updater(owner, local_servers(table.source, owner=owner.public)) as updater:
        table.put("new", ROWS[1], updater)
    table.source.save(tmp_path / "t.safetensors")
    servers = local_servers(Source.open(tmp_path / "t.safetensors"), owner=owner.public)
    for own in (table, KeywordTable.open(Source.open(tmp_path / "t.safetensors"))):
        servers = local_servers(Source.open(tmp_path / "t.safetensors"), owner=owner.public)
        with Updater(owner, servers) as updater, asking(servers) as client:
            own.put("newer", ROWS[2], updater)
            assert torch.equal(client["newer"], ROWS[2])  # type: ignore[arg-type]


def test_moves_that_no_update_holds_are_refused_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    owner, table = Owner(), KeywordTable(WORDS[:200], ROWS[:200], room=450, seed=bytes(16))
    servers = local_servers(table.source, owner=owner.public)
    monkeypatch.setattr(module, "rows_in_an_update", lambda facts: 1)
    refused = 0
    with Updater(owner, servers) as updater, asking(servers) as client:
        for number in range(200, 450):
            before = table.source.version
            try:
                table.put(WORDS[number], ROWS[number], updater)
            except InputError as error:
                assert "no position" in error.what and table.source.version == before
                refused += 1
        rows, found = client.rows(WORDS[:200])
        assert found.all() and torch.equal(rows, ROWS[:200]) and 0 < refused < 200


def test_many_changes_take_few_updates_and_a_row_is_never_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates of few rows, in a table so full that rows move: between any two of them, each keyword has its row."""
    owner, table = Owner(), KeywordTable(WORDS[:200], ROWS[:200], room=450, seed=bytes(16))
    servers = local_servers(table.source, owner=owner.public)
    monkeypatch.setattr(module, "rows_in_an_update", lambda facts: 30)
    with Updater(owner, servers) as updater, asking(servers) as client:
        send, sizes = updater.update, list[int]()

        def seen(indices: torch.Tensor, rows: torch.Tensor, **options: Any) -> object:
            done = send(indices, rows, **options)
            sizes.append(len(indices))
            got, found = client.rows(WORDS[:200])
            assert found.all() and torch.equal(got, ROWS[:200])
            return done

        updater.update = seen  # type: ignore[method-assign, assignment]
        table.put(WORDS[200:450], ROWS[200:450], updater)
        rows, found = client.rows(WORDS)
    assert max(sizes) <= 30 and len(sizes) < 20 and sum(sizes) > 250
    assert torch.equal(rows[:450], ROWS[:450]) and found.tolist() == [True] * 450 + [False] * 50


def test_a_table_is_saved_served_and_opened_again(tmp_path: Path) -> None:
    table = made(room=600)
    table.put("late", ROWS[1])
    table.source.save(tmp_path / "t.safetensors")
    sockets = Path(tempfile.mkdtemp(prefix="hb"))
    services = [
        Service(open_server(tmp_path / "t.safetensors", party), f"unix:{sockets}/{party}") for party in range(2)
    ]
    try:
        with asking([f"unix:{sockets}/{party}" for party in range(2)]) as client:
            rows, found = client.rows([*WORDS, "late", "later"])
            assert torch.equal(rows[:-1], torch.cat([ROWS, ROWS[1:2]])) and found.tolist() == [True] * 501 + [False]
    finally:
        for service in services:
            service.stop()
    source = Source.open(tmp_path / "t.safetensors")
    again = KeywordTable.open(source)
    assert len(again) == 501 and again.room == table.room and "late" in again and "later" not in again
    again.put("later", ROWS[2])
    again.remove("late")
    again.source.save(tmp_path / "t.safetensors")  # over the file that it is mapped from
    for now in (again.source, Source.open(tmp_path / "t.safetensors")):
        assert now.used == 501
        with asking(local_servers(now)) as client:
            assert client["late"] is None and torch.equal(client["later"], ROWS[2])  # type: ignore[arg-type]
            assert client.rows(WORDS)[1].all()


def killed(tmp_path: Path, kills: int) -> None:
    """Insert, replace and remove keywords under load, while either server, both, or the owner is killed at random
    moments. Every acknowledged change is there, no other keyword is touched, and both servers agree.

    The owner's death: it opens the file that it saved some time ago, which lacks the changes since.
    """
    random_, owner, sockets = random.Random(kills), Owner(), Path(tempfile.mkdtemp(prefix="hb"))
    words, path = [f"word {number}" for number in range(400)], tmp_path / "t.safetensors"
    KeywordTable(words[:200], ROWS[:200], room=300, seed=bytes(16)).source.save(path)
    (tmp_path / "owner.pub").write_text(owner.public.hex())
    options = ["--table", str(path), "--owner", str(tmp_path / "owner.pub")]
    pair = Pair(sockets, *options, "--journal", f"{tmp_path}/PARTY.journal", grown=400_000)
    own = tmp_path / "own.safetensors"
    own.write_bytes(path.read_bytes())
    expected = dict(zip(words[:200], ROWS[:200], strict=True))
    unsure: dict[str, list[torch.Tensor | None]] = {}  # a change that failed, and may be there: before and after
    stop, asked = threading.Event(), [0]

    def ask() -> None:
        """Look keywords up that never change, until the test ends."""
        while not stop.is_set():
            with contextlib.suppress(HummingbirdError), asking(pair.last) as client:
                while not stop.is_set():
                    chosen = random_.sample(range(200), 5)
                    with contextlib.suppress(PeerError):
                        rows, found = client.rows([words[number] for number in chosen])
                        assert found.all() and torch.equal(rows, ROWS[chosen])
                        asked[0] += 1

    load = threading.Thread(target=ask)
    table, done, changes = KeywordTable.open(Source.open(own)), 0, 0
    try:
        pair.wait()
        load.start()
        while done < kills:
            victims = random_.choice([[0], [1], [0, 1]])
            timer = threading.Timer(random_.random() * 0.4, lambda victims=victims: [pair.kill(n) for n in victims])
            timer.start()
            try:
                with Updater(owner, pair.last, timeout=2.0) as updater:
                    updater.bring_up()
                    while timer.is_alive():
                        group = random_.sample(words[200:], random_.choice([1, 1, 5]))
                        group = [word for word in group if len(expected) + len(group) <= 290 or word in expected]
                        remove = bool(group) and all(word in expected for word in group) and random_.random() < 0.5
                        rows = torch.randn(len(group), 6)
                        for word, row in zip(group, rows, strict=True):
                            unsure.setdefault(word, [expected.get(word)]).append(None if remove else row)
                        if remove:
                            table.remove(group, updater)
                        elif group:
                            table.put(group, rows, updater)
                        for word, row in zip(group, rows, strict=True):
                            unsure.pop(word)
                            if remove:
                                expected.pop(word)
                            else:
                                expected[word] = row
                        changes += 1
            except HummingbirdError:
                pass
            timer.join()
            done += 1
            for party in victims:
                pair.start(party)
            pair.wait()
            with Updater(owner, pair.last, timeout=HANG) as updater:
                updater.bring_up()
                if random_.random() < 0.5:
                    table = KeywordTable.open(Source.open(own))
                table.catch_up(updater)
            if random_.random() < 0.3:
                table.source.save(own)
            with asking(pair.last) as client:
                rows, found = client.rows(words)
                for number, word in enumerate(words):
                    got = rows[number] if found[number] else None
                    if word in unsure:
                        assert any(same(got, each) for each in unsure[word]), word
                        expected.pop(word, None)
                        if got is not None:
                            expected[word] = got
                    assert same(got, expected.get(word)), word
                unsure.clear()
    finally:
        stop.set()
        load.join(HANG)
        pair.close()
    assert asked[0] > kills and changes > kills / 2
    print(f"MEASURED {kills} kills, {changes} changes, {asked[0]} questions")


def same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return one is other or (one is not None and other is not None and torch.equal(one, other))


def test_changes_survive_a_few_kills(tmp_path: Path) -> None:
    killed(tmp_path, 4)


@pytest.mark.slow
def test_changes_survive_a_hundred_kills(tmp_path: Path) -> None:
    killed(tmp_path, 100)
