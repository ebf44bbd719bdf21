"""Two parties without a dealer run a net again and again: `python -m tests.jobs.pair_session TIMEOUT RUNS [PAUSE]`.

Each party prints a line of JSON after every run. Variables: LANES, AIM, WEIGHTS; DEALER, perhaps one for each party.
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch
from torch import nn

import hummingbird
from hummingbird.bits import BitWindow
from hummingbird.commands.party import run_party


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(6)),
        *(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 5)),
    ).eval()


def main() -> None:
    torch.set_num_threads(1)
    timeout, runs, pause = (float(word) for word in [*sys.argv[1:], "0"][:3])
    environment = os.environ
    lanes = int(environment.get("LANES", "1"))
    dealers = environment.get("DEALER", "pair").split(",")
    dealer = dealers[min(int(environment["RANK"]), len(dealers) - 1)]
    session = hummingbird.init(lanes=lanes, dealer=dealer, timeout=timeout)
    weights = int(environment["WEIGHTS"]) if "WEIGHTS" in environment else "public"
    plain, x = net(), torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(1)) - 0.5
    private = hummingbird.convert_model(plain, BitWindow(20, 0), weights, aim=environment.get("AIM"))
    private.images_per_slice = 2  # three slices
    shared = hummingbird.cryptensor(x if session.rank == 0 else None, src=0)
    with torch.no_grad():
        expected = plain(x)
    for run in range(int(runs)):
        time.sleep(pause if run else 0)
        with hummingbird.meter() as meter:
            out = private(shared)
        row, total = {"run": run, "rank": session.rank, "lane": session.lane}, meter.total
        row["error"] = float((out.get_plain_text() - expected).abs().max())
        row["predicted"] = [total.bits_predicted, total.rounds_predicted, total.offline_bits_predicted]
        row["counted"] = [total.bits_sent, total.rounds, total.offline_bits]
        print(json.dumps({**row, "aim": private.facts["aim"]}), flush=True)
    hummingbird.uninit()


if __name__ == "__main__":
    run_party(main)
