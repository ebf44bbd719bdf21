"""Two parties that make their material and run a ReLU with it: `python -m tests.jobs.pair_material`.

Each party prints a line of JSON: what the meter counted, what was predicted, and its shares' digest of the ReLU.
"""

from __future__ import annotations

import json
from dataclasses import replace

import torch

import hummingbird
from hummingbird.commands.party import run_party
from hummingbird.mpc.pair.material import PairMaterial, cost
from hummingbird.mpc.protocols import masked
from hummingbird.mpc.protocols.beaver import Triple
from hummingbird.mpc.protocols.boolean import And
from hummingbird.mpc.protocols.masked import MaskedOpening
from hummingbird.mpc.session import launch
from tests.support.patience import HANG

COUNT = 50_000


def main() -> None:
    torch.set_num_threads(1)
    session = launch.init(timeout=HANG)
    parties, requests = PairMaterial(session.channel), [MaskedOpening(COUNT, 20, 0, 5, 36), And(2, COUNT)]
    requests.append(Triple((2, 16, 16), (2, 16, 16), "matmul", {}))
    with hummingbird.meter() as counted:
        parties.make(requests)
    x = torch.arange(COUNT) - COUNT // 2
    mine = x - 77 if session.rank == 0 else torch.full_like(x, 77)
    y, _ = masked.relu(replace(session, dealer=parties), mine, 0, 20, 0, 36, 5)
    (theirs,) = session.channel.swap(1 - session.rank, [y], [y])
    right = torch.equal(y + theirs & (1 << 36) - 1, x.clamp(min=0))
    found = {"bits": counted.total.bits_sent, "rounds": counted.total.rounds, "right": right}
    price = cost(requests)
    print(json.dumps({**found, "price": [price.all_bits, price.rounds]}), flush=True)


if __name__ == "__main__":
    run_party(main)
