"""A public weight keeps what its products are made with, until it moves or is loaded again."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hummingbird import ring
from hummingbird.mpc.layers.linear import PublicWeight
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
