"""A public weight keeps what its products are made with, until it moves or is loaded again."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hummingbird import ring
from hummingbird.mpc.layers.linear import Linear, PublicWeight
from hummingbird.mpc.session import session as sessions
from tests.test_ring import full


def whole(*shape: int) -> Tensor:
    return torch.randint(-(2**18), 2**18, shape)


@pytest.mark.parametrize(
    ("op", "left", "right", "options", "view"),
    [
        ("matmul", (2, 3, 4), (4, 5), {}, None),
        ("mul", (2, 5, 3, 3), (5,), {}, (-1, 1, 1)),
        ("conv1d", (2, 4, 7), (6, 2, 3), {"stride": [2], "groups": 2}, None),
        ("conv2d", (2, 4, 5, 5), (6, 2, 3, 3), {"stride": [2, 1], "padding": [1, 1], "groups": 2}, None),
        ("conv3d", (2, 4, 4, 5, 3), (6, 2, 3, 2, 3), {"stride": [2, 1, 1], "padding": [1, 0, 1], "groups": 2}, None),
        ("conv_transpose1d", (2, 4, 5), (4, 3, 3), {"stride": [2], "groups": 2}, None),
        ("conv_transpose2d", (2, 4, 5, 5), (4, 3, 3, 3), {"stride": [2, 2], "output_padding": [1, 0]}, None),
    ],
)
def test_a_product_of_every_kind(
    alone: sessions.Session, op: str, left: object, right: object, options: dict, view: object
) -> None:  # type: ignore[type-arg]
    x, code = full(*left), whole(*right)  # type: ignore[misc]
    weight = PublicWeight(code)
    expected = ring.bilinear(op, x, code.view(view or right), **options)  # type: ignore[arg-type]
    for bits in (64, 40, 40):
        got = weight.product(alone, op, x, options, view, bits)  # type: ignore[arg-type]
        assert not ((got ^ expected) << (64 - bits)).any(), bits


def test_the_factor_is_made_once_and_follows_the_weight(alone: sessions.Session) -> None:
    x, first, second = full(2, 3, 4, 4), whole(5, 3, 2, 2), whole(5, 3, 2, 2)
    weight = PublicWeight(first.clone())

    def product(of: PublicWeight) -> Tensor:
        return of.product(alone, "conv2d", x, {})

    assert torch.equal(product(weight), F.conv2d(x, first))
    factor = weight._factor
    assert torch.equal(product(weight), F.conv2d(x, first)) and weight._factor is factor is not None
    weight.to("cpu")
    assert torch.equal(product(weight), F.conv2d(x, first)) and weight._factor is not factor
    twin = copy.deepcopy(weight)
    torch.nn.Sequential(weight).load_state_dict({"0.code": second})
    assert torch.equal(product(weight), F.conv2d(x, second))
    assert torch.equal(product(twin), F.conv2d(x, first))
    assert weight.to("meta").product(alone, "conv2d", x.to("meta"), {}).is_meta


def test_a_matrix_of_32_bits_takes_half_the_memory_and_widens_again(alone: sessions.Session) -> None:
    x = full(3, 4)
    narrow, wide = torch.tensor([[2**31 - 1], [-(2**31)], [5], [0]]), torch.tensor([[2**31], [7], [-1], [2**40]])
    weight = PublicWeight(narrow)
    holder = torch.nn.Sequential(weight)
    assert weight.code.dtype == torch.int32 and PublicWeight(wide).code.dtype == torch.int64
    assert PublicWeight(whole(5, 3, 2, 2)).code.dtype == torch.int64  # convolutions take int64
    saved = holder.state_dict()
    assert torch.equal(weight.product(alone, "matmul", x, {}), x @ narrow)
    holder.load_state_dict({"0.code": wide})  # does not wrap
    assert weight.code.dtype == torch.int64 and torch.equal(weight.product(alone, "matmul", x, {}), x @ wide)
    holder.load_state_dict(saved)
    assert weight.code.dtype == torch.int32 and torch.equal(weight.product(alone, "matmul", x, {}), x @ narrow)
    holder.load_state_dict({"0.code": wide}, assign=True)
    assert torch.equal(weight.product(alone, "matmul", x, {}), x @ wide)
    holder.load_state_dict(saved, assign=True)
    assert weight.to("cpu").code.dtype == torch.int32
    assert torch.equal(weight.product(alone, "matmul", x, {}), x @ narrow)
    assert weight.to("meta").code.dtype == torch.int64  # as other devices take it


def test_a_coarser_matrix_of_32_bits_is_rounded_without_overflow() -> None:
    torch.manual_seed(0)
    layer = Linear("matmul", torch.randn(6, 5), None, {}, None)
    layer.weight = PublicWeight(torch.full((6, 5), 2**31 - 1))  # the rounding adds to it before it shifts
    other = layer.coarser(16)
    assert isinstance(other.weight, PublicWeight) and layer.fraction > other.fraction
    assert torch.equal(other.weight.code, torch.full((6, 5), 2 ** (31 - layer.fraction + other.fraction)))


def test_behind_values_with_a_told_error_weights_are_rounded_by_less_than_half_of_what_it_adds() -> None:
    """Root mean squares over random inputs, of a mean square of 1, and over errors of random signs (`_behind`)."""
    error, inputs = 0.006, 300
    weight = torch.randn(inputs, 7, dtype=torch.float64) / 50
    layer = Linear("matmul", weight, None, {}, None)
    other = layer.coarser(16, error)
    assert isinstance(other.weight, PublicWeight) and other.fraction < layer.coarser(16).fraction
    rounding = other.weight.code.double() * 2.0**-other.fraction - weight
    x = torch.randn(1000, inputs, dtype=torch.float64)
    noise = error * (2 * torch.rand(1000, inputs, dtype=torch.float64) - 1).sign()
    added, before = ((each @ w).square().mean(0).max().sqrt() for each, w in ((x, rounding), (noise, weight)))
    assert 0 < added < before / 2
    assert Linear("matmul", 1000 * weight, None, {}, None).coarser(16, 0.5).fraction == 8  # never fewer
