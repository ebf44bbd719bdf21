"""Masks with every knob: shares, step tables, squares; all small masks, and the prices of the design."""

from __future__ import annotations

import itertools
import re

import pytest
import torch
from torch import Tensor

from hummingbird.kernels import step_table
from hummingbird.mpc.pair import masks
from hummingbird.mpc.pair.masked import opening, opening_price
from hummingbird.mpc.pair.masks import MaskShape
from hummingbird.mpc.pair.price import ROT, PairPrice
from hummingbird.mpc.protocols.masked import MaskedOpening
from hummingbird.mpc.protocols.step_tables import chunks
from tests.support.chance import DEVIATIONS
from tests.support.covering import every
from tests.support.pairs import Seen, bits_of, low, sides, stepwise, wrong
from tests.support.paths import ROOT

N, PAGE = 1 << 12, ROOT / "docs/pair.md"


def opened(request: MaskedOpening, p: int, n: int = N) -> Seen:
    shape = MaskShape(request.k, request.m, request.ring, p)
    price = opening_price(request, shape)
    both = sides(n, price.main, price.back)
    seen = stepwise([opening(request, side, shape) for side in both])
    assert all(side.done for side in both)
    sent, returned = (sum(8 * m.numel() for m in messages) for messages in seen.sent)
    assert (sent, returned) == (n * price.sent, n * price.returned)
    assert len(seen.sent[0]) == len(seen.sent[1]) == price.rounds
    return seen


def fields(request: MaskedOpening, seen: Seen) -> dict[str, list[Tensor]]:
    """Both parties' fields, cut to their widths."""
    out = {}
    for name, item in request.parts.items():
        shares = [found[name] for found in seen.results]
        out[name] = [low(x, item.width) for x in shares] if item.kind == "ring" else shares
    return out


SMALL = [(k, m, ring) for k in range(1, 6) for m in range(k) for ring in (k, k + 1, k + 2, k + 5)]


@pytest.mark.parametrize(("k", "m", "ring"), every(3, SMALL))
def test_small_masks_with_every_knob(k: int, m: int, ring: int) -> None:
    for p in range(k + 1):
        for tables in {1, k - m}:
            request = MaskedOpening(N, k, m, tables, ring)
            found = fields(request, opened(request, p))
            assert not wrong(request, found), (p, tables)
            first, second = found["mask"]
            if k <= 3:
                assert torch.bincount(first << k | second, minlength=1 << 2 * k).min() > 0
    # the knob does not change the distribution: each party's summand is uniform, and lambda beside it
    count = torch.bincount(first << k | low(first + second, k), minlength=1 << 2 * k).double()
    assert float((count - N / 4**k).abs().max()) < DEVIATIONS * (N / 4**k) ** 0.5 + DEVIATIONS**2


@pytest.mark.parametrize(("ring", "tables"), [(36, 2), (36, 1), (20, 2), (21, 8), (64, 2)])
@pytest.mark.parametrize("p", [0, 7, 11, 12, 13, 16, 20])
def test_real_masks(ring: int, tables: int, p: int) -> None:
    request = MaskedOpening(N, 20, 12, tables, ring)
    assert not wrong(request, fields(request, opened(request, p)))


@pytest.mark.parametrize(("k", "m", "tables"), [(64, 0, 8), (64, 57, 1), (33, 1, 4), (50, 40, 3), (8, 0, 1)])
def test_other_windows(k: int, m: int, tables: int) -> None:
    for p in {0, m, min(k, m + 1), k}:
        request = MaskedOpening(N, k, m, tables, 64)
        assert not wrong(request, fields(request, opened(request, p)))


@pytest.mark.parametrize(("k", "m", "ring"), [(1, 0, 2), (3, 1, 9), (4, 1, 5), (5, 4, 64), (20, 12, 64), (40, 34, 64)])
def test_squares(k: int, m: int, ring: int) -> None:
    shape, sizes = MaskShape(k, m, ring, k), chunks(k - m, -(-(k - m) // 4))
    price = masks.squared_price(shape, sizes, ring)
    both = sides(N, price.main, price.back)
    seen = stepwise([masks.squared(side, shape, sizes, ring) for side in both])
    one, two = seen.results
    lambda_ = low(one.share + two.share, ring)
    assert bool((lambda_ >> k == 0).all()) and all(side.done for side in both)
    assert torch.equal(low(one.square + two.square, ring), low(lambda_ * lambda_, ring))
    ends = itertools.accumulate(sizes, initial=m)
    for at, size, first, second in zip(ends, sizes, one.tables, two.tables, strict=False):
        assert torch.equal(first ^ second, step_table(lambda_ >> at, size))
    assert [sum(8 * m.numel() for m in way) for way in seen.sent] == [N * price.sent, N * price.returned]
    assert len(seen.sent[0]) == price.rounds


MERGE = PairPrice(main=4)  # the And of two planes by which the answers of two tables are merged


@pytest.mark.parametrize(
    ("p", "tables", "ring", "transfers", "bits", "designed"),
    [
        (12, 2, 36, 31, 404, (31, 413)),
        (16, 2, 36, 35, 326, (39, 339)),
        (20, 2, 36, 39, 264, (47, 281)),
        (12, 1, 36, 27, 1364, (27, 1373)),
        (12, 2, 64, 31, 768, (31, 777)),
        (0, 2, 36, 27, 667, (None, None)),
    ],
)
def test_the_prices_of_a_relu(
    p: int, tables: int, ring: int, transfers: int, bits: int, designed: tuple[int | None, int | None]
) -> None:
    """No more than the design has: own bits and digits of one bit make it less."""
    request = MaskedOpening(1, 20, 12, tables, ring)
    price = opening_price(request, MaskShape(20, 12, ring, p)) | (MERGE if tables > 1 else PairPrice())
    assert (price.transfers, price.bits) == (transfers, bits)
    most_transfers, most_bits = designed
    if most_transfers is not None and most_bits is not None:
        assert transfers <= most_transfers and bits <= most_bits


def test_the_table_of_the_page() -> None:
    """docs/pair.md has for each knob the transfers, the bits, the bytes by SoftSpoken OT and the rounds."""
    rows = re.findall(r"^\| p = (\d+)(.*?) \| (\d+) \| ([\d,]+) \| (\d+) \| (\d+) \|$", PAGE.read_text(), re.MULTILINE)
    assert len(rows) >= 6
    for p, window, *numbers in rows:
        tables, ring = 1 if "one table" in window else 2, 64 if "64 bits" in window else 36
        price = opening_price(MaskedOpening(1, 20, 12, tables, ring), MaskShape(20, 12, ring, int(p)))
        price |= MERGE if tables > 1 else PairPrice()
        found = price.transfers, price.bits, round(price.weight(31) / 8), 1 + price.rounds
        assert [int(number.replace(",", "")) for number in numbers] == list(found)


def test_the_knob_follows_the_price_of_a_transfer() -> None:
    assert masks.best(20, 12, 36, 31.0).p == 12
    assert masks.best(20, 12, 36, 0.28).p == 20
    assert masks.best(20, 12, 64, 31.0).p == 20  # words for a wide ring cost more than a transfer
    assert masks.best(20, 12, 36, 1000.0).p == 0
    for transfer_bits in (0.0, 5.0, 31.0):
        weights = [masks.price(MaskShape(9, 4, 20, p), (5,)).weight(transfer_bits) for p in range(10)]
        assert weights[masks.best(9, 4, 20, transfer_bits).p] == min(weights)


def test_prices_add_up() -> None:
    one, two = PairPrice(1, 2, 3, 4, 5), PairPrice(10, 20, 30, 40, 2)
    assert one + two == PairPrice(11, 22, 33, 44, 7) and one | two == PairPrice(11, 22, 33, 44, 5)
    assert (ROT.transfers, two.bits, two.weight(2.0)) == (1, 70, 130.0)


def test_a_table_of_another_bit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above can fail: the table of a mask of which one bit is swapped with another."""
    made = masks.step_table
    monkeypatch.setattr(masks, "step_table", lambda bits: made([*bits[1:], bits[0]]))
    request = MaskedOpening(N, 5, 1, 1, 9)
    assert wrong(request, fields(request, opened(request, 1))) == ["table_0"]


def test_a_table_has_every_number_of_ones() -> None:
    request = MaskedOpening(N, 6, 2, 1, 9)
    found = fields(request, opened(request, 2))
    table = bits_of(found["table_0"][0] ^ found["table_0"][1]).view(-1, 16)
    assert sorted(set(table.sum(1).tolist())) == list(range(1, 17))
