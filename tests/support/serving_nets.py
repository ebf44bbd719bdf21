"""Nets for services: `--model tests.support.serving_nets:FUNCTION`."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Doubled(nn.Module):
    """A layer, and twice its ReLU: the shares of results would be even."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).relu() * 2


class Centred(nn.Module):
    """Each image without the mean of its batch: images depend on each other."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True)


class Greatest(nn.Module):
    """The class alone."""

    def forward(self, x: Tensor) -> Tensor:
        return x.argmax(1)


def doubled() -> nn.Module:
    torch.manual_seed(3)
    return Doubled().eval()


def centred() -> nn.Module:
    return Centred().eval()


def greatest() -> nn.Module:
    return Greatest().eval()
