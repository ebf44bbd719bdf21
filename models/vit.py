"""A small vision transformer: three convolutions make 16 tokens of a 32x32 image, four blocks mix them.

Dosovitskiy et al., "An Image is Worth 16x16 Words" (ICLR 2021), with layer norms before attention and MLP, the stem of
Xiao et al., "Early Convolutions Help Transformers See Better" (NeurIPS 2021), 3x3 convolutions of stride 2 in place of
one of stride 8, and the mean of the tokens in place of a class token: so few images teach it.

Per image: 9,216 ReLUs in the stem, 12,288 GELUs, and the softmax of 192 rows of 16.
"""

from __future__ import annotations

import torch
from torch import nn


class Block(nn.Module):
    """A transformer's block, (B, T, width) to the same shape: attention of all vectors, then an MLP on each.

    The results of both are added to what they read.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 2 * width)
        self.gelu = nn.GELU()
        self.fc2 = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)  # (B, heads, 3, T, d)
        q, k, v = parts.unbind(2)
        weights = torch.softmax((q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1), dim=-1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        return x + self.fc2(self.gelu(self.fc1(self.norm2(x))))


class ViT(nn.Module):
    """A vision transformer of (B, 3, 32, 32) images, giving (B, num_classes) logits."""

    def __init__(self, num_classes: int, width: int = 96, heads: int = 3, layers: int = 4) -> None:
        super().__init__()
        if width < 4 or width % 4 or width % heads:
            raise ValueError(f"{heads} heads of width {width}\nhint: a width that 4 and the heads divide, as 96 and 3")
        self.conv1 = nn.Conv2d(3, width // 4, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width // 4)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width // 4, width // 2, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width // 2)
        self.relu2 = nn.ReLU()
        self.conv3 = nn.Conv2d(width // 2, width, 3, stride=2, padding=1)
        self.places = nn.Parameter(0.02 * torch.randn(16, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu1(self.bn1(self.conv1(x)))
        x = self.conv3(self.relu2(self.bn2(self.conv2(x))))
        tokens = x.flatten(2).transpose(1, 2) + self.places
        return self.fc(self.norm(self.blocks(tokens)).mean(1))


def vit(num_classes: int, width: int = 96, heads: int = 3, layers: int = 4) -> ViT:
    """The vision transformer, 350 k parameters as it stands; see `ViT`."""
    return ViT(num_classes, width, heads, layers)
