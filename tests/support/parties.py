"""Parties for tests: threads with real sockets for one protocol, processes as torchrun starts them for a whole run."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import hummingbird
from hummingbird.channel.channel import Channel
from hummingbird.mpc.dealer.client import LocalDealer
from hummingbird.mpc.session.session import Session
from hummingbird.prg import new_seed
from tests.support import python
from tests.support.paths import ROOT
from tests.support.patience import HANG, NEVER, PROGRAM
from tests.support.ports import free_port

_LEFT_BEHIND = 5.0  # seconds for the other parties after one has failed


def init_alone(**options: Any) -> Session:
    """A session of one party, which is told that nothing is hidden; options of `hummingbird.init`."""
    with pytest.warns(UserWarning, match="one party: nothing is sent and nothing is hidden"):
        return hummingbird.init(**options)


def channels(parties: int, timeout: float = NEVER) -> list[Channel]:
    """Connected channels of N parties in one process."""
    pairs = {(a, b): socket.socketpair() for a in range(parties) for b in range(parties) if a != b}
    return [
        Channel(
            rank,
            parties,
            {peer: pairs[rank, peer][0] for peer in range(parties) if peer != rank},
            {peer: pairs[peer, rank][1] for peer in range(parties) if peer != rank},
            timeout,
        )
        for rank in range(parties)
    ]


def sessions(parties: int) -> list[Session]:
    """Sessions of N parties in one process, with the stand-in dealer."""
    seeds = [new_seed() for _ in range(parties)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the stand-in says loudly that it is for tests: this is one
        return [
            Session(rank, parties, c, LocalDealer(rank, parties, seeds)) for rank, c in enumerate(channels(parties))
        ]


def together(functions: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run one function per party at the same time; raise the first exception of any, else return all results.

    A party that waits for one that has failed is left behind after some seconds.
    """
    results: list[Any] = [None] * len(functions)
    errors: list[BaseException | None] = [None] * len(functions)

    def call(rank: int) -> None:
        try:
            results[rank] = functions[rank]()
        except BaseException as error:  # noqa: BLE001 - handed to the caller below
            errors[rank] = error

    threads = [threading.Thread(target=call, args=(rank,), daemon=True) for rank in range(len(functions))]
    for thread in threads:
        thread.start()
    deadline, failed = time.monotonic() + HANG, None
    while any(thread.is_alive() for thread in threads):
        failed = failed or (time.monotonic() if any(errors) else None)
        assert failed or time.monotonic() < deadline, "a party hangs"
        if failed and time.monotonic() > failed + _LEFT_BEHIND:
            break
        time.sleep(0.002)
    for error in errors:
        if error is not None:
            raise error
    return results


def share(x: torch.Tensor, parties: int) -> list[torch.Tensor]:
    """Additive shares mod 2^64 of a tensor, for tests (torch's generator: nothing here is secret)."""
    parts = [torch.randint(-(2**63), 2**63 - 1, x.shape) for _ in range(parties - 1)]
    return [x - sum(parts, torch.zeros_like(x)), *parts]


def compute(
    parties: int, protocol: Callable[[Session, torch.Tensor], Any], shares: Sequence[torch.Tensor]
) -> list[Any]:
    """protocol(session, share) at every party."""
    opened = sessions(parties)
    try:
        return together([lambda s=s, x=x: protocol(s, x) for s, x in zip(opened, shares, strict=True)])
    finally:
        for session in opened:
            session.channel.close()


@dataclass
class Finished:
    """How one party's process ended."""

    code: int
    out: str
    err: str


def environment(rank: int, parties: int, port: int) -> dict[str, str]:
    """torchrun's variables for one party on this host."""
    return {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(parties),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(parties),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }


def start(
    command: Sequence[str], parties: int, each: Callable[[int], Sequence[str]] = lambda rank: ()
) -> list[subprocess.Popen[str]]:
    """One process per party, with torchrun's environment. each: more words of the command, by rank."""
    port = free_port()
    return [
        (python.Popen if rank else python.Parent)(  # the first one starts a dealer
            [sys.executable, *command, *each(rank)],
            env=environment(rank, parties, port),
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(parties)
    ]


def finish(processes: Sequence[subprocess.Popen[str]]) -> list[Finished]:
    """Wait for all; a process that hangs is killed and reported with code -9."""
    out = []
    for process in processes:
        try:
            stdout, stderr = process.communicate(timeout=PROGRAM)
        except subprocess.TimeoutExpired:
            process.kill()
            stdout, stderr = process.communicate()
            stderr += "\n(hung: killed by the test)"
        out.append(Finished(process.returncode, stdout, stderr))
    return out


def run(command: Sequence[str], parties: int) -> list[Finished]:
    """Run a command as N parties and wait for them."""
    return finish(start(command, parties))


def succeed(command: Sequence[str], parties: int) -> list[Finished]:
    """Like `run`, and fail the test with the parties' messages unless all succeed."""
    ended = run(command, parties)
    assert all(party.code == 0 for party in ended), "\n".join(
        f"--- party {i}\n{p.out}\n{p.err}" for i, p in enumerate(ended)
    )
    return ended
