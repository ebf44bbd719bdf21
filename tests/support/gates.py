"""Nets with a gate: a value of every place times one of its channel, as in squeeze and excitation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"silu": nn.SiLU, "relu": nn.ReLU, "hardswish": nn.Hardswish}


class Block(nn.Module):
    """Two linear layers behind a gated value, as in EfficientNet; first: whether the gate is the first factor."""

    def __init__(self, activation: str, gate: type[nn.Module], first: bool) -> None:
        super().__init__()
        act = ACTIVATIONS[activation]
        self.a, self.act, self.pool = nn.Conv2d(3, 8, 3, padding=1), act(), nn.AdaptiveAvgPool2d(1)
        self.fc1, self.mid, self.fc2, self.gate = nn.Conv2d(8, 4, 1), act(), nn.Conv2d(4, 8, 1), gate()
        self.b, self.c, self.end, self.first = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 6, 1), act(), first

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.a(x))
        s = self.gate(self.fc2(self.mid(self.fc1(self.pool(x)))))
        x = s * x if self.first else x * s
        out: Tensor = self.end(self.c(self.b(x)))
        return out


def block(activation: str, gate: type[nn.Module] = nn.Sigmoid, first: bool = True) -> nn.Module:
    """A block with the same weights every time."""
    torch.manual_seed(3)
    return Block(activation, gate, first).eval()
