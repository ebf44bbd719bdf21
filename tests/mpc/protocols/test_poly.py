"""Polynomial look-ups: every value under every mask on small rings, all inputs of 14 bits, mutations that show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hummingbird import cost, kernels
from hummingbird.channel import meter
from hummingbird.errors import InputError
from hummingbird.graph.ops.functions import value
from hummingbird.kernels.shares.packing import plain
from hummingbird.mpc.correlations.request import Material, ReceiverTurn, Request, corrections
from hummingbird.mpc.functions import polynomials
from hummingbird.mpc.functions.polynomials import FUNCTIONS, GAIN, PolynomialTable, choose, fit_error
from hummingbird.mpc.protocols import poly
from hummingbird.mpc.protocols.poly import Polynomial, PolynomialShares
from hummingbird.mpc.session.session import Session
from hummingbird.prg import CIPHERS, derive
from tests.support.chance import DEVIATIONS
from tests.support.covering import covering, every
from tests.support.parties import sessions as make_sessions
from tests.support.parties import share, together


def signed(value: Tensor, bits: int) -> Tensor:
    """The low bits with their sign."""
    return (value << 64 - bits) >> 64 - bits


def moved(table: PolynomialTable, lambda_: Tensor) -> list[Tensor]:
    """Coefficients that a dealer deals, before it subtracts shares."""
    return kernels.move_polynomials(polynomials.pieces(table), lambda_, table.m)


def at(table: PolynomialTable, x: Tensor, lambda_: Tensor) -> Tensor:
    """Values that the dealt coefficients give for whole numbers x under these masks, without shares, as reals."""
    opened = (x + lambda_) & ((1 << table.k) - 1)
    out = poly.combined(opened, PolynomialShares(lambda_, moved(table, lambda_)), table)
    return signed(out, 63 - table.shift).double() * 2.0**-table.scale


def bound(table: PolynomialTable, parties: int, most: float) -> float:
    """Error of a table on values that nobody rounds: its pieces, its coefficients, and the parties' results."""
    unit = 2.0**-table.scale
    return fit_error(table, most) + ((table.degree + 1) / 2**polynomials.GUARD + parties / 2) * unit


def inside(table: PolynomialTable) -> Tensor:
    """The whole numbers that the equations hold for."""
    half = 1 << table.k - 1
    return torch.arange(-half, half - (1 << table.m) + 1)


ACTIVATIONS = ("sigmoid(x)", "tanh(x)", "silu(x)", "gelu(x)", "gelu_tanh(x)")


def of(name: str) -> Callable[[Tensor], Tensor]:
    """The function of a name: a key of FUNCTIONS, or an expression."""
    return FUNCTIONS[name].of if name in FUNCTIONS else lambda x: value(name, x)


@covering("name, degree", [*FUNCTIONS, *ACTIVATIONS], polynomials.DEGREES)
def test_every_value_under_every_mask_in_every_small_ring(name: str, degree: int) -> None:
    """All k up to 6 with all w and m: x = 2^m D + u, and the row that X chooses is that of D."""
    for k in range(1, 7):
        for w in range(1, k + 1):
            table = PolynomialTable(name, k, max(0, k - 4), w, degree, 12)
            values, masks = inside(table), torch.arange(1 << k)
            x, lambda_ = (column.flatten() for column in torch.meshgrid(values, masks, indexing="ij"))
            real = x.double() * 2.0**-table.fraction
            error = (at(table, x, lambda_) - of(name)(real)).abs()
            assert float(error.max()) <= bound(table, 1, 2.0**k), (k, w)


def test_beyond_the_range_pieces_are_those_of_other_values() -> None:
    """The upper edge is not promised: the comparison above can fail."""
    table = PolynomialTable("sigmoid(x)", 8, 4, 4, 3, 12)
    x = torch.arange(128 - 15, 128).repeat_interleave(256)
    error = (at(table, x, torch.arange(256).repeat(15)) - torch.sigmoid(x.double() / 16)).abs()
    assert float(error.max()) > 0.9


@pytest.mark.parametrize("name", every(5, [*ACTIVATIONS]))
def test_all_inputs_of_fourteen_bits(name: str) -> None:
    """Every value of 14 bits under 16 masks, ends among them; the largest error is near its bound."""
    table = choose(name, 4.0, 10, 22)
    assert table is not None and table.k == 14
    values = inside(table)
    masks = torch.cat([torch.tensor([0, 1, (1 << table.m) - 1, (1 << 14) - 1]), torch.randint(1 << 14, (12,))])
    x, lambda_ = (column.flatten() for column in torch.meshgrid(values, masks, indexing="ij"))
    real = x.double() * 2.0**-10
    error = (at(table, x, lambda_) - of(name)(real)).abs()
    kept = real.abs() <= table.most
    assert float(error[kept].max()) <= bound(table, 1, table.most) <= table.error(1)
    assert float(error[kept].max()) > table.error(2) / 8


def run(sessions: list[Session], x: Tensor, table: PolynomialTable, scale: int, bits: int) -> Tensor:
    """The result that the parties' shares stand for, of whole numbers x at `scale`, with its sign."""
    shares = share(x, len(sessions))
    try:
        calls = [
            lambda s=s, v=v: poly.evaluate(s, v, table, scale, bits) for s, v in zip(sessions, shares, strict=True)
        ]
        results = together(calls)
    finally:
        for session in sessions:
            session.channel.close()
    return signed(sum(results[1:], results[0].clone()), bits)


@pytest.mark.parametrize(
    ("parties", "name"), [*((2, name) for name in ACTIVATIONS), *((parties, "silu(x)") for parties in (1, 3, 4))]
)
@pytest.mark.parametrize(("fraction", "integers"), [(10, 24), (14, 6)])
def test_parties_with_shares_stay_within_the_bound(parties: int, name: str, fraction: int, integers: int) -> None:
    table = choose(name, 8.0, fraction, integers)
    assert table is not None and table.most >= 8
    x = torch.randint(-8 << 36, (8 << 36) + 1, (2000,))
    x[:3] = torch.tensor([0, 8 << 36, -8 << 36])
    bits = integers + fraction
    got = run(make_sessions(parties), x.view(20, 100), table, 36, bits).double() * 2.0**-table.scale
    error = got.flatten() - of(name)(x.double() * 2.0**-36)
    assert got.shape == (20, 100)
    assert float(error.abs().max()) <= table.error(parties)
    # Rounding is right on average: what is left is the mean error of the pieces, and of a thousandth part chance.
    assert abs(float(error.mean())) <= table.error(1) / 4


def test_bits_above_those_it_reads_do_not_matter() -> None:
    """Shares need be right mod 2^(k + scale - fraction) only."""
    table = choose("silu(x)", 8.0, 10, 24)
    assert table is not None
    x = torch.randint(-8 << 16, 8 << 16, (2000,))
    noise = torch.randint(-(1 << 30), 1 << 30, (2000,)) << table.k + 6
    got = run(make_sessions(2), x + noise, table, 16, 34).double() * 2.0**-10
    assert float((got - torch.nn.functional.silu(x.double() * 2.0**-16)).abs().max()) <= table.error(2)


@pytest.mark.parametrize("parties", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 77, 300])
def test_messages_are_what_the_price_says(parties: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poly, "AT_ONCE", 128 << 6)  # 300 values go in two messages, of 128 + 128 and of 44
    table = choose("silu(x)", 8.0, 10, 24)
    assert table is not None and table.w == 6
    sessions = make_sessions(parties)
    with meter.meter() as counted:
        run(sessions, torch.randint(-2, 2, (count,)), table, 16, 34)
    predicted = poly.price(count, table, 34, parties)
    assert counted.total.bits_sent == parties * predicted.bits
    assert counted.total.rounds == parties * predicted.rounds == parties * (parties > 1) * max(1, -(-count // 256))
    assert counted.total.received_bits == predicted.offline_bits


def test_one_value_costs_k_bits_and_one_round() -> None:
    """SiLU within +-8 on 10 bits of fraction: 15 bits, and 64 rows of 36 + 45 + 54 + 63 bits."""
    table = choose("silu(x)", 8.0, 10, 24)
    assert table is not None
    price = poly.price(8000, table, 34, 2)
    assert (price.rounds, price.bits - 8 * cost.HEADER_BYTES) == (1, 8000 * 15)
    assert price.offline_bits == 8000 * 64 * (36 + 45 + 54 + 63)


# Mutations -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("power", range(4))
def test_any_wrong_coefficient_shows(power: int) -> None:
    """A row's coefficient that is off by a quarter of the function's range leaves the bound, for some of the values."""
    table = PolynomialTable("tanh(x)", 8, 4, 3, 3, 12)
    x = torch.randint(-100, 90, (4000,))
    wanted = torch.tanh(x.double() / 16)

    def errors(add: int) -> Tensor:
        sessions = make_sessions(2)
        correlation = sessions[0].dealer.correlation

        def altered(request: Request[Any]) -> Material:
            material = correlation(request)
            words = plain(material.shares[f"power_{power}"]).long()
            words.view(-1, 8)[:, 5] += add
            material.shares[f"power_{power}"] = words
            return material

        sessions[0].dealer.correlation = altered  # type: ignore[method-assign]
        return (run(sessions, x, table, 4, 20).double() * 2.0**-12 - wanted).abs()

    assert float(errors(0).max()) <= bound(table, 2, table.most)
    wrong = errors(1 << 12) > bound(table, 2, table.most)
    assert 0 < int(wrong.sum()) < len(x) / 4  # one row of eight


def test_a_mask_that_is_not_moved_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coefficients for l = 0, as if the mask had no low bits, leave the bound."""
    table = PolynomialTable("silu(x)", 8, 4, 3, 3, 12)
    x, lambda_ = torch.arange(-128, 97), torch.full((225,), 0b101)
    wrong = moved(table, lambda_ & ~((1 << table.m) - 1))
    opened = (x + lambda_) & 255
    out = poly.combined(opened, PolynomialShares(lambda_, wrong), table)
    error = (signed(out, 40).double() * 2.0**-12 - torch.nn.functional.silu(x.double() / 16)).abs()
    assert float(error.max()) > 4 * bound(table, 1, 8.0)


def test_what_is_opened_is_uniform() -> None:
    """The opened words of a constant look like coins."""
    n, seen = 20_000, list[Tensor]()
    combined = poly.combined

    def listen(opened: Tensor, material: PolynomialShares, table: PolynomialTable) -> Tensor:
        seen.append(opened.clone())
        return combined(opened, material, table)

    table = choose("sigmoid(x)", 4.0, 8, 8)
    assert table is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(poly, "combined", listen)
        run(make_sessions(2), torch.full((n,), 3), table, 16, 16)
    for place in range(table.k):
        assert abs(int(((seen[0] >> place) & 1).sum()) - n / 2) < DEVIATIONS * n**0.5 / 2


# Choosing ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("fraction", [6, 10, 12, 14])
def test_a_table_is_chosen_by_its_error_and_is_the_cheapest(name: str, fraction: int) -> None:
    table = choose(name, 6.5, fraction, 6)
    assert table is not None
    assert table.most >= 6.5 and fit_error(table, 6.5) <= 2.0 ** -(fraction + 1)
    bits = sum(table.widths(6 + fraction)) << table.w
    for w in range(2, table.w + 1):
        for degree in polynomials.DEGREES:
            other = PolynomialTable(name, table.k, fraction, w, degree, fraction)
            if sum(other.widths(6 + fraction)) << w < bits and other.most >= 6.5:
                assert fit_error(other, 6.5) > 2.0 ** -(fraction + 1) or other.widths(6 + fraction)[-1] > 64


def test_no_table_is_chosen_where_none_is_exact_enough() -> None:
    assert choose("silu(x)", 100.0, 14, 6) is None and choose("silu(x)", 8.0, 14, 25) is None


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_plaintext_rule_is_that_of_the_protocol(name: str) -> None:
    """On all values of 14 bits: within what parties round, also beyond the range, where both are wrong alike."""
    table = choose(name, 4.0, 10, 22)
    assert table is not None
    x = torch.arange(-3 << 13, 3 << 13)
    x = x[((x + (1 << 13)) % (1 << 14) - (1 << 13)) < (1 << 13) - (1 << table.m)]
    real = x.double() / 1024
    got = at(table, x, torch.randint(1 << 14, (len(x),)))
    assert float((got - polynomials.evaluate(table, real)).abs().max()) <= 2 * table.error(1)
    real.requires_grad_()
    polynomials.evaluate(table, real).sum().backward()
    near = (real.detach().abs() < table.most - 0.01) & (real.detach().abs() > 0.01)
    slope = torch.autograd.functional.jvp(of(name), real.detach(), torch.ones_like(real))[1]
    assert real.grad is not None and torch.allclose(real.grad[near], slope[near])
    assert not bool(real.grad[real.detach().abs() > table.most].any())


def test_a_request_of_another_process_is_checked() -> None:
    good = {
        "count": 5,
        "name": "silu(x)",
        "k": 15,
        "fraction": 10,
        "w": 6,
        "degree": 3,
        "scale": 10,
        "gain": GAIN,
        "stretch": GAIN,
        "bits": 34,
    }
    assert Polynomial(**good).correction_bits == 5 * 64 * (36 + 45 + 54 + 63)  # type: ignore[arg-type]
    for change in (
        {"name": "exit"},
        {"w": 13},
        {"w": 0},
        {"degree": 4},
        {"k": 5},
        {"k": 63},
        {"bits": 36},
        {"gain": 0},
        {"gain": (GAIN << 1) + 1},
        {"stretch": 0},
        {"stretch": (GAIN << 1) + 1},
        {"count": -1},
    ):
        with pytest.raises(Exception, match="poly"):
            Polynomial(**(good | change))  # type: ignore[arg-type]


@pytest.mark.parametrize("cipher", CIPHERS.values())
def test_coefficients_that_float64_cannot_hold_are_refused(cipher: int) -> None:
    """By the dealer, whatever its kernels; e^13 in units of 2^-42 exceeds 2^50."""
    good, turn = Polynomial(3, "power", 20, 15, 4, 1, 24, GAIN, GAIN, 20), ReceiverTurn(0, 0)
    seeds = [derive(bytes(16), "refused", party, size=cipher) for party in (0, 1)]
    assert [len(words) for words in corrections(good, ReceiverTurn(0, 0), seeds)] == [
        3 * 16 * 22 // 8,
        3 * 16 * 38 // 8,
    ]
    with pytest.raises(InputError, match="coefficients of up to"):
        corrections(replace(good, scale=40), turn, seeds)


def test_every_part_has_a_mask_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two values behind one mask would show their difference: of equal shares, no part is sent as another one is."""
    monkeypatch.setattr(poly, "AT_ONCE", 64 << 6)
    table = PolynomialTable("sigmoid(x)", 12, 8, 6, 2, 14)
    session, x = make_sessions(1)[0], torch.zeros(192, dtype=torch.int64)
    try:
        look_up = poly.LookUp(session, x, table, table.fraction, 18)
        assert len(look_up.words) == 3
        assert len({tuple(words.tolist()) for words in look_up.words}) == 3
        result = signed(look_up.result([[words] for words in look_up.words]), 18).double() * 2.0**-table.scale
        assert float((result - 0.5).abs().max()) <= bound(table, 1, 8.0)
    finally:
        session.channel.close()
