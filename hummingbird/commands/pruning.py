"""Pruning by magnitude while a net trains: the smallest weights of each layer become zero, and stay zero.

The part of zeros rises from 0 to its end by a cubic (Zhu and Gupta, "To prune, or not to prune", 2017),

    sparsity (1 - (1 - step / ramp)^3)

over the first half of the training; in the second half the other weights adapt to the zeros. Biases, norms, embeddings
and all parameters outside of convolution and linear layers keep their values.
"""

from __future__ import annotations

import math

import torch
from torch import nn

_PRUNED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


class Pruning:
    """Keeps a part of the weights of each convolution and linear layer at zero during a training.

    model: the net. sparsity: the part of each layer's weights that is zero at the end, 0 to 1, rounded down. steps: of
    the whole training. A weight that is zero stays zero; so no other state is needed to resume.
    """

    def __init__(self, model: nn.Module, sparsity: float, steps: int) -> None:
        layers = (layer for layer in model.modules() if isinstance(layer, _PRUNED))
        self._weights = list(dict.fromkeys(layer.weight for layer in layers))
        self._sparsity, self._ramp = sparsity, max(1, steps // 2)

    def zeros(self, step: int) -> float:
        """Return the part of a layer's weights that is zero after this step, counted from 1."""
        return self._sparsity * (1 - (1 - min(1.0, step / self._ramp)) ** 3)

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Let the optimizer make step number `step`, counted from 1; then set the smallest weights to zero.

        A weight that was zero before the step is zero after it.
        """
        pruned = [weight == 0 for weight in self._weights]
        optimizer.step()
        for weight, zero in zip(self._weights, pruned, strict=True):
            weight[zero] = 0
            if count := math.floor(self.zeros(step) * weight.numel()):
                sizes = weight.abs()
                weight[sizes <= sizes.flatten().kthvalue(count).values] = 0
