"""Rows of scripts/tools/calibrate.py: turns of small nets on ciphertexts, with each kind of work in several sizes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from hummingbird import he
from hummingbird.capacity.encrypted import measure
from hummingbird.capacity.profile import Measurement

Nets = dict[str, tuple[nn.Module, tuple[int, ...]]]


class _Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x


def _aided() -> Nets:
    """Nets whose client computes the activations: each linear layer is a turn of its own."""
    conv = nn.Sequential(nn.Conv2d(1, 5, 5, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(845, 100))
    deep = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.AvgPool2d(7))
    return {
        "linear 64 10": (nn.Linear(64, 10), (64,)),
        "linear 512 256": (nn.Linear(512, 256), (512,)),
        "convolution 1x28x28, ReLU, linear": (conv, (1, 28, 28)),
        "two convolutions 8x16x16": (deep, (8, 16, 16)),
        "convolution 16x8x8, 16 groups": (nn.Conv2d(16, 16, 3, padding=1, groups=16), (16, 8, 8)),
    }


def _polynomial() -> Nets:
    """Nets of sums and products: one turn each."""

    def layers(*sizes: int) -> nn.Module:
        linear = [nn.Linear(one, other) for one, other in zip(sizes, sizes[1:], strict=False)]
        return nn.Sequential(*[layer for each in linear for layer in (each, _Square())][:-1])

    conv = nn.Sequential(nn.Conv2d(1, 4, 5, stride=2), _Square(), nn.Flatten(), nn.Linear(144, 10))
    return {
        "linear 64 10": (layers(64, 10), (64,)),
        "linear 256 64": (layers(256, 64), (256,)),
        "linear 64 64 10, a square": (layers(64, 64, 10), (64,)),
        "linear 16 128 16, a square": (layers(16, 128, 16), (16,)),
        "linear 64 32 16, two squares": (layers(64, 32, 16, 10), (64,)),
        "convolution 1x16x16, square, linear": (conv, (1, 16, 16)),
    }


def rows(repeats: int) -> Iterator[Measurement]:
    """A row for each turn of each net, for a batch of one image and for a full one."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        nets = {"client-aided": _aided(), "polynomial": _polynomial()}
    for mode, listed in nets.items():
        for name, (net, shape) in listed.items():
            plan = he.make_plan(net.eval(), shape, mode)
            for images in (1, plan.public.slots):
                yield from measure(f"{name}, {images} image(s)", plan, images, repeats)
