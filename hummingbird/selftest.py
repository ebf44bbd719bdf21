"""One party of `python -m hummingbird check`: a small random net, privately and in plain torch."""

from __future__ import annotations

import sys

import torch
from torch import nn

import hummingbird
from hummingbird.errors import HummingbirdError
from hummingbird.mpc import launch

TOLERANCE = 0.01  # three layers of 2^-16 rounding on logits of order one stay far below


def net() -> nn.Module:
    """The same weights at every party."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)
    ).eval()


def main() -> int:
    session = hummingbird.init()
    plain = net()
    images = torch.rand(4, 1, 8, 8)
    with hummingbird.meter() as m:
        private = hummingbird.convert_model(plain, bits=hummingbird.BitWindow(24, 0))
        logits = private(hummingbird.cryptensor(images if session.rank == 0 else None, src=0)).get_plain_text(dst=0)
    wrong = [row.layer for row in m.rows.values() if row.kind and row.bits_sent != row.bits_predicted]
    if wrong:
        print(f"bits sent differ from the prediction at {wrong}")
        return 1
    if session.rank == 0:
        with torch.no_grad():
            error = float((logits - plain(images)).abs().max())
        print(
            f"largest logit error {error:.1e}, {m.total.rounds} rounds, {m.total.bits_sent / 8e3:.1f} kB, as predicted"
        )
        return int(error > TOLERANCE)
    return 0


if __name__ == "__main__":
    try:
        code = main()
    except HummingbirdError as error:
        launch.abort(error)
        print(f"error: {error}")
        code = 1
    sys.exit(code)
