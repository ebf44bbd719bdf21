"""The lift to a larger ring: every value under every mask on small rings, wide ones at random, and what breaks it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hummingbird import kernels
from hummingbird.channel import meter
from hummingbird.kernels.shares.packing import plain
from hummingbird.mpc.correlations.request import expand
from hummingbird.mpc.protocols.lift import Lifting, lift, lift_price
from hummingbird.mpc.session.session import Session
from tests.support.chance import DEVIATIONS
from tests.support.dealers import next_turn
from tests.support.parties import sessions as make_sessions
from tests.support.parties import share, together


def lifted(sessions: list[Session], shares: list[Tensor], shift: int, k: int, ring: int) -> Tensor:
    """Values that the parties' results stand for, mod 2^ring and with its sign."""
    try:
        parts = together([lambda s=s, x=x: lift(s, x, shift, k, ring) for s, x in zip(sessions, shares, strict=True)])
    finally:
        for session in sessions:
            session.channel.close()
    return sum(parts[1:], parts[0]) << (64 - ring) >> (64 - ring)


def every_pair(session: Session, k: int, ring: int, edge: int) -> Tensor:
    """Values such that every one in [-edge, edge) meets every lambda of the next request."""
    dealer: Any = session.dealer
    size = 1 << k
    count = 2 * edge * (size + 8 * size // 10) + 64 * size
    request = Lifting(count, k, ring)
    turn = next_turn(dealer, request)
    words = [plain(expand(request, turn, seed, rank)["mask"]).long() for rank, seed in enumerate(dealer._seeds)]
    mask = sum(words[1:], words[0].clone()) & (size - 1)
    order = torch.argsort(mask, stable=True)
    start = torch.cumsum(torch.bincount(mask, minlength=size), 0) - torch.bincount(mask, minlength=size)
    x = torch.empty_like(mask)
    x[order] = (torch.arange(count) - start[mask[order]]) % (2 * edge) - edge
    assert torch.bincount((x + edge) * size + mask, minlength=2 * edge * size).min() >= 1, "a pair is missing"
    return x


def small_shares(x: Tensor, parties: int, bits: int) -> list[Tensor]:
    """Shares of x mod 2^bits, with noise above."""
    return share(x + (torch.randint(-(2**62), 2**62, x.shape) << bits) if bits < 64 else x, parties)


@pytest.mark.parametrize("parties", [1, 2, 3, 4])
@pytest.mark.parametrize(("k", "ring"), [(2, 2), (3, 8), (7, 7), (7, 8), (7, 40), (8, 64)])
def test_every_value_under_every_mask(parties: int, k: int, ring: int) -> None:
    sessions = make_sessions(parties)
    x = every_pair(sessions[0], k, ring, 1 << (k - 2))
    assert torch.equal(lifted(sessions, small_shares(x, parties, k), 0, k, ring), x)


def test_twice_as_large_a_value_is_not_lifted() -> None:
    """The check above can fail: beyond |z| < 2^(k - 2) top bits do not tell the wrap."""
    sessions = make_sessions(2)
    x = every_pair(sessions[0], 7, 40, 1 << 6)
    wrong = lifted(sessions, small_shares(x, 2, 7), 0, 7, 40) != x
    assert bool(wrong.any()) and not bool(wrong[(x >= -32) & (x <= 32)].any())


def test_the_carry_of_the_other_case_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    derive = Lifting.derive
    monkeypatch.setattr(
        Lifting, "derive", lambda self, mask: {**derive(self, mask), "wrapped": derive(self, mask)["carry"]}
    )
    sessions = make_sessions(2)
    x = every_pair(sessions[0], 7, 40, 32)
    assert not torch.equal(lifted(sessions, small_shares(x, 2, 7), 0, 7, 40), x)


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize(
    ("shift", "k", "ring"), [(20, 38, 64), (36, 22, 22), (1, 63, 64), (20, 44, 64), (0, 64, 64), (17, 30, 47)]
)
def test_wide_rings_within_the_rounding_of_every_party(parties: int, shift: int, k: int, ring: int) -> None:
    torch.manual_seed(shift)
    z = torch.randint(-(1 << (k - 2)) + parties, (1 << (k - 2)) - parties, (100_000,))
    x = (z << shift) + torch.randint(0, 1 << shift, z.shape)
    found = lifted(make_sessions(parties), small_shares(x, parties, k + shift), shift, k, ring) - z
    assert int(found.min()) >= -(parties // 2) and int(found.max()) <= 1 + parties // 2
    expected = ((x - (z << shift)).double() / 2.0**shift).mean()
    ties = parties * 2.0 ** -(shift + 1)  # are rounded up
    assert abs(float(found.double().mean() - expected)) < DEVIATIONS * (parties / 12 / 100_000) ** 0.5 + ties


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize(("shift", "k", "ring"), [(20, 38, 64), (20, 25, 41), (0, 7, 7)])
def test_what_is_sent_is_what_is_priced(parties: int, shift: int, k: int, ring: int) -> None:
    price = lift_price(1003, k, ring, parties)
    shares = [torch.zeros(1003, dtype=torch.int64)] * parties
    with meter.meter() as counted:
        lifted(make_sessions(parties), shares, shift, k, ring)
    assert counted.total.bits_sent == parties * price.bits
    assert counted.total.rounds == parties * price.rounds
    assert counted.total.received_bits == price.offline_bits


@pytest.mark.parametrize("value", [-32, 0, 31])
def test_the_opened_words_are_uniform(value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the value: 2^7 words, each about as often as the others (chi-squared, 127 degrees of freedom)."""
    seen: list[Tensor] = []
    opened = kernels.open_words

    def listen(frames: list[Tensor], n: int, width: int) -> Tensor:
        seen.append(opened(frames, n, width))
        return seen[-1]

    monkeypatch.setattr(kernels, "open_words", listen)
    lifted(make_sessions(2), share(torch.full((1 << 16,), value), 2), 0, 7, 40)
    counts = torch.bincount(seen[0], minlength=128).double()
    assert float(((counts - 512) ** 2 / 512).sum()) < 127 + 6 * (2 * 127) ** 0.5
