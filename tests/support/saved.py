"""A net that was saved: its code in a module of its own, which parties of a test do not have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

CODE = '''
import torch
from torch import nn


class Secret(nn.Module):
    """Most of the vocabulary: a reused ReLU, a residual, sizes, slices, parts, constants, tied weights."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 4, padding="same")
        self.norm = nn.BatchNorm2d(8)
        self.other = nn.BatchNorm2d(8)
        self.relu = nn.ReLU()
        self.prelu = nn.PReLU(4)
        self.pool = nn.MaxPool2d(2)
        self.tied = nn.Linear(8, 8)
        self.head = nn.Sequential(nn.Linear(8, 5), nn.Hardtanh(-3, 3))
        self.gain, self.shift = nn.Parameter(torch.rand(5) + 0.5), nn.Parameter(torch.randn(1, 5))

    def forward(self, x):
        y = self.relu(self.norm(self.conv(x)))
        y = self.relu(self.other(y) + x[:, :1])
        a, b = y.chunk(2, 1)
        y = self.pool(nn.functional.pad(self.prelu(a - 0.5) * 2.0, (0, 0, 0, 0)))
        y = y.mean((2, 3)).view(x.size(0), -1)
        b = b.mean((2, 3))
        y = self.tied(self.tied(torch.cat([y, b], 1)))
        return self.head(y) * self.gain + self.shift
'''


def secret() -> tuple[nn.Module, Tensor]:
    """The net, in eval mode, and images for it."""
    space: dict[str, Any] = {"__name__": "secret_net"}
    exec(CODE, space)  # noqa: S102 - the lines above
    torch.manual_seed(5)
    net = space["Secret"]()
    for norm in (net.norm, net.other):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    return net.eval(), torch.randn(3, 3, 6, 6)


def files(folder: Path) -> dict[str, bytes]:
    """The content of a folder's files."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}
