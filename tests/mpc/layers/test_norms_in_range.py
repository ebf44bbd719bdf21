"""Norms of rows in a known range: within their derived bound for every row of it, and never too large below it."""

from __future__ import annotations

import math
import random
from collections import defaultdict

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hummingbird
from hummingbird.bits import EXACT, BitConfig, Rows
from hummingbird.channel import meter
from hummingbird.convert import build
from hummingbird.graph.ops.moments import Statistic
from hummingbird.mpc.functions.polynomials import evaluate, root_at
from hummingbird.mpc.layers import norms, norms_in_range
from hummingbird.mpc.layers.comparing import Shares
from hummingbird.mpc.layers.layer import Spec
from hummingbird.mpc.layers.norms import Norm
from hummingbird.mpc.protocols import poly, rows
from hummingbird.mpc.protocols.lifted_product import Opening, Operand
from hummingbird.mpc.protocols.registry import named
from hummingbird.mpc.protocols.rows import lifted_rows_price
from hummingbird.mpc.session.session import Session
from hummingbird.ring import SCALE
from tests.support.covering import covering
from tests.support.operations import Function
from tests.support.parties import sessions as make_sessions
from tests.support.parties import share, together

UNIT = 2.0**-SCALE
LENGTHS = (1, 2, 3, 12, 96, 128, 768, 5000)
RANGES = {
    ratio: Rows(least, least * ratio)
    for ratio, least in ((1.01, 1e-3), (3.0, 0.4), (17.0, 2.0), (64.0, 0.05), (256.0, 40.0))
}


def layer(length: int, rows: Rows, center: bool = True, eps: float = 1e-5) -> Norm:
    attrs = {"last": 1, "groups": None, "eps": eps, "center": center, "sizes": (length,)}
    return Norm(attrs, named("masked")(EXACT), rows)


def sample(length: int, rows: Rows, eps: float, scale: float = UNIT) -> Tensor:
    """Rows from end to end of the range, variance and eps together, of three kinds, with a mean besides.

    Of chance, of two values, and of one value that is not like the others, as large as a row's can be.
    """
    torch.manual_seed(length)
    variances = torch.linspace(math.log2(rows.least), math.log2(rows.most), 15, dtype=torch.float64).exp2() - eps
    chance = torch.randn(15, length, dtype=torch.float64)
    two = (torch.arange(length) % 2).double().expand(15, -1)
    alone = (torch.arange(length) == length // 2).double().expand(15, -1)
    out = []
    for kind in (chance, two, -alone):
        centered = kind - kind.mean(1, keepdim=True)
        deviation = centered.square().mean(1, keepdim=True).sqrt().clamp(min=1e-9)
        out.append(centered / deviation * variances.clamp(min=0).sqrt().unsqueeze(1) + 3 * torch.randn(15, 1))
    return (torch.cat(out) / scale).round() * scale


def within(x: Tensor, eps: float, assumed: Rows) -> Tensor:
    """A mask of the rows that are in the range."""
    found = x.var(1, unbiased=False) + eps
    return (found >= assumed.least) & (found <= assumed.most)


def bound(wanted: Tensor, parties: int) -> Tensor:
    """The bound that the section on norms in a known range derives, and every party's rounding of a result to 2^-28."""
    cut = (parties + 1) * 2.0**-19
    return wanted.abs() * (2.0**-14 + parties * 2.0**-15) + parties * (2.0**-17 + 2.0**-29) + cut


def net(length: int, eps: float = 1e-5) -> nn.Module:
    return nn.Sequential(nn.LayerNorm(length, eps, elementwise_affine=False)).eval()


def told(rows: Rows) -> BitConfig:
    return BitConfig(rows={"0": rows})


class Reached:
    """Notes, as long as the patches hold, of how far values are into what is opened: |z| over 2^(k-2), of the parties'
    shares added up, in the order of values and factors.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._given: dict[int, list[tuple[Tensor, int, int]]] = defaultdict(list)
        original = rows.opened

        def noting(session: Session, *pairs: tuple[Operand, Tensor]) -> list[Opening]:
            self._given[session.rank] += [(share.clone(), shift, k) for (share, shift, k), _ in pairs]
            return original(session, *pairs)

        monkeypatch.setattr(rows, "opened", noting)

    def parts(self) -> list[float]:
        out = []
        for calls in zip(*self._given.values(), strict=True):
            shift, k = calls[0][1:]
            unused = 64 - k - shift
            z = torch.stack([share for share, _, _ in calls]).sum(0) << unused >> unused
            out.append(float(z.double().abs().max()) / 2.0 ** (k - 2 + shift))
        return out


@covering("length, ratio, parties", LENGTHS, RANGES, [2, 3])
def test_rows_from_end_to_end_of_the_range_are_normed_within_the_bound(
    length: int, ratio: float, parties: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assumed = RANGES[ratio]
    eps = assumed.least if length == 1 else 1e-5
    x = sample(length, assumed, eps).float()
    x = x[within(x.double(), eps, assumed)]
    assert len(x) >= 15
    wanted = F.layer_norm(x.double(), (length,), eps=eps)
    reached = Reached(monkeypatch)
    for mode in ("exact", "fast"):
        got = hummingbird.simulate(net(length, eps), told(assumed), parties=parties, mode=mode, seed=1)(x).double()
        assert float(((got - wanted).abs() / bound(wanted, parties)).max()) <= 1, mode
    values, factors = reached.parts()
    # All but one row of a kind has its largest value where k bits end, as far as these double.
    assert values < 1 and factors < 1 and (length == 1 or values > 0.25)


@pytest.mark.parametrize("narrow", ["value", "opened", "top"])
def test_a_bit_less_is_a_wrong_answer(narrow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail: with a bit less of values, of factors, or of sums of squares."""
    assumed, length = RANGES[64.0], 128
    x = sample(length, assumed, 1e-5).float()
    x = x[within(x.double(), 1e-5, assumed)]
    wanted = F.layer_norm(x.double(), (length,), eps=1e-5)
    found = norms_in_range.norm_sizes(length, True, assumed, length)
    taken = {"value": 2, "opened": 5, "top": 2}[narrow]  # k and K are whole numbers, and K has room for flatter rows
    other = found._replace(**{narrow: getattr(found, narrow) - taken})
    monkeypatch.setattr(norms_in_range, "norm_sizes", lambda *_: other)
    got = hummingbird.simulate(net(length), told(assumed), mode="exact", seed=1)(x).double()
    assert float(((got - wanted).abs() / bound(wanted, 2)).max()) > 100


def test_rows_flatter_than_the_range_are_less_than_torchs_and_announced() -> None:
    """Down to rows of equal values, whose S is that of eps alone: v goes on below its range, smoothly."""
    assumed, length = Rows(0.5, 20.0), 64
    torch.manual_seed(0)
    x = torch.randn(40, length) * torch.linspace(-14, -0.6, 40).exp2().unsqueeze(1) + 3
    x[0] = 3.0
    x = (x / UNIT).round() * UNIT
    wanted = F.layer_norm(x.double(), (length,))
    with pytest.warns(UserWarning, match="variance of a row, and eps.*expects 0.4995"):
        fast = hummingbird.simulate(net(length), told(assumed))(x).double()
    exact = hummingbird.simulate(net(length), told(assumed), mode="exact", seed=1)(x).double()
    for got in (fast, exact):
        assert bool((got.abs() <= wanted.abs() * (1 + 2.0**-12) + 2.0**-14).all())
        assert bool((got * wanted >= -(2.0**-14)).all())


def test_rows_beyond_the_range_are_announced() -> None:
    x = torch.zeros(2, 16)
    x[:, 0] = torch.tensor([1.0, 30.0])
    with pytest.warns(UserWarning, match="and eps, is 52.7.*noise"):
        hummingbird.simulate(net(16), told(Rows(0.01, 1.0)))(x)


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("name", ["group", "instance", "root mean square"])
def test_groups_channels_and_norms_without_a_mean(name: str, parties: int) -> None:
    """Rows whose length is known only when they come, and rows less no mean; the range is just that of the rows."""
    torch.manual_seed(1)
    x = torch.randn(3, 8, 5, 5) * torch.tensor([0.3, 1.0, 2.0]).view(3, 1, 1, 1) + 0.5
    x = (x / UNIT).round() * UNIT
    if name == "root mean square" and not hasattr(F, "rms_norm"):
        pytest.skip("torch has it since 2.4")
    cases: dict[str, tuple[nn.Module, Tensor]] = {
        "group": (nn.Sequential(nn.GroupNorm(2, 8, affine=False)), x.reshape(3, 2, -1)),
        "instance": (nn.Sequential(nn.InstanceNorm2d(8)), x.flatten(2)),
        "root mean square": (Function(lambda x: F.rms_norm(x, (5,), eps=1e-3)), x),
    }
    case, values = cases[name]
    case.eval()
    (step,) = (step for step in build(case).plan if isinstance(step.layer, Norm))
    given = values.double()
    variances = given.square().mean(-1) + 1e-3 if name == "root mean square" else given.var(-1, unbiased=False) + 1e-5
    config = BitConfig(rows={step.name: Rows(float(variances.min()) * 0.999, float(variances.max()) * 1.001)})
    (step,) = (step for step in build(case, config).plan if isinstance(step.layer, Norm))
    assert isinstance(step.layer, Norm) and step.layer.assumed is not None
    wanted = case(x.double())
    got = hummingbird.simulate(case, config, parties=parties, mode="exact", seed=2)(x).double()
    assert float(((got - wanted).abs() / bound(wanted, parties)).max()) <= 1


def random_ranges(count: int) -> list[tuple[int, bool, Rows]]:
    """Lengths and ranges of all sizes that are served."""
    draw = random.Random(7)
    out: list[tuple[int, bool, Rows]] = []
    while len(out) < count:
        length = draw.choice((1, 2, 3, draw.randint(4, 2000), 1 << draw.randint(2, 20), draw.randint(1, norms.LONGEST)))
        least = 2.0 ** draw.uniform(norms_in_range.FLATTEST, norms_in_range.STEEPEST)
        ratio = draw.choice((1 + 1e-6, 2.0 ** draw.uniform(0, 8), 256.0))
        center = draw.random() < 0.8
        if norms_in_range.range_serves(Rows(least, least * ratio), length, Statistic(center, 0, 1e-12)):
            out.append((length, center, Rows(least, least * ratio)))
    return out


@pytest.mark.slow
def test_numbers_of_all_lengths_and_ranges_fit_the_ring() -> None:
    """All that `sizes` asserts, and that its users rely on."""
    for length, center, assumed in random_ranges(400):
        found = norms_in_range.norm_sizes(length, center, assumed, length)
        number = found.factor * (length if center else 1)
        scaled = number * 2.0 ** (found.fraction - found.spread)
        assert scaled * math.sqrt(assumed.least) >= 2.0**16 * (1 - 1e-9)
        assert scaled * math.sqrt(length * assumed.most) < 2.0 ** (found.value - 2)
        highest = length * assumed.most * scaled**2 * 2.0**-found.top
        assert highest < root_at(found.root) + found.table.most
        assert highest * assumed.least / assumed.most > 2.0**-found.root
        assert norms_in_range.bits_needed(found, SCALE) <= 64 and found.value + 1 < found.top <= 62
        # What is cut of products.
        assert 0 <= found.cut <= min(found.value, found.opened) and found.value + found.opened <= 61


@pytest.mark.parametrize("index", range(12))
def test_the_table_keeps_its_part_of_the_bound_for_every_sum(index: int) -> None:
    length, center, assumed = random_ranges(12)[index]
    found = norms_in_range.norm_sizes(length, center, assumed, length)
    table, unit = found.table, 2.0**-found.table.fraction
    u = torch.arange(0, 1 << table.fraction, max(1, (1 << table.fraction) >> 19), dtype=torch.float64) * unit
    u = u[u <= root_at(found.root) + table.most]
    got, gain = evaluate(table, u - root_at(found.root)), table.gain * UNIT
    scaled = found.factor * (length if center else 1) * 2.0 ** (found.fraction - found.spread)
    inside = u >= length * assumed.least * scaled**2 * 2.0**-found.top
    assert float((got * u.sqrt() / gain - 1)[inside].abs().max()) <= 3 * 2.0**-16 + UNIT  # and it rounds to 2^-16
    assert bool((got[~inside] <= gain * u[~inside].rsqrt() * (1 + 2.0**-13)).all())
    assert float(got.max()) < 2.0 ** (found.opened - 2 - SCALE)
    result = gain * math.sqrt(length * 2.0**found.top) * 2.0 ** -(found.cut + norms_in_range.FRACTION_IN_RANGE)
    assert abs(result / length - 1) <= 2.0**-16  # g: z v 2^-E is the result


@pytest.mark.parametrize("parties", [2, 3])
def test_the_price_is_the_sum_written_out_and_what_is_sent(parties: int) -> None:
    n, length, assumed = 10, 64, Rows(0.1, 2.0)
    norm = layer(length, assumed)
    found = norms_in_range.norm_sizes(length, True, assumed, length)
    look_up = poly.price(n, found.table, found.opened, parties)
    for read in (64, 45):
        norm.read = read
        widths = found.value, found.opened, found.top, read, found.cut
        price = norm.cost([Spec((n, length), 36)], parties)
        assert price == lifted_rows_price(n * length, n, *widths, parties) + look_up and price.rounds == 3
    sessions, x = make_sessions(parties), torch.randn(n, length).mul(2.0**36).long()

    def run(session: Session, share: Tensor) -> Tensor:
        return norm.formula(Shares(session, named("masked")(EXACT), 36), share)

    with meter.meter() as counted:
        together([lambda s=s, x=x: run(s, x) for s, x in zip(sessions, share(x, parties), strict=True)])
    for session in sessions:
        session.channel.close()
    assert (counted.total.rounds, counted.total.bits_sent) == (parties * price.rounds, parties * price.bits)
    assert counted.total.received_bits == price.offline_bits


def test_where_comparisons_stay() -> None:
    wide, narrow = Rows(0.01, 3.0), Rows(0.1, 3.0)
    for protocol, assumed, eps, length in (
        ("gmw", narrow, 1e-5, 64),
        ("masked", wide, 1e-5, 64),
        ("masked", narrow, 4.0, 64),
        ("masked", Rows(1.0, 250.0), 1e-5, None),
    ):
        sizes = None if length is None else (length,)
        attrs = {
            "last": 1 if sizes else None,
            "groups": None if sizes else 2,
            "eps": eps,
            "center": True,
            "sizes": sizes,
        }
        norm = Norm(attrs, named(protocol)(EXACT), assumed)
        assert "comparisons, no table for [" in norm.label() and norm.whole_input and norm.comparisons
    assert layer(64, narrow).label() == "variance + eps of a row in [0.1, 3]: 2^8 cubics"
    plain = Norm(attrs, named("masked")(EXACT))
    assert plain.label() == "squares of a row, less its mean, below 2^30 together: comparisons"


def test_parties_with_other_rows_have_other_plans() -> None:
    facts = [build(net(64), told(rows)).facts for rows in (Rows(0.1, 2.0), Rows(0.1, 2.0), Rows(0.1, 2.4))]
    assert facts[0] == facts[1] and facts[0]["bits"] != facts[2]["bits"] and facts[0]["plan"] != facts[2]["plan"]


def test_values_are_taken_as_they_are_where_their_bits_suffice() -> None:
    """After a linear layer without a message; after so many bits of fraction that too few are left, by a lift."""
    plain = nn.Sequential(nn.Linear(8, 64), nn.LayerNorm(64)).eval()
    config = BitConfig(rows={"1.norm": Rows(0.1, 2.0)})
    steps = [step.name for step in build(plain, config).plan]
    assert "0.lift" not in steps and "0.lift" in [step.name for step in build(plain).plan]
    # 40 bits of fraction after Hardswish, 16 of the sum of 5,000 values and 3 of q.
    finer = nn.Sequential(nn.Hardswish(), nn.LayerNorm(5000, elementwise_affine=False)).eval()
    plan = build(finer, BitConfig(rows={"1": Rows(0.1, 25.0)})).plan
    (norm,) = (step.layer for step in plan if isinstance(step.layer, Norm))
    assert norm.scales == (16,) and plan[2].name == "0.lift" and norm.needs([40], 64) > 64
