"""Data-parallel training by torch's DistributedDataParallel: each rank computes a part of every batch.

Differences from one process:

    batch         batch / size images for each rank; every rank draws order, shifts and mirrors of the whole batch
    gradient      the mean over the whole batch, summed in another order: weights differ in their last bits
    batch norm    in training, statistics of the rank's own part (as Goyal et al., "Accurate, Large Minibatch SGD",
                  2017, with 32 images or more per rank); running statistics are averaged over ranks after each epoch
    dropout,      drawn by each rank for its part, from the seed, the epoch and the rank
    CutMix

SyncBatchNorm would normalise by the whole batch, but torch has it for CUDA only, and every layer then waits for all
ranks.
"""

from __future__ import annotations

import warnings
from hashlib import sha256

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hummingbird import ranks
from hummingbird.errors import InputError

NOTES = """\
Each process trains on its part of every step's --batch, which the number of processes must divide. Gradients are summed
in another order than by one process, so that weights differ in their last bits; with batch norms they differ more:
these normalise by a process's own part, and average their statistics over processes after each epoch.
"""


def parallel(model: nn.Module) -> nn.Module:
    """Return a module whose backward pass averages gradients over the ranks; with one rank the model itself."""
    if ranks.size() == 1:
        return model
    device = next(model.parameters()).device
    cards = None if device.type == "cpu" else [device]
    with ranks.together(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # later torch calls it forward_sync_buffers
        # A static graph: a layer that is never used is no error, and costs nothing.
        return DistributedDataParallel(model, device_ids=cards, broadcast_buffers=False, static_graph=True)


def own(batch: int) -> slice:
    """Return which images of a batch are this rank's.

    Raises InputError if the number of ranks does not divide the batch.
    """
    each, rest = divmod(batch, ranks.size())
    if rest:
        hint = f"a multiple of {ranks.size()}, or another number of ranks"
        raise InputError(f"a batch of {batch} images for {ranks.size()} ranks", where="--batch", hint=hint)
    return slice(ranks.rank() * each, (ranks.rank() + 1) * each)


def reseed(seed: int, epoch: int) -> None:
    """Seed torch's generators with `seed`, this rank and `epoch`; does nothing if there is only one rank."""
    if ranks.size() > 1:
        text = f"{seed} epoch {epoch} rank {ranks.rank()}"
        torch.manual_seed(int.from_bytes(sha256(text.encode()).digest()[:7], "little"))


def share_statistics(model: nn.Module) -> None:
    """Average a model's floating-point buffers, the running statistics of batch norms, over the ranks in place."""
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.copy_(ranks.mean(buffer))
