"""A run of two parties with windows that round: `python -m tests.jobs.rounded_run`. Parties print what they sent."""

from __future__ import annotations

import json

import torch
from torch import Tensor, nn

import hummingbird
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.commands.party import run_party
from hummingbird.cost import FREE
from tests.support.operations import norm
from tests.support.patience import HANG

BITS = BitConfig(BitWindow(22, 4, 6), {"relu": BitWindow(22, 0, 7), "last": BitWindow(22, 8)})


class Residual(nn.Module):
    """Sums and a pooling of results with different fractions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)
        self.relu, self.middle, self.last = nn.ReLU(), nn.ReLU(), nn.LeakyReLU(0.1)
        self.pool, self.head = nn.MaxPool2d(2), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.pool(self.relu(self.norm(self.first(x))))
        y = self.last(self.middle(self.second(y)) + y)
        return self.head(y.mean((2, 3)))


def make() -> tuple[nn.Module, Tensor]:
    """The net, and a batch."""
    torch.manual_seed(3)
    return norm(Residual()), torch.randn(3, 3, 8, 8)


def main() -> None:
    torch.set_num_threads(1)
    session, (net, x) = hummingbird.init(timeout=HANG), make()
    found = {}
    for protocol in ("masked", "gmw"):
        private = hummingbird.convert_model(net, BITS, protocol=protocol)
        shared = hummingbird.cryptensor(x, src=0)
        predicted = sum((step.cost for step in private.costs(tuple(x.shape), session.parties)), FREE)
        plain = hummingbird.convert_model(net, BitWindow(22, 4), protocol=protocol)
        without = sum((step.cost for step in plain.costs(tuple(x.shape), session.parties)), FREE)
        with hummingbird.meter() as counted:
            out = private(shared)
        total = counted.total
        found[protocol] = {
            "result": out.get_plain_text().tolist(),
            "counted": [total.rounds, total.bits_sent, total.offline_bits],
            "predicted": [predicted.rounds, predicted.bits, predicted.offline_bits],
            "bits": predicted.bits,
            "bits without q": without.bits,
        }
    print(json.dumps(found))


if __name__ == "__main__":
    run_party(main)
