"""Ranges of rows that are seen on inputs: they hold what was seen, with headroom, and serve private inference."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hummingbird
from hummingbird.bits import BitConfig
from hummingbird.errors import ConfigError, InputError
from tests.jobs import transformers as own


def test_what_was_seen_is_within_by_the_headroom() -> None:
    net = nn.Sequential(nn.LayerNorm(8), nn.Softmax(-1)).eval()
    torch.manual_seed(0)
    x = torch.randn(50, 8) * torch.linspace(0.5, 2, 50).unsqueeze(1)
    x = (x * 2.0**16).round() / 2.0**16  # as it is shared
    variance = x.double().var(1, unbiased=False) + 1e-5
    normed = torch.nn.functional.layer_norm(x, (8,)).double()
    c = normed - normed.mean(1, keepdim=True)
    for headroom in (0.0, 0.25, 1.0):
        more = 1 + headroom
        found = hummingbird.find_rows(net, x, headroom=headroom, batch=7)
        norm, softmax = found["0.norm"], found["1"]
        assert norm.least == pytest.approx(float(variance.min()) / more**2, rel=1e-5)
        assert norm.most == pytest.approx(float(variance.max()) * more**2, rel=1e-5)
        assert softmax.least == pytest.approx(float(c.min()) * more, rel=1e-5)
        assert softmax.most == pytest.approx(float(c.max()) * more, rel=1e-5)
        assert softmax.sum == pytest.approx(float((more * c).exp().mean(1).max()), rel=1e-5)


def test_rows_of_equal_values_have_a_range() -> None:
    (found,) = hummingbird.find_rows(nn.Sequential(nn.Softmax(-1)).eval(), torch.ones(3, 4)).values()
    assert found.least < 0 < found.most and found.sum == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "bert"])
def test_rows_seen_on_other_inputs_serve_a_transformer(name: str) -> None:
    """Nothing leaves its range, answers are torch's, and a call costs a part of the rounds."""
    net, x = own.nets()[name]
    torch.manual_seed(5)
    seen = x + 0.02 * x.std() * torch.randn(4, *x.shape)
    config = BitConfig(rows=hummingbird.find_rows(net, seen.flatten(0, 1)))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        fast = hummingbird.simulate(net, config, example=x)(x)
    exact = hummingbird.simulate(net, config, mode="exact", seed=1, example=x)(x)
    with torch.no_grad():
        wanted = net(x)
    for got in (fast, exact):
        assert float((got - wanted).abs().max()) <= 2.0**-7 * float(wanted.abs().max())
    rounds = [hummingbird.estimate(net, tuple(x.shape), bits).rounds for bits in (None, config)]
    assert rounds[1] < rounds[0] / 2


@pytest.mark.parametrize(
    ("x", "options", "error", "what"),
    [
        (torch.ones(0, 4), {}, InputError, "no images"),
        (torch.full((1, 4), float("nan")), {}, InputError, "NaN"),
        (torch.ones(1, 4), {"headroom": -0.1}, ConfigError, "headroom=-0.1"),
        (torch.ones(1, 4), {"headroom": "much"}, ConfigError, "headroom='much'"),
        (torch.ones(1, 4), {"headroom": float("inf")}, ConfigError, "headroom=inf"),
        (torch.ones(1, 4), {"batch": 0}, ConfigError, "0 images at a time"),
    ],
)
def test_bad_input_is_told(x: Tensor, options: dict[str, Any], error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=what):
        hummingbird.find_rows(nn.Sequential(nn.Softmax(-1)).eval(), x, **options)


def test_a_net_without_such_layers_has_no_rows() -> None:
    assert hummingbird.find_rows(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), torch.ones(2, 4)) == {}


class Recurrent(nn.Module):
    """The states of a recurrent layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)[0]
        return out


class ByHand(nn.Module):
    """A recurrent layer that is written out."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.state = nn.Linear(3, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.own(x[:, 0]))
        for time in range(1, x.shape[1]):
            h = torch.tanh(self.own(x[:, time]) + self.state(h))
        return h


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layer", "names"),
    [
        pytest.param(
            nn.LSTM(3, 4, 2, batch_first=True), "gates_l0 g_l0 c_l0 gates_l1 g_l1 c_l1", marks=pytest.mark.slow
        ),
        pytest.param(
            nn.GRU(3, 4, bidirectional=True, batch_first=True),
            "gates_l0 n_l0 gates_l0_reverse n_l0_reverse",
            marks=pytest.mark.slow,
        ),
        (nn.RNN(3, 4, batch_first=True), "h_l0"),
    ],
    ids=["lstm", "gru", "rnn"],
)
def test_ranges_of_a_recurrent_layer_hold_for_inputs_of_any_length(layer: nn.Module, names: str) -> None:
    net, x = Recurrent(layer).eval(), torch.randn(4, 5, 3)
    rows = hummingbird.find_rows(net, x)
    assert list(rows) == [f"layer.{name}" for name in names.split()]
    for length in (1, 4, 9):
        inputs = torch.cat([x, x.flip(1)], 1)[:, :length]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            config = BitConfig(rows=rows)
            private = hummingbird.simulate(net, config, mode="exact", seed=0, example=inputs)
            with torch.no_grad():
                assert float((private(inputs) - net(inputs)).abs().max()) < 0.01


def test_ranges_of_a_layer_that_is_written_out_are_for_one_length() -> None:
    """Its functions are numbered, so that the last one of a longer input has no range; this is announced."""
    net, x = ByHand().eval(), torch.randn(4, 5, 3)
    rows = hummingbird.find_rows(net, x)
    assert list(rows) == ["tanh", *(f"tanh_{number}" for number in range(1, 5))]
    assert len({str(found) for found in rows.values()}) == 2, "those that read a state share their range"
    with pytest.raises(ConfigError, match="no softmax, norm or function"):
        hummingbird.convert_model(net, BitConfig(rows=rows), example=x[:, :4])
    for length, warned in ((5, False), (6, True)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            hummingbird.convert_model(net, BitConfig(rows=rows), example=torch.randn(1, length, 3))
        said = [str(each.message) for each in caught if "results of the same weights" in str(each.message)]
        assert bool(said) == warned and all("inputs of this length" in sentence for sentence in said)
