"""Parties with several lanes: each lane has a session of its own, and the lanes of a party a process group."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import hummingbird
from tests.support.patience import HANG, until


def lanes(slow: str = "") -> None:
    """A small net on this lane's rows; prints a JSON object of what the session says, and the results.

    slow: a folder, where a lane's file says that it has its results; lane 1 waits for those of lane 0 before it begins.
    """
    session = hummingbird.init(timeout=HANG)
    if slow and session.lane == 1:
        until(lambda: all(Path(slow, f"{party}").exists() for party in range(session.parties)), "the other lane's end")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    x = torch.randn(session.lanes, 5, 6)[session.lane]
    shared = hummingbird.cryptensor(x if session.rank == 0 else None, src=0)
    out = hummingbird.convert_model(net)(shared).get_plain_text()
    with torch.no_grad():
        error = float((out - net(x)).abs().max())
    place = session.rank, session.parties, session.lane, session.lanes
    told = {"place": place, "error": error, "seed": session.dealer.seed.hex(), "names": session.channel.names}  # type: ignore[attr-defined]
    if slow:
        Path(slow, f"{session.rank}").touch()
    else:
        gathered = [torch.zeros_like(out) for _ in range(session.lanes)]
        dist.all_gather(gathered, out)
        told["group"] = dist.get_rank(), dist.get_world_size(), torch.equal(gathered[session.lane], out)
    hummingbird.uninit()
    told["group after it"] = dist.is_initialized()
    told["SIGTERM"] = signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    os.write(1, json.dumps(told).encode())
