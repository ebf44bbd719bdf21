"""The two nets of Impala: a small one with max pooling for 28x28 digits, and MiniONN's for 32x32 images.

Choi et al., "Impala" (2022), tables 5 and 6; the nets are those of Liu et al., "MiniONN" (CCS 2017), figures 12 and 13.
Batch norms, which a conversion folds into the convolutions, are ours: they shorten the training. max(relu(a), relu(b))
= relu(max(a, b)), so a ReLU stands behind its max pooling and has a quarter of the work.

Per image: 2,560 outputs of 2x2 max poolings and 2,660 ReLUs (MNIST); 173,056 ReLUs (CIFAR-10).
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn


class ImpalaMNIST(nn.Module):
    """Two 5x5 convolutions and two linear layers for (B, 1, 28, 28) images, giving (B, num_classes) logits."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 5, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.pool1 = nn.MaxPool2d(2)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(16, 16, 5, bias=False)
        self.bn2 = nn.BatchNorm2d(16)
        self.pool2 = nn.MaxPool2d(2)
        self.relu2 = nn.ReLU()
        self.fc1 = nn.Linear(16 * 4 * 4, 100)
        self.relu3 = nn.ReLU()
        self.fc2 = nn.Linear(100, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu1(self.pool1(self.bn1(self.conv1(x))))
        x = self.relu2(self.pool2(self.bn2(self.conv2(x))))
        return self.fc2(self.relu3(self.fc1(torch.flatten(x, 1))))


# (outputs, kernel) of the convolutions of each stage; an average pooling by two stands between stages.
_STAGES = (((64, 3), (64, 3)), ((64, 3), (64, 3)), ((64, 3), (64, 1), (16, 1)))


class ImpalaCIFAR10(nn.Module):
    """Seven convolutions and a linear layer for (B, 3, 32, 32) images, giving (B, num_classes) logits."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        inputs, index = 3, 0
        for stage, convolutions in enumerate(_STAGES):
            if stage:
                layers[f"pool{stage}"] = nn.AvgPool2d(2)
            for width, kernel in convolutions:
                index += 1
                layers[f"conv{index}"] = nn.Conv2d(inputs, width, kernel, padding=kernel // 2, bias=False)
                layers[f"bn{index}"] = nn.BatchNorm2d(width)
                layers[f"relu{index}"] = nn.ReLU()
                inputs = width
        self.features = nn.Sequential(layers)
        self.fc = nn.Linear(inputs * 8 * 8, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.flatten(self.features(x), 1))


def impala_mnist(num_classes: int) -> ImpalaMNIST:
    """Impala's net for MNIST, 34 k parameters; see `ImpalaMNIST`."""
    return ImpalaMNIST(num_classes)


def impala_cifar10(num_classes: int) -> ImpalaCIFAR10:
    """Impala's net for CIFAR-10, 165 k parameters; see `ImpalaCIFAR10`."""
    return ImpalaCIFAR10(num_classes)
