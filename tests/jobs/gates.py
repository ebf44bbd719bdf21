"""Parties that run nets with a gate, under so many of three windows: `python -m tests.jobs.gates COUNT ACTIVATION ...`.

What every layer sends and gets must be what was predicted. Party 0 prints a line of JSON: for each net the largest
difference to torch.
"""

from __future__ import annotations

import json
import sys

import torch

import hummingbird
from hummingbird.bits import EXACT, BitWindow
from hummingbird.commands.party import run_party
from hummingbird.mpc.session import launch
from tests.jobs.programs import unequal
from tests.support.gates import block
from tests.support.patience import HANG


def main() -> None:
    torch.set_num_threads(1)
    session, errors = launch.init(timeout=HANG), {}
    torch.manual_seed(1)
    x = torch.rand(2, 3, 6, 6) - 0.5
    for window in (BitWindow(20, 12), EXACT, BitWindow(22, 0))[: int(sys.argv[1])]:
        for activation in sys.argv[2:]:
            net = block(activation)
            private = hummingbird.convert_model(net, window)
            with hummingbird.meter() as counted:
                out = private(hummingbird.cryptensor(x if session.rank == 0 else None, src=0)).get_plain_text()
            assert not (bad := unequal(counted)), bad
            with torch.no_grad():
                errors[f"{activation} {window}"] = float((out - net(x)).abs().max())
    if session.rank == 0:
        print(json.dumps(errors), flush=True)


if __name__ == "__main__":
    run_party(main)
