"""Lanes that split images and gather results: programs for the nursery (tests/jobs/failures.py)."""

from __future__ import annotations

import os
import signal
import time

import torch

import hummingbird
from hummingbird.__main__ import parser
from hummingbird.channel import meter
from hummingbird.channel.channel import Channel
from hummingbird.commands import infer
from hummingbird.cost import Cost
from hummingbird.errors import InputError
from tests.support.patience import HANG

ROWS = 7
LATE = 1.0  # seconds after which a slow lane goes on; without slow lanes a party has ended by then


def gathers() -> None:
    """One party of several lanes: rows of all kinds, none, and such as do not fit; a meter; images counted."""
    session = hummingbird.init(timeout=HANG)
    first, mine = session.lane == 0, session.part(ROWS)
    rows = torch.arange(2 * ROWS).view(ROWS, 2) - 5
    kinds = rows, rows.float() / 3, rows.double(), rows.half(), rows > 0, rows[:, 0], rows.view(-1, 2, 1)
    for all_rows in kinds:
        got = session.gather(all_rows[mine])
        assert (torch.equal(got, all_rows) and got.dtype == all_rows.dtype) if first else got is None, all_rows.dtype
    with hummingbird.meter() as silent:
        session.gather(rows[mine])
    assert silent.total.bits_sent == silent.total.rounds == 0  # no party has sent another one anything
    # Two images: the last lane has none, and gives what a net that did not run would give.
    few = rows[:2][session.part(2)]
    got = session.gather(few if len(few) else torch.empty(0))
    assert torch.equal(got, rows[:2]) if first else got is None
    try:
        session.gather(torch.zeros(1, 2 + session.lane))
        told = ""
    except InputError as error:
        told = str(error)
    assert ("do not fit" in told) == first

    with hummingbird.meter() as counted, meter.layer("relu", "relu", Cost(2, 8, 4), elements=session.lane):
        meter.count(bits=8, rounds=2, offline_bits=4)
    merged = session.gather_meter(counted)
    assert (merged is None) == (not first)
    if merged is not None:
        total, lanes = merged.total, session.lanes
        assert (total.rounds, total.bits_sent, total.bits_predicted, total.offline_bits) == tuple(
            number * lanes for number in (2, 8, 8, 4)
        )
        assert total.elements == sum(range(lanes)) and merged.table().startswith(f"{lanes} lanes: ")

    goals = [3, 2, 2]
    images, seen = session.gathering.tally(goals), list[int]()
    for _ in range(goals[session.lane]):
        images.add(1)
    images.wait(seen.append)
    assert seen == sorted(seen) and seen[-1] == ROWS, seen
    print("gathered", flush=True)


def lost() -> None:
    """The last lane ends without a word when all have come to gather."""
    session = hummingbird.init(timeout=HANG)
    if session.lane == session.lanes - 1:
        Channel.send = lambda *words: os._exit(0)  # type: ignore[method-assign]
    session.gather(torch.zeros(1, 1))


def behind() -> None:
    """Lane 1 of party 0 ends without a word while its party's lane 0 waits for it and party 1 runs on."""
    session = hummingbird.init(timeout=HANG)
    if (session.rank, session.lane) == (0, 1):
        os._exit(0)
    if session.lane == 1:
        session.channel.exchange_text("still there?")
    session.gather(torch.zeros(1, 1))


def leaves(how: str) -> None:
    """Lane 1 counts its work as done, but looks at the counts, or ends, only after lane 0 has come to leave the run.

    how: "late" at both parties, "fails" or "killed" at party 1.
    """
    session = hummingbird.init(timeout=HANG)
    tally = session.gathering.tally([1] * session.lanes)
    tally.add(1)
    if session.lane == 1 and (session.rank == 1 or how == "late"):
        time.sleep(LATE)
        if how == "fails":
            raise InputError("no paper", where="the printer", hint="buy some")
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
    tally.wait()
    del tally  # it kept the store alive
    hummingbird.uninit()
    print("left", flush=True)


def infers(*words: str) -> None:
    """`infer` with these words."""
    infer.run(parser(["infer"]).parse_args(["infer", *words, "--timeout", f"{HANG:g}"]))


JOBS = {"behind": behind, "gathers": gathers, "infers": infers, "leaves": leaves, "lost": lost}
