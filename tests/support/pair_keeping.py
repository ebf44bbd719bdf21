"""Two parties that make a store together, and use it, as threads of one process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hummingbird.mpc.correlations.request import Request
from hummingbird.mpc.dealer.kept_store import KeptStore
from hummingbird.mpc.pair.dealer import PairDealer
from hummingbird.mpc.pair.keeping import PairKeeper
from hummingbird.mpc.protocols.boolean import And
from hummingbird.mpc.protocols.lift import Lifting
from hummingbird.mpc.session.lanes import LanePosition
from tests.support.pairs import columns, wrong
from tests.support.parties import channels, together
from tests.support.patience import HANG

REQUESTS: list[Request[Any]] = [Lifting(40, 20, 36), And(2, 50)]
SHAPE = (4, 6)
FACTS = {"architecture": "a", "bits": "b", "plan": "p", "aim": "pair", "protocol": "masked", "weights": "public"}
PLACES = [LanePosition(rank, 2, 0, 1) for rank in range(2)]


def parts(root: Path) -> list[Path]:
    """Both parties' folders."""
    return [root / f"party-{rank}" / "lane-0" for rank in range(2)]


def make(
    roots: Sequence[Path],
    sets: int,
    *each: dict[str, Any],
    timeout: float = HANG,
    at: Callable[[int, int, threading.Event], object] = lambda rank, number, ended: None,
    prepare: Callable[[int, PairDealer], object] = lambda rank, dealer: None,
    **changed: Any,
) -> list[BaseException | PairKeeper]:
    """Both parties make sets; return for each its keeper, closed, or its error, which ends its connections.

    each: further arguments of party 0 and of party 1. at: called after each set with the party's rank, the set's number
    and an event, which is set once a party has ended. prepare: called with the rank and the dealer, before any set.
    """
    words, materials = channels(2, timeout), channels(2, timeout)
    ended = threading.Event()
    what = {"requests": REQUESTS, "shape": SHAPE, "slots": 2, "facts": FACTS, **changed}

    def run(rank: int) -> BaseException | PairKeeper:
        dealer = None
        try:
            dealer = PairDealer(materials[rank])
            prepare(rank, dealer)
            own = {**what, **(each[rank] if each else {})}
            keeper = PairKeeper(words[rank], dealer, roots[rank], PLACES[rank], **own)
            with contextlib.closing(keeper):
                keeper.make(sets, say=lambda number, seconds: at(rank, number, ended))
            return keeper
        except Exception as error:
            words[rank].abort(str(error))
            return error
        finally:
            if dealer is not None:
                dealer.close()
            ended.set()

    found = together([lambda rank=rank: run(rank) for rank in range(2)])
    for channel in words:
        channel.close()
    return found


def made(root: Path, sets: int, **changed: Any) -> list[Path]:
    """Both parties' folders, with so many more sets."""
    for found in make(parts(root), sets, **changed):
        if isinstance(found, BaseException):
            raise found
    return parts(root)


def use(
    roots: Sequence[Path], slots: int, requests: Sequence[Request[Any]] = REQUESTS, timeout: float = 1.0
) -> list[tuple[str, int]]:
    """Open both parties' stores, and take the material of so many slots, which must fit together; each slot's names."""
    ends = channels(2, HANG)

    def run(rank: int) -> tuple[list[tuple[str, int]], list[list[Any]]]:
        store = KeptStore(ends[rank], roots[rank], PLACES[rank], timeout)
        try:
            names, materials = [], []
            for _ in range(slots):
                store.admit(FACTS, [SHAPE])
                slot = store.reserve(requests)
                materials.append([slot.correlation(request) for request in requests])
                names.append((slot._use._store.header.set_id, slot.number))
            return names, materials
        finally:
            store.close()
            ends[rank].close()

    (mine, first), (theirs, second) = together([lambda rank=rank: run(rank) for rank in range(2)])
    assert mine == theirs
    for pair in zip(first, second, strict=True):
        for request, materials in zip(requests, zip(*pair, strict=True), strict=True):
            assert wrong(request, columns(request, materials)) == [], str(request)
    return mine
