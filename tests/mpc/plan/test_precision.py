"""Nets whose windows round: right wherever results of different fractions meet, and priced to the bit."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hummingbird
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.errors import ConfigError
from tests.jobs import rounded_run
from tests.support.covering import covering
from tests.support.parties import succeed

Q = 6
UNIT = 2.0 ** (Q - 16)


class Meeting(nn.Module):
    """Sums, concatenations, means, padding, constants and products of results with different fractions."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.ReLU(), nn.LeakyReLU(0.25), nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        fine, coarse = self.a(x), self.b(x)
        both = torch.cat([fine + coarse, F.pad(coarse, (1, 1, 0, 0), value=0.3)[..., 1:-1] - x + 0.1], 1)
        means = coarse.mean((2, 3), keepdim=True)
        return self.c(F.avg_pool2d(both, 2)) * torch.cat([means, means], 1)


def values(shape: tuple[int, ...] = (4, 3, 8, 8)) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(shape)


def gap(net: nn.Module, bits: BitConfig | BitWindow, x: Tensor, **options: object) -> float:
    with torch.no_grad():
        return float((hummingbird.simulate(net, bits, seed=1, **options)(x) - net(x)).abs().max())  # type: ignore[arg-type]


@covering("protocol, parties, mode", [("masked", 2), ("masked", 3), ("gmw", 2)], ["exact", "fast"])
def test_results_of_different_fractions_meet(protocol: str, parties: int, mode: str) -> None:
    """Every result is off by N / 2 units at most, gmw's by one; a product by two factors' errors."""
    net, x = Meeting().eval(), values()
    bits = BitConfig(BitWindow(24, 0), {"b": BitWindow(24, 0, Q), "c": BitWindow(24, 4, Q - 2)})
    unit = UNIT * (parties / 2 if protocol == "masked" else 1) + 2.0**-13
    # b: one unit in its ReLU and in what it adds; the clamp rounds twice, by a quarter of that each time.
    worst = 6 * 1.0 * unit + (2 * unit + 2 * unit / 4) * float(net.b(x).mean((2, 3)).abs().max())
    assert gap(net, bits, x, protocol=protocol, parties=parties, mode=mode) <= worst
    assert gap(net, BitWindow(24, 0), x, protocol=protocol, parties=parties, mode=mode) < 2.0**-11


@pytest.mark.parametrize("net", [nn.MaxPool2d(2), nn.Hardswish(), nn.GELU(), nn.Sigmoid(), nn.Softmax(1)], ids=repr)
def test_every_kind_of_layer_takes_a_q(net: nn.Module) -> None:
    """Larger than without, smaller than what q takes from a handful of values; both twins agree."""
    x = values((50, 4, 4, 4))
    fine = gap(net, BitWindow(26, 0), x, mode="exact")
    for mode in ("fast", "exact"):
        assert gap(net, BitWindow(26, 0, Q), x, mode=mode) <= fine + 24 * UNIT


def test_both_twins_round_as_often() -> None:
    """Values between multiples of 2^(q-16) go either way, in proportion."""
    n, net = 20_000, nn.ReLU()
    for protocol, parties in (("masked", 2), ("masked", 3), ("gmw", 2)):
        for part in (0.25, 0.5, 0.9):
            x = torch.full((1, n), (5 + part) * UNIT)
            for mode in ("fast", "exact"):
                y = hummingbird.simulate(net, BitWindow(20, 0, Q), protocol, parties, mode, seed=3)(x) / UNIT
                assert bool((y == y.round()).all())
                # Hoeffding 1963, results within 3 units, at 1e-9; and a unit of the shares' last place, in 2^6.
                reach = 3 * (10.8 / n) ** 0.5 + 2.0**-Q
                assert abs(float(y.double().mean()) - 5 - part) < reach, (protocol, parties, part, mode)


def test_gradients_pass_as_if_nothing_were_rounded() -> None:
    for protocol, parties in (("masked", 2), ("masked", 3), ("gmw", 2)):
        twin = hummingbird.simulate(nn.Sequential(nn.ReLU()), BitWindow(20, 0, Q), protocol, parties, seed=1).train()
        x = values((1000,)).requires_grad_()
        y = twin(x)
        y.sum().backward()
        assert x.grad is not None and torch.equal(x.grad, (y != 0).float())
        assert bool((y.detach() != x.detach()).any()) and float((y.detach() - x.detach().relu()).abs().max()) < 2 * UNIT


@pytest.mark.slow
def test_a_real_run_sends_what_was_predicted_and_gives_what_torch_does() -> None:
    net, x = rounded_run.make()
    with torch.no_grad():
        wanted = net(x)
    for party in succeed(["-m", "tests.jobs.rounded_run"], 2):
        for protocol, found in json.loads(party.out.splitlines()[-1]).items():
            assert found["counted"] == found["predicted"], protocol
            assert float((torch.tensor(found["result"]) - wanted).abs().max()) < 0.05, protocol
            assert found["bits"] < found["bits without q"] or protocol == "gmw"


def test_prices_fall_with_q_and_windows_are_shown() -> None:
    net, shape = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU()), (1, 3, 8, 8)
    prices = [hummingbird.estimate(net, shape, BitWindow(20, 12, q), aim="throughput") for q in (0, 6, 7)]
    assert prices[0].total.offline_bits > prices[1].total.offline_bits > prices[2].total.offline_bits
    assert prices[0].total.bits > prices[1].total.bits > prices[2].total.bits
    assert "[20:12) q=6" in str(prices[1])


def test_a_net_without_a_dealer_has_no_q() -> None:
    from hummingbird import hybrid

    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3))
    with pytest.raises(ConfigError, match="a q: default"):
        hybrid.convert_model(net, (1, 8, 8), BitWindow(20, 10, 6))
    with pytest.raises(ConfigError, match="a q: default"):
        hummingbird.simulate(net, BitWindow(20, 10, 6), cut=True)


def test_a_q_that_leaves_one_bit_names_the_layer() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with pytest.raises(ConfigError, match="fewer than two") as caught:
        hummingbird.convert_model(net, BitWindow(8, 0, 7))
    assert caught.value.where == "1"
