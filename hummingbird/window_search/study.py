"""A trained net's windows, asked for in one line: magnitudes, layers, groups, prices and answers of one net.

    study = Study(net, images)                            # validation images
    eco = study.search()                                  # m = 0: no prediction changes
    bits = study.search(8 / 64)                           # HummingBird-b
    fast = study.search(2e5, objective=study.objective("bytes"))

HummingBird searches for accuracy. Right answers that become wrong and wrong ones that become right cancel there: on
1,024 images windows seem to lose nothing that lose half a point on others (docs/bit-config.md). So the default here is
agreement, the share of answers that are the exact net's: every change counts. What an answer is, and when it is the
same, depends on the net: answers.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from tqdm import tqdm

from hummingbird import graph, ranks
from hummingbird.bits import EXACT, BitConfig, BitWindow
from hummingbird.errors import ConfigError, InputError, ModelError, Problem
from hummingbird.graph import calls, trace
from hummingbird.graph.example import is_private, is_public
from hummingbird.graph.example_shapes import alone, saved, settled
from hummingbird.hybrid.convert import PROTOCOL, TracedNet
from hummingbird.hybrid.ideal import Plain
from hummingbird.hybrid.lowering import moved
from hummingbird.mpc.plan.builders import CUSTOM
from hummingbird.simulation.cut import seeded, uniform_low
from hummingbird.simulation.observe import check_images, magnitudes
from hummingbird.structure import flatten, rebuild
from hummingbird.version import VERSION
from hummingbird.window_search.answers import fitting
from hummingbird.window_search.cached import Assignment, CachedEvaluator, layer_seed
from hummingbird.window_search.evaluator import Progress
from hummingbird.window_search.find import search_bits
from hummingbird.window_search.images import fingerprint, gathered
from hummingbird.window_search.net import SearchedNet
from hummingbird.window_search.objective import Objective, bit_budget, online_bytes, predicted_seconds, read_budget
from hummingbird.window_search.problem import ComparingLayer, group_layers
from hummingbird.window_search.rounding import check_knobs

# Scores of windows for two parties without a dealer: the whole numbers of `simulate(cut=True)`, weights rounded too.
#
# Everything is scored as in cached.py but the arithmetic: a plan is made for each assignment, and runs from the
# start. A layer that an assignment leaves exact gets `WIDE` bits below its range: no gate takes 64, and these change
# nothing.

WIDE = 14  # bits: beside weights that are rounded to 1/55 of theirs, 2^-13 of a value's range is nothing
LIMIT = 32  # of k: a share has no more bits, at the unit of a window or a finer one


class CutEvaluator(CachedEvaluator):
    """An `Evaluator` as `CachedEvaluator`; largest: for each comparing layer the largest |x|, in ring units.

    Errors as of `CachedEvaluator` and `hybrid.make_plan`. Cost: the whole net on integers for every score.
    """

    def __init__(
        self, net: nn.Module, images: Tensor, labels: Tensor | None, largest: Mapping[str, int], **options: Any
    ) -> None:
        self._traced = TracedNet(net, images.shape[1:])
        self._range = max(abs(float(end)) for end in torch.aminmax(images))
        outputs, steps = self._traced.outputs, self._traced.steps
        derived = {steps[pool].name for pool in moved(steps).values()}  # as wide as the ReLU's window says
        self.layers = [
            ComparingLayer(name, outputs[name], most, LIMIT) for name, most in largest.items() if name not in derived
        ]
        self._wide: dict[str, BitWindow] = {}
        for layer in self.layers:
            k = layer.largest.bit_length() + 2
            self._wide[layer.name] = BitWindow(k, max(0, k - WIDE))
        self.plan(BitConfig())
        super().__init__(net.cpu(), images, labels, **options)

    def plan(self, config: BitConfig) -> Plain:
        """The plan under these windows. ConfigError where there is none."""
        windows = {name: config.window(name) for name in self._wide}
        windows = {name: self._wide[name] if window == EXACT else window for name, window in windows.items()}
        return Plain(self._traced.plan(BitConfig(EXACT, windows, input_range=self._range)))

    def accepts(self, config: BitConfig) -> bool:
        """Whether the net can be converted with these windows."""
        try:
            self.plan(config)
        except ConfigError:
            return False
        return True

    def _begin(self, windows: Assignment, question: str) -> None:
        ranks.agree(lambda: {"question": question})
        config = BitConfig(EXACT, dict(zip(self._windows.names, windows, strict=True)))
        self._plain = None if all(window == EXACT for window in windows) else self.plan(config)

    def _ran(self, number: int, seed: int) -> Tensor:
        images, public = self._inputs[number]
        if self._plain is None:
            return self._exact(images, public).cpu()
        plan = self._plain.plan
        low = uniform_low(plan, len(images), seeded(layer_seed(seed, "shares", number)))
        return plan.decode(self._plain(plan.encode(images), low))


# ---------------------------------------------------------------------------------------------------------------------

# Inputs of many calls as a search runs them: the net's one tensor, an image in each row, and its public inputs.


class Called(NamedTuple):
    """A net that is traced without an example, its inputs (N, ...), public ones in order, and labels (N, ...)."""

    net: nn.Module
    images: Tensor
    public: list[Tensor]
    labels: Tensor | None


def called(net: nn.Module, images: Any, labels: Tensor | None, example: Any) -> Called:
    """The inputs of N calls; images: as `Study` takes them. example: as for `convert_model`, None: the images are.

    Raises InputError for inputs unlike the example's, ModelError as `settled`.
    """
    if alone(example):
        images, labels = gathered(images, labels)
        if not isinstance(images, Tensor) or images.dim() < 2 or not len(images):
            return Called(net, images, [], labels)  # which is refused
        return Called(settled(net, images[:1], custom=tuple(CUSTOM)), images, [], labels)
    if not isinstance(images, dict) and not (isinstance(images, (tuple, list)) and _tensors(images)):
        images, labels = gathered(images, labels)
        images = _in_place(example, images)
    net = saved(net, example, custom=tuple(CUSTOM))
    steps = trace(net, custom=tuple(CUSTOM))
    arguments, named = ((), images) if isinstance(images, dict) else (tuple(images), {})
    given = calls.inputs(steps, arguments, named, is_private)
    if steps[0].attrs["shape"][0] is not None:
        what = "forward() depends on how many images there are"
        raise ModelError([Problem("net", what, "write it for any number of images")])
    return Called(net, given.packed(), given.public, labels)


def _tensors(values: Any) -> bool:
    return all(isinstance(value, Tensor) or not is_private(value) for value in values) and len(values) > 1


def _in_place(example: Any, images: Tensor) -> Any:
    """The example's arguments with these images in the place of its one private tensor."""
    structure, leaves = flatten(example, is_private, is_public)
    if sum(map(is_private, leaves)) != 1:
        hint = "images=(x, y), or a dict by name: all inputs in the places that they have in the example"
        raise InputError("one tensor of images for a net of several private inputs", where="images", hint=hint)
    return rebuild(structure, iter([images if is_private(leaf) else leaf for leaf in leaves]))


# ---------------------------------------------------------------------------------------------------------------------

OBJECTIVES = ("bits", "bytes", "seconds")
CRITERIA = ("agreement", "accuracy")


class Study:
    """A trained net, validation images (N, ...) and labels (N, ...), and what private inference of it costs.

    images: a tensor, or a DataLoader, a data set or batches, with labels or without; they are held in memory, and so is
    what the net gives for them; a search is resumed with the same images in the same order. labels: classes as whole
    numbers, 0 and 1 for scores, or real numbers in the outputs' shape. answers: how the net's answers are judged, one
    of answers.py's `KINDS`; None: as labels and outputs say, and `str(study.answers)` tells. example: as for
    `convert_model`, for a net that takes several inputs or flags; the images are then a tuple or a dict as the example
    is, (N, ...) each, or one tensor in the place of the example's private one. criterion: what windows are chosen by,
    "agreement" with the exact net or "accuracy"; only the latter needs labels. by: how layers are grouped, as for
    `group_layers`. seed, runs: of the protocol's random numbers, and over how many seeds windows are compared in the
    end. batch: images at a time. cut: windows of `hummingbird.hybrid`, scored by its whole numbers (cut.py); protocol
    and parties stay as they are, and a search needs a budget of bits. progress: told (images done, of all) while
    magnitudes are measured.
    Cost: two passes of the exact net.
    `input_range`: the largest |x| in the images.
    Raises InputError for images and labels that do not fit each other or the net, ModelError for a net that cannot be
    converted, ConfigError for the other arguments.
    """

    def __init__(
        self,
        net: nn.Module,
        images: Tensor | Dataset[Any] | Iterable[Any],
        labels: Tensor | None = None,
        *,
        example: Any = None,
        answers: str | None = None,
        criterion: str = "agreement",
        by: str | Mapping[str, Sequence[str]] = "stage",
        protocol: str = "masked",
        parties: int = 2,
        seed: int = 0,
        runs: int = 2,
        batch: int = 128,
        cut: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        started, net = time.perf_counter(), graph.unwrapped(net)
        if criterion not in CRITERIA:
            raise ConfigError(
                f"unknown criterion {criterion!r}", where="criterion", hint=f"one of {', '.join(CRITERIA)}"
            )
        net, images, public, labels = called(net, images, labels, example)
        if criterion == "accuracy" and labels is None:
            raise InputError("no labels to be accurate to", where="labels", hint='give them, or criterion="agreement"')
        judged: dict[str, Any] = {"accurate": criterion == "accuracy", "kind": answers}
        if cut and (protocol, parties) != ("masked", 2):
            raise ConfigError("cut=True with a protocol or parties", where="cut", hint="leave them out: it has its own")
        self.searched = SearchedNet(net, images.shape[1:], protocol)
        check_images(images, batch)
        fitting([shape for _, shape in self.searched.results], len(images), labels, answers)
        if not cut:  # whose layers the evaluator tells
            group_layers(self.searched.layers(dict.fromkeys(self.searched.names, 0)), by)
        largest = magnitudes(
            net, images, protocol=protocol, parties=parties, batch=batch, public=public, progress=progress
        )
        self.evaluator: CachedEvaluator
        self.accepts = self.searched.accepts
        if cut:
            protocol = PROTOCOL
            options: dict[str, Any] = {"seed": seed, "runs": runs, "batch": batch, **judged}
            self.evaluator = found = CutEvaluator(net, images, labels, largest, **options)
            self.layers, self.accepts = found.layers, found.accepts
        else:
            self.evaluator = CachedEvaluator(
                net,
                images,
                labels,
                protocol=protocol,
                parties=parties,
                seed=seed,
                runs=runs,
                batch=batch,
                public=public,
                **judged,
            )
            self.layers = self.searched.layers(largest)
        self.groups = group_layers(self.layers, by)
        self.protocol, self.parties, self.seed = protocol, parties, seed
        self.answers = self.evaluator.answers
        self.input_range = float(images.abs().amax()) if images.numel() else 0.0
        self._facts = {
            "net": self.searched.fingerprint,
            "data": fingerprint(images, *public, *([] if labels is None else [labels])),
            "samples": len(images),
            "batch": batch,
            "runs": runs,
            "criterion": criterion,
            "answers": str(self.answers),
            "protocol": protocol,
            "parties": parties,
        }
        self._seconds = time.perf_counter() - started

    def __repr__(self) -> str:
        of = f"{len(self.layers)} layers that compare, {self._facts['samples']} images"
        return f"Study({of}, chosen by {self._facts['criterion']}, protocol {self.protocol}, {self.parties} parties)"

    def accuracy(self, config: BitConfig) -> float | None:
        """The share of right answers with these windows, None without labels; one pass over the images."""
        return self.answers.accuracy(self.evaluator.outputs(config))

    def objective(self, name: str = "bits", *, bandwidth: float = 1e10, rtt: float = 0.0, images: int = 1) -> Objective:
        """The objective that a budget limits: "bits", the fraction kept; "bytes", sent online by a party per image;
        "seconds", on the wire for a batch of `images`, at `bandwidth` bits per second and `rtt` seconds there and back.
        """
        if name == "bits":
            return bit_budget(self.layers, self.protocol)
        if self.protocol == PROTOCOL:
            raise ConfigError(f"the objective {name!r} with cut=True", where="objective", hint='"bits" alone')
        prices = self.searched.prices(self.parties)
        if name == "bytes":
            return online_bytes(self.protocol, self.parties, images=images, prices=prices)
        if name == "seconds":
            return predicted_seconds(
                self.protocol, self.parties, bandwidth=bandwidth, rtt=rtt, images=images, prices=prices
            )
        raise ConfigError(f"unknown objective {name!r}", where="objective", hint=f"one of {', '.join(OBJECTIVES)}")

    def search(
        self,
        budget: float | Fraction | str | None = None,
        *,
        objective: Objective | None = None,
        margin: float = 0.05,
        spare: int = 1,
        headroom: float = 0.25,
        reach: int = 2,
        widths: Sequence[int] | None = None,
        trials: int = 4,
        uniform: bool = False,
        thrifty: bool = False,
        knobs: str | None = None,
        state: str | Path | None = None,
        progress: Callable[[Progress], None] | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> BitConfig:
        """Windows within a budget, None: eco's, as `search_bits` finds them; its arguments and errors.

        budget: also as text, "8/64" or "120kB". knobs: "q" chooses q for each group too, for fewer bytes in all
        (rounding.py). The margin is of the criterion: 0.05 lets one answer in twenty change.
        The provenance says of what net and data they are, and for each layer the largest |x| seen, in ring units, and
        how many bits the window has above it; `accuracy` and `exact_accuracy` are None without labels. `distance`: how
        far outputs are from the exact net's, in their spread (answers.py). `below_range`
        names the layers whose k the budget has forced below what they have seen. `seconds` are those of this study and
        of this search, with all sessions that it was resumed from.
        """
        check_knobs(knobs)
        if knobs and self.protocol == PROTOCOL:
            hint = "leave out one of them: two parties without a dealer take windows without q"
            raise ConfigError("q with cut=True", where="knobs", hint=hint)
        objective = objective or self.objective()
        if budget is None and self.protocol == PROTOCOL:
            hint = "10/64 keeps 10 bits of each value"
            raise ConfigError(
                "windows that change nothing: with cut=True weights are rounded", where="budget", hint=hint
            )
        config = search_bits(
            self.groups,
            self.evaluator,
            read_budget(budget, objective.name) if isinstance(budget, str) else budget,
            objective=objective,
            margin=margin,
            spare=spare,
            headroom=headroom,
            reach=reach,
            widths=widths,
            trials=trials,
            uniform=uniform,
            accepts=self.accepts,
            thrifty=thrifty,
            in_all=(lambda config: sum(self.searched.in_all(config, self.parties).values())) if knobs else None,
            seed=self.seed,
            identity=" ".join(str(fact) for fact in self._facts.values()),
            provenance=provenance,
            state=state,
            before=self._seconds,
            progress=progress,
        )
        seen = {layer.name: self._seen(layer.largest, config.window(layer.name).k) for layer in self.layers}
        told, outputs = {**config.provenance, **self._facts}, self.evaluator.outputs(config)
        told["distance"] = self.answers.distance(outputs)
        if self._facts["criterion"] == "agreement":
            told |= {"agreement": told["accuracy"], "accuracy": self.answers.accuracy(outputs)}
            told["exact_accuracy"] = self.accuracy(BitConfig())
        told |= {
            "groups": {group.name: [layer.name for layer in group.layers] for group in self.groups},
            "layers": seen,
            "below_range": [name for name, room in seen.items() if (room["margin_bits"] or 0.0) < 0],
            "versions": {"hummingbird": VERSION, "torch": torch.__version__},
        }
        return BitConfig(config.default, config.layers, told, self.input_range)

    @staticmethod
    def _seen(largest: int, k: int) -> dict[str, float | None]:
        """margin_bits: log2 of 2^(k-1) / largest; below 0, values wrap. None without bits, or of zeros."""
        margin = k - 1 - math.log2(largest) if k and largest else None
        return {"largest": largest, "margin_bits": margin if margin is None else round(margin, 3)}


# Progress bars -------------------------------------------------------------------------------------------------------


def open_study(net: nn.Module, images: Tensor, labels: Tensor | None, **options: Any) -> Study:
    """`Study` with these options, behind a bar for its magnitudes."""
    with tqdm(total=len(images), desc="magnitudes", unit="image", mininterval=1, leave=False) as bar:
        return Study(net, images, labels, **options, progress=lambda done, _: _advance(bar, done))


def find_windows(
    study: Study, budget: Fraction | None, objective: Objective, *, what: str, **options: Any
) -> BitConfig:
    """`Study.search` with these options, behind a bar: windows tried, the best assignment and its cost.

    what: the bar's name.
    """
    with tqdm(desc=what, unit="window", mininterval=1, leave=False) as bar:

        def tell(progress: Progress) -> None:
            best: dict[str, str] = {}
            if progress.accuracy is not None and progress.price is not None:
                best = {"best": f"{100 * progress.accuracy:.2f}%", "cost": shown(objective.name, progress.price)}
            bar.set_postfix(**best, refresh=False)
            _advance(bar, progress.evaluations)

        return study.search(budget, objective=objective, progress=tell, **options)


def shown(objective: str, price: float) -> str:
    """A price in the words of a budget."""
    return {"bits": f"{64 * price:.2f}/64", "bytes": f"{price / 1e3:,.2f}kB", "seconds": f"{price:.4g}s"}[objective]


def _advance(bar: tqdm[Any], done: int) -> None:
    bar.update(done - bar.n)
