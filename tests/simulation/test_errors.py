"""`find_errors`: results err by no more than was asked, for fewer bytes than with one error for all functions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import hummingbird
from hummingbird.bits import BitConfig, Rows
from hummingbird.errors import ConfigError, InputError


class Unequal(nn.Module):
    """Two functions: the first one's errors are multiplied by 30, the second one's by 1/30."""

    def forward(self, x: Tensor) -> Tensor:
        return 30 * torch.tanh(x) + torch.nn.functional.softplus(2 * x + 1) / 30


class Stacked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(3, 4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)[0][:, -1]
        return out


def error_of(net: nn.Module, x: Tensor, rows: dict[str, Rows], protocol: str = "masked") -> float:
    """The results' largest error relative to an input's largest result, by the code of two parties."""
    twin = hummingbird.simulate(net, BitConfig().with_rows(rows), protocol, mode="exact", seed=0, example=x[:1])
    with torch.no_grad():
        wanted = net(x)
        return float(((twin(x) - wanted).abs().amax(1) / wanted.abs().amax(1)).max())


def offline(net: nn.Module, rows: dict[str, Rows]) -> float:
    return hummingbird.estimate(net, (1, 8), BitConfig().with_rows(rows)).offline_bytes


@pytest.mark.slow
def test_unequal_functions_get_unequal_errors_and_fewer_bytes() -> None:
    net, x = Unequal().eval(), torch.linspace(-3, 3, 256).view(32, 8)
    ranges = hummingbird.find_rows(net, x)
    rows = hummingbird.find_errors(net, x, ranges, within=0.005)
    first, second = (rows[name].error for name in ("tanh", "softplus"))
    assert first is not None and second is not None and 8 * first < second
    assert error_of(net, x, rows) <= 0.005
    same = {name: replace(found, error=first) for name, found in ranges.items()}
    assert offline(net, rows) < offline(net, same)
    coarse = {name: replace(found, error=second) for name, found in ranges.items()}
    assert error_of(net, x, coarse) > 0.005, "the errors matter here"


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["masked", "gmw"])
def test_time_steps_share_an_error_and_the_last_state_errs_little(protocol: str) -> None:
    torch.manual_seed(2)
    net, x = Stacked().eval(), torch.randn(6, 4, 3)
    ranges = hummingbird.find_rows(net, x)
    rows = hummingbird.find_errors(net, x, ranges, within=0.01, protocol=protocol)
    assert {name: (found.least, found.most) for name, found in rows.items()} == {
        name: (found.least, found.most) for name, found in ranges.items()
    }
    assert list(rows) == [f"layer.{function}_l{layer}" for layer in (0, 1) for function in ("gates", "g", "c")]
    assert all(found.error is not None for found in rows.values())
    assert error_of(net, x, rows, protocol) <= 0.01


def test_rows_of_softmaxes_stay() -> None:
    net, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Softmax(1)).eval(), torch.randn(8, 4)
    ranges = hummingbird.find_rows(net, x)
    rows = hummingbird.find_errors(net, x, ranges, within=0.02)
    assert rows["2"] == ranges["2"] and rows["1"].error is not None
    only = {"2": ranges["2"]}
    assert hummingbird.find_errors(net, x, only, within=0.02) == only


def test_inputs_that_are_too_small_are_refused() -> None:
    """The rounding of inputs of 2^-12 is 2^-5 of them: no table helps."""
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).eval()
    net[0].weight.data.mul_(2.0**12)
    net[0].bias.data.zero_()
    x = torch.rand(8, 4, generator=torch.Generator().manual_seed(0)) * 2.0**-12
    with pytest.raises(InputError, match=r"multiples of 2\^-16.*\n.*multiply the inputs by 2\^\d+"):
        hummingbird.find_errors(net, x, {"1": Rows(-4, 4)}, within=0.01)
    net[0].weight.data.mul_(2.0**-10)
    assert hummingbird.find_errors(net, x * 2.0**10, {"1": Rows(-4, 4)}, within=0.01)["1"].error


def test_what_cannot_be_is_refused() -> None:
    net, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).eval(), torch.randn(8, 4)
    for within in (0, 1, -0.1, True, "1 %"):
        with pytest.raises(ConfigError, match="between 0 and 1"):
            hummingbird.find_errors(net, x, {"1": Rows(-4, 4)}, within=within)
    with pytest.raises(ConfigError, match="more than 0.0001, with the finest tables"):
        hummingbird.find_errors(net, x, {"1": Rows(-4, 4)}, within=1e-4)
    with pytest.raises(ConfigError, match="0"):
        hummingbird.find_errors(net, x, {"0": Rows(-4, 4)}, within=0.01)
    with pytest.raises(InputError, match="no images"):
        hummingbird.find_errors(net, x[:0], {"1": Rows(-4, 4)}, within=0.01)
