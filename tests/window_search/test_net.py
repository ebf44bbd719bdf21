"""The search's view of real nets: it must be what the converter says, layer by layer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hummingbird.bits import EXACT, BitConfig, BitWindow
from hummingbird.convert import convert_model
from hummingbird.errors import ConfigError, InputError, ModelError
from hummingbird.window_search import group_layers, online_bytes, predicted_seconds, search_bits
from hummingbird.window_search.net import SearchedNet
from models.resnet import resnet18

SHAPE = (3, 8, 8)


class Small(nn.Module):
    """A ReLU that is called twice, a residual sum, a maximum, two comparisons in one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.conv3 = nn.Conv2d(4, 4, 3, padding=1)
        self.relu, self.pool, self.clamp = nn.ReLU(), nn.MaxPool2d(2), nn.ReLU6()
        self.fc = nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.conv1(x))
        x = self.pool(self.relu(self.conv2(x)) + x)
        return self.fc(torch.flatten(self.clamp(self.conv3(x)), 1))


def accepted(net: nn.Module, config: BitConfig, protocol: str) -> bool:
    try:
        convert_model(net, config, protocol=protocol)
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize("protocol", ["masked", "gmw"])
def test_names_outputs_limits_and_prices_are_the_converters(protocol: str) -> None:
    net = Small().eval()
    searched = SearchedNet(net, SHAPE, protocol)
    private = convert_model(net, protocol=protocol)
    assert searched.names == private.comparing_layers == ["relu", "relu#1", "pool", "clamp"]
    layers = searched.layers(dict.fromkeys(searched.names, 1000))
    elements = {planned.name: planned.elements for planned in private.costs((1, *SHAPE), 2)}
    assert [layer.outputs for layer in layers] == [elements[name] for name in searched.names] == [256, 256, 64, 64]
    for layer in layers:
        alone = {name: EXACT for name in searched.names}
        assert accepted(net, BitConfig(EXACT, alone | {layer.name: BitWindow(layer.limit, 8)}), protocol)
        if protocol == "masked" and layer.limit < 64:
            ends = [alone | {layer.name: BitWindow(layer.limit + more, 8)} for more in (0, 1)]
            costs = [[p.cost for p in convert_model(net, BitConfig(EXACT, end)).costs((1, *SHAPE), 2)] for end in ends]
            assert costs[0] == costs[1], "a window is cut off at the limit"
    assert [layer.limit < 64 for layer in layers] == [True, True, False, True]  # the pool reads what a ReLU has lifted
    for window in (BitWindow(20, 12), BitWindow(20, 3), BitWindow(12, 0)):
        priced = {
            planned.name: planned.cost
            for planned in convert_model(net, window, protocol=protocol).costs((5, *SHAPE), 3)
        }
        for layer in layers:
            price = searched.prices(3)(layer, window, 5)
            assert (price.rounds, price.bits) == (priced[layer.name].rounds, priced[layer.name].bits)
            assert searched.prices(3)(layer, BitWindow(0, 0), 5).bits == 0


@pytest.mark.parametrize("protocol", ["masked", "gmw"])
def test_it_accepts_what_the_converter_accepts(protocol: str) -> None:
    net = nn.Sequential(
        nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)
    ).eval()
    searched, seen = SearchedNet(net, (4,), protocol), set()
    none = BitWindow(0, 0)
    for k in (20, 46, 47, 48, 60):
        for dropped in ((), ("1",), ("1", "3")):
            config = BitConfig(EXACT, {**dict.fromkeys(dropped, none), "5": BitWindow(k, k - 2)})
            answer = searched.accepts(config)
            assert answer == accepted(net, config, protocol), (k, dropped)
            seen.add(answer)
    assert seen == {True, False}


@pytest.mark.slow
def test_resnet18_has_the_papers_five_groups_and_its_relus() -> None:
    searched = SearchedNet(resnet18(10).eval(), (3, 32, 32))
    groups = group_layers(searched.layers(dict.fromkeys(searched.names, 2**19)), "stage")
    assert [group.name for group in groups] == ["stem", "layer1", "layer2", "layer3", "layer4"]
    counts = [sum(layer.outputs for layer in group.layers) for group in groups]
    assert counts == [65536, 65536, 32768, 16384, 8192] and sum(counts) == 188416
    assert all(20 < layer.limit <= 48 for group in groups for layer in group.layers)


@pytest.mark.parametrize("name", ["bytes", pytest.param("seconds", marks=pytest.mark.slow)])
def test_a_search_of_a_real_net_gives_a_config_that_converts(name: str) -> None:
    net = Small().eval()
    searched = SearchedNet(net, SHAPE)
    groups = group_layers(searched.layers(dict.fromkeys(searched.names, 2**18)), "layer")

    def accuracy(config: BitConfig) -> float:
        return 1 - sum(max(0, 8 - window.w) for window in config.layers.values()) / 64

    if name == "bytes":
        objective = online_bytes("masked", 2, prices=searched.prices(2))
    else:
        objective = predicted_seconds("masked", 2, bandwidth=1e9, rtt=0.01, prices=searched.prices(2))
    whole = sum(objective.price(layer, BitWindow(20, 12)) for group in groups for layer in group.layers)
    config = search_bits(
        groups,
        accuracy,
        whole * 3 / 4,
        objective=objective,
        margin=0.5,
        widths=(0, 4, 8),
        accepts=searched.accepts,
        identity=searched.fingerprint,
    )
    spent = [p.cost for p in convert_model(net, config).costs((1, *SHAPE), 2) if p.name in searched.names]
    paid = sum(c.bits / 8 if name == "bytes" else c.seconds(1e9, 0.01) for c in spent)
    assert config.provenance["cost"] == pytest.approx(paid, rel=1e-12) and paid <= whole * 3 / 4


def test_nets_that_cannot_be_searched_are_refused() -> None:
    with pytest.raises(InputError, match="no comparing layers"):
        SearchedNet(nn.Linear(4, 2), (4,))
    with pytest.raises(ModelError, match="LocalResponseNorm"):
        SearchedNet(nn.Sequential(nn.LocalResponseNorm(2), nn.ReLU()), (4,))
    with pytest.raises(InputError, match="cannot take an input of shape"):
        SearchedNet(nn.Sequential(nn.Linear(4, 2), nn.ReLU()), (5,))
    with pytest.raises(ConfigError, match="unknown protocol 'other'"):
        SearchedNet(nn.Sequential(nn.Linear(4, 2), nn.ReLU()), (4,), "other")
    searched = SearchedNet(nn.Sequential(nn.Linear(4, 2), nn.ReLU()), (4,))
    for largest in ({}, {"1": 5, "2": 5}):
        with pytest.raises(InputError, match="magnitudes and layers differ in [12]"):
            searched.layers(largest)
