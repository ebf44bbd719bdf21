"""Layers as products of polynomials against torch's own in integers; where values stand; the choice of blocks."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.he.bfv.layout import Layout
from hummingbird.polynomials.blocks import Blocks, choose, connected
from hummingbird.polynomials.layer import LayerShape
from hummingbird.polynomials.planes import Axis
from tests.he.bfv.polynomials import replies


def integers(*shape: int) -> Tensor:
    return torch.randint(-9, 10, shape)


def convolve(x: Tensor, weights: Tensor, *options: Any) -> Tensor:
    """torch's convolution in float64, which is exact for these."""
    function = {1: F.conv1d, 2: F.conv2d}[x.dim() - 1]
    return function(x[None].double(), weights.double(), None, *options)[0].long()


def check(layout: Layout, *options: Any) -> None:
    """The layer by polynomials is torch's; its sizes are as the layout says."""
    x, weights = integers(*layout.layer.input_shape), integers(*layout.layer.weight_shape)
    wanted = convolve(x, weights, *options) if len(layout.layer.input_shape) > 1 else weights @ x
    out = replies(layout, x, weights)
    assert layout.unpack(out).equal(wanted) and wanted.shape == layout.layer.output_shape
    read = [poly[places] for poly, places in zip(out, layout.used, strict=True)]
    assert sum(map(len, read)) == wanted.numel()
    if layout.tiles == 1:
        assert torch.cat(read).equal(wanted.flatten())


@pytest.mark.parametrize(
    ("sizes", "kernels", "strides", "paddings", "least"),
    [(4, 3, 2, 3, 200), pytest.param(6, 4, 3, 4, 900, marks=pytest.mark.slow)],
)
def test_every_small_line(sizes: int, kernels: int, strides: int, paddings: int, least: int) -> None:
    """Lines of all of size, kernel, stride, padding and dilation up to a few, where some output reads something."""
    torch.manual_seed(0)
    count = 0
    for size, kernel, stride, padding, dilation in itertools.product(
        range(1, sizes + 1), range(1, kernels + 1), range(1, strides + 1), range(paddings), (1, 2)
    ):
        axis = Axis(size, kernel, stride, padding, dilation)
        if axis.outputs < 1 or not axis.taps:
            with pytest.raises(InputError, match="reads nothing"):
                Layout.of((1, size), (1, 1, kernel), stride, padding, dilation)
            continue
        for channels, outputs, degree in ((1, 1, 16), (2, 3, 32)):
            layout = Layout.of((channels, size), (outputs, channels, kernel), stride, padding, dilation, 1, degree)
            check(layout, stride, padding, dilation)
            count += 1
    assert count > least


@pytest.mark.parametrize("images", [80, pytest.param(400, marks=pytest.mark.slow)])
def test_random_images(images: int) -> None:
    """2-D, with groups; small degrees, so that there are many blocks and tiles."""
    torch.manual_seed(0)
    draw = random.Random(0)
    tiled = several = 0
    for _ in range(images):
        groups, size = draw.choice([1, 1, 2, 3]), (draw.randint(1, 9), draw.randint(1, 9))
        options = [(draw.randint(*ends), draw.randint(*ends)) for ends in ((1, 3), (0, 3), (1, 2))]
        kernel, channels, outputs = (draw.randint(1, 3), draw.randint(1, 3)), draw.randint(1, 3), draw.randint(1, 3)
        axes = [Axis(*sizes) for sizes in zip(size, kernel, *options, strict=True)]
        if any(axis.outputs < 1 or not axis.taps for axis in axes):
            continue
        shapes = (groups * channels, *size), (groups * outputs, channels, *kernel)
        window = axes[0].room(1) * axes[1].room(1)
        layout = Layout.of(
            *shapes, *options, groups, max(draw.choice([16, 32, 64, 128]), 1 << (window - 1).bit_length())
        )
        check(layout, *options, groups)
        tiled += layout.tiles > 1
        several += layout.inputs > layout.tiles < layout.replies
    assert tiled > images // 8 and several > images // 8


@pytest.mark.parametrize(
    ("shapes", "options"),
    [
        (((4, 16, 16), (5, 4, 3, 3)), (1, 1, 1, 1)),
        (((3, 31, 30), (2, 3, 5, 3)), (2, 2, 1, 1)),
        (((1, 90, 80), (1, 1, 3, 3)), (1, 1, 1, 1)),
        (((6, 20, 20), (6, 1, 3, 3)), (1, 2, 2, 6)),
        (((2, 5000), (2, 2, 7)), (3, 3, 1, 1)),
        (((2, 64, 64), (1, 2, 1, 1)), (1, 0, 1, 1)),
    ],
)
def test_the_schemes_own_degree(shapes: Any, options: Any) -> None:
    torch.manual_seed(0)
    check(Layout.of(*shapes, *options), *options)


def test_linear_layers() -> None:
    torch.manual_seed(0)
    for features, outputs, degree in [
        (1, 1, 16),
        (5, 7, 16),
        (16, 16, 16),
        (40, 3, 16),
        (100, 10, 256),
        (300, 20, 4096),
    ]:
        check(Layout.of((features,), (outputs, features), degree=degree))


def test_a_gap_less_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines without the zeros of the padding between them mix; and the checks above can fail."""
    torch.manual_seed(0)
    check(Layout.of((2, 6, 6), (2, 2, 3, 3), 1, 1, degree=256), 1, 1)
    room = Axis.room
    monkeypatch.setattr(Axis, "room", lambda axis, most: room(axis, most) - (axis.size == 6))
    choose.cache_clear()
    with pytest.raises(AssertionError):
        check(Layout.of((2, 6, 6), (2, 2, 3, 3), 1, 1, degree=256), 1, 1)
    choose.cache_clear()


def test_what_is_not_used_is_not_read() -> None:
    torch.manual_seed(0)
    layout = Layout.of((3, 9, 9), (4, 3, 3, 3), 2, 1, degree=128)
    x, weights = integers(3, 9, 9), integers(4, 3, 3, 3)
    out = replies(layout, x, weights)
    only = torch.zeros_like(out)
    for row, poly, places in zip(only, out, layout.used, strict=True):
        assert len(places) == len(set(places.tolist())) and bool((places.diff() > 0).all())
        row[places] = poly[places]
    assert layout.unpack(only).equal(convolve(x, weights, 2, 1)) and not only.equal(out)


@pytest.mark.parametrize(
    ("shapes", "options"),
    [
        (((8, 4, 4), (8, 8, 3, 3)), (1, 1, 1, 1)),
        (((4, 9, 9), (4, 2, 3, 3)), (2, 1, 1, 2)),
        (((6, 5, 5), (6, 1, 3, 3)), (1, 1, 1, 6)),
        (((30,), (12, 30)), (1, 0, 1, 1)),
    ],
)
def test_no_blocks_send_less(shapes: Any, options: Any) -> None:
    """All sizes of tiles and blocks, one by one."""
    layout = Layout.of(*shapes, *options, degree=128)

    def sent(blocks: Blocks) -> int:
        tried = replace(layout, blocks=blocks)
        return 2 * tried.inputs + tried.replies

    rows, columns = layout.layer.rows, layout.layer.columns
    sizes = (
        rows.outputs,
        columns.outputs,
        layout.layer.input_shape[0] * layout.planes.phases,
        layout.layer.output_shape[0],
    )
    fitting = [
        blocks
        for blocks in itertools.starmap(Blocks, itertools.product(*(range(1, size + 1) for size in sizes)))
        if rows.room(blocks.height) * columns.room(blocks.width) * blocks.planes * blocks.outputs <= 128
    ]
    assert len(fitting) > 5 and sent(layout.blocks) == min(map(sent, fitting))


@pytest.mark.parametrize(
    "shapes",
    [
        ((1 << 24, 1, 1), (1, 1 << 24, 1, 1)),
        ((1, 1 << 14), (1 << 10, 1, 1 << 10)),
        pytest.param(((1, 1 << 13, 1 << 13), (1, 1, 3, 3)), marks=pytest.mark.slow),
    ],
    ids=["channels", "kernel", "image"],
)
def test_the_largest_layers_are_laid_out_soon(shapes: Any) -> None:
    """The sizes tried grow with square roots: a layer that a server names cannot hold up its client."""
    layout = Layout.of(*shapes)
    assert layout.inputs and layout.replies
    assert layout.blocks.planes * layout.blocks.outputs * layout.planes.size <= layout.degree


def test_products_of_groups_that_meet_in_a_polynomial() -> None:
    """By hand: four groups of two planes and three outputs, and a depthwise layer."""
    four, each = LayerShape.of((8, 1), (12, 2, 1), groups=4), LayerShape.of((6, 1), (6, 1, 1), groups=6)
    assert connected(four, 1, 3, 4) == [range(2), range(2), range(1, 3)]
    assert connected(each, 1, 2, 1) == [range(1), range(1), range(1, 2), range(1, 2), range(2, 3), range(2, 3)]


def test_padding_costs_one_gap_and_pixels_that_are_not_read_nothing() -> None:
    layout = Layout.of((64, 32, 32), (64, 64, 3, 3), 1, 1)
    assert layout.planes.room == (33, 33) and (layout.inputs, layout.replies, layout.products) == (22, 64, 1408)
    assert Layout.of((64, 32, 32), (64, 64, 1, 1), 2).planes.phases == 1  # of four
    assert Layout.of((512, 1, 1), (512, 512, 3, 3), 1, 1).planes.room == (
        1,
        1,
    )  # only the kernel's centre reads the pixel


def test_norms_are_those_of_the_polynomials() -> None:
    torch.manual_seed(0)
    for shapes, options in [(((5, 6, 6), (7, 5, 3, 3)), (1, 1)), (((4, 6, 6), (6, 2, 3, 3)), (1, 1, 1, 2))]:
        layout, weights = Layout.of(*shapes, *options, degree=128), integers(*shapes[1])
        norms = torch.zeros(layout.replies // layout.tiles, dtype=torch.int64)
        norms.index_add_(0, layout.pairs[:, 1], layout.pack_weights(weights).abs().sum(1))
        assert layout.norms(weights) == int(norms.max())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((3, 8, 8), (4, 2, 3, 3)), "groups of 3 input channels"),
        (((4, 8, 8), (5, 2, 3, 3), 1, 0, 1, 2), "2 groups"),
        (((4, 8, 8), (4, 4, 3)), "an input"),
        (((4, 8, 8, 8), (4, 4, 3, 3, 3)), "an input"),
        (((4, 0, 8), (4, 4, 3, 3)), "input_shape"),
        (((4, 8, 8), (4, 4, 3, 3), 0), "stride 0"),
        (((4, 8, 8), (4, 4, 3, 3), 1, -1), "padding -1"),
        (((4, 8, 8), (4, 4, 3, 3), 1, (1, 1, 1)), "padding"),
        (((4, 8, 8), (4, 4, 3, 3), 1, 0, 1.5), "dilation 1.5"),
        (((4, 8, 8), (4, 4, 9, 3)), "reads nothing"),
        (((4,), (4, 4), 1, 0, 1, 0), "0 groups"),
        (((4,), (4, 4), 1, 0, 1, 1, 100), "degree 100"),
        (((1, 80, 80), (1, 1, 70, 70)), "70 x 70"),
        (((1, 16000), (1, 1, 3), 1, 193), "16386 values"),
    ],
)
def test_layers_that_cannot_be_laid_out(arguments: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Layout.of(*arguments)
    assert caught.value.where and caught.value.hint


def test_tensors_of_other_shapes_are_refused() -> None:
    layout = Layout.of((2, 8, 8), (4, 2, 3, 3))
    for call, shape in [
        (layout.pack_input, (2, 8, 9)),
        (layout.pack_weights, (4, 2, 3, 4)),
        (layout.norms, (4, 2, 3, 4)),
        (layout.unpack, (layout.replies + 1, 4096)),
    ]:
        with pytest.raises(InputError, match="expected torch.int64"):
            call(integers(*shape))
        with pytest.raises(InputError, match="expected torch.int64"):
            call(integers(2).double())
