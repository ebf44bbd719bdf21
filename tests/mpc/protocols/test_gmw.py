"""The reduced-ring comparison: exhaustive on small rings, random on the big one; the check itself can fail."""

from __future__ import annotations

import itertools

import pytest
import torch

from hummingbird import kernels
from hummingbird.bits import BitWindow
from hummingbird.channel import meter
from hummingbird.errors import ConfigError
from hummingbird.mpc.protocols import gmw
from hummingbird.mpc.protocols.gmw import Gmw
from hummingbird.mpc.protocols.truncation import select, truncate
from hummingbird.ring import SCALE
from tests.support.parties import compute, share, together
from tests.support.parties import sessions as make_sessions


def signs(parties: int, shares: list[torch.Tensor], low: int, w: int) -> torch.Tensor:
    """[x >= 0] as the protocol decides it, 0/1 int64."""
    results = compute(parties, lambda s, x: gmw.drelu(s, x, low, w), shares)
    total = results[0]
    for part in results[1:]:
        total = total ^ part
    return kernels.from_bits(total, shares[0].numel())


def every_sharing(ring_bits: int, parties: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """All secrets x of a small ring with all sharings of each: x in [-2^(r-1), 2^(r-1)), shares in [0, 2^r)."""
    size = 1 << ring_bits
    grid = torch.cartesian_prod(*[torch.arange(size)] * parties)
    x = grid.sum(1) % size
    return torch.where(x >= size // 2, x - size, x), [column.contiguous() for column in grid.unbind(1)]


def published_sign(shares: list[torch.Tensor], k: int, m: int) -> torch.Tensor:
    """The definition, from the shares themselves: the top bit of the sum of the cut shares mod 2^w is clear."""
    w = k - m
    total = sum(((s >> m) & ((1 << w) - 1) for s in shares), torch.zeros_like(shares[0])) & ((1 << w) - 1)
    return 1 - (total >> (w - 1))


@pytest.mark.parametrize(("ring_bits", "parties"), [(6, 2), (8, 2), (4, 3), (5, 3)])
def test_every_window_of_a_small_ring_follows_the_definition_and_the_published_bounds(
    ring_bits: int, parties: int
) -> None:
    x, shares = every_sharing(ring_bits, parties)
    for k, m in itertools.combinations(range(ring_bits, -1, -1), 2):
        got = signs(parties, shares, m, k - m)
        assert torch.equal(got, published_sign(shares, k, m)), f"[{k}:{m})"
        # Wrong only for 0 <= x < (N-1) 2^m, and within (N-1) 2^m of the lower edge -2^(k-1), where the cut sum falls
        # out below.
        half, slack = 1 << (k - 1), (parties - 1) << m
        inside = (x >= -half) & (x < half)
        exact = inside & ~((x >= 0) & (x < slack)) & ~(x < -half + slack)
        assert torch.equal(got[exact], (x[exact] >= 0).long()), f"[{k}:{m})"
        if m == 0:
            assert torch.equal(got[inside], (x[inside] >= 0).long())


def test_both_intervals_of_wrong_signs_do_occur() -> None:
    x, shares = every_sharing(8, 2)
    got = signs(2, shares, 2, 4)  # window [6:2): range -32..31
    pruned = (x >= 0) & (x < 4)
    edge = (x >= -32) & (x < -28)
    assert bool((got[pruned] == 0).any()) and bool((got[pruned] == 1).any())
    assert bool((got[edge] == 1).any()) and bool((got[edge] == 0).any())


def test_a_mutation_of_the_window_is_caught() -> None:
    x, shares = every_sharing(6, 2)
    for low, w in ((1, 6), (0, 5), (1, 5)):  # one bit too high, too narrow, cut in the wrong place
        assert not torch.equal(signs(2, shares, low, w), published_sign(shares, 6, 0))


@pytest.mark.parametrize("parties", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "window", [BitWindow(64, 0), BitWindow(20, 0), BitWindow(20, 12), BitWindow(18, 12), BitWindow(13, 12)]
)
def test_random_values_in_the_whole_ring(parties: int, window: BitWindow) -> None:
    torch.manual_seed(parties)
    half = 1 << min(window.k - 1, 61)
    x = torch.randint(-half, half, (1003,))
    shares = share(x, parties)
    assert torch.equal(signs(parties, shares, window.m, window.w), published_sign_wide(shares, window))


def published_sign_wide(shares: list[torch.Tensor], window: BitWindow) -> torch.Tensor:
    """`published_sign` with Python's integers, for windows up to 64 bits."""
    size = 1 << window.w
    out = []
    for parts in zip(*(s.tolist() for s in shares), strict=True):
        total = sum(((part % 2**64) >> window.m) % size for part in parts) % size
        out.append(int(total < size // 2))
    return torch.tensor(out)


@pytest.mark.parametrize("parties", [2, 3, 4])
@pytest.mark.parametrize("w", [1, 2, 3, 6, 8, 20, 48, 64])
def test_messages_are_what_cost_says(parties: int, w: int) -> None:
    n = 77
    opened = make_sessions(parties)
    shares = share(torch.randint(-100, 100, (n,)), parties)
    with meter.meter() as m:
        together([lambda s=s, x=x: gmw.drelu(s, x, 0, w) for s, x in zip(opened, shares, strict=True)])
    # All parties' threads report to the one meter of this process.
    predicted = gmw.drelu_price(n, w, parties)
    assert m.total.bits_sent == parties * predicted.bits
    assert m.total.rounds == parties * predicted.rounds
    assert m.total.received_bits == predicted.offline_bits


def test_cost_is_below_the_published_one() -> None:
    n = 10**6
    for w in (6, 8, 20, 64):
        ours = gmw.relu_price(n, w, 16, 2)
        assert ours.bits / n <= gmw.published_bits(w)
        assert ours.rounds <= (w - 1).bit_length() + 3
    assert round(gmw.relu_price(n, 8, 16, 2).bits / n) == 87  # 7 + 8 + 5 + 2 + 65, against 241 published
    assert gmw.published_bits(8) == 241 and gmw.published_bits(6) == 213


@pytest.mark.parametrize("parties", [2, 3, 4])
@pytest.mark.parametrize("shift", [0, 16, 30])
def test_select_multiplies_and_truncates_exactly(parties: int, shift: int) -> None:
    torch.manual_seed(shift + parties)
    x = torch.randint(-(2**61), 2**61, (999,))
    x[:6] = torch.tensor([0, 1, -1, 2**62 - 1, -(2**62), -(2**62) + 1])
    b = torch.randint(0, 2, (999,))
    bits = share(b, parties)  # low bits of additive shares are xor shares of the low bit
    packed = [kernels.pack_bits((part & 1).to(torch.uint8)) for part in bits]
    opened = make_sessions(parties)
    shares = share(x, parties)
    results = together(
        [lambda s=s, v=v, p=p: select(s, v, p, shift) for s, v, p in zip(opened, shares, packed, strict=True)]
    )
    product, value = (sum(part[1:], part[0].clone()) for part in zip(*results, strict=True))
    floor = x >> shift
    extra = value - floor
    assert bool(((extra == 0) | (extra == 1)).all())
    assert shift or bool((extra == 0).all())
    assert torch.equal(product, b * value)


@pytest.mark.parametrize("parties", [2, 3])
def test_truncate_is_exact_to_one_unit_at_the_edges_of_its_range(parties: int) -> None:
    x = torch.cat([torch.randint(-(2**62), 2**62, (500,)), torch.tensor([2**62 - 1, -(2**62), 0, -1])])
    results = compute(parties, lambda s, v: truncate(s, v, 16), share(x, parties))
    extra = sum(results[1:], results[0].clone()) - (x >> 16)
    assert bool(((extra == 0) | (extra == 1)).all())


def test_truncate_fails_outside_its_stated_range() -> None:
    x = torch.full((200,), -(2**62) - 2**61)  # x + 2^62 is negative: the top bit no longer tells the wrap
    results = compute(2, lambda s, v: truncate(s, v, 16), share(x, 2))
    extra = sum(results[1:], results[0].clone()) - (x >> 16)
    assert not bool(((extra == 0) | (extra == 1)).all())


def test_a_partys_own_share_is_the_threshold_of_pruning() -> None:
    """SECURITY.md: of two parties, each knows that 0 <= x < 2^m becomes 0 exactly if x is below its share mod 2^m."""
    torch.manual_seed(0)
    m, x = 6, torch.arange(64).repeat(200)
    shares = share(x, 2)
    first, second = compute(2, lambda s, h: gmw.relu(s, h, BitWindow(14, m), 0)[0], shares)
    for mine in shares:
        pruned = x < (mine & 63)
        assert torch.equal(first + second, x.masked_fill(pruned, 0))


def test_a_window_begins_at_bit_63_at_the_latest() -> None:
    """On shares with 15 more bits of fraction bit 48 is the last one of the ring; with 16 more it is none."""
    comparison = Gmw(BitWindow(64, 48))
    comparison.check(SCALE + 15)
    with pytest.raises(ConfigError, match="begins above the 64-bit ring"):
        comparison.check(SCALE + 16)
    Gmw(BitWindow(64, 20, 16)).check(SCALE + 43)
    with pytest.raises(ConfigError, match="16 more bits|44 more bits"):
        Gmw(BitWindow(64, 20, 16)).check(SCALE + 44)
