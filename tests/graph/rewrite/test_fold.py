"""Scales and shifts of norms inside of the linear layers beside them: the same function, one step less."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hummingbird import graph
from hummingbird.graph.rewrite import sums


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


# Batch norms ----------------------------------------------------------------------------------------------------------

LAYERS = {
    "conv": lambda bias: (nn.Conv2d(4, 6, 3, bias=bias), nn.BatchNorm2d(6, eps=0.5)),
    "conv_transpose": lambda bias: (nn.ConvTranspose2d(4, 6, 3, groups=2, bias=bias), nn.BatchNorm2d(6, eps=0.5)),
    "conv3d": lambda bias: (nn.Conv3d(4, 6, 2, groups=2, bias=bias), nn.BatchNorm3d(6, eps=0.5)),
    "linear": lambda bias: (nn.Linear(4, 6, bias), nn.BatchNorm1d(6, eps=0.5)),
}


def drawn(norm: nn.Module) -> nn.Module:
    """A batch norm whose numbers are all unlike, and unlike 0 and 1."""
    for tensor in (norm.running_mean, norm.weight, norm.bias):
        nn.init.normal_(tensor, 1.0)
    nn.init.uniform_(norm.running_var, 0.2, 2.0)
    return norm


def folded(net: nn.Module, x: Tensor) -> list[str]:
    """The ops that a net is folded to, whose values are checked."""
    steps = graph.trace(net.eval())
    with torch.no_grad():
        # float32: sums of at most 36 products below 10
        assert torch.allclose(graph.run_all(steps, x)[-1], net(x), atol=1e-4)
    return [step.op for step in steps if step.op not in ("input", "output")]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", LAYERS)
def test_batch_norms_become_weights_of_the_layer_before(kind: str, bias: bool) -> None:
    layer, norm = LAYERS[kind](bias)
    x = torch.randn({"linear": (5, 4), "conv3d": (5, 4, 3, 4, 5)}.get(kind, (5, 4, 6, 6)))
    assert folded(nn.Sequential(layer, drawn(norm)), x) == [kind.removesuffix("3d")]


class Shared(nn.Module):
    """A layer that something else reads too, or that is called twice, or whose norm is."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.fc, self.norm, self.other = how, nn.Linear(4, 4), drawn(nn.BatchNorm1d(4)), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        if self.how == "layer is read twice":
            return self.norm(y) + y
        return self.norm(y) + (self.fc(y) if self.how == "layer is called twice" else self.norm(self.other(x)))


@pytest.mark.parametrize("how", ["layer is read twice", "layer is called twice", "norm is called twice"])
def test_a_batch_norm_stays_where_weights_have_another_use(how: str) -> None:
    assert "affine" in folded(Shared(how), torch.randn(5, 4))
