"""Several thresholds of one opening: every value under every mask at every threshold of small rings, and mutations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from hummingbird import cost, kernels
from hummingbird.bits import BitWindow
from hummingbird.channel import meter
from hummingbird.cost import Cost
from hummingbird.kernels.shares.packing import plain
from hummingbird.mpc.correlations.request import Material, Request, expand
from hummingbird.mpc.protocols import interfaces as comparisons
from hummingbird.mpc.protocols import thresholds
from hummingbird.mpc.protocols.masked import MaskedLaw
from hummingbird.mpc.protocols.registry import PROTOCOLS, named
from hummingbird.mpc.protocols.step_tables import LATENCY, ROUND_BITS, TableChoice
from hummingbird.mpc.protocols.thresholds import MaskedThresholds
from hummingbird.mpc.session.session import Session
from hummingbird.ring import SCALE
from tests.mpc.protocols.test_masked import check, opened_sum
from tests.support.chance import DEVIATIONS
from tests.support.covering import covering
from tests.support.dealers import next_turn
from tests.support.parties import sessions as make_sessions
from tests.support.parties import share, together


def run(
    sessions: list[Session], x: Tensor, knots: Sequence[int], k: int, m: int, ring: int = 64, tables: int | None = None
) -> tuple[Tensor, Tensor]:
    """Values that all parties' shares of relu(x - t), (J, n), and of x - t_0 stand for."""
    return opened(sessions, x, lambda s, v: thresholds.relus(s, v, knots, 0, k, m, ring, tables))


def run_squares(
    sessions: list[Session], x: Tensor, knots: Sequence[int], k: int, m: int, tables: int | None = None
) -> tuple[Tensor, Tensor]:
    """Values that all parties' shares of relu(x - t) and of its square stand for, (J, n) each."""
    return opened(sessions, x, lambda s, v: thresholds.squares(s, v, knots, 0, k, m, tables))


def opened(
    sessions: list[Session], x: Tensor, protocol: Callable[[Session, Tensor], tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """The value that the parties' results stand for; the sessions are closed."""
    shares = zip(sessions, share(x, len(sessions)), strict=True)
    calls = [lambda s=s, v=v: protocol(s, v) for s, v in shares]
    try:
        return opened_sum(together(calls))
    finally:
        for session in sessions:
            session.channel.close()


def masks(session: Session, request: MaskedThresholds) -> Tensor:
    """The lambdas that these sessions' next request, which is this one, will hold."""
    dealer: Any = session.dealer
    turn = next_turn(dealer, request)
    words = [plain(expand(request, turn, seed, rank)["mask"]).long() for rank, seed in enumerate(dealer._seeds)]
    return sum(words[1:], words[0].clone()) & ((1 << request.k) - 1)


def every_pair(
    session: Session, knots: Sequence[int], k: int, m: int, tables: int, squares: int = 0
) -> tuple[Tensor, Tensor]:
    """Values x such that every x of [-2^(k-1), 2^(k-1)) meets every lambda; and the lambdas."""
    size = 1 << k
    count = 2 * size * size + 64 * size
    mask = masks(session, MaskedThresholds(count, len(knots), k, m, tables, 64, squares))
    order, often = torch.argsort(mask, stable=True), torch.bincount(mask, minlength=size)
    x = torch.empty_like(mask)
    x[order] = (torch.arange(count) - (often.cumsum(0) - often)[mask[order]]) % size - size // 2
    assert torch.bincount((x + size // 2) * size + mask, minlength=size * size).min() >= 1, "a pair is missing"
    return x, mask


WINDOWS = [(k, m) for k in (2, 3, 4) for m in range(k)]
WINDOWS += [pytest.param(5, m, marks=[] if m == 2 else pytest.mark.slow) for m in range(5)]


@pytest.mark.parametrize(("k", "m"), WINDOWS)
def test_every_value_under_every_mask_at_every_threshold(k: int, m: int) -> None:
    """Inside the window a comparison is right; inside and outside it is the law with the same u for all thresholds."""
    knots = list(range(-(1 << k), 1 << k))  # twice around the ring: also values that leave the window
    for tables in range(1, k - m + 1):
        for parties in (2, 3) if tables in (1, k - m) and k == 4 else (2,):
            sessions = make_sessions(parties)
            x, mask = every_pair(sessions[0], knots, k, m, tables)
            pairs = zip(sessions, share(x, parties), strict=True)
            how = knots, 0, k, m, 64, tables
            parts = together([lambda s=s, v=v, how=how: thresholds.steps(s, v, *how) for s, v in pairs])
            bits, y, z = (sum(shares[1:], shares[0].clone()) for shares in zip(*parts, strict=True))
            for knot, step, found in zip(knots, bits, y, strict=True):
                bit, value = MaskedLaw(k, m, parties).decide(x - knot, mask % (1 << m))
                assert torch.equal(found, bit * value) and torch.equal(step, bit.long()), (knot, tables)
                check(x - knot, found, value, k, m)
            assert torch.equal(z, MaskedLaw(k, m, parties).decide(x - knots[0], mask % (1 << m))[1])


@pytest.mark.parametrize(("k", "m"), WINDOWS)
def test_squares_of_every_value_under_every_mask_at_every_threshold(k: int, m: int) -> None:
    knots = list(range(-(1 << k), 1 << k))
    for tables, parties in {(1, 2), (1, 3), (k - m, 2)}:
        sessions = make_sessions(parties)
        x, mask = every_pair(sessions[0], knots, k, m, tables, 1)
        y, squared = run_squares(sessions, x, knots, k, m, tables)
        for knot, found, square in zip(knots, y, squared, strict=True):
            bit, value = MaskedLaw(k, m, parties).decide(x - knot, mask % (1 << m))
            assert torch.equal(found, bit * value) and torch.equal(square, bit * value * value), (knot, tables)


@pytest.mark.parametrize("parties", [2, 3, 4])
@pytest.mark.parametrize(("k", "m"), [(63, 0), (62, 55), (48, 0), (33, 7), (32, 0), (31, 24), (16, 8)])
def test_squares_in_wide_windows_are_right_mod_the_ring(parties: int, k: int, m: int) -> None:
    torch.manual_seed(k)
    edge, knots = (1 << (k - 1)) - (1 << m), [0, 5, -(1 << (k - 3))]
    x = torch.randint(-edge // 2, edge // 2, (2001,))
    y, squared = run_squares(make_sessions(parties), x, knots, k, m)
    for knot, found, square in zip(knots, y, squared, strict=True):
        check(x - knot, found, x - knot, k, m)
        assert torch.equal(square, found * found)


@covering("parties, k, m", [2, 3, 4], [(64, 0), (63, 0), (48, 0), (33, 7), (64, 57), (20, 12), (24, 0)])
def test_wide_windows(parties: int, k: int, m: int) -> None:
    torch.manual_seed(k)
    edge = (1 << (k - 1)) - (1 << m)
    knots = [0, 1, -1, edge // 3, -edge // 3, (1 << m) + 1]
    x = torch.randint(-edge // 2, edge // 2, (2001,))
    for ring in (64, k, k - 5):
        modulus = (1 << ring) - 1 if ring < 64 else -1
        y, z = run(make_sessions(parties), x, knots, k, m, ring)
        for knot, found in zip(knots, y, strict=True):
            if ring >= k:
                check(x - knot, found & modulus, x - knot, k, m, ring)
            above = x - knot >= 1 << m
            assert not torch.any((found - (x - knot).clamp(min=0))[above | (x < knot)] & modulus)
        assert not torch.any((z - x) & modulus)


def test_no_comparison_differs_from_that_of_a_relu() -> None:
    """With the same mask, thresholds of one opening and one ReLU of x - t agree in each bit: the law is the same."""
    k, m, knots = 12, 5, [3, 70, -200]
    sessions = make_sessions(2)
    x = torch.randint(-500, 500, (5000,))
    mask = masks(sessions[0], MaskedThresholds(5000, 3, k, m, 1, 64, 0))
    y, _ = run(sessions, x, knots, k, m)
    pruned = [(found == 0) & (x > knot) for knot, found in zip(knots, y, strict=True)]
    assert all(bool(p.any()) for p in pruned)
    for knot, p in zip(knots, pruned, strict=True):
        inside = (x > knot) & (x < knot + 32)
        assert torch.equal(p, inside & (x - knot + mask % 32 < 32))


# Prices -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parties", [2, 3, 4])
@pytest.mark.parametrize("window", [(20, 12), (20, 0), (8, 0), (64, 0), (14, 2), (3, 2), (24, 0)])
def test_messages_are_what_cost_says(parties: int, window: tuple[int, int]) -> None:
    k, m = window
    for ring in (64, min(64, k + 16)):
        for knots in ([0], [0, 5], [-3, 1, 9, 11, 12]):
            sessions = make_sessions(parties)
            with meter.meter() as counted:
                run(sessions, torch.randint(-2, 2, (77,)), knots, k, m, ring=ring)
            predicted = thresholds.relus_price(77, k, m, ring, parties, knots=len(knots))
            assert counted.total.bits_sent == parties * predicted.bits
            assert counted.total.rounds == parties * predicted.rounds
            assert counted.total.received_bits == predicted.offline_bits


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("window", [(16, 8), (20, 0), (60, 0), (3, 1)])
def test_messages_of_squares_are_what_cost_says(parties: int, window: tuple[int, int]) -> None:
    for knots in ([0], [0, 5], [-3, 1, 9]):
        sessions = make_sessions(parties)
        with meter.meter() as counted:
            run_squares(sessions, torch.randint(-2, 2, (77,)), knots, *window)
        predicted = thresholds.squares_price(77, *window, parties, knots=len(knots))
        assert counted.total.bits_sent == parties * predicted.bits
        assert counted.total.rounds == parties * predicted.rounds
        assert counted.total.received_bits == predicted.offline_bits
        without = thresholds.relus_price(77, *window, 64, parties, knots=len(knots))
        assert (predicted.rounds, predicted.bits) == (without.rounds, without.bits)


def test_a_threshold_more_takes_two_bits_online_and_no_table() -> None:
    n = 8000
    for knots in (1, 2, 6):
        price = thresholds.relus_price(n, 20, 12, 36, 2, knots=knots)
        assert (price.rounds, price.bits - 2 * 8 * cost.HEADER_BYTES) == (2, n * (20 + 2 * knots))
        assert price.offline_bits == n * (256 + 16 + knots * (3 * 36 - 20))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("aim", [LATENCY, TableChoice("throughput"), TableChoice("throughput", 0.01)], ids=str)
@pytest.mark.parametrize("window", [BitWindow(20, 12), BitWindow(24, 0), BitWindow(64, 0)], ids=str)
def test_one_opening_is_never_dearer_than_many(protocol: str, aim: TableChoice, window: BitWindow) -> None:
    compare = named(protocol)(window, 64, 64, aim)
    for knots in (2, 3, 34):
        one, many = compare.cost(10_000, SCALE, 2, knots), compare.cost(10_000 * knots, SCALE, 2)
        assert one.rounds <= many.rounds
        if protocol == "gmw":
            assert one == many
        elif aim == LATENCY:
            assert one.bits < many.bits and one.offline_bits < many.offline_bits
        else:
            assert 2 * one.bits + aim.dealer * one.offline_bits < 2 * many.bits + aim.dealer * many.offline_bits


@pytest.mark.parametrize(
    "aim", [TableChoice("throughput"), TableChoice("throughput", 0.1), TableChoice("throughput", 4.0)], ids=str
)
def test_the_tables_are_the_cheapest_in_all_for_so_many_knots(aim: TableChoice) -> None:
    n = 1 << 16
    for w, knots in ((8, 1), (8, 2), (8, 34), (16, 2), (24, 3)):

        def price(count: int, w: int = w, knots: int = knots) -> float:
            found: Cost = thresholds.relus_price(n, 32, 32 - w, 64, 2, count, knots)
            return 2 * found.bits + aim.dealer * found.offline_bits + ROUND_BITS * n * found.rounds

        fitting = [count for count in range(1, w + 1) if -(-w // count) <= 8]
        assert price(aim.tables(w, 2, knots)) <= min(map(price, fitting)) * (1 + 1e-3)
    assert TableChoice("throughput").tables(8, 2, 34) < TableChoice("throughput").tables(8, 2, 1)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_large_inputs_are_compared_in_parts_at_the_price(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparisons, "AT_ONCE", 64)
    compare, knots, x = named(protocol)(BitWindow(20, 0)), [0, 1 << 16, -7], torch.randint(-(1 << 17), 1 << 17, (5, 13))
    sessions = make_sessions(2)
    calls = [lambda s=s, v=v: compare.above(s, v, knots, SCALE) for s, v in zip(sessions, share(x, 2), strict=True)]
    with meter.meter() as counted:
        y, z = opened_sum(together(calls))
    assert torch.equal(z, x)
    assert torch.equal(y, torch.stack([(x - knot).clamp(min=0) for knot in knots]))
    predicted = compare.cost(x.numel(), SCALE, 2, len(knots))
    assert predicted.rounds == 4 * compare.cost(21, SCALE, 2, 3).rounds
    total = counted.total
    assert (total.rounds, total.bits_sent) == (2 * predicted.rounds, 2 * predicted.bits)
    assert total.received_bits == predicted.offline_bits
    for session in sessions:
        session.channel.close()


# What is seen -------------------------------------------------------------------------------------------------------


def test_what_is_opened_is_uniform() -> None:
    """The opened words of a constant, the opened bits and the sums of any two are coins."""
    n, sessions, seen = 20_000, make_sessions(2), []
    exchange = sessions[0].channel.exchange

    def listen(*tensors: Tensor) -> Any:
        mine = [t.clone() for t in tensors]
        answer = exchange(*tensors)
        seen.append((mine[0], next(iter(answer.values()))[0]))
        return answer

    sessions[0].channel.exchange = listen  # type: ignore[method-assign]
    run(sessions, torch.full((n,), 3), [0, 2, 4, 1 << 14], 20, 12)
    assert len(seen) == 2
    words = kernels.open_words(list(seen[0]), n, 20)
    bits = [(words >> place) & 1 for place in range(20)]
    public = (seen[1][0] ^ seen[1][1]).reshape(8, -1)
    bits += [kernels.from_bits(plane, n) for plane in public]
    for i, column in enumerate(bits):
        for other in bits[i + 1 :]:
            assert abs(int((column ^ other).sum()) - n / 2) < DEVIATIONS * n**0.5 / 2
        assert abs(int(column.sum()) - n / 2) < DEVIATIONS * n**0.5 / 2


# Mutations: any wrong share, and any wrong entry of a table, changes a result ----------------------------------------


def wrong_results(
    change: Callable[[Request[Any], dict[str, Tensor]], None], k: int, m: int, tables: int, squares: bool = False
) -> int:
    """How many of all results come out wrong when `change` alters party 0's material."""
    knots, sessions = [-1, 0, 2], make_sessions(2)
    x, mask = every_pair(sessions[0], knots, k, m, tables, int(squares))
    correlation = sessions[0].dealer.correlation

    def altered(request: Request[Any]) -> Material:
        material = correlation(request)
        change(request, material.shares)
        return material

    sessions[0].dealer.correlation = altered  # type: ignore[method-assign]
    law = MaskedLaw(k, m, 2)
    y = torch.stack([bit * z for bit, z in (law.decide(x - knot, mask % (1 << m)) for knot in knots)])
    if squares:
        return int((run_squares(sessions, x, knots, k, m, tables)[1] != y * y).sum())
    return int((run(sessions, x, knots, k, m, tables=tables)[0] != y).sum())


RELUS = ["bits", "carry", "choice", "wrap", "product"]
SQUARES = [*RELUS, "square", "choice_square", "wrap_product"]


@pytest.mark.parametrize(("field", "squares"), [*((f, False) for f in RELUS), *((f, True) for f in SQUARES)], ids=str)
def test_any_wrong_share_shows(field: str, squares: bool) -> None:
    def spoil(request: Request[Any], shares: dict[str, Tensor]) -> None:
        if request.kind == "masked_thresholds":
            shares[field] ^= 1

    assert wrong_results(lambda request, shares: None, 5, 2, 1, squares) == 0
    assert wrong_results(spoil, 5, 2, 1, squares) > 0


@pytest.mark.parametrize("entry", range(16))
def test_any_wrong_table_entry_shows(entry: int) -> None:
    def flip(request: Request[Any], shares: dict[str, Tensor]) -> None:
        if request.kind == "masked_thresholds":
            shares["table_0"].view(-1, 2)[:, entry // 8] ^= 1 << (entry % 8)

    assert wrong_results(flip, 4, 0, 1) > 0


def test_a_mask_of_another_threshold_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits of comparison j lifted with the product of comparison j + 1 are wrong: each has its own."""

    def turn(request: Request[Any], shares: dict[str, Tensor]) -> None:
        if request.kind == "masked_thresholds":
            shares["product"] = shares["product"].roll(1, 0).contiguous()

    assert wrong_results(turn, 5, 2, 1) > 0
