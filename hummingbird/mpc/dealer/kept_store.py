"""Stores of sets of slots in place of a dealer, one set after the other; and the kept store, on one host (kept.py).

`SetStore` is what they have in common. A store of sets in an object store is in bucket_store.py.

The parties of a kept store use the sets in the order of their numbers. Before they use a set, each tells the others, in
one round, the number of its next set, how many of that set's slots it has used, and the set's random id. If one party
has used up and erased a set in which another still has slots, the other party erases it too. Then all parties continue
after the highest slot that any of them has used. So if some parties have used a slot, no party uses it again, in this
run or a later one.
"""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hummingbird import cost
from hummingbird.channel import interleave, meter
from hummingbird.channel.channel import Channel
from hummingbird.errors import AgreementError, DealerError
from hummingbird.mpc.correlations.request import Material, ReceiverTurn, Request
from hummingbird.mpc.dealer.folder import PAIR
from hummingbird.mpc.dealer.kept import DESCRIPTION, Kept, erase, is_there, numbers, set_folder
from hummingbird.mpc.dealer.store import OWNER, DealtConversation, DealtSlice, StoreDealer, aim_of, check_net
from hummingbird.mpc.dealer.supplies import Requests, Supplies
from hummingbird.mpc.session.lanes import LanePosition
from hummingbird.mpc.session.session import agree

_LOOK = 0.25  # seconds between searches for the next set
_WORDS = 4  # 64-bit numbers of a party's message on its next set: number, slots used, and the set's id (2)


class SetStore:
    """Base of the stores that a session uses set after set: it hands out slots of the sets that all parties have.

    A subclass finds the sets, in `_wait_for`, `_go_on` and `_waiting`. All parties use the same sets in one order.
    channel: to the other parties.
    where: the store's name in errors.
    kept: what all sets are dealt for.
    place: this process's party and lane.
    timeout: seconds to wait for a set that is needed.
    device: where the shares are needed.
    Raises DealerError if the store is for other parties or lanes, and AgreementError if the parties have different
    stores.
    """

    def __init__(
        self,
        channel: Channel,
        where: str,
        kept: Kept,
        place: LanePosition,
        timeout: float,
        device: torch.device | str = "cpu",
    ) -> None:
        self.where, self._channel, self._place = where, channel, place
        self._timeout, self._device, self.kept = timeout, device, kept
        self.slice_shape, self.aim = kept.shape, aim_of(kept.maker, kept.facts)
        if (kept.parties, kept.lanes) != (place.parties, place.lanes):
            what = f"this store is kept for {kept.parties} parties of {kept.lanes} lanes"
            what = f"{what}, this run has {place.parties} of {place.lanes}"
            raise DealerError(what, where=where, hint="deal for these, with --parties and --lanes, at another place")
        agree(channel, "store", {"kept store": kept.id, "store's maker": kept.maker, **kept.facts})
        self._supplies = Supplies(_nothing, where, lambda size: timeout + (size + self._slot_bytes) / 1e6)
        self._sets: deque[Set] = deque()  # sets that all parties agreed on; the first one has slots left
        self._bound: dict[str, bytes] = {}  # by name: digests of what the sets must be made for
        self._leaving: list[Set] = []  # sets without slots left, whose last material is still used
        self._looking = threading.Lock()  # other threads read `slots_left`
        self._agreeing = False
        self.refill_seconds = 1.0  # seconds that dealing a set takes
        self._slot_bytes = 0  # bytes of a slot's corrections to this party

    def __repr__(self) -> str:
        return f"store {self.where}"

    # How much there is ------------------------------------------------------------------------------------------------

    @property
    def slots_left(self) -> int:
        """For how many more slices there is material, counting sets that the parties have yet to agree on."""
        with self._looking:
            return self._agreed + self.kept.slots * self._waiting()

    @property
    def _agreed(self) -> int:
        return sum(store.slots_left for store in self._sets)

    def _waiting(self) -> int:
        """Return how many sets there are that the parties have yet to agree on."""
        raise NotImplementedError

    def admit(self, facts: dict[str, str], shapes: Sequence[tuple[int, ...]]) -> None:
        """Wait until this store has material for all slices of a batch. All parties must call it at the same point.

        facts: of the net that is to run, a text for each name. shapes: the shape of each slice.

        Each search for the next set takes 1 round. Raises DealerError if the store was dealt for another net or another
        shape, or if the material does not come in time.
        """
        check_net(self.kept.facts, self.kept.shape, facts, shapes, self.where)
        if facts["weights"] != "public":
            self.bind(OWNER, facts["weights"].encode())
        self.sweep()
        while self._agreeing:  # another computation agrees at this moment, and has passed its turn on
            interleave.pass_on()
        self._agreeing = True
        try:
            self._wait_for(len(shapes))
        finally:
            self._agreeing = False

    def _wait_for(self, slots: int) -> None:
        """Agree with all parties on sets until they have `slots` slots left. Raises DealerError if none comes in time.

        It may agree on one set more, so that its material is made ahead.
        """
        raise NotImplementedError

    def _late(self, slots: int, hint: str) -> DealerError:
        return DealerError(
            f"the store holds material for {self._agreed} more slices of {self.kept.shape[0]}, "
            f"{slots} are needed, and no set came for {self._timeout:.0f} s",
            where=self.where,
            hint=hint,
        )

    def _add(self, found: Set) -> None:
        """Add a set on which all parties have agreed, and begin to make its material."""
        for name, digest in self._bound.items():
            found.bind(name, digest)
        with self._looking:
            self._sets.append(found)
        self.refill_seconds = max(1.0, found.header.seconds)
        self._slot_bytes = found.slot_bytes
        self._sets[0].work_ahead()

    def _words(self, word: list[int]) -> dict[int, list[int]]:
        """Send the same message to every party, and receive theirs; return all messages by rank, this party's included.

        word: this party's message, four numbers.
        Cost: 1 round, during which other computations run.
        """
        channel = self._channel
        with meter.layer("store", "next set", cost.opening(channel.parties, 8 * _WORDS)):
            received = channel.exchange(torch.tensor(word, dtype=torch.int64))
        return {channel.rank: word, **{peer: theirs.tolist() for peer, (theirs,) in received.items()}}

    # Handing out ------------------------------------------------------------------------------------------------------

    def reserve(self, requests: Requests | None) -> DealtSlice:
        """Take the next slot for one slice; return its material, of which the slice asks for one piece after the other.

        requests: those that the slice will make, in order; None if they are not known yet.
        Raises DealerError if there is no slot left, or if the slot was dealt for other requests.
        """
        if not self._sets:
            raise DealerError("all slots are used", where=self.where, hint="`admit` waits for more")
        slot = self._sets[0].reserve(requests)
        self._leave_used()
        return slot

    def converse(self, facts: dict[str, str], steps: Sequence[Requests] | None) -> DealtConversation:
        """Take the next slot for a conversation; return its material, which is read step after step.

        facts, steps: as `StoreDealer.converse` takes them. All parties must call this at the same point.
        Waits for a slot as `admit` does, with the same cost and errors.
        """
        self.admit(facts, [self.kept.shape])
        found = self._sets[0].converse(facts, steps)
        self._leave_used()
        return found

    def _leave_used(self) -> None:
        """Go on with the next set if the first one has no slot left."""
        if not self._sets[0].slots_left:
            with self._looking:
                self._leaving.append(self._sets.popleft())
            if self._sets:
                self._sets[0].work_ahead()

    def correlation(self, request: Request[Any]) -> Material:
        """Raise DealerError for every request.

        This method is for material outside of slices, such as masks for private weights, which sets do not
        have.
        """
        raise DealerError(
            f"the store has nothing for {request} outside of a net's slices",
            where=self.where,
            hint="functions of CrypTen's own need a dealer: hummingbird.init(dealer=...)",
        )

    def own(self, key: int, weight: Tensor) -> None:
        """Do nothing: two parties made the material with the weights. `bind` compares these with others."""

    def bind(self, name: str, digest: bytes) -> None:
        """Compare the digest of private weights, or of their owner's name, with that of every set, those to come too.

        Two parties have made the sets with these weights (mpc/pair/keeping.py). Raises DealerError if a set was made
        with others; `admit` does so for a set that comes later. name: of the entry in the sets' ledgers.
        """
        self._bound[name] = digest
        for store in self._sets:
            store.bind(name, digest)

    def stay(self) -> None:
        """Erase this party's part of the sets that are used up. A service calls this while it waits for requests."""
        self.sweep()

    def sweep(self) -> None:
        """Erase this party's part of the sets without unused slots, once all their material is handed out."""
        for store in [store for store in self._leaving if store.spent]:
            erase(store.folder)  # before the lock is released
            store.close()
            with self._looking:
                self._leaving.remove(store)

    def close(self) -> None:
        """Release all sets that this party holds, and erase the ones that are used up. Never raises.

        May be called twice.
        """
        with contextlib.suppress(DealerError):
            self.sweep()
        self._supplies.close("the store is closed")
        for store in (*self._sets, *self._leaving):
            store.close()


class KeptStore(SetStore):
    """A kept store, for one lane of this party: a session takes its material from one set of slots after the other.

    `deal --keep` adds the sets; all parties use them in the same order. The constructor waits for the first one.
    root: the folder of kept.json. The other arguments are those of `SetStore`.
    Raises its errors; DealerError, too, if the folder is in use, or gets no set in time; and PeerError.
    """

    def __init__(
        self, channel: Channel, root: Path, place: LanePosition, timeout: float, device: torch.device | str = "cpu"
    ) -> None:
        self.folder = root
        try:
            kept = Kept.read((root / DESCRIPTION).read_bytes(), root / DESCRIPTION)
        except OSError as error:
            raise DealerError(f"{error.strerror}", where=str(root / DESCRIPTION), hint="is it readable?") from None
        super().__init__(channel, str(root), kept, place, timeout, device)
        self._there: set[int] = set()  # numbers of sets in the folder: only this process erases its part of them
        try:
            self._finish_erasing()
            self._wait_for(1)
        except BaseException:
            self.close()
            raise

    def _finish_erasing(self) -> None:
        """Finish erasing the sets that an earlier process of this lane had begun to erase when it was killed."""
        for number in numbers(self.folder):
            if not is_there(self._part(number)):
                erase(self._part(number))

    def _part(self, number: int) -> Path:
        return self.kept.part(self.folder, number, self._place.party, self._place.lane)

    def __repr__(self) -> str:
        return f"kept store {self.folder}"

    def _waiting(self) -> int:
        return len(self._unopened())

    def _unopened(self) -> list[int]:
        """Return the numbers of the sets in the folder that this party has not opened, ascending."""
        opened = {store.number for store in (*self._sets, *self._leaving)}
        try:
            found = [number for number in numbers(self.folder) if number not in opened]
        except OSError as error:
            raise DealerError(f"{error.strerror}", where=str(self.folder), hint="is the folder still there?") from None
        self._there = {n for n in found if n in self._there or is_there(self._part(n))}
        return [number for number in found if number in self._there]

    def _wait_for(self, slots: int) -> None:
        looks = max(1, round(self._timeout / _LOOK))  # counted, so that all parties give up after the same look
        while self._agreed < slots:
            if self._go_on():
                continue
            looks -= 1
            if looks < 0:
                raise self._late(slots, _MORE if self.kept.maker == PAIR else _KEEP)
            time.sleep(_LOOK)
        if self._agreed == slots:  # to make the next slot's material ahead, if there is a set
            self._go_on()

    # What the parties agree on ----------------------------------------------------------------------------------------

    def _go_on(self) -> bool:
        """Agree with all parties on the next set, and open this party's part of it; return whether that succeeded.

        It does not if some party does not have the set yet. Takes a round, and one more for each set that some party
        has used up already; such a set is erased.
        """
        while True:
            mine = self._open_next()
            try:
                words = self._tell([0] * _WORDS if mine is None else [mine.number, mine.next_slot, *mine.id])
                last, used = max(number for number, *_ in words.values()), max(word[1] for word in words.values())
                if mine is None or not all(number for number, *_ in words.values()):
                    return False
                if all(number == last for number, *_ in words.values()):
                    self._compare(words)
                    mine.skip_to(used)
                    if mine.slots_left:
                        self._add(mine)
                        return True
                    last += 1  # used up
                if mine.number < last:
                    erase(mine.folder)
            finally:
                if mine is not None and mine not in self._sets:
                    mine.close()

    def _open_next(self) -> Set | None:
        with self._looking:
            waiting = self._unopened()
        if not waiting:
            return None
        self._there.discard(waiting[0])
        path, how = set_folder(self.folder, waiting[0]), (self._place, self._timeout, self._device, self._supplies)
        return Set(path, waiting[0], self.kept, *how)

    def _tell(self, word: list[int]) -> dict[int, list[int]]:
        """Exchange messages on the next set, as `_words` does.

        word: the number of this party's next set, how many slots of the set it has used, and the set's id as two
            numbers; all 0 without a set.
        Raises AgreementError for a message with impossible numbers.
        """
        channel, words = self._channel, self._words(word)
        for peer, (number, used, *_) in words.items():
            if number < 0 or not 0 <= used <= self.kept.slots:
                what = f"{channel.names[peer]} says that it has used {used} slots of set {number}"
                raise AgreementError(what, where=str(self.folder), hint="all parties must run the same release")
        return words

    def _compare(self, words: dict[int, list[int]]) -> None:
        number, _, *mine = words[self._channel.rank]
        for peer, (_, _, *theirs) in sorted(words.items()):
            if theirs != mine:
                ours, other = (f"{first % 2**64:016x}{second % 2**64:016x}" for first, second in (mine, theirs))
                what = f"set {number} is {ours} at {self._channel.name}, and {other} at {self._channel.names[peer]}"
                one = "each party uses the folder that the two made together" if self.kept.maker == PAIR else _ONE
                raise AgreementError(what, where=str(self.folder), hint=f"{one}: was it copied?")


_ONE = "all parties of a kept store use the one folder"
_KEEP = "does `deal --keep K` run, with room on the disk, and K as large as what is needed?"
_MORE = "make more with `deal --pair`, at both parties"
STORES = (StoreDealer, SetStore)  # dealers whose material is limited


class Set(StoreDealer):
    """One set of slots: this party's part of it for one lane, used as a store.

    path: the set's folder, as `StoreDealer` takes it.
    number: the set's.
    kept: the description that all sets must match.
    place: this process's party and lane.
    timeout: seconds that a request waits for material.
    device: where the shares are needed.
    shared: the background thread that makes the material of all sets.
    Raises the errors of `StoreDealer`, and DealerError if the set does not match the description.
    """

    def __init__(
        self,
        path: Path,
        number: int,
        kept: Kept,
        place: LanePosition,
        timeout: float,
        device: torch.device | str,
        shared: Supplies,
    ) -> None:
        party, parties, lane, lanes, _ = place
        how: dict[str, Any] = {"lane": lane, "lanes": lanes, "timeout": timeout, "device": device, "shared": shared}
        super().__init__(path, rank=party, parties=parties, **how)
        self.number = number
        found = self.header.slots, self.header.shape, self.header.facts, self.header.maker
        if found != (kept.slots, kept.shape, kept.facts, kept.maker):
            self.close()
            what = f"set {number} was dealt for other things than the description of its store says"
            raise DealerError(what, where=str(self.folder), hint="delete this store, and deal another one")

    @property
    def id(self) -> tuple[int, int]:
        """The set's random name, 128 bits, as two signed 64-bit words."""
        first, second = struct.unpack(">qq", bytes.fromhex(self.header.set_id))
        return first, second


def _nothing(turns: Sequence[ReceiverTurn], requests: Requests) -> Iterator[Material]:
    raise AssertionError("every set makes its own material")
