"""Nets for services: `--model tests.support.serving_nets:FUNCTION`."""

from __future__ import annotations

from typing import Any

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


class Twice(nn.Module):
    """As many numbers out as in."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class Pair(nn.Module):
    """Two inputs, and three results in a dict: one of a comparison, one of both inputs, and one number an image."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.both = nn.Linear(4, 3), nn.Linear(9, 2)

    def forward(self, left: Tensor, right: Tensor) -> dict[str, Any]:
        hidden = self.left(left).relu()
        both = self.both(torch.cat([hidden, right.flatten(1)], 1))
        return {"hidden": hidden, "rest": (both.view(-1, 1, 2), right.sum((1, 2))), "note": None}


def doubled() -> nn.Module:
    torch.manual_seed(3)
    return Doubled().eval()


def twice() -> nn.Module:
    return Twice().eval()


def pair() -> nn.Module:
    torch.manual_seed(3)
    return Pair().eval()


def centred() -> nn.Module:
    return Centred().eval()


def greatest() -> nn.Module:
    return Greatest().eval()
