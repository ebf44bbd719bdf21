"""Material through an object store: a dealer writes sets of slots, and parties use them, one set after the other.

A dealer writes each set first for the last party and last for party 0 (bucket.py says where). Party 0 claims a set and
tells its id to the others, who claim it too, each in its own bucket, and all read it. When every party has said that it
has the set, they use it. A set that one of them does not get is burned: nobody uses it, and its claims stay.

The parties tell each other in messages of 4 numbers, in lockstep; each takes 1 round. A party erases the files of a
set as soon as it has opened them, before it uses a slot. So a process that is killed leaves no material that has hidden
anything: only files of sets that it was reading, which nobody will use.
"""

from __future__ import annotations

import hashlib
import shutil
import struct
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hummingbird import disk
from hummingbird.channel.channel import Channel
from hummingbird.errors import AgreementError, DealerError, InputError
from hummingbird.mpc.dealer.bucket import Bucket, packed
from hummingbird.mpc.dealer.deal import deal
from hummingbird.mpc.dealer.folder import lane_folder, read_header
from hummingbird.mpc.dealer.kept import Kept, erase, requests_digest
from hummingbird.mpc.dealer.kept_store import Set, SetStore
from hummingbird.mpc.dealer.sealing import KeyPair, seal, unseal
from hummingbird.mpc.dealer.set_reader import LOST, READY, SetReader
from hummingbird.mpc.dealer.store import DealtConversation, DealtSlice
from hummingbird.mpc.dealer.supplies import Requests
from hummingbird.mpc.session.lanes import LanePosition

AHEAD_BYTES = 256 << 20  # a larger set is read only when it is needed
_LOOK = 0.05  # seconds between two messages about a set that is being read
_TEMPORARY = "hummingbird-sets-"  # prefix of the folders of dealers and parties in the folder for temporary files
_SEALED = "sealed"
_PREFIX = "deal under a prefix of its own for each net and release"


class BucketStore(SetStore):
    """Sets of slots in an object store, for one lane of this party.

    url: as `Bucket` takes it. key: this party's keys. The other arguments are those of `SetStore`. No set is claimed
    before `admit` needs one. From the second batch on, one set is read ahead if it has at most `AHEAD_BYTES`.
    Raises the errors of `SetStore` and `Bucket`, and DealerError if nothing has been dealt there for this key, or if
    the object store ignores If-None-Match.
    """

    def __init__(
        self,
        channel: Channel,
        url: str,
        key: KeyPair,
        place: LanePosition,
        timeout: float,
        device: torch.device | str = "cpu",
    ) -> None:
        self._bucket = Bucket(url, place.party, place.lane, timeout)
        self._bucket.check()
        super().__init__(
            channel, self._bucket.where, description(self._bucket, key, place.party), place, timeout, device
        )
        self._root = Path(tempfile.mkdtemp(prefix=_TEMPORARY))  # mode 0700
        self._named: deque[str] = deque()  # sets that party 0 has named and that are not settled, at all parties alike
        self._count = 0  # of sets that were settled
        self._least = 0  # sets in waiting, at the party that sees the fewest
        self._begun = False  # whether a slot was taken
        self.burned = 0  # sets that one party did not get
        self._told: dict[int, list[int]] = {}
        try:
            self._reader = SetReader(self._bucket, key, place.party, place.lane, self._root)
        except BaseException:
            shutil.rmtree(self._root, ignore_errors=True)
            raise
        try:
            self._go_on(0)
        except BaseException:
            self.close()
            raise

    def _waiting(self) -> int:
        return len(self._named) + self._least

    def _wait_for(self, slots: int) -> None:
        looks = left = max(1, round(self._timeout / _LOOK))  # counted, so that all parties give up after the same look
        while self._agreed < slots:
            before = self._told
            if self._go_on(-(-(slots - self._agreed) // self.kept.slots)):
                left = looks
                continue
            left = looks if self._told != before else left - 1
            if left < 0:
                raise self._late(slots, "does a dealer fill this bucket, and those of all parties?")
            time.sleep(_LOOK)
        if self._begun and self._agreed < slots + self.kept.slots:
            self._go_on(int(self._reader.set_bytes <= AHEAD_BYTES))

    def _go_on(self, wanted: int) -> bool:
        """Tell the other parties where this one stands, and settle a set if all have read it; 1 round.

        wanted: how many sets more are to be read; only party 0 reads it. Returns whether a set was named or settled.
        """
        reader, head = self._reader, self._named[0] if self._named else None
        name = None
        if self._place.party == 0:
            reader.want(wanted)
            name = reader.chosen()
        state = 0 if head is None else reader.state(head)
        words = self._told = self._words([*_numbers(name), state, reader.waiting])
        for peer, (first, second, theirs, waiting) in words.items():
            if (peer and (first or second)) or theirs < 0 or (head is None) != (theirs == 0) or waiting < 0:
                what = f"party {peer} sent {theirs} and {waiting} on its sets"
                raise AgreementError(what, where=self.where, hint="all parties must run the same release")
        self._least = min(waiting for *_, waiting in words.values())
        states = [state for _, _, state, _ in words.values()]
        moved = head is not None and all(state in (READY, LOST) for state in states)
        if head is not None and moved:
            self._settle(self._named.popleft(), all(state == READY for state in states))
        if any(words[0][:2]):
            moved = True
            self._named.append(_id(words[0]))
            if self._place.party:
                reader.begin(self._named[-1])
        return moved

    def _settle(self, name: str, complete: bool) -> None:
        """Open the set `name` if all parties have it (`complete`), else burn it; its files go in both cases."""
        folder, found = self._reader.take(name), None
        self._count += 1
        try:
            if complete:
                path, how = folder.parent.parent, (self._place, self._timeout, self._device, self._supplies)
                found = Set(path, self._count, self.kept, *how)
                if found.header.set_id != name:
                    found.close()
                    what = f"the set {name} has the files of the set {found.header.set_id}"
                    raise DealerError(what, where=self.where, hint="deal with the release that the parties run")
        finally:
            erase(folder)  # what is open stays readable for this process
        if found is None:
            self.burned += 1
        else:
            self._add(found)

    def reserve(self, requests: Requests | None) -> DealtSlice:
        """Take the next slot for one slice, as `SetStore.reserve`; from now on a set is read ahead."""
        self._begun = True
        return super().reserve(requests)

    def converse(self, facts: dict[str, str], steps: Sequence[Requests] | None) -> DealtConversation:
        """Take the next slot for a conversation, as `SetStore.converse`; from now on a set is read ahead."""
        made = super().converse(facts, steps)
        self._begun = True
        return made

    def stay(self) -> None:
        """Look for new sets with the other parties, if there were none. A service calls this while it waits."""
        self.sweep()
        if not self.slots_left:
            self._go_on(0)

    def close(self) -> None:
        """Drop all sets that this process has claimed: their slots are lost. Never raises; may be called twice."""
        self._reader.close()
        super().close()
        shutil.rmtree(self._root, ignore_errors=True)


def _numbers(name: str | None) -> tuple[int, int]:
    """Return the id of a set, 32 hexadecimal digits, as two signed 64-bit numbers; zeros for None."""
    first, second = struct.unpack(">qq", bytes(16) if name is None else bytes.fromhex(name))
    return first, second


def _id(numbers: Sequence[int]) -> str:
    return struct.pack(">qq", *numbers[:2]).hex()


# What all sets are dealt for ------------------------------------------------------------------------------------------


def description(bucket: Bucket, key: KeyPair, party: int) -> Kept:
    """Read what the sets in an object store are dealt for. 2 requests.

    bucket: the place of a party's lane. key, party: the party's.
    Raises DealerError if nothing is dealt there, or for several nets, or for another key.
    """
    found = bucket.nets()
    if len(found) != 1:
        what = f"sets for {len(found)} nets are dealt here" if found else "nothing is dealt here"
        raise DealerError(what, where=bucket.where, hint=f"{_PREFIX}: python -m hummingbird deal --out URL")
    where = f"{bucket.where}/nets/{found[0]}"
    text = unseal([bucket.net(found[0])], key, name=found[0], party=party, lane=0, where=where)
    return Kept.read(b"".join(text), where)


# Dealing --------------------------------------------------------------------------------------------------------------


def deal_sets(
    url: str,
    sets: int,
    key: KeyPair,
    receivers: Sequence[bytes],
    *,
    progress: Callable[[int], object] = lambda images: None,
    say: Callable[[str], object] = lambda text: None,
    **what: Any,
) -> None:
    """Deal sets of slots into object stores, sealed for each party; several dealers may do so at the same time.

    url: as `Bucket` takes it. sets: their number, for each lane. key: this dealer's. receivers: the parties' public
    keys, by rank. progress: as `deal` takes it. say: called with a message for each set.
    what: the arguments steps, shape, slots, parties, facts, lanes and cipher of `deal`, for every set.
    Raises InputError if sets for another net are there, or for other numbers of parties than keys.
    """
    parties, lanes = what["parties"], what["lanes"]
    if len(receivers) != parties:
        hint = "deal --to PUB PUB: the public keys of all parties, by rank"
        raise InputError(f"{len(receivers)} keys for {parties} parties", where="--to", hint=hint)
    places = [[Bucket(url, rank, lane) for lane in range(lanes)] for rank in range(parties)]
    fields = {name: what[name] for name in ("facts", "shape", "slots", "parties", "lanes", "cipher")}
    kept = Kept("0" * 32, requests=requests_digest(what["steps"]), **fields)
    kept = replace(kept, id=hashlib.blake2b(kept.line(), digest_size=16).hexdigest())  # the same at all dealers
    text = kept.line()
    for rank, receiver in enumerate(receivers):
        bucket, owner = places[rank][0], {"name": kept.id, "party": rank, "lane": 0}
        if not (there := bucket.nets()):
            bucket.add_net(kept.id, b"".join(seal([text], len(text), key, receiver, **owner)))  # type: ignore[arg-type]
            there = bucket.nets()  # again: another dealer may have begun at the same time
        if there != [kept.id]:
            hint = f"{_PREFIX}, and for each --images"
            raise InputError("sets for another net, or of another size, are dealt here", where=bucket.where, hint=hint)
    for number in range(1, sets + 1):
        with tempfile.TemporaryDirectory(prefix=_TEMPORARY) as folder:
            root = Path(folder) / "set"
            seconds = deal(root, setup=[], progress=progress, **what)
            size = 0
            for lane in range(lanes):
                for rank in reversed(range(parties)):  # a set that party 0 can claim is complete
                    size += _put(places[rank][lane], lane_folder(root, rank, lane), key, receivers[rank])
        say(f"set {number} of {sets}: {size / 1e6:,.1f} MB for all parties, dealt in {seconds:.1f} s")


def _put(bucket: Bucket, folder: Path, key: KeyPair, receiver: bytes) -> int:
    """Seal and upload one party's and lane's files of a set; return the size in bytes. folder: with its files."""
    header, _ = read_header(folder)
    pieces, size = packed(folder)
    owner = {"name": header.set_id, "party": header.rank, "lane": header.lane}
    sealed = folder / _SEALED
    total = disk.create(sealed, seal(pieces, size, key, receiver, **owner), mode=disk.PRIVATE)  # type: ignore[arg-type]
    bucket.put(header.set_id, sealed)
    sealed.unlink()
    return total
