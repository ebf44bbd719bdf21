"""Prepared files: made a piece at a time from Parquet, npy, safetensors and text; mapped, checked, damaged."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hummingbird.errors import EnvironmentProblem, InputError, PeerError
from hummingbird.pir import Client, KeywordClient, KeywordTable, Owner, Source, building, local_servers, prepared
from hummingbird.pir import table as tables
from hummingbird.pir.serving import server as serving
from hummingbird.pir.serving.server import Server, open_server
from hummingbird.pir.serving.workers import TableShard
from hummingbird.pir.updating import Updater
from tests.support.patience import HANG

arrow = pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
parquet = pytest.importorskip("pyarrow.parquet")
COUNT = 7000
WORDS = [f"wörd {number}" for number in range(COUNT)]
ROWS = torch.randn(COUNT, 3, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 1024 to 2048 records and pieces of 1000 rows, so that a small table has several of each."""
    monkeypatch.setattr(building, "_PART", 2048 * 20)
    monkeypatch.setattr(building, "_BATCH", 1000)
    monkeypatch.setattr(serving, "FIRST", 0.1)
    monkeypatch.setattr(tables, "PIECE", 3000 * 20)


def written(path: Path, **columns: Any) -> Path:
    parquet.write_table(arrow.table(columns), path, row_group_size=1700)
    return path


def fixed(rows: np.ndarray) -> Any:
    return arrow.FixedSizeListArray.from_arrays(arrow.array(rows.ravel()), rows.shape[1])


def check(path: Path, rows: torch.Tensor) -> None:
    """Every keyword has its row at two servers of the file, and none other has one."""
    source = Source.open(path)
    with contextlib.closing(KeywordClient(local_servers(source), timeout=HANG)) as client:
        got, found = client.rows([*WORDS, "nobody", ""])
        assert found.tolist() == [True] * COUNT + [False] * 2 and torch.equal(got[:COUNT], rows)
    assert source.used == COUNT
    source.verify()


# Sources --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fixed", "list", "large", "bytes", "half", "integers"])
def test_keywords_and_rows_of_a_parquet_file(tmp_path: Path, kind: str) -> None:
    rows, words = ROWS, arrow.array(WORDS)
    columns: dict[str, Callable[[], Any]] = {
        "fixed": lambda: fixed(rows.numpy()),
        "list": lambda: arrow.array(rows.tolist(), arrow.list_(arrow.float32())),
        "large": lambda: arrow.array(rows.tolist(), arrow.large_list(arrow.float32())),
        "bytes": lambda: arrow.array([row.numpy().tobytes() for row in rows], arrow.binary(12)),
        "half": lambda: fixed(rows.half().numpy()),
        "integers": lambda: fixed((1000 * rows).long().numpy()),
    }
    words = arrow.array([word.encode() for word in WORDS], arrow.large_binary()) if kind == "large" else words
    path = written(tmp_path / "t.parquet", word=words, other=arrow.array(range(COUNT)), vector=columns[kind]())
    source = building.ParquetRows(path, "vector", "word")
    seen = 0

    def progress(count: int) -> None:
        nonlocal seen
        seen += count

    facts = building.build(tmp_path / "t.safetensors", source, progress=progress)
    expected = {"bytes": rows.view(torch.uint8), "half": rows.half(), "integers": (1000 * rows).long()}.get(kind, rows)
    check(tmp_path / "t.safetensors", expected)
    assert seen == building.reads(source) > 2 * COUNT and facts == Source.open(tmp_path / "t.safetensors").facts


def test_keywords_in_a_text_file(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", ROWS.numpy())
    (tmp_path / "words").write_bytes("\r\n".join(WORDS).encode("utf-8-sig"))  # as some editors write it
    rows = building.FileRows(tmp_path / "t.npy", keywords=tmp_path / "words")
    building.build(tmp_path / "t.safetensors", rows, room=2 * COUNT, seed=bytes(16))
    check(tmp_path / "t.safetensors", ROWS)
    big = KeywordTable.open(Source.open(tmp_path / "t.safetensors"))
    assert 2 * COUNT <= big.room < 2 * COUNT + 3
    inside = KeywordTable(WORDS, ROWS, room=2 * COUNT, seed=bytes(16))
    assert np.array_equal(big.source.records, inside.source.records)


def test_rows_by_number(tmp_path: Path) -> None:
    path = written(tmp_path / "t.parquet", vector=fixed(ROWS.numpy()))
    building.build(tmp_path / "t.safetensors", building.ParquetRows(path, "vector"))
    Source.of(ROWS).save(tmp_path / "again.safetensors")
    assert (tmp_path / "t.safetensors").read_bytes() == (tmp_path / "again.safetensors").read_bytes()
    source = Source.open(tmp_path / "t.safetensors")
    with contextlib.closing(Client(local_servers(source), timeout=HANG)) as client:
        index = torch.randint(0, COUNT, (100,))
        assert torch.equal(client.rows(index), ROWS[index])
    assert Server(source, 0).state == Server(ROWS, 0).state


# Mapped files ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> Path:
    np.save(tmp_path / "t.npy", ROWS.numpy())
    Source.of(ROWS).save(tmp_path / "t.safetensors")
    return tmp_path / "t.safetensors"


def test_rows_of_a_mapped_file_are_read_and_written_as_those_of_an_array(table: Path) -> None:
    KeywordTable(WORDS, ROWS).source.save(table.with_name("k.safetensors"))
    for path in (table, table.with_name("k.safetensors")):
        mapped = Source.open(path)
        records, before = np.asarray(mapped.records).copy(), path.read_bytes()
        count = len(records)
        assert mapped.records.shape == records.shape and mapped.records.size == records.size == count * records.shape[1]
        for low, high in ((0, count), (3, 3), (5, 4000), (count - 9, count + 9), (2345, 6789), (count, count)):
            assert np.array_equal(mapped.records[low:high], records[low:high])
        assert np.array_equal(mapped.records[::7], records[::7])
        index = np.random.default_rng(0).integers(0, count, 500)
        assert np.array_equal(mapped.records[index], records[index])
        new = np.random.default_rng(1).integers(0, 256, (500, records.shape[1]), np.uint8)
        mapped.records[index], records[index] = new, new
        assert np.array_equal(mapped.records, records) and path.read_bytes() == before
        assert not np.array_equal(mapped.records.again(), records)  # type: ignore[union-attr]


@pytest.mark.slow
def test_parts_and_workers_map_their_own_rows(table: Path) -> None:
    source = Source.open(table)
    for first, last in ((0, 1024), (2048, 4096), (6144, COUNT), (0, COUNT)):
        part, plain = TableShard(source, first, last), TableShard(Source.of(ROWS), first, last)
        part.load()
        plain.load()
        assert part._loaded and not plain._loaded and part.digests == plain.digests
        assert torch.equal(part._table.sliced(), plain._table.sliced())
    with contextlib.closing(open_server(table, 0, workers=2)) as zero, contextlib.closing(Server(source, 1)) as one:
        client = Client([zero, one], timeout=HANG)
        assert torch.equal(client.rows(torch.arange(0, COUNT, 50)), ROWS[::50])


def test_a_changed_table_is_not_taken_from_its_file(table: Path) -> None:
    """Servers of a table that its owner has changed since it was opened serve the changes."""
    path = table.with_name("k.safetensors")
    KeywordTable(WORDS[:100], ROWS[:100], room=200).source.save(path)
    own = KeywordTable.open(Source.open(path))
    own.put("new", ROWS[500])
    with contextlib.closing(KeywordClient(local_servers(own.source), timeout=HANG)) as client:
        assert torch.equal(client["new"], ROWS[500])  # type: ignore[arg-type]
    table.replace(path)  # another file of the same name, which no open table reads
    assert WORDS[3] in own


def test_a_file_that_is_overwritten_while_it_is_served_ends_the_service(table: Path) -> None:
    servers = local_servers(Source.open(table))
    client = Client(servers, timeout=HANG)
    assert torch.equal(client.rows(torch.tensor([7])), ROWS[7:8])
    with open(table, "r+b") as file:
        file.seek(1000)
        file.write(b"abc")
    with pytest.raises(PeerError, match="the table's file was changed while it was served"):
        client.rows(torch.tensor([7]))
    with pytest.raises(PeerError, match="was changed"):
        servers[0].check()


def test_updates_of_a_mapped_table_survive_a_restart(table: Path) -> None:
    owner, index = Owner(), torch.tensor([5, 6000])
    for start in range(2):
        servers = [
            open_server(table, party, owner=owner.public, journal=table.with_name(f"{party}.journal"))
            for party in range(2)
        ]
        with Updater(owner, servers) as updater, contextlib.closing(Client(servers, timeout=HANG)) as client:
            if not start:
                updater.update(index, torch.zeros(2, 3))
            assert not client.rows(index).any() and torch.equal(client.rows(index - 1), ROWS[index - 1])
        for server in servers:
            server.close()


# Damage ---------------------------------------------------------------------------------------------------------------


def damaged(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


@pytest.fixture
def start(table: Path) -> int:
    return 8 + int.from_bytes(table.read_bytes()[:8], "little")


def test_a_damaged_row_is_found_before_or_behind(table: Path, start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged(table, start + 5000 * 16)
    with pytest.raises(InputError, match="rows 4096 to 5119 differ from their digest") as caught:
        open_server(table, 0, verify=True)
    assert "copy it again" in caught.value.hint
    with pytest.raises(InputError, match="rows 4096 to 5119"):
        open_server(table, 0)  # a small file is compared first
    monkeypatch.setattr(serving, "AT_ONCE", 0)
    with contextlib.closing(open_server(table, 0)) as server:
        deadline = time.monotonic() + HANG
        with pytest.raises(PeerError, match="the table's file: rows 4096 to 5119 differ"):
            while time.monotonic() < deadline:
                server.check()
                time.sleep(0.01)
        with pytest.raises(PeerError, match="the table's file"):
            Client([server, Server(ROWS, 1)], timeout=HANG).rows(torch.tensor([1]))


def test_damage_is_not_given_a_new_digest(table: Path, start: int) -> None:
    """A copy, a build, a signature, and a change of another row of its leaf refuse a damaged row."""
    damaged(table, start + 5000 * 16)
    KeywordTable(WORDS, ROWS, seed=bytes(16)).source.save(table.with_name("k.safetensors"))
    damaged(table.with_name("k.safetensors"), start + 4000 * 24)
    source, keywords = Source.open(table), KeywordTable.open(Source.open(table.with_name("k.safetensors")))
    for use in (
        lambda: source.save(table.with_name("copy.safetensors")),
        lambda: building.build(table.with_name("copy.safetensors"), building.FileRows(table)),
        lambda: Owner().sign(source),
        lambda: np.asarray(source.records),
        lambda: keywords.put(WORDS, ROWS),
    ):
        with pytest.raises(InputError, match="differ from their digest"):
            use()
    assert not table.with_name("copy.safetensors").exists() and source.records[:4096].shape == (4096, 12)


def test_numbers_that_are_no_rows(table: Path) -> None:
    records = Source.open(table).records
    for rows in ([-1], [COUNT], [0.5], [[1]], np.ones(COUNT, bool), 3):
        with pytest.raises(IndexError, match="numbers of rows from 0 to 6999"):
            records[rows]  # type: ignore[index]
    with pytest.raises(IndexError):
        records[[COUNT]] = np.zeros((1, 12), np.uint8)
    assert records[[]].shape == (0, 12)


def test_a_check_that_breaks_off_ends_the_service(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("mmap length is greater than file size")

    monkeypatch.setattr(Source, "verify", broken)
    monkeypatch.setattr(serving, "AT_ONCE", 0)
    with contextlib.closing(open_server(table, 0)) as server:
        deadline = time.monotonic() + HANG
        with pytest.raises(PeerError, match="the table's file: mmap length"):
            while time.monotonic() < deadline:
                server.check()
                time.sleep(0.01)


def test_a_source_that_changes_is_refused(tmp_path: Path) -> None:
    extra: list[torch.Tensor] = []

    class Changing(building.FileRows):
        def rows(self) -> Any:
            yield from super().rows()
            yield from extra

    np.save(tmp_path / "t.npy", ROWS.numpy())
    (tmp_path / "words").write_text("\n".join(WORDS))
    for words in (None, tmp_path / "words"):
        rows = Changing(tmp_path / "t.npy", keywords=words)
        for more, count in ([ROWS[:1]], COUNT), ([], COUNT + 5):
            extra[:], rows.count = more, count
            with pytest.raises(InputError, match="were announced"):
                building.build(tmp_path / "t.safetensors", rows)
    with pytest.raises((InputError, EnvironmentProblem)):
        KeywordTable(WORDS[:3], ROWS[:3], room=10**12)


def test_files_that_are_cut_off_or_of_another_shape(table: Path, start: int) -> None:
    good = table.read_bytes()
    for data in (good[:-1], good + b"\0", good[: start + 100], good[:start]):
        table.write_bytes(data)
        with pytest.raises(InputError, match="cut off"):
            Source.open(table)
    own = json.loads(json.loads(good[8:start])["__metadata__"]["hummingbird.pir"])
    for change in (
        lambda header: header["sliced"].update(shape=[5]),
        lambda header: header.pop("digests"),
        lambda header: header["digests"].update(data_offsets=[0, 9]),
        lambda header: header["__metadata__"].update({"hummingbird.pir": "{}"}),
        lambda header: header["__metadata__"].update({"hummingbird.pir": json.dumps(own | {"rows": 7100})}),
        lambda header: header["__metadata__"].update({"hummingbird.pir": json.dumps(own | {"used": -1})}),
    ):
        header = json.loads(good[8:start])
        change(header)
        text = json.dumps(header).encode()
        text += b" " * (-(8 + len(text)) % 64)
        table.write_bytes(len(text).to_bytes(8, "little") + text + good[start:])
        with pytest.raises(InputError):
            Source.open(table)


def test_random_damage_is_an_error_or_found_by_verify(table: Path) -> None:
    generator, good, found = random.Random(0), table.read_bytes(), 0
    expected = np.asarray(Source.of(ROWS).records)
    for _ in range(60):
        table.write_bytes(good)
        damaged(table, generator.randrange(len(good)))
        try:
            source = Source.open(table)
            source.verify()
        except InputError:
            found += 1
            continue
        assert np.array_equal(source.records, expected)  # in the header's spaces, or a row's padding
    assert found > 30


def test_a_file_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "t.parquet", word=arrow.array(WORDS), vector=fixed(ROWS.numpy()))
    rows = building.ParquetRows(path, "vector", "word")
    out, count = tmp_path / "t.safetensors", 0

    def broken(progress: int) -> None:
        nonlocal count
        count += 1
        if count > 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        building.build(out, rows, progress=broken)
    assert [each.name for each in tmp_path.iterdir()] == ["t.parquet"]
    monkeypatch.setattr(prepared.shutil, "disk_usage", lambda path: type("", (), {"free": 1000}))
    with pytest.raises(InputError, match="MB for the table, 0 MB are free"):
        building.build(out, rows)
    monkeypatch.undo()
    with pytest.raises(InputError, match="cannot write the table"):
        building.build(tmp_path / "none" / "t.safetensors", rows)


# What is refused ------------------------------------------------------------------------------------------------------


def test_sources_that_are_no_tables(tmp_path: Path) -> None:
    vector = fixed(ROWS.numpy())
    for columns, names, what in (
        ({"vector": vector}, ("vectors", None), "no columns 'vectors'"),
        ({"vector": vector}, ("vector", "word"), "no columns 'word'"),
        ({"vector": vector, "word": arrow.array(range(COUNT))}, ("vector", "word"), "keywords of type int64"),
        ({"vector": arrow.array(WORDS)}, ("vector", None), "rows of type string"),
        ({"vector": arrow.array([[1.0], [1.0, 2.0]])}, ("vector", None), "row 1 has 2 numbers, others 1"),
        ({"vector": arrow.array([[1.0], None])}, ("vector", None), "row 1 is null"),
        ({"vector": arrow.array([[1.0], [None]])}, ("vector", None), "a number is null in rows 0 to 1"),
        ({"vector": vector, "word": arrow.array([*WORDS[1:], None])}, ("vector", "word"), "row 6999 is null"),
        ({"vector": vector, "word": arrow.array([*WORDS[1:], "x" * 70_000])}, ("vector", "word"), "has 70000 bytes"),
        (
            {"vector": vector, "word": arrow.array([*WORDS[1:], WORDS[77]])},
            ("vector", "word"),
            "the keyword of row 76 stands again in row 6999",
        ),
        ({"vector": vector[:0]}, ("vector", None), "a table without rows"),
    ):
        path = written(tmp_path / "t.parquet", **columns)
        with pytest.raises(InputError, match=what):
            building.build(tmp_path / "t.safetensors", building.ParquetRows(path, *names))
        assert not (tmp_path / "t.safetensors").exists()
    twice = arrow.Table.from_arrays([vector, vector], names=["vector", "vector"])
    parquet.write_table(twice, tmp_path / "twice.parquet")
    with pytest.raises(InputError, match="2 columns 'vector'"):
        building.ParquetRows(tmp_path / "twice.parquet", "vector")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and no more")
    for name in ("bad.parquet", "none.parquet"):
        with pytest.raises(InputError, match="cannot read the file"):
            building.ParquetRows(tmp_path / name, "vector")
    np.save(tmp_path / "t.npy", ROWS.numpy())
    for text, what in (
        ("a\nb", "2 keywords for 7000 rows"),
        ("\udcff\n" * COUNT, "line 1 is no UTF-8"),
        ("a\n\udcc3\n\udca9\n", "line 2 is no UTF-8"),
        ("a\n\nb\n", "line 2 is empty"),
    ):
        (tmp_path / "words").write_text(text, errors="surrogateescape")
        with pytest.raises(InputError, match=what):
            building.FileRows(tmp_path / "t.npy", keywords=tmp_path / "words")
    Owner().sign(Source.of(ROWS)).save(tmp_path / "signed.safetensors")
    with pytest.raises(InputError, match="signed") as caught:
        building.FileRows(tmp_path / "signed.safetensors")
    assert "plain rows" in caught.value.hint
