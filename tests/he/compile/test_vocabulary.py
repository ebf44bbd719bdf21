"""Operations beyond layers and activations: right, refused with a hint, and nothing of the server's at the client."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hummingbird import graph, he, hybrid
from hummingbird.bits import BitWindow
from hummingbird.errors import ModelError
from hummingbird.he.compile import bounds, magnitudes, placement
from hummingbird.he.runtime.client_spec import Public
from hummingbird.he.runtime.model import HEModel
from hummingbird.structure import flatten
from tests.support.he_cases import Fn, conv, images, parameter

MODES = ("client-aided", "polynomial")
Function = Callable[[Any, Tensor], Any]


def parts(s: Any, x: Tensor) -> Tensor:
    first, second = s.l(x).chunk(2, 1)
    return first + second


def rows(s: Any, x: Tensor) -> Tensor:
    first, second = s.l(x).view(-1, 2, 3).unbind(1)
    return first - second


def pieces(s: Any, x: Tensor) -> Tensor:
    first, second = s.l(x).split([2, 4], 1)
    return first.sum(1, keepdim=True) + second


VIEWED: dict[str, Function] = {
    "parts of an encrypted value, added": parts,
    "rows of an encrypted value, subtracted": rows,
    "pieces of an encrypted value, one summed": pieces,
    "turned and joined anew behind a layer": lambda s, x: torch.cat([s.l(x).flip(1), s.l(x).roll(2, 1)], 1)[:, None],
    "expanded to the batch's size": lambda s, x: s.l(x[:, :1].expand(x.shape[0], 6)),
    "expanded behind a layer": lambda s, x: s.l(x)[:, :1].expand(x.size(0), 4) + 1,
}


def checked(net: nn.Module, shape: tuple[int, ...], mode: str) -> None:
    """The net is torch's on what its client can be told in JSON."""
    model, x = he.convert_model(net, shape, mode), images(3, shape)
    told = model.public.to_json()
    assert Public.from_json(told).to_json() == told
    with torch.no_grad():
        assert torch.allclose(model(x), net(x), atol=5e-3)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", VIEWED)
def test_views_of_encrypted_values(name: str, mode: str) -> None:
    torch.manual_seed(0)
    checked(Fn(VIEWED[name], l=nn.Linear(6, 6)), (6,), mode)


@pytest.mark.parametrize("mode", MODES)
def test_resizing_to_the_size_of_another_value(mode: str) -> None:
    torch.manual_seed(0)
    net = Fn(lambda s, x: F.interpolate(s.c(x), size=x.shape[2:], mode="bilinear"), c=conv(2, 3, 2, stride=2))
    checked(net, (2, 4, 4), mode)


def secret(value: float | list[float]) -> nn.Parameter:
    return nn.Parameter(torch.tensor(value))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda s, x: torch.maximum(s.l(x), s.p), "a tensor that the net holds"),
        (lambda s, x: torch.where(s.l(x) > s.t, 1.0, 0.0), "a tensor that the net holds"),
        (lambda s, x: torch.where(s.t.abs() < s.l(x), 1.0, 0.0), "a tensor that the net holds"),
        (lambda s, x: torch.where(s.l(x) > s.p[0], 1.0, 0.0), "a tensor that the net holds"),
        (lambda s, x: torch.cat([s.q.expand(x.shape[0], -1), s.l(x)], 1), "a tensor that the net holds"),
    ],
)
def test_refused_with_the_conversion_that_takes_it(function: Function, what: str, mode: str) -> None:
    held = {"p": parameter(3), "q": parameter(1, 3), "t": secret(0.1234567)}
    net = Fn(function, l=nn.Linear(6, 3), **held)  # type: ignore[arg-type]
    with pytest.raises(ModelError) as caught:
        he.convert_model(net, (6,), mode)
    problem = caught.value.problems[0]
    assert what in problem.what and "hummingbird.convert_model" in problem.hint


RESULTS: dict[str, Function] = {
    "a tuple, with the input": lambda s, x: (s.l(x), x, s.l(x)[:, None]),
    "a list of one": lambda s, x: [s.l(x)],
    "a dict": lambda s, x: {"a": s.l(x), "b": [s.m(s.l(x)), None, 0.5], 3: ("c", s.m(x))},
    "places beside values": lambda s, x: (s.l(x).argmax(1), s.m(x)),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", RESULTS)
def test_several_results(name: str, mode: str) -> None:
    torch.manual_seed(0)
    net = Fn(RESULTS[name], l=nn.Linear(6, 6), m=nn.Linear(6, 2))
    model, x = he.convert_model(net, (6,), mode), images(3, (6,))
    told = model.public.to_json()
    assert Public.from_json(told).to_json() == told
    with torch.no_grad():
        wanted = net(x)
    for got in (model(x), HEModel(model.plan)(x)):
        forms, leaves = zip(
            *(flatten(value, lambda part: isinstance(part, Tensor)) for value in (got, wanted)), strict=True
        )
        assert forms[0] == forms[1]
        for a, b in zip(*leaves, strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, atol=5e-3)
    compared = [line for line in model.report().splitlines() if "compared with the net" in line]
    assert len(compared) == len(leaves[0]) == len({line.partition(":")[0] for line in compared})


def test_results_that_no_client_can_be_told_are_refused() -> None:
    for convert in (he.convert_model, lambda net, shape: hybrid.convert_model(net, shape, BitWindow(20, 4))):
        with pytest.raises(ModelError, match="beside tensors, a object") as caught:
            convert(Fn(lambda s, x: (s.l(x), object()), l=nn.Linear(6, 6)), (6,))
        assert "return tensors, numbers" in caught.value.problems[0].hint


def test_a_number_of_the_code_is_compared_by_the_client() -> None:
    torch.manual_seed(0)
    number = torch.tensor(0.25)
    checked(Fn(lambda s, x: torch.where(s.l(x) > number, x, -x), l=nn.Linear(6, 6)), (6,), "client-aided")


BEFORE: dict[str, Callable[[Tensor], Tensor]] = {
    "maximum of two": lambda x: torch.maximum(x, -9 * x),
    "a far clamp": lambda x: x.clamp_min(100.0),
    "bicubic": lambda x: F.interpolate(x[:, None], size=(7, 9), mode="bicubic")[:, 0],
    "bilinear": lambda x: F.interpolate(x[:, None], size=(7, 9), mode="bilinear")[:, 0],
    "a product": lambda x: x @ x.transpose(1, 2),
    "einsum": lambda x: torch.einsum("bij,bkj->bik", x, x),
    "a causal mask": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "a norm": lambda x: F.layer_norm(x, (64,)),
    "log_softmax": lambda x: (8 * x).log_softmax(-1),
    "argmax": lambda x: x.argmax(-1, keepdim=True) * 1.0,
    "where": lambda x: torch.where(x > 0.5, x * 7, -x),
    "expanded": lambda x: x[:, :1].expand(-1, 3, -1) * 3,
    "rolled": lambda x: x.roll(1, 1).flip(2) * -5,
    "a square away from 0": lambda x: 144 - (x + 8) ** 2,
}


@pytest.mark.parametrize("name", BEFORE)
def test_proven_bounds_hold_for_every_operation_that_a_client_may_do_first(name: str) -> None:
    torch.manual_seed(0)
    steps = graph.trace(Fn(lambda s, x: BEFORE[name](x)), elementwise=True)
    x = (torch.rand(500, 4, 64, dtype=torch.float64) * 8 - 4).clamp(-4, 4)
    x[0], x[1] = 4, -4
    x[2, ..., 1:] = 0.01 * x[2, ..., 1:]  # one far from the rest, for norms
    shapes, _ = magnitudes.shapes(steps, x[:4])
    steps = placement.prepared(steps, shapes, "polynomial")
    for most, value in zip(bounds.proven(steps, (4, 64), 4.0), graph.run_all(steps, x), strict=True):
        if isinstance(value, Tensor):
            assert float(value.abs().max()) <= most * (1 + 1e-9)
    assert math.isfinite(bounds.proven(steps, (4, 64), 4.0)[-1]) == (name in FINITE)


FINITE = ("maximum of two", "a far clamp", "bilinear", "where", "expanded", "rolled", "a square away from 0")
