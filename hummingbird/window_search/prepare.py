"""`prepare(net, loader)`: everything that private inference of a trained net needs, in one call.

    prepared = hummingbird.prepare(net, loader, "8/64")    # windows, accuracy in private, bytes, rounds, seconds
    print(prepared)
    private = hummingbird.convert_model(net, bits=prepared.bits)

The images that choose the windows do not tell their accuracy: others do, for windows fit the images they were found on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from tqdm import tqdm

from hummingbird import graph
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.errors import ConfigError, InputError
from hummingbird.graph.at_hand import settled
from hummingbird.graph.unwrap import plain_copy
from hummingbird.mpc.builders import CUSTOM
from hummingbird.report import BANDWIDTH, RTT, check_link, estimate
from hummingbird.simulation.observe import check_images
from hummingbird.simulation.windows import check_protocol, traced
from hummingbird.window_search.bars import find_windows, open_study
from hummingbird.window_search.budget import read_budget
from hummingbird.window_search.cached import CachedEvaluator, check_labels, classes_of
from hummingbird.window_search.find import check_margin
from hummingbird.window_search.images import fingerprint, labelled
from hummingbird.window_search.net import SearchedNet
from hummingbird.window_search.prepared import Choice, Prepared
from hummingbird.window_search.study import OBJECTIVES, Study

Images = Dataset[Any] | Iterable[Any] | tuple[Tensor, Tensor]  # with labels


def prepare(
    net: nn.Module,
    loader: Images,
    budget: str | None = "8/64",
    *,
    test: Images | None = None,
    samples: int = 2000,
    objective: str = "bits",
    margin: float = 0.05,
    by: str | Mapping[str, Sequence[str]] = "stage",
    protocol: str = "masked",
    parties: int = 2,
    seed: int = 0,
    bandwidth: float = BANDWIDTH,
    rtt: float = RTT,
) -> Prepared:
    """Windows for a trained classifier, its accuracy plain and in private, and what an image costs.

    loader: labelled images that the net was not trained on: a DataLoader, a data set, batches, or a pair (images (N,
        ...), labels int64 (N,)). Of the first 2 x `samples` every second one chooses the windows, and the others
        measure accuracy. test: other images to measure on, all of them; then the first `samples` of the loader choose.
    budget: "8/64" keeps 8 bits of 64 on average; None: HummingBird-eco, which changes no answer that it sees.
    objective: what the budget is of: "bits", "bytes" (sent by a party per image, "500kB"), "seconds" (on the wire).
    margin: the part of the answers that may change on the images that choose. by: the layers that share a window, as
        for `group_layers`. protocol, parties, seed: of the private inference that is simulated.
    bandwidth, rtt: bits per second and party, and the round trip in seconds, for predicted seconds.

    The net is left as it is and used as in eval mode. `python -m hummingbird find-bits` finds the same windows on the
    same images. Cost: a search takes some hundred passes over a part of the net; a ResNet-18 for CIFAR-10 with 2,000
    images minutes on two cores. Images are held in memory.
    Raises InputError for images, labels and nets that do not fit, ModelError for a net that cannot be converted, and
    ConfigError for the other arguments, before anything runs; ConfigError where no windows meet budget and margin.
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
    traced(net)  # says what cannot be converted
    searched = SearchedNet(net, chosen[0].shape[1:], protocol)
    for where, (images, labels) in (("loader", chosen), ("loader" if test is None else "test", measured)):
        _check(images, labels, searched, where)
    study = open_study(net, *chosen, by=by, protocol=protocol, parties=parties, seed=seed)
    goal = study.objective(objective, bandwidth=bandwidth, rtt=rtt)
    told = {"command": f"hummingbird.prepare(net, loader, {budget!r})"}
    bits = find_windows(study, limit, goal, what=budget or "eco", margin=margin, provenance=told)
    images, labels = measured
    evaluator = CachedEvaluator(net, images, protocol=protocol, parties=parties, seed=seed, runs=1, memory=0)
    link: dict[str, Any] = {"bandwidth": bandwidth, "rtt": rtt}
    plain, choices = _plain(given, images), []
    for name, config in tqdm(list(_choices(study, bits, budget or "eco")), desc="accuracy", unit="run", leave=False):
        answers = evaluator.predictions(config)
        costs = estimate(net, (1, *images.shape[1:]), config, protocol=protocol, parties=parties, **link)
        choices.append(Choice(name, config, _share(answers == labels), _share(answers != plain), costs))
    exact = _share(plain == labels)
    held_out: dict[str, Any] = {"images": len(labels), "data": fingerprint(images, labels), "exact_accuracy": exact}
    held_out["accuracy"] = choices[-1].accuracy
    bits = replace(bits, provenance={**bits.provenance, "held_out": held_out})
    return Prepared(bits, study.layers, choices, (len(chosen[1]), len(labels)), exact)


@torch.inference_mode()
def _plain(net: nn.Module, images: Tensor) -> Tensor:
    """The answers of the net itself, in float32 and eval mode, int64 (N,) on the CPU."""
    copy = plain_copy(net).float()
    device = next((tensor.device for tensor in (*copy.parameters(), *copy.buffers())), torch.device("cpu"))
    return torch.cat([copy(part.to(device, torch.float32)).argmax(1).cpu() for part in images.split(128)])


def _limit(budget: str | None, objective: str) -> Any:
    """The budget in the objective's unit, None for eco; ConfigError for what is none."""
    if objective not in OBJECTIVES:
        raise ConfigError(f"unknown objective {objective!r}", where="objective", hint=f"one of {', '.join(OBJECTIVES)}")
    if budget is None:
        return None
    if not isinstance(budget, str):
        hint = 'as text: "8/64" keeps 8 bits of 64 on average; None: windows that change no answer'
        raise ConfigError(f"a budget is text, got {budget!r}", where="budget", hint=hint)
    return read_budget(budget, objective)


def _divided(loader: Images, test: Images | None, samples: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Images and labels that choose, and those that measure. Every second one: a data set may come class by class."""
    if test is not None:
        chosen, measured = labelled(loader, "loader", samples), labelled(test, "test")
        one, other = ({image.cpu().numpy().tobytes() for image in images} for images, _ in (chosen, measured))
        if one <= other or other <= one:
            hint = "other images; without `test`, a part of the loader's own is held back"
            raise InputError("the images that choose the windows cannot measure them", where="test", hint=hint)
        return chosen, measured
    images, labels = labelled(loader, "loader", 2 * samples)
    if len(images) == 1:
        hint = "more images, or other ones in `test`: those that choose the windows do not tell their accuracy"
        raise InputError("a single image", where="loader", hint=hint)
    return (images[::2], labels[::2]), (images[1::2], labels[1::2])


def _check(images: Tensor, labels: Tensor, searched: SearchedNet, where: str) -> None:
    """InputError, naming the argument, for images that the net cannot take and labels that it cannot give."""
    if tuple(images.shape[1:]) != searched.image_shape:
        what = f"images of shape {tuple(images.shape[1:])}, those of the loader have {searched.image_shape}"
        raise InputError(what, where=where, hint="images prepared in the same way")
    try:
        check_images(images, 1)
        check_labels(labels, len(images), classes_of(searched.output))
    except InputError as problem:
        at = where if problem.where in ("images", "labels") else problem.where
        raise InputError(problem.what, where=at, hint=problem.hint) from None


def _choices(study: Study, bits: BitConfig, budget: str) -> Iterator[tuple[str, BitConfig]]:
    """Names and windows of the rows; eco's are left out where shares have no room for them."""
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


def _share(which: Tensor) -> float:
    return float(which.double().mean())
