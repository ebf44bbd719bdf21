"""Processes that deal sets into an object store, or claim and read them: `python -m tests.jobs.bucket NAME ...`.

A line on stdout is written at once and whole, before what it says can have an effect.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from hummingbird.mpc.dealer.bucket import Bucket
from hummingbird.mpc.dealer.sealing import read_key, read_public
from hummingbird.mpc.dealer.set_reader import LOST, READY, SetReader


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def deals(url: str, folder: str, sets: str) -> None:
    """Deal sets, and say the id of each when it is complete."""
    from hummingbird.mpc.dealer import bucket_store
    from tests.support.keeping import FACTS, REQUEST, SHAPE, SLOTS

    put = bucket_store._put

    def told(bucket: Bucket, files: Path, *words: object) -> int:
        size = put(bucket, files, *words)  # type: ignore[arg-type]
        if "party-0" in bucket.where:  # the last one
            say(f"dealt {bucket_store.read_header(files)[0].set_id}")
        return size

    bucket_store._put = told  # type: ignore[assignment]
    what = {"steps": [[REQUEST] * 2], "shape": SHAPE, "slots": SLOTS, "parties": 2, "facts": FACTS, "lanes": 1}
    to = [read_public(f"{folder}/party-{rank}.key.pub") for rank in range(2)]
    key = read_key(f"{folder}/dealer.key")
    bucket_store.deal_sets(url, int(sets), key, to, cipher="aes-128-ctr", **what)  # type: ignore[arg-type]
    say("done")


def reads(url: str, folder: str, quiet: str) -> None:
    """Claim and read sets as party 0, and the same ones as party 1; end after `quiet` seconds without one.

    Says `use ID` before it would use a set that both have, and `burn ID` for one that party 1 does not get.
    """
    buckets = [Bucket(url, rank) for rank in range(2)]
    root = Path(tempfile.mkdtemp())
    both = [
        SetReader(bucket, read_key(f"{folder}/party-{rank}.key"), rank, 0, root / str(rank))
        for rank, bucket in enumerate(buckets)
    ]
    under_way: list[str] = []
    say("reading")
    until = time.monotonic() + float(quiet)
    while time.monotonic() < until:
        both[0].want(2)
        if (name := both[0].chosen()) is not None:
            both[1].begin(name)
            under_way.append(name)
        for name in list(under_way):
            states = [reader.state(name) for reader in both]
            if all(state in (READY, LOST) for state in states):
                say(f"{'use' if states == [READY, READY] else 'burn'} {name}")
                for reader in both:
                    reader.take(name)
                under_way.remove(name)
                until = time.monotonic() + float(quiet)
        time.sleep(0.002)
    for reader in both:
        reader.close()
    say("done")


JOBS = {"deals": deals, "reads": reads}

if __name__ == "__main__":
    JOBS[sys.argv[1]](*sys.argv[2:])
