"""ReLUs in one round: every value under every mask at every threshold of small rings is the law's, and mutations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hummingbird
from hummingbird import cost, kernels
from hummingbird.bits import BitWindow
from hummingbird.channel import meter
from hummingbird.errors import DealerError
from hummingbird.graph import OPS, Step
from hummingbird.kernels.shares.packing import Packed, plain
from hummingbird.mpc.correlations.request import Material, Request, expand
from hummingbird.mpc.layers.comparing import Shares
from hummingbird.mpc.layers.layer import Spec
from hummingbird.mpc.plan.builders import BUILDERS
from hummingbird.mpc.plan.dry_run import dry_run
from hummingbird.mpc.protocols import lines
from hummingbird.mpc.protocols.lines import Lines
from hummingbird.mpc.protocols.masked import Masked, MaskedLaw
from hummingbird.mpc.protocols.step_tables import LATENCY, LINE_BITS, TableChoice
from hummingbird.mpc.session.session import Session
from hummingbird.ring import SCALE
from tests.support.chance import DEVIATIONS
from tests.support.covering import every
from tests.support.dealers import next_turn
from tests.support.parties import sessions as make_sessions
from tests.support.parties import share, together

ROUNDS = TableChoice("rounds")


def opened(sessions: list[Session], x: Tensor, run: Callable[[Session, Tensor], Any]) -> tuple[Tensor, Tensor | None]:
    """The values that all parties' results stand for; the sessions are closed."""
    try:
        calls = [lambda s=s, v=v: run(s, v) for s, v in zip(sessions, share(x, len(sessions)), strict=True)]
        results = together(calls)
    finally:
        for session in sessions:
            session.channel.close()
    y, z = ([part for part in column if part is not None] for column in zip(*results, strict=True))
    return sum(y[1:], y[0].clone()), sum(z[1:], z[0].clone()) if z else None


def masks(session: Session, request: Lines) -> Tensor:
    """The lambdas that these sessions' next request, which is this one, will hold."""
    dealer: Any = session.dealer
    turn = next_turn(dealer, request)
    words = [plain(expand(request, turn, seed, rank)["mask"]).long() for rank, seed in enumerate(dealer._seeds)]
    return sum(words[1:], words[0].clone()) & ((1 << request.k) - 1)


def every_pair(session: Session, k: int, m: int, ring: int, value: int) -> tuple[Tensor, Tensor]:
    """Values x such that every x of [-2^(k-1), 2^(k-1)) meets every lambda; and the lambdas."""
    size = 1 << k
    count = 2 * size * size + 64 * size
    mask = masks(session, Lines(count, k, m, ring, value))
    order, often = torch.argsort(mask, stable=True), torch.bincount(mask, minlength=size)
    x = torch.empty_like(mask)
    x[order] = (torch.arange(count) - (often.cumsum(0) - often)[mask[order]]) % size - size // 2
    assert torch.bincount((x + size // 2) * size + mask, minlength=size * size).min() >= 1, "a pair is missing"
    return x, mask


SMALL = [(k, m) for k in (1, 2, 3, 4, 5) for m in range(k)]


@pytest.mark.parametrize(("k", "m"), every(2, SMALL))
def test_every_value_under_every_mask_at_every_threshold_is_the_law(k: int, m: int) -> None:
    """Inside and outside of the window, with the same random number for all thresholds, and without the value too."""
    knots = list(range(-(1 << k), 1 << k))  # twice around the ring: also values that leave the window
    for parties, value, ring in (
        ((2, True, 64), (3, False, k), (4, True, 40), (2, True, k - 2)) if k > 3 else ((2, True, 64),)
    ):
        sessions = make_sessions(parties)
        x, mask = every_pair(sessions[0], k, m, ring, int(value))
        y, z = opened(sessions, x, lambda s, v, how=(k, m, ring, value): lines.relus(s, v, knots, 0, *how))
        modulus, law, u = (1 << ring) - 1 if ring < 64 else -1, MaskedLaw(k, m, parties), mask % (1 << m)
        for knot, found in zip(knots, y, strict=True):
            bit, exact = law.decide(x - knot, u)
            assert not ((found - bit * exact) & modulus).any(), knot
        assert (z is not None) == value
        assert z is None or not ((z - law.decide(x - knots[0], u)[1]) & modulus).any()


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize(("k", "m"), [(64, 58), (63, 60), (40, 34), (33, 25), (32, 26), (20, 14), (8, 0)])
def test_wide_values_are_right_mod_the_ring(parties: int, k: int, m: int) -> None:
    edge = (1 << (k - 1)) - (1 << m)
    x = torch.randint(-edge, edge, (3001,))
    x[:3] = torch.tensor([-1, -edge, edge - 1])
    for ring in {k, min(64, k + 17), 64}:
        y, z = opened(make_sessions(parties), x, lambda s, v, ring=ring: lines.relus(s, v, [0], 0, k, m, ring, True))
        modulus = (1 << ring) - 1 if ring < 64 else -1
        small = (x >= 0) & (x < 1 << m)
        assert z is not None and not ((z - x) & modulus).any()
        assert not ((y[0] - x.clamp(min=0)) & modulus)[~small].any()
        assert bool((((y[0] & modulus) == 0) | ((y[0] - x) & modulus == 0))[small].all())


@pytest.mark.parametrize("window", [(20, 14), (20, 14, 6), (18, 12, 12), (14, 12, 3)])
@pytest.mark.parametrize("parties", [2, 3])
def test_a_comparison_in_one_round_decides_as_one_in_two(window: tuple[int, ...], parties: int) -> None:
    """With scale and q: the shares are rounded in the same way, so results differ in their random numbers alone."""
    extra = 8
    x = torch.randint(-1 << window[0] - 2, 1 << window[0] - 2, (4000,)) << extra
    one, two = (Masked(BitWindow(*window), ring=44, aim=aim) for aim in (ROUNDS, LATENCY))
    assert one.law(SCALE + extra, parties) == two.law(SCALE + extra, parties)
    assert one.in_one_round(SCALE + extra) and not two.in_one_round(SCALE + extra)
    for compare in (one, two):
        y, z = opened(make_sessions(parties), x, lambda s, v, c=compare: c.above(s, v, (0, 4096), SCALE + extra))
        modulus, q = (1 << 44) - 1, compare.window.q
        assert z is not None
        value = (z << 20) >> 20
        assert int((value - (x >> extra)).abs().max()) <= (parties << q) // 2 + 1
        assert not (value & ((1 << q) - 1)).any()
        for knot, found in zip((0, 4096), y, strict=True):
            near = (knot + (1 << q >> 1) >> q) << q
            passes = (found & modulus) != 0
            assert not ((found - (value - near) * passes) & modulus).any()
            assert bool(passes[value - near >= 1 << window[1]].all()) and not passes[value < near].any()


def test_wider_windows_and_whole_shares_keep_the_other_forms() -> None:
    """A rule decides by the width that is left, not by the layer."""
    wide = Masked(BitWindow(20, 12), aim=ROUNDS)
    assert not wide.in_one_round(SCALE) and wide.variant(SCALE, 2, 1) == "table 8"
    cut = Masked(BitWindow(20, 12), valid=18, aim=ROUNDS)
    assert cut.width(SCALE) == 6 and cut.in_one_round(SCALE) and cut.variant(SCALE, 2, 1) == "lines 6"
    for ring, fits in ((40, True), (41, False)):
        assert Masked(BitWindow(19, 12), ring=ring, aim=ROUNDS).in_one_round(SCALE) == fits
    assert LATENCY.tables(8, 2) == ROUNDS.tables(8, 2) and not LATENCY.in_one_round(2)
    whole = [Masked(BitWindow(18, 12), aim=aim).may_be_whole(SCALE) for aim in (LATENCY, ROUNDS)]
    assert whole == [True, False]


@pytest.mark.parametrize("parties", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 77, 300])
def test_messages_are_what_the_price_says(parties: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "AT_ONCE", 16 << 6)  # requests of 16 values, messages of 128
    x = torch.randint(-(1 << 17), 1 << 17, (count,))
    for window, knots, value in (((18, 12), (0,), False), ((18, 12), (0, 6 << 16), True), ((6, 0), (0,), True)):
        comparison, sessions = Masked(BitWindow(*window), ring=36, aim=ROUNDS), make_sessions(parties)
        with meter.meter() as counted:
            if value:
                opened(sessions, x, lambda s, v, c=comparison, t=knots: c.above(s, v, t, SCALE))
            else:
                opened(sessions, x, lambda s, v, c=comparison, t=knots: (c.relus(s, v, t, SCALE), None))
        predicted = comparison.cost(count, SCALE, parties, len(knots), value)
        assert counted.total.bits_sent == parties * predicted.bits
        assert counted.total.rounds == parties * predicted.rounds == parties * (parties > 1) * max(1, -(-count // 128))
        assert counted.total.received_bits == predicted.offline_bits


UNIT = 2.0**-SCALE
LAYERS: dict[str, tuple[dict[str, Any], int]] = {  # attributes, and rounds
    "relu": ({}, 1),
    "leaky_relu": ({"slope": 0.5}, 1),
    "prelu": ({"weight": torch.tensor([0.25, -2.0, 3.0])}, 1),
    "hardtanh": ({"low": -5 * UNIT, "high": 7 * UNIT}, 1),
    "abs": ({}, 1),
    "maximum": ({"value": 3 * UNIT}, 1),
    "minimum": ({"value": -3 * UNIT}, 1),
    "max_pool": ({"kernel": [2, 2], "stride": [2, 2], "padding": [0, 0], "dilation": [1, 1], "ceil_mode": False}, 2),
}


@pytest.mark.parametrize("window", [BitWindow(6, 0), BitWindow(9, 3, 3)])
@pytest.mark.parametrize("op", LAYERS)
def test_layers_take_one_round_and_what_their_formula_costs(op: str, window: BitWindow) -> None:
    """Windows without undecided values: in multiples of 2^q results are torch's, exactly."""
    attrs, rounds = LAYERS[op]
    attrs = {name: value * 2**window.q if name in ("low", "high", "value") else value for name, value in attrs.items()}
    layer: Any = BUILDERS[op](Step("", op, (), attrs), Masked(window, aim=ROUNDS), None)
    x = torch.randint(-12, 13, (2, 3, 8, 8)) << window.q
    shares, sessions = [part << window.q for part in share(x >> window.q, 2)], make_sessions(2)
    with meter.meter() as counted:
        pairs = zip(sessions, shares, strict=True)
        found = together([lambda s=s, v=v: layer.formula(Shares(s, layer.comparison, SCALE), v) for s, v in pairs])
    for session in sessions:
        session.channel.close()
    predicted = layer.cost([Spec(tuple(x.shape), SCALE)], 2)
    assert (counted.total.rounds, counted.total.bits_sent) == (2 * predicted.rounds, 2 * predicted.bits)
    assert counted.total.received_bits == predicted.offline_bits and predicted.rounds == rounds
    wanted = OPS[op](attrs, x.double() * UNIT)
    assert torch.equal(sum(found[1:], found[0]).double() * UNIT * 2.0**-layer.fraction, wanted)


def test_one_value_costs_k_bits_one_round_and_two_words_a_line() -> None:
    for value in (False, True):
        price = lines.relus_price(8000, 18, 12, 36, 2, value)
        assert (price.rounds, price.bits - 8 * cost.HEADER_BYTES) == (1, 8000 * 18)
        assert price.offline_bits == 8000 * 64 * (2 * 36 + 18 * value)
    assert lines.relus_price(8000, 6, 0, 36, 2).offline_bits == 8000 * 64 * 36  # no slopes
    assert lines.bits(18, 12, 36) == 64 * 72 and lines.bits(6, 0, 36) == 64 * 36 and lines.bits(19, 12, 40) == LINE_BITS


@pytest.mark.parametrize("width", [1, 7, 8, 31, 32, 36, 57, 58, 63, 64])
def test_chosen_words_are_those_of_the_unpacked_tensor(width: int) -> None:
    for n in (1, 5, 1000):
        x = torch.randint(-(1 << 63), (1 << 63) - 1, (n,))
        packed = Packed(kernels.pack_words(x, width), (n,), width)
        index = torch.cat([torch.tensor([0, n - 1]), torch.randint(n, (50,))])
        found, low = lines.chosen(packed, index, width), (1 << width) - 1 if width < 64 else -1
        assert torch.equal(found & low, x[index] & low)


@pytest.mark.parametrize(("k", "m", "ring"), [(20, 9, 36), (8, 8, 36), (18, 12, 0)])
def test_requests_out_of_bounds_are_refused(k: int, m: int, ring: int) -> None:
    with pytest.raises(DealerError, match="malformed request for 'lines'"):
        Lines(4, k, m, ring, 0)


def test_a_store_holds_what_the_price_says() -> None:
    layers = nn.Conv2d(1, 4, 3), nn.ReLU6(), nn.MaxPool2d(2), nn.LeakyReLU(0.1), nn.Flatten(), nn.Linear(36, 3)
    private = hummingbird.convert_model(nn.Sequential(*layers).eval(), BitWindow(20, 14), aim="rounds")
    plan, total = dry_run(private, (2, 1, 8, 8), 2), sum((s.cost for s in private.costs((2, 1, 8, 8), 2)), cost.FREE)
    assert [request.kind for request in plan.batch] == ["lines"] * 4 + ["lift"]
    assert total.rounds == 5 and total.offline_bits == sum(request.correction_bits for request in plan.batch)


# Mutations -----------------------------------------------------------------------------------------------------------


def wrong_results(change: Callable[[dict[str, Tensor]], None], k: int, m: int, knots: Sequence[int] = (0,)) -> int:
    """How many results for all (x, lambda) pairs are not the law's when `change` alters party 0's material."""
    sessions = make_sessions(2)
    x, mask = every_pair(sessions[0], k, m, 30, 1)
    correlation = sessions[0].dealer.correlation

    def altered(request: Request[Any]) -> Material:
        material = correlation(request)
        shares: dict[str, Any] = material.shares
        shares.update({name: plain(words).clone() for name, words in shares.items()})
        change(shares)
        return material

    sessions[0].dealer.correlation = altered  # type: ignore[method-assign]
    y, z = opened(sessions, x, lambda s, v: lines.relus(s, v, knots, 0, k, m, 30, True))
    bit, value = MaskedLaw(k, m, 2).decide(x - knots[0], mask % (1 << m))
    assert z is not None
    return int((((y[0] - bit * value) | (z - value)) & ((1 << 30) - 1) != 0).sum())


@pytest.mark.parametrize("field", ["mask", "start", "slope", "wrap"])
def test_any_wrong_line_shows(field: str) -> None:
    assert wrong_results(lambda shares: None, 5, 2) == 0
    for line in range(8):

        def spoil(shares: dict[str, Tensor], line: int = line) -> None:
            if field == "mask":
                shares[field] ^= 1
            else:
                shares[field].view(-1, 8)[:, line] += 1

        assert wrong_results(spoil, 5, 2) > 0


def test_lines_of_another_mask_show() -> None:
    def turn(shares: dict[str, Tensor]) -> None:
        for name in ("start", "slope"):
            shares[name] = shares[name].roll(8)

    assert wrong_results(turn, 5, 2) > 0


def test_what_is_opened_is_uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    """The opened words of a constant look like coins, and nothing else is sent."""
    n, seen, selected = 20_000, list[Tensor](), lines._selected

    def listen(opened: Tensor, *rest: Any) -> Any:
        seen.append(opened.clone())
        return selected(opened, *rest)

    monkeypatch.setattr(lines, "_selected", listen)
    opened(make_sessions(2), torch.full((n,), 3), lambda s, v: lines.relus(s, v, [0], 0, 18, 12, 36))
    assert len(seen) == 2 and torch.equal(*seen)
    for place in range(18):
        assert abs(int(((seen[0] >> place) & 1).sum()) - n / 2) < DEVIATIONS * n**0.5 / 2
