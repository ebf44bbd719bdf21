"""Layers tap by tap: the ciphertexts are those of products of polynomials, and the results torch's own in integers."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.he import bfv
from hummingbird.he.bfv import taps
from hummingbird.he.bfv.layout import Layout
from hummingbird.he.bfv.taps import LayerWork
from hummingbird.polynomials.planes import Axis

SECRET = bfv.Secret.new()
K = 20


def integers(*shape: int, zeros: float = 0.5) -> Tensor:
    return torch.randint(-9, 10, shape) * (torch.rand(shape) >= zeros)


def replies(layout: Layout, x: Tensor, weights: Tensor) -> Tensor:
    """All coefficients of all replies, by the definition of a product with monomials: int64 (replies, N)."""
    terms = taps.terms(layout, weights)
    assert bool((terms.factors != 0).all())
    inputs = layout.pack_input(x).view(layout.tiles, -1, layout.degree)
    out = torch.zeros(layout.tiles, len(terms.first) - 1, layout.degree, dtype=torch.int64)
    for output, sums in enumerate(out.unbind(1)):
        run = slice(int(terms.first[output]), int(terms.first[output + 1]))
        for number, shift, factor in zip(*(t[run].tolist() for t in terms[1:]), strict=True):
            both = torch.cat([inputs[:, number], -inputs[:, number]], 1)
            sums += factor * both.roll(shift, 1)[:, : layout.degree]
    return out.flatten(0, 1)


def torchs(x: Tensor, weights: Tensor, *options: Any) -> Tensor:
    if weights.dim() == 2:
        return x @ weights.T
    function = {3: F.conv1d, 4: F.conv2d}[weights.dim()]
    return function(x.double(), weights.double(), None, *options).long()


def test_random_layers_are_torchs() -> None:
    torch.manual_seed(0)
    draw = random.Random(0)
    several = tiled = mixed = 0
    for _ in range(200):
        groups, size = draw.choice([1, 1, 2, 3]), (draw.randint(1, 9), draw.randint(1, 9))
        options = [(draw.randint(*ends), draw.randint(*ends)) for ends in ((1, 3), (0, 3), (1, 2))]
        kernel, channels, outputs = (draw.randint(1, 3), draw.randint(1, 3)), draw.randint(1, 3), draw.randint(1, 3)
        axes = [Axis(*sizes) for sizes in zip(size, kernel, *options, strict=True)]
        if any(axis.outputs < 1 or not axis.taps for axis in axes):
            continue
        images, shapes = draw.randint(1, 4), ((groups * channels, *size), (groups * outputs, channels, *kernel))
        window = images * axes[0].room(1) * axes[1].room(1)
        degree = max(draw.choice([16, 32, 64, 128]), 1 << (window - 1).bit_length())
        layout = Layout.of(*shapes, *options, groups, degree, images)
        x, weights = integers(*((images,) if images > 1 else ()), *shapes[0]), integers(*shapes[1])
        wanted = torchs(x.view(images, *shapes[0]), weights, *options, groups)
        assert layout.unpack(replies(layout, x, weights)).view(wanted.shape).equal(wanted)
        several, tiled = several + (images > 1), tiled + (layout.tiles > 1)
        mixed += layout.blocks.planes > 1 and layout.blocks.outputs > 1
    assert several > 50 and tiled > 20 and mixed > 5


CASES: dict[str, tuple[tuple[Any, Any], tuple[Any, ...], int]] = {
    "strides": (((3, 15, 15), (4, 3, 3, 3)), (2, 1), 5),
    "padding": (((2, 9, 9), (3, 2, 5, 5)), (1, 2), 1),
    "dilation": (((2, 12, 12), (3, 2, 3, 3)), (1, 0, 2), 3),
    "groups": (((6, 8, 8), (4, 3, 3, 3)), (1, 1, 1, 2), 7),
    "depthwise": (((8, 7, 7), (8, 1, 3, 3)), (1, 1, 1, 8), 14),
    "1x1": (((32, 8, 8), (16, 32, 1, 1)), (), 14),
    "tiles": (((2, 80, 80), (2, 2, 3, 3)), (1, 1), 1),
    "a line": (((3, 40), (4, 3, 5)), (3, 2), 14),
    "linear": (((300,), (20, 300)), (), 14),
}


@pytest.mark.parametrize("zeros", ["most", "none", "all", "all but one"])
@pytest.mark.parametrize("case", CASES)
def test_ciphertexts_are_those_of_products(case: str, zeros: str) -> None:
    """Equal as integers, so nothing shows the client which way they were computed."""
    torch.manual_seed(0)
    shapes, options, images = CASES[case]
    layout = Layout.of(*shapes, *options, images=images)
    weights = torch.randint(1, 128, shapes[1]) * (2 * torch.randint(2, shapes[1]) - 1)
    if zeros == "most":
        weights *= torch.rand(shapes[1]) < 0.1
    elif zeros != "none":
        one = weights.view(-1)[-1].item()
        weights.zero_()
        weights.view(-1)[-1] = one if zeros == "all but one" else 0
    x = torch.randint(1 << K, (*((images,) if images > 1 else ()), *shapes[0]))
    sent = bfv.Fresh.from_bytes(SECRET.encrypt(layout.pack_input(x), K).to_bytes(), layout.inputs).parts()
    by_products = layout.multiply(sent, bfv.transform(layout.pack_weights(weights)))
    assert taps.multiply(layout, sent, taps.terms(layout, weights)).equal(by_products)
    if zeros == "none":  # the comparison finds a weight that is off by one
        weights.view(-1)[0] += 1
        assert not taps.multiply(layout, sent, taps.terms(layout, weights)).equal(by_products)


def test_terms_without_weights() -> None:
    layout = Layout.of((2, 4, 4), (3, 2, 3, 3), 1, 1, images=14)
    weights = torch.zeros(3, 2, 3, 3, dtype=torch.int64)
    terms = taps.terms(layout, weights)
    assert int(terms.first[-1]) == terms.inputs.numel() == 0 and layout.norms(weights) == 0
    weights[1, 1, 0, 2], weights[1, 0, 2, 2] = -5, 3
    assert sorted(taps.terms(layout, weights).factors.tolist()) == [-5, 3]


def test_work_is_counted_in_products() -> None:
    """An NTT of N = 4096 takes 6 N multiplications, and a ciphertext has 8 polynomials, like a product 8 N."""
    layout = Layout.of((64, 32, 32), (64, 64, 3, 3), 1, 1, images=3)
    assert (layout.inputs, layout.replies, layout.tiles) == (64, 64, 1)
    assert LayerWork.by_products(layout) == (4096, 0, 0, 64) and LayerWork.by_products(layout).total == 4096 + 16 * 64
    assert LayerWork.by_taps(layout, 3686) == (0, 3686, 128, 64)
    assert LayerWork.by_taps(layout, 3686).total == 3686 + 6 * 128 + 16 * 64


def test_bad_input() -> None:
    layout = Layout.of((2, 8, 8), (4, 2, 3, 3), images=3)
    with pytest.raises(InputError, match="expected torch.int64"):
        taps.terms(layout, integers(4, 2, 3, 4))
    with pytest.raises(InputError, match="expected torch.int64"):
        layout.pack_input(integers(2, 2, 8, 8))
    for images in (0, 4097, True):
        with pytest.raises(InputError, match="images in a polynomial"):
            Layout.of((2, 8, 8), (4, 2, 3, 3), images=images)
    with pytest.raises(InputError, match="10 x 10"):
        Layout.of((1, 30, 30), (1, 1, 10, 10), images=64)
