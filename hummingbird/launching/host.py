"""Things that all parties of one host need: a store in which they meet, on loopback alone, and torchrun's variables."""

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
    """ConfigError unless these are numbers of parties, from 2, and of lanes, from 1."""
    for name, value, least, hint in (
        ("parties", parties, 2, "a whole number from 2; one party alone needs no launch: call hummingbird.init()"),
        ("lanes", lanes, 1, "processes of each party, one for each of its GPUs: a whole number from 1"),
    ):
        if type(value) is not int or value < least:
            raise ConfigError(f"{name}={value!r}", where=where, hint=hint)


def refuse_inside_a_run(where: str, hint: str) -> None:
    """EnvironmentProblem in a process that is a party."""
    if "RANK" in os.environ:
        what = f"RANK={os.environ['RANK']}: this process is a party of a run already"
        raise EnvironmentProblem(what, where=where, hint=f"{hint}; in a party, call hummingbird.init()")


def places(parties: int, lanes: int) -> list[LanePosition]:
    """The place of each process, by rank."""
    return [LanePosition(rank // lanes, parties, rank % lanes, lanes) for rank in range(parties * lanes)]


@contextlib.contextmanager
def store(timeout: float) -> Iterator[int]:
    """The port of the store in which the processes meet, as torchrun's agent has one; on this host's loopback only.

    timeout: seconds for what the store itself waits for.
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
        del held  # it listens while anybody knows it, and a notebook keeps the last error's frames


def variables(place: LanePosition, port: int) -> dict[str, str]:
    """The environment of one process: this one's, with torchrun's variables."""
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
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # it is there: rank 0 must not open one
        VARIABLE: str(place.lanes),
    }


def signal_name(number: int) -> str:
    """SIGKILL for 9; a number without a name as "signal 65"."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
