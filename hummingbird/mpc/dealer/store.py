"""A store in place of a dealer: material for a number of slices or conversations, dealt in advance, for single use.

A *slot* is the material of one slice, or of one conversation. A party marks a slot in its ledger before it hands out
anything of the slot. At the start of a run the parties skip all slots that any of them has used, so that no slot is
used again: a conversation that was begun when a run ended is over. A conversation's material is read step after step.
The material of the setup, the masks of private weights, is not used up. It is the same in every run, and bound to the
weights with which it was first used.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from hummingbird.channel.staging import Aside
from hummingbird.errors import DealerError
from hummingbird.kernels.shares.packing import Words, plain
from hummingbird.mpc.correlations.request import Material, ReceiverTurn, Request, expand
from hummingbird.mpc.dealer import supplies
from hummingbird.mpc.dealer.folder import LEDGER, PAIR, Corrections, find, kinds_of, read_header, stored_fields
from hummingbird.mpc.dealer.supplies import Requests, Supplies
from hummingbird.mpc.pair.material import offline_bits
from hummingbird.mpc.protocols.step_tables import TableChoice
from hummingbird.prg import derive
from hummingbird.slots import Ledger

_REGIONS = 3  # regions mapped at a time: two slices in use, and the next one; more if more conversations are in use


class StoreDealer:
    """A store on disk in the place of a dealer: one lane's material of one party, locked for this process.

    path: the party's folder, or the folder that holds party-RANK; {rank} in the path stands for the rank.
    lane, lanes: this lane's number, and how many lanes the party has; the store must have been dealt for as many.
    timeout: seconds that a request waits for its shares, plus one second per megabyte.
    device: where the shares are needed.
    buffer_bytes: bound on the bytes of shares that are made ahead of their use.
    shared: a background thread that makes the shares of several stores and outlives this one; None: this store starts
        its own.
    Raises DealerError if the store is another lane's, damaged, of another release, in use, or not there.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        rank: int,
        parties: int,
        lane: int = 0,
        lanes: int = 1,
        timeout: float = 60.0,
        device: torch.device | str = "cpu",
        buffer_bytes: int = supplies.BUFFER_BYTES,
        shared: Supplies | None = None,
    ) -> None:
        self.folder, self.rank, self._device = find(path, rank, lane), rank, torch.device(device)
        self.header, self._seed = read_header(self.folder)
        self.slice_shape = self.header.shape
        self.aim = aim_of(self.header.maker, self.header.facts)
        self._check_place(parties, lane, lanes)
        self._ledger = Ledger(self.folder / LEDGER, self.header.set_id)
        try:
            self._corrections = Corrections(self.folder, self.header, self._seed)
        except BaseException:
            self._ledger.close()
            raise
        self._next, self._timeout = self._ledger.next, timeout
        self.refill_seconds = 60.0  # after this time another store may be in its place
        self._setup_at = 0
        self._sent: dict[str, int] = {}  # by a request's text: bits that two parties sent for it
        self._reading = threading.Lock()
        self._regions: dict[int, list[list[Tensor]]] = {}
        self._own = shared is None
        self._supplies = shared or Supplies(_nothing, str(self.folder), self._patience, buffer_bytes=buffer_bytes)
        self._out: weakref.WeakSet[DealtSlice | DealtConversation] = weakref.WeakSet()
        self._upcoming: deque[supplies.Supply] = deque()  # the first steps of slot `_next` and those after it, if begun

    def _check_place(self, parties: int, lane: int, lanes: int) -> None:
        header, where = self.header, str(self.folder)
        if header.lanes != lanes:
            raise DealerError(
                f"this store was dealt with --lanes {header.lanes}, this run has lanes={lanes}",
                where=where,
                hint=f"run with lanes={header.lanes}, or deal a store with --lanes {lanes}",
            )
        facts = (
            ("party", header.rank, self.rank),
            ("a run of size", header.parties, parties),
            ("lane", header.lane, lane),
        )
        for what, theirs, ours in facts:
            if theirs != ours:
                raise DealerError(
                    f"this store is for {what} {theirs}, this process is for {what} {ours}",
                    where=where,
                    hint="each lane of a party uses the folder party-RANK/lane-LANE that was dealt for it",
                )

    # What the parties agree on ----------------------------------------------------------------------------------------

    @property
    def facts(self) -> dict[str, str]:
        """Facts about this store, a text for each name. They must be equal at all parties, which compare them."""
        header = self.header
        own = {"store's maker": header.maker, "store's slots": f"{header.slots} for {header.shape}"}
        return {"store": header.set_id, **own, **header.facts}

    @property
    def next_slot(self) -> int:
        """The number of the first slot that this party has neither used nor skipped."""
        return self._next

    def skip_to(self, slot: int) -> None:
        """Skip all slots before `slot`, as another party has used them. Call this before a slot is reserved or made."""
        assert not self._upcoming, "what is made already is for the slots that were next"
        self._next = max(self._next, slot)

    @property
    def slots_left(self) -> int:
        """For how many more slices this store has material."""
        return max(0, self.header.slots - self._next)

    def admit(self, facts: dict[str, str], shapes: Sequence[tuple[int, ...]]) -> None:
        """Raise DealerError unless this store was dealt for a net, and has material left for all slices of a batch.

        facts: of the net that is to run, a text for each name. shapes: the shape of each slice.
        """
        header = self.header
        check_net(header.facts, header.shape, facts, shapes, str(self.folder))
        if facts["weights"] != "public":  # all parties bind the owner's name; only the owner binds the weights' digest
            self.bind(OWNER, facts["weights"].encode())
        if len(shapes) > self.slots_left:
            raise DealerError(
                f"the store holds material for {self.slots_left} more slices of {header.shape[0]}, "
                f"{len(shapes)} are needed",
                where=str(self.folder),
                hint=f"{self._next} of {header.slots} are used or skipped; deal another store",
            )

    def bind(self, name: str, digest: bytes) -> None:
        """Record that this store's masks for weights hide the private weights with this digest.

        Raises DealerError if the masks hide other weights already, in this run or in an earlier one.
        name: the name of this entry in the ledger.
        digest: the weights' digest. It is not stored, since a guess of the weights could be tested with it. The ledger
            holds only its hash under a key from the store's seed, and the error shows neither.
        """
        self._ledger.bind(name, bound(self._seed, digest))

    # Handing out ------------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"store {self.folder}"

    def correlation(self, request: Request[Any]) -> Material:
        """Return this party's shares for the next request of the setup, such as masks for private weights.

        The setup's requests come in the order in which they were dealt, and again from the first one after the last.
        Every run gets the same shares. Raises DealerError if `request` is not the next one.
        """
        setup, started = self.header.setup, time.perf_counter()
        place = self._setup_at % len(setup) if setup else 0
        if not setup or str(request) != str(setup[place]):
            expected = f", at this place for {setup[place]}" if setup else ""
            raise DealerError(
                f"the store has nothing for {request} outside of a net's slices{expected}",
                where=str(self.folder),
                hint="functions of CrypTen's own need a dealer: hummingbird.init(dealer=...)",
            )
        self._setup_at += 1
        (material,) = self._make(0, self.header.turns(0)[place : place + 1], [request])
        material.take()
        # Another net of this run, or another run, gets the same material: no caller may write into it.
        shares: dict[str, Words] = {name: plain(share).clone() for name, share in material.shares.items()}
        return replace(material, shares=shares, waiting_seconds=time.perf_counter() - started)

    def reserve(self, requests: Requests | None) -> DealtSlice:
        """Take the next slot for one slice; return its material, of which the slice asks for one piece after the other.

        requests: those that the slice will make, in order; None if they are not known yet.
        Raises DealerError if there is no slot left, or if the store was dealt for other requests.
        """
        if not self.slots_left:
            raise DealerError(
                f"all {self.header.slots} slots of the store are used", where=str(self.folder), hint="deal another one"
            )
        if len(self.header.order) > 1:
            raise DealerError("this store was dealt for conversations", where=str(self.folder), hint=_SLICES)
        if requests is not None and [str(r) for r in requests] != [str(r) for r in self.header.requests(1)]:
            raise self._other_requests("this net makes")
        slot, supply = self._take()
        made = DealtSlice(supply, FirstUse(self, slot), len(self.header.requests(1)))
        self._out.add(made)
        return made

    def converse(self, facts: dict[str, str], steps: Sequence[Requests] | None) -> DealtConversation:
        """Take the next slot for a conversation; return its material, which is read and checked step after step.

        facts: of the net, as `admit` takes them. steps: the requests of each step, in order.
        Raises DealerError if no slot is left, or if the store was dealt for another net or for other requests.
        """
        self.admit(facts, [self.header.shape])
        if steps is None:
            raise DealerError(
                "a conversation from a store whose steps are not known",
                where=str(self.folder),
                hint="pass the requests of all steps, as a dry run finds them",
            )
        if kinds_of(steps) != (self.header.kinds, self.header.order):
            raise self._other_requests("this conversation makes")
        made = DealtConversation(self, *self._take())
        self._out.add(made)
        return made

    def _other_requests(self, whose: str) -> DealerError:
        hint = "deal a store for this net, these bits and this shape"
        return DealerError(f"the store was dealt for other requests than {whose}", where=str(self.folder), hint=hint)

    def _take(self) -> tuple[int, supplies.Supply]:
        """Take the next slot; return its number, and the supply of its first step."""
        self.work_ahead()
        slot, supply = self._next, self._upcoming.popleft()
        self._next += 1
        self.work_ahead()
        return slot, supply

    def begin(self, slot: int, step: int) -> supplies.Supply:
        """Begin to make the material of one step of a slot in the background; return it as a supply."""
        region = self.header.region(slot, step)
        return self._supplies.reserve(
            self.header.turns(region), self.header.requests(region), partial(self._make, region)
        )

    def work_ahead(self, slots: int = 1) -> None:
        """Begin to make the material of the next slots, or of their first steps, before the slots are taken.

        slots: how many; all that are left if they are fewer.
        """
        while len(self._upcoming) < min(slots, self.slots_left):
            self._upcoming.append(self.begin(self._next + len(self._upcoming), 0))

    def bring(self, slots: int) -> None:
        """Wait until the material of the next `slots` slots is made and on its device, however much memory it takes.

        It is for measurements, which would otherwise count or miss a part of the material's making by accident. Raises
        DealerError if the material does not come.
        """
        self.work_ahead(slots)
        for supply in self._upcoming:
            self._supplies.complete(supply)

    @property
    def spent(self) -> bool:
        """Whether this store can be erased: no slot is left, and no slice still has material to ask for.

        A slice that was given up does not count.
        """
        return not self.slots_left and all(slot.over for slot in self._out)

    def mark(self, slot: int) -> None:
        """Mark a slot as used. This happens before anything of the slot is handed out."""
        self._ledger.use(slot)

    def stay(self) -> None:
        """Do nothing: there is no session that could be dropped."""

    def close(self) -> None:
        """End the thread and release the store. Never raises; may be called twice."""
        if self._own:
            self._supplies.close("the store is closed")
        self._corrections.close()
        self._ledger.close()

    # In the background ------------------------------------------------------------------------------------------------

    @cached_property
    def slot_bytes(self) -> int:
        """Size in bytes of this party's file for one slice, or for the largest step of a slot."""
        return max(size for _, size in self.header.places[:-1])

    def _patience(self, size: int) -> float:
        return self._timeout + (size + self.slot_bytes) / 1e6  # a whole region is checked first

    def _make(self, region: int, turns: Sequence[ReceiverTurn], requests: Requests) -> Iterator[Material]:
        """Yield the material of consecutive requests of one region, one `Material` for each, in order."""
        before = self.header.turns_before(region)[self.rank]
        for turn, request in zip(turns, requests, strict=True):
            corrections = self._read(region)[turn.number - before] if turn.receiver == self.rank else None
            started = time.perf_counter()
            with Aside(self._device) as aside:
                whole = self.header.whole
                shares = {} if whole else expand(request, turn, self._seed, self.rank, self._device)
                seconds, bits, got = time.perf_counter() - started, self._bits(request), 0
                if corrections is not None:
                    fields = stored_fields(request, whole).items()
                    own = zip(fields, aside.bring(corrections), strict=True)
                    shares |= {name: item.received(tensor) for (name, item), tensor in own}
                    got = bits // 2 if whole else bits
            yield Material(shares, bits, got, expanding_seconds=seconds, ready=aside.ready)

    def _bits(self, request: Request[Any]) -> int:
        """Return the bits that were sent offline for a request: by the dealer, or by two parties to each other."""
        if not self.header.whole:
            return request.correction_bits
        text = str(request)
        if text not in self._sent:
            self._sent[text] = offline_bits([request], TableChoice.of(self.header.facts["aim"]).transfers)
        return self._sent[text]

    def _read(self, region: int) -> list[list[Tensor]]:
        with self._reading:  # another thread reads the setup
            found = self._regions.pop(region, None) or self._corrections.read(region)
            self._regions[region] = found  # the last one used is the last one dropped
            most = _REGIONS if len(self.header.order) == 1 else max(_REGIONS, 2 * len(self._out) + 1)
            while len(self._regions) > most:
                del self._regions[next(iter(self._regions))]
            return found


class FirstUse:
    """Marks a slot as used at the first call; later calls do nothing.

    store, slot: the store, and the number of its slot.
    """

    def __init__(self, store: StoreDealer, slot: int) -> None:
        self._store, self.slot, self._done = store, slot, False

    def __call__(self) -> float:
        """Mark the slot if it is not marked yet; return the dealer's seconds of work on it then, and 0 later."""
        if self._done:
            return 0.0
        self._store.mark(self.slot)
        self._done = True
        return self._store.header.seconds_per_slot


class DealtSlice:
    """The material of one slice, or of one step of a conversation, from a store, in the order in which it was dealt.

    supply: what the background thread makes for it. use: marks its slot. count: number of its requests.
    """

    def __init__(self, supply: supplies.Supply | supplies.OnDemand, use: FirstUse, count: int) -> None:
        self._supply, self._use, self._left = supply, use, count

    @property
    def number(self) -> int:
        """The number of the slot."""
        return self._use.slot

    @property
    def over(self) -> bool:
        """Whether all of the material has been asked for."""
        return not self._left

    def correlation(self, request: Request[Any]) -> Material:
        """Return this party's shares for the next request.

        Raises DealerError for any request but the one that comes next in the store, and for damaged corrections.
        """
        seconds = self._use()  # the mark is on the disk before anything is handed out
        material = self._supply.correlation(request)
        self._left -= 1
        return replace(material, dealer_seconds=seconds) if seconds else material


class DealtConversation:
    """The material of one conversation, from a store, step after step: the next step's is made while one runs.

    number: of the slot. first: the supply of the first step.
    """

    def __init__(self, store: StoreDealer, number: int, first: supplies.Supply) -> None:
        self.number, self._header, self._use = number, store.header, FirstUse(store, number)
        begun = [first]
        self._steps = supplies.StepSupplies(
            lambda step: begun.pop() if step == 0 else store.begin(number, step), len(store.header.order)
        )
        self._taken = 0
        self._last: DealtSlice | None = None
        self._closed = False

    @property
    def over(self) -> bool:
        """Whether all of the material has been asked for, or what is left is given up."""
        last = self._last
        return self._closed or (self._taken == len(self._header.order) and last is not None and last.over)

    def next(self) -> DealtSlice:
        """Return the material of the next step. Raises DealerError if there is none."""
        supply = self._steps.next()
        requests = self._header.requests(self._header.region(self.number, self._taken))
        self._taken += 1
        made = self._last = DealtSlice(supply, self._use, len(requests))
        return made

    def close(self) -> None:
        """Give up the material of the steps that are left: once the conversation was begun, its slot is used."""
        self._closed = True
        self._steps.close()


def _nothing(turns: Sequence[ReceiverTurn], requests: Requests) -> Iterator[Material]:
    raise AssertionError("every region makes its own material")


def aim_of(maker: str, facts: dict[str, str]) -> str:
    """Return the aim of nets that are converted for a store without an aim. maker, facts: as a store's header has them.

    It is the store's own if two parties made the material: their forms depend on how they made it.
    """
    return facts["aim"] if maker == PAIR else "latency"


OWNER = "owner of the weights"  # the name of an entry of the ledger


def bound(seed: bytes, digest: bytes) -> bytes:
    """Return what a store's ledger has in place of the digest of private weights: its hash under a key.

    seed: the store's; the key follows from it.
    """
    return hashlib.blake2b(digest, key=derive(seed, "store", "bound"), digest_size=32).digest()


def material_facts(facts: dict[str, str]) -> dict[str, str]:
    """Choose the facts that determine a net's requests to a dealer. Facts are texts, by name.

    facts: all facts of the net. The result has "architecture", "bits", "plan", "aim", "protocol", "weights" and, for
        conversations, "conversation". "weights" says whether weights are private, but not which party owns them.
    """
    return {
        **{name: facts[name] for name in ("conversation",) if name in facts},
        "architecture": facts["architecture"],
        "bits": facts["bits"],
        "plan": facts["plan"],
        "aim": facts["aim"],
        "protocol": facts["protocol"],
        "weights": "public" if facts["weights"] == "public" else "private",
    }


def check_net(
    dealt: dict[str, str], shape: Sequence[int], facts: dict[str, str], shapes: Sequence[tuple[int, ...]], where: str
) -> None:
    """Raise DealerError unless a store was dealt for the requests that a net makes. Facts are texts, by name.

    dealt, shape: the facts of the net for which the store was dealt (`material_facts`), and the shape of its slices.
    facts, shapes: all facts of the net that is to run, and the shape of each of its slices.
    where: the store's name in the error.
    """
    hint = "deal a store for this net, these bits and this shape"
    mine = material_facts(facts)
    dealt_for, runs = (each.get("conversation", "slices of a batch") for each in (dealt, mine))
    if dealt_for != runs:
        what = f"the store was dealt for {_short(dealt_for)}, this run takes {_short(runs)}"
        raise DealerError(what, where=where, hint="deal a store for the same")
    for name, value in sorted(dealt.items(), key=lambda fact: fact[0] == "plan"):  # last: others explain more
        if (has := mine.get(name, "")) != value:
            what = f"the store was dealt for {name} {_short(value)}, this net has {_short(has)}"
            if name == "plan":  # the bits of fraction follow from public weights, the choices of a layer from the code
                hint = "deal anew by the code that the parties run, with their weights (--model loads them) and bits"
            elif name == "aim":
                hint = f"convert the net with aim={value!r} (infer --aim), or deal a store for this aim (deal --aim)"
            raise DealerError(what, where=where, hint=hint)
    for wanted in shapes:
        if tuple(wanted) != tuple(shape):
            what = f"the store was dealt for slices of shape {tuple(shape)}, this one has {tuple(wanted)}"
            raise DealerError(what, where=where, hint=f"{hint}, or fill up the last slice")


_SLICES = "`python -m hummingbird deal` deals stores for single runs of a net"


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."
