"""Elementwise functions at the client, each checked to be one; powers as products; what is refused, and how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hummingbird import he
from hummingbird.errors import InputError, ModelError
from hummingbird.graph import run, trace
from hummingbird.graph.ops.elementwise import _MODULES, _TWO, FUNCTIONS
from tests.support.covering import every
from tests.support.he_cases import TOO_LARGE, Fn, errors, images, parameter

NUMBERS: dict[str, tuple[Any, ...]] = {
    "clamp": (0.4,),
    "clip": (None, 0.6),
    "clamp_max": (0.5,),
    "clamp_min": (0.5,),
    "pow": (3,),
    "threshold": (0.5, 7.0),
    "hardtanh": (0.2, 0.7),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_function_is_elementwise(name: str) -> None:
    """A result's element is that of its own place alone, whatever stands elsewhere, however many there are."""
    torch.manual_seed(0)
    function, count = FUNCTIONS[name], 2 if name in _TWO.split() else 1
    least = 1.05 if name.endswith("cosh") else 0.05  # where acosh begins
    values = [torch.rand(3, 4) * 0.9 + least for _ in range(count)]
    whole = function(*values, *NUMBERS.get(name, ()))
    assert whole.shape == (3, 4)
    for i in range(3):
        for j in range(4):
            alone = function(*(value[i, j].view(1) for value in values), *NUMBERS.get(name, ()))
            assert torch.allclose(alone, whole[i, j].view(1), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", _MODULES)
def test_each_module_is_its_function(kind: type[nn.Module]) -> None:
    arguments = {nn.Threshold: (0.1, 20.0), nn.Softplus: (2.0, 3.0), nn.ELU: (0.3,), nn.Softshrink: (0.2,)}
    module = kind(*arguments.get(kind, ())).eval()
    steps = trace(nn.Sequential(module), elementwise=True)
    x = torch.randn(5, 6)
    assert [step.op for step in steps] == ["input", "elementwise", "output"]

    assert torch.equal(run(steps, x), module(x))


LAMBDAS: dict[str, Callable[[Any], Any]] = {
    "exp": torch.exp,
    "log of one more": lambda x: torch.log(x.abs() + 1),
    "root": lambda x: (x**2 + 1).sqrt(),
    "root of relu": lambda x: torch.sqrt(F.relu(x)),
    "erf": torch.erf,
    "softplus": F.softplus,
    "mish in place": lambda x: x.mul(1.0).exp_(),
    "elu": lambda x: F.elu(x, 0.5),
    "python's abs": abs,
    "cube": lambda x: x**3,
    "number over value": lambda x: 1 / (1 + x * x),
    "two values": lambda x: torch.maximum(x, x.abs() / (x * x + 1)),
    "keywords": lambda x: torch.clamp(input=x, max=0.3) + torch.pow(x, exponent=2) + torch.pow(2.0, x),
    "remainder": lambda x: torch.remainder(x, 100.0) % 90.0,
}


@pytest.mark.parametrize("name", LAMBDAS)
def test_nets_with_them_are_torchs(name: str) -> None:
    torch.manual_seed(1)
    function = LAMBDAS[name]
    net = Fn(lambda s, x: s.b(function(s.a(x))), a=nn.Linear(6, 8), b=nn.Linear(8, 4)).eval()
    if name == "remainder":
        nn.init.constant_(net.a.bias, 10.0)  # away from the jump at 0
    model = he.convert_model(net, (6,))
    measured, predicted = errors(model, net, images(100, (6,)))
    assert measured < TOO_LARGE * predicted
    again = he.Public.from_json(model.public.to_json())
    assert again.steps[-1].op == "output" and again.to_json() == model.public.to_json()


@pytest.mark.slow
@pytest.mark.parametrize("exponent", every(4, [6.0, 3, 4, 5]))
def test_whole_powers_of_encrypted_values(exponent: float) -> None:
    torch.manual_seed(2)
    net = Fn(lambda s, x: s.b(s.a(x) ** exponent), a=nn.Linear(4, 3), b=nn.Linear(3, 2)).eval()
    samples, x = (torch.rand(count, 4) * 4 - 2 for count in (200, 100))
    model = he.convert_model(net, (4,), "polynomial", samples=samples)
    assert not any(step.op == "elementwise" for step in model.plan.steps)
    # The error of x ** 6 has a heavy tail, as it grows with |x| ** 5: a tenth of all batches are beyond the bound. The
    # median of 15 is with a probability of 3e-5.
    runs = [errors(model, net, x) for _ in range(15)]
    measured, predicted = sorted(run[0] for run in runs)[7], runs[0][1]
    assert measured < TOO_LARGE * predicted and predicted < 2.0**-8 * float(net(x).detach().abs().max())


def test_what_is_refused() -> None:
    def of(function: Callable[[Tensor], Tensor]) -> nn.Module:
        return Fn(lambda s, x: s.b(function(s.a(x))), a=nn.Linear(4, 4), b=nn.Linear(4, 4)).eval()

    shared = parameter(4)
    for net, mode, what in [
        (of(lambda x: torch.maximum(x, shared)), "client-aided", "parameters are the server's"),
        (of(torch.exp), "polynomial", "exp of an encrypted value"),
        (of(lambda x: (x * x) ** 2.5), "polynomial", "pow of an encrypted value"),
        (Fn(lambda s, x: s.b(x.exp()), b=nn.Linear(4, 2)), "polynomial", "exp: no bound is known"),
        (of(lambda x: x.cumsum(1)), "client-aided", "cumsum is not in the vocabulary"),
    ]:
        with pytest.raises(ModelError, match=what):
            he.convert_model(net, (4,), mode)
    with pytest.raises(InputError, match="NaN on the inputs.*log"):
        he.convert_model(Fn(lambda s, x: s.b(x.log()), b=nn.Linear(4, 2)), (4,))
    positive = torch.rand(10, 4) + 0.1
    assert he.convert_model(Fn(lambda s, x: s.b(x.log()), b=nn.Linear(4, 2)), (4,), samples=positive)
    with pytest.raises(ModelError):  # between parties nothing of this is known
        trace(of(torch.frac))


def test_an_output_that_is_no_number_is_refused_by_image() -> None:
    net = Fn(lambda s, x: s.a(x).log(), a=nn.Linear(4, 2, bias=False)).eval()
    nn.init.constant_(net.a.weight, 1.0)
    model = he.convert_model(net, (4,), samples=torch.rand(10, 4) + 0.1)
    x = torch.rand(5, 4) + 0.1
    assert torch.allclose(model(x), net(x), atol=1e-3)
    x[2] = -1.0
    with pytest.raises(InputError, match="no longer finite: image 2"):
        model(x)
