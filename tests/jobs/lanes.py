"""Parties with several lanes: each lane has a session of its own, and lane 0 gathers results of its party."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import torch
from torch import nn

import hummingbird
from tests.support.patience import HANG, until


def lanes(slow: str = "", listen: str | None = None) -> None:
    """A small net on this lane's rows; prints a JSON object of what the session says, and the results.

    slow: a folder, where a lane's file says that it has its results; lane 1 waits for those of lane 0 before it begins.
    listen: where this process takes connections. $DEALER: a dealer's address; without it party 0 starts one.
    """
    session = hummingbird.init(timeout=HANG, dealer=os.environ.get("DEALER"), peer_listen=listen)
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
        gathered = session.gather(out)
        told["gathered"] = None if gathered is None else (len(gathered), torch.equal(gathered[:5], out))
    hummingbird.uninit()
    told["SIGTERM"] = signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    os.write(1, json.dumps(told).encode())
