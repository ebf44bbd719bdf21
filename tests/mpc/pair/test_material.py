"""Material of every kind that two parties make: right by the dealer's definition, at its price, and refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from hummingbird import cost as messages
from hummingbird.channel import meter
from hummingbird.errors import AgreementError, ConfigError, PeerError
from hummingbird.mpc.correlations.provider import SharedBit, WordTriple, Wraps
from hummingbird.mpc.correlations.request import Request
from hummingbird.mpc.pair import material
from hummingbird.mpc.pair.material import RECIPES, PairMaterial, cost, cost_from, offline_bits, seconds
from hummingbird.mpc.pair.price import PROCESSOR, SILENT, SOFTSPOKEN, Stock, halves
from hummingbird.mpc.protocols import masked, thresholds
from hummingbird.mpc.protocols.beaver import RowProducts, SquarePair, Triple
from hummingbird.mpc.protocols.boolean import And, AndPair
from hummingbird.mpc.protocols.division import Division
from hummingbird.mpc.protocols.gmw import PrivateAnd
from hummingbird.mpc.protocols.lift import Lifting
from hummingbird.mpc.protocols.lifted_matmul import LiftedMatMul
from hummingbird.mpc.protocols.lifted_product import LiftedProduct
from hummingbird.mpc.protocols.masked import MaskedOpening
from hummingbird.mpc.protocols.registry import KINDS
from hummingbird.mpc.protocols.rows import LiftedRows, LiftedSquares
from hummingbird.mpc.protocols.step_tables import TransferKind
from hummingbird.mpc.protocols.thresholds import MaskedThresholds
from hummingbird.mpc.protocols.truncation import Selection, Truncation
from hummingbird.mpc.session.session import Session
from hummingbird.ot import silent
from hummingbird.ot.silent import CotPool, LpnSet
from tests.support.correlation_checks import CASES
from tests.support.covering import every
from tests.support.pairs import columns, low, made, pair, wrong
from tests.support.parties import channels, share, succeed, together

REQUESTS: list[Request[Any]] = [
    MaskedOpening(1003, 20, 12, 2, 36),
    MaskedOpening(1003, 20, 12, 1, 36, 1),
    MaskedOpening(17, 5, 1, 4, 5),
    MaskedOpening(1, 64, 0, 8, 64),
    MaskedThresholds(1003, 3, 20, 12, 2, 36, 0),
    MaskedThresholds(50, 2, 21, 14, 1, 16, 0),
    MaskedThresholds(100, 2, 16, 8, 2, 64, 1),
    MaskedThresholds(33, 1, 12, 1, 3, 21, 1),
    And(3, 1003),
    AndPair(3, 2, 1003),
    AndPair(2, 2, 7),
    AndPair(3, 0, 40),
    PrivateAnd(2, 1003),
    WordTriple((3, 7), (3, 7)),
    SharedBit((4, 25)),
    Wraps((30, 10)),
    Lifting(1003, 20, 36),
    Lifting(40, 2, 2),
    Lifting(40, 64, 64),
    Truncation(100, 16),
    Truncation(40, 0),
    Truncation(40, 62),
    Selection(100, 0),
    Selection(100, 16),
    *(Division(200, d) for d in (1, 2, 3, 7, 768, 1000, 1024, 1 << 20, (1 << 28) - 1, 1 << 28)),
    SquarePair((3, 5)),
    SquarePair((7, 9), bits=30),
    SquarePair((5,), bits=1),
    Triple((17,), (17,), "mul", {}),
    Triple((5, 3, 4), (3, 1), "mul", {}, bits=27),
    Triple((1, 4), (2, 3, 4), "mul", {}, bits=9),
    RowProducts((3, 5), bits=54),
    RowProducts((40, 2, 3), bits=7),
    RowProducts((1, 520), bits=7),  # more than 256 blocks of pads for a transfer
    RowProducts((3, 0), bits=7),
    Triple((0,), (1,), "mul", {}),
    Triple((3, 4), (4, 5), "matmul", {}),
    Triple((2, 4), (3, 4, 5), "matmul", {}, bits=27),
    Triple((2, 3, 6, 5), (4, 3, 3, 2), "conv2d", {"stride": [1, 2], "padding": [1, 0]}, bits=40),
    Triple((0, 4), (4, 5), "matmul", {}),
    LiftedSquares((3, 5), 20, 40),
    LiftedSquares((30, 4), 62, 64),
    LiftedSquares((7, 1), 2, 4),
    LiftedProduct((7,), (7,), value=9, factor=7, product=36),
    LiftedProduct((2, 3, 5), (3, 1), value=9, factor=7, product=36),
    LiftedProduct((3, 1), (2, 3, 5), value=9, factor=8, product=36),
    LiftedProduct((7,), (7,), value=40, factor=64, product=64),
    LiftedProduct((7,), (7,), value=64, factor=40, product=64),
    LiftedProduct((20,), (20,), value=30, factor=30, product=30),
    LiftedProduct((20,), (20,), value=2, factor=2, product=64),
    LiftedRows((3, 5), value=20, factor=18, sums=40, product=36),
    LiftedRows((3, 5), value=12, factor=9, sums=27, product=64),
    LiftedRows((2, 2, 3), value=7, factor=5, sums=20, product=9),
    LiftedProduct((70,), (70,), value=20, factor=18, product=64, cut=17),
    LiftedProduct((70,), (70,), value=20, factor=18, product=36, cut=17),
    LiftedProduct((9, 5), (5,), value=30, factor=31, product=40, cut=24),
    LiftedProduct((5,), (9, 5), value=30, factor=31, product=41, cut=24),
    LiftedProduct((40,), (40,), value=3, factor=2, product=4, cut=1),
    LiftedRows((3, 5), value=20, factor=18, sums=40, product=62, cut=18),
    LiftedRows((3, 5), value=20, factor=18, sums=40, product=30, cut=2),
    LiftedMatMul((2, 3, 5), (5, 4), value=9, factor=7, product=36),
    LiftedMatMul((3, 5), (2, 5, 4), value=9, factor=7, product=12),
    LiftedMatMul((2, 3, 5), (2, 5, 4), value=20, factor=30, product=30),
    LiftedMatMul((2, 1, 3, 5), (3, 5, 1), value=30, factor=18, product=30),
    LiftedMatMul((1, 17), (17, 1), value=64, factor=64, product=64),
    LiftedMatMul((4, 4), (4, 4), value=20, factor=25, product=64),
    WordTriple((2, 3, 4), (3, 4)),
    WordTriple((1, 2), (3, 5, 2)),
    And(0, 5),
    Lifting(0, 7, 9),
]


KINDS_OF_TRANSFERS = [SOFTSPOKEN, SILENT]
BY_LINK = [*KINDS_OF_TRANSFERS, TransferKind("silent", 120.0)]


def makes(request: Request[Any]) -> bool:
    """Whether two parties can make a request's material."""
    try:
        cost([request])
    except ConfigError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("transfers", every(3, BY_LINK), ids=str)
def test_fields_are_those_of_the_definition(transfers: TransferKind) -> None:
    """All kinds in one call, each at its price, and the meter counts the prices' sum."""
    parties = pair(transfers)
    price = cost(REQUESTS, parties[0].stock)
    with meter.meter() as counted:
        done = made(parties, REQUESTS)
    assert counted.total.bits_sent == price.all_bits
    assert counted.total.rounds == 2 * price.rounds
    for request, *materials in zip(REQUESTS, *done, strict=True):
        assert wrong(request, columns(request, materials)) == [], request


@pytest.mark.slow
@pytest.mark.parametrize("transfers", every(3, [SILENT, SOFTSPOKEN, BY_LINK[-1]]), ids=str)
def test_each_request_has_its_price(transfers: TransferKind) -> None:
    parties = pair(transfers)
    for request in REQUESTS:
        (price, left), again = cost_from(stock := parties[0].stock, [request]), cost([request, request], stock)
        with meter.meter() as counted:
            (one,), (two,) = made(parties, [request])
        assert (counted.total.bits_sent, counted.total.rounds) == (price.all_bits, 2 * price.rounds), request
        assert parties[0].stock == parties[1].stock == left and one.offline_bits == offline_bits([request], transfers)
        assert again.rounds == price.rounds and again.bits <= 2 * price.bits


def test_fields_are_those_of_independent_checks() -> None:
    parties = pair()
    cases = [case for case in CASES if makes(case[0])]
    assert {request.kind for request, _ in cases} == RECIPES.keys() - {"owned"}  # which test_owned.py has
    for request, verify in cases:
        materials = [found for (found,) in made(parties, [request])]
        verify(list(columns(request, materials).values()), **request.params)


@pytest.mark.parametrize(
    "request_",
    [
        MaskedOpening(200_003, 20, 12, 2, 36),
        Lifting(100_000, 20, 36),
        MaskedThresholds(100_000, 2, 20, 12, 2, 36, 0),
        Triple((3, 100, 50), (3, 50, 80), "matmul", {}),
        LiftedMatMul((100, 40), (40, 30), value=9, factor=8, product=20),
    ],
    ids=lambda request: request.kind,
)
def test_many_values(request_: Request[Any]) -> None:
    """Both halves, and each party's own fields uniform in each bit."""
    request = request_
    done = made(pair(), [request])
    shares = columns(request, [found for (found,) in done])
    assert wrong(request, shares) == []
    for name, item in request.parts.items():
        for mine in shares[name]:
            if item.kind == "ring":
                bits = mine.reshape(-1)[:, None] >> torch.arange(item.width) & 1
                off = (bits.double().mean(0) - 0.5).abs().max() * 2 * len(bits) ** 0.5
                assert off < 7.6, name


@pytest.mark.parametrize(
    "request_",
    [
        MaskedOpening(9_001, 20, 12, 2, 36),
        MaskedThresholds(9_001, 3, 20, 12, 2, 36, 0),
        And(3, 9_001),
        AndPair(3, 2, 9_001),
        Truncation(8_200, 16),
        Selection(8_200, 0),
        SquarePair((3, 3_000), bits=20),
        Triple((3, 3_000), (3, 3_000), "mul", {}, bits=16),
        LiftedProduct((2, 4_200), (2, 4_200), value=9, factor=7, product=36),
        WordTriple((3, 3_000), (3, 3_000)),
        Wraps((3, 3_000)),
    ],
    ids=lambda request: request.kind,
)
def test_a_large_request_is_made_in_pieces(request_: Request[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Fields and prices are those of one request; a small one beside it takes part in the first piece alone."""
    request = request_
    monkeypatch.setattr(material, "AT_ONCE", 1)
    parties, beside = pair(), And(1, 100)
    price = cost([beside, request], parties[0].stock)
    with meter.meter() as counted:
        done = made(parties, [beside, request])
    assert (counted.total.bits_sent, counted.total.rounds) == (price.all_bits, 2 * price.rounds)
    shares = columns(request, [found for _, found in done])
    assert wrong(request, shares) == []
    assert all(share.shape == request.parts[name].shape for name, both in shares.items() for share in both)
    monkeypatch.undo()
    assert cost([request]).rounds < price.rounds


def test_a_large_request_draws_silent_transfers_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extensions fall into the first piece and into later ones."""
    monkeypatch.setattr(silent, "SIZES", (LpnSet(300, 10, 6), LpnSet(320, 11, 6)))
    monkeypatch.setattr(material, "AT_ONCE", 1)
    parties, request = pair(SILENT), Lifting(9_001, 9, 12)
    price, left = cost_from(parties[0].stock, [request])
    with meter.meter() as counted:
        done = made(parties, [request])
    assert (counted.total.bits_sent, counted.total.rounds) == (price.all_bits, 2 * price.rounds)
    assert parties[0].stock == parties[1].stock == left and left.sent.size == 1
    assert wrong(request, columns(request, [found for (found,) in done])) == []


def test_silent_bits_of_many_calls_are_those_of_offline_bits() -> None:
    """But for the first extensions, the frames, and what is left."""
    request, stock, total = MaskedOpening(200_000, 20, 12, 2, 36), Stock(SILENT), 0
    for call in range(40):
        each, stock = cost_from(stock, [request])
        total += (each.bits + each.transfer_bits) * (call >= 20)
    assert 0.99 < total / 20 / offline_bits([request], SILENT) < 1.01


def test_party_0_sends_the_first_half() -> None:
    assert [halves(n) for n in (0, 1, 16, 17, 32, 33, 1000)] == [
        (0, 0),
        (16, 0),
        (16, 0),
        (16, 16),
        (16, 16),
        (32, 16),
        (512, 496),
    ]


def test_silent_transfers_take_less_time_on_slow_links() -> None:
    """For many values; and the ingredients are those of the price."""
    many, few = ([MaskedOpening(n, 20, 12, 2, 36), And(2, n)] for n in (1 << 20, 1 << 14))
    for bandwidth, rtt, best in ((50e6, 0.01, SILENT), (10e9, 0.0002, SOFTSPOKEN)):
        assert min((SOFTSPOKEN, SILENT), key=lambda kind: seconds(many, kind, bandwidth, rtt)) == best
    for kind, transfers, rounds in ((SILENT, 39, 26), (SOFTSPOKEN, 31, 11)):
        near, far = (seconds(few, kind, 1e30, rtt) for rtt in (0.0, 2.0))
        assert near == pytest.approx((transfers << 14) * PROCESSOR[kind.name]) and far - near == pytest.approx(rounds)


def test_the_fastest_transfers_of_a_link() -> None:
    """No other kind or price is faster there; a far link takes few rounds, a narrow one few bits."""
    n = 1 << 18
    call, found = [MaskedOpening(n, 20, 12, 2, 36), And(2, n)], {}
    for rtt, bandwidth in ((0.0002, 10e9), (0.1, 1e9), (0.02, 100e6), (0.05, 1e6)):
        best = found[rtt, bandwidth] = material.fastest(rtt, bandwidth)
        others = [TransferKind(name, bits) for name in ("silent", "softspoken") for bits in (10.0, 31.0, 60.0, 120.0)]
        assert all(seconds(call, best, bandwidth, rtt) <= seconds(call, kind, bandwidth, rtt) for kind in others)
    assert [kind.name for kind in found.values()] == ["softspoken", "silent", "silent", "silent"]
    far, narrow = (Stock(found[link]) for link in ((0.1, 1e9), (0.05, 1e6)))
    assert cost(call, far).rounds < cost(call, narrow).rounds / 4 and cost(call, narrow).bits < cost(call, far).bits / 2


def test_the_price_of_a_relu_with_silent_transfers() -> None:
    """264 bits and 39 transfers with the merge of two tables; at most 40 B where many are made."""
    n = 1 << 14
    wanted = [MaskedOpening(n, 20, 12, 2, 36), And(2, n)]
    whole = cost(wanted, Stock(SILENT, CotPool(1, 1 << 21), CotPool(1, 1 << 21)))
    assert (whole.transfers, whole.bits, whole.transfer_bits, whole.rounds) == (39 * n, 264 * n, 0, 26)
    assert 36 < offline_bits(wanted, SILENT) / 8 / n < 37


def test_the_price_of_a_relu() -> None:
    """404 bits and 31 transfers with the merge of two tables, 172 B at most by SoftSpoken OT, halves included."""
    n = 1 << 16
    whole = cost([MaskedOpening(n, 20, 12, 2, 36), And(2, n)], Stock(SOFTSPOKEN))
    assert (whole.transfers, whole.bits, whole.rounds) == (31 * n, 404 * n, 11)
    assert whole.transfer_bits == 31 * 31 * n and whole.all_bits / n / 8 < 172
    assert whole.transfer_bits == 2 * 8 * messages.cot_message(31 * n // 2, random=True)


@pytest.mark.parametrize(
    ("request_", "transfers", "bits"),
    [
        (Lifting(32, 20, 36), 27, 121),
        (Truncation(32, 16), 86, 416),
        (Selection(32, 0), 2, 191),
        (Selection(32, 16), 88, 639),
        (Wraps((32,)), 85, 455),
        (SharedBit((32,)), 1, 62),
        (WordTriple((32,), (32,)), 128, 0),
        (Division(32, 768), 164, 1453),
        (Division(32, 1024), 100, 577),
        (SquarePair((32,), bits=30), 29, 435),
        (LiftedSquares((32, 1), 20, 40), 32, 801),
        (LiftedProduct((32,), (32,), value=20, factor=18, product=36), 74, 1353),
        (LiftedProduct((32,), (32,), value=20, factor=18, product=19, cut=17), 97, 1468),
        (Triple((32,), (32,), "mul", {}, bits=30), 60, 930),
        (RowProducts((32, 5), bits=30), 60 + 5 * 63, 5 * (930 + 2016)),
        (MaskedThresholds(32, 3, 20, 12, 2, 36, 0), 33, 646),
    ],
    ids=lambda value: value.kind if isinstance(value, Request) else None,
)
def test_prices_of_kinds(request_: Request[Any], transfers: int, bits: int) -> None:
    found = cost([request_], Stock(SOFTSPOKEN))
    assert (found.transfers, found.bits) == (32 * transfers, 32 * bits)


# What runs online is the same -----------------------------------------------------------------------------------------


def sessions() -> list[Session]:
    links = channels(2)
    parties = together([lambda c=c: PairMaterial(c) for c in links])
    return [Session(rank, 2, links[rank], parties[rank]) for rank in range(2)]


def test_a_relu_runs_with_the_pairs_material() -> None:
    x = torch.randint(-(1 << 18), 1 << 18, (1000,)) << 20
    both = sessions()
    found = together(
        [lambda s=s, y=y: masked.relu(s, y, 20, 20, 4, 36, 4) for s, y in zip(both, share(x, 2), strict=True)]
    )
    y, z = (low(one + two, 36) << 28 >> 28 for one, two in zip(*found, strict=True))
    assert torch.equal(z, x >> 20) or int((z - (x >> 20)).abs().max()) <= 1
    clear = (x >> 20).abs() >= 1 << 4
    assert torch.equal(y[clear], torch.where(x < 0, 0, z)[clear])


def test_thresholds_run_with_the_pairs_material() -> None:
    x, knots = torch.randint(-(1 << 17), 1 << 17, (500,)), [-300, 0, 5000]
    both = sessions()
    found = together(
        [lambda s=s, y=y: thresholds.squares(s, y, knots, 0, 20, 0, 4) for s, y in zip(both, share(x, 2), strict=True)]
    )
    y, squared = (one + two for one, two in zip(*found, strict=True))
    expected = torch.stack([(x - knot).clamp(min=0) for knot in knots])
    assert torch.equal(y, expected) and torch.equal(squared, expected * expected)


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - RECIPES.keys()))
def test_kinds_that_two_parties_cannot_make_are_named(kind: str) -> None:
    requests = [request for request, _ in CASES if request.kind == kind]
    for request in requests:
        with pytest.raises(ConfigError, match=f"cannot make material of kind '{kind}'\n?.*") as raised:
            cost([request])
        assert raised.value.hint


def test_a_refusal_comes_before_anything_is_sent() -> None:
    parties = pair()
    polynomials = next(request for request, _ in CASES if request.kind == "poly")
    for request in (polynomials, Triple((4, 1 << 26), (1 << 26, 4), "matmul", {}), WordTriple((2, 1), (1, 3))):
        with meter.meter() as counted, pytest.raises(ConfigError, match=request.kind):
            parties[0].make([And(1, 8), request])
        assert not counted.total.bits_sent


def test_requests_that_differ_are_an_error_at_both_parties() -> None:
    parties, said = pair(), []

    def make(rank: int) -> None:
        with pytest.raises(AgreementError, match="different places") as raised:
            parties[rank].make([And(1, 800 + 800 * rank)])
        said.append(raised.value.hint)

    together([lambda rank=rank: make(rank) for rank in range(2)])
    assert len(said) == 2 and all(said)


@pytest.mark.parametrize("transfers", KINDS_OF_TRANSFERS, ids=str)
def test_a_party_that_dies_ends_the_other_one(transfers: TransferKind) -> None:
    links = channels(2)
    parties = together([lambda c=c: PairMaterial(c, transfers) for c in links])
    links[1].close()
    with pytest.raises(PeerError):
        parties[0].make([And(1, 8)])


@pytest.mark.parametrize("transfers", KINDS_OF_TRANSFERS, ids=str)
def test_no_transfer_is_used_twice_after_a_failure(transfers: TransferKind) -> None:
    links = channels(2)
    first, second = together([lambda c=c: PairMaterial(c, transfers) for c in links])
    before, stock = first._transfers._sent, first.stock
    links[1].close()
    with pytest.raises(PeerError):
        first.make([And(1, 800)])
    assert first._transfers._sent > before and (first.stock == stock) == (transfers == SOFTSPOKEN)


def test_three_parties_need_a_dealer() -> None:
    with pytest.raises(ConfigError, match="3 parties cannot make"):
        PairMaterial(channels(3)[0])


def test_a_wrong_share_is_found() -> None:
    """The checks above can fail."""
    request = Lifting(100, 20, 36)
    shares = columns(request, [found for (found,) in made(pair(), [request])])
    shares["wrapped"][0] = shares["wrapped"][0] + 1
    assert wrong(request, shares) == ["wrapped"]


def test_two_processes() -> None:
    """Bits of both parties, by their meters, are the price; each sends about half of them."""
    ended = succeed(["-m", "tests.jobs.pair_material"], 2)
    lines = [json.loads(party.out.splitlines()[-1]) for party in ended]
    bits, rounds = lines[0]["price"]
    assert all(line["right"] and line["rounds"] == rounds for line in lines)
    assert sum(line["bits"] for line in lines) == bits
    assert abs(lines[0]["bits"] - lines[1]["bits"]) < bits / 100
