"""Functions over a wide range by octaves: every input of 14 bits, prices, the simulation's law, the form taken."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hummingbird
from hummingbird.bits import EXACT, BitConfig, Rows
from hummingbird.channel import meter
from hummingbird.errors import ConfigError
from hummingbird.graph.ops.functions import value
from hummingbird.mpc.functions.octaves import FunctionByOctaves, function_in_range
from hummingbird.mpc.functions.tabulated import FunctionInRange
from hummingbird.mpc.layers.comparing import Shares
from hummingbird.mpc.layers.layer import Spec
from hummingbird.mpc.protocols.registry import named
from hummingbird.mpc.protocols.step_tables import TableChoice
from hummingbird.ring import SCALE
from hummingbird.simulation.compare import Compare
from hummingbird.simulation.layers import Simulated
from scripts.tools.function_table import Net
from tests.jobs.programs import unequal
from tests.support.parties import sessions as make_sessions
from tests.support.parties import share, together
from tests.support.patience import NEVER

# Of 14 bits, 8 of them fraction: all numbers from `least` on. The error is absolute, and that of small x counts.
CASES = [
    ("reciprocal(x)", 1.0, 2**-9),
    ("log(x)", 0.25, 2**-8),
    ("rsqrt(x)", 0.5, 2**-8),
    ("sqrt(x)", 0.25, 2**-9),
    ("div(-3.0,x)", 1.0, 2**-9),
    ("add(log2(x),1.5)", 1.0, 2**-8),
    ("pow(x,-2.0)", 1.0, 2**-9),
    ("pow(x,0.75)", 0.5, 2**-6),
    ("log1p(x)", 0.0, 2**-8),
    ("rsqrt(add(x,0.1))", 0.0, 2**-4),
    ("reciprocal(sub(x,-0.7))", 0.0, 2**-5),
]
MOST = 64 - 2.0**-8


def layer_of(text: str, rows: Rows, aim: str = "throughput", protocol: str = "masked") -> FunctionInRange:
    return function_in_range(text, named(protocol)(EXACT, aim=TableChoice.of(aim)), rows)


def run(layer: FunctionInRange, x: Tensor, parties: int, scale: int = SCALE) -> Tensor:
    """The results as real numbers, opened; rounds and bits must be those of the price."""
    group = make_sessions(parties)
    shares = share((x * 2.0**scale).round().long(), parties)
    with meter.meter() as counted:
        out = together(
            [
                lambda s=s, v=v: layer.formula(Shares(s, layer.exact, scale), v)
                for s, v in zip(group, shares, strict=True)
            ]
        )
    price = layer.cost([Spec((x.numel(),), scale)], parties)
    assert (counted.total.rounds, counted.total.bits_sent) == (parties * price.rounds, parties * price.bits)
    assert counted.total.received_bits == price.offline_bits
    above = 64 - min(layer.read, layer.valid([scale], [64]))
    return (sum(out[1:], out[0].clone()) << above >> above).double() * 2.0**-SCALE


@pytest.mark.parametrize(
    ("text", "least", "error", "parties"),
    [
        *(pytest.param(*case, 2, marks=() if n in (0, 9) else pytest.mark.slow) for n, case in enumerate(CASES)),
        *(pytest.param(*case, 3, marks=pytest.mark.slow) for case in CASES),
        (*CASES[2], 3),
    ],
)
def test_every_input_of_14_bits_keeps_the_error(text: str, least: float, error: float, parties: int) -> None:
    layer = layer_of(text, Rows(least, MOST, error=error))
    assert isinstance(layer, FunctionByOctaves)
    x = torch.arange(int(least * 256), 1 << 14, dtype=torch.float64) / 256
    wanted = value(text, x)
    n = Simulated(layer.exact, SCALE, parties, Compare(7, False))
    for read in (SCALE + 22, SCALE + 9, 64):
        layer.read = read
        for found in (run(layer, x, parties), layer.formula(n, x)):
            off = (found - wanted).abs()
            assert float(off.max()) <= layer.error(parties), read
    assert layer.error(2) <= error * (1 + 2**-6)
    # Of powers, the error is relative but for what the product rounds.
    if layer._octaves.factor is not None:
        grown = wanted.abs() / float(wanted[0].abs())
        assert bool((off <= 1.5 * layer.error(parties) * grown + 2.0**-10 * float(wanted.abs().max())).all())


def test_shares_with_more_fraction_are_cut_in_the_opening() -> None:
    for text in ("reciprocal(x)", "log(x)"):
        layer = layer_of(text, Rows(1, 64, error=2**-7))
        layer.read, x = 40, 1 + 63 * torch.rand(3000, dtype=torch.float64)
        assert float((run(layer, x, 2, 36) - value(text, x)).abs().max()) <= layer.error(2) + 2.0**-16


def test_a_simulation_decides_octaves_as_the_protocol_does() -> None:
    """Between t and t + 2^m by chance, with one random number for all thresholds (protocols/thresholds.py)."""
    layer = layer_of("reciprocal(x)", Rows(1, 64, error=2**-6))
    assert isinstance(layer, FunctionByOctaves)
    comparison, knots = layer._comparison(), layer._octaves.knots
    knot, room = knots[2], 2.0 ** (comparison.window.low - SCALE)
    inputs = torch.tensor([knot - 2.0**-6, knot + room / 4, knot + room / 2, knot + room, knot * 1.5])
    x = inputs.double().repeat_interleave(4000)
    codes, shares = [round(t * 2**SCALE) for t in knots], share((x * 2**SCALE).long(), 2)
    group = make_sessions(2)
    parts = together(
        [lambda s=s, v=v: comparison.steps(s, v, codes, SCALE)[0] for s, v in zip(group, shares, strict=True)]
    )
    ours = (parts[0] + parts[1]) & 255
    twins = torch.stack([*Simulated(comparison, SCALE, 2, Compare(3, False)).steps(x, knots)[0]])
    for found in (ours.double(), twins):
        assert bool((found[1:] <= found[:-1]).all())
        often = found.view(len(knots), 5, -1).mean(2)
        assert torch.equal(often[:2], torch.ones(2, 5).double()) and not often[3:].any()
        assert bool((often[2] - torch.tensor([0, 0.25, 0.5, 1, 1])).abs().max() < 5 * (0.25 / 4000) ** 0.5)


@pytest.mark.parametrize("missing", ["bit", "octave"])
def test_a_wrong_octave_shows(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = layer_of("reciprocal(x)", Rows(1, 64, error=2**-9))
    layer.read, x = 40, torch.linspace(1, 64, 500, dtype=torch.float64)
    before = named("masked").steps

    def broken(self: Any, *arguments: Any) -> Any:
        bits, y, z = before(self, *arguments)
        bits[1] = 0 if missing == "bit" else bits[1]
        y[2] = 0 if missing == "octave" else y[2]
        return bits, y, z

    monkeypatch.setattr(named("masked"), "steps", broken)
    assert float((run(layer, x, 2) - 1 / x).abs().max()) > 2**-9


def test_the_cheaper_form_is_taken_by_the_aim_and_others_are_refused() -> None:
    rows, wide = Rows(1, 64, error=2**-9), Rows(1, 1000, error=2**-9)
    for aim, by_octaves in (("throughput", True), ("latency", False), ("rounds", False), ("link:0.2:1e9", False)):
        assert isinstance(layer_of("reciprocal(x)", rows, aim), FunctionByOctaves) == by_octaves, aim
    assert isinstance(layer_of("reciprocal(x)", rows, "link:0.0001:1e9"), FunctionByOctaves)
    assert isinstance(layer_of("reciprocal(x)", wide, "latency"), FunctionByOctaves)  # no table is small enough
    for text, narrow in (("reciprocal(x)", Rows(1, 3, error=2**-9)), ("exp(x)", Rows(1, 4)), ("sigmoid(x)", rows)):
        assert not isinstance(layer_of(text, narrow), FunctionByOctaves)
    with pytest.raises(ConfigError, match="no table below 16 kB"):
        layer_of("reciprocal(x)", wide, protocol="gmw")  # whose comparisons give no steps
    for text, one in (("reciprocal(x)", 8_448), ("log(x)", 6_144)):
        direct, octaves = layer_of(text, rows, "latency"), layer_of(text, rows)
        direct.read = octaves.read = SCALE + 22
        costs = [layer.cost([Spec((1 << 14,), SCALE)], 2) for layer in (direct, octaves)]
        assert costs[0].rounds == 1 and costs[0].offline_bits >> 17 == one
        assert costs[1].rounds <= 6 and costs[1].offline_bits < costs[0].offline_bits / 20


class Mixed(nn.Module):
    """A division by private values, and a logarithm, between linear layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second, self.last = nn.Linear(6, 10), nn.Linear(6, 10), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        z = self.second(x).abs()
        return self.last(self.first(x) / (20 * z + 0.75) + torch.log(25 * z + 0.5))


INPUTS = 2 * torch.rand(40, 6, generator=torch.Generator().manual_seed(1)) - 1


def test_a_net_is_simulated_with_octaves() -> None:
    net = nn.Sequential(Net(torch.reciprocal), nn.Linear(6, 3)).eval()
    (name,) = hummingbird.find_rows(net, INPUTS.abs() + 1)
    bits, x = BitConfig(rows={name: Rows(1, 1000, error=2**-8)}), 1 + 998 * torch.rand(50, 6)
    with torch.no_grad():
        for mode in ("fast", "exact"):
            twin = hummingbird.simulate(net, bits, mode=mode, seed=0)
            assert float((twin(x) - net(x)).abs().max()) <= 6 * 2**-8
    private = hummingbird.convert_model(net, bits)
    assert any(isinstance(layer, FunctionByOctaves) and "10 octaves" in repr(layer) for layer in private.modules())
    with pytest.warns(UserWarning, match=r"reciprocal\(x\) is 1400"):
        hummingbird.simulate(net, bits)(torch.full((1, 6), 1400.0))


def _answer(session: Any, net: nn.Module, bits: BitConfig) -> tuple[Any, list[str]]:
    private = hummingbird.convert_model(net, bits, aim="throughput")
    assert sum(isinstance(layer, FunctionByOctaves) for layer in private.modules()) == 2
    with hummingbird.meter() as counted:
        out = private(hummingbird.cryptensor(INPUTS if session.rank == 0 else None, src=0)).get_plain_text()
    return out, unequal(counted)


@pytest.mark.slow
def test_two_processes_send_what_is_predicted() -> None:
    net = Mixed().eval()
    bits = BitConfig().with_rows(hummingbird.find_rows(net, INPUTS, error=2**-8))
    for out, bad in hummingbird.launch(_answer, net, bits, timeout=NEVER):
        assert not bad and float((out - net(INPUTS)).detach().abs().max()) <= 2.0**-5
