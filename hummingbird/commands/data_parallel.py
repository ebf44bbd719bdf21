"""Steps of training that ranks share, each with a part of the batch: torch's DistributedDataParallel.

What one process computes, rank by rank:

    batch         batch / size images for each rank; every rank draws order, shifts and mirrors of the whole batch
    gradient      the mean over the whole batch, summed in another order: weights differ in their last bits
    batch norm    statistics of a rank's own part in training (Goyal et al., "Accurate, Large Minibatch SGD", 2017, who
                  keep 32 images and more for each); the running ones are the mean over the ranks after each epoch
    dropout,      drawn by each rank for its part, from the seed, the epoch and its number
    CutMix

SyncBatchNorm would normalise by the whole batch. torch has it for CUDA alone, where every layer then waits for all.
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
Each trains on its part of every step's --batch, which their number must divide. Gradients are summed in another order
than by one process, so that weights differ in their last bits; where there are batch norms, by more: they normalise by
a process's own part, and keep the mean of all processes' statistics after each epoch.
"""


def parallel(model: nn.Module) -> nn.Module:
    """A module whose backward pass gives the ranks the mean of their gradients; with one rank the model itself."""
    if ranks.size() == 1:
        return model
    device = next(model.parameters()).device
    cards = None if device.type == "cpu" else [device]
    with ranks.together(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # later torch calls it forward_sync_buffers
        # A static graph: a layer that is never used is no error, and costs nothing.
        return DistributedDataParallel(model, device_ids=cards, broadcast_buffers=False, static_graph=True)


def own(batch: int) -> slice:
    """This rank's images of a batch; InputError if it does not divide."""
    each, rest = divmod(batch, ranks.size())
    if rest:
        hint = f"a multiple of {ranks.size()}, or another number of ranks"
        raise InputError(f"a batch of {batch} images for {ranks.size()} ranks", where="--batch", hint=hint)
    return slice(ranks.rank() * each, (ranks.rank() + 1) * each)


def reseed(seed: int, epoch: int) -> None:
    """Give torch's own generators this rank's numbers for an epoch; one rank goes on with those it has."""
    if ranks.size() > 1:
        text = f"{seed} epoch {epoch} rank {ranks.rank()}"
        torch.manual_seed(int.from_bytes(sha256(text.encode()).digest()[:7], "little"))


def share_statistics(model: nn.Module) -> None:
    """Give real buffers, which are the running statistics of batch norms, their mean over the ranks."""
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.copy_(ranks.mean(buffer))
