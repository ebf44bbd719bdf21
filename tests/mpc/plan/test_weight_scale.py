"""Weights before a window have 16 to 20 bits of fraction: no more than its comparison can tell apart."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hummingbird
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.convert import build
from hummingbird.errors import ConfigError, ModelError
from hummingbird.mpc.layers.linear import Linear
from hummingbird.mpc.plan.net import PrivateNet
from tests.support.operations import Function

COARSE = BitWindow(24, 12)


def linear(private: PrivateNet) -> dict[str, Linear]:
    """Linear layers by name."""
    return {step.name: step.layer for step in private.plan if isinstance(step.layer, Linear)}


def scales(net: nn.Module, bits: object = COARSE, **options: object) -> list[int]:
    """Bits of fraction of the weights of every linear layer."""
    return [layer.fraction for layer in linear(build(net.eval(), bits, **options)).values()]  # type: ignore[arg-type]


def seeded(net: nn.Module) -> nn.Module:
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.uniform_(-1, 1)
    return net.eval()


@pytest.mark.parametrize("protocol", ["masked", "gmw"])
@pytest.mark.parametrize(
    ("m", "q", "bits"),
    [(0, 0, 20), (8, 0, 20), (9, 0, 19), (10, 0, 18), (12, 0, 16), (14, 0, 16), (0, 6, 20), (8, 11, 17)],
)
def test_the_window_says_how_many(protocol: str, m: int, q: int, bits: int) -> None:
    net = seeded(nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)))
    assert scales(net, BitWindow(24, m, q), protocol=protocol) == [bits, 20]


class Branches(nn.Module):
    """Two linear maps, of which one is read by two windows."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.relu, self.pool = nn.Linear(6, 6), nn.Linear(6, 6), nn.ReLU(), nn.MaxPool1d(2)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.a(x), self.b(x)
        return self.pool(F.pad(torch.cat([a, a + b], 1).flip(1) + 0.5, (1, 1))[:, None]) * self.relu(a).sum()


def test_the_finest_reader_counts() -> None:
    net = seeded(Branches())
    assert scales(net) == [16, 16]
    assert scales(net, BitConfig(COARSE, {"relu": BitWindow(24, 10)})) == [18, 16]
    assert scales(net, BitConfig(COARSE, {"pool": BitWindow(24, 0)})) == [20, 20]


@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.ReLU()),
        nn.Sequential(nn.Linear(6, 6), Function(lambda x: x * 1.5), nn.ReLU()),
        nn.Sequential(nn.Linear(6, 6), Function(lambda x: x * x.relu())),
        nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6, elementwise_affine=False), nn.ReLU()),
        nn.Sequential(nn.Linear(6, 6), Function(lambda x: x + x.relu())),
    ],
    ids=["linear", "factor", "product", "norm", "result"],
)
def test_who_is_no_window_reads_all(net: nn.Module) -> None:
    assert scales(seeded(net))[0] == 20


def test_a_factor_up_to_one_passes_on_what_its_reader_needs() -> None:
    assert scales(seeded(nn.Sequential(nn.Linear(6, 6), Function(lambda x: x * -0.5), nn.ReLU()))) == [16]


def test_small_and_private_weights_keep_theirs() -> None:
    net = seeded(nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 3)))
    assert scales(net, weights=0) == [20, 20, 20]  # the first has 26 without windows (test_columns.py)
    with torch.no_grad():
        net[2].weight.mul_(2.0**-8)  # below 2^-8: 2^-10 of that is half a unit of 2^-17
    assert scales(net) == [16, 18, 20]


@pytest.mark.parametrize(
    ("size", "bits"), [(2.0**-2, 20), (2.0**-6, 20), (2.0**-7, 21), (2.0**-12, 26), (2.0**-20, 32)]
)
def test_small_weights_that_no_window_reads_have_more(size: float, bits: int) -> None:
    """2^-15 of the largest is half a unit, and more than 32 bits have no room in a result; a window that sees 2^-4
    needs no more than half of 2^-11.
    """
    net = seeded(nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 3)))
    with torch.no_grad():
        net[2].weight[0, 0] = 1.0
        net[2].weight.mul_(size)
    assert scales(net, BitWindow(64, 0)) == [20, bits, 20]
    assert scales(net)[1] == max(16, round(10 - math.log2(size)))


def test_small_weights_of_large_values_and_a_factor_err_by_their_roundings() -> None:
    """As the head of a text detector: batch norms folded into weights of 2^-12, before them values of a thousand, and
    then hardswish as x * clip(x + 3, 0, 6) / 6.
    """
    net = seeded(nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.ReLU()))
    x = torch.randint(0, 256, (4, 3, 9, 9)) / 128.0
    with torch.no_grad():
        net[0].weight.mul_(200).round_()
        net[0].bias.zero_()
        net[2].weight.fill_(2.0**-12 / 3)  # all are rounded the same way
        most = float(net[:2](x).max())
        assert most > 1000
        # 54 products. What the first layer gives is a multiple of 2^-7, and errs by a unit where it is opened.
        allowed = 54 * (most * 2.0**-29 + 2.0**-12 * 2.0**-16) + 3 * 2.0**-16
        error = hummingbird.simulate(net, mode="exact", seed=0)(x) - net.double()(x.double())
        assert float(error.abs().max()) <= allowed
        swish = Function(lambda x: x * (x + 3).clamp(0, 6) / 6)
        x = torch.rand(1, 600) * 200
        error = hummingbird.simulate(swish, mode="exact", seed=0, example=x)(x) - swish(x.double())
    # The factor errs by 2^-18 of itself at most, its product by 2 units for x and for the clip, up to 6 and 200.
    assert float((error.abs() - x * 2.0**-18).max()) <= (200 + 6) / 6 * 2 * 2.0**-16 + 3 * 2.0**-16


def test_a_dropped_window_passes_the_next_one_on() -> None:
    net = seeded(nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Hardtanh(-2.0, 2.0)))
    assert scales(net, BitConfig(COARSE, {"1": BitWindow(0, 0)})) == [16]


@pytest.mark.parametrize("protocol", ["masked", "gmw"])
def test_the_twin_has_the_same_weights(protocol: str) -> None:
    net = seeded(nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 7)))
    private = build(net, COARSE, protocol=protocol)
    layers = linear(private)
    twin = hummingbird.simulate(net, COARSE, protocol=protocol, seed=0)
    for _ in range(2):
        steps = twin._as_converted().steps
        for name, layer in layers.items():
            weight = steps[name].attrs["weight"].double()
            code = layer.weight.code if weight.dim() == 4 else layer.weight.code.t()
            assert torch.equal(weight * 2.0**layer.fraction, code.double())
        twin.set_bits(BitWindow(24, 0))
        layers = {
            s.name: s.layer for s in build(net, BitWindow(24, 0), protocol=protocol).plan if isinstance(s.layer, Linear)
        }


@pytest.mark.parametrize("protocol, parties", [("masked", 2), ("masked", 3), ("gmw", 2)])
def test_results_err_by_what_the_weights_do(protocol: str, parties: int) -> None:
    """Values far from zero, so that windows decide nothing; weights err by 2^-17 and, in two steps, 2^-21, each."""
    net, x = seeded(nn.Sequential(nn.Linear(6, 6), nn.Hardtanh(-20.0, 20.0))), torch.rand(40, 6) + 1
    got = hummingbird.simulate(net, COARSE, protocol=protocol, parties=parties, mode="exact", seed=0)(x)
    with torch.no_grad():
        allowed = x.abs().sum(1, keepdim=True) * (2.0**-17 + 2.0**-21) + 8 * 2.0**-16
        assert bool(((got - net(x)).abs() <= allowed).all())


@pytest.mark.parametrize(("m", "bits"), [(12, 40), (8, 44)])
def test_a_value_before_it_is_dealt_as_many_bits_less(m: int, bits: int) -> None:
    net = seeded(nn.Sequential(nn.Linear(6, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 3)))
    first = next(step.layer for step in build(net, BitWindow(24, m)).plan if step.name == "1")
    assert first.comparison.ring == bits


@pytest.mark.parametrize("protocol", ["masked", "gmw"])
@pytest.mark.parametrize("aim", ["latency", "pair"])
def test_a_number_of_bits_for_all_weights(protocol: str, aim: str) -> None:
    """Public and private weights are the same numbers, and both twins' results those of these numbers."""
    net = seeded(nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)))
    config, x = BitConfig(COARSE, weight_bits=8), torch.rand(5, 6)
    public, private = (linear(build(net, config, weights, protocol, aim=aim)) for weights in ("public", 0))
    assert {layer.fraction for layer in (*public.values(), *private.values())} == {8}
    for name, layer in public.items():
        assert torch.equal(layer.weight.code.long(), private[name].weight.code)  # type: ignore[union-attr]
    both = (hummingbird.simulate(net, config, protocol, mode=mode, seed=1, aim=aim)(x) for mode in ("fast", "exact"))
    with torch.no_grad():
        fast, exact = both
        rounded = hummingbird.simulate(net, COARSE, protocol, seed=1, aim=aim)(x)
    assert torch.allclose(fast, exact, atol=2**-8) and not torch.allclose(fast, rounded, atol=2**-8)
    twin = hummingbird.simulate(net, COARSE, protocol, seed=1, aim=aim)
    twin.set_bits(config)  # type: ignore[operator]
    with torch.no_grad():
        assert torch.equal(twin(x), fast)


def test_weights_that_few_bits_lose() -> None:
    """The owner of private weights, and everybody with public ones, is told; the text says no size of a weight."""
    net = seeded(nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)))
    with torch.no_grad():
        net[2].weight.mul_(0.01)  # type: ignore[operator, union-attr]
    for weights in ("public", 0):
        with pytest.raises(ModelError, match="2: weights so small that 8 bits of fraction miss them"):
            build(net, BitConfig(COARSE, weight_bits=8), weights)
        build(net, BitConfig(COARSE, weight_bits=10), weights)
    with torch.no_grad():
        net[2].weight.mul_(100.0)  # type: ignore[operator, union-attr]
        net[0].weight[:, 0].mul_(2.0**-8)  # type: ignore[operator, union-attr]
    build(net, BitConfig(COARSE, weight_bits=8))  # the column of public weights is doubled
    with pytest.raises(ModelError, match="0: columns of weights so small that they would be rounded away"):
        build(net, BitConfig(COARSE, weight_bits=8), 0)
    with pytest.raises(ConfigError, match="weight_bits=8: weights of a net without a dealer"):
        hummingbird.simulate(net, BitConfig(COARSE, weight_bits=8), cut=True)
