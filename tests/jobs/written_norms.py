"""Norms that are written out, between parties: `python -m tests.jobs.written_norms OWNER ...`.

OWNER: of the weights, a party or "public". Party 0 prints one line of JSON: for each the error and the bound for it.
"""

from __future__ import annotations

import json
import sys

import torch
from torch import nn

import hummingbird
from hummingbird.commands.party import run_party
from hummingbird.mpc.session import launch
from hummingbird.mpc.session import session as sessions
from tests.graph.ops.test_written_out import EpsNorm, OnnxNorm
from tests.jobs.programs import answered
from tests.support.patience import HANG


def make(seed: int) -> nn.Module:
    """A LayerNorm as ONNX files have it and a root-mean-square norm, numbers as buffers, behind linear layers."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), OnnxNorm(), nn.Linear(8, 8), EpsNorm("rms")).eval()


def of(word: str) -> dict[str, float]:
    session, owner = sessions.current(), None if word == "public" else int(word)
    rank = session.rank if owner is not None else 0
    private = hummingbird.convert_model(make(20 + rank), weights="public" if owner is None else owner)
    assert [step.op for step in private.plan].count("norm") == 2
    x = torch.randn(5, 3, 6, generator=torch.Generator().manual_seed(5))
    out = answered(private, x)
    if session.rank:
        return {}
    with torch.no_grad():
        expected = make(20 + (owner or 0))(x)
    # Rows of deviations above 1/8: each norm errs by 2^-13 of results below 2^2, and by 2^-15 over the deviation; the
    # first one's errors grow by weights whose rows add up to less than 2^2, over a deviation of more than 1/8.
    one = 2.0**-11 + 2.0**-12
    return {"error": float((out - expected).abs().max()), "bound": one * (1 + 2.0**5 * 1.5)}


def main() -> None:
    torch.set_num_threads(1)
    session = launch.init(timeout=HANG)
    found = [of(owner) for owner in sys.argv[1:]]
    if session.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    run_party(main)
