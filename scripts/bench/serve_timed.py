"""A party of a service, the keeper of its store, or a server of lookups, which writes down when everything happens.

    main(["times.txt", "serve", "--saved", "saved", "--input", "1x8x8", "--store", "kept", ...])
    main(["sets.txt", "deal", "--saved", "saved", "--input", "1x1x8x8", "--images", "1", "--keep", "1", ...])
    main(["times.txt", "pir-server", "--table", "table.npy", "--party", "0", ...])

The words after the file are a command of `python -m hummingbird`. The file gets a line for each request of a party or
server: seconds of the clock `time.perf_counter`, which all processes of a host share, when it stood in line (all
parties had it), when it was taken, and when it was answered; and for each set of a keeper: when its dealing began, and
when it was there. A keeper is told how many slots to keep unused by the file `sets.txt.keep`, if there is one, and then
whether a second keeper (`beside`) is to deal with it: that of another service's store, which is asked as often. What it
was told last, when it dealt none, is in `sets.txt.heard`.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import hummingbird.commands.deal as dealing
import hummingbird.pir.serving.service as lookups
import hummingbird.serving.dispatcher as dispatching
import hummingbird.serving.party as parties
from hummingbird.__main__ import main as command
from hummingbird.mpc.dealer.kept import set_folder

_TICK = 1e-3  # seconds between looks at the first keeper
_times: dict[bytes, list[float]] = {}
_out: TextIO


class Scheduler(dispatching.Scheduler):
    """Party 0's scheduler, with the times at which requests stand in line, and are to be run."""

    def _line_up(self, id: bytes, held: Any) -> None:
        _times[id] = [time.perf_counter()]
        super()._line_up(id, held)

    def _batch(self, lane: int, fitting: list[bytes]) -> list[Any]:
        batch = super()._batch(lane, fitting)
        now = time.perf_counter()
        for decision in batch:
            _times[decision.id].append(now)
        return batch


class Worker(parties.Worker):
    """A party's lane, with the times at which it has answers."""

    def _answer(self, model: Any, ids: Sequence[bytes], *rest: Any) -> None:
        super()._answer(model, ids, *rest)
        now = time.perf_counter()
        for id in ids:
            _write(*_times.pop(id, ()), now)


class Keeper(dealing.Keeper):
    """A keeper with the times of every set; `--keep` 1 is the number that its file says."""

    _both = False

    def unused(self) -> int:
        """Slots unused, less those to be kept, plus one."""
        try:
            told = Path(f"{_out.name}.keep").read_text()
        except FileNotFoundError:
            told = "1 0"
        wanted, both = map(int, told.split())
        self._both = bool(both)
        Path(f"{_out.name}.heard").write_text(told)
        return super().unused() - wanted + 1

    def add(self, *progress: Any) -> tuple[int, float]:
        """As `Keeper.add`."""
        if self._both:
            with open(_begun(), "ab") as file:
                file.write(b".")
        began = time.perf_counter()
        dealt = super().add(*progress)
        _write(began, time.perf_counter())
        return dealt


class Second(dealing.Keeper):
    """A keeper that deals a set whenever the first one of its folder begins one, and deletes it as used."""

    _dealt = 0

    def unused(self) -> int:
        """None: all that is dealt is used."""
        return 0

    def add(self, *progress: Any) -> tuple[int, float]:
        """As `Keeper.add`, as soon as the first keeper has begun one set more."""
        while _begun().stat().st_size <= self._dealt:
            time.sleep(_TICK)
        dealt = super().add(*progress)
        shutil.rmtree(set_folder(self.root, dealt[0]))
        self._dealt += 1
        return dealt


def _begun() -> Path:
    """The file with a byte for each set that both keepers are to deal; there from the start."""
    return Path(_out.name).parent / "begun"


class Batcher(lookups.Batcher):
    """A server's passes, with the times of the queries in each; `monotonic` is the same clock on Linux."""

    def _pass(self, batch: list[Any]) -> None:
        began = time.perf_counter()
        super()._pass(batch)
        now = time.perf_counter()
        for job in batch:
            _write(job.arrived, began, now)


def _write(*times: float) -> None:
    if int(os.environ.get("RANK", 0)) == 0:
        _out.write(" ".join(f"{each:.6f}" for each in times) + "\n")


def main(words: Sequence[str], keeper: type[dealing.Keeper] = Keeper) -> int:
    """Run a command with its times; its exit code."""
    global _out
    file, *words = words
    dispatching.Scheduler, parties.Worker = Scheduler, Worker  # type: ignore[misc]
    dealing.Keeper, lookups.Batcher = keeper, Batcher  # type: ignore[misc]
    with open(file, "a", buffering=1) as _out:
        return command(words)


def beside(words: Sequence[str]) -> int:
    """Run `deal --keep` as the second keeper of a folder of times; its exit code."""
    return main(words, Second)
