"""Parties of one host: the store in which they meet, on loopback only, and torchrun's environment variables."""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import socket
from collections.abc import Iterator

import torch.distributed as dist

from hummingbird.errors import ConfigError, EnvironmentProblem
from hummingbird.kernels.devices import processors
from hummingbird.mpc.session.lanes import VARIABLE, LanePosition

KILLED = "the system may have ended it, for memory or from outside: look at this host's log"
_HOST = "127.0.0.1"


def check(parties: object, lanes: object, where: str) -> None:
    """Raise ConfigError unless `parties` is an int of 2 or more, and `lanes` an int of 1 or more.

    where: the command or function, for the error.
    """
    for name, value, least, hint in (
        ("parties", parties, 2, "a whole number from 2; one party alone needs no launch: call hummingbird.init()"),
        ("lanes", lanes, 1, "processes of each party, one for each of its GPUs: a whole number from 1"),
    ):
        if type(value) is not int or value < least:
            raise ConfigError(f"{name}={value!r}", where=where, hint=hint)


def refuse_inside_a_run(where: str, hint: str) -> None:
    """Raise EnvironmentProblem if this process is already a party of a run."""
    if "RANK" in os.environ:
        what = f"RANK={os.environ['RANK']}: this process is a party of a run already"
        raise EnvironmentProblem(what, where=where, hint=f"{hint}; in a party, call hummingbird.init()")


def places(parties: int, lanes: int) -> list[LanePosition]:
    """List the position of each process, its party and its lane, in the order of ranks."""
    return [LanePosition(rank // lanes, parties, rank % lanes, lanes) for rank in range(parties * lanes)]


@contextlib.contextmanager
def store(timeout: float) -> Iterator[int]:
    """Run, in this block, a store by which the processes find each other, as torchrun's agent does; yield its port.

    The store listens on loopback only. timeout: seconds that the store waits for a value.
    """
    server = socket.create_server((_HOST, 0))
    port = server.getsockname()[1]
    wait = datetime.timedelta(seconds=timeout)
    held = dist.TCPStore(
        _HOST, port, is_master=True, wait_for_workers=False, timeout=wait, master_listen_fd=server.detach()
    )
    try:
        yield port
    finally:
        del held  # it listens as long as it is referenced, and a notebook keeps the frames of the last error


def variables(place: LanePosition, port: int) -> dict[str, str]:
    """Return the environment variables for the process at `place`: this process's own, and torchrun's for its rank.

    port: the port of the store by which the processes find each other.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}
    return {
        "OMP_NUM_THREADS": str(max(1, processors() // place.world)),
        **kept,
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.world),
        "LOCAL_RANK": str(place.rank),
        "LOCAL_WORLD_SIZE": str(place.world),
        "MASTER_ADDR": _HOST,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store exists: rank 0 must not open one
        VARIABLE: str(place.lanes),
    }


def signal_name(number: int) -> str:
    """Return the name of a signal, "SIGKILL" for 9; "signal 65" for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
