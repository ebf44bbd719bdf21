"""Two parties make a store together: each writes its own folder, one set of slots after the other.

    DIR/party-RANK/lane-LANE/   a kept store of one lane of one party (mpc/dealer/kept.py)
        kept.json               what all sets are for, and the store's id; locked while sets are made
        set-000007/             one set: this party's shares of all fields (mpc/dealer/folder.py)
        dealing/                an unfinished set

The store's id is a hash of a random nonce of each party and of all facts, and a set's id is a hash of the store's id,
of the set's number and of two more nonces. So stores, and sets, of different pairs or runs never have the same id.

A set takes two rounds beside its material. In the first the parties agree on its number and on whether both have room;
in the second each says that all of the set is on its disk. Only then do they give it its name. A party that is killed
before leaves an unfinished set, which the next run deletes. If it is killed between the two names, one party alone has
the set: the parties burn it when they use the next one (mpc/dealer/kept_store.py). The numbers go on behind the highest
one that either party has.

Material of private weights (mpc/protocols/owned.py) serves no other weights. So the ledger of each set has a keyed hash
of the weights' digest at their owner, and at both parties one of the owner's name (`PairDealer.bound`).
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
import shutil
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hummingbird import disk, records
from hummingbird.channel.channel import Channel
from hummingbird.errors import AgreementError, DealerError, DiskError, HummingbirdError, InputError, PeerError
from hummingbird.mpc.correlations.request import Request
from hummingbird.mpc.dealer.deal import SetWriter
from hummingbird.mpc.dealer.folder import CORRECTIONS, LEDGER, PAIR, SEED, Header, kinds_of, places
from hummingbird.mpc.dealer.kept import DEALING, DESCRIPTION, SPARE, Kept, locked, numbers, requests_digest, set_folder
from hummingbird.mpc.dealer.store import bound
from hummingbird.mpc.dealer.supplies import Supply
from hummingbird.mpc.pair.dealer import PairDealer
from hummingbird.mpc.session.lanes import LanePosition
from hummingbird.mpc.session.session import agree
from hummingbird.prg import CIPHERS, new_seed
from hummingbird.slots import Ledger

SET_BYTES = 32 << 20  # of a set that has several slots: a kill loses the set that is being made
_AHEAD = 2  # slots whose material is reserved: one is written while the next one is made
_CIPHER = "aes-128-ctr"  # for the length of the seed, from which only the keys of a set's file follow
_NONCE = 32
_SAME = "name the folders of one store at both parties, or new ones"
_RELEASE = "both parties must run `deal --pair` of the same release"
_ROOM = "make room on the disk of both parties, and run again: whole sets stay"
_STORE = re.compile(f"(-|[0-9a-f]{{32}}) ([01]) ([0-9a-f]{{{2 * _NONCE}}})")  # id, whether there are sets, nonce
_SET = re.compile(f"([0-9]{{1,18}}) ([0-9]{{1,18}}) ([01]) ([0-9a-f]{{{2 * _NONCE}}})")  # last, sets, room, nonce


class PairKeeper:
    """One lane of one of two parties that make a store together; `make` makes further sets at both.

    Both parties make this object at the same time, with the same arguments but for the folder: 2 rounds.
    channel: to the other party, for messages beside the material. dealer: makes the material.
    root: this lane's own folder; it may have sets of an earlier run. place: this process's party and lane.
    requests: of a slot. shape: of a slice's input. slots: in each set of a new store; a store that is there keeps its
        own number, which `kept` has. facts: what the net must be like (`store.material_facts`).
    Raises InputError if the folder is for other arguments or holds other files, AgreementError if the parties differ in
    an argument or have folders of different stores, and DealerError if another keeper is at work here.
    """

    def __init__(
        self,
        channel: Channel,
        dealer: PairDealer,
        root: Path,
        place: LanePosition,
        *,
        requests: Sequence[Request[Any]],
        shape: Sequence[int],
        slots: int,
        facts: dict[str, str],
    ) -> None:
        self.root, self._channel, self._dealer, self._place = root, channel, dealer, place
        self._requests, self._last = list(requests), 0
        self._file = locked(root)
        try:
            shared: dict[str, Any] = {
                "shape": tuple(shape),
                "parties": 2,
                "lanes": place.lanes,
                "cipher": _CIPHER,
                "maker": PAIR,
            }
            wanted = Kept("0" * 32, dict(facts), slots=slots, requests=requests_digest([self._requests]), **shared)
            self.kept = self._described(wanted)
            shutil.rmtree(root / DEALING, ignore_errors=True)
        except BaseException:
            self.close()
            raise

    def _described(self, wanted: Kept) -> Kept:
        """Agree with the other party on the store; return its description, which the file has then."""
        told = {name: str(value) for name, value in records.plain(wanted).items() if name not in ("id", "facts")}
        agree(self._channel, "deal", {**told, **wanted.facts})
        text, there, found = self._file.read(self._file.size, 0), bool(numbers(self.root)), None
        if text.endswith(b"\n"):
            found = Kept.read(text, self.root / DESCRIPTION)
        own = "-" if found is None else found.id
        words = self._words(f"{own} {int(there)} {secrets.token_hex(_NONCE)}", _STORE)
        ids = [word[0] for word in words]
        if found is not None and ids[0] == ids[1]:
            self._compare(found, wanted)
            return found
        if any(word[1] == "1" for word in words):  # a folder without sets is as good as a new one
            names = ["no store" if name == "-" else f"the store {name}" for name in ids]
            what = f"the parties disagree on the store: party 0 has {names[0]}, party 1 has {names[1]}"
            raise AgreementError(what, where=str(self.root), hint=_SAME)
        kept = replace(wanted, id=_digest(words[0][2], words[1][2], wanted.line().decode()))
        self._file.cut(0)
        self._file.append(kept.line())
        disk.sync(self.root)
        return kept

    def _compare(self, found: Kept, wanted: Kept) -> None:
        for name in ("shape", "lanes", "maker", "facts", "requests"):
            mine, theirs = (str(getattr(kept, name)) for kept in (wanted, found))
            if mine != theirs:
                what = f"this store is kept for other {name}: {theirs[:80]}, and not {mine[:80]}"
                hint = "name another folder, or give the options with which this one was begun"
                raise InputError(what, where=str(self.root), hint=hint)

    def _words(self, text: str, form: re.Pattern[str]) -> list[tuple[str, ...]]:
        """Exchange texts of this form; return the groups of both, by rank. 1 round."""
        told = {self._place.party: text, **self._channel.exchange_text(text)}
        found = [form.fullmatch(told[rank]) for rank in range(2)]
        if found[0] is None or found[1] is None:
            raise AgreementError("a party sent another message", where=str(self.root), hint=_RELEASE)
        return [match.groups() for match in found if match is not None]

    @property
    def set_bytes(self) -> int:
        """Size in bytes of this party's shares in one set."""
        return self.kept.slots * slot_bytes(self._requests)

    def make(
        self,
        sets: int,
        progress: Callable[[int], object] = lambda images: None,
        say: Callable[[int, float], object] = lambda number, seconds: None,
    ) -> None:
        """Make sets together with the other party, which makes the same call. 2 rounds a set, beside its material's.

        sets: their number. progress: called with a slice's number of images after each slice. say: called after each
        set with its number and the seconds that it took.
        Raises DiskError if this party's disk is full, DealerError or PeerError if the other party fails, and
        AgreementError if it does something else. What is whole at both parties stays.
        """
        ahead, left = deque[Supply](), sets * self.kept.slots
        for _ in range(min(_AHEAD, left)):
            ahead.append(self._reserved())
        left -= len(ahead)

        def slot() -> Supply:
            nonlocal left
            if left:
                ahead.append(self._reserved())
                left -= 1
            return ahead.popleft()

        for at in range(sets):
            started, dealing = time.perf_counter(), self.root / DEALING
            number, set_id = self._begin(sets - at)
            try:
                self._write(dealing, set_id, slot, progress, started)
                self._agree_on(set_id)
                disk.publish(dealing, set_folder(self.root, number))
            except BaseException as error:
                shutil.rmtree(dealing, ignore_errors=True)
                if isinstance(error, OSError):
                    what = f"a set cannot be written: {error.strerror}"
                    raise DiskError(what, where=str(self.root), hint=_ROOM) from None
                if isinstance(error, DealerError):
                    raise self._cause(error) from None
                raise
            self._last = number
            say(number, time.perf_counter() - started)

    def _reserved(self) -> Supply:
        supply = self._dealer.reserve(self._requests)
        assert isinstance(supply, Supply)
        return supply

    def _begin(self, sets: int) -> tuple[int, str]:
        """Agree on the next set, of `sets` that are left; return its number and its id. 1 round.

        Raises DiskError if the disk of this party or of the other one has no room.
        """
        last, free = max([self._last, *numbers(self.root)]), shutil.disk_usage(self.root).free
        room, nonce = free >= self.set_bytes + SPARE, secrets.token_hex(_NONCE)
        words = self._words(f"{last} {sets} {int(room)} {nonce}", _SET)
        if words[0][1] != words[1][1]:
            what = f"party 0 makes {words[0][1]} more sets, party 1 makes {words[1][1]}"
            raise AgreementError(what, where=str(self.root), hint="give both parties the same --images")
        if not room:
            size, left = (f"{size / 1e6:,.1f} MB" for size in (self.set_bytes + SPARE, free))
            raise DiskError(f"the disk is full: {size} are needed, {left} are free", where=str(self.root), hint=_ROOM)
        if any(word[2] == "0" for word in words):
            other = self._channel.names[1 - self._place.party]
            raise DiskError(f"the disk of {other} is full", where=str(self.root), hint=_ROOM)
        number = 1 + max(int(word[0]) for word in words)
        return number, _digest(self.kept.id, str(number), *(word[3] for word in words))

    def _write(
        self,
        folder: Path,
        set_id: str,
        slot: Callable[[], Supply],
        progress: Callable[[int], object],
        started: float,
    ) -> None:
        """Write one set into a new folder, all of it on the disk. slot: returns the next slot's material."""
        kept, place, seed = self.kept, self._place, new_seed(CIPHERS[_CIPHER])
        folder.mkdir(mode=0o700)
        disk.create(folder / SEED, [seed], mode=disk.PRIVATE)
        kinds, order = kinds_of([self._requests])
        own = (set_id, place.party, place.parties, place.lane, place.lanes)
        header = Header(*own, kept.facts, kept.shape, kept.slots, (), kinds, order, 0.0, "", PAIR)
        with disk.opened(folder / CORRECTIONS, mode=disk.PRIVATE) as file:
            writer = SetWriter(file, seed, header)
            for region in header.regions:
                supply = slot() if region else None
                writer.begin(region)
                for request in header.requests(region):
                    shares = supply.correlation(request).shares  # type: ignore[union-attr]
                    writer.add([item.sent(shares[name]) for name, item in request.parts.items()])
                writer.end()
                if region:
                    progress(kept.shape[0])
            disk.flush(file)
        writer.finish(folder, time.perf_counter() - started)
        with contextlib.closing(Ledger(folder / LEDGER, set_id)) as ledger:
            for name, digest in self._dealer.bound.items():
                ledger.bind(name, bound(seed, digest))
        disk.sync(folder)

    def _agree_on(self, set_id: str) -> None:
        """Wait until the other party has all of a set on its disk. 1 round."""
        told = self._channel.exchange_text(set_id)[1 - self._place.party]
        if told != set_id:
            what = f"the set {set_id} is another one at {self._channel.names[1 - self._place.party]}"
            raise AgreementError(what, where=str(self.root), hint=_RELEASE)

    def _cause(self, error: DealerError) -> HummingbirdError:
        """Return the reason that the other party gave for its end, if it did; else the error of the material."""
        if self._channel.loss():
            try:
                self._channel.exchange_text("")
            except PeerError as why:
                return why
        return error

    def close(self) -> None:
        """Release the folder."""
        self._file.close()


def slot_bytes(requests: Sequence[Request[Any]]) -> int:
    """Return the bytes of a party's file for one slot. requests: the slot's."""
    return places(requests, whole=True)[1]


def slots_of_a_set(slots: int, size: int) -> int:
    """Return how many slots each set has if `slots` are wanted in sets of equal size: at most `SET_BYTES`, or one slot.

    size: bytes of a party's file for a slot.
    """
    sets = -(-slots // max(1, SET_BYTES // max(1, size)))
    return -(-slots // sets)


def _digest(*parts: str) -> str:
    """Return a hash of texts, 32 hexadecimal digits."""
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
