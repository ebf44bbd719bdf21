"""Numbers that forward() reads from weights: refused if parties without the weights see the steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hummingbird import he, hybrid
from hummingbird.bits import BitWindow
from hummingbird.convert import build
from hummingbird.errors import ModelError
from hummingbird.graph import SavedNet, trace
from hummingbird.graph.example_shapes import settled
from hummingbird.hybrid.plan_json import to_json
from tests.support.covering import every


class Net(nn.Module):
    """A layer, and a function of its result and of the net's tensors."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function, self.fc = function, nn.Linear(4, 3)
        self.t, self.v = nn.Parameter(torch.tensor(0.375)), nn.Parameter(torch.tensor([0.25, 0.5, 1.0]))
        self.register_buffer("mean", torch.tensor(0.625))
        self.register_buffer("scales", torch.tensor([0.5, 1.25, -2.0]))
        self.register_buffer("two", torch.tensor(2.0))
        self.register_buffer("places", torch.tensor([2, 0, 1]))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, self.fc(x))


TENSORS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "a factor": lambda s, x: x * s.t.item(),
    "a factor that is computed": lambda s, x: x * (s.t.item() * 2 + 1),
    "a norm of a layer": lambda s, x: x / s.fc.weight.norm().item(),
    "a shift of a list": lambda s, x: x + s.v.tolist()[1] - s.mean.item(),
    "a sum behind a ReLU": lambda s, x: x.relu() - s.scales.tolist()[0],
    "a list of a buffer": lambda s, x: x * torch.tensor(s.scales.tolist()),
    "a power": lambda s, x: x * s.two.item(),
}
READ: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "a bound": lambda s, x: x.clamp(max=s.t.item()),
    "a slope": lambda s, x: F.leaky_relu(x, s.t.item()),
    "computed before": lambda s, x: x.clamp(max=(s.t.detach() * 2).sum().item()),
    "computed after": lambda s, x: x.clamp(max=s.t.item() * 2 + 1),
    "a list": lambda s, x: x.clamp(max=s.v.tolist()[1]),
    "a buffer": lambda s, x: x.clamp(max=s.mean.item()),
    "a buffer as float": lambda s, x: x.clamp(max=float(s.mean.sqrt())),
    "a place": lambda s, x: x + int((s.mean * 4).round()),
}
FREE: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "tensors": lambda s, x: (x * s.t + s.v - s.mean).relu(),
    "sizes": lambda s, x: x.reshape(-1, s.v.shape[0], s.v.numel() // s.v.size(0)).flatten(1) / s.v.dim(),
    "whole numbers": lambda s, x: x[:, s.places.tolist()[0] :],
    "numbers in the code": lambda s, x: x.clamp(max=torch.tensor(0.5).item()),
}


@pytest.mark.parametrize("name", READ)
def test_a_number_of_the_weights_is_refused(name: str) -> None:
    net = Net(READ[name]).eval()
    for convert in (lambda: trace(net, elementwise=True, secret=True), lambda: he.convert_model(net, (4,))):
        with pytest.raises(ModelError, match="of a parameter or buffer: .* would be shown") as caught:
            convert()
        assert any("x * self.t" in p.hint or "multiply by it" in p.hint for p in caught.value.problems)
    assert trace(net, elementwise=True)[-1].op == "output"  # where everybody may know it


def test_a_number_that_is_compared_is_not_told_to_a_client() -> None:
    for bound in (lambda s: s.mean.sqrt(), lambda s: s.mean.item(), lambda s: s.t.item()):
        with pytest.raises(ModelError, match="a tensor that the net holds"):
            he.convert_model(Net(lambda s, x, bound=bound: torch.where(x > bound(s), x, -x)).eval(), (4,))


@pytest.mark.parametrize("name", every(2, [*TENSORS]))
def test_a_number_in_a_sum_or_a_product_remains_a_weight(name: str) -> None:
    """By both modes of encrypted images, two parties without a dealer, and steps for private weights."""
    net, x = Net(TENSORS[name]).eval(), torch.randn(5, 4).clamp(-4, 4)
    with torch.no_grad():
        wanted = net(x)
    assert torch.allclose(he.convert_model(net, (4,))(x), wanted, atol=1e-3)
    if "ReLU" not in name:
        assert torch.allclose(he.convert_model(net, (4,), "polynomial")(x), wanted, atol=1e-2)
    private = hybrid.convert_model(net, (4,), BitWindow(21, 5))
    assert torch.allclose(private(x), wanted, atol=2.0**-4)
    for steps in (trace(net, secret=True), private.plan.steps):
        numbers = [value for step in steps for value in step.attrs.values() if isinstance(value, float)]
        assert not numbers
    if "computed" in name:
        return
    told = to_json(private.plan)  # of the weights' sizes alone
    with torch.no_grad():
        for tensor in (net.t, net.v, net.mean, net.scales, net.two, *net.fc.parameters()):
            tensor.neg_()
    assert to_json(hybrid.convert_model(net, (4,), BitWindow(21, 5)).plan) == told


@pytest.mark.parametrize("name", FREE)
def test_sizes_tensors_and_public_numbers_are_not(name: str) -> None:
    net = Net(FREE[name]).eval()
    assert [step.op for step in trace(net, secret=True)] == [step.op for step in trace(net)]
    x = torch.randn(5, 4)
    with torch.no_grad():
        assert torch.allclose(he.convert_model(net, (4,))(x), net(x), atol=1e-3)


def test_private_weights_on_shares_and_two_parties() -> None:
    net = Net(READ["a bound"]).eval()
    assert build(net).plan and build(net, weights="public")
    with pytest.raises(ModelError, match="would be shown"):
        build(net, weights=0)
    buffer = nn.Sequential(Net(READ["a buffer"]), nn.ReLU(), nn.Linear(3, 2)).eval()
    with pytest.raises(ModelError, match="would be shown"):
        hybrid.convert_model(buffer, (4,), BitWindow(18, 6))


def test_with_an_example_too() -> None:
    """A net that asks for shapes, and is then known by its steps alone."""

    def asking(s: Any, x: Tensor) -> Tensor:
        return x.clamp(max=s.mean.item()) if x.shape[1] == 3 else x

    net, x = Net(asking).eval(), torch.zeros(2, 4)
    assert isinstance(settled(net, x), SavedNet)
    with pytest.raises(ModelError, match="would be shown"):
        settled(net, x, secret=True)
    net = Net(lambda s, x: x * s.t.item() + s.mean.item() if x.shape[1] == 3 else x).eval()
    assert torch.allclose(settled(net, x, secret=True)(torch.ones(2, 4)), net(torch.ones(2, 4)))
