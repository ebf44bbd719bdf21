"""heaviside, an operation in two files: its `Op`, and its private layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hummingbird
from hummingbird.errors import ModelError
from hummingbird.saving import load_net


class Steps(nn.Module):
    def __init__(self, at_zero: float) -> None:
        super().__init__()
        self.at_zero = at_zero

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.heaviside(x, torch.tensor(self.at_zero))


@pytest.mark.parametrize("at_zero", [0.0, 1.0])
@pytest.mark.parametrize("protocol", ["masked", "gmw"])
def test_it_is_right_in_private_and_a_saved_net_has_it(at_zero: float, protocol: str, tmp_path) -> None:
    net, x = Steps(at_zero).eval(), torch.tensor([[-3.0, -(2.0**-16), 0.0, 2.0**-16, 7.0]])
    for mode in ("exact", "fast"):
        assert torch.equal(hummingbird.simulate(net, protocol=protocol, mode=mode, seed=0)(x), net(x))
    assert hummingbird.estimate(net, (5,), protocol=protocol) is not None
    hummingbird.save(net, tmp_path / "net")
    assert torch.equal(load_net(tmp_path / "net")(x), net(x))


def test_a_value_between_is_refused() -> None:
    with pytest.raises(ModelError, match="heaviside with the value .* at 0"):
        hummingbird.convert_model(Steps(0.5).eval())
