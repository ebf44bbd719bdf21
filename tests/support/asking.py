"""A net that asks for the shape of its images, and images: for the commands, as `--model tests.support.asking:net`."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Asking(nn.Sequential):
    """Layers for square images."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4 or x.shape[-1] != x.shape[-2]:
            raise ValueError(f"square images, got {tuple(x.shape)}")
        out: Tensor = super().forward(x.view(x.shape[0], 1, -1, x.shape[-1]))
        return out


def net() -> nn.Module:
    """A small net, the same every time."""
    torch.manual_seed(3)
    return Asking(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)).eval()


def images(count: int = 24) -> tuple[Tensor, Tensor]:
    """Noise, and the answers of the net to it."""
    x = torch.rand(count, 1, 6, 6, generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        return x, net()(x).argmax(1)
