"""How the processes of a run find each other: over torchrun's store, which outlives them.

With `--max-restarts` a process comes back to a store that the dead have written to, and one host may come back before
another one has noticed anything. So rank 0 draws a number for every meeting. Each process answers with a card, and rank
0 ends the meeting with a roll: the cards it has read. A card has a nonce, new in every life of a process. Who does not
find its own nonce in a roll has come to a meeting of the dead, and waits for the next one.

Waiting is asking again and again: a wait inside the store would hear no signal.
"""

from __future__ import annotations

import datetime
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch.distributed as dist

from hummingbird.errors import AgreementError
from hummingbird.prg import SEED_BYTES, new_seed
from hummingbird.wire.flag import check

_POLL = 0.03  # seconds between two looks into the store
_REACH = 2.0  # seconds for a connection to the store
_TEXT = 256  # longest text of a card


@dataclass(frozen=True)
class Card:
    """One process at a meeting: where it listens, into how many lanes it thinks a party is divided, and its nonce."""

    address: str
    lanes: int
    nonce: str = field(default_factory=lambda: new_seed().hex())

    @property
    def endpoint(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.address.rpartition(":")
        return host, int(port)


@dataclass(frozen=True)
class Meeting:
    """The facts that all processes of a run have in common.

    store: for this meeting alone. cards: by rank. token: known to the processes of this run. dealer: the address of the
    one that rank 0 has started, or "".
    """

    store: dist.Store
    cards: list[Card]
    token: bytes
    dealer: str


class Late(Exception):
    """Not everybody has come in time; `missing`: the ranks."""

    def __init__(self, missing: list[int]) -> None:
        self.missing = missing
        super().__init__(f"nothing was heard of ranks {missing}")


def serves_store(rank: int) -> bool:
    """Whether the run's store is a part of this process: rank 0 has it, unless its launcher has."""
    return rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"


def run_store(rank: int, world: int, deadline: float, timeout: float) -> dist.Store:
    """torchrun's store, newly connected. Raises RuntimeError, ValueError or OSError where it cannot be reached.

    deadline: of time.monotonic, until when its server must be there. timeout: seconds for a question to it.
    """
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not os.environ.get(name):
            raise ValueError(f"environment variable {name} expected, but not set")
    host, port, wait = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), datetime.timedelta(seconds=timeout)
    if serves_store(rank):
        # Without a wait for the others: `attend` waits, and hears signals.
        store = dist.TCPStore(host, port, is_master=True, timeout=wait, wait_for_workers=False, multi_tenant=True)
    else:
        _listening(host, port, deadline)
        store, _, _ = next(iter(dist.rendezvous("env://", rank, world, timeout=wait)))
    store.set_timeout(wait)
    return dist.PrefixStore("hummingbird", store)


def _listening(host: str, port: int, deadline: float) -> None:
    """Return once somebody listens; OSError at the deadline."""
    while True:
        try:
            socket.create_connection((host, port), timeout=_REACH).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise OSError(f"nothing listens at {host}:{port}: {error.strerror or error}") from None
        check()
        time.sleep(_POLL)


def attend(store: dist.Store, rank: int, world: int, card: Card, deadline: float, dealer: Callable[[], str]) -> Meeting:
    """Meet all processes of the run; `Late` at the deadline (of time.monotonic).

    dealer: called at rank 0 once the meeting has begun; returns the address of the dealer for all, or "".
    """
    if rank == 0:
        here = _at(store, store.add("meeting", 1))
        here.set("card/0", json.dumps(asdict(card)))
        address, waiting = dealer(), list(range(world))
        while waiting := [other for other in waiting if not here.check([f"card/{other}"])]:
            _pause(deadline, waiting)
        cards = [json.loads(here.get(f"card/{other}")) for other in range(world)]
        here.set("roll", json.dumps({"cards": cards, "token": new_seed().hex(), "dealer": address}))
        return read_roll(here, world)
    answered = 0
    while True:
        number = store.add("meeting", 0)
        here = _at(store, number)
        if number != answered:
            here.set(f"card/{rank}", json.dumps(asdict(card)))
            answered = number
        if number and here.check(["roll"]):
            meeting = read_roll(here, world)
            if meeting.cards[rank].nonce == card.nonce:
                return meeting
            _pause(deadline, [0])  # for it to call another meeting
        else:
            _pause(deadline, [other for other in range(world) if not here.check([f"card/{other}"])] if number else [0])


def _at(store: dist.Store, number: int) -> dist.Store:
    return dist.PrefixStore(str(number), store)


def _pause(deadline: float, missing: list[int]) -> None:
    if time.monotonic() > deadline:
        raise Late(missing)
    check()
    time.sleep(_POLL)


def read_roll(here: dist.Store, world: int) -> Meeting:
    """The roll of a meeting; AgreementError if it is none of `world` processes."""
    try:
        roll: Any = json.loads(here.get("roll"))
        cards = [_card(fields) for fields in roll["cards"]]
        token, dealer = bytes.fromhex(roll["token"]), roll["dealer"]
        if len(cards) != world or len(token) != SEED_BYTES or not _is_text(dealer):
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        what = f"rank 0 has ended the meeting with something else than a list of {world} processes"
        raise AgreementError(what, where="init", hint="install the same release everywhere") from None
    return Meeting(here, cards, token, dealer)


def _card(fields: dict[str, Any]) -> Card:
    card = Card(fields["address"], fields["lanes"], fields["nonce"])
    if type(card.lanes) is not int or not (_is_text(card.address) and _is_text(card.nonce)):
        raise ValueError
    if not 0 < card.endpoint[1] < 1 << 16:  # a ValueError without a port
        raise ValueError
    return card


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _TEXT
