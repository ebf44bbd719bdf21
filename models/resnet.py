"""ResNet-18/32/34/50 for small images: torchvision's blocks behind a stem that keeps the resolution.

The stem is a 3x3 convolution and a ReLU at 32x32 (stride 1 for 32x32 images, 2 for 64x64), then average pooling by 2.
Pooling is an average because a maximum costs a secret comparison per output while an average is linear, hence free of
communication. Blocks: He et al., "Deep Residual Learning" (CVPR 2016), section 4.1; in the bottleneck the 3x3
convolution carries the stride. ResNet-32 is the net of section 4.2 for CIFAR, three narrow stages without a pooling,
its shortcuts with convolutions. Every ReLU is a module of its own, so that each can be given its own window by name.

ReLU outputs per image with pool="avg": ResNet-18 188,416; ResNet-34 290,816; ResNet-50 784,384. With pool="none"
ResNet-18 has 557,056 and ResNet-32 303,104, the nets of Garimella et al. (ASPLOS 2023).
"""

from __future__ import annotations

import torch
from torch import nn


def _conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)


def _conv1x1(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 1, stride, bias=False)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(_conv1x1(inputs, outputs, stride), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut: (B, inputs, H, W) to (B, width, H / stride, W / stride)."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(inputs, width, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        self.conv2 = _conv3x3(width, width)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(inputs, width, stride)
        self.relu2 = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu1(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu2(out + self.downsample(x))


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions and a shortcut: (B, inputs, H, W) to (B, 4 width, H / stride, W / stride)."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = _conv1x1(inputs, width)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        self.conv2 = _conv3x3(width, width, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu2 = nn.ReLU()
        self.conv3 = _conv1x1(width, outputs)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _shortcut(inputs, outputs, stride)
        self.relu3 = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu1(self.bn1(self.conv1(x)))
        out = self.relu2(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return self.relu3(out + self.downsample(x))


class ResNet(nn.Module):
    """A residual net for (B, 3, S, S) images, S = image_size, giving (B, num_classes) logits.

    depths: blocks of each stage; width: channels of the first, doubled from stage to stage.
    pool: "avg" halves the stem's output by an average, "none" keeps it (557,056 ReLUs in ResNet-18).
    Raises ValueError for another pool or image_size.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: tuple[int, ...],
        num_classes: int,
        *,
        width: int = 64,
        image_size: int = 32,
        pool: str = "avg",
    ) -> None:
        super().__init__()
        if image_size not in (32, 64):
            raise ValueError(f"image_size is {image_size!r}; a ResNet here takes 32 or 64")
        if pool not in ("avg", "none"):
            raise ValueError(f"pool is {pool!r}; a ResNet here takes 'avg' or 'none'")
        self.conv1 = _conv3x3(3, width, stride=image_size // 32)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        self.pool = nn.AvgPool2d(2) if pool == "avg" else nn.Identity()
        self.stages, inputs = len(depths), width
        for stage, depth in enumerate(depths):
            blocks = []
            for index in range(depth):
                blocks.append(block(inputs, width << stage, stride=2 if stage > 0 and index == 0 else 1))
                inputs = (width << stage) * block.expansion
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.relu1(self.bn1(self.conv1(x))))
        for stage in range(self.stages):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


def resnet18(num_classes: int, *, image_size: int = 32, pool: str = "avg") -> ResNet:
    """ResNet-18, 11.2 M parameters; see `ResNet`."""
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes, image_size=image_size, pool=pool)


def resnet32(num_classes: int) -> ResNet:
    """ResNet-32, 0.47 M parameters, without a pooling after the stem; see `ResNet`."""
    return ResNet(BasicBlock, (5, 5, 5), num_classes, width=16, pool="none")


def resnet34(num_classes: int, *, image_size: int = 32, pool: str = "avg") -> ResNet:
    """ResNet-34, 21.3 M parameters; see `ResNet`."""
    return ResNet(BasicBlock, (3, 4, 6, 3), num_classes, image_size=image_size, pool=pool)


def resnet50(num_classes: int, *, image_size: int = 32, pool: str = "avg") -> ResNet:
    """ResNet-50, 23.5 M parameters; see `ResNet`."""
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes, image_size=image_size, pool=pool)
