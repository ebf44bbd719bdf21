"""Windows with a q: every value under every mask and rounding on small rings, counted messages, mutations that show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor, nn

import hummingbird
from hummingbird.bits import BitWindow
from hummingbird.channel import meter
from hummingbird.errors import ConfigError
from hummingbird.mpc.protocols.gmw import Gmw, GmwLaw
from hummingbird.mpc.protocols.interfaces import Comparison
from hummingbird.mpc.protocols.lines import Lines
from hummingbird.mpc.protocols.masked import Masked, MaskedLaw
from hummingbird.mpc.protocols.step_tables import AIMS, TableChoice
from hummingbird.mpc.session.session import Session
from hummingbird.ring import SCALE
from tests.mpc.protocols import test_lines
from tests.mpc.protocols.test_masked import masks, opened_sum
from tests.support.chance import DEVIATIONS
from tests.support.covering import covering, every
from tests.support.parties import sessions as make_sessions
from tests.support.parties import share, together

SMALL = [(9, 3, 2), (9, 0, 2), (8, 1, 3), (9, 4, 4), (7, 2, 1)]  # k, m, q


def run(opened: list[Session], comparison: Comparison, shares: list[Tensor], scale: int) -> tuple[Tensor, Tensor]:
    try:
        return opened_sum(
            together([lambda s=s, v=v: comparison.relu(s, v, scale) for s, v in zip(opened, shares, strict=True)])
        )
    finally:
        for session in opened:
            session.channel.close()


def every_value(
    parties: int, k: int, m: int, q: int, scale: int, one_round: bool = False
) -> tuple[list[Session], list[Tensor], Tensor]:
    """Sessions, shares of every x in [-2^(k-1), 2^(k-1)) with `scale` bits of fraction, under every mask and every
    rounding of party 1's share; and the masks. one_round: by lines, of which one request must hold all.
    """
    opened, cut, low = make_sessions(parties), scale - SCALE + q, max(m, q) - q
    pairs = (1 << k - q) * (1 << k)  # of a mask and a value in units of 2^-16
    count = 16 * pairs << q - 1
    if one_round:
        lam = test_lines.masks(opened[0], Lines(count, k - q, low, 64 - q, 1))
    else:
        lam = masks(opened[0], count, k - q, low)
    order = torch.argsort(lam, stable=True)
    start = torch.cumsum(torch.bincount(lam), 0) - torch.bincount(lam)
    turn = torch.empty_like(lam)
    turn[order] = torch.arange(count) - start[lam[order]]
    x = (turn % (1 << k)) - (1 << k - 1) << scale - SCALE
    shares = share(x, parties)
    # Party 1's fraction goes through all its values, slower than x does.
    shift = (turn // (1 << k)) % (1 << cut) - shares[1] % (1 << cut)
    shares[0], shares[1] = shares[0] - shift, shares[1] + shift
    seen = torch.bincount(((lam << k) + (turn % (1 << k))) * (1 << cut) + shares[1] % (1 << cut))
    assert len(seen) == pairs << cut and seen.min() >= 1, "a case is missing"
    return opened, shares, lam


def expected(shares: list[Tensor], lam: Tensor, comparison: Comparison, scale: int) -> tuple[Tensor, Tensor]:
    """The law without q, of the sum of the rounded shares, moved up: the definition."""
    window, cut = comparison.window, scale - SCALE + comparison.window.q
    r = sum((s + (1 << cut >> 1) >> cut for s in shares), torch.zeros_like(lam))
    low = window.low - window.q
    bit, z = MaskedLaw(window.k - window.q, low, len(shares)).decide(r, lam & (1 << low) - 1)
    return bit * z << window.q, z << window.q


@covering("window, parties, aim", SMALL, [2, 3], ["latency", "throughput"], quick=[(9, 0, 2), (8, 1, 3), (7, 2, 1)])
def test_every_value_under_every_mask_and_rounding(window: tuple[int, int, int], parties: int, aim: str) -> None:
    opened, shares, lam = every_value(parties, *window, SCALE)
    comparison = Masked(BitWindow(*window), aim=TableChoice.of(aim))
    y, z = run(opened, comparison, shares, SCALE)
    relu, value = expected(shares, lam, comparison, SCALE)
    assert torch.equal(y, relu) and torch.equal(z, value)
    assert not bool((z % (1 << window[2])).any())


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("window", [(6, 2, 1), (6, 0, 2), (7, 1, 3), (6, 3, 3)])
def test_every_value_under_every_mask_and_rounding_in_one_round(window: tuple[int, int, int], parties: int) -> None:
    opened, shares, lam = every_value(parties, *window, SCALE, one_round=True)
    comparison = Masked(BitWindow(*window), aim=TableChoice("rounds"))
    y, z = run(opened, comparison, shares, SCALE)
    relu, value = expected(shares, lam, comparison, SCALE)
    assert torch.equal(y, relu) and torch.equal(z, value)


def test_the_result_is_dealt_in_q_bits_less_than_are_right() -> None:
    """With a bit more fraction than at rest: right mod 2^ring, though ring - q bits are dealt."""
    k, m, q, scale, ring = 8, 4, 3, SCALE + 1, 13
    opened, shares, lam = every_value(2, k, m, q, scale)
    comparison = Masked(BitWindow(k, m, q), ring=ring)
    y, z = run(opened, comparison, shares, scale)
    relu, value = expected(shares, lam, comparison, scale)
    assert torch.equal(y % (1 << ring), relu % (1 << ring)) and torch.equal(z % (1 << ring), value % (1 << ring))
    assert not torch.equal(z, value)


def unlowered(self: Masked, scale: int, knots: int = 1) -> tuple[int, int, int]:
    """`Masked._bits` that forgets that the bits that do not decide are fewer by q."""
    return self.k(scale) - self.window.q, self.window.low, max(self.ring, self.k(scale)) - self.window.q


def unrounded(self: Masked, scale: int, knots: int = 1) -> tuple[int, int, int]:
    """`Masked._bits` that opens the bits that are rounded away."""
    return self.k(scale), self.window.low, max(self.ring, self.k(scale))


@pytest.mark.parametrize("mutation", every(2, [unlowered, unrounded]))
def test_a_wrong_cut_shows(mutation: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    opened, shares, lam = every_value(2, 9, 3, 2, SCALE)
    comparison = Masked(BitWindow(9, 3, 2))
    relu, value = expected(shares, lam, comparison, SCALE)
    monkeypatch.setattr(Masked, "_bits", mutation)
    monkeypatch.setattr(Masked, "tables", lambda *_: 1)
    y, z = run(opened, comparison, shares, SCALE)
    assert not (torch.equal(y, relu) and torch.equal(z, value))


@pytest.mark.parametrize("window", [(7, 3, 2), (6, 0, 2), (6, 2, 2), (7, 4, 1)])
def test_the_law_of_two_parties_counts_every_mask_and_rounding(window: tuple[int, int, int]) -> None:
    """For every value, decisions and results come as often as u has them: of r + 1, as both shares round half up.

    Here their last bit is 2^-16. Behind a linear layer it is 2^-36, and nothing to add.
    """
    k, m, q = window
    low = max(m, q)
    law = MaskedLaw(k, low, 2, q=q)
    u, half = torch.arange(1 << low), 1 << q >> 1
    share_of_one, mask = (t.reshape(-1) for t in torch.meshgrid(torch.arange(1 << q), torch.arange(1 << low - q),
                                                                indexing="ij"))  # fmt: skip
    for r in range(-(3 << k), 3 << k):
        rounded = (r - share_of_one + half >> q) + (share_of_one + half >> q)
        bit, z = MaskedLaw(k - q, low - q, 2).decide(rounded, mask)
        here = Counter(zip(bit.tolist(), (z << q).tolist(), strict=True))
        bit, z = law.decide(torch.full_like(u, r + 1), u)
        assert here == Counter(zip(bit.tolist(), z.tolist(), strict=True)), r


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("extra", [0, 4])
def test_gmw_rounds_what_it_has_decided(parties: int, extra: int) -> None:
    torch.manual_seed(parties)
    n, window = 30_000, BitWindow(12, 5, 3)
    x = torch.randint(-(1 << 11) + 128, (1 << 11) - 128, (n,)) << extra
    shares = share(x, parties)
    y, z = run(make_sessions(parties), Gmw(window), shares, SCALE + extra)
    error = z.double() - x.double() / 2**extra
    assert not bool((z % 8).any()) and float(error.abs().max()) < 8
    assert abs(float(error.mean())) < DEVIATIONS * 8 * (1 / n) ** 0.5 / 2
    low = sum(((s % (1 << 5 + extra)) for s in shares[1:]), torch.zeros_like(x))
    bit, _ = GmwLaw(12 + extra, 5 + extra, parties).decide(x, low)  # of the shares as they are
    assert torch.equal(y, bit * z)


@covering(
    "window, protocol, parties, aim, extra",
    list(product([(20, 12, 6), (20, 4, 7), (24, 0, 9), (64, 0, 6)], [Masked, Gmw])),
    [2, 3],
    AIMS,
    [0, 20],
)
def test_messages_are_what_the_price_says(
    window: tuple[int, int, int], protocol: type[Comparison], parties: int, aim: str, extra: int
) -> None:
    for ring in (64, 40):
        comparison = protocol(BitWindow(*window), ring=ring, aim=TableChoice.of(aim))
        opened = make_sessions(parties)
        with meter.meter() as counted:
            run(opened, comparison, share(torch.randint(-9, 9, (77,)), parties), SCALE + extra)
        predicted = comparison.cost(77, SCALE + extra, parties)
        assert counted.total.bits_sent == parties * predicted.bits
        assert counted.total.rounds == parties * predicted.rounds
        assert counted.total.received_bits == predicted.offline_bits


def test_q_takes_its_bits_off_everything() -> None:
    """[20:12) with q = 6: 14 + 2 bits for 20 + 2, and 16 for 22 in every part of the material but the table."""
    plain, rounded = (Masked(BitWindow(20, 12, q), ring=36).cost(8000, SCALE, 2) for q in (0, 6))
    assert plain.rounds == rounded.rounds == 2
    assert plain.bits - rounded.bits == 8000 * 6
    assert plain.offline_bits - rounded.offline_bits == 8000 * 2 * 6  # choice and product; carry and wrap have 16 left


@pytest.mark.parametrize(("window", "protocol"), [((20, 0, 16), Masked), ((8, 2, 7), Masked), ((64, 62, 16), Gmw)])
def test_windows_that_q_leaves_too_little_are_refused(window: tuple[int, int, int], protocol: type[Comparison]) -> None:
    comparison, scale = protocol(BitWindow(*window)), SCALE
    if window == (20, 0, 16):  # four bits are right, and q leaves them; with more fraction it does not
        comparison.check(scale)
        comparison.valid, scale = 24, SCALE + 7
    if protocol is Gmw:
        comparison.check(scale)
        scale += 2
    with pytest.raises(ConfigError):
        comparison.check(scale)


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("q", [4, 6])
def test_several_knots_are_taken_at_the_nearest_multiples(q: int, parties: int) -> None:
    """A clamp of x far above both ends gives low + high' - low', the ends' nearest multiples of 2^(q-16): exactly."""
    unit = 2.0 ** (q - SCALE)
    low, high = -1.75 * unit, 2.75 * unit  # nearest: -2 and 3; below: -2 and 2
    x = torch.arange(100, 164)[None] * unit
    for mode in ("exact", "fast"):
        out = hummingbird.simulate(nn.Hardtanh(low, high), BitWindow(24, 0, q), "masked", parties, mode, seed=1)(x)
        assert bool((out == low + 5 * unit).all()), mode
    inside = torch.tensor([[-1.0, 0.0, 1.0, 2.0]]) * unit
    out = hummingbird.simulate(nn.Hardtanh(low, high), BitWindow(24, 0, q), "masked", parties, "exact", seed=1)(inside)
    assert float((out - inside).abs().max()) <= 1.0 * parties / 2 * unit + 0.25 * unit
