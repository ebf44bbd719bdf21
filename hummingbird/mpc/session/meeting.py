"""A meeting: how the processes of a run find each other in torchrun's store, which outlives them.

With `--max-restarts` a restarted process finds a store with entries of its dead predecessors, and one host may restart
before another has noticed the failure. So rank 0 gives every meeting a new number. Each process writes a card, and rank
0 ends the meeting by writing a roll, the list of all cards. A card has a nonce, which is new after every restart. A
process that does not find its own nonce in the roll has read an old meeting, and waits for the next one.

Processes wait by polling: a wait inside the store does not react to signals. If the store's host is suspended, torch
waits without end for any answer of the store. So another thread makes each call (`call_store`).
"""

from __future__ import annotations

import atexit
import datetime
import errno
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch.distributed as dist

from hummingbird import records
from hummingbird.channel.handshake import listen
from hummingbird.errors import AgreementError, EnvironmentProblem, InputError
from hummingbird.prg import SEED_BYTES, new_seed
from hummingbird.records import field
from hummingbird.rpc.security import split
from hummingbird.rpc.signals import check

_POLL = 0.03  # seconds between two polls of the store
_REACH = 2.0  # seconds for a connection to the store
_ANSWER = 5.0  # seconds in which torch tries again to connect, before this module does
_WORD = records.text(256)  # a text in a card
_T = TypeVar("_T")


@dataclass(frozen=True)
class Card:
    """Entry by which one process presents itself to the others when the processes of a run meet.

    address: HOST:PORT at which the party takes connections, for its lanes on this host; "" but for the first of them.
    lanes: how many lanes a party has, by this process's arguments.
    corridor: the path of the Unix socket at which the first lane of this host takes connections of the party's other
        lanes here; "" at those.
    star: at lane 0 of several, HOST:PORT at which it takes connections of the party's other lanes; "" at those.
    near: how many lanes of a party are on each of its hosts; 0: all of them.
    nonce: random, new after every restart.
    """

    address: str = field(_WORD)
    lanes: int = field(records.whole())
    corridor: str = field(_WORD, default="")
    star: str = field(_WORD, default="")
    near: int = field(records.whole(), default=0)
    nonce: str = field(_WORD, default_factory=lambda: new_seed().hex())

    @property
    def endpoint(self) -> tuple[str, int]:
        """Host and port of the process's `address`. Raises InputError unless that is HOST:PORT or [IPV6]:PORT."""
        return split(self.address)


@dataclass(frozen=True)
class Roll:
    """Record with which rank 0 ends a meeting of a run's processes.

    cards: the entries of all processes, by rank.
    token: a random secret that this run's processes share.
    dealer: address of the dealer that rank 0 has started, or "".
    """

    cards: tuple[Card, ...] = field(records.many(records.record(Card), 1 << 12))
    token: bytes = field(records.hexadecimal(SEED_BYTES))
    dealer: str = field(_WORD)


@dataclass(frozen=True)
class Meeting:
    """Facts that all processes of a run know after they have met; they are equal at all of them.

    store: the part of torchrun's store that belongs to this meeting.
    cards: the processes' entries, by rank; an entry has the address of its process.
    token: a random secret that this run's processes share.
    dealer: address of the dealer that rank 0 has started, or "".
    """

    store: dist.Store
    cards: list[Card]
    token: bytes
    dealer: str


class Late(Exception):
    """Error: some processes did not come to the meeting in time. missing: the ranks of these processes."""

    def __init__(self, missing: list[int]) -> None:
        self.missing = missing
        super().__init__(f"nothing was heard of ranks {missing}")


def serves_store(rank: int) -> bool:
    """Return whether this process serves torchrun's store, in which the processes of a run meet.

    Rank 0 serves it, unless its launcher does.
    """
    return rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"


def run_store(rank: int, world: int, deadline: float, timeout: float) -> dist.Store:
    """Connect anew to torchrun's store, and return it; if this process is the one that serves it, start it.

    The store listens at MASTER_ADDR only.
    rank, world: this process's rank, and the number of processes of all parties.
    deadline: a value of time.monotonic, by which the store must listen.
    timeout: seconds for one call of the store.
    Raises RuntimeError, ValueError or OSError if the store cannot be reached, and EnvironmentProblem if this process
    cannot listen.
    """
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not os.environ.get(name):
            raise ValueError(f"environment variable {name} expected, but not set")
    host, port, wait = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), datetime.timedelta(seconds=timeout)
    if serves_store(rank):
        store = _serve(host, port, wait)
    else:
        store = _connect(host, port, rank, world, deadline)
    store.set_timeout(wait)
    return dist.PrefixStore("hummingbird", store)


def serve_store(host: str, port: int, wait: datetime.timedelta) -> dist.TCPStore:
    """Serve a torch TCPStore from this process, at one address of `host` only; return the store.

    A TCPStore that opens its port itself would listen at all addresses. port: 0 for a free one. wait: the longest time
    that a request to the store waits for a value. Does not wait for other processes. Raises OSError if it cannot
    listen.
    """
    server = listen(host, port)
    port = server.getsockname()[1]
    options: dict[str, Any] = {"is_master": True, "wait_for_workers": False, "timeout": wait, "multi_tenant": True}
    return dist.TCPStore(host, port, master_listen_fd=server.detach(), **options)


def _serve(host: str, port: int, wait: datetime.timedelta) -> dist.Store:
    """Serve torchrun's store at MASTER_ADDR, and at no other address of this host; return the store.

    host, port: MASTER_ADDR and MASTER_PORT.
    wait: the limit for one call of the store.
    If the program's own process group serves a store there already, this process connects to that one. Raises
    EnvironmentProblem if MASTER_ADDR is no address of this host.
    """
    try:
        return serve_store(host, port, wait)
    except OSError as error:
        if error.errno == errno.EADDRINUSE and dist.is_initialized():
            return dist.TCPStore(host, port, timeout=wait, multi_tenant=True)
        if error.errno == errno.EADDRNOTAVAIL:
            raise EnvironmentProblem(
                f"MASTER_ADDR={host} is no address of this host, where party 0 has the store by which the parties meet",
                hint="at party 0 give an address of its own, or 0.0.0.0 for all of them; at the others the one by "
                "which they reach it",
            ) from None
        raise


def _connect(host: str, port: int, rank: int, world: int, deadline: float) -> dist.Store:
    """Connect to torchrun's store as env:// says, and return it; try again until the deadline.

    host, port: of the store.
    rank, world: this process's rank, and the number of processes of all parties.
    deadline: a value of time.monotonic.
    A host that dies or restarts may take connections and not answer them. So an attempt is short, and another follows.
    Raises OSError or RuntimeError at the deadline, and PeerError when this process is to stop.
    """

    def attempt() -> dist.Store:
        return next(iter(dist.rendezvous("env://", rank, world, timeout=datetime.timedelta(seconds=_ANSWER))))[0]

    while True:
        _listening(host, port, deadline)
        try:
            return call_store(deadline, attempt)
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
        check()
        time.sleep(_POLL)


def call_store(deadline: float, call: Callable[..., _T], *arguments: Any, port: int = 0) -> _T:
    """Make a call of torchrun's store in a thread of its own, wait for it, and return its result or raise its error.

    call, arguments: the function that makes the call, and its arguments.
    deadline: a value of time.monotonic.
    port: the store's, if it is not MASTER_PORT.
    Raises TimeoutError at the deadline, and PeerError when this process is to stop (`rpc.signals.check`). The thread is
    then left behind: it ends with the process, or when the store's host answers.
    """
    answer = begin_call(partial(call, *arguments), port)
    while not answer.done():
        futures.wait([answer], _POLL)
        check()
        if time.monotonic() > deadline and not answer.done():
            raise TimeoutError("the run's store does not answer")
    return answer.result()


_calling: weakref.WeakKeyDictionary[threading.Thread, int] = weakref.WeakKeyDictionary()  # the port that each calls


@atexit.register
def _end_calls() -> None:
    """At the end of the process, end calls of torchrun's store that were given up but still run in their threads.

    Torch aborts a process that ends while such a call returns. The store's host may never answer, so this function
    shuts down the calls' connections. It repeats this, since an attempt to connect tries again for some seconds.
    """
    deadline = time.monotonic() + 2 * _ANSWER
    while (ports := {port for thread, port in _calling.items() if thread.is_alive()}) and time.monotonic() < deadline:
        _shut_connections(ports)
        time.sleep(_POLL)


def _shut_connections(ports: set[int]) -> None:
    """Shut down every connection of this process whose other end has one of these ports, whoever opened it."""
    for name in os.listdir("/dev/fd"):
        try:
            connection = socket.socket(fileno=int(name))
        except OSError:  # no socket
            continue
        try:
            if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.getpeername()[1] in ports:
                connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # not connected
            continue
        finally:
            connection.detach()  # its owner closes it


def begin_call(call: Callable[[], _T], port: int = 0) -> Future[_T]:
    """Make a call of torchrun's store in a thread of its own, which ends with the process.

    Returns a future for the call's result or error.
    port: the store's, if it is not MASTER_PORT.
    """
    answer: Future[_T] = Future()

    def make() -> None:
        try:
            answer.set_result(call())
        except Exception as error:
            answer.set_exception(error)

    thread = threading.Thread(target=make, name="hummingbird-store", daemon=True)
    try:
        thread.start()
        _calling[thread] = port or int(os.environ.get("MASTER_PORT", "0"))
    except RuntimeError:  # Python 3.12 starts no thread at the interpreter's exit
        make()
    return answer


def _listening(host: str, port: int, deadline: float) -> None:
    """Wait until a server listens at this host and port. Raises OSError at the deadline, a value of time.monotonic."""
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
    """Meet all processes of the run: each enters its card into torchrun's store, and rank 0 writes the list of all.

    Returns the `Meeting`, which is equal at all processes.
    store: torchrun's.
    rank, world: this process's rank, and the number of processes of all parties.
    card: the entry of this process.
    deadline: a value of time.monotonic; at the deadline `Late` is raised.
    dealer: called at rank 0 after the meeting has begun; returns the address of the dealer for all, or "".
    """
    ask = partial(call_store, deadline)
    if rank == 0:
        here = _at(store, ask(store.add, "meeting", 1))
        ask(here.set, "card/0", records.write(card))
        address, waiting = dealer(), list(range(world))
        while waiting := [other for other in waiting if not ask(here.check, [f"card/{other}"])]:
            _pause(deadline, waiting)
        cards = [card, *(_card(ask(here.get, f"card/{other}"), other) for other in range(1, world))]
        roll = records.write(Roll(tuple(cards), new_seed(), address))
        ask(here.set, "roll", roll)
        return read_roll(roll, here, world)  # its own text: another process may have changed the store
    answered = 0
    while True:
        number = ask(store.add, "meeting", 0)
        here = _at(store, number)
        if number != answered:
            ask(here.set, f"card/{rank}", records.write(card))
            answered = number
        if number and ask(here.check, ["roll"]):
            meeting = read_roll(ask(here.get, "roll"), here, world)
            if meeting.cards[rank].nonce == card.nonce:
                _check_own(meeting.cards[rank], card, rank)
                return meeting
            _pause(deadline, [0])  # until rank 0 begins the next meeting
        else:
            missing = [other for other in range(world) if not ask(here.check, [f"card/{other}"])] if number else [0]
            _pause(deadline, missing)


def _at(store: dist.Store, number: int) -> dist.Store:
    return dist.PrefixStore(str(number), store)


def _pause(deadline: float, missing: list[int]) -> None:
    if time.monotonic() > deadline:
        raise Late(missing)
    check()
    time.sleep(_POLL)


def _check_own(told: Card, card: Card, rank: int) -> None:
    """Raise AgreementError unless rank 0's list of all processes has this process's entry unchanged.

    told: this process's entry in that list. card: the entry that it made itself.
    """
    if told != card:
        raise AgreementError(
            f"the roll of rank 0 says {_words(told)} of rank {rank}, which itself says {_words(card)}",
            where="init",
            hint="somebody else writes into the store at MASTER_ADDR and MASTER_PORT: who can reach that port?",
        )


def _words(card: Card) -> str:
    return f"{card.address or 'no address'}, lanes={card.lanes}"


def read_roll(text: str | bytes, here: dist.Store, world: int) -> Meeting:
    """Read the record with which rank 0 ends a meeting, and return the `Meeting`.

    here: the part of torchrun's store that belongs to this meeting.
    Raises AgreementError if the record is malformed, or does not have `world` processes.
    """
    try:
        roll = records.read(text, Roll, name="roll")
        for card in roll.cards:
            for address in filter(None, (card.address, card.star)):
                split(address)
    except InputError:
        roll = None
    if roll is None or len(roll.cards) != world:
        what = f"rank 0 has ended the meeting with something else than a list of {world} processes"
        raise AgreementError(what, where="init", hint="install the same release everywhere") from None
    return Meeting(here, [*roll.cards], roll.token, roll.dealer)


def _card(text: bytes, other: int) -> Card:
    """Read the entry by which the process of rank `other` presents itself. Raises AgreementError if it is malformed."""
    hint = "install the same release everywhere"
    how = {"where": "init", "hint": hint, "error": AgreementError}
    return records.read(text, Card, name=f"card of rank {other}", **how)
