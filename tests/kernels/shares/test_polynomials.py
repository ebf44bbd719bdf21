"""Tables of polynomials behind masks: C++ computes the definition's integers, for every width, table and stream."""

from __future__ import annotations

import ctypes
import itertools
from fractions import Fraction
from math import comb

import pytest
import torch
from torch import Tensor

from hummingbird import kernels
from hummingbird.errors import InputError
from hummingbird.kernels.cpu import library
from hummingbird.kernels.reference import shares as reference
from hummingbird.kernels.shares.packing import Packed, Words
from hummingbird.kernels.streams import Drawn, aes128_key, chacha20_key
from hummingbird.prg import derive
from tests.support.covering import covering, every

RUN = 512  # coefficients, or values, that the C++ does at a time (csrc/words.h)
KEYS = [aes128_key(derive(bytes(16), "polynomials", party)) for party in range(3)]


def made(w: int, degree: int, bits: int = 46) -> Tensor:
    """A table of random pieces with coefficients of `bits` bits and a sign."""
    return torch.randint(-(1 << bits), 1 << bits, (1 << w, degree + 1))


def masks(n: int, k: int) -> Tensor:
    """Random masks, and the ends of their range."""
    ends = torch.tensor([0, (1 << k) - 1, 1 << k - 1, 1, -1])
    return torch.cat([torch.randint(1 << k, (max(0, n - len(ends)),)), ends])[:n]


def drawn(keys: list[Tensor], count: int, widths: list[int], first: int = 0) -> list[list[Drawn]]:
    """Shares of every power in whole words, one field behind the other from block `first` on."""
    out = []
    for width in widths:
        dtype = torch.int32 if width <= 32 else torch.int64
        out.append([Drawn(key, first, (count,), dtype) for key in keys])
        first += -(-count * dtype.itemsize // 64)
    return out


def same(got: list[Tensor], expected: list[Tensor]) -> bool:
    return all(one.dtype == other.dtype and one.equal(other) for one, other in zip(got, expected, strict=True))


@covering("w, degree", range(1, 13), [1, 2, 3])
def test_dealing_is_the_definition(isa: str, w: int, degree: int) -> None:
    """Tables below and above a run, all parties that draw, masks at their ends, and runs that are not full."""
    for n, others, m in itertools.product([1, 3, (RUN >> w) + 1, max(1, 2 * RUN >> w)], [0, 1, 3], [0, 12]):
        widths = [int(width) for width in torch.randint(1, 65, (degree + 1,))]
        given = made(w, degree), masks(n, m + w), drawn(KEYS[:others], n << w, widths, 5), m, widths
        if not others:
            given[2][:] = [[] for _ in widths]
        assert same(kernels.deal_polynomials(*given), reference.deal_polynomials(*given)), (n, others, m, widths)


def test_dealing_in_every_width(isa: str) -> None:
    """Counts that fill a byte, and those that do not."""
    for width in range(1, 65):
        for n, w in ((5, 1), (67, 4)):
            widths = [width, 65 - width]
            given = made(w, 1, 48), masks(n, 40), drawn(KEYS[:1], n << w, widths, (1 << 40) + width), 40 - w, widths
            assert same(kernels.deal_polynomials(*given), reference.deal_polynomials(*given)), (width, n)


def test_moved_coefficients_are_the_binomial_sums(isa: str) -> None:
    """Against exact fractions, through a dealer without other parties; and products are not fused with sums."""
    w, m, degree = 3, 9, 3
    pieces, mask = made(w, degree, 40), masks(40, m + w)
    dealt = kernels.deal_polynomials(pieces, mask, [[]] * 4, m, [64] * 4)
    for power, column in enumerate(dealt):
        for place, value in enumerate(column.view(torch.int64).tolist()):
            number = int(mask[place >> w])
            low = Fraction(-(number & ((1 << m) - 1)), 1 << m)
            row = pieces[(place - (number >> m)) % (1 << w)].tolist()
            exact = sum(comb(j, power) * low ** (j - power) * row[j] for j in range(power, degree + 1))
            assert abs(value - exact) <= Fraction(1, 2) + Fraction(1, 1 << 8)


def test_many_threads_deal_and_evaluate_what_one_does() -> None:
    n, w, m, widths, before = 40_000, 4, 12, [22, 34, 46, 58], torch.get_num_threads()
    pieces, mask, opened = made(w, 3), masks(n, 16), torch.randint(1 << 16, (n,))
    shares, found = drawn(KEYS[:1], n << w, widths), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            dealt = kernels.deal_polynomials(pieces, mask, shares, m, widths)
            found.append([*dealt, kernels.evaluate_opened(opened, [of[0] for of in shares], m, w, 38)])
    finally:
        torch.set_num_threads(before)
    assert same(*found)


def forms(count: int, width: int, first: int) -> list[Words]:
    """Words in every form: drawn, whole and packed by either cipher, packed by a dealer, and stored in both types."""
    whole = torch.int32 if width <= 32 else torch.int64
    x = torch.randint(-(1 << 63), (1 << 63) - 1, (count,))
    return [
        Drawn(KEYS[0], first, (count,), whole),
        Drawn(KEYS[0], first, (count,), torch.int64, width),
        Drawn(chacha20_key(bytes(32), torch.device("cpu")), first, (count,), whole),
        Packed(kernels.pack_words(x, width), (count,), width),
        x,
        x.to(torch.int32),
    ]


@pytest.mark.parametrize("w", every(3, range(1, 13)))
def test_looking_up_is_the_definition(isa: str, w: int) -> None:
    """Words of every form, and runs that are not full; above the bits of an opened value nothing is read."""
    for n, degree, first in itertools.product([0, 1, 9, RUN, RUN + 7] if w < 8 else [0, 9], [1, 2, 3], [0, 77]):
        m, shift = 10, 2 + 10 * degree
        opened = torch.cat([masks(n, m + w)[: n // 2], torch.randint(-(1 << 62), 1 << 62, (n - n // 2,))])
        widths = torch.randint(1, 65, (degree + 1,)).tolist()
        for form in range(6):
            words = [forms(n << w, width, first)[form - power] for power, width in enumerate(widths)]
            given = opened, words, m, w, shift
            assert kernels.evaluate_opened(*given).equal(reference.evaluate_opened(*given)), (n, widths, form)


def test_looking_up_in_every_width(isa: str) -> None:
    """The last word of a message is followed by nothing."""
    n, w, m = 21, 3, 20
    last = torch.full((n,), -1)
    for width in range(1, 65):
        x = torch.randint(-(1 << 63), (1 << 63) - 1, (n << w,))
        packed = Packed(kernels.pack_words(x, width), x.shape, width)
        for opened in (last, masks(n, m + w)):
            given = opened, [packed] * 4, m, w, 63
            assert kernels.evaluate_opened(*given).equal(reference.evaluate_opened(*given)), width


def test_a_look_up_gives_the_polynomial_of_the_piece() -> None:
    """Dealt and drawn shares together, for every value under every mask: within what is rounded, and not twice."""
    w, m, degree = 2, 3, 3
    k, widths = w + m, [40 + 2 + power * m for power in range(degree + 1)]
    pieces = made(w, degree, 20)
    x, mask = (column.flatten() for column in torch.meshgrid(torch.arange(1 << k), torch.arange(1 << k), indexing="ij"))
    shares, opened = drawn(KEYS[:2], len(x) << w, widths), (x + mask) & ((1 << k) - 1)
    dealt = kernels.deal_polynomials(pieces, mask, shares, m, widths)
    parts = [[Packed(words, (len(x) << w,), width) for words, width in zip(dealt, widths, strict=True)]]
    parts += [[of[party] for of in shares] for party in (0, 1)]
    total = torch.stack([kernels.evaluate_opened(opened, part, m, w, 2 + degree * m) for part in parts]).sum(0)
    got = ((total << 24) >> 24).double()
    piece = ((opened >> m) - (mask >> m)) & ((1 << w) - 1)
    t = ((opened & ((1 << m) - 1)) - (mask & ((1 << m) - 1))).double() / (1 << m)
    exact = (pieces[piece].double() * t[:, None] ** torch.arange(degree + 1)).sum(1) / 4
    assert float((got - exact).abs().max()) <= 3 / 2 + (degree + 1) / 8
    assert float((got - exact).abs().max()) > 1 / 2


def test_nothing_is_written_behind_the_end(isa: str) -> None:
    for w, n in ((1, 1), (1, 7), (4, 37), (12, 1)):
        widths = [7, 33, 64]
        pieces, mask = torch.zeros(3, (2 << w) + 8, dtype=torch.float64), masks(n, 20)
        outs = [torch.full((((n << w) * bits + 7) // 8 + 64,), 0xA5, dtype=torch.uint8) for bits in widths]
        pointers = (ctypes.c_void_p * 3)(*[out.data_ptr() for out in outs])
        table = pieces.data_ptr(), mask.data_ptr(), n, 2, w, 20 - w
        lists = (ctypes.c_int64 * 3)(0, 1000, 9000), (ctypes.c_int * 3)(*widths), pointers
        library.handle().hb_deal_polynomials(KEYS[0].data_ptr(), 1, *table, *lists, 1)
        assert all(bool((out[-64:] == 0xA5).all()) for out in outs)
        assert not any(bool((out == 0xA5).all()) for out in outs)


def test_wrong_arguments_are_refused() -> None:
    pieces, mask, widths = made(2, 1), masks(9, 10), [20, 40]
    shares = drawn(KEYS[:2], 36, widths)
    dealt = {"pieces": pieces, "mask": mask, "shares": shares, "m": 8, "widths": widths}
    for change in (
        {"pieces": pieces[:3]},
        {"pieces": made(2, 4)},
        {"pieces": pieces.double()},
        {"pieces": pieces << 16},
        {"mask": mask.int()},
        {"shares": shares[:1]},
        {"shares": [shares[0], shares[1][:1]]},
        {"shares": [shares[0], shares[1][::-1]]},
        {"shares": shares[::-1]},
        {"shares": drawn(KEYS[:2], 32, widths)},
        {"widths": [20, 65]},
        {"m": 63},
    ):
        with pytest.raises(InputError, match="kernels.deal_polynomials"):
            kernels.deal_polynomials(**dealt | change)
    opened, words = torch.zeros(9, dtype=torch.int64), torch.zeros(36, dtype=torch.int64)
    for change in (
        {"opened": opened.int()},
        {"coefficients": [words]},
        {"coefficients": [words] * 5},
        {"coefficients": [words, words[:-1]]},
        {"m": 63},
        {"w": 0},
        {"shift": 64},
    ):
        given = {"opened": opened, "coefficients": [words] * 2, "m": 8, "w": 2, "shift": 10}
        with pytest.raises(InputError, match="kernels.evaluate_opened"):
            kernels.evaluate_opened(**given | change)
