"""Nets whose ReLUs are computed behind their max poolings: right answers, windows for both orders, fewer bits."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn

import hummingbird
from hummingbird import graph
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.mpc.plan import rewritten
from hummingbird.mpc.plan.rewritten import Rewritten
from hummingbird.ring import SCALE
from hummingbird.simulation.observe import magnitudes

SHAPE = (1, 1, 8, 8)


def net(*, pool_first: bool = False) -> nn.Sequential:
    """A linear layer of one weight, a ReLU and a max pooling, in either order."""
    conv = nn.Conv2d(1, 1, 1, bias=False)
    nn.init.constant_(conv.weight, 1.0)
    pair = [("relu", nn.ReLU()), ("pool", nn.MaxPool2d(2))]
    return nn.Sequential(OrderedDict([("conv", conv), *(pair[::-1] if pool_first else pair)])).eval()


def spread(most: float) -> Tensor:
    """Values from -most to most, of which every pooling window has some of either sign."""
    torch.manual_seed(0)
    x = (torch.rand(20, *SHAPE[1:]) * 2 - 1) * most
    x[..., ::2, ::2], x[..., 1::2, 1::2] = -most, most
    return x * (torch.rand(20, 1, 1, 1) - 0.5).sign()


@pytest.mark.parametrize(
    "window",
    [BitWindow(64, 0), BitWindow(18, 0), BitWindow(18, 6), BitWindow(18, 6, 6), BitWindow(18, 0, 6)],
    ids=str,
)
def test_answers_are_right_to_the_ends_of_the_relus_window(window: BitWindow) -> None:
    """With [18:m) a ReLU holds |x| < 2, less 2^m; differences of such values need a bit more."""
    low = 2.0 ** (window.low - SCALE)
    x = spread(2 - 2 * low - (4 * 2.0 ** (window.q - SCALE) if window.q else 0))  # a unit for each level, at each end
    twin = hummingbird.simulate(net(), window, mode="exact", seed=0)
    with torch.no_grad():
        assert float((twin(x) - net()(x)).abs().max()) <= (5 if window.q else 2) * low  # two levels round, and the ReLU


def test_a_pooling_without_the_further_bit_would_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewritten, "_room", lambda relu, pool: 0)
    x = spread(1.9)
    with torch.no_grad():
        out = hummingbird.simulate(net(), BitWindow(18, 0), mode="exact", seed=0)(x)
        assert float((out - net()(x)).abs().max()) > 1


def test_the_windows_of_both_orders() -> None:
    order = Rewritten.of(graph.trace(net()), "masked")
    assert order.passed == {"pool": ["relu"]}
    for relu, pool, expected in (
        ((20, 12), (20, 12), (21, 12)),
        ((20, 12), (18, 10), (21, 10)),
        ((20, 12), (24, 10), (24, 10)),
        ((20, 8), (20, 12), (22, 12)),
        ((64, 0), (20, 12), (64, 12)),
        ((0, 0), (20, 12), (20, 12)),
        ((20, 12, 6), (20, 12), (21, 12)),
        ((20, 12, 6), (20, 12, 6), (21, 12, 6)),
        ((20, 2, 6), (20, 7), (21, 7)),
        ((20, 12), (0, 0), (0, 0)),
    ):
        config = BitConfig(layers={"relu": BitWindow(*relu), "pool": BitWindow(*pool)})
        windows = order.windows(config)
        assert windows.window("pool") == BitWindow(*expected) and windows.window("relu") == BitWindow(*relu)
    assert not Rewritten.of(graph.trace(net()), "gmw").passed
    assert not Rewritten.of(graph.trace(net(pool_first=True)), "masked").passed


def test_windows_found_for_a_net_are_still_its_own() -> None:
    steps = graph.trace(net())
    config = BitConfig(BitWindow(20, 12), provenance={"net": graph.fingerprint(steps), "protocol": "masked"})
    private, twin = hummingbird.convert_model(net(), config), hummingbird.simulate(net(), config)
    assert private.comparing_layers == ["pool", "relu"] and set(twin.comparing_layers) == {"relu", "pool"}
    assert private.facts["net"] == graph.fingerprint(steps)
    twin.set_bits(config)
    gmw = hummingbird.convert_model(net(), config.windows, protocol="gmw")
    assert gmw.comparing_layers == ["relu", "pool"]


@pytest.mark.parametrize("mode", ["fast", "exact"])
@pytest.mark.parametrize("window", [None, BitWindow(20, 0)], ids=str)
def test_the_twin_in_either_order(mode: str, window: BitWindow | None) -> None:
    x = spread(3.0).requires_grad_(mode == "fast")  # with gradients the net's own order, without the parties'
    twin = hummingbird.simulate(net(), window, mode=mode, seed=0)
    expected = net()(x).detach()
    assert float((twin(x).detach() - expected).abs().max()) <= 2.0**-14
    with torch.no_grad():
        assert float((twin(x) - expected).abs().max()) <= 2.0**-14


def test_a_relu_is_given_a_window_that_holds_what_comes_before_the_pooling() -> None:
    """So that windows found here serve a training twin and other protocols, which keep the net's own order."""
    x = spread(1.0)
    x[:, :, 0, 0] = -50  # no maximum
    largest = magnitudes(net(), x)
    assert largest["relu"] == 50 << SCALE and largest["pool"] >= 51 << SCALE


def test_a_relu_is_paid_for_what_the_pooling_leaves() -> None:
    for window in (BitWindow(20, 12), BitWindow(64, 0)):
        first, second = (hummingbird.estimate(net(pool_first=order), SHAPE, window) for order in (False, True))
        elements = [{layer.name: layer.elements for layer in each.layers} for each in (first, second)]
        assert elements[0]["relu"] == elements[1]["relu"] == 16
        kept = hummingbird.estimate(net(), SHAPE, window, protocol="gmw")
        assert {layer.name: layer.elements for layer in kept.layers}["relu"] == 64
    assert first.total == second.total  # exact: the same net


@pytest.mark.parametrize("protocol", ["masked", "gmw"])
@pytest.mark.parametrize("pools", [1, 2])
def test_the_fast_twin_exchanges_under_gradients_too(pools: int, protocol: str) -> None:
    """The same numbers as without, drawn in the same order, and gradients as ever."""
    layers = OrderedDict([*net().named_children()])
    more = OrderedDict([("relu2", nn.ReLU()), ("pool2", nn.MaxPool2d(2))]) if pools == 2 else OrderedDict()
    both = nn.Sequential(OrderedDict([*layers.items(), *more.items()])).eval()
    bits, x = BitConfig(BitWindow(20, 14), {"relu": BitWindow(20, 12)}), (spread(2) * 2.0**16).round() / 2.0**16
    plain = hummingbird.simulate(both, bits, protocol, seed=5)
    with torch.no_grad():
        expected = plain(x)
    live = hummingbird.simulate(both, bits, protocol, seed=5)(x)
    assert live.requires_grad and torch.equal(live.detach(), expected)
    live.sum().backward()
    assert float(both.conv.weight.grad.abs().max()) > 0  # type: ignore[union-attr, operator]
