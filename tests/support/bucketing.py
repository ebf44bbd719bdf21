"""Sets of squares in an object store, and two parties that use them, in one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hummingbird.errors import HummingbirdError, PeerError
from hummingbird.mpc.dealer.bucket_store import BucketStore, deal_sets
from hummingbird.mpc.dealer.sealing import KeyPair, new_key
from hummingbird.mpc.session.lanes import LanePosition
from tests.support.keeping import FACTS, REQUEST, SHAPE, SLOTS, TwoStores
from tests.support.parties import channels, together
from tests.support.patience import HANG


class Keys:
    """Keys of a dealer and of two parties, in files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dealer = new_key(folder / "dealer.key")
        self.parties = [new_key(folder / f"party-{rank}.key", [self.dealer.public]) for rank in range(2)]

    def deal(self, url: str, sets: int = 1, dealer: KeyPair | None = None, **changed: Any) -> None:
        """Deal sets of `SLOTS` slots; changed: what is dealt otherwise."""
        what = {"steps": [[REQUEST] * 2], "shape": SHAPE, "slots": SLOTS, "parties": 2, "facts": FACTS, "lanes": 1}
        what |= {"cipher": "aes-128-ctr", **changed}
        deal_sets(url, sets, dealer or self.dealer, [key.public for key in self.parties], **what)


class BucketParties(TwoStores):
    """Both parties of a run, until `close`; each call runs at both, on threads."""

    def __init__(self, url: str, keys: Keys, timeout: float = HANG, lane: int = 0, lanes: int = 1) -> None:
        self.channels = channels(2)
        places = [LanePosition(rank, 2, lane, lanes) for rank in range(2)]
        made: list[BucketStore | None] = [None, None]

        def open_one(rank: int) -> None:
            made[rank] = BucketStore(self.channels[rank], url, keys.parties[rank], places[rank], timeout)

        try:
            self._both(open_one)
        except BaseException:
            for store in made:
                if store is not None:
                    store.close()
            raise
        self.stores = [store for store in made if store is not None]

    def admit(self, slices: int = 1) -> None:
        self._both(lambda rank: self.stores[rank].admit(FACTS, [SHAPE] * slices))

    def _both(self, call: Callable[[int], object]) -> None:
        """Call a function at both parties; raise the error of the one that failed first, and then left."""
        errors: list[HummingbirdError] = []

        def guarded(rank: int) -> None:
            try:
                call(rank)
            except HummingbirdError as error:
                errors.append(error)
                self.channels[rank].close()  # as a party that ends

        together([lambda rank=rank: guarded(rank) for rank in range(2)])
        if errors:
            raise next((error for error in errors if not isinstance(error, PeerError)), errors[0])
