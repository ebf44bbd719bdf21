"""VGG-16 with batch norm for 32x32 images: thirteen 3x3 convolutions, five poolings, one linear layer.

Configuration D of Simonyan and Zisserman, "Very Deep Convolutional Networks" (ICLR 2015), table 1, with the three
linear layers replaced by one: at 32x32 the last pooling leaves a single pixel. Pooling is an average by default
(linear, so free in multi-party computation); a maximum costs a comparison for each of three pairs per output.

ReLU outputs per image at 32x32: 276,480; with two hidden linear layers of 4,096 284,672, the net of Garimella et al.
(ASPLOS 2023).
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

# (width, convolutions) of each stage; a pooling by two ends each.
_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


class VGG16(nn.Module):
    """VGG-16 for (B, 3, S, S) images, S at least 32, giving (B, num_classes) logits.

    pool: "avg" or "max". Raises ValueError for another. hidden: outputs of each of two linear layers before the last;
    0: there are none.
    """

    def __init__(self, num_classes: int, *, pool: str = "avg", hidden: int = 0) -> None:
        super().__init__()
        if pool not in ("avg", "max"):
            raise ValueError(f"pool is {pool!r}; vgg16 takes 'avg' or 'max'")
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        inputs = 3
        for stage, (width, count) in enumerate(_STAGES, start=1):
            for index in range(1, count + 1):
                layers[f"conv{stage}_{index}"] = nn.Conv2d(inputs, width, 3, padding=1, bias=False)
                layers[f"bn{stage}_{index}"] = nn.BatchNorm2d(width)
                layers[f"relu{stage}_{index}"] = nn.ReLU()
                inputs = width
            layers[f"pool{stage}"] = nn.AvgPool2d(2) if pool == "avg" else nn.MaxPool2d(2)
        self.features = nn.Sequential(layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        if hidden:
            self.hidden = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        else:
            self.hidden = nn.Sequential()
        self.fc = nn.Linear(hidden or inputs, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.hidden(torch.flatten(self.avgpool(self.features(x)), 1)))


def vgg16(num_classes: int, *, pool: str = "avg", hidden: int = 0) -> VGG16:
    """VGG-16 with batch norm, 14.7 M parameters; see `VGG16`."""
    return VGG16(num_classes, pool=pool, hidden=hidden)
