"""Rows lifted, squared and multiplied by one opening: every value and factor on small rings, and what breaks them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hummingbird import kernels
from hummingbird.channel import meter
from hummingbird.errors import DealerError
from hummingbird.mpc.protocols.beaver import Dots
from hummingbird.mpc.protocols.rows import (
    LiftedRows,
    LiftedSquares,
    RowOpening,
    RowWidths,
    SumOfSquares,
    lifted_rows_price,
)
from hummingbird.mpc.session.session import Session
from tests.support.chance import chi_square_limit
from tests.support.parties import sessions as make_sessions
from tests.support.parties import share, together

SMALL = RowWidths(value=5, factor=4, sums=16, product=14)  # products need tops: 14 > 5 + 4
NARROW = RowWidths(value=6, factor=5, sums=9, product=8)
CUT = RowWidths(value=5, factor=4, sums=16, product=11, cut=3)


def noisy(x: Tensor, parties: int, bits: int) -> list[Tensor]:
    """Shares of x mod 2^bits, with noise above."""
    return share(x + (torch.randint(-(2**62), 2**62, x.shape) << bits) if bits < 64 else x, parties)


def opened(x: Tensor, v: Tensor, shift: int, widths: RowWidths, parties: int) -> tuple[Tensor, Tensor]:
    """Sums of squares and products that the parties' shares stand for, mod 2^sums and 2^product."""
    sessions = make_sessions(parties)
    xs, vs = noisy(x, parties, widths.value + shift), noisy(v, parties, widths.factor)

    def both(session: Session, one: Tensor, other: Tensor) -> Tensor:
        rows = RowOpening(session, one, shift, widths)
        squares = rows.squares()
        return torch.cat([squares, rows.times(other)], -1)

    try:
        parts = together([lambda s=s, a=a, b=b: both(s, a, b) for s, a, b in zip(sessions, xs, vs, strict=True)])
    finally:
        for session in sessions:
            session.channel.close()
    total = sum(parts[1:], parts[0])
    return low(total[..., :1], widths.sums), low(total[..., 1:], widths.product)


def low(x: Tensor, bits: int) -> Tensor:
    """x mod 2^bits."""
    return x & ((1 << bits) - 1 if bits < 64 else -1)


def grid(widths: RowWidths, length: int, edge: int = 1) -> tuple[Tensor, Tensor]:
    """Every value with every factor, many times over, in rows: (rows, length) and (rows, 1)."""
    values = torch.arange(-edge << widths.value - 2, edge << widths.value - 2)
    factors = torch.arange(-edge << widths.factor - 2, edge << widths.factor - 2)
    x = values[torch.randint(len(values), (len(factors) * 1200, length))]
    return x, factors.repeat(1200).unsqueeze(1)


@pytest.mark.parametrize("widths", [SMALL, NARROW], ids=["all forms", "no bit of both tops"])
@pytest.mark.parametrize("parties", [1, 2, 3])
def test_every_value_and_factor_under_all_masks(parties: int, widths: RowWidths) -> None:
    """Masks of 5 and 4 bits, or 6 and 5: every value meets each of them some ten times."""
    torch.manual_seed(parties)
    x, v = grid(widths, 3)
    squares, products = opened(x, v, 0, widths, parties)
    assert torch.equal(squares, low((x * x).sum(-1, keepdim=True), widths.sums))
    assert torch.equal(products, low(x * v, widths.product))


@pytest.mark.parametrize("parties", [1, 2, 3])
def test_products_that_are_cut_are_as_near_as_every_party_and_the_dealer_round(parties: int) -> None:
    torch.manual_seed(parties)
    x, v = grid(CUT, 3)
    squares, products = opened(x, v, 0, CUT, parties)
    assert torch.equal(squares, low((x * x).sum(-1, keepdim=True), CUT.sums))
    unused = 64 - CUT.product - CUT.cut
    error = ((products << CUT.cut) - x * v) << unused >> unused
    assert float(error.abs().max()) <= (parties + 1) / 2 * 2**CUT.cut


def test_values_twice_as_large_are_wrong() -> None:
    """The check above can fail: beyond 2^(k - 2) the opened word does not tell which mask it has met."""
    x, v = grid(SMALL, 3, 2)
    squares, products = opened(x, v, 0, SMALL, 2)
    assert not torch.equal(squares, low((x * x).sum(-1, keepdim=True), 16))
    assert not torch.equal(products, low(x * v, 14))


@pytest.mark.parametrize(
    "field", ["wrapped", "factor_wrapped", "squares", "turned", "product", "top", "factor_top", "tops"]
)
def test_every_field_counts(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    derive = LiftedRows.derive

    def changed(self: LiftedRows, **free: Any) -> dict[str, Tensor]:
        values = derive(self, **free)
        return {**values, field: values[field] + 1}

    monkeypatch.setattr(LiftedRows, "derive", changed)
    x, v = grid(SMALL, 3)
    squares, products = opened(x, v, 0, SMALL, 2)
    right = torch.equal(squares, low((x * x).sum(-1, keepdim=True), 16)), torch.equal(products, low(x * v, 14))
    assert right == {"wrapped": (False, False), "squares": (False, True), "turned": (False, True)}.get(
        field, (True, False)
    )


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize(
    ("shift", "widths"),
    [(30, RowWidths(26, 23, 47, 44)), (0, RowWidths(26, 23, 63, 64)), (2, RowWidths(62, 20, 64, 64))],
)
def test_wide_rings_within_the_rounding_of_every_party(parties: int, shift: int, widths: RowWidths) -> None:
    """Ends and chance; products by 1 show the values, within N/2 units, and squares are exactly theirs."""
    torch.manual_seed(shift)
    edge, ends = 1 << widths.value - 2, torch.ones(2, 50, dtype=torch.int64)
    z = torch.cat(
        [torch.randint(-edge + parties, edge - parties, (100, 50)), (edge - parties) * ends * torch.tensor([[1], [-1]])]
    )
    x = (z << shift) + (torch.randint(0, 1 << shift, z.shape) if shift else 0)
    squares, found = opened(x, torch.ones(102, 1, dtype=torch.int64), shift, widths, parties)
    unused = 64 - widths.product
    values = found << unused >> unused
    difference = (values - z << unused) >> unused
    assert int(difference.min()) >= -(parties // 2) and int(difference.max()) <= (1 + parties // 2 if shift else 0)
    if widths.product >= widths.value:
        assert torch.equal(squares, low((values * values).sum(-1, keepdim=True), widths.sums))


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize(
    "widths", [SMALL, NARROW, CUT, RowWidths(26, 23, 47, 64), RowWidths(26, 21, 47, 64, 20)], ids=str
)
def test_what_is_sent_is_what_is_priced(parties: int, widths: RowWidths) -> None:
    x, v = torch.zeros(7, 11, dtype=torch.int64), torch.zeros(7, 1, dtype=torch.int64)
    price = lifted_rows_price(77, 7, *widths, parties)
    with meter.meter() as counted:
        opened(x, v, 0, widths, parties)
    assert counted.total.bits_sent == parties * price.bits and counted.total.rounds == parties * price.rounds
    assert counted.total.received_bits == price.offline_bits == LiftedRows((7, 11), *widths).correction_bits


def test_the_opened_words_are_uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the values: of 5 bits of each value, and 4 of each factor (chi-squared)."""
    seen: list[tuple[Tensor, int]] = []
    read = kernels.open_words

    def listen(frames: list[Tensor], n: int, width: int) -> Tensor:
        seen.append((read(frames, n, width), width))
        return seen[-1][0]

    monkeypatch.setattr(kernels, "open_words", listen)
    opened(torch.full((1 << 12, 4), 7), torch.full((1 << 12, 1), -3), 0, SMALL, 2)
    assert sorted(width for _, width in seen) == [4, 4, 5, 5]
    for words, width in seen:
        counts, wanted = torch.bincount(words, minlength=1 << width).double(), len(words) / (1 << width)
        assert float(((counts - wanted) ** 2 / wanted).sum()) < chi_square_limit(1 << width)


def test_a_request_of_another_process_is_checked() -> None:
    good = {"shape": (3, 5), "value": 20, "factor": 18, "sums": 40, "product": 36}
    LiftedRows(**good)  # type: ignore[arg-type]
    for change in ({"value": 63}, {"value": 39}, {"factor": 36}, {"product": 20}, {"sums": 65}, {"shape": ()}):
        with pytest.raises(Exception, match="lifted_rows"):
            LiftedRows(**(good | change))  # type: ignore[arg-type]


def test_sums_have_more_bits_than_a_value_and_its_sign() -> None:
    """Bits in which t (2^(k-1) - lambda) is dealt: sums' bits less k + 1, one at least."""
    LiftedRows(shape=(2, 3), value=20, factor=16, sums=22, product=40)
    for sums in (21, 20):
        with pytest.raises(DealerError, match=f"{sums} and 40 bits of 20 and 16"):
            LiftedRows(shape=(2, 3), value=20, factor=16, sums=sums, product=40)


def applied(operation: SumOfSquares | Dots, bits: int, values: list[Tensor], parties: int) -> tuple[Tensor, int, int]:
    """An operation's result on shares that are right in the low `bits` bits; bits sent by all parties, and dealt."""
    sessions = make_sessions(parties)
    shares = zip(*(noisy(value, parties, bits) for value in values), strict=True)
    with meter.meter() as counted:
        parts = together([lambda s=s, own=own: operation.run(s, *own) for s, own in zip(sessions, shares, strict=True)])
    for session in sessions:
        session.channel.close()
    price = operation.price(parties, *values)
    assert (counted.total.rounds, counted.total.bits_sent) == (parties * price.rounds, parties * price.bits)
    assert counted.total.received_bits == price.offline_bits
    return sum(parts[1:], parts[0]), counted.total.bits_sent, counted.total.received_bits


@pytest.mark.parametrize("parties", [1, 2, 3])
@pytest.mark.parametrize(("value", "sums"), [(5, 7), (5, 16), (6, 64)])
def test_sums_of_squares_alone_of_every_value_under_all_masks(parties: int, value: int, sums: int) -> None:
    """Masks of 5 or 6 bits: every value meets each of them some hundred times."""
    torch.manual_seed(parties)
    values = torch.arange(-1 << value - 2, 1 << value - 2)
    x = values[torch.randint(len(values), (20_000, 3))]
    got, _, _ = applied(SumOfSquares(0, value, sums), value, [x], parties)
    assert torch.equal(low(got, sums), low((x * x).sum(-1, keepdim=True), sums))
    got, _, _ = applied(SumOfSquares(0, value, sums), value, [2 * x], parties)
    wrong = not torch.equal(low(got, sums), low((4 * x * x).sum(-1, keepdim=True), sums))
    assert wrong == (sums > 7)  # beyond 2^(value - 2), the error is a multiple of 2^(value + 2)


@pytest.mark.parametrize("field", ["wrapped", "squares", "turned"])
def test_every_field_of_squares_alone_counts(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    derive = LiftedSquares.derive

    def changed(self: LiftedSquares, **free: Any) -> dict[str, Tensor]:
        values = derive(self, **free)
        return {**values, field: values[field] + 1}

    monkeypatch.setattr(LiftedSquares, "derive", changed)
    x = torch.randint(-8, 8, (2000, 3))
    got, _, _ = applied(SumOfSquares(0, 5, 16), 5, [x], 2)
    assert not torch.equal(low(got, 16), low((x * x).sum(-1, keepdim=True), 16))


def test_squares_alone_need_more_bits_than_a_value_and_its_sign() -> None:
    LiftedSquares(shape=(2, 3), value=20, sums=22)
    with pytest.raises(DealerError, match="21 bits of sums of squares of 20 bits"):
        LiftedSquares(shape=(2, 3), value=20, sums=21)
    with pytest.raises(DealerError, match="no rows"):
        LiftedSquares(shape=(), value=20, sums=22)


@pytest.mark.parametrize("parties", [1, 2, 3])
def test_sums_of_products_of_rows(parties: int) -> None:
    """Rows are broadcast, and every party cuts its share: a sum is of products of values within N/2 units."""
    torch.manual_seed(parties)
    x, y = torch.randint(-(2**20), 2**20, (4, 1, 7)), torch.randint(-(2**20), 2**20, (1, 3, 7))
    got, _, dealt = applied(Dots(0, 44), 44, [x, y], parties)
    assert torch.equal(low(got, 44), low((x * y).sum(-1, keepdim=True), 44)) and got.shape == (4, 3, 1)
    assert dealt == 12 * 44
    cut, _, _ = applied(Dots(6, 40), 46, [x, y], parties)
    unused = 64 - 40
    error = (cut - (x.double() * y / 2**12).sum(-1, keepdim=True).round().long()) << unused >> unused
    bound = (parties / 2 + 0.5) * (x.abs() + y.abs()).sum(-1, keepdim=True) / 2**6 + 7 * parties**2
    assert bool((error.abs() <= bound).all())
