"""CryptoNets: one strided convolution and two linear layers with x -> x * x between them, for 28x28 digits.

Gilad-Bachrach et al., "CryptoNets" (ICML 2016), section 5 and figure 2: 5 filters of 5x5 with stride 2 give
5 * 13 * 13 = 845 values, a square, 845 -> 100 (the paper's two linear pooling and convolution layers joined to one
matrix, as it does for inference), a square, 100 -> 10. Squares make the net a polynomial of degree 4, which a levelled
homomorphic scheme evaluates; ReLU in their place gives the same net for multi-party computation.
"""

from __future__ import annotations

import torch
from torch import nn


class Square(nn.Module):
    """x * x, elementwise."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x


class CryptoNets(nn.Module):
    """CryptoNets for (B, 1, 28, 28) images, giving (B, num_classes) logits; 945 activations per image.

    activation: "square" or "relu". Raises ValueError for another.
    """

    def __init__(self, num_classes: int, *, activation: str = "square") -> None:
        super().__init__()
        if activation not in ("square", "relu"):
            raise ValueError(f"activation is {activation!r}; cryptonets takes 'square' or 'relu'")
        kind: type[nn.Module] = Square if activation == "square" else nn.ReLU
        # Padding 1 on both sides leaves the last row and column unused: the paper pads above and to the left only.
        self.conv1 = nn.Conv2d(1, 5, 5, stride=2, padding=1)
        self.act1 = kind()
        self.fc1 = nn.Linear(5 * 13 * 13, 100)
        self.act2 = kind()
        self.fc2 = nn.Linear(100, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.flatten(self.act1(self.conv1(x)), 1)
        return self.fc2(self.act2(self.fc1(x)))


def cryptonets(num_classes: int, *, activation: str = "square") -> CryptoNets:
    """CryptoNets, 85,740 parameters; see `CryptoNets`."""
    return CryptoNets(num_classes, activation=activation)
