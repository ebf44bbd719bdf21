"""Checks of tests/mpc/session/test_callers.py between two parties: `python -m tests.jobs.callers`, a process for
each.
"""

from __future__ import annotations

import copy
import io
import pickle

import torch
from torch import Tensor, nn

import hummingbird
from hummingbird.commands.party import run_party
from hummingbird.errors import InputError
from hummingbird.mpc.session import launch
from tests.support.patience import HANG

UNIT = 2.0**-16


class Own(nn.Module):
    """A layer without weights."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x


def net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 4), nn.ReLU(), Own(), nn.Linear(4, 2)).eval()


def refused(function: object, words: str) -> None:
    try:
        function()  # type: ignore[operator]
    except InputError as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"not refused: {words}")


def main() -> None:
    torch.set_num_threads(1)
    session = launch.init(timeout=HANG)
    hummingbird.register_converter(Own, lambda module: module)
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    mine = x if session.rank == 1 else None

    # Refused by its owner, who goes on: nothing was sent, or the next messages would not be the expected ones.
    if session.rank == 1:
        refused(lambda: hummingbird.cryptensor(x, src=1, limit=0.1), "got a larger one")
    shared = hummingbird.cryptensor(mine, src=1, limit=10.0)
    for dst in (7, -1, "0"):
        refused(lambda dst=dst: shared.get_plain_text(dst=dst), "names no party of 2")  # type: ignore[misc]
    refused(lambda: hummingbird.cryptensor(mine, src=2), "names no party of 2")
    assert torch.allclose(shared.get_plain_text(), x, atol=UNIT)

    for weights in ("public", 1):
        # With weights=1, party 0's own are ignored.
        private = hummingbird.convert_model(net(session.rank if weights == 1 else 1), weights=weights)
        private(shared)
        twin = copy.deepcopy(private)
        for save in (pickle.dumps, copy.copy, lambda value: torch.save(value, io.BytesIO())):
            refused(lambda save=save, private=private: save(private), "not pickled")  # type: ignore[misc]
        with torch.no_grad():
            expected = net(1)(x)
        for each in (private, twin):
            # 12 weights and inputs, each rounded by half a unit, of magnitudes below 4, through factors below 4
            assert float((each(shared).get_plain_text() - expected).abs().max()) < 12 * 4 * 4 * UNIT


if __name__ == "__main__":
    run_party(main)
