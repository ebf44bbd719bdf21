"""Training, from scratch and for fine-tuning: data sets, recipes, and the loop over epochs, on one device or several.

SGD with Nesterov momentum (He et al., CVPR 2016, section 4.2) or AdamW, one learning-rate cycle (Smith and Topin,
"Super-Convergence", 2018) or a cosine, label smoothing, shifted and mirrored images, and CutMix (Yun et al., ICCV
2019), which pastes a patch of one image into another and mixes their labels. On a GPU, and on a CPU for three-channel
images, forward and backward passes run in bfloat16 with channels-last memory; bfloat16 has the exponent range of
float32, so that no loss scaling is needed. Weights stay float32.

Stochastic weight averaging (Izmailov et al., UAI 2018) improves a trained net: more epochs at a constant rate, and the
mean of the weights after each epoch. pruning.py sets weights to zero while a net trains.

On several ranks (hummingbird/ranks.py) torch's DistributedDataParallel trains: each rank computes a part of every
batch. Differences from one process:

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

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, update_bn

from hummingbird import ranks
from hummingbird.commands.pruning import Pruning
from hummingbird.errors import InputError

# Several ranks -------------------------------------------------------------------------------------------------------

NOTES = """\
Each process trains on its part of every step's --batch, which the number of processes must divide. Gradients are summed
in another order than by one process, so that weights differ in their last bits; with batch norms they differ more:
these normalise by a process's own part, and average their statistics over processes after each epoch.
"""


def parallel(model: nn.Module) -> nn.Module:
    """Return a module that computes what the model computes, and averages gradients over the ranks in its backward
    pass.

    With one rank it is the model itself.
    """
    if ranks.size() == 1:
        return model
    device = next(model.parameters()).device
    cards = None if device.type == "cpu" else [device]
    with ranks.together(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # later torch calls it forward_sync_buffers
        # A static graph: a layer that is never used is no error, and costs nothing.
        return DistributedDataParallel(model, device_ids=cards, broadcast_buffers=False, static_graph=True)


def own(batch: int) -> slice:
    """Return the slice of a batch's images that this rank computes. batch: how many images the batch has.

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


# Data sets, recipes and epochs ---------------------------------------------------------------------------------------

RATES = {"sgd": 0.1, "adamw": 2e-3}  # largest learning rates from scratch
SCHEDULES = ("onecycle", "cosine", "constant")


@dataclass(frozen=True)
class Dataset:
    """Properties of a set of images: shape, classes, statistics, and which augmentation and split it allows.

    shape: of one image. classes: their number. mean, std: of the training pixels in [0, 1], by channel. shift: pixels
    by which training images may be shifted in each direction. flip: whether they may be mirrored. held_out: one of
    every `held_out` training images is in the split "validation", for choices that must not be made on test images; 0:
    none is.
    """

    shape: tuple[int, ...]
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    shift: int
    flip: bool
    held_out: int = 0


@dataclass(frozen=True)
class Recipe:
    """Settings of a training. Raises InputError for numbers out of range.

    batch: images per step. optimizer: "sgd" or "adamw". schedule: of the learning rate, one of SCHEDULES. rate: the
    largest learning rate. amp: bfloat16 and channels-last memory, "on", "off", or "auto": on for a GPU and for
    three-channel images. seed: of order and augmentation. average: whether the result is the mean of the weights after
    every epoch. cutmix: the proportion of batches, 0 to 1, whose images are mixed. sparsity: the part of each layer's
    weights that is zero at the end, from 0 to below 1.
    """

    epochs: int
    batch: int = 128
    optimizer: str = "sgd"
    schedule: str = "onecycle"
    rate: float = 0.1
    weight_decay: float = 5e-4
    label_smoothing: float = 0.1
    amp: str = "auto"
    seed: int = 0
    average: bool = False
    cutmix: float = 0.0
    sparsity: float = 0.0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 1:
            raise InputError(
                f"{self.epochs} epochs of batches of {self.batch}", where="--epochs, --batch", hint="at least 1"
            )
        if not 0 < self.rate < math.inf:
            raise InputError(f"a learning rate of {self.rate}", where="--rate", hint="a number above 0")
        if not 0 <= self.weight_decay < math.inf:
            raise InputError(f"a weight decay of {self.weight_decay}", where="--weight-decay", hint="0 or more")
        if not 0 <= self.label_smoothing <= 1:
            raise InputError(f"smoothing by {self.label_smoothing}", where="--label-smoothing", hint="from 0 to 1")
        if not 0 <= self.cutmix <= 1:
            raise InputError(f"a share of {self.cutmix}", where="--cutmix", hint="from 0 to 1; 0.5 is usual")
        if not 0 <= self.sparsity < 1:
            raise InputError(f"a sparsity of {self.sparsity}", where="--sparsity", hint="from 0 to below 1")
        if self.sparsity and self.average:
            hint = "leave one of them out: a mean over epochs has few zeros"
            raise InputError("pruning and a mean of weights", where="--sparsity, --average", hint=hint)


class Training:
    """Trains a net in place, epoch by epoch, with its optimizer and schedule; all ranks train it together.

    images: (N, ...), normalised. labels: int64 (N,). epoch: number of finished epochs. steps: steps of each epoch.

        training = Training(net, images, labels, Dataset((1, 8, 8), 10, (0.3,), (0.4,), shift=1), Recipe(epochs=60))
        while training.epoch < 60:
            loss = training.run_epoch()
        training.finish()

    Raises InputError for a batch whose size the number of ranks does not divide.
    """

    def __init__(
        self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, dataset: Dataset, recipe: Recipe
    ) -> None:
        device = next(model.parameters()).device
        pictures = images.ndim == 4
        coloured = pictures and images.shape[1] == 3
        self.half = recipe.amp == "on" or (recipe.amp == "auto" and (device.type == "cuda" or coloured))
        self.layout = torch.channels_last if self.half and pictures else torch.contiguous_format
        self.model, self.dataset, self.recipe = model.to(memory_format=self.layout), dataset, recipe
        self.images, self.labels, self.device = images.to(device), labels.to(device), device
        self.batch = min(recipe.batch, len(labels))
        self.own = own(self.batch)
        self._parallel = parallel(self.model)
        self.steps = len(labels) // self.batch  # leaves out the last, smaller batch of each epoch
        self.epoch = 0
        self.optimizer = self._optimizer()
        self.schedule = self._schedule(recipe.epochs * self.steps)
        self.criterion = nn.CrossEntropyLoss(label_smoothing=recipe.label_smoothing)
        self.generator = torch.Generator().manual_seed(recipe.seed)
        self.mean = AveragedModel(model) if recipe.average else None
        self.mix = _cutmix(dataset.classes) if recipe.cutmix else None
        total = recipe.epochs * self.steps
        self.pruning = Pruning(model, recipe.sparsity, total) if recipe.sparsity else None

    def _optimizer(self) -> torch.optim.Optimizer:
        recipe, parameters = self.recipe, self.model.parameters()
        if recipe.optimizer == "sgd":
            decay = recipe.weight_decay
            return torch.optim.SGD(parameters, recipe.rate, momentum=0.9, nesterov=True, weight_decay=decay)
        return torch.optim.AdamW(parameters, recipe.rate, weight_decay=recipe.weight_decay)

    def _schedule(self, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
        if self.recipe.schedule == "onecycle":
            return torch.optim.lr_scheduler.OneCycleLR(self.optimizer, self.recipe.rate, total_steps=steps)
        if self.recipe.schedule == "constant":
            return torch.optim.lr_scheduler.ConstantLR(self.optimizer, factor=1.0)
        return torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, steps)

    def run_epoch(self, after_step: Callable[[], object] = lambda: None) -> float:
        """Train for one epoch; return the mean loss of its steps. after_step: called after each step.

        Raises InputError if the loss or a weight is not finite afterwards.
        """
        self.model.train()
        reseed(self.recipe.seed, self.epoch)
        total = torch.zeros((), device=self.device)
        for x, labels in self._batches():
            if self.mix is not None and torch.rand(()) < self.recipe.cutmix:
                x, labels = self.mix(x, labels)  # labels are then distributions, (B, classes)
            with ranks.together():
                with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
                    loss = self.criterion(self._parallel(x), labels)
                self.optimizer.zero_grad()
                loss.backward()
            if self.pruning is None:
                self.optimizer.step()
            else:
                self.pruning.step(self.optimizer, self.schedule.last_epoch + 1)
            self.schedule.step()
            total += loss.detach()
            after_step()
        total = ranks.mean(total)
        share_statistics(self.model)
        if not all(torch.isfinite(value).all() for value in (total, *self.model.state_dict().values())):
            hint = f"try less than {self.recipe.rate}, or --optimizer adamw"
            raise InputError("training diverged: the loss or a weight is not finite", where="--rate", hint=hint)
        self.epoch += 1
        if self.mean is not None:
            self.mean.update_parameters(self.model)
        return float(total) / self.steps

    def finish(self) -> None:
        """End the training: with `Recipe.average`, set the net's weights to their mean over epochs.

        The statistics of batch norms are then computed again, by one more forward pass over the images.
        """
        if self.mean is not None:
            with torch.no_grad():
                for weight, mean in zip(self.model.parameters(), self.mean.module.parameters(), strict=True):
                    weight.copy_(mean)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
                update_bn(self._batches(), self.model)
            share_statistics(self.model)

    def _batches(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield for each batch of an epoch this rank's part: images in a new order and augmented, and their labels.

        Every image occurs once, but the last ones in the order are left out if they fill no batch.
        """
        order = torch.randperm(len(self.labels), generator=self.generator).to(self.device)
        for chosen in order[: self.steps * self.batch].split(self.batch):
            x = augment(self.images[chosen], self.dataset, self.generator, self.own)
            yield x.contiguous(memory_format=self.layout), self.labels[chosen[self.own]]

    def state(self) -> dict[str, Any]:
        """Return all that `restore` needs to continue this training, without data and recipe: by name, for torch.save.

        It has the number of epochs, the states of the net, optimizer, schedule and mean weights, and of the random
        generators.
        """
        return {
            "images": len(self.labels),
            "epoch": self.epoch,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "generator": self.generator.get_state(),
            "mean": None if self.mean is None else self.mean.state_dict(),
            "torch": torch.get_rng_state(),  # of dropout and CutMix
            "cuda": torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state` returned, of a training of the same net, data and recipe.

        Raises InputError if that training had another number of images.
        """
        if state["images"] != len(self.labels):
            what = f"the state is of a training on {state['images']} images, these are {len(self.labels)}"
            raise InputError(what, where="--resume", hint="use the same data, or start again")
        self.epoch = state["epoch"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.generator.set_state(state["generator"])
        if self.mean is not None:
            self.mean.load_state_dict(state["mean"])
        torch.set_rng_state(state["torch"])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda"], self.device)


def _cutmix(classes: int) -> Any:
    from torchvision.transforms import v2

    return v2.CutMix(num_classes=classes)


def augment(
    images: torch.Tensor, dataset: Dataset, generator: torch.Generator, own: slice = slice(None)
) -> torch.Tensor:
    """Return augmented images: each is shifted by up to `dataset.shift` pixels in each direction, half are mirrored.

    They are mirrored only if `dataset.flip` allows it. Pixels shifted in are black. images: (B, C, H, W), normalised,
    on any device; of any shape if there are neither shifts nor mirroring. generator: source of the random numbers. own:
    the slice of the images to augment and return; each of them is shifted and mirrored as if all images were
    returned.
    """
    if not (dataset.shift or dataset.flip):
        return images[own]
    count, _, height, width = images.shape
    shift, device = dataset.shift, images.device
    mean, std = (torch.tensor(values, device=device).view(1, -1, 1, 1) for values in (dataset.mean, dataset.std))
    black = -mean / std
    padded = F.pad(images - black, (shift,) * 4) + black
    top, left = torch.randint(2 * shift + 1, (2, count, 1), generator=generator)
    rows = top + torch.arange(height)
    columns = left + torch.arange(width)
    if dataset.flip:
        mirrored = torch.rand(count, 1, generator=generator) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    index, rows, columns = (x.to(device)[own] for x in (torch.arange(count), rows, columns))
    return padded[index[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
