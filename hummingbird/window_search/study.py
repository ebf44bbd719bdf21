"""Study of a trained net: everything that a search for its windows needs, behind one line.

    study = Study(net, images)                            # validation images
    eco = study.search()                                  # m = 0: no prediction changes
    bits = study.search(8 / 64)                           # HummingBird-b
    fast = study.search(2e5, objective=study.objective("bytes"))

HummingBird searches by accuracy, in which right answers that become wrong and wrong answers that become right cancel:
windows that seem to lose nothing on 1,024 images lose half a point on others (docs/bit-config.md). So the default here
is agreement, the share of answers that equal the exact net's: every change counts. answers.py defines answers, and when
they are equal.
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
from hummingbird.progress import progress_line
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

# Scores for two parties without a dealer: the integers of `simulate(cut=True)`, with rounded weights.
#
# Scores are computed as in cached.py, except for the arithmetic: each assignment has a plan of its own, which runs from
# the start. A layer that an assignment leaves exact gets `WIDE` bits below its range, as no gate takes 64 bits; that
# changes nothing.

WIDE = 14  # bits: 2^-13 of a value's range is nothing beside the rounding of weights, by 1/55 of them
LIMIT = 32  # of k: a share has no more bits, in units of a window or finer ones


class CutEvaluator(CachedEvaluator):
    """An `Evaluator` that scores windows of `hummingbird.hybrid`, two parties without a dealer, on the net's integers.

    largest: name of a comparing layer -> the largest |x| that it compares, in ring units. The other arguments and the
    errors are those of `CachedEvaluator`; also raises errors of `hybrid.make_plan`. Cost: the whole net on integers for
    every score.
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
        """Return the net on plain integers (`Plain`), planned with these windows. Raises ConfigError if they allow no
        plan.
        """
        windows = {name: config.window(name) for name in self._wide}
        windows = {name: self._wide[name] if window == EXACT else window for name, window in windows.items()}
        return Plain(self._traced.plan(BitConfig(EXACT, windows, input_range=self._range)))

    def accepts(self, config: BitConfig) -> bool:
        """Return whether the net can be converted with these windows."""
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

# Inputs of many calls, packed for a search: one tensor with a row for each image, and the public inputs.


class Called(NamedTuple):
    """A net in the form that a `Study` searches: it takes one tensor, so that it can be traced without an example.

    images: the inputs of N calls, packed into one tensor (N, ...). public: the public inputs. labels: (N, ...), or
    None.
    """

    net: nn.Module
    images: Tensor
    public: list[Tensor]
    labels: Tensor | None


def called(net: nn.Module, images: Any, labels: Tensor | None, example: Any) -> Called:
    """Pack the inputs of N calls of a net into one tensor; return it in a `Called`, with a net that takes this tensor.

    images: the inputs: one tensor (N, ...), a DataLoader, a data set or batches; or a tuple or dict in the form of the
    example. example: arguments of one call; None: the net takes the images alone. Raises InputError for inputs that
    differ from the example's in form, ModelError for a net that cannot be traced.
    """
    if alone(example):
        images, labels = gathered(images, labels)
        if not isinstance(images, Tensor) or images.dim() < 2 or not len(images):
            return Called(net, images, [], labels)  # the caller refuses it
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
    """Return the example's arguments, with `images` in place of its one private tensor.

    Raises InputError if the example has several private tensors, or none.
    """
    structure, leaves = flatten(example, is_private, is_public)
    if sum(map(is_private, leaves)) != 1:
        hint = "images=(x, y), or a dict by name: all inputs in the positions of the example"
        raise InputError("one tensor of images for a net of several private inputs", where="images", hint=hint)
    return rebuild(structure, iter([images if is_private(leaf) else leaf for leaf in leaves]))


# ---------------------------------------------------------------------------------------------------------------------

OBJECTIVES = ("bits", "bytes", "seconds")
CRITERIA = ("agreement", "accuracy")


class Study:
    """A trained net with validation images (N, ...) and labels (N, ...), for searches of its windows.

    images: a tensor, or a DataLoader, a data set or batches, with labels or without. They are held in memory, and so
        are the net's outputs. Resume a search with the same images in the same order.
    labels: classes as integers, 0 and 1 for scores, or real numbers in the outputs' shape.
    example: arguments of one call, for a net that takes several inputs or flags; the images are then a tuple or a dict
        in the form of the example, (N, ...) each, or one tensor in place of the example's private one.
    answers: how answers are judged: "classes", "score", "numbers", "values" or "embedding"; None: determined by labels
        and outputs; `str(study.answers)` says how.
    criterion: choose windows by "agreement" with the exact net or by "accuracy", which needs labels.
    by: how layers are grouped: "layer", "block" or "stage", or patterns by group name, as for `group_layers`.
    protocol, parties: those of private inference.
    seed, runs: seed of the protocol's random numbers, and number of seeds in a full score.
    batch: images at a time.
    cut: search windows of `hummingbird.hybrid`, scored by the integers of that inference (simulation/cut.py); leave
        protocol and parties at their defaults. A search then needs a budget of bits.
    progress: called with (images done, of all) while the largest |x| of each layer is measured.

    `input_range`: the largest |x| in the images. Cost: two passes of the exact net.
    Raises InputError for images and labels that do not fit each other or the net, ModelError for a net that cannot be
    converted, ConfigError for the other arguments.

    >>> study = hummingbird.Study(net, torch.rand(400, 4))
    >>> config = study.search("8/64")
    >>> config.window("1").w
    8
    >>> study.accuracy(config) is None  # there are no labels
    True
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
        if not cut:  # else the layers are known from the evaluator below
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
        """Measure the accuracy with these windows, None without labels, by one pass over the images."""
        return self.answers.accuracy(self.evaluator.outputs(config))

    def objective(self, name: str = "bits", *, bandwidth: float = 1e10, rtt: float = 0.0, images: int = 1) -> Objective:
        """Make the objective that a budget limits, by name.

        "bits": the fraction of bits kept. "bytes": bytes that a party sends online per image, in batches of `images`.
        "seconds": time on the network for a batch of `images`, with `bandwidth` bits per second and a round-trip time
        of `rtt` seconds. Raises ConfigError for another name.
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
        """Find windows within a budget, None for eco's, as `search_bits` does, and return the configuration.

        Arguments and errors are those of `search_bits`. budget: also as text, "8/64" or "120kB". margin: for the
        study's criterion; 0.05 lets one answer in twenty change. knobs: "q" also chooses q for each group, for fewer
        bytes in all (rounding.py). The provenance of the result names the net and the data. `layers`: for each layer
        the largest |x| seen, in ring units, and the bits of the window above it. `accuracy`, `exact_accuracy`: None
        without labels. `distance`: of outputs from the exact net's, in units of their spread (answers.py).
        `below_range`: layers whose k the budget has forced below the range seen. `seconds`: time of this study and this
        search, with all earlier runs from which it was resumed.
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
        """Return two facts on a layer for the provenance: its largest |x|, and margin_bits = log2(2^(k-1) / largest).

        k: the upper end of its window. margin_bits is below 0 if values wrap, and None for a window without bits, or if
        all values are 0.
        """
        margin = k - 1 - math.log2(largest) if k and largest else None
        return {"largest": largest, "margin_bits": margin if margin is None else round(margin, 3)}


# Progress bars -------------------------------------------------------------------------------------------------------


def open_study(net: nn.Module, images: Tensor, labels: Tensor | None, **options: Any) -> Study:
    """Make a `Study` with these options, with a progress bar while the largest |x| of each layer is measured."""
    with progress_line(total=len(images), desc="magnitudes", unit="image") as bar:
        return Study(net, images, labels, **options, progress=lambda done, _: _advance(bar, done))


def find_windows(
    study: Study, budget: Fraction | None, objective: Objective, *, what: str, **options: Any
) -> BitConfig:
    """Search windows of a study, and show a progress bar: answers so far, the best assignment's accuracy and cost.

    budget: in units of the objective; None: eco's windows. what: the bar's title. options: further arguments of
    `Study.search`. Returns the configuration.
    """
    with progress_line(desc=what, unit="window") as bar:

        def tell(progress: Progress) -> None:
            best: dict[str, str] = {}
            if progress.accuracy is not None and progress.price is not None:
                best = {"best": f"{100 * progress.accuracy:.2f}%", "cost": shown(objective.name, progress.price)}
            bar.set_postfix(**best, refresh=False)
            _advance(bar, progress.evaluations)

        return study.search(budget, objective=objective, progress=tell, **options)


def shown(objective: str, price: float) -> str:
    """Format a price as text, as a budget of this objective is written: 8.00/64, 120.00kB, 0.05s."""
    return {"bits": f"{64 * price:.2f}/64", "bytes": f"{price / 1e3:,.2f}kB", "seconds": f"{price:.4g}s"}[objective]


def _advance(bar: Any, done: int) -> None:
    bar.update(done - bar.n)
