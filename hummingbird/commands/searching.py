"""Shared parts of `find-bits` and `frontier`: a study, the state of a search, the price of windows."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from torch import nn

import hummingbird
from hummingbird.bits import BitConfig
from hummingbird.commands.search_options import grouping
from hummingbird.commands.subject import Subject
from hummingbird.cost import FREE, Cost
from hummingbird.errors import ConfigError
from hummingbird.window_search.study import Study, open_study


def state_of(out: Path) -> Path:
    """Return the path of the file with the progress of an unfinished search, which --resume reads.

    out: the file for the windows, beside which it stands.
    """
    return out.with_name(f"{out.name}.state")


def check_states(states: Sequence[Path], resume: bool) -> None:
    """Raise ConfigError if a state file exists without --resume, or if none exists with --resume."""
    there = [state for state in states if state.exists()]
    if there and not resume:
        hint = "go on with it by --resume, or remove it"
        raise ConfigError("there is the state of an unfinished search", where=str(there[0]), hint=hint)
    if resume and not there:
        hint = "leave out --resume: no search was begun, or it has ended"
        raise ConfigError("there is no search to resume", where=str(states[0]), hint=hint)


def interrupted(states: Sequence[Path]) -> str:
    """Return the line to print after Ctrl-C, which says whether --resume can continue from one of these state files."""
    kept = any(state.exists() for state in states)
    return f"interrupted: {'go on with the same command and --resume' if kept else 'no search was begun'}"


def study_of(args: argparse.Namespace, subject: Subject, *, cut: bool = False) -> Study:
    """Make the `Study` (hummingbird/window_search/study.py) in which windows are searched, as the options describe.

    cut: as for `Study`. Raises errors of `Study`.
    """
    return open_study(
        subject.net,
        subject.images,
        subject.labels,
        answers=args.answers,
        criterion=args.criterion,
        by=grouping(args.group),
        protocol=args.protocol,
        parties=args.parties,
        seed=args.seed,
        cut=cut,
    )


def online(net: nn.Module, config: BitConfig, args: argparse.Namespace, shape: Sequence[int]) -> Cost:
    """Return the price, for a party, of one image of `shape` through the whole net with these windows."""
    private = hummingbird.convert_model(net, config, protocol=args.protocol)
    return sum((planned.cost for planned in private.costs((1, *shape), args.parties)), FREE)
