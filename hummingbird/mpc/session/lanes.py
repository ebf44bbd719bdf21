"""Lanes: a party with several GPUs runs a process for each, and lane g of all parties is a session of its own.

Party = RANK // lanes, lane = RANK % lanes. Images are independent, so lanes share no secrets of the protocol: lane g of
each party connects only to lane g of the others, with its own seeds and material. The lanes of one party are the
default process group of torch.distributed, with rank = lane, which gathers results.
"""

from __future__ import annotations

import datetime
import os
import socket
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from hummingbird.channel.channel import named
from hummingbird.errors import ConfigError, EnvironmentProblem

_opened = False  # whether `open_group` has made the process group

VARIABLE = "HUMMINGBIRD_LANES"


class LanePosition(NamedTuple):
    """The position of this process in the run: its party among `parties`, and its lane among `lanes`."""

    party: int
    parties: int
    lane: int
    lanes: int

    @property
    def rank(self) -> int:
        """The rank of this process under torchrun, among the processes of all parties."""
        return self.party * self.lanes + self.lane

    @property
    def world(self) -> int:
        """Number of processes of all parties."""
        return self.parties * self.lanes

    @property
    def name(self) -> str:
        """The name shown in errors."""
        return self.name_of(self.rank)

    def name_of(self, rank: int) -> str:
        """The name of another process."""
        return named(rank // self.lanes, rank % self.lanes if self.lanes > 1 else None)


def environment(lanes: int | None = None) -> LanePosition:
    """This process's position by torchrun's variables; without them a single party.

    lanes: processes of a party; None: HUMMINGBIRD_LANES, else 1.
    Raises ConfigError if lanes is not positive or does not divide WORLD_SIZE, and EnvironmentProblem for variables
    that are no numbers, for a RANK that is not below WORLD_SIZE, and if the lanes of a party are on several hosts.
    """
    count = lanes_of(lanes)
    rank = variable("RANK", 0)
    world = variable("WORLD_SIZE", None if "RANK" in os.environ else 1)
    if not 0 <= rank < world:
        raise EnvironmentProblem(f"RANK={rank} is not below WORLD_SIZE={world}")
    if world % count:
        raise ConfigError(
            f"WORLD_SIZE={world} is no multiple of lanes={count}",
            where="lanes",
            hint=f"start parties x lanes processes: {2 * count} for two parties",
        )
    local = variable("LOCAL_WORLD_SIZE", world)
    if local % count:
        raise EnvironmentProblem(
            f"LOCAL_WORLD_SIZE={local} is no multiple of lanes={count}",
            where="lanes",
            hint="the lanes of a party are on one host: --lanes of `run`, or --nproc_per_node of torchrun",
        )
    return LanePosition(rank // count, world // count, rank % count, count)


def lanes_of(lanes: Any = None) -> int:
    """How many lanes a party has; None: HUMMINGBIRD_LANES, else 1. ConfigError unless it is a positive integer."""
    where, value = "lanes", lanes
    if lanes is None:
        where, value = VARIABLE, os.environ.get(VARIABLE, "1")
        value = int(value) if value.isdecimal() else value
    if type(value) is not int or value < 1:
        hint = "processes of each party, one for each of its GPUs: a whole number from 1"
        raise ConfigError(f"lanes={value!r}", where=where, hint=hint)
    return value


def variable(name: str, default: int | None) -> int:
    """Read a number from torchrun's variable of this name.

    Raises EnvironmentProblem if the value is no number, or if there is neither a value nor a default.
    """
    try:
        return int(os.environ.get(name, "" if default is None else str(default)))
    except ValueError:
        raise EnvironmentProblem(
            f"{name} is {os.environ.get(name, 'not set')}, and not a number",
            hint="start the parties with `python -m hummingbird run`, or with torchrun",
        ) from None


def refuse_other_group(place: LanePosition) -> None:
    """Raise EnvironmentProblem if torch.distributed is initialized and the lanes need its default process group."""
    if place.lanes > 1 and dist.is_initialized():
        raise EnvironmentProblem(
            "torch.distributed is initialized already; with lanes its default process group is that of a party's lanes",
            where="init",
            hint="call hummingbird.init() first, and torch.distributed.new_group() for groups of lanes",
        )


def open_group(store: dist.Store, place: LanePosition, timeout: float) -> None:
    """Make the default process group of this party's lanes, with rank = lane: Gloo, and NCCL for CUDA.

    store: used by these lanes only (shared_port.py).
    timeout: seconds.
    Messages in the group are not encrypted: the lanes are on one host, and Gloo listens on its loopback interface.
    """
    global _opened
    for _, interface in socket.if_nameindex():
        if interface in ("lo", "lo0"):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
        store=store,
        rank=place.lane,
        world_size=place.lanes,
        timeout=datetime.timedelta(seconds=timeout),
    )
    _opened = True


def close_group() -> None:
    """Destroy the group that `open_group` made: a process that exits while Gloo's threads run sometimes aborts."""
    global _opened
    if _opened and dist.is_initialized():
        dist.destroy_process_group()
    _opened = False
