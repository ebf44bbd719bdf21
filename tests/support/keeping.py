"""A kept store of squares, its keeper, and two parties of it in one process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hummingbird.channel.channel import Channel
from hummingbird.errors import HummingbirdError
from hummingbird.mpc.dealer.kept import Keeper
from hummingbird.mpc.dealer.kept_store import KeptStore
from hummingbird.mpc.protocols.beaver import SquarePair
from hummingbird.mpc.session.lanes import LanePosition
from tests.support.parties import channels, together
from tests.support.patience import NEVER

REQUEST = SquarePair((8,))
SHAPE = (4, 6)
FACTS = {"architecture": "a", "bits": "b", "plan": "p", "aim": "latency", "protocol": "masked", "weights": "public"}
SLOTS = 3


def keeper(root: Path, **changed: Any) -> Keeper:
    """The keeper of a folder; changed: what it deals otherwise."""
    what = {"steps": [[REQUEST] * 2], "shape": SHAPE, "slots": SLOTS, "parties": 2, "facts": FACTS, "lanes": 1}
    return Keeper(root, **{**what, "cipher": "aes-128-ctr", **changed})


def dealt(root: Path, sets: int, **changed: Any) -> Path:
    """A kept store with so many more sets, and no keeper."""
    one = keeper(root, **changed)
    for _ in range(sets):
        one.add()
    one.close()
    return root


class TwoStores:
    """Both parties' stores of sets, whose slots fit together: `stores` and `channels`, by rank."""

    stores: Sequence[Any]
    channels: Sequence[Channel]

    def admit(self, slices: int = 1) -> None:
        facts = FACTS
        together([lambda store=store: store.admit(facts, [SHAPE] * slices) for store in self.stores])

    def use(self, slices: int = 1) -> list[tuple[str, int]]:
        """Reserve slices, and take their material, which must fit together; the set's id and slot of each."""
        self.admit(slices)
        pairs = [[store.reserve([REQUEST] * 2) for store in self.stores] for _ in range(slices)]
        used = []
        for pair in pairs:
            for _ in range(2):
                mine, theirs = (slot.correlation(REQUEST).shares for slot in pair)
                r = mine["r"] + theirs["r"]
                assert (r * r).equal(mine["square"] + theirs["square"])
            (one, other) = [(slot._use._store.header.set_id, slot.number) for slot in pair]
            assert one == other
            used.append(one)
        return used

    def close(self) -> None:
        for store, channel in zip(self.stores, self.channels, strict=True):
            store.close()
            channel.close()


class Parties(TwoStores):
    """Both parties of a run, until `close`; each call runs at both, on threads."""

    def __init__(self, *roots: Path, timeout: float = NEVER, lane: int = 0, lanes: int = 1) -> None:
        self.roots = roots if len(roots) == 2 else roots * 2
        self.channels = channels(2)
        places = [LanePosition(rank, 2, lane, lanes) for rank in range(2)]
        self.stores: list[KeptStore] = []
        made: list[KeptStore | None] = [None, None]

        def open_one(rank: int) -> None:
            try:
                made[rank] = KeptStore(self.channels[rank], self.roots[rank], places[rank], timeout)
            except HummingbirdError:
                self.channels[rank].close()
                raise

        try:
            together([lambda rank=rank: open_one(rank) for rank in range(2)])
        except BaseException:
            for store in made:
                if store is not None:
                    store.close()
            raise
        self.stores = [store for store in made if store is not None]
