"""The journal of updates: what is acknowledged is read again; what is torn is dropped; what is damaged is named."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hummingbird import disk
from hummingbird.errors import AgreementError, DiskError, EnvironmentProblem, HummingbirdError, InputError
from hummingbird.pir import Client, Owner, Server, Source
from hummingbird.pir.serving import journal
from hummingbird.pir.table import State
from tests.support.disk import Order

OWNER = Owner()
ROWS, DIM = 40, 2
TABLE = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(0))


def opened(folder: Path, party: int = 0, table: torch.Tensor | Source = TABLE, owner: bytes = OWNER.public) -> Server:
    return Server(table, party, owner=owner, journal=folder / f"{party}.journal")


def update(server: Server, seed: int, count: int = 2) -> bytes:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, DIM, generator=generator)
    return OWNER.update(server.facts, server.state, torch.randperm(ROWS, generator=generator)[:count], rows)


def contents(server: Server) -> torch.Tensor:
    """The rows of a server, as a client of two such servers reads them."""
    other = Server(TABLE, 1 - server.party)
    other._shard, other._state = server._shard, server._state
    return Client((server, other) if server.party == 0 else (other, server)).rows(torch.arange(ROWS))


def states_of(folder: Path, count: int) -> list[tuple[int, State, torch.Tensor]]:
    """After each of `count` updates, made here: the size of the journal, the state, the rows."""
    server = opened(folder)
    found = [(server.updates._journal.size, server.state, contents(server))]
    for number in range(count):
        server.update(update(server, number))
        found.append((server.updates._journal.size, server.state, contents(server)))
    server.close()
    return found


def test_updates_are_made_again(tmp_path: Path) -> None:
    *_, (_, state, rows) = states_of(tmp_path, 5)
    server = opened(tmp_path)
    assert server.state == state and state.version == 5 and torch.equal(contents(server), rows)
    server.update(update(server, 9))
    state, rows = server.state, contents(server)
    server.close()
    again = Server(TABLE, 0, journal=tmp_path / "0.journal")  # updates stay in force without an owner
    assert again.state == state and torch.equal(contents(again), rows)
    with pytest.raises(InputError, match="takes no updates"):
        again.update(update(again, 10))
    again.close()


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_a_journal_is_cut_at_any_byte(tmp_path: Path, step: int) -> None:
    """Every update that is there whole is made; nothing of another is, and what is added next is read again. A journal
    that is cut within its header has just been made. step: every so many bytes, and where an update ends.
    """
    before = states_of(tmp_path, 2)
    path = tmp_path / "0.journal"
    whole = path.read_bytes()
    ends = {entry[0] + around for entry in before for around in (-1, 0, 1, 47, 48, 200)}
    for size in sorted({*range(0, len(whole), step), *ends} & {*range(len(whole))}):
        path.write_bytes(whole[:size])
        end, state, rows = max((entry for entry in before if entry[0] <= max(size, before[0][0])), key=lambda e: e[0])
        server = opened(tmp_path)
        assert server.state == state, size
        if size - end in (0, 1, 47, 48, 200):
            assert torch.equal(contents(server), rows)
            server.update(update(server, 77))
            state = server.state
            server.close()
            server = opened(tmp_path)
            assert server.state == state, size
        server.close()
        assert path.read_bytes()[:end] == whole[:end]


def test_zeros_behind_the_last_update_are_cut_off(tmp_path: Path) -> None:
    *_, (_, state, _) = states_of(tmp_path, 2)
    for count in (1, 47, 48, 1000):
        with open(tmp_path / "0.journal", "ab") as file:
            file.write(bytes(count))
        server = opened(tmp_path)
        assert server.state == state
        server.close()


# One of so many bytes is cut off or damaged.
STEPS = pytest.mark.parametrize("step", [11, pytest.param(3, marks=pytest.mark.slow)])


def flip_bits(folder: Path, whole: bytes, first: int, step: int, words: str) -> None:
    """A journal with one bit of every so many bytes flipped is refused with these words, and stays as it is."""
    path, generator = folder / "0.journal", random.Random(0)
    for place in range(first, len(whole), step):
        data = bytearray(whole)
        data[place] ^= 1 << generator.randrange(8)
        path.write_bytes(data)
        with pytest.raises(InputError, match=words):
            opened(folder)
        assert path.read_bytes() == data


@STEPS
def test_a_flipped_bit_is_named(tmp_path: Path, step: int) -> None:
    """An error that names a byte of the file; never rows that are wrong."""
    states_of(tmp_path, 3)
    flip_bits(tmp_path, (tmp_path / "0.journal").read_bytes(), 0, step, "not a journal|damaged at byte")


def test_a_damaged_middle_says_where(tmp_path: Path) -> None:
    sizes = [size for size, _, _ in states_of(tmp_path, 3)]
    path = tmp_path / "0.journal"
    data = bytearray(path.read_bytes())
    data[sizes[1] + 60] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match=f"damaged at byte {sizes[1]} of {sizes[3]}: the body of an entry") as caught:
        opened(tmp_path)
    assert caught.value.where == str(path) and "copy of the other server's journal" in caught.value.hint
    whole = bytes(data[: sizes[1]]) + bytes(data[sizes[2] :])  # the second update is missing
    path.write_bytes(whole)
    with pytest.raises(InputError, match=f"byte {sizes[1]} of .*an update for version 2, the table is at 1"):
        opened(tmp_path)


def test_nonsense_is_refused(tmp_path: Path) -> None:
    sizes, path, generator = [size for size, _, _ in states_of(tmp_path, 3)], tmp_path / "0.journal", random.Random(1)
    whole = path.read_bytes()
    refused = 0
    for number in range(200):
        kind, place = number % 4, generator.randrange(len(whole))
        if kind == 0:
            data = generator.randbytes(place)
        elif kind == 1:
            data = journal.MAGIC + generator.randbytes(place)
        elif kind == 2:  # an entry with digests, which says nonsense
            body = generator.randbytes(generator.randrange(200))
            at = generator.choice(sizes)
            data = whole[:at] + journal.packed(generator.choice([b"H", b"R", b"S", b"U", b"x"]), body) + whole[at:]
        else:
            data = whole[:place] + generator.randbytes(generator.randrange(100)) + whole[place:]
        path.write_bytes(data)
        try:
            opened(tmp_path).close()
        except HummingbirdError as error:
            refused += 1
            assert error.where == str(path)
    assert refused > 150


def test_the_journal_of_another_table_is_refused(tmp_path: Path) -> None:
    states_of(tmp_path, 1)
    for other in (TABLE + 1, TABLE[:-1], TABLE.half(), OWNER.sign(Source.of(TABLE))):
        with pytest.raises(
            AgreementError, match="another table: 40 rows of 2 float32, version 0 .*; this one is 40|39"
        ):
            opened(tmp_path, table=other)
    opened(tmp_path).close()


def test_the_other_server_s_journal_will_do(tmp_path: Path) -> None:
    *_, (_, state, rows) = states_of(tmp_path, 3)
    shutil.copy(tmp_path / "0.journal", tmp_path / "1.journal")
    server = opened(tmp_path, 1)
    assert server.state == state and torch.equal(contents(server), rows)
    server.close()


def test_one_server_has_the_journal(tmp_path: Path) -> None:
    server = opened(tmp_path)
    with pytest.raises(EnvironmentProblem, match="another process has the journal"):
        opened(tmp_path)
    server.close()
    opened(tmp_path).close()
    with pytest.raises(EnvironmentProblem, match="cannot open the journal"):
        opened(tmp_path / "no folder")


# A full disk ----------------------------------------------------------------------------------------------------------


def refusing(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def short(count: int) -> Callable[[int, bytes], int]:
    """A write that a full disk takes `count` bytes of."""
    real = os.write
    return lambda file, data: real(file, data[:count])


@pytest.mark.parametrize(
    ("name", "instead"), [("write", refusing), ("write", short(0)), ("write", short(70)), ("fsync", refusing)]
)
def test_a_full_disk_refuses_the_update_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, instead: Callable
) -> None:
    (_, _, _), (size, state, rows) = states_of(tmp_path, 1)
    server = opened(tmp_path)
    message = update(server, 5)
    calls, real = iter([instead]), getattr(os, name)
    with monkeypatch.context() as patch:
        patch.setattr(os, name, lambda *arguments: next(calls, real)(*arguments))
        with pytest.raises(DiskError, match="cannot be written to the journal: No space left") as caught:
            server.update(message)
    assert "send the update again" in caught.value.hint
    assert server.state == state and torch.equal(contents(server), rows)
    assert (tmp_path / "0.journal").stat().st_size == size
    server.update(message)  # when there is room
    state, rows = server.state, contents(server)
    server.close()
    server = opened(tmp_path)
    assert server.state == state and torch.equal(contents(server), rows)
    server.close()


def test_a_part_that_cannot_be_taken_back_ends_the_updates_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = opened(tmp_path)
    first = server.state
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", short(70))
        patch.setattr(os, "ftruncate", refusing)
        with pytest.raises(DiskError, match="No space left"):
            server.update(update(server, 5))
    with pytest.raises(DiskError, match="an earlier piece was cut off"):
        server.update(update(server, 5))
    assert server.state == first and torch.equal(contents(server), TABLE)
    server.close()
    server = opened(tmp_path)
    assert server.state == first
    server.update(update(server, 5))
    server.close()


def test_a_journal_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", refusing)
    with pytest.raises(EnvironmentProblem, match="cannot open the journal: No space left"):
        opened(tmp_path)
    monkeypatch.undo()
    opened(tmp_path).close()


# Merging --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals that are merged often, in small pieces."""
    monkeypatch.setattr(journal, "GROWN", 3000)
    monkeypatch.setattr(journal, "KEPT", 1000)
    monkeypatch.setattr(journal, "_PIECE", 200)


@pytest.mark.usefixtures("small")
def test_a_journal_does_not_grow_for_ever(tmp_path: Path) -> None:
    server, plain = opened(tmp_path), Server(TABLE, 0, owner=OWNER.public)
    largest = 0
    for number in range(150):
        message = update(server, number, 1 + number % 9)
        server.update(message)
        plain.update(message)
        largest = max(largest, (tmp_path / "0.journal").stat().st_size)
        if number % 10 == 0:
            server.close()
            server = opened(tmp_path)
    assert server.state == plain.state and torch.equal(contents(server), contents(plain))
    assert largest < 10_000  # some 60,000 without
    server.close()
    server = opened(tmp_path)
    assert server.state == plain.state and torch.equal(contents(server), contents(plain))
    for back in (1, 2):  # the last ones are kept
        version = server.state.version - back
        assert plain.updates._made[version] == hashlib.sha256(server.updates.past(version)).digest()
    with pytest.raises(InputError, match="updates are kept from version .* to 150, not that of version 0"):
        server.updates.past(0)
    assert [path.name for path in tmp_path.iterdir()] == ["0.journal"]
    server.close()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("step", range(1, 12))
def test_a_merging_that_stops_anywhere_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """A disk that is full at each of its steps, and a process that ends there."""
    server = opened(tmp_path)
    server.updates._merge = lambda: None  # by hand below
    while not (count := server.updates._journal.to_merge()):
        server.update(update(server, server.state.version))
    state, rows, kept = server.state, contents(server), server.updates._journal
    left = [step]

    def counted(real: Callable) -> Callable:
        def call(*arguments, **options):
            left[0] -= 1
            if not left[0]:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for name in ("fsync", "replace"):
            patch.setattr(os, name, counted(getattr(os, name)))
        for name in ("append", "flush", "rename"):
            patch.setattr(disk, name, counted(getattr(disk, name)))
        patch.setattr(journal, "packed", counted(journal.packed))
        server.updates._merged(kept, count)
        copied = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    server.update(update(server, 500))
    later, later_rows = server.state, contents(server)
    server.close()
    server = opened(tmp_path)
    assert server.state == later and torch.equal(contents(server), later_rows)
    server.close()
    for name, data in copied.items():  # as a process that was killed left it
        (tmp_path / name).write_bytes(data)
    server = opened(tmp_path)
    assert server.state == state and torch.equal(contents(server), rows)
    assert [path.name for path in tmp_path.iterdir()] == ["0.journal"]
    server.close()


@pytest.mark.usefixtures("small")
@STEPS
def test_a_merged_journal_that_is_cut_or_changed_is_refused(tmp_path: Path, step: int) -> None:
    server = opened(tmp_path)
    while not server.updates._journal._rows:
        server.update(update(server, server.state.version))
        if server.updates._merging:
            server.updates._merging.join()
    whole, path, states = (tmp_path / "0.journal").read_bytes(), tmp_path / "0.journal", {server.state}
    merged, first = server.updates._journal._rows[0], server.updates._journal._updates[0]
    server.close()
    for place in range(merged + 1, first, step // 3):
        path.write_bytes(whole[:place])
        with pytest.raises(InputError, match="damaged at byte .*it is cut off"):
            opened(tmp_path)
        assert path.read_bytes() == whole[:place]
    flip_bits(tmp_path, whole, 8, step, "damaged at byte")
    path.write_bytes(whole)
    server = opened(tmp_path)
    assert server.state in states
    server.close()


def test_the_order_in_which_a_journal_reaches_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made: the file, then its name. An update: the file. Merged: the new file whole, its name, and only then the next
    update.
    """
    order = Order(monkeypatch, tmp_path)
    server = opened(tmp_path)
    made = order.place("fsync", "0.journal")
    named = order.place("fsync", ".", after=made)
    server.update(update(server, 1))
    added = order.place("fsync", "0.journal", after=named)
    written = server.updates._journal
    rows = written.merge(1, [server.state])
    drafted = order.place("fsync", "0.journal.new", after=added)
    server.update(update(server, 2))  # while it is merged
    behind = order.place("fsync", "0.journal", after=drafted)
    written.adopt(1, rows)
    whole = order.place("fsync", "0.journal.new", after=behind)
    taken = order.place("rename", "0.journal.new", "0.journal", after=whole)
    assert ("fsync", ".") not in order.calls[taken:]
    server.update(update(server, 3))
    renamed = order.place("fsync", ".", after=taken)
    order.place("fsync", "0.journal", after=renamed)
    assert order.calls.index(("fsync", "0.journal"), taken) > renamed
    state, rows_now = server.state, contents(server)
    server.close()
    monkeypatch.undo()
    again = opened(tmp_path)
    assert again.state == state and torch.equal(contents(again), rows_now)
    again.close()


def test_every_update_that_is_kept_is_known_again_and_handed_out(tmp_path: Path) -> None:
    """The first one, too, and of what is older or to come the error says what there is."""
    server = opened(tmp_path)
    messages = []
    for number in range(3):
        messages.append(update(server, number))
        server.update(messages[-1])
    state = server.state
    for version, message in enumerate(messages):
        server.update(message)  # is made already
        assert server.state == state and server.past_update(version.to_bytes(8, "little")) == message
    with pytest.raises(InputError, match="updates are kept from version 0 to 3"):
        server.past_update((3).to_bytes(8, "little"))
    with pytest.raises(AgreementError, match="the update is for version 0"):
        server.update(OWNER.update(server.facts, State(0, bytes(32)), torch.arange(2), torch.zeros(2, DIM)))
    server.close()
