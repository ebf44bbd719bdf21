"""Layers tap by tap against torch's own in integers, through the definition of products with monomials."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.he.bfv.taps import Taps
from hummingbird.polynomials.planes import Axis


def integers(*shape: int, zeros: float = 0.5) -> Tensor:
    return torch.randint(-9, 10, shape) * (torch.rand(shape) >= zeros)


def replies(layout: Taps, x: Tensor, weights: Tensor) -> Tensor:
    """All coefficients of all replies: int64 (replies, N)."""
    terms = layout.terms(weights)
    assert bool((terms.factors != 0).all())
    inputs = layout.pack_input(x).view(layout.tiles, -1, layout.degree)
    out = torch.zeros(layout.tiles, len(terms.first) - 1, layout.degree, dtype=torch.int64)
    for output, sums in enumerate(out.unbind(1)):
        run = slice(int(terms.first[output]), int(terms.first[output + 1]))
        for number, shift, factor in zip(*(t[run].tolist() for t in terms[1:]), strict=True):
            both = torch.cat([inputs[:, number], -inputs[:, number]], 1)
            sums += factor * both.roll(shift, 1)[:, : layout.degree]
    return out.flatten(0, 1)


def check(layout: Taps, *options: Any) -> None:
    """The layer by taps is torch's for every image; its sizes are as the layout says."""
    x, weights = integers(layout.images, *layout.layer.input_shape), integers(*layout.layer.weight_shape)
    out = replies(layout, x, weights)
    if x.dim() == 2:
        wanted = x @ weights.T
    else:
        function = {3: F.conv1d, 4: F.conv2d}[x.dim()]
        wanted = function(x.double(), weights.double(), None, *options).long()
    assert layout.unpack(out).equal(wanted) and out.shape == (layout.replies, layout.degree)
    only = torch.zeros_like(out)
    for row, poly, places in zip(only, out, layout.used, strict=True):
        assert bool((places.diff() > 0).all())
        row[places] = poly[places]
    assert layout.unpack(only).equal(wanted) and sum(map(len, layout.used)) == wanted.numel()


def test_random_images() -> None:
    torch.manual_seed(0)
    draw = random.Random(0)
    several = tiled = 0
    for _ in range(200):
        groups, size = draw.choice([1, 1, 2, 3]), (draw.randint(1, 9), draw.randint(1, 9))
        options = [(draw.randint(*ends), draw.randint(*ends)) for ends in ((1, 3), (0, 3), (1, 2))]
        kernel, channels, outputs = (draw.randint(1, 3), draw.randint(1, 3)), draw.randint(1, 3), draw.randint(1, 3)
        axes = [Axis(*sizes) for sizes in zip(size, kernel, *options, strict=True)]
        if any(axis.outputs < 1 or not axis.taps for axis in axes):
            continue
        shapes = (groups * channels, *size), (groups * outputs, channels, *kernel)
        window = axes[0].room(1) * axes[1].room(1)
        degree = max(draw.choice([16, 32, 64, 128]), 1 << (window - 1).bit_length())
        layout = Taps.of(*shapes, *options, groups, degree)
        check(layout, *options, groups)
        several += layout.images > 1
        tiled += layout.tiles > 1
    assert several > 50 and tiled > 20


def test_lines_and_linear_layers() -> None:
    torch.manual_seed(0)
    check(Taps.of((3, 17), (2, 3, 4), 2, 1, degree=64), 2, 1)
    check(Taps.of((7,), (3, 7), degree=16))


def test_images_in_a_polynomial() -> None:
    """Images of 8 x 8 with a padding of one take 9 x 9 places each."""
    layout = Taps.of((64, 8, 8), (64, 64, 3, 3), 1, 1)
    assert (layout.images, layout.inputs, layout.replies) == (50, 64, 64)


def test_norms_and_terms_without_weights() -> None:
    layout = Taps.of((2, 4, 4), (3, 2, 3, 3), 1, 1)
    weights = torch.zeros(3, 2, 3, 3, dtype=torch.int64)
    terms = layout.terms(weights)
    assert terms.first.tolist() == [0, 0, 0, 0] and terms.inputs.numel() == 0 and layout.norms(weights) == 0
    weights[1, 1, 0, 2], weights[1, 0, 2, 2] = -5, 3
    assert layout.terms(weights).factors.tolist() == [3, -5] and layout.norms(weights) == 8


def test_bad_input() -> None:
    layout = Taps.of((2, 8, 8), (4, 2, 3, 3))
    for call, shape in [
        (layout.pack_input, (layout.images + 1, 2, 8, 8)),
        (layout.terms, (4, 2, 3, 4)),
        (layout.norms, (4, 2, 3, 4)),
        (layout.unpack, (layout.replies + 1, 4096)),
    ]:
        with pytest.raises(InputError, match="expected torch.int64"):
            call(integers(*shape))
    with pytest.raises(InputError, match="70 x 70"):
        Taps.of((1, 80, 80), (1, 1, 70, 70))
