"""Products on the bits that are read: every operand under every mask on small rings, and what breaks them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hummingbird import cost, ring
from hummingbird.channel import meter
from hummingbird.kernels.shares.packing import plain
from hummingbird.mpc.correlations.request import Request, expand
from hummingbird.mpc.protocols import beaver, weight_mask
from hummingbird.mpc.protocols.beaver import SquarePair, Triple
from hummingbird.mpc.protocols.weight_mask import FixedWeight, open_weights
from hummingbird.mpc.session import sharing
from hummingbird.mpc.session.session import Session
from tests.support.dealers import next_turn
from tests.support.parties import sessions as make_sessions
from tests.support.parties import share, together


def noisy(x: Tensor, parties: int, bits: int) -> list[Tensor]:
    """Shares of x mod 2^bits, with noise above."""
    return share(x + (torch.randint(-(2**62), 2**62, x.shape) << bits) if bits < 64 else x, parties)


def run(sessions: list[Session], protocol: Callable[..., Tensor], bits: int, *shares: list[Tensor]) -> Tensor:
    """The value that the parties' results stand for, mod 2^bits."""
    try:
        calls = [
            lambda s=s, own=own: protocol(s, *own) for s, own in zip(sessions, zip(*shares, strict=True), strict=True)
        ]
        parts = together(calls)
    finally:
        for session in sessions:
            session.channel.close()
    return sum(parts[1:], parts[0].clone()) & (-1 if bits == 64 else (1 << bits) - 1)


def masks(session: Session, request: Request[Any], name: str, bits: int) -> Tensor:
    """A mask of the next request of these sessions."""
    dealer: Any = session.dealer
    turn = next_turn(dealer, request)
    drawn = [plain(expand(request, turn, seed, rank)[name]).long() for rank, seed in enumerate(dealer._seeds)]
    return sum(drawn[1:], drawn[0].clone()) & ((1 << bits) - 1)


def met(cells: Tensor, number: int, choices: int) -> Tensor:
    """For each element one of the choices, so that each meets every cell, which there are `number` of."""
    order = torch.argsort(cells, stable=True)
    sizes = torch.bincount(cells, minlength=number)
    chosen = torch.empty_like(cells)
    chosen[order] = (torch.arange(len(cells)) - (torch.cumsum(sizes, 0) - sizes)[cells[order]]) % choices
    assert int(sizes.min()) >= choices, "a case is missing"
    return chosen


@pytest.mark.parametrize("parties", [1, 2, 3])
@pytest.mark.parametrize("bits", [1, 2, 3])
def test_every_pair_of_operands_under_every_pair_of_masks(parties: int, bits: int) -> None:
    size = 1 << bits
    count, sessions = 2 * size**4 + 1000, make_sessions(parties)
    request = Triple((count,), (count,), "mul", {}, bits=bits)
    cells = masks(sessions[0], request, "a", bits) * size + masks(sessions[0], request, "b", bits)
    both = met(cells, size * size, size * size)
    x, y = both // size, both % size

    def product(session: Session, left: Tensor, right: Tensor) -> Tensor:
        return beaver.product(session, "mul", left, right, {}, bits)

    got = run(sessions, product, bits, noisy(x, parties, bits), noisy(y, parties, bits))
    assert torch.equal(got, x * y % size)


@pytest.mark.parametrize("parties", [1, 2, 3])
@pytest.mark.parametrize("bits", [1, 5, 7])
def test_every_square_under_every_mask(parties: int, bits: int) -> None:
    size = 1 << bits
    count, sessions = 2 * size**2 + 1000, make_sessions(parties)
    x = met(masks(sessions[0], SquarePair((count,), bits=bits), "r", bits), size, size)
    got = run(sessions, lambda s, own: beaver.square(s, own, bits), bits, noisy(x, parties, bits))
    assert torch.equal(got, x * x % size)


CASES = {
    "mul": ((6, 1, 5), (4, 1), {}),
    "matmul": ((2, 3, 5), (2, 5, 4), {}),
    "conv2d": ((2, 4, 5, 5), (6, 2, 3, 3), {"stride": [2, 1], "padding": [1, 1], "groups": 2}),
}


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("bits", [20, 32, 33, 44, 60, 64])
@pytest.mark.parametrize("op", CASES)
def test_products_of_every_width_and_their_price(
    op: str, bits: int, parties: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def owned(session: Session, code: Tensor, shape: tuple[int, ...], owner: int) -> Tensor:
        return code.clone() if session.rank == owner else torch.zeros_like(code)

    monkeypatch.setattr(sharing, "share_secret", owned)  # its seeds are those of a real session
    left, right, options = CASES[op]
    torch.manual_seed(bits)
    x, y = (torch.randint(-(2**63), 2**63 - 1, size) for size in (left, right))
    wanted = ring.bilinear(op, x, y, **options)  # type: ignore[arg-type]
    low = -1 if bits == 64 else (1 << bits) - 1

    def product(session: Session, one: Tensor, other: Tensor) -> Tensor:
        return beaver.product(session, op, one, other, options, bits)

    with meter.meter() as counted:
        got = run(make_sessions(parties), product, bits, noisy(x, parties, bits), noisy(y, parties, bits))
    assert torch.equal(got, wanted & low)
    price = beaver.product_price(x.numel(), y.numel(), wanted.numel(), parties, bits)
    assert (counted.total.rounds, counted.total.bits_sent) == (parties * price.rounds, parties * price.bits)
    assert counted.total.received_bits == price.offline_bits

    def fixed(session: Session, one: Tensor) -> Tensor:
        session.fixed_keys = itertools.count()
        weight = FixedWeight(y.clone(), 0)
        open_weights(session, [weight])
        with meter.layer("product", "", cost.FREE):
            return weight.product(session, op, one, options, bits=bits)

    with meter.meter() as counted:
        got = run(make_sessions(parties), fixed, bits, noisy(x, parties, bits))
    assert torch.equal(got, wanted & low)
    price, row = weight_mask.product_price(x.numel(), wanted.numel(), parties, bits), counted.rows["product"]
    assert (row.rounds, row.bits_sent, row.received_bits) == (
        parties * price.rounds,
        parties * price.bits,
        price.offline_bits,
    )


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("bits", [30, 54, 64])
def test_rows_are_opened_once_for_their_squares_and_a_product(bits: int, parties: int) -> None:
    torch.manual_seed(bits)
    x, y = torch.randint(-(2**63), 2**63 - 1, (3, 4, 7)), torch.randint(-(2**63), 2**63 - 1, (3, 4, 1))

    def both(session: Session, one: Tensor, other: Tensor) -> Tensor:
        rows = beaver.OpenedRows(session, one, bits)
        squares = rows.squares()
        return torch.cat([squares, rows.times(other)], -1)

    with meter.meter() as counted:
        got = run(make_sessions(parties), both, 64, share(x, parties), noisy(y, parties, bits))
    assert torch.equal(got[..., :1], (x * x).sum(-1, keepdim=True))
    assert not bool((((got[..., 1:] - x * y) << (64 - bits)) != 0).any())
    price = beaver.rows_price(x.numel(), y.numel(), parties, bits)
    assert (counted.total.rounds, counted.total.bits_sent) == (parties * price.rounds, parties * price.bits)
    assert counted.total.received_bits == price.offline_bits


def test_a_bit_less_or_another_product_of_masks_is_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutation fails what is checked above."""
    torch.manual_seed(0)
    x, y = torch.randint(0, 1 << 20, (500,)), torch.randint(0, 1 << 20, (500,))

    def product(session: Session, one: Tensor, other: Tensor) -> Tensor:
        return beaver.product(session, "mul", one, other, {}, 19)

    def got() -> Tensor:
        return run(make_sessions(2), product, 20, noisy(x, 2, 20), noisy(y, 2, 20))

    assert torch.equal(got() & ((1 << 19) - 1), x * y & ((1 << 19) - 1))
    assert not torch.equal(got(), x * y & ((1 << 20) - 1))
    monkeypatch.setattr(Triple, "derive", lambda self, a, b: {"c": a.long() * b.long() + 1})
    assert not bool((got() & ((1 << 19) - 1) == x * y & ((1 << 19) - 1)).any())
