"""Kernels of the masked opening: the torch reference against Python's integers, and each C++ version against it."""

from __future__ import annotations

import ctypes
import functools
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from hummingbird import kernels
from hummingbird.errors import InputError
from hummingbird.kernels.cpu import library
from hummingbird.kernels.reference import shares
from hummingbird.kernels.shares.packing import Packed
from hummingbird.prg import Stream, derive
from tests.kernels.shares.test_packing import signed
from tests.support.covering import every

RING = 1 << 64
SIZES = [0, 1, 7, 8, 9, 15, 16, 17, 63, 64, 65, 1000]
FEW = (0, 1, 5, 8, 13, 20, 31, 32, 33, 44, 57, 63, 64)  # widths, beside which all are slow
WIDTHS = [*FEW, *(pytest.param(width, marks=pytest.mark.slow) for width in range(65) if width not in FEW)]
SHIFTS = (0, 1, 16, 62)
ROWS = [(0,), (3,), (0, 1), (0, 3), (1, 2), (0, 1, 2, 3)]


def stream(*labels: str | int) -> Stream:
    return Stream(derive(bytes(16), "masked kernels", *labels))


def whole(words: list[int], width: int) -> list[int]:
    """The stream of bits, as bytes."""
    number = sum((word % (1 << width)) << (i * width) for i, word in enumerate(words))
    return list(number.to_bytes((len(words) * width + 7) // 8, "little"))


def tables(n: int, bits: int, source: Stream) -> Tensor:
    return source.bytes(((n << bits) + 7) // 8).clone()


# ---- the reference is right


@pytest.mark.parametrize("width", WIDTHS)
def test_reference_words_against_big_integers(width: int) -> None:
    source = stream("reference words", width)
    for n in (0, 1, 7, 8, 9, 33):
        a, b = source.words(n), source.words(n)
        x, y = a.tolist(), b.tolist()
        packed, other = shares.pack_words(a, width), shares.pack_words(b, width)
        assert packed.tolist() == whole(x, width)
        assert [v % RING for v in shares.unpack_words(packed, n, width).tolist()] == [v % (1 << width) for v in x]
        total = shares.open_words([packed, other, other], n, width).tolist()
        assert [v % RING for v in total] == [(u + 2 * v) % (1 << width) for u, v in zip(x, y, strict=True)]
        for shift in (0, 1, 16, 62):
            rounded = [signed(u + (1 << shift >> 1)) >> shift for u in x]
            masked = shares.mask_words(a, b, shift, width)
            assert masked.tolist() == whole([u + v for u, v in zip(rounded, y, strict=True)], width)


@pytest.mark.parametrize("bits", range(1, 9))
def test_reference_step_tables_at_every_place(bits: int) -> None:
    size = 1 << bits
    x = torch.arange(size) + (torch.arange(size) << 20)  # only the low bits count
    expected = [place <= v for place in range(size) for v in range(size)]
    assert shares.step_table(x, bits).tolist() == whole([int(bit) for bit in expected], 1)


@pytest.mark.parametrize("bits", range(1, 9))
def test_reference_lookup_reads_every_place(bits: int) -> None:
    """Each element's table is random and its v another one, so that every answer is one bit of the whole table."""
    n, low = 3 << bits, 5
    source = stream("reference lookup", bits)
    table, v = tables(n, bits, source), torch.arange(n) % (1 << bits)
    opened = (source.words(n) & ~((1 << bits) - 1 << low)) | v << low
    flat = int.from_bytes(bytes(table.tolist()), "little")
    for rows in ROWS:
        answers = []
        for row in rows:
            for i in range(n):
                place = int(v[i]) ^ (1 << bits - 1 if row >= 2 else 0)
                entry = place if row % 2 else place - 1  # [L < v] is [L <= v - 1], and 0 at v = 0
                answers.append(flat >> ((i << bits) + entry) & 1 if entry >= 0 else 0)
        expected = [whole(answers[row * n : row * n + n], 1) for row in range(len(rows))]
        assert shares.lookup(opened, table, low, bits, rows).tolist() == expected
        assert kernels.lookup(opened, table, low, bits, rows).tolist() == expected


@pytest.mark.parametrize("bits", range(1, 9))
def test_lookup_in_a_step_table_compares(bits: int) -> None:
    size = 1 << bits
    steps = torch.arange(size).repeat_interleave(size)
    v = torch.arange(size).repeat(size)
    found = kernels.lookup(v << 7, kernels.step_table(steps, bits), 7, bits, (0, 1, 2, 3))
    flipped = v ^ (size // 2)
    for row, wanted in zip(found, (steps < v, steps <= v, steps < flipped, steps <= flipped), strict=True):
        assert row.equal(shares.pack_bits(wanted.to(torch.uint8)))


@pytest.mark.parametrize("parties", [1, 2, 3])
@pytest.mark.parametrize(("k", "m"), [(1, 0), (4, 0), (4, 1), (20, 12), (63, 40), (64, 0)])
def test_lift_is_a_masked_relu(parties: int, k: int, m: int) -> None:
    """All parties' outputs add up to z and b z over Z_2^64, whatever the masks and carries."""
    rng, half = random.Random(k), 1 << (k - 1)
    edge = half - (1 << m if m else 0)
    small = [v for v in range(-edge, edge) for _ in range(40)] if k < 8 else []
    z = small or [rng.choice((0, 1, -1, edge - 1, -edge, rng.randrange(-edge, edge))) for _ in range(400)]
    n, top = len(z), 1 << (k - m - 1)

    def bits() -> list[int]:
        return [rng.randrange(2) for _ in range(n)]

    summands = [[rng.randrange(RING) for _ in range(n)] for _ in range(parties)]
    total = [sum(column[i] % (1 << k) for column in summands) for i in range(n)]
    mask, r_b, r_s = [v % (1 << k) for v in total], bits(), bits()
    opened = [(v + a) % (1 << k) for v, a in zip(z, mask, strict=True)]
    seen, hidden = [v >> m for v in opened], [v >> m for v in mask]
    s = [int(b <= a ^ top) for a, b in zip(seen, hidden, strict=True)]
    b = [int(1 <= (u - v) % (2 * top) < top) for u, v in zip(seen, hidden, strict=True)]
    secrets = {
        "carry": [v >> k for v in total],
        "bit": r_b,
        "wrap": r_s,
        "product": [u * v for u, v in zip(r_b, mask, strict=True)],
    }
    shares: list[dict[str, Tensor]] = [{"mask": torch.tensor([signed(v) for v in column])} for column in summands]
    for name, values in secrets.items():
        left = list(values)
        for party in shares[1:]:
            drawn = [rng.randrange(RING) for _ in range(n)]
            left = [u - v for u, v in zip(left, drawn, strict=True)]
            party[name] = torch.tensor([signed(v) for v in drawn])
        shares[0][name] = torch.tensor([signed(v) for v in left])
    carries = [party["carry"] for party in shares]
    packed = [whole([u ^ v for u, v in zip(*pair, strict=True)], 1) for pair in ((b, r_b), (s, r_s))]
    choice = torch.tensor(packed, dtype=torch.uint8)
    public = torch.tensor([signed(v) for v in opened])

    def result(choice: Tensor) -> tuple[Tensor, Tensor]:
        parts = [kernels.lift(public, choice, **party, k=k, first=party is shares[0]) for party in shares]
        return sum(y for y, _ in parts), sum(z for _, z in parts)  # type: ignore[return-value]

    y, lifted = result(choice)
    assert lifted.tolist() == z
    assert y.tolist() == [u * v for u, v in zip(b, z, strict=True)]
    # Whole shares of z for the mask and its carry; z may then be far outside the window, by turns of 2^k.
    turns = [rng.randrange(-3, 4) << k if k < 62 else 0 for _ in range(n)]
    far, c_b = [v + turn for v, turn in zip(z, turns, strict=True)], [u ^ v for u, v in zip(b, r_b, strict=True)]
    left, of_z = list(far), []
    for _ in shares[1:]:
        drawn = [rng.randrange(RING) for _ in range(n)]
        left = [u - v for u, v in zip(left, drawn, strict=True)]
        of_z.append(drawn)
    for party, words in zip(shares, [left, *of_z], strict=True):
        party["mask"], party["carry"] = torch.tensor([signed(v) for v in words]), None  # type: ignore[assignment]
    y, passed = result(choice)
    assert passed.tolist() == far
    assert y.tolist() == [u * v + c * turn for u, v, c, turn in zip(b, z, c_b, turns, strict=True)]
    for party, words in zip(shares, summands, strict=True):
        party["mask"] = torch.tensor([signed(v) for v in words])
    for party, words in zip(shares, carries, strict=True):
        party["carry"] = words
    wrong = choice.clone()
    wrong[1] ^= 1  # s of every eighth element: off by the 2^k that the lift takes care of
    off = [v % RING for v in (result(wrong)[1] - lifted).tolist()]
    assert [v != 0 for v in off] == [k < 64 and i % 8 == 0 for i in range(n)]
    assert set(off) <= {0, 1 << k, RING - (1 << k)}


# ---- every native version equals the reference


class Words(NamedTuple):
    """Results of the reference on two rows of words, to be compared with every instruction set."""

    packed: list[Tensor]
    unpacked: Tensor
    opened: dict[int, Tensor]  # by the number of frames
    masked: dict[tuple[int, int], Tensor]  # by the shift and the bits that the mask is packed in, -1 if it is not


@functools.cache
def reference(n: int, width: int) -> Words:
    x, y = (stream("native words", n, row).words(n) for row in range(2))
    packed = [shares.pack_words(x, width), shares.pack_words(y, width)]
    masked = {(shift, -1): shares.mask_words(x, y, shift, width) for shift in SHIFTS}
    for bits in {width, 64}:
        mask = Packed(shares.pack_words(y, bits), (n,), bits)
        masked |= {(shift, bits): shares.mask_words(x, mask, shift, width) for shift in SHIFTS}
    opened = {len(frames): shares.open_words(frames, n, width) for frames in several(packed)}
    return Words(packed, shares.unpack_words(packed[0], n, width), opened, masked)


def several(frames: list[Tensor]) -> list[list[Tensor]]:
    return [frames, [*frames, frames[1], frames[0], frames[1]]]


@pytest.mark.parametrize(
    ("n", "widths"),
    [
        *((n, FEW[number % 4 :: 4]) for number, n in enumerate(SIZES)),
        *(pytest.param(n, range(65), marks=pytest.mark.slow) for n in SIZES),
    ],
    ids=[f"{n}-{which}" for which in ("few", "all") for n in SIZES],
)
def test_native_words_equal_reference(isa: str, n: int, widths: Sequence[int]) -> None:
    x, y = (stream("native words", n, row).words(n) for row in range(2))
    for width in widths:
        expected = reference(n, width)
        assert kernels.pack_words(x, width).equal(expected.packed[0])
        assert kernels.unpack_words(expected.packed[0], n, width).equal(expected.unpacked)
        for frames in several(expected.packed):
            assert kernels.open_words(frames, n, width).equal(expected.opened[len(frames)])
        for shift in SHIFTS:
            plain = expected.masked[shift, -1]
            assert kernels.mask_words(x, y, shift, width).equal(plain)
            for bits in {width, 64}:
                mask = Packed(kernels.pack_words(y, bits), (n,), bits)
                assert kernels.mask_words(x, mask, shift, width).equal(expected.masked[shift, bits])
            if width <= 32:
                assert kernels.mask_words(x, y.int(), shift, width).equal(plain)


@pytest.mark.parametrize("n", every(3, SIZES))
def test_native_tables_equal_reference(isa: str, n: int) -> None:
    source = stream("native tables", n)
    x = source.words(n)
    for bits in range(1, 9):
        assert kernels.step_table(x, bits).equal(shares.step_table(x, bits))
        table = tables(n, bits, source)
        for low in (0, 3, 64 - bits):
            for rows in ROWS:
                found = kernels.lookup(x, table, low, bits, rows)
                assert found.equal(shares.lookup(x, table, low, bits, rows))


@pytest.mark.parametrize("n", every(3, SIZES))
def test_native_lift_equals_reference(isa: str, n: int) -> None:
    source = stream("native lift", n)
    words = [source.words(n) for _ in range(5)]
    choice = source.bytes(2 * ((n + 7) // 8)).view(2, -1)
    for k in (1, 2, 20, 63, 64):
        opened = source.words(n)
        for first in (True, False):
            for narrow in range(32):
                if k > 32 and narrow & 1:
                    continue
                mixed = [word.int() if narrow >> place & 1 else word for place, word in enumerate(words)]
                got = kernels.lift(opened, choice, *mixed, k=k, first=first)
                wanted = shares.lift(opened, choice, *mixed, k=k, first=first)
                assert got[0].equal(wanted[0]) and got[1].equal(wanted[1])
                own = words[0], None, *mixed[2:]  # whole shares
                got = kernels.lift(opened, choice, *own, k=k, first=first)
                assert got[0].equal(shares.lift(opened, choice, *own, k=k, first=first)[0])
                assert got[1].equal(words[0])


@pytest.mark.parametrize("n", every(3, SIZES))
def test_native_lift_reads_packed_words(isa: str, n: int) -> None:
    source = stream("packed lift", n)
    words = [source.words(n) for _ in range(5)]
    choice = source.bytes(2 * ((n + 7) // 8)).view(2, -1)
    for k, ring in ((1, 1), (20, 36), (20, 64), (33, 60), (64, 64)):
        widths = (k, ring - k, ring, ring - k, ring)
        packs = [Packed(shares.pack_words(x, bits), (n,), bits) for x, bits in zip(words, widths, strict=True)]
        for first in (True, False):
            for kept in (0, 0b10101, 31):  # in whole words
                mixed = [
                    shares.unpack_words(x.data, n, x.width) if kept >> place & 1 else x for place, x in enumerate(packs)
                ]
                opened = source.words(n)
                got = kernels.lift(opened, choice, *mixed, k=k, first=first)
                wanted = shares.lift(opened, choice, *packs, k=k, first=first)
                assert got[0].equal(wanted[0]) and got[1].equal(wanted[1])


@pytest.mark.parametrize("n", SIZES)
def test_opening_and_comparing_is_what_its_parts_do(path: str, n: int) -> None:
    """c_b = [L < X] xor s xor [X < h] xor r_b and c_s = s xor r_s, from the definitions, with one party."""
    source = stream("compare", n)
    for k, m in ((1, 0), (8, 0), (20, 12), (33, 30), (64, 57)):
        masked, r_b, r_s = source.words(n), source.bytes((n + 7) // 8), source.bytes((n + 7) // 8)
        lambda_, w, half = source.words(n), k - m, 1 << (k - m - 1)
        frame, table = kernels.pack_words(masked, k), kernels.step_table(lambda_ >> m, w)
        opened, both = kernels.compare_opened([frame], table, r_b, r_s, n, k, m, True)
        assert opened.equal(kernels.unpack_words(frame, n, k))
        steps, seen = ([v >> m & (1 << w) - 1 for v in x.tolist()] for x in (lambda_, opened))
        s = [int(step <= x ^ half) for step, x in zip(steps, seen, strict=True)]
        b = [int(1 <= (x - step) % (2 * half) < half) for step, x in zip(steps, seen, strict=True)]
        for bits, plane, r in ((b, both[0], r_b), (s, both[1], r_s)):
            assert (kernels.from_bits(plane ^ r, n)).tolist() == bits


def test_native_takes_unaligned_slices(isa: str) -> None:
    source = stream("slices")
    x, y, data = source.words(300)[3:280], source.words(300)[1:278], source.bytes(3000)[3:]
    for width in (5, 20, 44, 64):
        frame = data[: (277 * width + 7) // 8]
        assert kernels.mask_words(x, y, 6, width).equal(shares.mask_words(x, y, 6, width))
        assert kernels.open_words([frame, frame], 277, width).equal(shares.open_words([frame, frame], 277, width))
    table = source.bytes(277 * 32 + 5)[5:]
    assert kernels.lookup(x, table, 9, 8, (0, 3)).equal(shares.lookup(x, table, 9, 8, (0, 3)))


@pytest.mark.parametrize("n", [1, 8, 9, 64, 67])
def test_nothing_is_written_behind_the_end(isa: str, n: int) -> None:
    """Whole registers are stored where later steps write again; the last steps must not."""
    built = library.handle()
    source = stream("canary", n)
    x, y = source.words(n), source.words(n)

    def written(size: int, call: Callable[[int], None]) -> None:
        out = torch.full((size + 128,), 0xA5, dtype=torch.uint8)
        call(out.data_ptr() + 64)
        assert bool((out[:64] == 0xA5).all()) and bool((out[64 + size :] == 0xA5).all())

    for width in range(65):
        size = (n * width + 7) // 8
        frame = kernels.pack_words(x, width)
        pointers = (ctypes.c_void_p * 2)(frame.data_ptr(), frame.data_ptr())
        written(size, lambda to, w=width: built.hb_pack_words(x.data_ptr(), n, w, to))
        written(size, lambda to, w=width: built.hb_mask_words(x.data_ptr(), y.data_ptr(), 64, n, 3, w, to))
        written(8 * n, lambda to, p=pointers, w=width: built.hb_open_words(p, 2, n, w, to))
    for bits in range(1, 9):
        table = kernels.step_table(x, bits)
        written(table.numel(), lambda to, b=bits: built.hb_step_table(x.data_ptr(), n, b, to))
        at = table.data_ptr()
        written(
            4 * ((n + 7) // 8),
            lambda to, t=at, b=bits: built.hb_lookup(y.data_ptr(), n, t, 0, b, 15, to),
        )


# ---- a mutation shows


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 8])
def test_every_bit_of_a_table_is_read_where_it_should(isa: str, bits: int) -> None:
    """A flipped entry changes [L <= v] at its own v, [L < v] at the next one, and nothing else."""
    n, size = 17 if bits < 5 else 33, 1 << bits
    table = tables(n, bits, stream("mutation", bits))
    opened = [torch.full((n,), v) for v in range(size)]
    before = [kernels.lookup(v, table, 0, bits, (0, 1, 2, 3)) for v in opened]
    for entry in range(0, n * size, {5: 61, 8: 611}.get(bits, 1)):
        i, place = divmod(entry, size)
        changed = table.clone()
        changed[entry // 8] ^= 1 << (entry % 8)
        for v in range(size):
            difference = kernels.lookup(opened[v], changed, 0, bits, (0, 1, 2, 3)) ^ before[v]
            flipped = v ^ (size // 2)
            hit = [v == place + 1, v == place, flipped == place + 1, flipped == place]
            assert [int(d) for d in difference[:, i // 8]] == [h << (i % 8) for h in hit]
            assert difference.count_nonzero() == sum(hit)


def test_every_bit_of_every_word_counts(isa: str) -> None:
    source = stream("bits of words")
    x, y = source.words(19), source.words(19)
    for width in (1, 20, 44, 64):
        packed, sums = kernels.pack_words(x, width), kernels.mask_words(x, y, 0, width)
        for i in range(19):
            for bit in (0, width - 1):
                other = x.clone()
                other[i] ^= signed(1 << bit)
                wrong = kernels.pack_words(other, width)
                place = i * width + bit
                assert (wrong ^ packed).count_nonzero() == 1 and int((wrong ^ packed)[place // 8]) == 1 << place % 8
                difference = shares.unpack_words(kernels.mask_words(other, y, 0, width) ^ sums, 19, width)
                assert difference.nonzero().flatten().tolist() == [i]
                opened = kernels.open_words([wrong, packed], 19, width) - kernels.open_words([packed] * 2, 19, width)
                assert opened.nonzero().flatten().tolist() == [i]


# ---- errors

N = 9
WORDS, BYTES, CHOICE = torch.zeros(N, dtype=torch.int64), torch.zeros(5, dtype=torch.uint8), torch.zeros(2, 2).byte()
LIFT = dict.fromkeys(("opened", "mask", "carry", "bit", "wrap", "product"), WORDS) | {"choice": CHOICE}
OF_64 = Packed(torch.zeros(8 * N, dtype=torch.uint8), (N,), 64)
WRONG: list[tuple[str, Callable[[], object], str]] = [
    ("pack_words(x)", lambda: kernels.pack_words(WORDS.int(), 3), "torch.int32"),
    ("pack_words(x)", lambda: kernels.pack_words(WORDS.view(3, 3), 3), "(3, 3)"),
    ("pack_words(width)", lambda: kernels.pack_words(WORDS, 65), "65"),
    ("pack_words(width)", lambda: kernels.pack_words(WORDS, -1), "-1"),
    ("unpack_words(data)", lambda: kernels.unpack_words(BYTES, N, 5), "(6,)"),
    ("unpack_words(data)", lambda: kernels.unpack_words(WORDS, N, 4), "torch.int64"),
    ("unpack_words(width)", lambda: kernels.unpack_words(BYTES, N, 65), "65"),
    ("unpack_words(n)", lambda: kernels.unpack_words(BYTES, -1, 4), "-1"),
    ("mask_words(share)", lambda: kernels.mask_words(WORDS.double(), WORDS, 0, 4), "float64"),
    ("mask_words(mask)", lambda: kernels.mask_words(WORDS, WORDS[1:], 0, 4), "(8,)"),
    ("mask_words(shift)", lambda: kernels.mask_words(WORDS, WORDS, 63, 4), "63"),
    ("mask_words(width)", lambda: kernels.mask_words(WORDS, WORDS, 0, 65), "65"),
    ("open_words(frames)", lambda: kernels.open_words([BYTES, BYTES[1:]], N, 4), "(4,)"),
    ("open_words(frames)", lambda: kernels.open_words([], N, 4), "no frame"),
    ("open_words(width)", lambda: kernels.open_words([BYTES], N, 70), "70"),
    ("step_table(x)", lambda: kernels.step_table(BYTES, 4), "torch.uint8"),
    ("step_table(bits)", lambda: kernels.step_table(WORDS, 0), "0"),
    ("step_table(bits)", lambda: kernels.step_table(WORDS, 9), "9"),
    ("lookup(opened)", lambda: kernels.lookup(BYTES, BYTES, 0, 2, (0, 1)), "torch.uint8"),
    ("lookup(table)", lambda: kernels.lookup(WORDS, BYTES[1:], 0, 2, (0, 1)), "(5,)"),
    ("lookup(table)", lambda: kernels.lookup(WORDS, BYTES.to("meta"), 0, 2, (0, 1)), "meta"),
    ("lookup(bits)", lambda: kernels.lookup(WORDS, BYTES, 0, 9, (0, 1)), "9"),
    ("lookup(low)", lambda: kernels.lookup(WORDS, BYTES, 63, 2, (0, 1)), "63"),
    ("lookup(rows)", lambda: kernels.lookup(WORDS, BYTES, 0, 2, (1, 0)), "(1, 0)"),
    ("lookup(rows)", lambda: kernels.lookup(WORDS, BYTES, 0, 2, (0, 4)), "(0, 4)"),
    ("lookup(rows)", lambda: kernels.lookup(WORDS, BYTES, 0, 2, ()), "()"),
    ("lift(k)", lambda: kernels.lift(**LIFT, k=0, first=True), "0"),
    ("lift(k)", lambda: kernels.lift(**LIFT, k=65, first=True), "65"),
    ("lift(mask)", lambda: kernels.lift(**LIFT | {"carry": None, "mask": WORDS.int()}, k=9, first=True), "torch.int32"),
    ("lift(mask)", lambda: kernels.lift(**LIFT | {"carry": None, "mask": OF_64}, k=9, first=True), "Packed"),
]


@pytest.mark.parametrize(("where", "call", "got"), WRONG, ids=[f"{i}-{w[0]}" for i, w in enumerate(WRONG)])
def test_wrong_arguments_are_named(where: str, call: Callable[[], object], got: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert caught.value.where == f"kernels.{where}"
    assert got in caught.value.what and caught.value.hint


@pytest.mark.parametrize("name", [name for name in LIFT if name != "opened"])
def test_every_argument_of_lift_is_checked(name: str) -> None:
    good = LIFT[name]
    for wrong, got in ((good[1:], "shape"), (good.double(), "float64"), (good.to("meta"), "meta")):
        with pytest.raises(InputError) as caught:
            kernels.lift(**LIFT | {name: wrong}, k=20, first=True)
        assert caught.value.where == f"kernels.lift({name})" and got in caught.value.what


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_equals_cpu() -> None:
    n, source = 1003, stream("cuda")
    x, y, choice = source.words(n), source.words(n), source.bytes(2 * 126).view(2, -1)
    a, b = x.cuda(), y.cuda()
    for width in (1, 8, 20, 44, 63, 64):
        frame = kernels.pack_words(x, width)
        assert kernels.pack_words(a, width).cpu().equal(frame)
        assert kernels.mask_words(a, b, 6, width).cpu().equal(kernels.mask_words(x, y, 6, width))
        opened = kernels.open_words([frame.cuda()] * 2, n, width)
        assert opened.cpu().equal(kernels.open_words([frame] * 2, n, width))
    for bits in range(1, 9):
        table = kernels.step_table(x, bits)
        assert kernels.step_table(a, bits).cpu().equal(table)
        found = kernels.lookup(b, table.cuda(), 9, bits, (0, 1, 2, 3))
        assert found.cpu().equal(kernels.lookup(y, table, 9, bits, (0, 1, 2, 3)))
    for first in (True, False):
        here = kernels.lift(x & 0xFFFFF, choice, y, x, y, x, y, 20, first)
        there = kernels.lift(a & 0xFFFFF, choice.cuda(), b, a, b, a, b, 20, first)
        assert all(u.equal(v.cpu()) for u, v in zip(here, there, strict=True))
