"""Two parties with a streaming dealer, for every aim: `python -m tests.jobs.aims`. Party 0 prints one line of JSON."""

from __future__ import annotations

import json

import torch
from torch import nn

import hummingbird
from hummingbird.bits import BitWindow
from hummingbird.mpc import launch
from tests.jobs.programs import unequal
from tests.support.patience import HANG


def net() -> nn.Sequential:
    """Comparisons of every kind: a ReLU on a wide ring, a tree of maxima, splines, a norm and an argmax."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 8), nn.SiLU()]
    return nn.Sequential(*layers, nn.LayerNorm(8), nn.Linear(8, 5)).eval()


def images() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(3, 1, 8, 8)


def main() -> None:
    session = launch.init(timeout=HANG)
    found = {}
    for aim in (None, "latency", "throughput", "throughput:0.001"):
        for window in (BitWindow(24, 0), BitWindow(22, 14)):
            private = hummingbird.convert_model(net(), window, aim=aim)
            with hummingbird.meter() as counted:
                out = private(hummingbird.cryptensor(images() if session.rank == 0 else None, src=0)).get_plain_text()
            assert not (bad := unequal(counted)), bad
            total = counted.total
            sent = [total.bits_sent, total.offline_bits]
            found[f"{aim} {window}"] = (private.facts["aim"], total.rounds, *sent, out.tolist())
    if session.rank == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
