"""A user's folder: my_net.py and my_data.py, a small net that tells three kinds of images apart, and its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

NET = """
from torch import nn


def net(width=4):
    return nn.Sequential(nn.Conv2d(1, width, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * width, 3))
"""
ASKING = """

class Asking(nn.Sequential):
    def forward(self, x):
        if x.dim() != 4 or x.shape[-1] != x.shape[-2]:
            raise ValueError(f"square images, got {tuple(x.shape)}")
        return super().forward(x)


class Counting(nn.Sequential):
    def forward(self, x):
        return super().forward(x) * (1.0 if x.shape[0] == 1 else 2.0)


def asking(width=4):
    return Asking(*net(width))


def counting(width=4):
    return Counting(*net(width))
"""
DATA = '''
import torch
from torch.utils.data import DataLoader, TensorDataset


def images(split="train", count=48):
    """Noise, and two bright rows: the first, the second or the third pair."""
    noise = torch.Generator().manual_seed(["train", "validation", "test"].index(split))
    labels = torch.arange(count) % 3
    images = torch.rand(count, 1, 6, 6, generator=noise)
    for image, label in zip(images, labels.tolist()):
        image[0, 2 * label : 2 * label + 2] += 1
    return images, labels


def four():
    return images()[0], torch.arange(48) % 4


def bright():
    return images()[0] * 5, images()[1]


def bare():
    return images("validation")[0]


def loader():
    return DataLoader(TensorDataset(*images("validation")), batch_size=10)
'''


def write(folder: Path) -> None:
    """The modules, and net.pt, whose answers are right."""
    (folder / "my_net.py").write_text(NET + ASKING)
    (folder / "my_data.py").write_text(DATA)
    space: dict[str, Any] = {}
    exec(NET + DATA, space)  # noqa: S102 - the lines above
    torch.manual_seed(0)
    net, (images, labels) = space["net"](), space["images"]()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(net(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(net.state_dict(), folder / "net.pt")
