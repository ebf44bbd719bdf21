"""Layers on ciphertexts: the client learns W r - s mod 2^k and the server has s, by products and by taps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hummingbird import prg
from hummingbird.he import bfv
from hummingbird.he.bfv import taps

SECRET = bfv.Secret.new()
PUBLIC = SECRET.public()


def exchange(layout: bfv.Layout, r: Tensor, multiply: Callable[[Tensor], Tensor], k: int) -> tuple[Tensor, Tensor]:
    """Both sides' shares, d and s, over the bytes that they send."""
    up = SECRET.encrypt(layout.pack_input(r), k).to_bytes()
    sums = multiply(bfv.Fresh.from_bytes(up, layout.inputs).parts())
    masks = bfv.draw_masks(prg.fresh(), layout.replies, k)
    down = bfv.evaluate(PUBLIC, sums, masks, k, layout.used).to_bytes()
    assert (len(up), len(down)) == (layout.up_bytes, layout.down_bytes)
    d = layout.unpack(SECRET.decrypt(bfv.Reply.from_bytes(down, layout.used), k))
    return d, layout.unpack(masks)


def layer(r: Tensor, weights: Tensor, options: tuple[Any, ...], k: int) -> Tensor:
    """W r mod 2^k: |sums| < 2^53, exact in float64."""
    if weights.dim() == 2:
        return (r @ weights.T) % (1 << k)
    function = {3: F.conv1d, 4: F.conv2d}[weights.dim()]
    return function(r.double(), weights.double(), None, *options).long() % (1 << k)


@pytest.mark.parametrize(
    ("shapes", "options", "k"),
    [
        (((5, 12, 12), (7, 5, 3, 3)), (1, 1, 1, 1), 20),
        (((8, 20, 20), (8, 2, 3, 3)), (2, 1, 1, 4), 32),
        (((1, 70, 70), (2, 1, 5, 5)), (1, 2, 1, 1), 12),
        (((3, 60), (4, 3, 4)), (3, 2, 2, 1), 27),
        (((700,), (30, 700)), (), 24),
    ],
)
def test_a_layer_is_shared(shapes: Any, options: Any, k: int) -> None:
    torch.manual_seed(0)
    layout = bfv.Layout.of(*shapes, *options)
    r, weights = torch.randint(1 << k, shapes[0]), torch.randint(-127, 128, shapes[1])
    transformed = bfv.transform(layout.pack_weights(weights))
    d, s = exchange(layout, r, lambda x: layout.multiply(x, transformed), k)
    assert ((d + s) % (1 << k)).equal(layer(r[None], weights, options, k)[0])


@pytest.mark.parametrize(
    ("shapes", "options", "images", "k"),
    [
        (((3, 14, 14), (4, 3, 3, 3)), (1, 1, 1, 1), 14, 20),
        (((4, 80, 80), (4, 1, 3, 3)), (2, 1, 1, 4), 2, 32),
        (((40,), (3, 40)), (), 14, 16),
    ],
)
def test_a_sparse_layer_of_several_images_is_shared_by_taps(shapes: Any, options: Any, images: int, k: int) -> None:
    torch.manual_seed(0)
    layout = bfv.Layout.of(*shapes, *options, images=images)
    r, weights = torch.randint(1 << k, (images, *shapes[0])), torch.randint(-127, 128, shapes[1])
    weights *= torch.rand(shapes[1]) < 0.3
    terms = taps.terms(layout, weights)
    d, s = exchange(layout, r, lambda x: taps.multiply(layout, x, terms), k)
    assert ((d + s) % (1 << k)).equal(layer(r, weights, options, k))
