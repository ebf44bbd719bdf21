"""Refusals of he.convert_model and of a model: an error of this library that says what, where and what to do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hummingbird import he
from hummingbird.errors import ConfigError, HummingbirdError, InputError, ModelError
from hummingbird.he.service.server import Service
from tests.support.he_cases import Fn, images


@pytest.fixture(scope="module")
def model() -> he.HEModel:
    torch.manual_seed(0)
    return he.convert_model(nn.Linear(4, 2), (4,))


@pytest.mark.parametrize("sign", [1, -1])
def test_values_beyond_the_range_are_refused_at_both_ends(sign: int) -> None:
    made, x = he.convert_model(nn.Linear(4, 2), (4,), "polynomial", input_range=2.0), torch.zeros(3, 4)
    x[1, 2] = 2.25 * sign
    with pytest.raises(InputError, match=r"images reach 2.25, .*\|input\| <= 2: image 1"):
        made(x)


@pytest.mark.parametrize(
    ("x", "what"),
    [
        (torch.zeros(0, 4), r"images are \(0, 4\), this net takes \(n, 4\)"),
        (torch.tensor(1.0), r"images are \(\)"),
        (torch.zeros(4), r"images are \(4,\)"),
        (torch.zeros(2, 4, dtype=torch.int64), "torch.int64"),
        (torch.zeros(2, 4, dtype=torch.bool), "torch.bool"),
        (torch.zeros(2, 4, dtype=torch.complex64), "torch.complex64"),
        (torch.zeros(2, 4, device="meta"), "device meta"),
        (torch.zeros(2, 4).to_sparse(), "sparse"),
        (torch.zeros(2, 4).numpy(), "ndarray"),
        (None, "NoneType"),
    ],
)
def test_images(model: he.HEModel, x: Any, what: str) -> None:
    with pytest.raises(InputError, match=what) as caught:
        model(x)
    assert caught.value.where == "images" and caught.value.hint


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_floats_of_any_kind_are_images(model: he.HEModel, dtype: torch.dtype) -> None:
    assert model(torch.ones(2, 4, dtype=dtype, requires_grad=True)).dtype == torch.float32


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        *(({"input_shape": shape}, "input_shape") for shape in (4, "4", None, (4.0,), (True,), (-1,), (1 << 40,))),
        *(({"input_range": bound}, "input_range") for bound in ("4", float("nan"), 0, -1, True, 1e300, 1e-300)),
        ({"mode": None}, "mode"),
        ({"packing": []}, "packing"),
        ({"degree": "2048"}, "degree"),
        ({"samples": [1, 2]}, "samples"),
        ({"samples": torch.zeros(0, 4)}, "samples"),
    ],
)
def test_arguments(arguments: dict[str, Any], where: str) -> None:
    with pytest.raises((InputError, ConfigError)) as caught:
        he.convert_model(nn.Linear(4, 2), **({"input_shape": (4,)} | arguments))
    assert caught.value.where == where and caught.value.hint


def scaled(factor: float) -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 2).requires_grad_(False))
    net[0].weight.mul_(factor)
    return net


@pytest.mark.parametrize("mode", ["client-aided", "polynomial"])
def test_nets(mode: str) -> None:
    for net, what in [
        (nn.ReLU(), "no layer has weights"),
        (nn.Sequential(), "no layer has weights"),
        (nn.Linear(4, 2, device="meta"), "0: its weights have no values"),
        (nn.Linear(4, 2).half(), "float16"),
        (nn.Linear(4, 2, dtype=torch.complex64), "complex64"),
        (nn.Linear(4, 0), "0, output: holds no values"),
        *([(scaled(1e30), "0: weights up to")] if mode == "client-aided" else []),
        (scaled(float("nan")), "0: weight holds NaN"),
        (nn.LocalResponseNorm(2), "LocalResponseNorm is not in the vocabulary"),
    ]:
        with pytest.raises(ModelError, match=what):
            he.convert_model(net, (4,), mode)
    for net in (scaled(0.0), scaled(1e-30), nn.Linear(4, 2).double()):
        x = images(3, (4,))
        assert torch.allclose(he.convert_model(net, (4,), mode)(x), net.float()(x), atol=1e-3)


def test_memory_beyond_the_machine_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="planning runs the net in the clear, which takes .* GB; this machine has"):
        he.convert_model(nn.Conv2d(3, 64, 3), (3, 1 << 17, 1 << 17))
    model = he.convert_model(nn.Linear(400, 300), (400,))
    monkeypatch.setattr("hummingbird.he.runtime.model.installed", lambda device: 1 << 20)
    with pytest.raises(ConfigError, match="a batch takes .* GB for client and server, this machine has 0.00105"):
        model(torch.zeros(1, 400))
    monkeypatch.setattr("hummingbird.he.service.server.installed", lambda device: 1 << 20)
    with pytest.raises(ConfigError, match="a turn needs"):
        Service(model.server)


def test_a_net_that_fails_on_its_input_says_where() -> None:
    net = Fn(lambda s, x: s.l(x.flatten(1)), l=nn.Linear(5, 2))
    with pytest.raises(HummingbirdError, match="does not take images of shape"):
        he.convert_model(net, (2, 3))


def test_a_prelu_is_named_as_such_in_polynomial_mode_and_its_hint_leads_to_a_result() -> None:
    """Nobody knows an encrypted value's sign: as of a ReLU, there is no exact form."""
    torch.manual_seed(0)
    layers = nn.Linear(6, 4), nn.PReLU(4), nn.Linear(4, 2)
    for net, name in ((nn.Sequential(*layers), "1"), (nn.Sequential(*layers[:2]), "1")):
        with pytest.raises(ModelError) as caught:
            he.convert_model(net, (6,), "polynomial")
        (problem,) = caught.value.problems
        assert problem.name == name and problem.what.startswith("prelu of an encrypted value")
        assert "x * x" in problem.hint and "client-aided" in problem.hint
        x = torch.randn(3, 6)
        with torch.no_grad():
            assert torch.allclose(he.convert_model(net, (6,))(x), net(x), atol=1e-3)
    before, x = nn.Sequential(nn.PReLU(6), nn.Linear(6, 2)), torch.randn(3, 6).clamp(-4, 4)  # of plain values: exact
    with torch.no_grad():
        assert torch.allclose(he.convert_model(before, (6,), "polynomial")(x), before(x), atol=5e-3)
