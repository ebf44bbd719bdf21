"""A party that torchrun starts again: a process of party 1 dies in its life number DEATH, in the middle of a run, and
in earlier ones before it has met anybody.

LANES FOLDER DEATH: lanes of a party, and a store for `tests.jobs.stores.net`, or "" for a dealer that party 0 starts.
"""

from __future__ import annotations

import os
import sys

import torch

import hummingbird
from hummingbird.commands.party import run_party
from hummingbird.mpc.dealer.store import StoreDealer
from tests.jobs.stores import SLICE, WINDOW, net, rows
from tests.support.patience import HANG

LIFE, DEATH = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(sys.argv[3])


def main() -> None:
    """Say every slot before anything of it is handed out, and whether the answers are right."""
    # Two launchers on one host, for two hosts: addresses and the dealer are on loopback all the same.
    os.environ["LOCAL_WORLD_SIZE"] = os.environ["WORLD_SIZE"]
    lanes, mark = int(sys.argv[1]), StoreDealer.mark
    if LIFE < DEATH and int(os.environ["RANK"]) == lanes:
        os._exit(3)

    def told(self: StoreDealer, slot: int) -> None:
        _say(f"slot {slot}")
        mark(self, slot)

    StoreDealer.mark = told  # type: ignore[method-assign]
    session = hummingbird.init(timeout=HANG, lanes=lanes, store=sys.argv[2] or None)
    if lanes > 1:
        session.gathering.arrive()  # so that every lane is where it can say why it is stopped
    private, x = hummingbird.convert_model(net(), WINDOW, protocol="gmw"), rows(SLICE[0])
    while True:
        out = private(hummingbird.cryptensor(x if session.rank == 0 else None, src=0)).get_plain_text()
        if LIFE == DEATH and (session.rank, session.lane) == (1, 0):
            os._exit(3)
        with torch.no_grad():
            right = out.allclose(net()(x), atol=2**-9)
        said = session.channel.exchange_text(f"{LIFE}")
        if (LIFE if session.rank == 1 else int(said[1])) > DEATH:
            break
    _say(f"{session.channel.name} in life {LIFE}: {'right' if right else out}")


def _say(text: str) -> None:
    os.write(1, f"{text}\n".encode())  # at once, and whole


if __name__ == "__main__":
    run_party(main)
