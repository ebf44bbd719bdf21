"""Programs that tests run as parties: `python -m tests.jobs NAME [ARGUMENT ...]`. Party 0 prints one line of JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch

import hummingbird
from hummingbird.bits import BitWindow
from hummingbird.mpc import session as sessions
from hummingbird.wire.meter import Meter
from scripts.party import run_party
from tests.operations import cases


def unequal(m: Meter) -> list[str]:
    """Rows in which what was sent is not what was predicted, at this party."""
    return [
        f"{row.layer}: sent {row.bits_sent} in {row.rounds}, predicted {row.bits_predicted} in {row.rounds_predicted}"
        for row in m.rows.values()
        if (row.bits_sent, row.rounds) != (row.bits_predicted, row.rounds_predicted)
        or row.offline_bits not in (0, row.offline_bits_predicted)
    ]


def operations(weights: str) -> dict[str, Any]:
    """Every operation, privately, against torch."""
    session = sessions.init(timeout=60)
    owner: str | int = weights if weights == "public" else int(weights)
    results = {}
    for name, case in cases().items():
        net = case.net.eval()
        private = hummingbird.convert_model(net, BitWindow(30, 0), owner)
        with hummingbird.meter() as m:
            shared = hummingbird.cryptensor(case.x if session.rank == 0 else None, src=0)
            out = private(shared).get_plain_text()
        bad = unequal(m)
        assert not bad, f"{name} at party {session.rank}: {bad}"
        if session.rank == 0:
            with torch.no_grad():
                expected = net(case.x)
            assert out.shape == expected.shape, f"{name}: shape {tuple(out.shape)}, expected {tuple(expected.shape)}"
            results[name] = (float((out - expected).abs().max()), case.bound)
    return results


JOBS: dict[str, Callable[..., Any]] = {"operations": operations}


def main() -> None:
    torch.set_num_threads(1)
    result = JOBS[sys.argv[1]](*sys.argv[2:])
    if result is not None and sessions.current().rank == 0:
        print(json.dumps(result))


if __name__ == "__main__":
    run_party(main)
