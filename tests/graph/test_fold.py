"""Scales of layer norms inside of the linear layers that read them: the same function, one step less."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hummingbird import graph
from hummingbird.graph.fold import sums


class Block(nn.Module):
    """A norm that a linear layer reads, and where asked something else too."""

    def __init__(self, residual: bool, bias: bool = True, size: int = 6) -> None:
        super().__init__()
        self.norm, self.fc, self.residual = nn.LayerNorm(6), nn.Linear(size, 6, bias), residual
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        z = self.fc(y if self.fc.in_features == 6 else y.flatten(1))
        return y + z if self.residual else z


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("residual", [True, False])
def test_linear_layers_take_the_scale_of_the_norm_before_them(residual: bool, bias: bool) -> None:
    torch.manual_seed(0)
    net, x = Block(residual, bias).eval(), torch.randn(4, 3, 6)
    steps = graph.trace(net)
    ops = [step.op for step in steps]
    assert ops.count("scale_last") == residual
    linear = next(step for step in steps if step.op == "linear")
    assert steps[linear.inputs[0].index].op == "norm"
    with torch.no_grad():
        assert torch.allclose(graph.run_all(steps, x)[-1], net(x), atol=1e-5)


def test_a_scale_of_other_dimensions_stays() -> None:
    """A linear layer that reads several rows at once multiplies other values than the scale has."""
    torch.manual_seed(0)
    net, x = Block(False, size=18).eval(), torch.randn(4, 3, 6)
    steps = graph.trace(net)
    assert [step.op for step in steps].count("scale_last") == 1
    with torch.no_grad():
        assert torch.allclose(graph.run_all(steps, x)[-1], net(x), atol=1e-5)


def test_a_linear_layer_that_is_called_twice_has_weights_for_each_norm() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.fc = nn.LayerNorm(6), nn.LayerNorm(6), nn.Linear(6, 6)
            for norm in (self.a, self.b):
                nn.init.normal_(norm.weight)
                nn.init.normal_(norm.bias)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.a(x)) + self.fc(self.b(x)) + self.fc(x)

    torch.manual_seed(0)
    net, x = Twice().eval(), torch.randn(4, 6)
    with torch.no_grad():
        assert torch.allclose(graph.run_all(graph.trace(net), x)[-1], net(x), atol=1e-5)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 31])
def test_sums_by_halves_are_sums(length: int) -> None:
    rows = torch.arange(5 * length, dtype=torch.float64).view(5, length) + 0.25
    assert torch.equal(sums(rows), rows.sum(1))
