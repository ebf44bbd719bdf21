"""Tables of rows: every instruction set against the plain torch definition, and against keys that name one row."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from hummingbird.errors import EnvironmentProblem, InputError
from hummingbird.kernels import lookups
from hummingbird.kernels.cpu import library
from hummingbird.kernels.lookups import PRFS, WIDTHS, Table, select_sum, select_xor
from hummingbird.kernels.reference.lookups import joined, sliced
from hummingbird.kernels.reference.lookups import select as select_rows
from hummingbird.pir.dpf import generate
from tests.support.covering import every

PATHS = ("avx512+gfni", "avx512", "avx2+gfni", "avx2", "portable", "torch")
LEAF = lookups.LEAF_ROWS


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Each way in turn, on one thread; a table must be made and used in the same test."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    request.addfinalizer(lambda: torch.set_num_threads(threads))
    if request.param == "torch":
        monkeypatch.setattr(library, "available", lambda: False)
        yield request.param
        return
    assert library.available(), "run `python setup.py build_ext --inplace`"
    isa, _, gfni = request.param.partition("+")
    before = library.isa(), library.xor_path().endswith("gfni")
    if not library.set_isa(isa) or not library.set_gfni(bool(gfni)):
        library.set_isa(before[0])
        pytest.skip(f"this processor has no {request.param}")
    yield request.param
    library.set_isa(before[0])
    library.set_gfni(before[1])


def randoms(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def python_select(bits: Tensor, data: Tensor, width: int) -> Tensor:
    """By Python's integers, one row after another."""
    size, out = (width or 8) // 8, []
    for query in bits.tolist():
        total = [0] * (data.shape[1] // size)
        for i, row in enumerate(data.tolist()):
            if query[i // 8] >> (i % 8) & 1:
                words = [int.from_bytes(row[at : at + size], "little") for at in range(0, len(row), size)]
                total = [t + w if width else t ^ w for t, w in zip(total, words, strict=True)]
        out.append(b"".join((t % 256**size).to_bytes(size, "little") for t in total))
    return torch.frombuffer(bytearray(b"".join(out)), dtype=torch.uint8).view(len(out), -1)


def select(bits: Tensor, table: Table, width: int) -> Tensor:
    return select_sum(bits, table, width) if width else select_xor(bits, table)


def allowed(row_bytes: int) -> list[int]:
    return [width for width in (0, *WIDTHS) if not 8 * row_bytes % (width or 1)]


# Selection bits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [0, *WIDTHS])
def test_the_definition_by_pythons_integers(width: int) -> None:
    torch.manual_seed(0)
    data, bits = randoms(100, 24), randoms(3, 13)
    data[:50] = 255  # the largest words: sums wrap
    assert torch.equal(select_rows(bits, data, width), python_select(bits, data, width))


@pytest.mark.parametrize("count", every(2, [9, 1, 15, 7, 17, 8, 100, 16, 1023, 1024, 1025, 1040, 2049, 9001]))
def test_odd_sizes(path: str, count: int) -> None:
    """Rows around a group, two groups, a block, eight blocks; vectors, tiles, eights and steps of queries cut off."""
    for row_bytes in (1, 7, 8, 9, 24, 31, 32, 33, 64, 72, 136) if count < 2000 else (9, 64):
        batch = int(torch.randint(1, 71, ()))
        data, bits = randoms(count, row_bytes), randoms(batch, (count + 7) // 8)
        table = Table.prepare(data)
        for width in allowed(row_bytes):
            got = select(bits, table, width)
            assert torch.equal(got, select_rows(bits, data, width)), (row_bytes, batch, width)


def test_every_batch_up_to_70(path: str) -> None:
    data = randoms(1100, 40)
    table, bits = Table.prepare(data), randoms(70, 138)
    for width in (0, 16):
        expected = select_rows(bits, data, width)
        for batch in range(1, 71):
            assert torch.equal(select(bits[:batch], table, width), expected[:batch]), (batch, width)


def test_a_batch_of_hundreds(path: str) -> None:
    data, bits = randoms(1500, 48), randoms(515, 188)
    table = Table.prepare(data)
    for width in (0, 64):
        assert torch.equal(select(bits, table, width), select_rows(bits, data, width))


def test_each_row_alone(path: str) -> None:
    """A row that is mixed up with another, or a bit of it, would not come back as it is."""
    data = randoms(1050, 41)
    bits = torch.zeros(1050, 132, dtype=torch.uint8)
    at = torch.arange(1050)
    bits[at, at // 8] = (1 << at % 8).to(torch.uint8)
    table = Table.prepare(data)
    assert torch.equal(select_xor(bits, table), data) and torch.equal(select_sum(bits, table, 8), data)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_share_the_blocks(path: str, threads: int) -> None:
    data, bits = randoms(20 * LEAF - 5, 64), randoms(64, 20 * LEAF // 8)
    assert len(data) // 8 * 8 * len(bits) // 8 > (threads - 1) << 16  # enough work for all of them
    table = Table.prepare(data)
    for width in (0, 8, 64) if path != "torch" else ():
        torch.set_num_threads(1)
        expected = select(bits, table, width)
        torch.set_num_threads(threads)
        assert torch.equal(select(bits, table, width), expected), width


def test_views_are_read_correctly(path: str) -> None:
    wide, bits = randoms(200, 60), randoms(13, 9).t()
    one, other = wide[::2, 3:35], wide[1::2, 3:35]
    table = Table.prepare(one)
    assert torch.equal(select_xor(bits, table), select_rows(bits, one, 0))
    table.update(torch.arange(100).expand(2, 100).t()[:, 1], other)
    assert torch.equal(select_sum(bits, table, 32), select_rows(bits, other, 32))


# Writing --------------------------------------------------------------------------------------------------------------


def test_pieces_and_updates_make_the_same_table(path: str) -> None:
    """Pieces of any length, in any order; then single rows, some twice, some as they were."""
    for count, row_bytes in ((1, 3), (61, 9), (1077, 33)):
        data, bits = randoms(count, row_bytes), randoms(9, (count + 7) // 8)
        table = Table(count, row_bytes)
        assert not select_xor(bits, table).any()
        cuts = [0, *sorted(torch.randint(0, count + 1, (12,)).tolist()), count]
        pieces = list(zip(cuts, cuts[1:], strict=False))
        for start, end in pieces[1::2] + pieces[::2]:
            table.fill(start, data[start:end])
        assert torch.equal(select_xor(bits, table), select_rows(bits, data, 0))
        index = torch.randint(0, count, (30,))
        changed = randoms(30, row_bytes)
        changed[:5] = data[index[:5]]
        table.update(index, changed)
        for i, row in zip(index.tolist(), changed, strict=True):
            data[i] = row
        assert torch.equal(select_xor(bits, table), select_rows(bits, data, 0))
        table.fill(0, data.flip(0))  # over what was there
        assert torch.equal(select_sum(bits, table, 8), select_rows(bits, data.flip(0), 8))


def test_a_table_made_by_one_path_serves_all() -> None:
    """The layout is one; a table larger than the limit for large pages, too."""
    torch.manual_seed(0)
    data, bits = randoms(33_000, 130), randoms(5, 4125)
    table, expected = Table.prepare(data), select_rows(bits, data, 0)
    assert table.nbytes == 33_008 * 136 > 4 << 20
    before = library.isa()
    try:
        for isa in library.ISAS:
            if library.set_isa(isa):
                assert torch.equal(select_xor(bits, table), expected), isa
                again = Table.prepare(data)
                assert torch.equal(again._store._data, table._store._data), isa
    finally:
        library.set_isa(before)


# Keys -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 9, 1024, 1500])
def test_two_answers_make_every_row(path: str, count: int) -> None:
    alphas = torch.arange(0, count, 7 if path == "torch" else 1)
    data = randoms(count, 16)
    table = Table.prepare(data)
    for prf in PRFS:
        first, second, signs = generate(alphas, count, prf)
        assert torch.equal(table.answer(first) ^ table.answer(second), data[alphas]), prf
        for width, dtype in WIDTHS.items():
            one, two = (table.answer_sum(keys, width).view(dtype) for keys in (first, second))
            row = signs.to(dtype)[:, None] * (one - two)
            assert torch.equal(row.view(torch.uint8), data[alphas]), (prf, width)


def test_random_rows_of_65537(path: str) -> None:
    if path == "torch":
        pytest.skip("its expansion alone takes long")
    count = (1 << 16) + 1
    data, table = randoms(count, 8), Table(count, 8)
    table.fill(0, data)
    alphas = torch.cat([torch.randint(0, count, (30,)), torch.tensor([0, count - 1])])
    for prf in PRFS:
        first, second, signs = generate(alphas, count, prf)
        assert torch.equal(table.answer(first) ^ table.answer(second), data[alphas])
        bits = lookups.expand(first, 0, lookups.leaves_of(count))[:, : (count + 7) // 8]
        assert torch.equal(table.answer(first), select_xor(bits, table))
        one, two = (table.answer_sum(keys, 64).view(torch.int64) for keys in (first, second))
        assert torch.equal((signs[:, None] * (one - two)).view(torch.uint8), data[alphas])


def test_random_rows_of_a_million(path: str) -> None:
    if path == "torch":
        pytest.skip("its expansion alone takes long")
    count = (1 << 20) - 77
    data = torch.arange(count, dtype=torch.int64).view(torch.uint8).view(count, 8)
    table, alphas = Table.prepare(data), torch.randint(0, count, (13,))
    first, second, _ = generate(alphas, count)
    assert torch.equal((table.answer(first) ^ table.answer(second)).view(torch.int64)[:, 0], alphas)


def test_parts_of_a_table_add_up(path: str) -> None:
    count = 5 * LEAF + 3
    data, alphas = randoms(count, 12), torch.tensor([0, LEAF, 2 * LEAF - 1, 5 * LEAF + 2])
    first, second, _ = generate(alphas, count, "chacha12")
    cuts = [0, LEAF, 4 * LEAF, count]
    total, sums = torch.zeros(4, 12, dtype=torch.uint8), torch.zeros(4, 3, dtype=torch.int32)
    for start, end in zip(cuts, cuts[1:], strict=False):
        part = Table.prepare(data[start:end])
        total ^= part.answer(first, start // LEAF) ^ part.answer(second, start // LEAF)
        sums += part.answer_sum(first, 32, start // LEAF).view(torch.int32)
    assert torch.equal(total, data[alphas])
    assert torch.equal(sums.view(torch.uint8), Table.prepare(data).answer_sum(first, 32))


@pytest.mark.parametrize("threads", [1, 3])
def test_tables_asked_together_answer_as_each_alone(path: str, threads: int) -> None:
    torch.set_num_threads(threads)  # the fixture sets it back
    small = path == "torch"
    for count, batch in ((40, 3), (1500, 1), (9 if small else 9000, 40)):
        data = randoms(5, count, 12)
        tables = [Table.prepare(part) for part in data]
        keys = generate(torch.randint(0, count, (5 * batch,)), count)[0].view(5, batch, -1)
        for width in (0, 8, 32):
            alone = [t.answer_sum(k, width) if width else t.answer(k) for t, k in zip(tables, keys, strict=True)]
            assert torch.equal(lookups.answer_each(tables, keys, width), torch.stack(alone)), (count, width)
        turned = keys.transpose(0, 1).contiguous().transpose(0, 1)
        assert torch.equal(lookups.answer_each(tables, turned, 0), lookups.answer_each(tables, keys, 0))


# What is refused ------------------------------------------------------------------------------------------------------


def test_what_is_refused(path: str) -> None:
    table, bits = Table(3 * LEAF, 6), randoms(2, 384)
    keys, _, _ = generate(torch.tensor([5]), 3 * LEAF)
    others, _, _ = generate(torch.tensor([5]), 3 * LEAF - 1)
    for call, what in [
        (lambda: Table(0, 6), "1 to 2^40 rows"),
        (lambda: Table(1 << 41, 6), "1 to 2^40 rows"),
        (lambda: Table(6, 0), "at least one byte"),
        (lambda: Table.prepare(randoms(6)), "uint8 (rows, row_bytes)"),
        (lambda: Table.prepare(torch.zeros(6, 2)), "float32 (6, 2)"),
        (lambda: table.fill(0, randoms(2, 5)), "uint8 (n, 6)"),
        (lambda: table.fill(3 * LEAF - 1, randoms(2, 6)), "rows 3071 to 3073"),
        (lambda: table.fill(-1, randoms(2, 6)), "rows -1 to 1"),
        (lambda: table.update(torch.tensor([0]), randoms(2, 6)), "indices int64 (2,)"),
        (lambda: table.update(torch.tensor([0, 1], dtype=torch.int32), randoms(2, 6)), "indices int64 (2,)"),
        (lambda: table.update(torch.tensor([0, 3 * LEAF]), randoms(2, 6)), "outside the table"),
        (lambda: table.update(torch.tensor([0, -1]), randoms(2, 6)), "outside the table"),
        (lambda: table.answer(others), "table of 3071 rows"),
        (lambda: lookups.answer_each([table, table], keys[None], 0), "keys (2, B, key_bytes), got (1, 1,"),
        (lambda: lookups.answer_each([table], keys, 0), "keys (1, B, key_bytes)"),
        (lambda: lookups.answer_each([table], others[None], 0), "table of 3071 rows"),
        (lambda: lookups.answer_each([table], keys[None], 64), "no words of 64 bits"),
        (lambda: lookups.answer_each([table, Table(3 * LEAF, 7)], keys[None], 0), "several shapes"),
        (lambda: table.answer(keys[:, :-1]), "cut short"),
        (lambda: table.answer(keys[:0]), "at least one key"),
        (lambda: table.answer(keys.int()), "int32"),
        (lambda: table.answer(keys, 1), "no part of a table of 3072"),
        (lambda: table.answer(keys, -1), "no part of a table of 3072"),
        (lambda: Table(5, 6).answer(keys, 0), "no part of a table of 3072"),
        (lambda: table.answer_sum(keys, 32), "words of 32 bits in rows of 6"),
        (lambda: table.answer_sum(keys, 12), "words of 12 bits"),
        (lambda: select_xor(bits[:, 1:], table), "uint8 (B, 384)"),
        (lambda: select_xor(bits[:0], table), "uint8 (B, 384)"),
        (lambda: select_sum(bits.int(), table, 8), "int32"),
    ]:
        with pytest.raises(InputError) as caught:
            call()
        assert what in str(caught.value), caught.value


def test_a_table_beyond_all_memory_is_an_error() -> None:
    with pytest.raises(EnvironmentProblem, match="no memory"):
        Table(1 << 40, 1 << 20)
    with pytest.raises(EnvironmentProblem, match="no memory"):
        Table(1 << 40, 1 << 40)


# Rows that are read back, and the layout ------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 7, 16, 17, 1000, 1024, 1025, 2064])
def test_rows_come_back_and_the_layout_is_the_definition(path: str, count: int) -> None:
    for row_bytes in (1, 8, 40, 63, 64, 65, 200):
        data = randoms(count, row_bytes)
        table, index = Table.prepare(data), torch.randint(0, count, (50,))
        assert torch.equal(table.read(index), data[index])
        for start, size in ((0, count), (count // 3, count - count // 3), (count // 2, min(5, count - count // 2))):
            assert torch.equal(table.read_range(start, size), data[start : start + size])
        layout = table.sliced()
        assert torch.equal(layout, sliced(data)) and torch.equal(joined(layout, count, row_bytes), data)
        again = Table(count, row_bytes, sliced=layout.clone())
        bits = randoms(5, (count + 7) // 8)
        assert torch.equal(select_xor(bits, again), select_xor(bits, table))


def test_the_definition_of_the_layout_by_pythons_integers() -> None:
    """Byte by byte, as the page before `WIDTHS` has it."""
    rows, row_bytes = 1100, 44
    data, out = randoms(rows, row_bytes), []
    values = data.tolist() + [[0] * 48] * 4
    vectors, groups = 6, 138
    for block in range(0, groups, 128):
        for tile in range(0, vectors, 4):
            for group in range(block, min(groups, block + 128)):
                for vector in range(tile, min(vectors, tile + 4)):
                    for place in range(64):
                        at = 8 * vector + place // 8
                        octets = [row[at] if at < len(row) else 0 for row in values[8 * group : 8 * group + 8]]
                        out.append(sum((octet >> place % 8 & 1) << i for i, octet in enumerate(octets)))
    assert sliced(data).tolist() == out


def test_what_cannot_be_read_is_refused() -> None:
    table = Table.prepare(randoms(10, 4))
    with pytest.raises(InputError, match="outside the table"):
        table.read(torch.tensor([10]))
    with pytest.raises(InputError, match=r"expected indices int64 \(n,\)"):
        table.read(torch.tensor([1.0]))
    with pytest.raises(InputError, match="rows 5 to 11 of a table of 10"):
        table.read_range(5, 6)
    with pytest.raises(InputError, match=r"expected uint8 \(128,\), got torch.uint8 \(64,\)"):
        Table(10, 4, sliced=randoms(64))
