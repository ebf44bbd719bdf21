"""How a party joins a run of the parties, and every way in which it leaves.

`init()` reads the launcher's variables (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), meets the other parties (where a
party has several lanes, the same lane of each), agrees pairwise on seeds for zero sharings (X25519, so that a listener
on the wire cannot derive them), joins the dealer, and puts our parts in place of CrypTen's. Without these
variables it makes a session of one party, which computes the same and hides nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from hummingbird.channel.channel import Channel
from hummingbird.crypten import run as crypten_run
from hummingbird.errors import ConfigError, EnvironmentProblem, HummingbirdError, PeerError
from hummingbird.kernels import heap
from hummingbird.mpc.dealer.local import LocalDealer
from hummingbird.mpc.session.agreement import agree
from hummingbird.mpc.session.lanes import LanePosition, close_group, environment, refuse_other_group, variable
from hummingbird.mpc.session.listener import Listener
from hummingbird.mpc.session.rendezvous import (
    agree_on_roll,
    check_dealer,
    connect,
    join_dealer,
    meet,
    open_store,
    zero_sharing_seeds,
)
from hummingbird.mpc.session.session import Dealer, Session, ZeroSharing, begin, current, is_initialized
from hummingbird.prg import CIPHERS, Stream, cipher_of, derive, new_seed
from hummingbird.ranks.elastic import warn_of_dynamic
from hummingbird.rpc.service import Tls
from hummingbird.rpc.signals import Stop
from hummingbird.version import VERSION

# Notes between the lanes of all parties, in torchrun's store: why a run has failed, and who has come to its end.
#
# Only lane g of the parties hear of each other through their channel. When a lane dies, a launcher tells the others of
# its host to stop, without a reason. The lane that sees it first writes it down here, and those that are stopped say
# so.

_POLL = 0.05  # seconds between two looks into the store
_ANSWER = 2.0  # seconds for the store to answer


class LaneNotes:
    """The notes of one run, in its meeting's store. timeout: the longest wait for another lane, seconds."""

    def __init__(self, store: dist.Store, place: LanePosition, timeout: float) -> None:
        self._store, self._place, self._timeout = store, place, timeout

    def failed(self, reason: str) -> None:
        """Note why this lane stops, unless another one was first; never raises."""
        self._ask(lambda: self._store.compare_set("failure", "", reason))

    def first_failure(self, seconds: float, seen: Callable[[], str] = str) -> str | None:
        """The first line of the reason of the first lane that failed; None if none is noted within so many seconds.

        seen: words for a failure that this lane can see by itself, "" for none; they are noted.
        """
        deadline = time.monotonic() + seconds
        while not self._has("failure"):
            if words := seen():
                self.failed(words)
                return words
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL)
        reason = self._ask(lambda: self._store.get("failure"))
        return reason.decode(errors="replace").partition("\n")[0] if reason else None

    def left(self) -> None:
        """Note that this lane of party 0 has left; at rank 0, whose dealer the others need to the end, wait for them.

        PeerError if one of them fails, or does not come within the timeout.
        """
        here, deadline = self._place, time.monotonic() + self._timeout
        if here.party != 0:
            return
        self._ask(lambda: self._store.set(f"left/{here.lane}", "1"))
        waiting = list(range(here.lanes)) if here.rank == 0 else []
        while waiting := [lane for lane in waiting if not self._has(f"left/{lane}")]:
            why, late = self.first_failure(0), time.monotonic() > deadline
            if why or late:
                what = f"{' and '.join(map(here.name_of, waiting))} did not come to the end"
                raise PeerError(
                    what + (f", after a failure: {why}" if why else f" within {self._timeout:g} s after {here.name}"),
                    where=here.name,
                    hint="its own output says why; hummingbird.init(timeout=...) takes more seconds",
                )
            time.sleep(_POLL)

    def _has(self, key: str) -> bool:
        return bool(self._ask(lambda: self._store.check([key])))

    def _ask(self, question: Callable[[], Any]) -> Any:
        """The store's answer; None if it is gone or does not answer: a call of the store itself would wait on."""
        answers: list[Any] = []

        def call() -> None:
            with contextlib.suppress(RuntimeError):
                answers.append(question())

        thread = threading.Thread(target=call, daemon=True)
        try:
            thread.start()
            thread.join(_ANSWER)
        except RuntimeError:  # Python 3.12 starts no thread at the interpreter's end
            call()
        return answers[0] if answers else None


# ---------------------------------------------------------------------------------------------------------------------

DEFAULT_TIMEOUT = 120.0
_GRACE = 5.0  # seconds for another lane to find out why this one is told to stop; torchrun kills after 30
_START = "for a run between parties: python -m hummingbird run --parties 2 -- SCRIPT.py, or hummingbird.launch(fn)"


def init(
    *,
    lanes: int | None = None,
    dealer: str | None = None,
    store: str | os.PathLike[str] | None = None,
    tls: Tls | None = None,
    peer_listen: str | None = None,
    peer_address: str | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    device: torch.device | str = "cpu",
) -> Session:
    """Join the run that the launcher describes, or, with a warning, make a session of one party.

    lanes: processes of each party, one for each of its GPUs; None: HUMMINGBIRD_LANES, else 1. There are then
        parties x lanes processes, party = RANK // lanes, and the lanes of a party are on one host. Lane g of all
        parties is a session of its own; `session.rank` is the party. With several lanes, torch.distributed's default
        process group is that of the party's lanes.
    dealer: address of the third party that deals correlated randomness, `host:port` or `unix:path`. It must not
        collude with any party: with a party's help it could read that run's secrets. None starts one on this host,
        for runs on one host.
    store: instead of a dealer, what `python -m hummingbird deal` has dealt in advance: this party's folder, or the one
        that holds party-RANK; {rank} is replaced. It must have been dealt for as many lanes. Whoever can read two
        parties' folders can read their secrets.
    tls: certificates for the parties' channel and the dealer (mutual TLS; names `party-RANK`). Without it the channel
        is plain: use it on one host or on a network that encrypts.
    peer_listen: HOST:PORT or [IPV6]:PORT where this party takes the connections of all others, for all of its lanes;
        0.0.0.0 and [::] are all addresses of the host. None: the address that leads to MASTER_ADDR, a free port. One
        direction is enough: a party that others cannot reach reaches them.
    peer_address: HOST:PORT that the others are told, where that is another one: of an address translation, or a
        service. None: what this party listens at.
    timeout: the longest silence of another party or the dealer, seconds; every wait ends by then, with an error.
    device: where this party's shares are, "cpu" or "cuda"; of one type at all parties, for it decides how seeds are
        expanded (prg.py). "cuda" is card LOCAL_RANK of this host, or that number modulo the cards.

    Raises ConfigError for options, PeerError, AgreementError, DealerError, EnvironmentProblem, and TrustError in
    CrypTen's validation mode.
    """
    global _lane_notes, _here, _leaving
    if is_initialized():
        raise EnvironmentProblem(
            f"hummingbird is initialized already: {current()!r}",
            where="init",
            hint="go on with this session, or call hummingbird.uninit() before a second init()",
        )
    if dealer is not None and store is not None:
        raise ConfigError(
            "a dealer and a store are given", where="init", hint="randomness comes from one of them: give exactly one"
        )
    crypten_run.refuse_other()
    _here = here = environment(lanes)
    device, listener = check_options(dealer, tls, timeout, device), Listener.of(peer_listen, peer_address)
    if here.parties == 1 and dealer is not None:
        raise ConfigError("a dealer is given, but this process is the only party", where="init", hint=_START)
    refuse_other_group(here)
    warn_of_dynamic(stacklevel=3)
    starting = here.parties > 1 and dealer is None and store is None
    if starting:
        check_dealer(here)
    heap.keep()
    device = _on_card(device)
    cipher = cipher_of(device.type)
    size = CIPHERS[cipher]
    seeds: dict[str, bytes]
    client: Dealer
    channel, meeting = Channel(0, 1, {}, {}, timeout), None
    try:
        if here.world > 1:
            meeting, ends = meet(here, listener, timeout, starting)
            _lane_notes = LaneNotes(meeting.store, here, timeout) if here.lanes > 1 else None
            _watch()
            channel = connect(meeting, ends, here, tls, timeout)
            agree_on_roll(channel, meeting, here)
        if here.parties == 1 or meeting is None:
            warnings.warn(f"one party: nothing is sent and nothing is hidden; {_START}", stacklevel=2)
            own = new_seed(size)
            seeds = {"prev": derive(own, "zero"), "next": derive(own, "zero"), "local": derive(own, "local")}
        else:
            facts = {"dealer": str(dealer), "store": str(store is not None), "TLS": str(tls is not None)}
            agree(channel, "init", {"hummingbird version": VERSION, **facts, "cipher": cipher})
            seeds = zero_sharing_seeds(channel, size)
        if store is not None:
            client = open_store(channel, store, here, timeout, device)
        elif here.parties == 1 or meeting is None:
            client = LocalDealer(0, 1, [new_seed(size)], device)
        else:
            where, security = (meeting.dealer, None) if dealer is None else (dealer, tls)
            client = join_dealer(channel, where, meeting, security, timeout, cipher, device)
    except BaseException as error:
        _leave(error, channel)
        raise
    zeros = ZeroSharing(Stream(seeds["prev"], device), Stream(seeds["next"], device))
    made = Session(here.party, here.parties, channel, client, device, here.lane, here.lanes, listener, zeros=zeros)
    if _lane_notes is not None:
        made.failure = partial(_lane_notes.first_failure, 0)
    _leaving = False
    if _stop is not None:
        _stop.raised = False
    begin(made)
    atexit.unregister(uninit)
    atexit.register(uninit)  # the last to be registered is the first to run: before the end of a dealer started above
    crypten_run.start(made, seeds["local"])
    return made


def _on_card(device: torch.device) -> torch.device:
    """The device itself, or for "cuda" the card of this process: processes of one host take its cards in turn."""
    if device.type != "cuda":
        return device
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not cards:
        raise EnvironmentProblem("this torch finds no CUDA device", where="init", hint='leave device="cpu"')
    index = variable("LOCAL_RANK", 0) % cards if device.index is None else device.index
    if index >= cards:
        hint = 'device="cuda" takes the cards in turn'
        raise EnvironmentProblem(f"this host has {cards} CUDA devices, and no cuda:{index}", where="init", hint=hint)
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def check_options(dealer: object, tls: object, timeout: object, device: object, where: str = "init") -> torch.device:
    """The device, once all options are of the right kind; else ConfigError."""
    if dealer is not None and not isinstance(dealer, str):
        raise ConfigError(f"dealer={dealer!r}", where=where, hint='an address, "host:port" or "unix:path"')
    if tls is not None and not isinstance(tls, Tls):
        hint = "hummingbird.rpc.security.Tls(cert=..., key=..., ca=...)"
        raise ConfigError(f"tls is a {type(tls).__name__}", where=where, hint=hint)
    number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if not (number and math.isfinite(timeout) and timeout > 0):  # type: ignore[arg-type, operator]
        raise ConfigError(f"timeout={timeout!r}", where=where, hint="seconds, a positive number")
    try:
        found = torch.device(device)  # type: ignore[call-overload]
    except (RuntimeError, TypeError):
        found = None
    if found is None or found.type not in ("cpu", "cuda", "meta"):  # meta: shapes only
        raise ConfigError(f"device={device!r}", where=where, hint='"cpu" or "cuda"')
    return found


def name() -> str:
    """The name of this process in errors."""
    if _here is None:
        try:
            return environment().name
        except HummingbirdError:
            return f"rank {os.environ.get('RANK', '?')}"
    return _here.name


def uninit() -> None:
    """Leave the run in an orderly way; `init` may be called again."""
    if is_initialized():
        _leave(None, current().channel)


def abort(error: BaseException) -> None:
    """Leave because of an error, telling the other parties why; does nothing without a session."""
    if is_initialized():
        _leave(error, current().channel)


def _leave(error: BaseException | None, channel: Channel) -> None:
    global _lane_notes, _leaving
    _leaving, lane_notes, _lane_notes = True, _lane_notes, None
    try:
        told = _stop is not None and _stop.raised
        if lane_notes is not None and error is not None and not told:
            lane_notes.failed(reason_of(error))
        if error is not None:
            channel.abort(reason_of(error))
        if is_initialized():
            current().close()
        channel.close()
        close_group()
        if lane_notes is not None and error is None:
            lane_notes.left()  # the last thing that needs the dealer above is over
    finally:
        begin(None)
        _leaving = error is not None
        crypten_run.stop()


def reason_of(error: BaseException) -> str:
    """An error's text for other parties: our own errors in full, foreign ones by type (their text may hold data)."""
    return str(error) if isinstance(error, HummingbirdError) else type(error).__name__


# Ending -------------------------------------------------------------------------------------------------------------

_here: LanePosition | None = None  # where the last `init` was called
_lane_notes: LaneNotes | None = None  # where lanes leave notes for each other
_watching = False
_stop: Stop | None = None  # of SIGTERM, which is no reason of its own
_leaving = False  # set while this party leaves, and after it has left because of an error


def _watch() -> None:
    """Make every way out of this process one that the other parties hear of."""
    global _stop, _watching
    if _watching:
        return
    _watching = True
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        abort(error)
        before(kind, error, trace)

    sys.excepthook = hook
    # Launchers stop the remaining processes with SIGTERM when one has failed; the default action would end this one
    # without a word. The program may be anywhere in code of its own: it gets an exception there, as by Ctrl-C.
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        _stop = Stop(_why_to_stop, over=lambda: _leaving)  # while it leaves, the reason is known already


def _why_to_stop() -> PeerError:
    """Make the error that SIGTERM raises here. It names the failure of another party, if one is known.

    Waits up to `_GRACE` seconds for that name, so `Stop` calls it in a thread of its own.
    """
    lane_notes, why = _lane_notes, None
    if lane_notes is not None:
        # The session may end meanwhile, with its sockets.
        with contextlib.suppress(HummingbirdError, OSError, ValueError):
            why = lane_notes.first_failure(_GRACE, current().channel.loss if is_initialized() else str)
    return PeerError(
        "this party was told to stop (SIGTERM)" + (f", after a failure: {why}" if why else ""),
        where=name(),
        hint="launchers do so when another party has failed: see its message",
    )
