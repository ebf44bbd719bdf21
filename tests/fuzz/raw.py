"""Inputs as they were measured, and first layers that put them on one scale, for tests/fuzz/make.py.

Columns have deviations from 1e-6 to 1e6 and means up to 300 of these, all below 2^20.
"""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn

MOST = 2.0**20 - 1
_REACH = 4.0  # deviations


def statistics(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Means and deviations of so many columns; half of them are standardised already."""
    rng = random.Random(seed)
    means, deviations = torch.zeros(count), torch.ones(count)
    for column in range(count):
        if rng.random() < 0.5:
            power = rng.uniform(-6, 6) if rng.random() < 0.3 else rng.uniform(-1, 6)
            deviations[column] = min(10.0**power, MOST / (2 * _REACH))
            room = MOST - _REACH * float(deviations[column])
            mean = 10.0 ** rng.uniform(-1, 2.5) * float(deviations[column])
            means[column] = rng.choice((1, -1)) * min(mean, room)
    return means, deviations


def raw(shape: tuple[int, ...], seed: int) -> Tensor:
    """A batch of these columns, dimension 1."""
    view = (-1, *[1] * (len(shape) - 2))
    means, deviations = (x.view(view) for x in statistics(shape[1], seed))
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).clamp(-_REACH, _REACH)
    return (means + deviations * noise).clamp(-MOST, MOST)


def standardising(module: nn.Module, seed: int) -> nn.Module:
    """A linear layer, a convolution or a batch norm that takes means and deviations of columns away."""
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        means, deviations = statistics(module.num_features, seed)
        module.running_mean, module.running_var = means, deviations.square()
        return module
    assert isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d))
    means, deviations = statistics(module.weight.shape[1], seed)
    view = (1, -1, *[1] * (module.weight.dim() - 2))
    with torch.no_grad():
        module.weight.copy_(module.weight * 3 / deviations.view(view))
        assert module.bias is not None
        module.bias.sub_((module.weight * means.view(view)).flatten(1).sum(1))
    return module


def first_layer(rng: random.Random, shape: tuple[int, ...], seed: int) -> tuple[list[str], str]:
    """Lines for `__init__` and an expression in {x}."""
    space, channels = len(shape) - 2, shape[1]
    kinds = [f"nn.BatchNorm{max(1, space)}d({channels}, eps=1e-12)"]
    if space:
        kernel = tuple(rng.randint(1, min(2, size)) for size in shape[2:])
        kinds.append(f"nn.Conv{space}d({channels}, {rng.randint(1, 6)}, {kernel})")
    else:
        kinds.append(f"nn.Linear({channels}, {rng.randint(1, 8)})")
    if rng.random() < 0.2:
        return (
            [f"self.means, self.deviations = nn.ParameterList(spread({shape}, {seed}))"],
            "({x} - self.means) / self.deviations",
        )
    return [f"torch.manual_seed({seed})", f"self.first = standardising({rng.choice(kinds)}, {seed})"], "self.first({x})"


def spread(shape: tuple[int, ...], seed: int) -> list[Tensor]:
    """`statistics`, to be broadcast with a batch."""
    return [x.view(-1, *[1] * (len(shape) - 2)) for x in statistics(shape[1], seed)]
