"""A party that loads a saved net and runs it: `python -m tests.jobs.saved FOLDER X`, with {rank} in FOLDER replaced.

It has no code of the net. Party 0 has the images, and prints the opened results, with what was sent and predicted.
"""

from __future__ import annotations

import importlib.util
import json
import sys

from safetensors.torch import load_file

import hummingbird
from hummingbird.commands.party import run_party
from hummingbird.mpc.session import launch
from tests.jobs.programs import unequal
from tests.support.patience import HANG


def main() -> None:
    assert importlib.util.find_spec("secret_net") is None
    session = launch.init(timeout=HANG)
    private = hummingbird.load(sys.argv[1].replace("{rank}", str(session.rank)))
    shared = hummingbird.cryptensor(load_file(sys.argv[2])["x"] if session.rank == 0 else None, src=0)
    with hummingbird.meter() as meter:
        out = private(shared).get_plain_text()
    assert not (bad := unequal(meter)), bad
    if session.rank == 0:
        print(json.dumps({"out": out.tolist(), "rounds": meter.total.rounds}))


if __name__ == "__main__":
    run_party(main)
