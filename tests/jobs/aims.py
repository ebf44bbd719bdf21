"""Two parties with a streaming dealer, for every aim: `python -m tests.jobs.aims WINDOW NAME ...`.

WINDOW: "first" or "all" of `WINDOWS`. NAME: of smooth functions. Party 0 prints one line of JSON.
"""

from __future__ import annotations

import json
import sys

import torch
from torch import nn

import hummingbird
from hummingbird.bits import EXACT, BitWindow
from hummingbird.mpc.functions.tabulated import Tabulated
from hummingbird.mpc.session import launch
from hummingbird.ring import SCALE
from tests.jobs.programs import unequal
from tests.support.patience import HANG


def net() -> nn.Sequential:
    """Comparisons of every kind: a ReLU on a wide ring, a tree of maxima, splines, a norm and an argmax."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 8), nn.SiLU()]
    return nn.Sequential(*layers, nn.LayerNorm(8), nn.Linear(8, 5)).eval()


WINDOWS = BitWindow(24, 0), BitWindow(22, 14)
NARROW = BitWindow(20, 14)  # its ReLUs can take one round
LINK = "link:0.002:100000000:1000000000"  # on which some of them do, and others do not
# Where splines are smaller than tables; with k = 20 knots lie outside of the window.
COARSE = {
    "sigmoid": [BitWindow(20, 8)],
    "tanh": [BitWindow(22, 10), BitWindow(20, 8)],
    "silu": [BitWindow(22, 12), BitWindow(20, 10)],
    "gelu": [BitWindow(22, 12), BitWindow(20, 12), BitWindow(20, 6)],
}
CLAMPED = ("gelu", BitWindow(22, 12)), ("gelu", BitWindow(20, 12))  # where a table behind a clamp is smaller still
SMOOTH = {"sigmoid": nn.Sigmoid(), "tanh": nn.Tanh(), "silu": nn.SiLU(), "gelu": nn.GELU()}


def smooth_windows(name: str, count: str) -> list[BitWindow]:
    """The windows of a smooth function; the last of them, if only the "first" ones are asked for."""
    windows = [EXACT, BitWindow(24, 8), *COARSE[name]]
    return windows[-1:] if count == "first" else windows


def images() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(3, 1, 8, 8)


def main() -> None:
    session = launch.init(timeout=HANG)
    found = {}
    windows = WINDOWS if sys.argv[1] == "all" else WINDOWS[:1]
    runs = [(aim, window) for aim in (None, "latency", "throughput", "throughput:0.001") for window in windows]
    for aim, window in [*runs, ("latency", NARROW), ("rounds", NARROW), (LINK, NARROW)]:
        private = hummingbird.convert_model(net(), window, aim=aim)
        with hummingbird.meter() as counted:
            out = private(hummingbird.cryptensor(images() if session.rank == 0 else None, src=0)).get_plain_text()
        assert not (bad := unequal(counted)), bad
        total = counted.total
        sent = [total.bits_sent, total.offline_bits]
        found[f"{aim} {window}"] = (private.facts["aim"], total.rounds, *sent, out.tolist())
    for name in sys.argv[2:]:
        net_ = SMOOTH[name]
        for window in smooth_windows(name, sys.argv[1]):
            private = hummingbird.convert_model(nn.Sequential(net_), window, aim="throughput")
            layer = next(step.layer for step in private.plan if step.op == name)
            assert isinstance(layer, Tabulated) == ((name, window) in CLAMPED), (name, window)
            # A spline errs by 2^-14 and by twice the square of what is left undecided, 2^-8: coarse windows decide from
            # bit 8 on.
            bound = layer.look_up(SCALE).error(2) if isinstance(layer, Tabulated) else 2.0**-14 + 2.0**-15
            reach = min(20.0, 2.0 ** (window.k - 17) - 2.0**-8)
            x = torch.linspace(-reach, reach, 4001).round(decimals=4)[None]
            with hummingbird.meter() as counted:
                out = private(hummingbird.cryptensor(x if session.rank == 0 else None, src=0)).get_plain_text()
            assert not (bad := unequal(counted)), bad
            found[f"{name} {window}"] = float((out - net_(x)).abs().max()), bound
    if session.rank == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
