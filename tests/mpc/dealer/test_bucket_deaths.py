"""kill -9 at random moments, of dealers and of those who claim and read sets: every set is used at most once.

What nobody had claimed is used afterwards, and what a dealer had not finished is never used.
HUMMINGBIRD_KILLS: how many kills the slow test has (default 40).
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from hummingbird.mpc.dealer.bucket import Bucket
from tests.support import python
from tests.support.bucketing import Keys
from tests.support.object_server import served
from tests.support.patience import HANG, PROGRAM, until

URL = "s3://place-{rank}/nets/squares"
KILLS = int(os.environ.get("HUMMINGBIRD_KILLS", "40"))


class Worker:
    """A process of tests/jobs/bucket.py. Its lines go to a file."""

    def __init__(self, folder: Path, number: int, name: str, *words: str) -> None:
        self.out = folder / f"{number}-{name}"
        with open(self.out, "w") as out, open(f"{self.out}.err", "w") as err:
            command = [sys.executable, "-m", "tests.jobs.bucket", name, URL, str(folder), *words]
            environment = {**os.environ, "TMPDIR": str(folder / "temporary")}
            self.process = python.Popen(command, stdout=out, stderr=err, env=environment)

    def ids(self, word: str) -> list[str]:
        """The ids in whole lines that begin with a word."""
        lines = self.out.read_text().split("\n")[:-1]
        return [line.split()[1] for line in lines if line.startswith(f"{word} ")]

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def kill(self) -> None:
        if not self.ended:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(HANG)

    def finish(self) -> None:
        assert self.process.wait(PROGRAM) == 0, Path(f"{self.out}.err").read_text()


def run(folder: Path, dealers: int, sets: int, readers: int, kills: int) -> None:
    """Dealers deal `sets` sets each while readers claim and read, and some of both are killed and replaced."""
    with served() as server:
        server.add("place-0", "place-1")
        Keys(folder)
        (folder / "temporary").mkdir()
        everyone: list[Worker] = []

        def start(name: str, *words: str) -> Worker:
            everyone.append(Worker(folder, len(everyone), name, *words))
            return everyone[-1]

        deal = [start("deals", str(sets)) for _ in range(dealers)]
        read = [start("reads", "3600") for _ in range(readers)]
        until(lambda: sum(len(worker.ids("use")) for worker in read) > readers, "sets to be used")
        for number in range(kills):
            time.sleep(random.random() / 4)
            if number % 4 == 3:
                at = random.randrange(dealers)
                deal[at].kill()
                deal[at] = start("deals", str(sets))
            else:
                at = random.randrange(readers)
                read[at].kill()
                read[at] = start("reads", "3600")
        for worker in deal:
            worker.finish()
        for worker in read:
            worker.kill()
        last = start("reads", "4")
        last.finish()
        dealt = [name for worker in everyone for name in worker.ids("dealt")]
        used = [name for worker in everyone for name in worker.ids("use")]
        burned = [name for worker in everyone for name in worker.ids("burn")]
        assert len(set(used)) == len(used), "a set was used twice"
        assert not set(used) & set(burned) and len(dealt) >= dealers * sets
        # A killed dealer may have finished a set without saying so: that is one for each of them.
        assert len(set(used) - set(dealt)) <= kills
        there = {name for page in Bucket(URL, 0).names() for name in page}
        lost = set(dealt) - set(used) - set(burned)  # claimed by a reader that was killed
        assert not any(Bucket(URL, 0).claim(name) for name in lost | there), "a set that nobody had claimed was left"
        assert len(lost) <= 3 * (kills + readers)  # 2 that were being read, and one that was not said yet
        print(f"MEASURED {len(dealt)} dealt, {len(used)} used, {len(burned)} burned, {len(lost)} lost, {kills} kills")


@pytest.mark.slow
def test_killed_a_few_times(tmp_path: Path) -> None:
    run(tmp_path, dealers=2, sets=6, readers=2, kills=4)


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path: Path) -> None:
    """HUMMINGBIRD_KILLS=200: a thousand sets by four dealers, eight readers."""
    random.seed(seed := int(os.environ.get("HUMMINGBIRD_KILLS_SEED", time.time_ns() % 10**6)))
    print(f"HUMMINGBIRD_KILLS_SEED={seed}")
    run(tmp_path, dealers=4, sets=5 * KILLS // 4, readers=8, kills=KILLS)


def test_a_process_that_was_stopped_long_is_refused(tmp_path: Path) -> None:
    """A reader sleeps between its claim and its reading; another one does not take the set meanwhile."""
    with served() as server:
        server.add("place-0", "place-1")
        keys = Keys(tmp_path)
        (tmp_path / "temporary").mkdir()
        keys.deal(URL, 1)
        (name,) = [name for page in Bucket(URL, 0).names() for name in page]
        assert Bucket(URL, 0).claim(name)
        other = Worker(tmp_path, 0, "reads", "2")
        other.finish()
        assert other.ids("use") == other.ids("burn") == []
        assert b"".join(Bucket(URL, 0).read(name))
