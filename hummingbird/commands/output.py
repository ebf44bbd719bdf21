"""The files that a command writes, all or none of them, each completely; and the two pictures of a search.

The first picture is Figure 12 of Maeng and Suh, "HummingBird", 2023: a column of bits for every layer, retained and
discarded. The second shows accuracy against bytes sent, also at other budgets.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hummingbird import disk
from hummingbird.bits import BitConfig
from hummingbird.errors import InputError
from hummingbird.pictures import AMBER, BLUE, GRID, INK, formats, picture
from hummingbird.ring import SCALE
from hummingbird.window_search import ComparingLayer

# Files (hummingbird/disk.py writes each) -----------------------------------------------------------------------------


def write_together(contents: Mapping[Path, bytes]) -> None:
    """Write all of these files or none: an error or Ctrl-C restores the files that were there before.

    contents: what to write, by path. Raises InputError for a path that cannot be written. A process that is killed
    between two renames leaves old files as `NAME.old`.
    """
    before = [path for path in contents if path.is_file()]
    begun: list[Path] = []
    try:
        for path, content in contents.items():
            _beside(path, "new").unlink(missing_ok=True)
            disk.create(_beside(path, "new"), [content])
            _beside(path, "old").unlink(missing_ok=True)
        for path in contents:
            begun.append(path)
            if path in before:
                disk.rename(path, _beside(path, "old"))
            disk.rename(_beside(path, "new"), path)
        for folder in {path.parent for path in contents}:
            disk.sync(folder)
    except BaseException as problem:
        for path in begun:
            if path not in before:
                path.unlink(missing_ok=True)
            elif _beside(path, "old").is_file():
                disk.rename(_beside(path, "old"), path)
        if isinstance(problem, OSError):
            hint = "name a file in a folder that can be written"
            raise InputError(f"cannot write: {problem.strerror}", where=str(problem.filename), hint=hint) from None
        raise
    finally:
        for path in contents:
            _beside(path, "new").unlink(missing_ok=True)
            _beside(path, "old").unlink(missing_ok=True)


def write_json(path: Path, figures: Any) -> None:
    """Write figures to the file of the option --json.

    figures: a flat object, or a list of flat rows. The file is written completely or not at all. Raises InputError for
    a path that cannot be written.
    """
    write_together({path: (json.dumps(figures, indent=2) + "\n").encode()})


def check_writable(path: Path, where: str) -> None:
    """Raise InputError if no file can be written at `path`; called before hours of work.

    where: the option that names the file, for the error.
    """
    if not path.parent.is_dir():
        raise InputError(f"there is no folder {path.parent}", where=where, hint="make it first")
    if path.is_dir():
        raise InputError(f"{path} is a folder", where=where, hint="name a file in it")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"{path.parent} cannot be written", where=where, hint="name a file in another folder")


def check_outputs(args: argparse.Namespace) -> None:
    """Raise InputError if a file that --out, --json or --plot names cannot be written; called before hours of work.

    A program may have only some of these options.
    """
    for name in ("out", "json", "plot"):
        path = getattr(args, name, None)
        if path is not None:
            check_writable(path, f"--{name}")


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name}.{suffix}")


# Pictures ------------------------------------------------------------------------------------------------------------


def check(path: Path, where: str) -> None:
    """Raise an error if no picture can be written at `path`; a search calls this before its hours of work.

    where: the option that names the picture. Raises EnvironmentProblem without matplotlib, InputError for a path or a
    format that cannot be written.
    """
    known = formats()
    if path.suffix[1:] not in known:
        raise InputError(f"{path.name} names no format", where=where, hint=f"one of .{', .'.join(sorted(known))}")
    check_writable(path, where)


def draw_windows(layers: Sequence[ComparingLayer], config: BitConfig, path: Path) -> None:
    """Draw every layer's 64 bits, with the kept ones in colour, and a mark at the largest |x| that the layer compares.

    config: the windows, whose bits are kept. Draws only the lower 32 bits if no window and no |x| reaches bit 32.
    """
    windows = [config.window(layer.name) for layer in layers]
    highest = max(max(window.k for window in windows), max(layer.largest for layer in layers).bit_length())
    height, places = 32 if highest <= 32 else 64, range(len(layers))
    marks = [(place, math.log2(layer.largest)) for place, layer in zip(places, layers, strict=True) if layer.largest]
    with picture(max(4.0, 1.5 + 0.35 * len(layers)), 4.5) as figure:
        axes = figure.subplots()
        axes.bar(places, [height] * len(layers), 0.8, color=GRID, label="discarded")
        widths, lows = [window.w for window in windows], [window.low for window in windows]
        axes.bar(places, widths, 0.8, lows, color=BLUE, label="retained")
        if marks:
            levels, starts, ends = zip(*((y, x - 0.4, x + 0.4) for x, y in marks), strict=True)
            axes.hlines(levels, starts, ends, color=INK, label="largest |x|")
        axes.axhline(SCALE, color=INK, linewidth=0.5, linestyle=":", label="1.0")
        axes.set_ylim(0, height)
        axes.set_yticks(range(0, height + 1, 8))
        axes.set_ylabel("bit" if height == 64 else "bit (those from 32 to 63 are discarded too)")
        axes.set_xticks(places, [layer.name for layer in layers], rotation=60, ha="right", fontsize=7)
        figure.legend(loc="outside upper center", ncol=4, fontsize=7)
        _save(figure, path)


def draw_frontier(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw accuracy against kB sent online per image: one line for the windows found, one for uniform windows.

    Windows are uniform if all layers have the same. rows: those of `Frontier.row`, figures by name, one for each
    search. path: the picture.
    """
    with picture(6.5, 4.5) as figure:
        axes = figure.subplots()
        for how, colour, mark, above in (("searched", BLUE, "o", 5), ("uniform", AMBER, "s", -11)):
            line = sorted((row for row in rows if row["windows"] == how and row["met"]), key=_sent)
            points = [(_sent(row), row["accuracy_percent"]) for row in line]
            if line:
                axes.plot(*zip(*points, strict=True), color=colour, marker=mark, label=f"{how} windows")
            for row, point in zip(line, points, strict=True):
                axes.annotate(row["budget"], point, (3, above), textcoords="offset points", fontsize=7)
        exact = rows[0]["exact_accuracy_percent"]
        axes.axhline(exact, color=INK, linewidth=0.5, linestyle=":", label="exact net")
        axes.set_xlabel("kB sent online per party and image")
        axes.set_ylabel(f"accuracy, % of {rows[0]['images']} images")
        axes.legend(fontsize=8, loc="lower right")
        _save(figure, path)


def _sent(row: dict[str, Any]) -> float:
    return float(row["online_kilobytes_per_image"])


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=150)
