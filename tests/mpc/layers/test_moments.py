"""Norms, deviations, rows of length 1 and cosines between parties: torch's values within the bounds of moments.py."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hummingbird
from hummingbird.bits import EXACT, BitConfig, Rows
from hummingbird.channel import meter
from hummingbird.convert import build
from hummingbird.errors import ConfigError, InputError, ModelError
from hummingbird.graph import trace
from hummingbird.graph.ops.moments import Statistic
from hummingbird.mpc.functions.polynomials import GAIN, ROOT_AT, evaluate, root_at
from hummingbird.mpc.layers import moments, norms, norms_in_range
from hummingbird.mpc.layers.comparing import Shares
from hummingbird.mpc.layers.layer import Spec
from hummingbird.mpc.layers.norms import Norm
from hummingbird.mpc.protocols.registry import named
from hummingbird.mpc.session.session import Session
from hummingbird.ring import SCALE
from tests.support.covering import covering, every
from tests.support.operations import Function
from tests.support.parties import sessions as make_sessions
from tests.support.parties import share, together

UNIT = 2.0**-SCALE
LENGTHS, MAGNITUDES = (1, 2, 64, 4096), (2.0**-6, 1.0, 2.0**8)

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "norm": lambda x: x.norm(dim=-1),
    "std": lambda x: x.std(-1, correction=0),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "standardize": lambda x: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True).clamp(min=1e-9),
    "cosine": lambda x: F.cosine_similarity(x, x.flip(0), -1),
}


def sample(length: int, magnitude: float) -> Tensor:
    """Four rows of values that fixed point holds, the longest four times as long as the shortest."""
    torch.manual_seed(length)
    # Signs that alternate: the deviation is no rounding error, even of two values.
    x = (torch.arange(length) % 2) * 2 - 0.5 + 0.3 * torch.randn(4, length)
    x = x / x.square().mean(1, keepdim=True).sqrt() * magnitude * torch.tensor([[0.25], [0.4], [0.6], [0.9]])
    return (x / UNIT).round() * UNIT


def bound(name: str, x: Tensor, wanted: Tensor, parties: int, ranged: bool) -> Tensor:
    """The bound that moments.py states: 2^-14 + N 2^-15 of a root, and the values' rounding in parts of it.

    Without a range a mean is rounded to 2^-16, twice for the dealer's quotient; in a range values are rounded to
    N 2^-17 of the least root mean square. An opened result is rounded to 2^-16 or less.
    """
    length, relative = x.shape[-1], 2.0**-14 + parties * 2.0**-15
    centered = x - x.mean(-1, keepdim=True) if name in ("std", "standardize") else x
    scale = centered.double().square().mean(-1, keepdim=True).sqrt()
    rounding = 0 * scale + parties * 2.0**-17 if ranged else 2.0**-15 / scale * (name in ("std", "standardize"))
    if name in ("norm", "std"):
        return wanted * (relative + rounding.squeeze(-1)) + 2 * UNIT
    if name == "cosine":
        return 2 * (relative + rounding.squeeze(-1)) + parties * math.sqrt(length) * 2.0**-15 + 2 * UNIT
    row = wanted.norm(dim=-1, keepdim=True) / math.sqrt(length)
    return wanted.abs() * relative + (1 + wanted.abs() / row) * row * rounding + 2 * UNIT


@covering("name, length, magnitude, parties, protocol", FUNCTIONS, LENGTHS, MAGNITUDES, [(2, "masked"), (3, "gmw")])
@pytest.mark.parametrize("ranged", every(2, [True, False]))
def test_rows_of_all_lengths_and_magnitudes_are_within_the_bound(
    name: str, length: int, magnitude: float, parties: int, protocol: str, ranged: bool
) -> None:
    if length == 1 and name in ("std", "standardize") or (protocol == "gmw" and ranged):
        pytest.skip("no variance, or no table")
    net, x = Function(FUNCTIONS[name]).eval(), sample(length, magnitude)
    wanted = FUNCTIONS[name](x.double())
    config = BitConfig(rows=hummingbird.find_rows(net, x)) if ranged else BitConfig()
    layers = [step.layer for step in build(net, config, protocol=protocol).plan if isinstance(step.layer, Norm)]
    assert [layer.assumed is not None for layer in layers] == [ranged]
    for mode in ("fast", "exact"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = hummingbird.simulate(net, config, protocol=protocol, parties=parties, mode=mode, seed=1)
            got = found(x).double()
        assert bool(((got - wanted).abs() <= bound(name, x, wanted, parties, ranged)).all()), mode


@pytest.mark.filterwarnings("ignore:the sum of a row")  # of rows below the range
@pytest.mark.parametrize("ranged", [False, True])
def test_rows_near_zero_give_results_near_zero_or_near_length_1(ranged: bool) -> None:
    """A root errs by a quarter of the least one, 2^-12 or that of the range; 0 gives 0; a unit row is never longer."""
    x = torch.zeros(12, 16)
    x[1:, 3] = 2.0 ** -torch.arange(5, 16).float()
    rows = {"root": Rows(2.0**-14, 2.0**-8)} if ranged else {}
    least = 2.0**-7 if ranged else 2.0**-12
    config = BitConfig(rows={"linalg_vector_norm": rows["root"]} if ranged else {})
    root = Function(lambda x: torch.linalg.vector_norm(x, dim=1))
    for mode in ("fast", "exact"):
        got = hummingbird.simulate(root.eval(), config, mode=mode, seed=2)(x)
        assert float((got - x[:, 3]).abs().max()) <= least / 4 + 2 * UNIT and abs(float(got[0])) <= 2 * UNIT
        far = x[:, 3] >= least
        assert float((got - x[:, 3])[far].abs().max()) <= 2.0**-10
    config = BitConfig(rows={"normalize": rows["root"]} if ranged else {})
    for mode in ("fast", "exact"):
        got = hummingbird.simulate(Function(F.normalize).eval(), config, mode=mode, seed=2)(x)[:, 3]
        assert float(got[0]) == 0 and float(got.max()) <= 1 + 2.0**-12 and float(got.min()) >= 0
        assert float((got - 1)[far].abs().max()) <= 2.0**-12


@pytest.mark.parametrize("eps", [2.0, 0.25, 2.0**-11, 1e-12])
@pytest.mark.parametrize("protocol", ["masked", "gmw"])
def test_a_bound_of_the_root_is_torchs(eps: float, protocol: str) -> None:
    """Rows on both sides of it, and rows at it."""
    x = torch.randn(14, 8)
    x = x / x.norm(dim=1, keepdim=True) * eps * torch.linspace(-3, 3, 14).exp2().unsqueeze(1)
    x = ((x if eps > 1e-6 else torch.randn(14, 8)) / UNIT).round() * UNIT
    net = Function(lambda x: F.normalize(x, eps=eps)).eval()
    wanted = net(x.double())
    got = hummingbird.simulate(net, protocol=protocol, mode="exact", seed=1)(x).double()
    assert bool(((got - wanted).abs() <= wanted.abs() * 2.0**-13 + 2 * UNIT).all())
    sums = x.double().square().sum(1)
    rows = Rows(float(sums.min()) / 2, float(sums.max()) * 2)
    (layer,) = (
        step.layer
        for step in build(net, BitConfig(rows={"normalize": rows}), protocol=protocol).plan
        if isinstance(step.layer, Norm)
    )
    # A range of which the bound cuts a part takes comparisons.
    assert (layer.assumed is not None) == (protocol == "masked" and eps < 1e-6)


@pytest.mark.parametrize("name", ["norm", "var", "normalize", "cosine", "cosine of a constant"])
@pytest.mark.parametrize("ranged", [False, True])
@pytest.mark.parametrize("parties", [2, 3])
def test_the_price_is_what_is_sent(name: str, ranged: bool, parties: int) -> None:
    functions = FUNCTIONS | {
        "var": lambda x: x.var(-1),
        "cosine of a constant": lambda x: F.cosine_similarity(x.unsqueeze(1), torch.ones(1, 3, 12), 2),
    }
    net, x = Function(functions[name]).eval(), sample(12, 1.0)
    config = BitConfig(rows=hummingbird.find_rows(net, x)) if ranged else BitConfig()
    (layer,) = (step.layer for step in build(net, config).plan if isinstance(step.layer, Norm))
    given = [x, x.flip(0)] if name == "cosine" else [x.unsqueeze(1), torch.ones(1, 3, 12)]
    given = given if name.startswith("cosine") else [x]
    price = layer.cost([Spec(tuple(value.shape), SCALE) for value in given], parties)
    sessions = make_sessions(parties)
    shares = [share((value / UNIT).long(), parties) for value in given]

    def run(session: Session, *own: Tensor) -> Tensor:
        return layer.formula(Shares(session, named("masked")(EXACT), SCALE), *own)

    with meter.meter() as counted:
        own = zip(*shares, strict=True)
        together([lambda s=s, mine=mine: run(s, *mine) for s, mine in zip(sessions, own, strict=True)])
    for session in sessions:
        session.channel.close()
    assert (counted.total.rounds, counted.total.bits_sent) == (parties * price.rounds, parties * price.bits)
    assert counted.total.received_bits == price.offline_bits
    known = {"norm": 2, "normalize": 3, "cosine": 4, "cosine of a constant": 4, "var": 3}
    assert not ranged or price.rounds == known[name]


def random_ranges(count: int) -> list[tuple[int, int, bool, Rows]]:
    """Lengths, divisors and ranges that are served: of norms, and of variances."""
    draw, out = random.Random(11), []
    while len(out) < count:
        length = draw.choice((1, 2, 3, draw.randint(4, 5000), 1 << draw.randint(2, 20)))
        correction = draw.choice((None, None, 0, 1))
        least = 2.0 ** draw.uniform(norms_in_range.FLATTEST, norms_in_range.LARGEST)
        rows = Rows(least, least * draw.choice((1.0001, 2.0 ** draw.uniform(0, 8), 256.0)))
        found = Statistic(correction is not None and length > 1, correction, 0.0)
        if length > (correction or 0) and norms_in_range.range_serves(rows, norms.LONGEST, found):
            out.append((length, found.divisor(length), found.center, rows))
    return out


@pytest.mark.parametrize("index", range(10))
def test_the_tables_keep_their_part_of_the_bound_for_every_sum(index: int) -> None:
    length, divisor, center, rows = random_ranges(10)[index]
    found, table, exponent = moments.root_sizes(length, center, rows, divisor)
    unit = 2.0**-table.fraction
    u = torch.arange(0, 1 << table.fraction, max(1, (1 << table.fraction) >> 18), dtype=torch.float64) * unit
    u = u[u <= root_at(found.root) + table.most]
    got, gain = evaluate(table, u - root_at(found.root)), table.gain / GAIN
    wanted, least = gain * u.sqrt(), gain * 2.0 ** (-found.root / 2)
    inside = u >= found.least
    rounded = 2.0**-table.scale
    assert float(((got - wanted).abs() - rounded)[inside].div(wanted[inside]).max()) <= 3 * 2.0**-16
    assert float((got - wanted).abs().max()) <= least / 4
    assert float(got.min()) >= -rounded and abs(float(got[0])) <= rounded + 2.0**-13 * least
    unscaled = 2.0 ** (found.top / 2) / found.scaled / math.sqrt(divisor)
    assert abs(2.0**exponent * gain / unscaled - 1) <= 2.0**-16  # g: 2^e v is the result
    # Results fit the bits that are right of them.
    assert math.sqrt(rows.most) * (1 + 2.0**-10) < 2.0 ** (moments.root_bits(rows) - moments.root_fraction(rows) - 2)


@pytest.mark.slow
def test_numbers_of_all_lengths_and_ranges_fit_the_ring() -> None:
    for length, divisor, center, rows in random_ranges(300):
        moments.root_sizes(length, center, rows, divisor)
        finer = norms_in_range.FRACTION_OF_LENGTH_1 if divisor == 1 else norms_in_range.FRACTION_IN_RANGE
        norms_in_range.norm_sizes(length, center, rows, divisor, finer)


def test_the_table_of_any_sum_is_a_root_down_to_0() -> None:
    u = torch.arange(0, (1 << 18) + 1, dtype=torch.float64) * 2.0**-18
    for gain in (1.0, 1.3, 1.99):
        table = moments.looked_up(round(gain * GAIN))
        got, wanted = evaluate(table, u - ROOT_AT), gain * u.sqrt()
        inside = u >= 0.25
        assert float((got / wanted - 1)[inside].abs().max()) <= 2.0**-15 + UNIT
        assert float((got - wanted)[~inside].abs().max()) <= gain / 8 and abs(float(got[0])) <= 2 * UNIT


@covering("name, protocol", ["norm", "std", "normalize", "cosine"], ["masked", "gmw"])
def test_comparisons_read_the_results(name: str, protocol: str) -> None:
    net, x = Function(lambda x: F.hardtanh(FUNCTIONS[name](x) - 0.25, -0.2, 0.3)).eval(), sample(5, 1.0)
    configs = [BitConfig()] if protocol == "gmw" else [BitConfig(), BitConfig(rows=hummingbird.find_rows(net, x))]
    for config in configs:
        got = hummingbird.simulate(net, config, protocol=protocol, mode="exact", seed=1)(x)
        assert float((got - net(x)).abs().max()) <= 2.0**-12


class Pooling(nn.Module):
    """Statistics pooling of an x-vector, and an embedding of length 1."""

    def __init__(self) -> None:
        super().__init__()
        self.frames, self.last = nn.Conv1d(6, 8, 3), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.frames(x))
        out: Tensor = F.normalize(self.last(torch.cat([y.mean(2), y.std(2)], 1)), dim=1)
        return out


def test_a_speaker_net_with_channels_that_are_dead() -> None:
    torch.manual_seed(4)
    net, x = Pooling().eval(), torch.randn(6, 6, 20)
    with torch.no_grad():
        net.frames.bias[0] = -20.0
        wanted = net(x)
    rows = hummingbird.find_rows(net, x)
    assert len(rows) == 2 and min(found.least for found in rows.values()) > 1e-4
    for config in (BitConfig(), BitConfig(rows=rows)):
        got = hummingbird.simulate(net, config, mode="exact", seed=1)(x)
        assert float((got - wanted).abs().max()) <= 2.0**-10


def test_what_is_refused_says_what_is_known() -> None:
    for function, what in {
        "inf": (lambda x: x.norm(torch.inf, 1), "a norm with p=inf"),
        "3": (lambda x: x.norm(p=3, dim=1), "a norm with p=3"),
        "matrix": (lambda x: torch.linalg.norm(x, 2, (1, 2)), "norm of a matrix"),
        "normalize": (lambda x: F.normalize(x, p=1.0), "normalize with p=1.0"),
        "correction": (lambda x: x.std(1, correction=0.5), "correction 0.5"),
    }.values():
        with pytest.raises(ModelError, match=what) as caught:
            trace(Function(function))
        assert all(problem.hint for problem in caught.value.problems)
    with pytest.raises(InputError, match=r"a variance of 1 value\(s\), with correction 1"):
        hummingbird.estimate(Function(lambda x: x.std(1)), (4, 1))
    with pytest.raises(ConfigError, match="no softmax, norm or function"):
        build(Function(lambda x: x.var(1)), BitConfig(rows={"var": Rows(0.1, 1.0)}))
