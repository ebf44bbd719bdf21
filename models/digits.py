"""A small convolutional net for the 8x8 handwritten digits that come with scikit-learn.

Small enough for a demonstration over a real network: 34 k parameters and 2,560 ReLUs per image, in three layers of
1024, 512 and 1024. It has one of each layer a larger net uses: convolution, batch norm, ReLU, average pooling, linear.
"""

from __future__ import annotations

import torch
from torch import nn


class Digits(nn.Module):
    """Three convolutions for (B, 1, 8, 8) images, giving (B, num_classes) logits."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu1 = nn.ReLU()
        self.pool = nn.AvgPool2d(2)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(32)
        self.relu2 = nn.ReLU()
        self.conv3 = nn.Conv2d(32, 64, 3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(64)
        self.relu3 = nn.ReLU()
        self.fc = nn.Linear(64 * 4 * 4, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.relu1(self.bn1(self.conv1(x))))
        x = self.relu2(self.bn2(self.conv2(x)))
        x = self.relu3(self.bn3(self.conv3(x)))
        return self.fc(torch.flatten(x, 1))


def digits(num_classes: int) -> Digits:
    """The digits net; see `Digits`."""
    return Digits(num_classes)
