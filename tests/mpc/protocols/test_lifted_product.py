"""Products of values lifted by the opening itself: all values under all masks on small rings, and what breaks them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from hummingbird import kernels
from hummingbird.channel import meter
from hummingbird.kernels.shares.packing import plain
from hummingbird.mpc.correlations.request import expand
from hummingbird.mpc.protocols import beaver, lifted_product
from hummingbird.mpc.protocols.lifted_product import LiftedProduct, Operand, product
from hummingbird.mpc.session.session import Session
from tests.support.chance import chi_square_limit
from tests.support.dealers import next_turn
from tests.support.parties import sessions as make_sessions
from tests.support.parties import share, together

Sizes = tuple[int, ...]  # k, K and R, and what is cut
ALL_FORMS, NO_TOPS, ONE_WHOLE, BOTH_WHOLE = (4, 3, 9), (4, 4, 7), (3, 6, 6), (4, 4, 4)


def noisy(x: Tensor, parties: int, bits: int) -> list[Tensor]:
    """Shares of x mod 2^bits, with noise above."""
    return share(x + (torch.randint(-(2**62), 2**62, x.shape) << bits) if bits < 64 else x, parties)


def low(x: Tensor, bits: int) -> Tensor:
    """x mod 2^bits."""
    return x & ((1 << bits) - 1 if bits < 64 else -1)


def multiplied(sessions: list[Session], x: Tensor, y: Tensor, sizes: Sizes, shifts: tuple[int, int] = (0, 0)) -> Tensor:
    """The products that the parties' shares stand for, mod 2^R."""
    k, factor, bits, *cut = sizes
    xs, ys = noisy(x, len(sessions), k + shifts[0]), noisy(y, len(sessions), factor + shifts[1])
    try:
        parts = together(
            [
                lambda s=s, a=a, b=b: product(s, Operand(a, shifts[0], k), Operand(b, shifts[1], factor), bits, *cut)
                for s, a, b in zip(sessions, xs, ys, strict=True)
            ]
        )
    finally:
        for session in sessions:
            session.channel.close()
    return low(sum(parts[1:], parts[0]), bits)


def values(k: int, bits: int, edge: int) -> Tensor:
    """All that may be opened in k bits: up to the bound, which counts, or any for k = bits; `edge` times as many."""
    return torch.arange(1 << k) if k == bits else torch.arange(-edge << k - 2, (edge << k - 2) + 1)


def every_case(session: Session, sizes: Sizes, edge: int = 1) -> tuple[Tensor, Tensor]:
    """Values and factors such that every pair of them meets every pair of masks of the next request."""
    k, factor, bits = sizes[0], sizes[1], sum(sizes[2:])
    pairs = torch.cartesian_prod(values(k, bits, edge), values(factor, bits, edge))
    kinds = 1 << k + factor
    count = kinds * (len(pairs) + 14 * int(len(pairs) ** 0.5) + 60)
    request, dealer = LiftedProduct((count,), (count,), *sizes), session.dealer
    turn = next_turn(dealer, request)
    drawn = [expand(request, turn, seed, rank) for rank, seed in enumerate(dealer._seeds)]  # type: ignore[attr-defined]
    mask, other = (sum(plain(fields[name]).long() for fields in drawn) for name in ("mask", "factor"))
    kind = low(mask, k) << factor | low(other, factor)
    order, counts = torch.argsort(kind, stable=True), torch.bincount(kind, minlength=kinds)
    assert int(counts.min()) >= len(pairs), "a pair of masks is too rare"
    turns = torch.empty_like(kind)
    turns[order] = torch.arange(count) - (torch.cumsum(counts, 0) - counts)[kind[order]]
    x, y = pairs[turns % len(pairs)].unbind(1)
    return x.contiguous(), y.contiguous()


@pytest.mark.parametrize("sizes", [ALL_FORMS, NO_TOPS, ONE_WHOLE, BOTH_WHOLE, (2, 2, 6)], ids=str)
@pytest.mark.parametrize("parties", [1, 2, 3])
def test_every_pair_of_values_under_every_pair_of_masks(parties: int, sizes: Sizes) -> None:
    sessions = make_sessions(parties)
    x, y = every_case(sessions[0], sizes)
    assert torch.equal(multiplied(sessions, x, y, sizes), low(x * y, sizes[2]))


def test_values_twice_as_large_are_wrong() -> None:
    """The check above can fail: beyond 2^(k - 2) the opened word does not tell which mask it has met."""
    sessions = make_sessions(2)
    x, y = every_case(sessions[0], ALL_FORMS, 2)
    wrong = multiplied(sessions, x, y, ALL_FORMS) != low(x * y, ALL_FORMS[2])
    inside = (x.abs() <= 4) & (y.abs() <= 2)
    assert bool(wrong.any()) and not bool(wrong[inside].any())


@pytest.mark.parametrize("field", LiftedProduct((1,), (1,), *ALL_FORMS).derived)
def test_every_field_counts(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    derive = LiftedProduct.derive

    def changed(self: LiftedProduct, **free: Any) -> dict[str, Tensor]:
        fields = derive(self, **free)
        return {**fields, field: fields[field] + 1}

    monkeypatch.setattr(LiftedProduct, "derive", changed)
    sessions = make_sessions(2)
    x, y = every_case(sessions[0], ALL_FORMS)
    assert not torch.equal(multiplied(sessions, x, y, ALL_FORMS), low(x * y, ALL_FORMS[2]))


CUT, CUT_ALL, CUT_NO_TOPS = (4, 3, 8, 2), (4, 4, 5, 4), (4, 4, 3, 3)


def errors(found: Tensor, x: Tensor, y: Tensor, sizes: Sizes) -> Tensor:
    """The errors of products mod 2^R less what is cut, in units of their last bit."""
    bits, cut = sizes[2:]
    unused = 64 - bits - cut
    return ((found << cut) - x * y << unused >> unused).double() / 2**cut


@pytest.mark.parametrize("sizes", [CUT, CUT_ALL, CUT_NO_TOPS], ids=str)
@pytest.mark.parametrize("parties", [1, 2, 3])
def test_every_pair_that_is_cut(parties: int, sizes: Sizes) -> None:
    """As near as every party and the dealer round."""
    sessions = make_sessions(parties)
    x, y = every_case(sessions[0], sizes)
    assert float(errors(multiplied(sessions, x, y, sizes), x, y, sizes).abs().max()) <= (parties + 1) / 2


@pytest.mark.parametrize("field", LiftedProduct((1,), (1,), *CUT_ALL).derived)
def test_every_field_counts_of_what_is_cut(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    derive = LiftedProduct.derive

    def changed(self: LiftedProduct, **free: Any) -> dict[str, Tensor]:
        fields = derive(self, **free)
        return {**fields, field: fields[field] + (2 if field == "product" else 1)}

    monkeypatch.setattr(LiftedProduct, "derive", changed)
    sessions = make_sessions(2)
    x, y = every_case(sessions[0], CUT_ALL)
    assert float(errors(multiplied(sessions, x, y, CUT_ALL), x, y, CUT_ALL).abs().max()) > 1.5


@pytest.mark.parametrize("sizes", [(26, 21, 64, 21), (30, 31, 62, 28), (31, 30, 60, 1), (40, 21, 62, 20)], ids=str)
@pytest.mark.parametrize("parties", [2, 3])
def test_products_of_more_than_a_word_are_cut_into_the_whole_ring(parties: int, sizes: Sizes) -> None:
    torch.manual_seed(sizes[0])
    x, y = (torch.randint(-1 << k - 2, (1 << k - 2) + 1, (4000,)) for k in sizes[:2])
    x[:8], y[:8] = 1 << sizes[0] - 2, (1 << sizes[1] - 2) * torch.tensor([1, -1] * 4)
    found = multiplied(make_sessions(parties), x, y, sizes)
    unused, rest = 64 - sizes[2], x * y & (1 << sizes[3]) - 1
    error = ((found << unused >> unused) - (x * y >> sizes[3])).double() - rest / 2 ** sizes[3]
    assert float(error.abs().max()) <= (parties + 1) / 2
    assert float(error.mean().abs()) < 0.1 + (parties + 1) / 2 ** (sizes[3] + 1)  # halves are rounded upwards


SHAPES = [
    ((5, 7, 4, 4), (5, 7, 1, 1)),
    ((5, 7, 1, 1), (5, 7, 4, 4)),
    ((6, 1), (1, 9)),
    ((3, 8), (3, 8)),
    ((2, 3, 5), (5,)),
    ((), (4, 3)),
    ((), ()),
    ((0, 3), (1, 3)),
    ((4, 1), (0,)),
]


@pytest.mark.parametrize("sizes", [(22, 14, 46), (18, 19, 64), (36, 17, 36), (40, 38, 40), (64, 64, 64)], ids=str)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("parties", [2, 3])
def test_wide_rings_and_all_shapes(parties: int, shapes: tuple[tuple[int, ...], ...], sizes: Sizes) -> None:
    """Values up to their bounds, which some of them meet, and any where nothing is lifted."""
    torch.manual_seed(sizes[0])
    operands = []
    for size, k in zip(shapes, sizes, strict=False):
        edge = 1 << (min(k, 63) - (1 if k == sizes[2] else 2))
        drawn = torch.randint(-edge, edge, size)
        operands.append(torch.where(torch.rand(size) < 0.3, torch.tensor(edge - (k == sizes[2])), drawn))
    found = multiplied(make_sessions(parties), *operands, sizes)
    assert found.shape == torch.broadcast_shapes(*shapes)
    assert torch.equal(found, low(operands[0] * operands[1], sizes[2]))


@pytest.mark.parametrize("parties", [2, 3])
def test_what_is_cut_is_rounded_by_every_party(parties: int) -> None:
    """Times one: within N/2 units; and exact where every share is a multiple of what is cut."""
    torch.manual_seed(parties)
    z = torch.randint(-(1 << 19), 1 << 19, (5000,))
    x, one = (z << 12) + torch.randint(0, 1 << 12, z.shape), torch.ones(1, dtype=torch.int64)
    found = multiplied(make_sessions(parties), x, one, (22, 4, 40), (12, 0)) << 24 >> 24
    assert int((found - z).min()) >= -(parties // 2) and int((found - z).max()) <= 1 + parties // 2
    sessions = make_sessions(parties)
    operands = [[part << 6 for part in share(value, parties)] for value in (z, z.flip(0) >> 4)]
    try:
        parts = together(
            [
                lambda s=s, a=a, b=b: product(s, Operand(a, 6, 22), Operand(b, 6, 18), 40)
                for s, a, b in zip(sessions, *operands, strict=True)
            ]
        )
    finally:
        for session in sessions:
            session.channel.close()
    assert torch.equal(low(sum(parts[1:], parts[0]), 40), low(z * (z.flip(0) >> 4), 40))


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize(
    ("shapes", "sizes"), list(itertools.product(SHAPES[1:4], [ALL_FORMS, NO_TOPS, (22, 64, 64), (22, 20, 64, 18)]))
)
def test_what_is_sent_is_what_is_priced(parties: int, shapes: tuple[tuple[int, ...], ...], sizes: Sizes) -> None:
    x, y = (torch.zeros(size, dtype=torch.int64) for size in shapes)
    out = torch.broadcast_shapes(*shapes)
    price = lifted_product.price(x.numel(), y.numel(), out.numel(), *sizes[:3], parties, *sizes[3:])
    with meter.meter() as counted:
        multiplied(make_sessions(parties), x, y, sizes)
    assert counted.total.bits_sent == parties * price.bits and counted.total.rounds == parties * price.rounds == parties
    assert counted.total.received_bits == price.offline_bits == LiftedProduct(*shapes, *sizes).correction_bits


def test_in_the_whole_ring_it_costs_what_a_product_does() -> None:
    assert lifted_product.price(700, 50, 700, 37, 37, 37, 2) == beaver.product_price(700, 50, 700, 2, 37)


def test_the_opened_words_are_uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the values: of 4 bits of each value, and 3 of each factor (chi-squared)."""
    seen: list[tuple[Tensor, int]] = []
    read = kernels.open_words

    def listen(frames: list[Tensor], n: int, width: int) -> Tensor:
        seen.append((read(frames, n, width), width))
        return seen[-1][0]

    monkeypatch.setattr(kernels, "open_words", listen)
    multiplied(make_sessions(2), torch.full((1 << 14,), 4), torch.full((1 << 14,), -2), ALL_FORMS)
    assert sorted(width for _, width in seen) == [3, 3, 4, 4]
    for words, width in seen:
        counts, wanted = torch.bincount(words, minlength=1 << width).double(), len(words) / (1 << width)
        assert float(((counts - wanted) ** 2 / wanted).sum()) < chi_square_limit(1 << width)


def test_a_request_of_another_process_is_checked() -> None:
    good = {"size0": (3, 5), "size1": (3, 1), "value": 20, "factor": 18, "product": 36}
    LiftedProduct(**good)  # type: ignore[arg-type]
    wrong = [{"value": 37}, {"factor": 37}, {"product": 19}, {"product": 65}, {"size1": (4, 1)}, {"value": 1}]
    wrong += [{"size0": (1 << 20, 1), "size1": (1, 1 << 20)}]
    wrong += [
        {"cut": 19},
        {"cut": 41},
        {"product": 64, "cut": 12, "factor": 11},
        {"value": 44, "product": 50, "cut": 9},
    ]
    for change in wrong:
        with pytest.raises(Exception, match="lifted_product"):
            LiftedProduct(**(good | change))  # type: ignore[arg-type]
