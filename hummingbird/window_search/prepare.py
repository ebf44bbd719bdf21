"""`prepare(net, loader)`: find windows for a trained net, and measure accuracy and costs, in one call.

    prepared = hummingbird.prepare(net, loader, "8/64")    # windows, private accuracy, bytes, rounds, seconds
    print(prepared)
    private = hummingbird.convert_model(net, bits=prepared.bits)

Windows fit the images on which they were found, so other images measure their accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from hummingbird import graph
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.errors import ConfigError, InputError
from hummingbird.graph.calls import packed
from hummingbird.graph.example_shapes import settled
from hummingbird.graph.unwrap import plain_copy
from hummingbird.mpc.plan.builders import CUSTOM
from hummingbird.pictures import AMBER, BLUE, GREY, INK, VIOLET, picture
from hummingbird.progress import progress_line
from hummingbird.report import BANDWIDTH, RTT, Estimate, check_link, estimate, link_words
from hummingbird.ring import SCALE
from hummingbird.simulation.layers import check_protocol, traced
from hummingbird.simulation.observe import check_images, ranges
from hummingbird.structure import flatten
from hummingbird.table import Report, text_table
from hummingbird.window_search.answers import Answers, fitting
from hummingbird.window_search.cached import CachedEvaluator
from hummingbird.window_search.find import check_margin
from hummingbird.window_search.images import fingerprint, loaded
from hummingbird.window_search.net import SearchedNet
from hummingbird.window_search.objective import bit_budget, read_budget
from hummingbird.window_search.problem import ComparingLayer
from hummingbird.window_search.study import OBJECTIVES, Study, find_windows, open_study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = (GREY, AMBER, VIOLET, BLUE)  # of the choices

# The result: numbers, a table and a plot ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """One row of the table of `Prepared`: windows, and what they did on images that were not used to choose them.

    bits: the windows. accuracy: proportion of right answers; None without labels. changed: proportion of answers that
    differ from the plain net's. distance: how far outputs are from the plain net's, as a root mean square, in standard
    deviations of the plain net's outputs. costs: of one image through the whole net.
    """

    name: str
    bits: BitConfig
    accuracy: float | None
    changed: float
    distance: float
    costs: Estimate


@dataclass(frozen=True, repr=False)
class Prepared:
    """The windows found for a trained net, with accuracy and cost of private inference with them; `str` makes a table.

    bits: the windows, for `convert_model(net, bits=prepared.bits)`. layers: the comparing layers, each with the
    `largest` |x| seen, in ring units (2^16 is one). choices: the rows of the table: "exact", "eco" (windows that hold
    all values seen), the best uniform window (one for all layers), and last the windows found. images: how many images
    chose the windows, and how many other images measured them. accuracy_plain: accuracy of the net itself, None without
    labels. answers: how answers are judged, as text.

    >>> prepared = hummingbird.prepare(net, torch.rand(400, 4), "8/64")
    >>> prepared.bits.window("1")
    BitWindow(k=18, m=10, q=0)
    >>> prepared.costs.rounds, prepared.images
    (3, (200, 200))
    >>> prepared.save("bits.json")
    """

    bits: BitConfig
    layers: Sequence[ComparingLayer]
    choices: Sequence[Candidate]
    images: tuple[int, int]
    accuracy_plain: float | None
    answers: str

    @property
    def accuracy(self) -> float | None:
        """The accuracy of private inference with the windows found, by simulation, on images that did not choose them.

        It is None without labels.
        """
        return self.choices[-1].accuracy

    @property
    def accuracy_error(self) -> float | None:
        """The standard error of an accuracy, from that of the plain net; None without labels.

        It says how far an accuracy may differ on other images of the same kind.
        """
        if self.accuracy_plain is None:
            return None
        return math.sqrt(self.accuracy_plain * (1 - self.accuracy_plain) / self.images[1])

    @property
    def costs(self) -> Estimate:
        """The costs of private inference of one image with these windows: rounds, bytes and seconds on the network, by
        layer.
        """
        return self.choices[-1].costs

    def save(self, path: str | PathLike[str]) -> None:
        """Write the windows into a file that `convert_model(net, bits=path)` and `--bits` read."""
        self.bits.save(Path(path))

    def bits_kept(self, choice: Candidate) -> float:
        """Return how many of a comparison's 64 bits the windows of a choice keep, on average over comparisons."""
        windows = [choice.bits.window(layer.name) for layer in self.layers]
        return float(64 * bit_budget(self.layers).total(self.layers, windows))

    def plot(self) -> Figure:
        """Plot the accuracy over the bits kept, and over the kB sent online; returns a matplotlib figure.

        Without labels the proportion of unchanged answers takes the place of the accuracy. A notebook shows the figure
        after `%matplotlib inline` if a cell ends with it. Where the bytes go, layer by layer, is in `costs.plot()`.
        Raises EnvironmentProblem without matplotlib.

            prepared.plot().savefig("accuracy.png")
        """
        known, error = self.accuracy_plain is not None, self.accuracy_error
        plain = 1.0 if self.accuracy_plain is None else self.accuracy_plain
        bits = [self.bits_kept(choice) for choice in self.choices]
        sent = [choice.costs.online_bytes / 1e3 for choice in self.choices]
        with picture(7.5, 3.6) as figure:
            panels = figure.subplots(1, 2, sharey=True)
            for axes, places in zip(panels, (bits, sent), strict=True):
                axes.axhline(100 * plain, color=INK, linewidth=0.8, linestyle=":", label="plain net")
                for choice, place, colour, mark in zip(self.choices, places, _COLOURS, "osD^", strict=False):
                    share = 1 - choice.changed if choice.accuracy is None else choice.accuracy
                    style = {"color": colour, "marker": mark, "linestyle": "", "capsize": 3}
                    axes.errorbar(place, 100 * share, error and 100 * error, label=choice.name, **style)
                axes.grid(axis="y")
            what = "accuracy" if known else "answers that stay"
            panels[0].set(xlim=(0, 66), xlabel="bits kept of 64, on average")
            panels[0].set_xticks(range(0, 65, 8))
            panels[0].set_ylabel(f"{what}, % of {self.images[1]:,} images")
            panels[1].set(xlim=(0, 1.08 * max(sent)), xlabel="kB sent online per party and image")
            figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=5, fontsize=8)
        return figure

    def __str__(self) -> Report:
        costs, (chose, measured) = self.costs, self.images
        head = ("windows", "accuracy %", "changed %", "distance %", "online kB", "rounds", "wire ms", "offline kB")
        rows = [("plain net", _percent(self.accuracy_plain), *["-"] * 6)]
        for choice in self.choices:
            found = choice.costs
            figures = choice.accuracy, choice.changed, choice.distance
            sizes = (f"{found.online_bytes / 1e3:,.1f}", str(found.rounds), f"{1e3 * found.seconds:,.2f}")
            offline = f"{found.offline_bytes / 1e3:,.1f}"
            rows.append((choice.name, *map(_percent, figures), *sizes, offline))
        error, others = self.accuracy_error, f"of {measured:,} others"
        accuracy = (
            f"accuracy is {others}, standard error {_percent(error)}" if error is not None else f"figures are {others}"
        )
        link = link_words(costs.bandwidth, costs.rtt)
        notes = [
            f"answers: {self.answers}; distance: of outputs, root mean square, in their spread",
            f"{chose:,} images chose the windows; {accuracy}, by the plaintext twin",
            f"costs: of each of {costs.parties} parties for one image at a time; {link}, without computation",
        ]
        if below := self.bits.provenance.get("below_range"):
            notes.append(f"the budget forces k below the largest |x| seen in {', '.join(below)}")
        return Report.of(text_table(head, rows), layer_table(self.layers, self.bits), "\n".join(notes))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.__str__()._repr_html_()


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f}"


def layer_table(layers: Sequence[ComparingLayer], config: BitConfig) -> Report:
    """Make a text table with a line for every layer: its window, the largest |x| seen, and the margin between them.

    The margin is the number of bits between the largest |x| and the largest value that the window holds.
    """
    head = ("layer", "outputs", "largest |x|", "window", "kept", "cut above", "cut below", "margin bits")
    rows = []
    for layer in layers:
        window, most = config.window(layer.name), layer.largest
        margin = f"{window.k - 1 - math.log2(most):.2f}" if window.k and most else "-"
        cuts = (window.w, 64 - window.k, window.low) if window.k else (0, 64, 0)
        texts = (layer.name, f"{layer.outputs:,}", f"{most / 2**SCALE:.3f}", str(window), *map(str, cuts), margin)
        rows.append(texts)
    return text_table(head, rows)


# The search, and accuracy on other images -----------------------------------------------------------------------------

Images = Dataset[Any] | Iterable[Any] | tuple[Tensor, Tensor]  # with labels or without
Pair = tuple[Tensor, Tensor | None]


def prepare(
    net: nn.Module,
    loader: Images,
    budget: str | None = "8/64",
    *,
    test: Images | None = None,
    samples: int = 2000,
    answers: str | None = None,
    objective: str = "bits",
    margin: float = 0.05,
    by: str | Mapping[str, Sequence[str]] = "stage",
    protocol: str = "masked",
    parties: int = 2,
    seed: int = 0,
    bandwidth: float = BANDWIDTH,
    rtt: float = RTT,
) -> Prepared:
    """Find windows for a trained net, and measure its plain and private accuracy and the cost of an image.

    loader: images that the net was not trained on: a DataLoader, a data set, batches, or a pair (images (N, ...),
        labels (N, ...)). Labels are classes, 0 and 1 for scores, or real numbers like the net's outputs; without them
        there is no accuracy. Of the first 2 x `samples` images every second one chooses the windows, the others
        measure.
    budget: "8/64" keeps 8 bits of 64 on average; None: HummingBird-eco, which changes no answer on these images.
    test: other images to measure on, all of them; then the first `samples` of the loader choose.
    samples: how many images choose the windows.
    answers: how answers are judged: "classes", "score", "numbers", "values" or "embedding"; None: determined by labels
        and outputs (window_search/answers.py), and reported in the result.
    objective: the quantity that the budget limits: "bits", "bytes" (sent by a party per image, "500kB") or "seconds"
        (on the network).
    margin: the proportion of answers that may change on the images that choose.
    by: which layers form a group: "layer", "block" or "stage", or patterns by group name, as for `group_layers`.
    protocol, parties, seed: those of the simulated private inference.
    bandwidth, rtt: bits per second and party, and the round-trip time in seconds, for predicted seconds.

    The windows found also have the ranges of functions such as log and 1/x, with a margin of a quarter (`find_rows`).
    The net is not changed, and used as in eval mode. `python -m hummingbird find-bits` finds the same windows on the
    same images. Cost: a search takes some hundred passes over a part of the net; minutes on two cores for a ResNet-18
    for CIFAR-10 with 2,000 images. Images are held in memory.
    Raises InputError for images, labels and nets that do not fit, ModelError for a net that cannot be converted, and
    ConfigError for the other arguments, before anything runs; ConfigError if no windows meet budget and margin.

    >>> images = torch.rand(400, 4)
    >>> labels = net(images).argmax(1)
    >>> prepared = hummingbird.prepare(net, (images, labels), "8/64")
    >>> prepared.accuracy_plain, prepared.accuracy > 0.95
    (1.0, True)
    >>> private = hummingbird.convert_model(net, bits=prepared.bits)
    """
    net = graph.unwrapped(net)
    limit = _limit(budget, objective)
    check_protocol(protocol, parties)
    check_link(bandwidth, rtt)
    check_margin(margin)
    if type(samples) is not int or samples < 1:
        raise ConfigError(f"{samples!r} samples", where="samples", hint="how many images choose the windows, from 1")
    chosen, measured = _divided(loader, test, samples)
    given, net = net, settled(net, chosen[0][:1], custom=tuple(CUSTOM))
    traced(net)  # raises for a net that cannot be converted
    searched = SearchedNet(net, chosen[0].shape[1:], protocol)
    for where, (images, labels) in (("loader", chosen), ("loader" if test is None else "test", measured)):
        _check(images, labels, searched, answers, where)
    study = open_study(net, *chosen, answers=answers, by=by, protocol=protocol, parties=parties, seed=seed)
    goal = study.objective(objective, bandwidth=bandwidth, rtt=rtt)
    told = {"command": f"hummingbird.prepare(net, loader, {budget!r})"}
    bits = find_windows(study, limit, goal, what=budget or "eco", margin=margin, provenance=told)
    needed = ranges(net, chosen[0])
    bits = bits.with_rows(needed)
    images, labels = measured
    evaluator = CachedEvaluator(net, images, protocol=protocol, parties=parties, seed=seed, runs=1, memory=0)
    link: dict[str, Any] = {"bandwidth": bandwidth, "rtt": rtt}
    plain, choices = _plain(given, images), []
    judge = Answers(plain, searched.results, labels, kind=answers)
    for name, windows in progress_line(list(_choices(study, bits, budget or "eco")), desc="accuracy", unit="run"):
        config = windows.with_rows(needed)
        outputs = evaluator.outputs(config)
        costs = estimate(net, (1, *images.shape[1:]), config, protocol=protocol, parties=parties, **link)
        figures = judge.accuracy(outputs), 1 - judge.kept(outputs), judge.distance(outputs)
        choices.append(Candidate(name, config, *figures, costs))
    exact, data = judge.accuracy(plain), fingerprint(images, *([] if labels is None else [labels]))
    held_out: dict[str, Any] = {"images": len(images), "data": data, "exact_accuracy": exact}
    held_out |= {"accuracy": choices[-1].accuracy, "distance": choices[-1].distance}
    bits = replace(bits, provenance={**bits.provenance, "held_out": held_out})
    return Prepared(bits, study.layers, choices, (len(chosen[0]), len(images)), exact, str(judge))


@torch.inference_mode()
def _plain(net: nn.Module, images: Tensor) -> Tensor:
    """Run the net itself on images (N, ...), in float32 and eval mode; return its outputs on the CPU, (N, ...).

    Several results are packed side by side, (N, values).
    """
    copy = plain_copy(net).float()
    device = next((tensor.device for tensor in (*copy.parameters(), *copy.buffers())), torch.device("cpu"))
    given = (copy(part.to(device, torch.float32)) for part in images.split(128))
    return torch.cat([packed(flatten(out, lambda x: isinstance(x, Tensor))[1]).cpu() for out in given])


def _limit(budget: str | None, objective: str) -> Any:
    """Parse the budget in the objective's unit; return a Fraction of all bits, of bytes or of seconds, or None for eco.

    Raises ConfigError for an unknown objective or a wrong budget.
    """
    if objective not in OBJECTIVES:
        raise ConfigError(f"unknown objective {objective!r}", where="objective", hint=f"one of {', '.join(OBJECTIVES)}")
    if budget is None:
        return None
    if not isinstance(budget, str):
        hint = 'as text: "8/64" keeps 8 bits of 64 on average; None: windows that change no answer'
        raise ConfigError(f"a budget is text, got {budget!r}", where="budget", hint=hint)
    return read_budget(budget, objective)


def _divided(loader: Images, test: Images | None, samples: int) -> tuple[Pair, Pair]:
    """Return two pairs (images, labels): one to choose the windows, one to measure the chosen windows on.

    With `test`, the loader's first `samples` images choose, and all of `test` measures. Without it, the loader's first
    2 x `samples` images are divided: every second one measures, as a data set may be sorted by class. Raises InputError
    for a single image, and if all images of one pair are in the other pair too.
    """
    if test is not None:
        chosen, measured = loaded(loader, "loader", samples), loaded(test, "test")
        one, other = ({image.cpu().numpy().tobytes() for image in images} for images, _ in (chosen, measured))
        if one <= other or other <= one:
            hint = "other images; without `test`, a part of the loader's own is held back"
            raise InputError("the images that choose the windows cannot measure them", where="test", hint=hint)
        return chosen, measured
    images, labels = loaded(loader, "loader", 2 * samples)
    if len(images) == 1:
        hint = "more images, or other ones in `test`: those that choose the windows do not tell their accuracy"
        raise InputError("a single image", where="loader", hint=hint)
    parts = [None, None] if labels is None else [labels[::2], labels[1::2]]
    return (images[::2], parts[0]), (images[1::2], parts[1])


def _check(images: Tensor, labels: Tensor | None, searched: SearchedNet, answers: str | None, where: str) -> None:
    """Raise InputError for images that the net cannot take, and for labels that do not fit its results.

    labels: None if there are none. answers: the kind of answers that the user names, or None. where: the name of the
    argument that has the images, for the error.
    """
    if tuple(images.shape[1:]) != searched.image_shape:
        what = f"images of shape {tuple(images.shape[1:])}, those of the loader have {searched.image_shape}"
        raise InputError(what, where=where, hint="images prepared in the same way")
    try:
        check_images(images, 1)
        fitting([shape for _, shape in searched.results], len(images), labels, answers)
    except InputError as problem:
        at = where if problem.where in ("images", "labels") else problem.where
        raise InputError(problem.what, where=at, hint=problem.hint) from None


def _choices(study: Study, bits: BitConfig, budget: str) -> Iterator[tuple[str, BitConfig]]:
    """Yield the name and the windows for each row of the table in `Prepared`.

    The rows are: exact; eco (windows that hold all values seen), unless the shares have too few bits for it; the best
    uniform window, if there is one; and the windows found. bits: the windows found. budget: the budget as text, which
    names the last row.
    """
    yield "exact", BitConfig()
    if budget != "eco":
        try:
            yield "eco", study.search()
        except ConfigError as problem:
            if problem.where not in {"eco", *study.searched.names}:
                raise
    if uniform := bits.provenance.get("uniform"):
        window = BitWindow(uniform["k"], uniform["m"])
        yield f"{window} for all layers", BitConfig(window)
    yield budget, bits
