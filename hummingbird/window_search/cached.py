"""Scores of a real net; each costs only the layers behind the first window that is not exact.

answers    the share of answers that are right, or that equal the exact net's (study.py says why)
fine       1 less the mean over images of the change of the finer score

answers.py defines both for each kind of answer. Images of a classifier are sorted by certainty: those that windows
change come first. So the first `rank` images rank windows at a part of the cost, and with a floor bad windows are given
up early.

Weights have 20 bits of fraction under all windows: before a coarse window private inference rounds them to fewer bits,
by 2^-12 of the values that the window leaves undecided (`Linear.coarser`).

Every layer draws its random numbers from its own seed for each batch and run: a score depends on the windows only, and
windows are compared on the same random numbers, which removes most of the noise from their difference.

Of several ranks (hummingbird/ranks.py) each runs every size-th batch, and all get the same scores.
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
from hummingbird.simulation.folded import FoldedNet, FoldedState
from hummingbird.simulation.layers import Twin, Windows, check_protocol, twins
from hummingbird.simulation.observe import check_images, public_rows, slices
from hummingbird.window_search.answers import Answers, Judged, fitting, results
from hummingbird.window_search.evaluator import Score
from hummingbird.window_search.images import fingerprint

Assignment = tuple[BitWindow, ...]  # a window for every comparing layer, in the order of execution


class _Kept(NamedTuple):
    """The values of a batch that are kept before one comparing layer; all layers before it compare exactly.

    cut: the number of that layer among the comparing layers, from 0.
    """

    cut: int
    state: FoldedState


class CachedEvaluator:
    """An `Evaluator` of a net on images (N, ...) and labels (N, ...), on the net's device, in float32 and eval mode.

    A search asks it for scores of windows. It keeps values of layers, so that a score computes only what changed. The
    net is copied. `answers`: the object that judges.
    public: the net's public inputs, each one tensor for all images or one with a row for each. accurate: compare
    answers with the labels, if there are any, not with the exact net's. kind: how to judge: "classes", "score",
    "numbers", "values" or "embedding"; None: determined by labels and outputs. seed: of the protocol's random numbers.
    runs: number of seeds over which a full score is the mean. rank: number of images of a coarse score. batch: images
    at a time. memory: bytes for kept values, beside the images; with less memory more is computed again.
    Cost: the exact net once; for a coarse score the layers behind the first window that is not exact, on `rank` images;
    for a full score these layers on all images for every run. Raises InputError for images and labels that do not fit
    each other or the net, and for a net without a comparing layer; ModelError and ConfigError as `simulate` does.

        evaluator = CachedEvaluator(net, images, labels)
        search_bits(groups, evaluator, 8 / 64)
    """

    def __init__(
        self,
        net: nn.Module,
        images: Tensor,
        labels: Tensor | None = None,
        *,
        public: Sequence[Tensor] = (),
        accurate: bool = True,
        kind: str | None = None,
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
        self._place = 0, seed  # number of the current batch, and seed
        one = self._exact(images[:1], public_rows(self._net.traced, public, slice(0, 1)))
        found = results(self._net.traced, images.shape[1:])
        fitting([shape for _, shape in found], len(images), labels, kind)
        given = [images, *public, *([] if labels is None else [labels])]
        parts = [(images[rows], public_rows(self._net.traced, public, rows)) for rows in slices(len(images), batch)]
        self._rows = [len(part) for part, _ in parts]
        ranks.agree(
            lambda: {
                "net": graph.fingerprint(self._net.traced),
                "data": fingerprint(*given),
                "evaluation": (protocol, parties, seed, runs, rank, batch, accurate, kind),
            }
        )
        outputs = ranks.joined(lambda number: self._exact(*parts[number]).cpu(), self._rows, one[:0].cpu())
        self.answers = Answers(outputs, found, labels, accurate and labels is not None, kind)
        self._order = self.answers.order.argsort(stable=True)
        self._inputs = [
            (images[rows], public_rows(self._net.traced, public, rows)) for rows in self._order.split(batch)
        ]
        sorted_ = [tensor[self._order].split(batch) for tensor in self.answers.references]
        self._references = [*zip(*sorted_, strict=True)]  # of each batch
        self._empty = outputs[:0]
        self._count, self._ranked = len(images), math.ceil(min(rank, len(images)) / batch)  # images, batches
        self._stacks: list[list[_Kept]] = [[] for _ in self._inputs]
        self._share = memory // max(1, len(ranks.part(len(self._inputs))))
        self._coarse: dict[Assignment, float] = {}
        self._full: dict[Assignment, Score] = {}

    def coarse(self, config: BitConfig) -> float:
        """Return the mean finer score (`Score.fine`) with these windows, from one run on about `rank` images.

        These images fill whole batches, and are those that windows are likely to change first. Raises ConfigError for
        windows that the net cannot run.
        """
        windows = self._assignment(config)
        if windows not in self._coarse:
            self._begin(windows, f"a coarse score of {windows}")
            moved = ranks.joined(
                lambda number: self._judged(self._ran(number, self._seeds[0]), number).moved,
                self._rows[: self._ranked],
                torch.empty(0, dtype=torch.float64),
            )
            self._coarse[windows] = 1 - float(moved.mean())
        return self._coarse[windows]

    def full(self, config: BitConfig, floor: float = 0.0) -> Score:
        """Return the score with these windows, the mean over all images and runs.

        floor: if the proportion of right answers is certain to be below it, the computation may stop early; the
        `answers` of the score is then only an upper bound, which is below `floor`. Raises ConfigError for windows that
        the net cannot run.
        """
        windows = self._assignment(config)
        if windows in self._full:
            return self._full[windows]
        # Without low bits to drop nothing is random.
        seeds = self._seeds if any(window.low for window in windows) else self._seeds[:1]
        total = len(seeds) * self._count
        self._begin(windows, f"a full score of {windows} above {floor}")
        wrong, lost = 0.0, 0.0
        for start in range(0, len(self._inputs), ranks.size()):
            numbers = range(start, min(start + ranks.size(), len(self._inputs)))
            tallies = ranks.joined(
                lambda place, numbers=numbers: self._tally(numbers[place], seeds),  # type: ignore[misc]
                [len(seeds)] * len(numbers),
                torch.empty(0, 2, dtype=torch.float64),
            )
            for found in tallies.split(len(seeds)):  # batch by batch, as one process sums and gives up
                for more, moved in found.tolist():
                    wrong, lost = wrong + more, lost + moved
                if (total - wrong) / total < floor:
                    return Score((total - wrong) / total, 0.0)
        self._full[windows] = found = Score((total - wrong) / total, max(0.0, 1 - lost / total))
        return found

    def outputs(self, config: BitConfig) -> Tensor:
        """Return the net's outputs with these windows for every image, (N, ...) on the CPU, in the first run.

        Several results are packed side by side, one row for each image. Raises ConfigError for windows that the net
        cannot run.
        """
        windows = self._assignment(config)
        self._begin(windows, f"outputs of {windows}")
        found = ranks.joined(lambda number: self._ran(number, self._seeds[0]), self._rows, self._empty)
        return found[self._order.argsort()]

    def _tally(self, number: int, seeds: Sequence[int]) -> Tensor:
        """Run a batch once per seed; return for each run the number of wrong answers, and the sum of changes of finer
        scores.

        number: the number of the batch. The result is float64 (runs, 2). Both columns are sums over the batch's images.
        """
        judged = [self._judged(self._ran(number, seed), number) for seed in seeds]
        wrong = [len(found.kept) - float(found.kept.sum()) for found in judged]
        moved = [float(found.moved.sum()) for found in judged]
        return torch.tensor([*zip(wrong, moved, strict=True)], dtype=torch.float64)

    def _judged(self, outputs: Tensor, number: int) -> Judged:
        """Judge the net's outputs for batch number `number`, by the labels or the exact net's outputs.

        Returns for each image the proportion of right decisions, and the change of the finer score (`Judged`).
        """
        return self.answers.judge(outputs, self._references[number])

    def _assignment(self, config: BitConfig) -> Assignment:
        config.check_names(self._windows.names)
        return tuple(config.window(name) for name in self._windows.names)

    def _begin(self, windows: Assignment, question: str) -> None:
        """Make the simulated layers with these windows, for all runs that one score needs (`_ran`).

        windows: one for each comparing layer, in the order of execution. question: the score that is asked for, as
        text. If several ranks compute, all must have the same question; otherwise AgreementError is raised.
        """
        ranks.agree(lambda: {"question": question})
        self._cut = next((number for number, window in enumerate(windows) if window != EXACT), len(windows) - 1)
        self._twins = self._layers(windows)

    def _ran(self, number: int, seed: int) -> Tensor:
        """Run batch number `number` with the layers that `_begin` has made; return the net's outputs on the CPU.

        The run begins at the first window that is not exact, with kept values. seed: of the run's random numbers.
        """
        self._place = number, seed
        return self._tail(number, self._cut, self._twins).cpu()

    def _layers(self, windows: Assignment) -> dict[str, Twin]:
        """Make the simulated comparing layers with these windows, each with random numbers of its own for each batch.

        windows: one for each comparing layer, in the order of execution. Returns functions on tensors, by the layers'
        names.
        """
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
        """Return the net's outputs for one batch, by a run of the part of the net from one comparing layer to the end.

        number: of the batch. cut: the number of that layer among the comparing layers, from 0.
        layers: the simulated layers, by name. The values before layer `cut` are kept for the next call, as far as
        memory allows; if they are not kept yet, they are computed from the nearest kept values before them.
        """
        stack = self._stacks[number]
        while stack and stack[-1].cut > cut:
            stack.pop()
        if not stack or stack[-1].cut < cut:
            before = stack[-1].state if stack else self._started(*self._inputs[number])
            stack.append(_Kept(cut, self._net.advance(before, layers, self._windows.names[cut])))
        state = stack[-1].state
        # Keep the deepest states: they save most, and are smaller in most nets.
        while stack and sum(kept.state.nbytes for kept in stack) > self._share:
            del stack[0]
        outputs: Tensor = self._net.finish(state, layers)
        return outputs

    @torch.inference_mode()
    def _started(self, images: Tensor, public: Sequence[Tensor]) -> FoldedState:
        return self._net.start(images, *public)

    @torch.inference_mode()
    def _exact(self, images: Tensor, public: Sequence[Tensor]) -> Tensor:
        """Run the net itself, with exact comparisons. Raises InputError for images that it cannot take."""
        try:
            outputs: Tensor = self._net.finish(self._started(images, public), {})
        except (RuntimeError, ValueError, IndexError) as error:
            what = f"the net cannot take images of shape {tuple(images.shape)}: {str(error).partition(chr(10))[0]}"
            raise InputError(what, where="images", hint="images as the net was trained on, (N, C, H, W)") from None
        return outputs


def run_seed(seed: int, run: int) -> int:
    """Derive the seed of run number `run`; run 0 has `seed` itself."""
    return seed if run == 0 else int.from_bytes(hashlib.sha256(f"{seed} run {run}".encode()).digest()[:7], "little")


def layer_seed(seed: int, name: str, batch: int) -> int:
    """Derive the seed of a layer's random numbers for one batch from the seed of a run. batch: the batch's number."""
    return int.from_bytes(hashlib.sha256(f"{seed} {batch} {name}".encode()).digest()[:7], "little")
