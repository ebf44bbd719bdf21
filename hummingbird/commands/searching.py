"""The parts that `find-bits` and `frontier` share: a study, its bar, the state of a search, the price of windows."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn
from tqdm import tqdm

import hummingbird
from hummingbird.bits import BitConfig
from hummingbird.commands.search_options import grouping
from hummingbird.commands.subject import Subject
from hummingbird.cost import FREE, Cost
from hummingbird.errors import ConfigError
from hummingbird.window_search import Progress
from hummingbird.window_search.study import Study


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


def open_study(args: argparse.Namespace, subject: Subject, *, cut: bool = False) -> Study:
    """The study that the options describe, behind a bar for its magnitudes; cut, and errors: as of `Study`."""
    with tqdm(total=len(subject.images), desc="magnitudes", unit="image", mininterval=1, leave=False) as bar:
        return Study(
            subject.net,
            subject.images,
            subject.labels,
            criterion=args.criterion,
            by=grouping(args.group),
            protocol=args.protocol,
            parties=args.parties,
            seed=args.seed,
            cut=cut,
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


def shown(objective: str, price: float) -> str:
    """A price in the words of a budget."""
    return {"bits": f"{64 * price:.2f}/64", "bytes": f"{price / 1e3:,.2f}kB", "seconds": f"{price:.4g}s"}[objective]


def online(net: nn.Module, config: BitConfig, args: argparse.Namespace, shape: Sequence[int]) -> Cost:
    """Bits that a party sends, and rounds, for one image of `shape` through the whole net."""
    private = hummingbird.convert_model(net, config, protocol=args.protocol)
    return sum((planned.cost for planned in private.costs((1, *shape), args.parties)), FREE)
