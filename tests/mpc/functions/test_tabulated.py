"""Functions with tails by tables: right for every value that their window is for, and in as many bits as are read."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hummingbird
from hummingbird import convert
from hummingbird.bits import EXACT, BitConfig, BitWindow, Rows
from hummingbird.channel import meter
from hummingbird.graph.ops.functions import value
from hummingbird.mpc.functions.function_table import FINEST
from hummingbird.mpc.functions.tabulated import Tabulated
from hummingbird.mpc.layers.comparing import Shares
from hummingbird.mpc.layers.layer import Layer, Spec
from hummingbird.mpc.protocols.registry import named
from hummingbird.mpc.protocols.step_tables import TableChoice
from hummingbird.simulation.observe import magnitudes
from tests.support.covering import covering
from tests.support.parties import sessions, share, together

LAYERS = {"sigmoid": nn.Sigmoid, "tanh": nn.Tanh, "silu": nn.SiLU, "gelu-none": nn.GELU}


def layer_of(net: nn.Module, window: BitWindow) -> Tabulated:
    """The first table of a net under this window."""
    found = next(step.layer for step in convert.build(net, window).plan if isinstance(step.layer, Tabulated))
    return found


@covering("name, window", LAYERS, [[20, 12], [20, 0], [12, 4], [22, 12], [26, 0], [30, 22], [64, 0]], ids=str)
def test_every_value_of_the_window_is_right(name: str, window: tuple[int, int]) -> None:
    """From end to end, less 2^(m - 16): directly for windows that a table spans, and clamped for all others."""
    net, (k, m) = nn.Sequential(LAYERS[name]()), window
    found = layer_of(net, BitWindow(k, m)).look_up(16)
    assert found.clamped == (k > 22)
    edge = 2.0 ** (min(k, 36) - 17) - 2.0 ** (m - 16)
    x = torch.linspace(-edge, edge, 3000)
    x = torch.cat([x, torch.linspace(-1, 1, 600) * min(edge, 16.0)]).view(-1, 1)
    wanted = net(x)
    got = hummingbird.simulate(net, BitWindow(k, m), mode="exact", seed=1)(x)
    # Beside the table's error: the line or the end that the function is near, and roundings to 2^-16.
    assert float((got - wanted).abs().max()) <= found.error(2) + 2.0**-14 + 4 * 2.0**-16
    fast = hummingbird.simulate(net, BitWindow(k, m), seed=1)(x)
    assert float((fast - wanted).detach().abs().max()) <= found.error(2) + 2.0**-14 + 4 * 2.0**-16


def test_m_is_the_precision_and_readers_choose_the_bits() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.SiLU(), nn.Linear(3, 3), nn.ReLU())
    shares = {m: layer_of(net, BitWindow(20, m)).look_up(36) for m in (0, 8, 10, 12, 14)}
    assert [found.table.fraction for found in shares.values()] == [FINEST, FINEST, 12, 10, 8]
    errors = [found.error(2) for found in shares.values()]
    assert errors == sorted(errors)
    # A linear layer of 16 bits and a comparison of 20: 36 low bits of the table's result count.
    assert shares[12].bits == 36 - 16 + 10
    plan = {step.name: step.layer for step in convert.build(net[:2], BitWindow(20, 12)).plan}
    lift = plan["1.lift"]  # the output: three bits before the point, a sign and two more
    assert isinstance(lift, Layer) and lift.needs([16], 64) == 16 + 3 + 3


def test_a_window_found_is_that_of_the_values_themselves() -> None:
    x = torch.linspace(-7.5, 7.0, 64).view(2, 32)
    assert magnitudes(nn.Sequential(nn.SiLU()), x) == {"0": int(7.5 * 2**16)}


def test_gradients_pass_where_values_passed() -> None:
    twin = hummingbird.simulate(nn.Sequential(nn.Tanh()), BitWindow(19, 12), clamp=True).train()
    x = torch.tensor([[0.5, -1.0, 300.0]], requires_grad=True)
    twin(x).sum().backward()
    assert x.grad is not None and x.grad[0, 2] == 0
    assert torch.allclose(x.grad[0, :2], 1 - torch.tanh(x.detach()[0, :2]) ** 2)


# Clamped look-ups -----------------------------------------------------------------------------------------------------

TOLD = Rows(-23, 23, error=2**-10)
ELU = "mul(1.0,expm1(x))"


@pytest.mark.parametrize(
    ("text", "window", "rows", "aim", "protocol", "parties", "rounds"),
    [
        ("sigmoid(x)", BitWindow(23, 12), None, "throughput", "masked", 2, 3),
        ("tanh(x)", EXACT, TOLD, "throughput", "masked", 2, 3),
        ("tanh(x)", BitWindow(24, 12), None, "rounds", "masked", 3, 2),
        ("silu(x)", EXACT, TOLD, "throughput", "masked", 2, 3),
        pytest.param("silu(x)", BitWindow(26, 8), None, "latency", "masked", 3, None, marks=pytest.mark.slow),
        ("silu(x)", BitWindow(26, 8), None, "latency", "gmw", 2, 8),
        pytest.param("logsigmoid(x)", EXACT, TOLD, "throughput", "masked", 2, 3, marks=pytest.mark.slow),
        pytest.param("mul(x,erf(x))", EXACT, TOLD, "throughput", "masked", 2, 3, marks=pytest.mark.slow),
        (ELU, BitWindow(18, 0), None, "latency", "masked", 2, 4),
        pytest.param(ELU, EXACT, Rows(-9, 9, error=2**-9), "rounds", "masked", 2, 4, marks=pytest.mark.slow),
    ],
)
def test_a_clamped_look_up_is_right_up_to_its_ends_and_costs_its_price(
    text: str, window: BitWindow, rows: Rows | None, aim: str, protocol: str, parties: int, rounds: int | None
) -> None:
    """Also for values that exceed a told range by half; ELU's own part is that left of 0."""
    comparison, rises, scale = named(protocol)(window, aim=TableChoice.of(aim)), text == ELU, 20
    layer = Tabulated(text, comparison, rows, rises)
    layer.read = 40
    found = layer.look_up(scale)
    edge = 2.0 ** (window.k - 17) - 2.0**-4 if rows is None else 1.5 * rows.most
    x = torch.cat([torch.linspace(-edge, edge, 3000), torch.linspace(-1, 1, 3000) * min(edge, 13.0)]).double()
    group = sessions(parties)
    try:
        with meter.meter() as counted:
            parts = zip(group, share((x * 2**scale).round().long(), parties), strict=True)
            out = together([lambda s=s, v=v: layer.formula(Shares(s, comparison, scale), v) for s, v in parts])
    finally:
        for session in group:
            session.channel.close()
    above = 64 - layer.valid([scale], [64])
    got = (sum(out[1:], out[0].clone()) << above >> above).double() * 2.0**-16
    wanted = torch.where(x > 0, x, value(text, x.clamp(max=0))) if rises else value(text, x)
    assert found.clamped and float((got - wanted).abs().max()) <= found.error(parties) + 2.0**-14
    price = layer.cost([Spec((len(x),), scale)], parties)
    assert rounds is None or price.rounds == rounds
    assert (counted.total.rounds, counted.total.bits_sent) == (parties * price.rounds, parties * price.bits)
    assert counted.total.received_bits == price.offline_bits


def test_throughput_clamps_where_that_takes_fewer_bytes() -> None:
    """A told range of +-23 costs a seventh of the table over all of it, and one of +-5 has no tails to cut off."""

    def form(most: float, aim: str) -> tuple[bool, int]:
        layer = Tabulated("tanh(x)", named("masked")(EXACT, aim=TableChoice.of(aim)), Rows(-most, most, error=2**-10))
        layer.read = 24
        return layer.look_up(16).clamped, layer.cost([Spec((10_000,), 16)], 2).offline_bits // 80_000

    assert form(5, "throughput") == form(5, "latency") and not form(5, "throughput")[0]
    (clamped, few), (direct, many) = form(23, "throughput"), form(23, "latency")
    assert clamped and not direct and few < many / 3


def test_a_simulation_takes_what_is_half_beyond_the_range_and_warns_of_more() -> None:
    net = nn.Sequential(nn.Tanh())
    twin = hummingbird.simulate(net, BitConfig(rows={"0": Rows(-200, 200, error=2**-10)}))
    x = torch.tensor([[-299.0, -4.0, 0.5, 299.0]])
    assert float((twin(x) - net(x)).abs().max()) <= 2.0**-10
    with pytest.warns(UserWarning, match=r"tanh\(x\) is 600"):
        twin(torch.full((1, 4), 600.0))
