"""Parties with several lanes: each lane has a session of its own, and the lanes of a party a process group."""

from __future__ import annotations

import json

import torch
import torch.distributed as dist
from torch import nn

import hummingbird
from hummingbird.commands.party import run_party
from tests.support.patience import HANG


def main() -> None:
    """Run a small net on this lane's rows; print a JSON object of what the session says and the results."""
    session = hummingbird.init(timeout=HANG)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    x = torch.randn(session.lanes, 5, 6)[session.lane]
    shared = hummingbird.cryptensor(x if session.rank == 0 else None, src=0)
    out = hummingbird.convert_model(net)(shared).get_plain_text()
    gathered = [torch.zeros_like(out) for _ in range(session.lanes)]
    dist.all_gather(gathered, out)
    with torch.no_grad():
        error = float((out - net(x)).abs().max())
    place = session.rank, session.parties, session.lane, session.lanes
    group = dist.get_rank(), dist.get_world_size(), torch.equal(gathered[session.lane], out)
    print(json.dumps({"place": place, "group": group, "error": error}))


if __name__ == "__main__":
    run_party(main)
