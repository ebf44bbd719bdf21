"""Two parties without a dealer run a net again and again: `python -m tests.jobs.pair_session TIMEOUT RUNS [PAUSE]`.

Each party prints a line of JSON after every run. Variables: LANES, AIM, WEIGHTS, PROTOCOL, NET (of `NETS`); DEALER,
perhaps one for each party, with commas; WEIGHT_BITS, with which the results are compared with the twin's.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

import torch
from torch import nn

import hummingbird
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.commands.party import run_party


class Attention(nn.Module):
    """A block of a transformer: layer norms, attention with a softmax of scores, an MLP with GELU; (B, T, 16)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, 2, 8)).transpose(1, 3).unbind(2)  # (B, heads, T, 8)
        mean = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mean.transpose(1, 2).flatten(2))
        return x + self.mlp(self.second(x))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "small": (
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(6)),
            *(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 5)),
        ),
        (6, 3, 8, 8),
    ),
    "pooling": (
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)),
            *(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)),
        ),
        (4, 3, 16, 16),
    ),
    "smooth": (
        lambda: nn.Sequential(
            *(nn.Flatten(), nn.Linear(768, 32), nn.GELU(), nn.Linear(32, 10), nn.Sigmoid(), nn.Linear(10, 10)),
            *(nn.SiLU(), nn.Linear(10, 10), nn.Softmax(-1)),
        ),
        (4, 3, 16, 16),
    ),
    "splines": (
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1), nn.Hardswish(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(512, 10)),
            *(nn.ReLU6(), nn.Linear(10, 10), nn.LeakyReLU()),
        ),
        (4, 3, 16, 16),
    ),
    "attention": (Attention, (4, 8, 16)),
}


def main() -> None:
    torch.set_num_threads(1)
    timeout, runs, pause = (float(word) for word in [*sys.argv[1:], "0"][:3])
    variables = os.environ
    dealers = variables.get("DEALER", "pair").split(",")
    dealer = dealers[min(int(variables["RANK"]), len(dealers) - 1)]
    session = hummingbird.init(lanes=int(variables.get("LANES", "1")), dealer=dealer, timeout=timeout)
    weights: str | int = int(variables["WEIGHTS"]) if "WEIGHTS" in variables else "public"
    make, shape = NETS[variables.get("NET", "small")]
    torch.manual_seed(0)
    plain, x = make().eval(), torch.rand(shape) - 0.5
    protocol, aim = variables.get("PROTOCOL", "masked"), variables.get("AIM")
    bits = BitConfig(BitWindow(20, 0), weight_bits=int(variables.get("WEIGHT_BITS", "0")) or None)
    private = hummingbird.convert_model(plain, bits, weights, protocol=protocol, example=x, aim=aim)
    private.images_per_slice = 2
    shared = hummingbird.cryptensor(x if session.rank == 0 else None, src=0)
    twin = hummingbird.simulate(plain, bits, protocol, example=x, aim="pair") if bits.weight_bits else plain
    with torch.no_grad():
        expected = twin(x)
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
