"""Sharing inputs and opening results beside their prices: `python -m tests.jobs.around NETS`; NETS: "two" or "all".

Every party compares what its meter counts with `hummingbird.estimate`, for each owner of the inputs and each party
that learns the results.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

import hummingbird
from hummingbird.channel.meter import OUTSIDE, MeterRow
from hummingbird.commands.party import run_party
from hummingbird.cost import Cost
from hummingbird.mpc.session import launch
from hummingbird.mpc.session import session as sessions
from tests.support.patience import HANG


class Two(nn.Module):
    """Two inputs, three results."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        z = (self.a(x) + y).relu()
        return {"z": z, "b": self.b(z), "place": self.b(z).argmax(1)}


def counted(row: MeterRow) -> Cost:
    return Cost(row.rounds, row.bits_sent, row.offline_bits)


def of(net: nn.Module, *inputs: Tensor) -> None:
    session = sessions.current()
    nothing = Cost(1 if session.parties > 1 else 0)
    for protocol in ("masked", "gmw"):
        options = {"protocol": protocol, "aim": "throughput"}
        told = hummingbird.estimate(net, example=inputs, parties=session.parties, **options).around
        with hummingbird.meter() as m:
            private = hummingbird.convert_model(net, example=inputs, **options)
        assert counted(m.rows[OUTSIDE]) == told["agreement, once"].cost, (m.rows, told)
        for src in range(session.parties):
            with hummingbird.meter() as m:
                shared = [hummingbird.cryptensor(x if session.rank == src else None, src=src) for x in inputs]
            price = told["sharing the input"].cost if session.rank == src else Cost(len(inputs) * nothing.rounds)
            assert counted(m.rows["input"]) == price and [*m.rows] == ["input"]
            out = private(*shared)
            results = [*out.values()] if isinstance(out, dict) else [out]
            with hummingbird.meter() as m:
                for result in results:
                    result.get_plain_text(dst=src)
            price = told["opening the result to one party"].cost
            assert counted(m.rows["opening"]) == (price if session.rank != src else Cost(price.rounds))
            with hummingbird.meter() as m:
                for result in results:
                    result.get_plain_text()
            assert counted(m.rows["opening"]) == told["opening the result to all"].cost and [*m.rows] == ["opening"]


def main() -> None:
    torch.set_num_threads(1)
    launch.init(timeout=HANG)
    torch.manual_seed(0)
    of(Two().eval(), torch.randn(6, 4), torch.randn(6, 5))
    if sys.argv[1] == "all":
        of(
            nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 10)).eval(),
            torch.randn(3, 1, 5, 5),
        )


if __name__ == "__main__":
    run_party(main)
