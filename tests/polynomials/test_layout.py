"""Several images in a polynomial: layers as products of polynomials against torch's own in integers."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hummingbird.polynomials.blocks import choose
from hummingbird.polynomials.layer import LayerShape
from hummingbird.polynomials.layout import Packing
from hummingbird.polynomials.planes import Axis
from tests.he.bfv.polynomials import replies

DEGREE = 512


def check(packing: Packing, wanted: Tensor, x: Tensor, weights: Tensor) -> None:
    assert torch.equal(packing.unpack(replies(packing, x, weights)), wanted)
    assert sum(map(len, packing.used)) == wanted.numel()
    by_reply = [packing.pack_reply(weights, reply) for reply in range(packing.replies // packing.tiles)]
    assert torch.equal(torch.cat(by_reply), packing.pack_weights(weights))


@pytest.mark.parametrize("count", [40, pytest.param(300, marks=pytest.mark.slow)])
def test_random_convolutions_of_several_images(count: int) -> None:
    """With strides, groups and tiles; as many channels and outputs in a polynomial as one image has, or fewer."""
    draw, several = random.Random(0), 0
    for _ in range(count):
        groups, size = draw.choice([1, 1, 2]), (draw.randint(1, 8), draw.randint(1, 8))
        options = [(draw.randint(*ends), draw.randint(*ends)) for ends in ((1, 3), (0, 2), (1, 2))]
        kernel, channels, outputs = (draw.randint(1, 3), draw.randint(1, 3)), draw.randint(1, 3), draw.randint(1, 3)
        axes = [Axis(*sizes) for sizes in zip(size, kernel, *options, strict=True)]
        if any(axis.outputs < 1 or not axis.taps for axis in axes):
            continue
        layer = LayerShape.of((groups * channels, *size), (groups * outputs, channels, *kernel), *options, groups)
        blocks = choose(layer, DEGREE // 4)
        images = DEGREE // (blocks.planes * blocks.outputs * Packing(layer, DEGREE, blocks).planes.size)
        packing = Packing(layer, DEGREE, replace_images(blocks, images))
        x, weights = torch.randint(-9, 10, (images, *layer.input_shape)), torch.randint(-9, 10, layer.weight_shape)
        wanted = F.conv2d(x.double(), weights.double(), None, *options, groups).long()
        check(packing, wanted, x, weights)
        several += packing.inputs > 1 and packing.replies > 1
    assert several > count // 20


def replace_images(blocks: object, images: int) -> object:
    return blocks._replace(images=images)  # type: ignore[attr-defined]


def test_rows_of_a_matrix_are_images() -> None:
    layer = LayerShape.of((7,), (5, 7))
    packing = Packing(layer, 64, choose(layer, 16)._replace(images=4))
    x, weights = torch.randint(-9, 10, (4, 7)), torch.randint(-9, 10, (5, 7))
    check(packing, x @ weights.t(), x, weights)


def test_the_check_can_fail() -> None:
    """Images that share too few coefficients reach into each other."""
    layer = LayerShape.of((2, 4, 4), (3, 2, 3, 3), padding=1)
    blocks = choose(layer, 64)._replace(images=8, planes=2, outputs=3)
    packing = Packing(layer, 256, blocks)
    x, weights = torch.randint(1, 9, (8, 2, 4, 4)), torch.randint(1, 9, (3, 2, 3, 3))
    wanted = F.conv2d(x.double(), weights.double(), padding=1).long()
    with pytest.raises((AssertionError, RuntimeError, IndexError)):
        check(packing, wanted, x, weights)
