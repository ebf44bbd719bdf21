"""Find windows for every layer of a trained net: HummingBird-eco, or those that a budget pays for.

    eco         no budget: m = 0, and k above the largest |x| of every layer, so that no prediction changes
    a budget    the most accurate windows whose cost, in bits kept, bytes sent or seconds on the wire, is within it

Maeng and Suh, "HummingBird", 2023, sections 4.2 and 4.3. Everything runs on plain tensors, before any party starts.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from tqdm import tqdm

import hummingbird
from hummingbird.bits import BitConfig
from hummingbird.cost import FREE, Cost
from hummingbird.errors import ConfigError
from hummingbird.ring import SCALE
from hummingbird.search import Objective, Progress
from hummingbird.search.budget import read_budget
from hummingbird.search.study import OBJECTIVES, Study
from hummingbird.table import text_table
from scripts.files import check_writable, write_together
from scripts.program import command_of, end
from search import plots
from search.options import add_net_arguments, add_search_arguments, grouping, load_net_and_images, search_options

_EPILOG = """examples:
  the digits net, which holds no images out, so that training images choose; then 6 bits of 64 on average:
    python -m search.find_bits --model digits --weights checkpoints/digits.pt --dataset digits --split train \\
        --out eco.json
    python -m search.find_bits --model digits --weights checkpoints/digits.pt --dataset digits --split train \\
        --budget 6/64 --out 6-64.json --plot 6-64.png

  ResNet-18 on CIFAR-10, at most 500 kB sent by each party for an image:
    python -m search.find_bits --model resnet18 --weights resnet18.pt --dataset cifar10 --data DATA \\
        --objective bytes --budget 500kB --out bits.json

A search keeps its answers in OUT.state. After Ctrl-C or a kill the same command with --resume ends as it would have.
docs/bit-config.md describes OUT; scripts/infer.py and convert_model take it with --bits and bits=.
"""
_PAID = {
    "bits": "of the bits of all comparisons",
    "bytes": "sent by comparing layers, per party and image",
    "seconds": "on the wire for comparing layers, per batch",
}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m search.find_bits",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--out", required=True, type=Path, metavar="FILE", help="where to write the windows")
    made.add_argument("--plot", type=Path, metavar="FILE", help="draw them into a file (.png, .pdf)")
    add_net_arguments(made)
    add_search_arguments(made)
    group = made.add_argument_group("budget")
    group.add_argument(
        "--budget",
        metavar="B",
        help="bits: a fraction, 8/64; bytes: per party and image, 120kB; seconds: per batch, 0.05. Default: none, eco",
    )
    group.add_argument("--objective", choices=OBJECTIVES, default="bits", help="what is paid (default: %(default)s)")
    group.add_argument(
        "--bandwidth", type=float, default=1e10, metavar="BPS", help="seconds: bits per second (default: %(default)g)"
    )
    group.add_argument(
        "--rtt", type=float, default=0.0, metavar="S", help="seconds: round-trip time (default: %(default)g)"
    )
    group.add_argument(
        "--batch-images",
        type=int,
        default=1,
        metavar="N",
        help="bytes, seconds: images that share rounds and headers (default: %(default)s)",
    )
    return made


def shown(objective: str, price: float) -> str:
    """A price in the words of a budget."""
    return {"bits": f"{64 * price:.2f}/64", "bytes": f"{price / 1e3:,.2f}kB", "seconds": f"{price:.4g}s"}[objective]


def state_of(out: Path) -> Path:
    """Where the answers of a search are kept that will write `out`."""
    return out.with_name(f"{out.name}.state")


def check_states(states: Sequence[Path], resume: bool) -> None:
    """ConfigError if there is a state and no --resume, or --resume and no state."""
    there = [state for state in states if state.exists()]
    if there and not resume:
        hint = "go on with it by --resume, or remove it"
        raise ConfigError("there is the state of an unfinished search", where=str(there[0]), hint=hint)
    if resume and not there:
        hint = "leave out --resume: no search was begun, or it has ended"
        raise ConfigError("there is no search to resume", where=str(states[0]), hint=hint)


def interrupted(states: Sequence[Path]) -> str:
    """The line after Ctrl-C."""
    kept = any(state.exists() for state in states)
    return f"interrupted: {'go on with the same command and --resume' if kept else 'no search was begun'}"


def open_study(args: argparse.Namespace, net: nn.Module, images: Tensor, labels: Tensor) -> Study:
    """The study that the options describe, behind a bar for its magnitudes; errors of `Study`."""
    with tqdm(total=len(images), desc="magnitudes", unit="image", mininterval=1, leave=False) as bar:
        return Study(
            net,
            images,
            labels,
            criterion=args.criterion,
            by=grouping(args.group),
            protocol=args.protocol,
            parties=args.parties,
            seed=args.seed,
            progress=lambda done, _: _advance(bar, done),
        )


@contextmanager
def search_bar(what: str, objective: str) -> Iterator[Callable[[Progress], None]]:
    """A bar for a search of unknown length: windows tried, the best assignment and its cost."""
    with tqdm(desc=what, unit="window", mininterval=1, leave=False) as bar:

        def tell(progress: Progress) -> None:
            best: dict[str, str] = {}
            if progress.accuracy is not None and progress.price is not None:
                best = {"best": f"{100 * progress.accuracy:.2f}%", "cost": shown(objective, progress.price)}
            bar.set_postfix(**best, refresh=False)
            _advance(bar, progress.evaluations)

        yield tell


def _advance(bar: tqdm[Any], done: int) -> None:
    bar.update(done - bar.n)


def origin(args: argparse.Namespace, command: str) -> dict[str, Any]:
    """What the options say of a search, for provenance."""
    return {"model": args.model, "dataset": args.dataset, "split": args.split, "command": command}


def online(net: nn.Module, config: BitConfig, args: argparse.Namespace, shape: Sequence[int]) -> Cost:
    """What a party sends, and in how many rounds, for one image of `shape` through the whole net."""
    private = hummingbird.convert_model(net, config, protocol=args.protocol)
    return sum((planned.cost for planned in private.costs((1, *shape), args.parties)), FREE)


def layer_table(study: Study, config: BitConfig) -> str:
    """The window of every layer, the largest |x| seen, and by how many bits it stays below the window's end."""
    head = ("layer", "outputs", "largest |x|", "window", "kept", "cut above", "cut below", "margin bits")
    rows = []
    for layer in study.layers:
        window, most = config.window(layer.name), layer.largest
        margin = f"{window.k - 1 - math.log2(most):.2f}" if window.k and most else "-"
        cuts = (window.w, 64 - window.k, window.m) if window.k else (0, 64, 0)
        texts = (layer.name, f"{layer.outputs:,}", f"{most / 2**SCALE:.3f}", str(window), *map(str, cuts), margin)
        rows.append(texts)
    return text_table(head, rows)


def summary(study: Study, config: BitConfig, objective: Objective, costs: tuple[Cost, Cost]) -> str:
    """What was found, in lines: accuracies, budget and cost, the wire, the search; costs: exact, with windows."""
    said = config.provenance
    exact, cheap = (f"{cost.bits / 8e3:,.2f} kB in {cost.rounds} rounds" for cost in costs)
    budget = "none (eco)" if said["budget"] is None else shown(objective.name, said["budget"])
    lines = [
        ("accuracy", f"exact {100 * said['exact_accuracy']:.2f} %, with windows {100 * said['accuracy']:.2f} %"),
        ("", f"of {said['samples']} images of the {said['split']} split{_agreeing(said)}"),
        ("budget", f"{budget}, cost {shown(objective.name, said['cost'])} {_PAID[objective.name]}"),
        ("online", f"exact {exact}, with windows {cheap} (per party, one image, whole net)"),
        ("search", f"{said['seconds']:.1f} s, {said['evaluations']} windows tried"),
    ]
    if uniform := said.get("uniform"):
        kept = f"{100 * uniform['accuracy']:.2f} % by the same criterion"
        lines.append(("uniform", f"[{uniform['k']}:{uniform['m']}), the best window for all layers: {kept}"))
    if below := said["below_range"]:
        why = "no windows found that hold all values seen keep as many answers as the best uniform window"
        lines.append(("forced", f"k below the largest |x| in {', '.join(below)}: within the budget, {why}"))
    return "\n".join(f"{what:10}{text}" for what, text in lines)


def _agreeing(said: Mapping[str, Any]) -> str:
    return f"; {100 * said['agreement']:.2f} % of the answers are the exact net's" if "agreement" in said else ""


def run(args: argparse.Namespace, command: str) -> None:
    """Search, write the windows, and print what was found."""
    limit = None if args.budget is None else read_budget(args.budget, args.objective, "--budget")
    check_writable(args.out, "--out")
    if args.plot:
        plots.check(args.plot, "--plot")
    state = state_of(args.out)
    check_states([state], args.resume)
    net, images, labels = load_net_and_images(args)
    study = open_study(args, net, images, labels)
    link = {"bandwidth": args.bandwidth, "rtt": args.rtt, "images": args.batch_images}
    objective = study.objective(args.objective, **link)
    try:
        with search_bar(args.budget or "eco", objective.name) as tell:
            config = study.search(
                limit,
                objective=objective,
                state=state,
                progress=tell,
                provenance=origin(args, command),
                **search_options(args),
            )
    except ConfigError as problem:
        if problem.where == "budget" and not args.resume:
            state.unlink(missing_ok=True)  # the search has ended, if not well
        raise
    write_together({args.out: config.to_json().encode()})
    state.unlink()
    if args.plot:
        plots.draw_windows(study.layers, config, args.plot)
    shape = study.searched.image_shape
    costs = online(net, BitConfig(), args, shape), online(net, config, args, shape)
    print(f"{layer_table(study, config)}\n\n{summary(study, config, objective, costs)}")
    print(f"saved {args.out}" + (f" and {args.plot}" if args.plot else ""))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; 0 on success, 1 after an `error:` line, 130 after Ctrl-C."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    args = parser().parse_args(words)
    return end(lambda: run(args, command_of("search.find_bits", words)), lambda: interrupted([state_of(args.out)]))


if __name__ == "__main__":
    sys.exit(main())
