"""A net of one square for 28x28 digits: cut the border off, linear, x * x, linear.

One product is the least with which an encrypted net is more than linear, so its ciphertexts are the smallest. MNIST's
digits lie in a box of 20 x 20 around their centre of mass, so that the outermost pixels are nearly always black: who
owns an image drops them in the clear, and they cost nothing.
"""

from __future__ import annotations

import torch
from torch import nn


class OneSquare(nn.Module):
    """Two linear layers with x * x between them, for (B, 1, 28, 28) images, giving (B, num_classes) logits.

    hidden: values that are squared. border: rows and columns dropped on each side.
    """

    def __init__(self, num_classes: int, *, hidden: int = 128, border: int = 4) -> None:
        super().__init__()
        if not 0 <= border < 14:
            raise ValueError(f"border is {border}; an image of 28 x 28 has borders of 0 to 13")
        self.border, self.side = border, 28 - 2 * border
        self.fc1 = nn.Linear(self.side * self.side, hidden)
        self.fc2 = nn.Linear(hidden, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        end = self.border + self.side
        x = self.fc1(torch.flatten(x[:, :, self.border : end, self.border : end], 1))
        return self.fc2(x * x)


def one_square(num_classes: int, *, hidden: int = 128, border: int = 4) -> OneSquare:
    """The net of one square; see `OneSquare`."""
    return OneSquare(num_classes, hidden=hidden, border=border)
