"""The masked opening: every value under every mask on small rings, random cases on wide ones, mutations that show."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hummingbird import cost, kernels
from hummingbird.bits import BitWindow
from hummingbird.channel import meter
from hummingbird.kernels.shares.packing import plain
from hummingbird.mpc.correlations.request import Material, Request, expand
from hummingbird.mpc.protocols import masked, step_tables
from hummingbird.mpc.protocols.masked import MaskedOpening
from hummingbird.mpc.session.session import Session
from hummingbird.ring import SCALE
from tests.support.chance import DEVIATIONS
from tests.support.covering import covering, every
from tests.support.dealers import next_turn
from tests.support.parties import compute, share, together
from tests.support.parties import sessions as make_sessions


def opened_sum(results: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """relu and value that the parties' shares stand for."""
    y, z = (sum(parts[1:], parts[0].clone()) for parts in zip(*results, strict=True))
    return y, z


def masks(session: Session, count: int, k: int, m: int) -> Tensor:
    """The lambdas that the next request of these sessions will hold."""
    dealer: Any = session.dealer
    request = MaskedOpening(count, k, m, step_tables.fewest_rounds(k - m), ring=64)
    turn = next_turn(dealer, request)
    words = [plain(expand(request, turn, seed, rank)["mask"]).long() for rank, seed in enumerate(dealer._seeds)]
    return sum(words[1:], words[0].clone()) & ((1 << k) - 1)


def every_pair(session: Session, k: int, m: int) -> tuple[Tensor, Tensor]:
    """Values x such that every x in [-2^(k-1), 2^(k-1)) meets every lambda; and the lambdas."""
    size = 1 << k
    count = size * size + 8 * size * size // 10 + 64 * size
    mask = masks(session, count, k, m)
    order = torch.argsort(mask, stable=True)
    start = torch.cumsum(torch.bincount(mask, minlength=size), 0) - torch.bincount(mask, minlength=size)
    x = torch.empty_like(mask)
    x[order] = (torch.arange(count) - start[mask[order]]) % size - size // 2
    assert torch.bincount((x + size // 2) * size + mask, minlength=size * size).min() >= 1, "a pair is missing"
    return x, mask


def check(x: Tensor, y: Tensor, z: Tensor, k: int, m: int, ring: int = 64) -> None:
    """The statement at the top of protocols/masked.py; outside its range nothing is said."""
    edge = (1 << (k - 1)) - (1 << m if m else 0)
    inside = (x >= -edge) & (x < edge)
    small = (x >= 0) & (x < 1 << m) if m else x == 0
    modulus = (1 << ring) - 1 if ring < 64 else -1
    assert torch.equal(z[inside] & modulus, x[inside] & modulus)
    certain = inside & ~small
    assert torch.equal(y[certain] & modulus, x[certain].clamp(min=0) & modulus)
    pruned = inside & small
    assert bool(((y[pruned] == 0) | ((y[pruned] - x[pruned]) & modulus == 0)).all())


def run(
    sessions: list[Session], x: Tensor, k: int, m: int, shift: int = 0, ring: int = 64, whole: bool = False
) -> tuple[Tensor, Tensor]:
    shares, how = share(x, len(sessions)), (shift, k, m, ring, None, whole)
    try:
        return opened_sum(
            together([lambda s=s, v=v: masked.relu(s, v, *how) for s, v in zip(sessions, shares, strict=True)])
        )
    finally:
        for session in sessions:
            session.channel.close()


@pytest.mark.parametrize("parties", [2, 3, 4])
@pytest.mark.parametrize(("k", "m"), [(8, 0), (8, 1), (8, 5), (8, 7), (5, 2), (1, 0), (2, 0)])
def test_every_value_under_every_mask_with_one_table(parties: int, k: int, m: int) -> None:
    assert step_tables.fewest_rounds(k - m) == 1
    sessions = make_sessions(parties)
    x, _ = every_pair(sessions[0], k, m)
    check(x, *run(sessions, x, k, m), k, m)


@covering("m, tables, parties", [0, 1, 3], range(2, 9), [2, 3, 4])
def test_every_value_under_every_mask_with_a_tree(
    parties: int, tables: int, m: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    k = 8
    if tables > k - m or (parties > 2 and tables not in (3, 4, k - m)):
        return
    monkeypatch.setattr(step_tables, "fewest_rounds", lambda w: tables)
    sessions = make_sessions(parties)
    x, _ = every_pair(sessions[0], k, m)
    check(x, *run(sessions, x, k, m), k, m)


def test_small_positive_values_do_both_and_the_upper_edge_is_not_promised() -> None:
    sessions = make_sessions(2)
    x, _ = every_pair(sessions[0], 8, 4)
    y, _ = run(sessions, x, 8, 4)
    pruned = (x > 0) & (x < 16)
    assert bool((y[pruned] == 0).any()) and bool((y[pruned] != 0).any())
    edge = x >= 128 - 16
    assert bool((y[edge] != x[edge]).any())
    assert not bool((y[(x < 0) & (x >= -112)] != 0).any())  # no negative value ever passes


@pytest.mark.parametrize("parties", [1, 2, 3])
def test_whoever_sees_the_opened_word_knows_the_threshold_of_pruning(
    parties: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SECURITY.md: 0 <= x < 2^m becomes 0 exactly if x <= opened word mod 2^m."""
    seen: list[Tensor] = []
    lift = kernels.lift

    def listen(opened: Tensor, *rest: Any) -> Any:
        seen.append(opened)
        return lift(opened, *rest)

    monkeypatch.setattr(kernels, "lift", listen)
    x = torch.arange(64).repeat(200)
    y, _ = run(make_sessions(parties), x, 14, 6)
    threshold = seen[0] & 63
    assert all(torch.equal(opened, seen[0]) for opened in seen)
    assert torch.equal(y, x.masked_fill(x <= threshold, 0))


@pytest.mark.parametrize(("parties", "pieces", "size"), every(3, [(3, 1, 50_000), (3, 5, 500_000), (2, 5, 500_000)]))
def test_ten_million_values_of_twenty_bits(parties: int, pieces: int, size: int) -> None:
    """5 * 10^6 for each number of parties, exact and with a window of 8 bits, in pieces; the quick tier has 10^5."""
    torch.manual_seed(parties)
    for m in (0, 12):
        for _ in range(pieces):
            x = torch.randint(-(1 << 19), 1 << 19, (size,))
            x[:4] = torch.tensor([0, 1, -1, (1 << 19) - 1 - (1 << m)])
            check(x, *run(make_sessions(parties), x, 20, m), 20, m)


@pytest.mark.parametrize("parties", [2, 3, 5])
@pytest.mark.parametrize(("k", "m"), [(64, 0), (63, 0), (48, 0), (33, 7), (64, 40), (64, 57), (17, 15)])
def test_wide_windows(parties: int, k: int, m: int) -> None:
    torch.manual_seed(k)
    edge = (1 << (k - 1)) - (1 << m)
    x = torch.randint(-edge, edge, (3001,))
    x[:4] = torch.tensor([0, -1, -edge, edge - 1])
    check(x, *run(make_sessions(parties), x, k, m), k, m)


@pytest.mark.parametrize("ring", [20, 21, 36, 62])
def test_the_result_is_lifted_as_far_as_asked(ring: int) -> None:
    x = torch.randint(-(1 << 19), 1 << 19, (5000,))
    y, z = run(make_sessions(2), x, 20, 0, ring=ring)
    check(x, y, z, 20, 0, ring)
    assert not torch.equal(z, x)  # above these bits it is noise: nothing more was dealt


@pytest.mark.parametrize("parties", [2, 3, 4])
def test_truncation_is_within_half_a_unit_per_party_and_unbiased(parties: int) -> None:
    """Shares are uniform: each party's rounding error is uniform in +-1/2 unit, of variance 1/12."""
    torch.manual_seed(1)
    n, shift = 40_000, 16
    x = torch.randint(-(1 << 35), 1 << 35, (n,))
    y, z = run(make_sessions(parties), x, 30, 0, shift=shift)
    error = z.double() - x.double() / 2**shift
    assert float(error.abs().max()) <= parties / 2
    assert abs(float(error.mean())) < DEVIATIONS * (parties / 12 / n) ** 0.5
    assert torch.equal(y, z.clamp(min=0))


@pytest.mark.parametrize("parties", [2, 3, 4])
@pytest.mark.parametrize(("k", "m"), [(8, 0), (8, 5), (5, 2)])
def test_every_value_under_every_mask_by_whole_shares(parties: int, k: int, m: int) -> None:
    sessions = make_sessions(parties)
    x, _ = every_pair(sessions[0], k, m)
    check(x, *run(sessions, x, k, m, whole=True), k, m)


@pytest.mark.parametrize(("ring", "shift"), [(64, 0), (36, 0), (40, 16), (20, 12)])
def test_whole_shares_are_right_in_all_bits_of_the_result(ring: int, shift: int) -> None:
    """And need none above: noise there changes nothing. z is rounded once by each party."""
    x = torch.randint(-(1 << 19), 1 << 19, (5000,)) << shift
    noise = torch.randint(-(1 << 20), 1 << 20, (5000,)) << ring + shift if ring + shift < 64 else 0
    y, z = run(make_sessions(2), x + noise, 20, 0, shift, ring, whole=True)
    check(z, y, z, 20, 0, ring)
    modulus = (1 << ring) - 1 if ring < 64 else -1
    off = (z - (x >> shift)) & modulus
    assert bool(((off <= 1) | (off == modulus)).all()) and (shift > 0 or not off.any())


def test_bits_above_k_plus_shift_do_not_matter() -> None:
    """A share that was truncated locally before is right mod 2^(64 - shift) only: the multiples vanish."""
    x = torch.randint(-(1 << 30), 1 << 30, (2000,))
    noise = torch.randint(-(1 << 20), 1 << 20, (2000,)) << 36
    y, _ = run(make_sessions(2), x + noise, 20, 0, shift=16)
    assert float((y - (x >> 16).clamp(min=0)).abs().max()) <= 2


@pytest.mark.parametrize("parties", [2, 3, 4])
@pytest.mark.parametrize("window", [(20, 12), (20, 0), (8, 0), (64, 0), (14, 2), (40, 3), (3, 2), (24, 0)])
def test_messages_are_what_cost_says(parties: int, window: tuple[int, int]) -> None:
    k, m = window
    for ring, whole in itertools.product((64, min(64, k + 16)), (False, True)):
        sessions = make_sessions(parties)
        with meter.meter() as counted:
            run(sessions, torch.randint(-2, 2, (77,)), k, m, ring=ring, whole=whole)
        predicted = masked.relu_price(77, k, m, ring, parties, whole=whole)
        assert counted.total.bits_sent == parties * predicted.bits
        assert counted.total.rounds == parties * predicted.rounds
        assert counted.total.received_bits == predicted.offline_bits


def test_one_table_costs_k_plus_two_bits_and_two_rounds() -> None:
    for k, m in ((20, 12), (8, 0), (30, 22)):
        price = masked.relu_price(8000, k, m, 64, 2)
        assert (price.rounds, price.bits - 2 * 8 * cost.HEADER_BYTES) == (2, 8000 * (k + 2))
    # 2^8 bits of table, r_b and r_b lambda in 64 bits, carry and r_s in 44: 59 bytes.
    assert masked.relu_price(8000, 20, 12, 64, 2).offline_bits == 8000 * (256 + 2 * 64 + 2 * 44)
    assert masked.relu_price(8000, 20, 12, 64, 2, whole=True).offline_bits == 8000 * (256 + 2 * 64 + 44)


# Mutations: any wrong bit of the material, or a wrong step of the tree, changes a result --------------------------


def wrong_results(
    change: Callable[[Request[Any], dict[str, Tensor]], None], k: int, m: int, whole: bool = False
) -> int:
    """How many of all (x, lambda) pairs come out wrong when `change` alters party 0's material."""
    sessions = make_sessions(2)
    x, _ = every_pair(sessions[0], k, m)
    correlation = sessions[0].dealer.correlation

    def altered(request: Request[Any]) -> Material:
        material = correlation(request)
        change(request, material.shares)
        return material

    sessions[0].dealer.correlation = altered  # type: ignore[method-assign]
    y, z = run(sessions, x, k, m, whole=whole)
    edge = (1 << (k - 1)) - (1 << m if m else 0)
    certain = (x >= -edge) & (x < edge) & ((x < 0) | (x >= 1 << m))
    return int(((y != x.clamp(min=0)) | (z != x))[certain].sum())


@pytest.mark.parametrize("entry", range(16))
def test_any_wrong_table_entry_shows(entry: int) -> None:
    def flip(request: Request[Any], shares: dict[str, Tensor]) -> None:
        if request.kind == "masked":
            shares["table_0"].view(-1, 2)[:, entry // 8] ^= 1 << (entry % 8)

    assert wrong_results(lambda request, shares: None, 4, 0) == 0
    assert wrong_results(flip, 4, 0) > 0


@pytest.mark.parametrize("field", ["choice_bits", "wrap_bits", "carry", "choice", "wrap", "product"])
def test_any_wrong_share_shows(field: str) -> None:
    def spoil(request: Request[Any], shares: dict[str, Tensor]) -> None:
        if request.kind == "masked":
            spoiled = plain(shares[field]).clone()
            shares[field] = spoiled ^ 1

    assert wrong_results(spoil, 6, 2) > 0
    if field != "carry":
        assert wrong_results(spoil, 6, 2, whole=True) > 0


@pytest.mark.parametrize("kind", ["and", "and_pair"])
def test_any_wrong_borrow_shows(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_tables, "fewest_rounds", lambda w: 6)
    assert wrong_results(lambda request, shares: None, 6, 0) == 0
    products = {"and": ["c"], "and_pair": ["pg", "pq"]}[kind]
    for field in products:

        def spoil(request: Request[Any], shares: dict[str, Tensor], field: str = field) -> None:
            if request.kind == kind:
                shares[field][-1] ^= 0xFF

        assert wrong_results(spoil, 6, 0) > 0


def test_what_is_opened_is_uniform() -> None:
    """The opened words of a constant, and the two opened bits, look like coins."""
    n, sessions = 20_000, make_sessions(2)
    seen: list[Tensor] = []
    exchange = sessions[0].channel.exchange

    def listen(*tensors: Tensor) -> Any:
        mine = [t.clone() for t in tensors]
        answer = exchange(*tensors)
        seen.append((mine[0], next(iter(answer.values()))[0]))  # type: ignore[arg-type]
        return answer

    sessions[0].channel.exchange = listen  # type: ignore[method-assign]
    run(sessions, torch.full((n,), 3), 20, 12)
    words = kernels.open_words(list(seen[0]), n, 20)
    bits = [(words >> place) & 1 for place in range(20)]
    public = seen[1][0] ^ seen[1][1]
    bits += [kernels.from_bits(plane, n) for plane in public]
    for column in bits:
        assert abs(int(column.sum()) - n / 2) < DEVIATIONS * n**0.5 / 2


def test_one_party_computes_the_same() -> None:
    x = torch.randint(-(1 << 19), 1 << 19, (1000,))
    ((y, z),) = compute(1, lambda s, v: masked.relu(s, v, 0, 20, 0), [x])
    assert torch.equal(z, x) and torch.equal(y, x.clamp(min=0))


def test_no_more_bits_are_opened_than_are_valid() -> None:
    """20 bits are right, of which 4 are a surplus of fraction: a window up to bit 30 is cut off at 16."""
    comparison = masked.Masked(BitWindow(30, 8), valid=20)
    assert comparison.k(SCALE) == 20 and comparison.k(SCALE + 4) == 16
    assert comparison.width(SCALE + 4) == 8 and comparison.law(SCALE + 4, 2).k == 16


def test_one_threshold_is_taken_off_once() -> None:
    """Not by every party."""
    opened, comparison, x = make_sessions(3), masked.Masked(BitWindow(20, 0)), torch.arange(-50, 50)
    parts = zip(opened, share(x, 3), strict=True)
    try:
        y, z = opened_sum(together([lambda s=s, v=v: comparison.above(s, v, [7], SCALE) for s, v in parts]))
    finally:
        for session in opened:
            session.channel.close()
    assert torch.equal(y[0], (x - 7).clamp(min=0)) and torch.equal(z, x - 7)
