"""Accuracies of a real net, each at the price of the layers behind the windows that change.

An accuracy is the share of right answers, or without labels of the exact net's own (study.py says why).

Behind a cut before the first layer of the asked group only the tail of the net runs, from values that are kept for
every batch. Images come in the order of their margins, the logit of the label less the best other one, so that a bad
window's wrong answers come first: with a floor it is given up after a batch or two.

Every layer draws its numbers from a seed of its own for each batch: an answer depends on the windows alone, and
windows are compared on the same numbers, which takes most of the chance out of their difference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hummingbird.bits import EXACT, BitConfig, BitWindow
from hummingbird.errors import InputError
from hummingbird.search.problem import Group
from hummingbird.twin.compare import Compare
from hummingbird.twin.folded import FoldedNet, State
from hummingbird.twin.layers import Twin
from hummingbird.twin.observe import check_images
from hummingbird.twin.windows import Windows, check_protocol, twins

Assignment = tuple[BitWindow, ...]  # a window for every comparing layer, in the order of execution


class _Kept(NamedTuple):
    """Where a batch stands before comparing layer number `cut`, with these windows before it."""

    cut: int
    windows: Assignment
    state: State


class CachedEvaluator:
    """An `Evaluator` of a net on images (N, ...) and labels int64 (N,), on the net's device, in float32 and eval mode.

    labels: None for the exact net's own answers. The net is copied. memory: bytes for kept values, beside the images;
    with less of them more is computed again. seed: of the protocol's random numbers. Cost: the exact net once, then the
    tail of the net for every window.
    Raises InputError for images and labels that do not fit each other or the net, and for a net without a comparing
    layer; ModelError and ConfigError as `simulate` does.

        evaluator = CachedEvaluator(net, images, labels)
        search_bits(groups, evaluator, 8 / 64)
    """

    def __init__(
        self,
        net: nn.Module,
        images: Tensor,
        labels: Tensor | None = None,
        *,
        protocol: str = "masked",
        parties: int = 2,
        seed: int = 0,
        batch: int = 128,
        memory: int = 4 << 30,
    ) -> None:
        check_protocol(protocol, parties)
        check_images(images, batch)
        self._net = FoldedNet(net)
        self._windows, self._parties = Windows(self._net.traced, protocol), parties
        if not self._windows.names:
            hint = "a net without ReLU or another comparing layer needs no windows"
            raise InputError("no comparing layers", where="net", hint=hint)
        self._place = {name: number for number, name in enumerate(self._windows.names)}
        self._compare, self._seed, self._batch = Compare(seed, False), seed, 0
        self._wrong: dict[Assignment, tuple[int, bool]] = {}  # at least so many; whether no more
        self.classes = _classes(self._logits(images[:1]))
        if labels is not None:
            check_labels(labels, len(images), self.classes)
        logits = torch.cat([self._logits(part).cpu() for part in images.split(batch)])
        labels = logits.argmax(1) if labels is None else labels.cpu()
        self._order = _margins(logits, labels).argsort(stable=True)
        self._images, self._labels = images[self._order].split(batch), labels[self._order].split(batch)
        self._stacks: list[list[_Kept]] = [[] for _ in self._images]
        self._share = memory // len(self._images)

    def accuracy(
        self, prefix: Mapping[str, BitWindow], group: Group, windows: Sequence[BitWindow], floor: float
    ) -> list[float]:
        """As `Evaluator` has it; 0 for what is below the floor."""
        own = [{**prefix, **{layer.name: window for layer in group.layers}} for window in windows]
        asked = [tuple(found.get(name, EXACT) for name in self._windows.names) for found in own]
        return self._accuracies(asked, min(self._place[layer.name] for layer in group.layers), floor)

    def config_accuracy(self, config: BitConfig) -> float:
        """The accuracy with these windows, all of them; ConfigError for those that the net cannot run."""
        config.check_names(self._windows.names)
        return self._accuracies([tuple(config.window(name) for name in self._windows.names)], 0, 0.0)[0]

    def predictions(self, config: BitConfig) -> Tensor:
        """The answer for every image with these windows, int64 (N,), on the CPU; errors of `config_accuracy`."""
        config.check_names(self._windows.names)
        windows = tuple(config.window(name) for name in self._windows.names)
        layers = self._layers(windows)
        found = [self._tail(number, windows, 0, layers).argmax(1).cpu() for number in range(len(self._images))]
        return torch.cat(found)[self._order.argsort()]

    def _accuracies(self, asked: Sequence[Assignment], cut: int, floor: float) -> list[float]:
        """Of assignments that agree before the cut, in one pass over the batches."""
        count = sum(len(labels) for labels in self._labels)

        def reached(wrong: int) -> float:
            return (count - wrong) / count

        def enough(windows: Assignment) -> bool:
            wrong, all_of_them = self._wrong.setdefault(windows, (0, False))
            return all_of_them or reached(wrong) < floor

        open_ = {windows: 0 for windows in asked if not enough(windows)}
        layers = {windows: self._layers(windows) for windows in open_}
        for number, labels in enumerate(self._labels):
            for windows, wrong in list(open_.items()):
                logits = self._tail(number, windows, cut, layers[windows])
                open_[windows] = wrong = wrong + int((logits.argmax(1).cpu() != labels).sum())
                last = number == len(self._labels) - 1
                if last or reached(wrong) < floor:
                    self._wrong[windows] = wrong, last
                    del open_[windows]
        found = [reached(self._wrong[windows][0]) for windows in asked]
        return [accuracy if accuracy >= floor else 0.0 for accuracy in found]

    def _layers(self, windows: Assignment) -> dict[str, Twin]:
        """What stands in for the comparing layers, each with random numbers of its own for each batch."""
        config = BitConfig(EXACT, dict(zip(self._windows.names, windows, strict=True)))
        found = twins(self._windows.plan(config), self._net.steps, self._parties, self._compare)

        def seeded(name: str, twin: Twin) -> Twin:
            def run(*values: Tensor) -> Tensor:
                self._compare.restart(layer_seed(self._seed, name, self._batch))
                return twin(*values)

            return run

        return {name: seeded(name, twin) for name, twin in found.items()}

    @torch.inference_mode()
    def _tail(self, number: int, windows: Assignment, cut: int, layers: Mapping[str, Twin]) -> Tensor:
        """Logits of a batch, from the values kept before the cut, or nearest to it."""
        self._batch, stack = number, self._stacks[number]
        while stack and (stack[-1].cut > cut or stack[-1].windows != windows[: stack[-1].cut]):
            stack.pop()
        if not stack or stack[-1].cut < cut:
            before = stack[-1].state if stack else self._net.start(self._images[number])
            stack.append(_Kept(cut, windows[:cut], self._net.advance(before, layers, self._windows.names[cut])))
        state = stack[-1].state
        # The deepest are kept: they save most, and are the smaller ones in most nets.
        while stack and sum(kept.state.nbytes for kept in stack) > self._share:
            del stack[0]
        logits: Tensor = self._net.finish(state, layers)
        return logits

    @torch.inference_mode()
    def _logits(self, images: Tensor) -> Tensor:
        """Of the net itself; InputError for images that it cannot take."""
        try:
            logits = self._net.finish(self._net.start(images), {})
        except (RuntimeError, ValueError, IndexError) as error:
            what = f"the net cannot take images of shape {tuple(images.shape)}: {str(error).partition(chr(10))[0]}"
            raise InputError(what, where="images", hint="images as the net was trained on, (N, C, H, W)") from None
        return logits


def layer_seed(seed: int, name: str, batch: int) -> int:
    """The seed of a layer's random numbers for a batch."""
    return int.from_bytes(hashlib.sha256(f"{seed} {batch} {name}".encode()).digest()[:7], "little")


def _margins(logits: Tensor, labels: Tensor) -> Tensor:
    """The label's logit less the best other one."""
    chosen = labels[:, None]
    return (logits.gather(1, chosen) - logits.scatter(1, chosen, -float("inf")).amax(1, keepdim=True)).squeeze(1)


def check_labels(labels: Tensor, count: int, classes: int) -> None:
    """InputError unless `labels` are int64 (count,), from 0 to classes - 1."""
    if not isinstance(labels, Tensor) or labels.dtype != torch.int64 or labels.dim() != 1:
        is_tensor = isinstance(labels, Tensor)
        got = f"{labels.dtype} {tuple(labels.shape)}" if is_tensor else type(labels).__name__
        raise InputError(f"labels are {got}", where="labels", hint="an int64 tensor (N,): the class of every image")
    if len(labels) != count:
        raise InputError(f"{count} images and {len(labels)} labels", where="labels", hint="one label for every image")
    least, most = (int(end) for end in torch.aminmax(labels))
    if least < 0 or most >= classes:
        what = f"labels from {least} to {most}, but the net has {classes} classes"
        raise InputError(what, where="labels", hint=f"integers from 0 to {classes - 1}")


def _classes(logits: Tensor) -> int:
    """The width of the logits of one image."""
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != 1:
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        what = f"one image gives logits of shape {got}, expected (1, classes)"
        raise InputError(what, where="net", hint="a classifier, from (B, ...) to (B, classes)")
    return logits.shape[1]
