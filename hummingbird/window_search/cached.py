"""Scores of a real net, each at the price of the layers behind the first window that is not exact.

answers    the share of right answers, or without labels of the exact net's own (study.py says why)
fine       1 - the mean over images of |p - q|

p is the exact net's certainty of its answer: sigmoid(margin / 0.4), the margin being the answer's logit less the best
other one, in standard deviations of the image's logits. q is that of the same answer with windows; with labels it is
the label's, and p is 1. Certainty moves before answers do. Windows that make all logits smaller, as pruning does, do
not move it, while softmax's probabilities move without any answer that changes.

Images come in the order of certainty: those that windows change are first. So the first `rank` of them rank windows at
a part of the price, and with a floor bad windows are given up early.

Weights have 20 bits of fraction under all windows: with a coarse one private inference rounds them to fewer, by 2^-12
of what the window leaves undecided (`Linear.coarser`).

Every layer draws its numbers from a seed of its own for each batch and run: a score depends on the windows alone, and
windows are compared on the same numbers, which takes most of the chance out of their difference.

Ranks (hummingbird/ranks) have every size-th batch each, and all of them the same scores.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hummingbird import graph, ranks
from hummingbird.bits import EXACT, BitConfig, BitWindow
from hummingbird.errors import ConfigError, InputError
from hummingbird.simulation.compare import Compare
from hummingbird.simulation.folded import FoldedNet, State
from hummingbird.simulation.layers import Twin
from hummingbird.simulation.observe import check_images
from hummingbird.simulation.windows import Windows, check_protocol, twins
from hummingbird.window_search.evaluator import Score
from hummingbird.window_search.images import fingerprint

_WIDTH = 0.4  # of the step from certain to not, in standard deviations of an image's logits
Assignment = tuple[BitWindow, ...]  # a window for every comparing layer, in the order of execution


class _Kept(NamedTuple):
    """Where a batch stands before comparing layer number `cut`, with exact comparisons before it."""

    cut: int
    state: State


class CachedEvaluator:
    """An `Evaluator` of a net on images (N, ...) and labels int64 (N,), on the net's device, in float32 and eval mode.

    labels: None for the exact net's own answers. The net is copied. seed: of the protocol's random numbers. runs: seeds
    over which a full score is the mean. rank: images of a coarse score. memory: bytes for kept values, beside the
    images; with less of them more is computed again. Cost: the exact net once; a coarse score, the tail of the net on
    `rank` images; a full score, that on all images for every run.
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
        runs: int = 2,
        rank: int = 512,
        batch: int = 128,
        memory: int = 2 << 30,
    ) -> None:
        check_protocol(protocol, parties)
        check_images(images, batch)
        for what, value in (("runs", runs), ("rank", rank)):
            if type(value) is not int or value < 1:
                raise ConfigError(f"{what} is {value!r}", where=what, hint="a positive integer")
        self._net = FoldedNet(net, protocol)
        self._windows, self._parties = Windows(self._net.traced, protocol), parties
        if not self._windows.names:
            hint = "a net without ReLU or another comparing layer needs no windows"
            raise InputError("no comparing layers", where="net", hint=hint)
        self._compare, self._seeds = Compare(seed, False), [run_seed(seed, run) for run in range(runs)]
        self._place = 0, seed  # the batch that runs, and the seed
        one = self._logits(images[:1])
        self.classes = classes_of(one)
        if labels is not None:
            check_labels(labels, len(images), self.classes)
        parts, given = images.split(batch), (images,) if labels is None else (images, labels)
        self._rows = [len(part) for part in parts]
        ranks.agree(
            lambda: {
                "net": graph.fingerprint(self._net.traced),
                "data": fingerprint(*given),
                "evaluation": (protocol, parties, seed, runs, rank, batch),
            }
        )
        logits = ranks.joined(lambda number: self._logits(parts[number]).cpu(), self._rows, one[:0])
        target = logits.argmax(1) if labels is None else labels.cpu()
        certainty = _certainty(logits, target)
        self._order = certainty.argsort(stable=True)
        expected = certainty if labels is None else torch.ones_like(certainty)
        self._images, self._labels = images[self._order].split(batch), target[self._order].split(batch)
        self._expected = expected[self._order].split(batch)
        self._count, self._ranked = len(images), math.ceil(min(rank, len(images)) / batch)  # images, batches
        self._stacks: list[list[_Kept]] = [[] for _ in self._images]
        self._share = memory // max(1, len(ranks.part(len(self._images))))
        self._coarse: dict[Assignment, float] = {}
        self._full: dict[Assignment, Score] = {}

    def coarse(self, config: BitConfig) -> float:
        """The fine score of the images that rank, one run; ConfigError for windows that the net cannot run."""
        windows = self._assignment(config)
        if windows not in self._coarse:
            self._begin(windows, f"a coarse score of {windows}")
            moved = ranks.joined(
                lambda number: self._moved(self._ran(number, self._seeds[0]), number),
                self._rows[: self._ranked],
                self._expected[0][:0],
            )
            self._coarse[windows] = 1 - float(moved.mean())
        return self._coarse[windows]

    def full(self, config: BitConfig, floor: float = 0.0) -> Score:
        """Both scores, of all images and runs; answers below the floor may be told too high. Errors of `coarse`."""
        windows = self._assignment(config)
        if windows in self._full:
            return self._full[windows]
        # Without low bits to drop there is no chance in it.
        seeds = self._seeds if any(window.low for window in windows) else self._seeds[:1]
        total = len(seeds) * self._count
        self._begin(windows, f"a full score of {windows} above {floor}")
        wrong, lost = 0, 0.0
        for start in range(0, len(self._images), ranks.size()):
            numbers = range(start, min(start + ranks.size(), len(self._images)))
            tallies = ranks.joined(
                lambda place, numbers=numbers: self._tally(numbers[place], seeds),  # type: ignore[misc]
                [len(seeds)] * len(numbers),
                torch.empty(0, 2, dtype=torch.float64),
            )
            for found in tallies.split(len(seeds)):  # batch by batch, as one process sums and gives up
                for more, moved in found.tolist():
                    wrong, lost = wrong + int(more), lost + moved
                if (total - wrong) / total < floor:
                    return Score((total - wrong) / total, 0.0)
        self._full[windows] = found = Score((total - wrong) / total, max(0.0, 1 - lost / total))
        return found

    def predictions(self, config: BitConfig) -> Tensor:
        """The answer for every image in the first run, int64 (N,), on the CPU; errors of `coarse`."""
        windows = self._assignment(config)
        self._begin(windows, f"predictions of {windows}")
        rows = [len(part) for part in self._images]
        found = ranks.joined(lambda number: self._ran(number, self._seeds[0]).argmax(1), rows, self._labels[0][:0])
        return found[self._order.argsort()]

    def _tally(self, number: int, seeds: Sequence[int]) -> Tensor:
        """A batch's wrong answers, and what certainty has moved in all: float64 (runs, 2)."""
        logits = [self._ran(number, seed) for seed in seeds]
        wrong = [int((found.argmax(1) != self._labels[number]).sum()) for found in logits]
        moved = [float(self._moved(found, number).sum()) for found in logits]
        return torch.tensor([*zip(wrong, moved, strict=True)], dtype=torch.float64)

    def _moved(self, logits: Tensor, number: int) -> Tensor:
        """|p - q| of each image of a batch."""
        return (_certainty(logits, self._labels[number]) - self._expected[number]).abs()

    def _assignment(self, config: BitConfig) -> Assignment:
        config.check_names(self._windows.names)
        return tuple(config.window(name) for name in self._windows.names)

    def _begin(self, windows: Assignment, question: str) -> None:
        """Make these windows' layers, which `_ran` runs."""
        ranks.agree(lambda: {"question": question})
        self._cut = next((number for number, window in enumerate(windows) if window != EXACT), len(windows) - 1)
        self._twins = self._layers(windows)

    def _ran(self, number: int, seed: int) -> Tensor:
        """Logits of a batch, on the CPU, from the values kept before the first window that is not exact."""
        self._place = number, seed
        return self._tail(number, self._cut, self._twins).cpu()

    def _layers(self, windows: Assignment) -> dict[str, Twin]:
        """Twins of the comparing layers, each with random numbers of its own for each batch."""
        config = BitConfig(EXACT, dict(zip(self._windows.names, windows, strict=True)))
        found = twins(self._windows.plan(config), self._net.steps, self._parties, self._compare)

        def seeded(name: str, twin: Twin) -> Twin:
            def run(*values: Tensor) -> Tensor:
                batch, seed = self._place
                self._compare.restart(layer_seed(seed, name, batch))
                return twin(*values)

            return run

        return {name: seeded(name, twin) for name, twin in found.items()}

    @torch.inference_mode()
    def _tail(self, number: int, cut: int, layers: Mapping[str, Twin]) -> Tensor:
        """Logits of a batch, from the values kept before the cut, or nearest to it."""
        stack = self._stacks[number]
        while stack and stack[-1].cut > cut:
            stack.pop()
        if not stack or stack[-1].cut < cut:
            before = stack[-1].state if stack else self._net.start(self._images[number])
            stack.append(_Kept(cut, self._net.advance(before, layers, self._windows.names[cut])))
        state = stack[-1].state
        # The deepest are kept: they save most, and are the smaller ones in most nets.
        while stack and sum(kept.state.nbytes for kept in stack) > self._share:
            del stack[0]
        logits: Tensor = self._net.finish(state, layers)
        return logits

    @torch.inference_mode()
    def _logits(self, images: Tensor) -> Tensor:
        """Logits of the net itself; InputError for images that it cannot take."""
        try:
            logits = self._net.finish(self._net.start(images), {})
        except (RuntimeError, ValueError, IndexError) as error:
            what = f"the net cannot take images of shape {tuple(images.shape)}: {str(error).partition(chr(10))[0]}"
            raise InputError(what, where="images", hint="images as the net was trained on, (N, C, H, W)") from None
        return logits


def run_seed(seed: int, run: int) -> int:
    """The seed of a run; that of the first one is `seed`."""
    return seed if run == 0 else int.from_bytes(hashlib.sha256(f"{seed} run {run}".encode()).digest()[:7], "little")


def layer_seed(seed: int, name: str, batch: int) -> int:
    """The seed of a layer's random numbers for a batch."""
    return int.from_bytes(hashlib.sha256(f"{seed} {batch} {name}".encode()).digest()[:7], "little")


def _certainty(logits: Tensor, labels: Tensor) -> Tensor:
    """The certainty of each image's label, from 0 to 1, float64 (N,); 0 where logits are not finite."""
    logits, chosen = logits.double(), labels[:, None]
    margin = logits.gather(1, chosen) - logits.scatter(1, chosen, -float("inf")).amax(1, keepdim=True)
    return torch.sigmoid(margin.squeeze(1) / (_WIDTH * logits.std(1, correction=0))).nan_to_num(0.0)


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


def classes_of(logits: Tensor) -> int:
    """The width of the logits of one image; InputError for what is no row of them."""
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != 1:
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        what = f"one image gives logits of shape {got}, expected (1, classes)"
        raise InputError(what, where="net", hint="a classifier, from (B, ...) to (B, classes)")
    return logits.shape[1]
