"""Smooth activations by tables: right for every value that their window is for, and in as many bits as are read."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hummingbird
from hummingbird import convert
from hummingbird.bits import BitWindow
from hummingbird.mpc.functions.function_table import FINEST
from hummingbird.mpc.functions.tabulated import Tabulated
from hummingbird.mpc.layers.layer import Layer
from hummingbird.simulation.observe import magnitudes

LAYERS = {"sigmoid": nn.Sigmoid, "tanh": nn.Tanh, "silu": nn.SiLU, "gelu-none": nn.GELU}


def layer_of(net: nn.Module, window: BitWindow) -> Tabulated:
    """The first table of a net under this window."""
    found = next(step.layer for step in convert.build(net, window).plan if isinstance(step.layer, Tabulated))
    return found


@pytest.mark.parametrize("window", [(20, 12), (20, 0), (12, 4), (22, 12), (26, 0), (30, 22), (64, 0)], ids=str)
@pytest.mark.parametrize("name", LAYERS)
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
