"""Rows that stay, opened once behind one mask: every value under all masks on small rings, each row once, the price."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from torch import Tensor

from hummingbird.channel import meter
from hummingbird.errors import DealerError, InputError
from hummingbird.mpc.correlations.request import ReceiverTurn, corrections, expand, received
from hummingbird.mpc.functions.polynomials import choose
from hummingbird.mpc.protocols import cached_rows
from hummingbird.mpc.protocols.cached_rows import CachedMatMul, CachedRows, CachedRowsMask
from hummingbird.mpc.protocols.lifted_product import Operand
from hummingbird.mpc.protocols.poly import LookUp, LookUpPrice
from hummingbird.mpc.protocols.registry import from_json
from hummingbird.mpc.session.session import Session
from hummingbird.prg import new_seed
from tests.mpc.protocols.test_lifted_matmul import low, noisy
from tests.support.correlation_checks import check_cached_matmul
from tests.support.parties import sessions as make_sessions
from tests.support.parties import share, together

Sizes = tuple[int, int, int]  # k, R and W
LIFTED, WIDER, WHOLE, WHOLE_NARROW = (4, 12, 12), (3, 9, 13), (6, 6, 6), (5, 5, 9)
TABLE = choose("sigmoid(x)", 8.0, 8, 4)
BATCH, PLACES, LENGTH = (50, 3), 6, 4


def multiplied(
    parties: int,
    pieces: list[Tensor],
    queries: list[Tensor],
    sizes: Sizes,
    turned: bool,
    shift: int = 0,
    places: int = PLACES,
    beside: int = 0,
    factory: Any = CachedRows,
) -> list[Tensor]:
    """Return what the parties' shares stand for mod 2^R: after each piece of rows is written, its product with a query.

    beside: with the products, the parties look up so many zeros; the sigmoids, in units of 2^-8, are the last tensor.
    """
    k, bits, wide = sizes
    opened, zeros = make_sessions(parties), torch.zeros(max(1, beside), dtype=torch.int64)
    size = (*pieces[0].shape[:-2], places, pieces[0].shape[-1])
    given = zip(
        opened,
        zip(*(noisy(piece, parties, wide + shift) for piece in pieces), strict=True),
        zip(*(noisy(query, parties, k + shift) for query in queries), strict=True),
        share(zeros, parties),
        strict=True,
    )

    def party(session: Session, mine: tuple[Tensor, ...], asked: tuple[Tensor, ...], third: Tensor) -> list[Tensor]:
        rows, out = factory(session, size, 0, wide), []
        for piece, query in zip(mine, asked, strict=True):
            assert TABLE is not None
            looks = [LookUp(session, third, TABLE, 16, 12)] if beside else []
            there = query.shape[-1] if not turned else places
            found, others = cached_rows.product(
                session,
                Operand(query, shift, k),
                rows,
                bits,
                turned=turned,
                places=there,
                new=Operand(piece, shift, wide) if piece.shape[-2] else None,
                beside=looks,
            )
            out.append(found)
        return out + others

    try:
        parts = together([lambda s=s, m=m, q=q, t=t: party(s, m, q, t) for s, m, q, t in given])
    finally:
        for session in opened:
            session.channel.close()
    totals = [sum(column[1:], column[0]) for column in zip(*parts, strict=True)]
    return [low(total, bits) for total in totals[: len(pieces)]] + [low(total, 12) for total in totals[len(pieces) :]]


def small(sizes: Sizes, turned: bool, edge: int = 1, counts: tuple[int, ...] = (3, 1, 0, 2)) -> tuple[Any, Any]:
    """Pieces of rows, any numbers mod 2^W, and a query for each, from end to end: every pair of values many times."""
    torch.manual_seed(sum(sizes))
    k, bits, wide = sizes
    most = (edge << k - 2) if k < bits else 1 << k - 1
    pieces = [torch.randint(-1 << wide - 1, 1 << wide - 1, (*BATCH, count, LENGTH)) for count in counts]
    across = LENGTH if turned else PLACES
    return pieces, [torch.randint(-most, most + 1, (*BATCH, 2, across)) for _ in pieces]


def wanted(pieces: list[Tensor], queries: list[Tensor], bits: int, turned: bool, places: int = PLACES) -> list[Tensor]:
    """The products with the rows so far, and with zeros behind them."""
    out = []
    for number, query in enumerate(queries):
        rows = torch.cat(pieces[: number + 1], -2)
        rows = torch.nn.functional.pad(rows, (0, 0, 0, (places if turned else query.shape[-1]) - rows.shape[-2]))
        out.append(low(query @ (rows.mT if turned else rows), bits))
    return out


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("sizes", [LIFTED, WIDER, WHOLE, WHOLE_NARROW, (2, 9, 9)], ids=str)
@pytest.mark.parametrize("parties", [1, 2, 3])
def test_values_from_end_to_end_under_all_masks(parties: int, sizes: Sizes, turned: bool) -> None:
    pieces, queries = small(sizes, turned)
    *found, beside = multiplied(parties, pieces, queries, sizes, turned, beside=5)
    for one, other in zip(found, wanted(pieces, queries, sizes[1], turned), strict=True):
        assert torch.equal(one, other)
    assert int((beside - 128).abs().max()) <= 1 + parties


@pytest.mark.parametrize("turned", [False, True])
def test_values_twice_as_large_are_wrong(turned: bool) -> None:
    """The check above can fail: beyond 2^(k - 2) the opened word does not tell which mask it has met."""
    pieces, queries = small(LIFTED, turned, 2)
    found = multiplied(2, pieces, queries, LIFTED, turned)
    assert not torch.equal(found[-1], wanted(pieces, queries, LIFTED[1], turned)[-1])


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("field", CachedMatMul((1, 1), (1, 1), 0, 0, 4, 12, 12).derived)
def test_every_field_counts(field: str, turned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    derive = CachedMatMul.derive

    def changed(self: CachedMatMul, **free: Any) -> dict[str, Tensor]:
        fields = derive(self, **free)
        return {**fields, field: fields[field] + 1}

    monkeypatch.setattr(CachedMatMul, "derive", changed)
    pieces, queries = small(LIFTED, turned)
    assert not torch.equal(
        multiplied(2, pieces, queries, LIFTED, turned)[0], wanted(pieces, queries, LIFTED[1], turned)[0]
    )


def test_another_mask_of_the_rows_is_wrong() -> None:
    """The rows' mask is that of the requests: with another key the products are wrong."""

    def other(session: Session, size: tuple[int, ...], key: int, bits: int) -> CachedRows:
        rows = CachedRows(session, size, key + 1, bits)
        rows.key = key
        return rows

    pieces, queries = small(WHOLE, True)
    found = multiplied(2, pieces, queries, WHOLE, True, factory=other)
    assert not torch.equal(found[0], wanted(pieces, queries, WHOLE[1], True)[0])


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("sizes", [(20, 43, 45), (36, 36, 36), (30, 30, 32), (26, 60, 64), (64, 64, 64)], ids=str)
def test_wide_rings(sizes: Sizes, turned: bool) -> None:
    """Values up to their bounds, which some of them meet; fewer places than there can be, and rows of one stack."""
    k, bits, wide = sizes
    torch.manual_seed(bits)
    most = 1 << (k - 2 if k < bits else min(62, k - 1))
    pieces = [torch.randint(-1 << wide - 2, 1 << wide - 2, (2, count, 8)) for count in (5, 1)]
    queries = [torch.randint(-most, most, (2, 3, 8 if turned else there)) for there in (5, 9)]
    for query in queries:
        query[..., 0] = most if k < bits else most - 1
    found = multiplied(2, pieces, queries, sizes, turned, places=11)
    for one, other in zip(found, wanted(pieces, queries, bits, turned, 11), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("parties", [2, 3])
def test_rows_and_values_are_cut_within_half_a_unit_a_party(parties: int) -> None:
    sizes, shift = (20, 40, 44), 4
    torch.manual_seed(parties)
    rows, query = torch.randint(-(2**20), 2**20, (2, 5, 3)), torch.randint(-(2**15), 2**15, (2, 1, 3))
    (found,) = multiplied(parties, [rows], [query], sizes, True, shift)
    exact = (query.double() / 2**shift) @ (rows.double() / 2**shift).mT
    most = parties / 2 * (query.abs().sum(-1, keepdim=True) + rows.abs().sum(-1).unsqueeze(-2)) / 2**shift
    error = ((found << 24 >> 24)[..., :5] - exact).abs()
    assert bool((error <= most + 3 * (parties / 2) ** 2).all()) and float(error.max()) > 1
    assert int(found[..., 5:].abs().max()) == 0


# Each row once --------------------------------------------------------------------------------------------------------


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Collects, for every row that a party sends behind the rows' mask: the party, and from where to where."""
    sent, cover = [], CachedRows.cover

    def covering(self: CachedRows, session: Session, new: Operand) -> Tensor:
        start = self.filled
        message = cover(self, session, new)
        sent.append((session.rank, start, self.filled))
        return message

    monkeypatch.setattr(CachedRows, "cover", covering)
    return sent


def test_a_row_of_the_mask_meets_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = recorded(monkeypatch)
    multiplied(2, *small(WHOLE, True), WHOLE, True)
    for rank in range(2):
        assert [(start, end) for party, start, end in sent if party == rank] == [(0, 3), (3, 4), (4, 6)]


def test_rows_count_as_written_before_they_are_sent() -> None:
    """A message that fails has taken its rows of the mask: they never hide anything else."""
    (session,) = make_sessions(1)
    rows = CachedRows(session, (2, 4, 3), 0, 20)
    new = Operand(torch.zeros(2, 1, 3, dtype=torch.int64), 0, 20)

    def broken(*tensors: Tensor) -> dict[int, list[Tensor]]:
        raise OSError("lost")

    session.channel.exchange = broken  # type: ignore[method-assign]
    query = Operand(torch.zeros(2, 1, 3, dtype=torch.int64), 0, 20)
    for tries in (1, 2):
        with pytest.raises(OSError, match="lost"):
            cached_rows.product(session, query, rows, 20, turned=True, places=4, new=new)
        assert rows.filled == tries


def test_what_has_no_place_is_refused_before_anything_is_sent() -> None:
    (session,) = make_sessions(1)
    rows = CachedRows(session, (2, 4, 3), 0, 20)
    query = Operand(torch.zeros(2, 1, 3, dtype=torch.int64), 0, 20)

    def add(count: int, places: int = 4) -> None:
        new = Operand(torch.ones(2, count, 3, dtype=torch.int64), 0, 20)
        cached_rows.product(session, query, rows, 20, turned=True, places=places, new=new)

    add(3)
    before = copy.deepcopy(rows.opened)
    for count, places, what in ((2, 4, "2 more rows, where 1 of 4 places are left"), (0, 2, "of which 3 are written")):
        with pytest.raises(InputError, match=what) as caught, meter.meter() as counted:
            add(count, places)
        assert caught.value.hint and counted.total.rounds == 0
    with pytest.raises(InputError, match="a product with 5 of 4 places"):
        add(1, 5)
    assert rows.filled == 3 and torch.equal(rows.opened, before)
    add(1)


# Price and requests ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("sizes", [LIFTED, WHOLE_NARROW, (20, 43, 45)], ids=str)
def test_what_is_sent_is_what_is_priced(parties: int, turned: bool, sizes: Sizes) -> None:
    assert TABLE is not None
    k, bits, wide = sizes
    pieces, queries = small(sizes, turned, counts=(3, 0))
    rows = (PLACES, *BATCH, LENGTH)
    request = CachedMatMul(tuple(queries[0].shape), rows, int(turned), 0, k, wide, bits)
    looked_up = [LookUpPrice.of(5, TABLE, 12, parties)]
    prices = [cached_rows.price(request, parties, pieces[0].numel(), looked_up)]
    prices.append(cached_rows.price(request, parties, 0, looked_up))
    with meter.meter() as counted:
        multiplied(parties, pieces, queries, sizes, turned, beside=5)
    assert counted.total.bits_sent == parties * sum(price.bits for price in prices)
    assert counted.total.rounds == parties * sum(price.rounds for price in prices) == 2 * parties
    assert counted.total.received_bits == sum(price.offline_bits for price in prices)


CASES = [
    CachedMatMul((2, 3, 5), (5, 2, 4), 0, 1, value=9, factor=40, product=36),
    CachedMatMul((2, 3, 4), (5, 2, 4), 1, 2, value=20, factor=20, product=20),
    CachedMatMul((3, 4), (5, 4), 1, 0, value=7, factor=64, product=64),
]


@pytest.mark.parametrize("request_", CASES, ids=str)
@pytest.mark.parametrize("receiver", range(3))
def test_what_is_dealt(request_: CachedMatMul, receiver: int) -> None:
    """Independent code recomputes what the shares stand for, with the first rows of a longer mask."""
    seeds = [new_seed() for _ in range(3)]
    places, *rest = request_.rows
    masks = {}
    for conversation in (0, 1, 2):
        turn = ReceiverTurn(receiver, 7, conversation)
        whole = CachedRowsMask((places + 3, *rest), request_.key, request_.factor)
        masks[conversation] = [expand(whole, turn, seed, rank)["mask"] for rank, seed in enumerate(seeds)]
        parts = [expand(request_, turn, seed, rank) for rank, seed in enumerate(seeds)]
        parts[receiver] |= received(request_, corrections(request_, turn, seeds))
        assert all("factor" not in part for part in parts)
        columns = [[part[name] for part in parts] for name in request_.parts]
        check_cached_matmul(columns, [mask[:places] for mask in masks[conversation]], **request_.params)
        with pytest.raises(AssertionError):
            check_cached_matmul(columns, [mask[1 : places + 1] for mask in masks[conversation]], **request_.params)
    for one, other in ((0, 1), (1, 2), (0, 2)):  # of no two conversations is a mask the same
        for mine, theirs in zip(masks[one], masks[other], strict=True):
            assert not bool((mine == theirs).any())


def test_a_request_of_another_process_is_checked() -> None:
    good: dict[str, Any] = CASES[0].params
    again = from_json(json.loads(json.dumps(CASES[0].to_json())))
    assert again == CASES[0] and str(again) == str(CASES[0])
    wrong: list[dict[str, Any]] = [
        {"value": 37},
        {"product": 41},
        {"factor": 65},
        {"turned": 1},
        {"turned": 2},
        {"rows": (4, 2, 4)},
        {"rows": (5, 3, 4)},
        {"rows": (5,)},
        {"size0": (5,)},
        {"key": -1},
        {"size0": (1 << 10, 1 << 10), "rows": (1 << 10, 1 << 10)},
    ]
    for change in wrong:
        with pytest.raises(DealerError, match="cached_matmul"):
            CachedMatMul(**{**good, **change})
