"""How a party joins a run, and every way in which it leaves.

`init()` reads the launcher's variables (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) and meets the other parties; a lane
meets the same lane of each party. Pairs of parties agree on seeds for zero sharings (X25519, so that an eavesdropper
cannot derive them). Then the party joins the dealer, and replaces parts of CrypTen. Without the variables `init` makes
a session of one party, which computes the same and hides nothing.
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
from concurrent import futures
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from hummingbird.channel.channel import Channel
from hummingbird.crypten import run as crypten_run
from hummingbird.errors import ConfigError, EnvironmentProblem, HummingbirdError, PeerError
from hummingbird.kernels import devices
from hummingbird.mpc.dealer.client import LocalDealer
from hummingbird.mpc.pair.dealer import PairDealer, transfers_of
from hummingbird.mpc.session.lanes import Gathering, LaneLinks, LanePosition, environment, variable
from hummingbird.mpc.session.listener import Listener
from hummingbird.mpc.session.meeting import begin_call
from hummingbird.mpc.session.rendezvous import (
    PAIR,
    agree_on_roll,
    check_dealer,
    connect,
    connect_pair,
    join_dealer,
    meet,
    open_store,
    zero_sharing_seeds,
)
from hummingbird.mpc.session.session import Dealer, Session, ZeroSharing, agree, begin, current, is_initialized
from hummingbird.prg import CIPHERS, Stream, cipher_of, derive, new_seed
from hummingbird.ranks import warn_of_dynamic
from hummingbird.rpc.service import Tls
from hummingbird.rpc.signals import Stop
from hummingbird.version import VERSION

# Notes between lanes. Torchrun's store has the reason for which a run has failed. A channel connects only lane g of all
# parties, and when a lane dies, the launcher stops other lanes of its host without a reason. So the lane that first
# sees a failure notes the reason, and stopped lanes report it. The store of a party's lanes has those that have left.

_POLL = 0.05  # seconds between two polls of the store
_ANSWER = 2.0  # seconds for the store to answer


class LaneNotes:
    """Notes by which the lanes of a run tell each other why they stop, and those of a party when they leave.

    store: the part of torchrun's store that belongs to this run.
    links: to the other lanes of this party; lane 0 serves their store as long as it has this object.
    place: this lane.
    timeout: longest wait for another lane, in seconds.
    """

    def __init__(self, store: dist.Store, links: LaneLinks, place: LanePosition, timeout: float) -> None:
        self._store, self._place, self._timeout, self._port = store, place, timeout, links.port
        self._left = dist.PrefixStore("left", links.store)

    def failed(self, reason: str) -> None:
        """Note why this lane stops, unless another lane has noted a reason before. Never raises."""
        self._ask(lambda: self._store.compare_set("failure", "", reason))

    def first_failure(self, seconds: float, seen: Callable[[], str] = str) -> str | None:
        """Return one line that says why the run's first failed lane has failed.

        Returns None if no lane notes a failure within `seconds`.
        seen: returns the text of a failure that this lane sees itself, or "". If there is such a text, this lane notes
            it, and returns it.
        """
        deadline = time.monotonic() + seconds
        while (reason := self._read(self._store, "failure")) is None:
            if words := seen():
                self.failed(words)
                return words
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL)
        return reason

    def left(self, reason: str = "") -> None:
        """Note that this lane has left the run. Lane 0 instead waits until its party's other lanes have left.

        Lane 0 serves the store in which slower lanes still look for the work done; rank 0 also runs the dealer.
        reason: why this lane has failed; "" if it has not. Lane 0 does not wait if it has failed.
        Raises PeerError if another lane of this party fails, or does not leave within the timeout.
        """
        here, deadline = self._place, time.monotonic() + self._timeout
        if here.lane or reason:
            self._ask(lambda: self._left.set(str(here.lane), reason), self._port)
            return
        others = range(1, here.lanes)
        while ends := {lane: end for lane in others if (end := self._read(self._left, str(lane))) != ""}:
            why, late = self.first_failure(0), time.monotonic() > deadline
            why = why or next(filter(None, ends.values()), None)  # torchrun's store may be gone
            if why or late:
                names = [here.name_of(here.rank + lane) for lane in ends]
                what = f"{' and '.join(names)} did not come to the end"
                raise PeerError(
                    what + (f", after a failure: {why}" if why else f" within {self._timeout:g} s after {here.name}"),
                    where=here.name,
                    hint="its own output says why; hummingbird.init(timeout=...) takes more seconds",
                )
            time.sleep(_POLL)

    def _read(self, store: dist.Store, key: str) -> str | None:
        """Return the first line of a note; None if there is no such note, or the store is gone."""
        port = self._port if store is self._left else 0
        text = self._ask(lambda: store.get(key) if store.check([key]) else None, port)
        return None if text is None else text.decode(errors="replace").partition("\n")[0]

    def _ask(self, question: Callable[[], Any], port: int = 0) -> Any:
        """Make a call of a store, and return its answer; None if it is gone, or does not answer in 2 s.

        question: makes the call. It runs in a thread, since it might wait without limit. port: the store's; 0 for
        torchrun's.
        """
        answer = begin_call(question, port)
        try:
            return answer.result(_ANSWER)
        except (RuntimeError, TimeoutError, futures.TimeoutError):  # the last two are one class from Python 3.11 on
            return None


# ---------------------------------------------------------------------------------------------------------------------

DEFAULT_TIMEOUT = 120.0
_GRACE = 5.0  # seconds for another lane to note why this one is stopped; torchrun kills after 30
_START = "for a run between parties: python -m hummingbird run --parties 2 -- SCRIPT.py, or hummingbird.launch(fn)"


def init(
    *,
    lanes: int | None = None,
    dealer: str | None = None,
    store: str | os.PathLike[str] | None = None,
    store_key: str | os.PathLike[str] | None = None,
    tls: Tls | None = None,
    peer_listen: str | None = None,
    peer_address: str | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    device: torch.device | str = "cpu",
) -> Session:
    """Join the run that the launcher's variables describe; without them make a session of one party, with a warning.

    lanes: processes of each party, one for each of its GPUs; None: HUMMINGBIRD_LANES, else 1. The run has
        parties x lanes processes, party = RANK // lanes. The lanes of a party are on one host, or on several with
        equally many on each. Lane g of all parties is a session of its own; `session.rank` is the party.
    dealer: address of the third party that deals correlated randomness, `host:port` or `unix:path`. It must not
        collude with any party: with a party's help it could read that run's secrets. None starts a dealer on this
        host, if all parties run on this host. "pair": there is no dealer, and two parties make the material with each
        other; a party that deviates from the protocol could read the other one's secrets, unseen (docs/pair.md).
        "pair:silent" and "pair:softspoken" say how they make oblivious transfers: silent ones send a quarter of the
        bytes and take more of a processor's time. "pair:RTT:BANDWIDTH" is the fastest way on a link with so many
        seconds there and back and bits per second of each party, such as "pair:0.02:100e6".
    store: replaces a dealer by material that `python -m hummingbird deal` has made in advance: this party's folder, or
        the folder that contains party-RANK; {rank} is replaced. It must have been dealt for as many lanes. Whoever can
        read the folders of two parties can read their secrets. Or the URL of an object store that `deal` has filled,
        such as s3://bucket/prefix.
    store_key: this party's key file, with which it opens what is in an object store; {rank} is replaced.
    tls: certificates for the parties' channel and the dealer (mutual TLS; names `party-RANK`). None: the channel is
        not encrypted, which is for one host, or for a network that encrypts.
    peer_listen: HOST:PORT or [IPV6]:PORT at which this party takes connections from other parties, for all of its
        lanes; 0.0.0.0 and [::] are all addresses of the host. None: the address of the interface that leads to
        MASTER_ADDR, and a free port. One direction is enough: a party that others cannot reach connects to them.
    peer_address: HOST:PORT at which other parties reach this one, if it differs from `peer_listen`, as behind an
        address translation. None: the same.
    timeout: the longest silence of another party or the dealer, in seconds; every wait for one of them ends by then,
        with an error.
    device: where this party's shares are, "cpu" or "cuda". It has the same type at all parties, since it determines
        how seeds are expanded (prg.py). "cuda" is the GPU LOCAL_RANK of this host, modulo the number of GPUs.

    Raises ConfigError for wrong options, TrustError in CrypTen's validation mode, and PeerError, AgreementError,
    DealerError or EnvironmentProblem if the run does not come about.

    >>> session = hummingbird.init()  # without a launcher: one party, which hides nothing
    >>> session.rank, session.parties
    (0, 1)
    >>> hummingbird.uninit()
    """
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
    if store_key is not None and store is None:
        raise ConfigError("a key without a store", where="store_key", hint="init(store=URL, store_key=FILE)")
    crypten_run.refuse_other()
    _run.here = here = environment(lanes)
    device, listener = check_options(dealer, tls, timeout, device), Listener.of(peer_listen, peer_address)
    if here.parties == 1 and dealer is not None:
        raise ConfigError("a dealer is given, but this process is the only party", where="init", hint=_START)
    transfers = transfers_of(dealer)
    if transfers and here.parties != 2:
        what = f"dealer={dealer!r} with {here.parties} parties: two parties can make material, and no other number"
        raise ConfigError(what, where="init", hint="name a dealer, HOST:PORT, or leave `dealer` out")
    warn_of_dynamic(stacklevel=3)
    starting = here.parties > 1 and dealer is None and store is None
    if starting:
        check_dealer(here)
    devices.keep_freed_memory()
    device = _on_card(device)
    cipher = cipher_of(device.type)
    size = CIPHERS[cipher]
    seeds: dict[str, bytes]
    client: Dealer
    channel, meeting, again, links = Channel(0, 1, {}, {}, timeout), None, None, None
    try:
        if here.world > 1:
            meeting, ends, links = meet(here, listener, tls, timeout, starting)
            again = ends.again(PAIR) if transfers else None  # the first connection closes its sockets
            _run.links = links
            _run.notes = LaneNotes(meeting.store, links, here, timeout) if links else None
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
            client = open_store(channel, store, here, timeout, device, store_key)
        elif here.parties == 1 or meeting is None:
            client = LocalDealer(0, 1, [new_seed(size)], device)
        elif again is not None and transfers is not None:
            failure = partial(_run.notes.first_failure, 0) if _run.notes else lambda: None
            gathering = Gathering(here, failure, links)
            client = PairDealer(connect_pair(channel, meeting, again, gathering, tls, timeout), transfers)
        else:
            where, security = (meeting.dealer, None) if dealer is None else (dealer, tls)
            client = join_dealer(channel, where, meeting, security, timeout, cipher, device)
    except BaseException as error:
        if again is not None:
            again.close()
        _leave(error, channel)
        raise
    zeros = ZeroSharing(Stream(seeds["prev"], device), Stream(seeds["next"], device))
    lanes_of_party: dict[str, Any] = {"lane": here.lane, "lanes": here.lanes, "links": links, "near": here.near}
    made = Session(here.party, here.parties, channel, client, device, listener=listener, zeros=zeros, **lanes_of_party)
    if _run.notes is not None:
        made.failure = partial(_run.notes.first_failure, 0)
    _run.leaving = False
    if _run.stop is not None:
        _run.stop.raised = False
    begin(made)
    atexit.unregister(uninit)
    atexit.register(uninit)  # registered last, it runs first: before a dealer that was started above is stopped
    crypten_run.start(made, seeds["local"])
    return made


def _on_card(device: torch.device) -> torch.device:
    """Return this process's device with its index: the one given, or for "cuda" without index a GPU of this host.

    The processes of a host take its GPUs in turn. The GPU becomes torch's current one. Raises EnvironmentProblem if the
    host has no such GPU.
    """
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
    """Check four options of `init`, and return `device` as torch's device. where: the name of the caller in errors.

    Raises ConfigError for an option of a wrong type, for a timeout that is no positive number, and for another device
    than "cpu", "cuda" or "meta".
    """
    if dealer is not None and not isinstance(dealer, str):
        raise ConfigError(f"dealer={dealer!r}", where=where, hint='an address, "host:port" or "unix:path", or "pair"')
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
    """Return the name of this process, as errors show it."""
    if _run.here is None:
        try:
            return environment().name
        except HummingbirdError:
            return f"rank {os.environ.get('RANK', '?')}"
    return _run.here.name


def uninit() -> None:
    """Leave the run without an error. `init` may be called again.

    >>> session = hummingbird.init()
    >>> hummingbird.uninit()
    >>> hummingbird.cryptensor(images, src=0)
    Traceback (most recent call last):
        ...
    hummingbird.errors.EnvironmentProblem: no session
    hint: call hummingbird.init() first
    """
    if is_initialized():
        _leave(None, current().channel)


def leaving() -> None:
    """Say that this process ends because of an error that it will print: from now on SIGTERM raises no other one."""
    _run.leaving = True


def abort(error: BaseException) -> None:
    """Leave the run because of an error, and send the reason to the other parties. Does nothing without a session."""
    if is_initialized():
        _leave(error, current().channel)


def _leave(error: BaseException | None, channel: Channel) -> None:
    notes, links = _run.notes, _run.links
    _run.leaving, _run.notes, _run.links = True, None, None
    try:
        stopped = _run.stop is not None and _run.stop.raised
        if notes is not None and error is not None and not stopped:
            notes.failed(reason_of(error))
        if error is not None:
            channel.abort(reason_of(error))
        if is_initialized():
            current().close()
        channel.close()
        if links is not None and error is not None:
            links.channel.abort(reason_of(error))
        if notes is not None:  # nothing after this needs the dealer
            _run.leaving = error is not None  # SIGTERM ends the wait for other lanes
            notes.left("" if error is None else reason_of(error))
    finally:
        if links is not None:
            links.channel.close()  # at last: other lanes take its end for that of lane 0
        begin(None)
        _run.leaving = error is not None
        crypten_run.stop()


def reason_of(error: BaseException) -> str:
    """Return an error's text for other parties: for an error of this package all of it, for any other only its type.

    The text of other errors may contain data.
    """
    return str(error) if isinstance(error, HummingbirdError) else type(error).__name__


# Ending -------------------------------------------------------------------------------------------------------------


@dataclass
class _Run:
    """This process's part in its current run, or in its last one.

    here: the position at the last `init`.
    notes: the run's `LaneNotes`; None with one lane.
    links: to the other lanes of this party; None with one lane.
    leaving: true while this party leaves, unless it waits for its other lanes, and after it has left because of an
        error.
    watching: whether `_watch` has installed its hooks.
    stop: the handler of SIGTERM; None if none is installed.
    """

    here: LanePosition | None = None
    notes: LaneNotes | None = None
    links: LaneLinks | None = None
    leaving: bool = False
    watching: bool = False
    stop: Stop | None = None


_run = _Run()


def _watch() -> None:
    """Install hooks so that this process tells the other parties why it ends, on an uncaught error and on SIGTERM."""
    if _run.watching:
        return
    _run.watching = True
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        abort(error)
        before(kind, error, trace)

    sys.excepthook = hook
    # When a process has failed, launchers stop the others with SIGTERM, whose default action ends a process at once.
    # Here it raises an exception, as Ctrl-C does, wherever the program is.
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        _run.stop = Stop(_why_to_stop, over=lambda: _run.leaving)  # no exception while it leaves: the reason is known


def _why_to_stop() -> PeerError:
    """Make and return the error that SIGTERM raises in this process. It names another party's failure, if one is known.

    Waits up to `_GRACE` seconds for news of such a failure, so the handler calls this function in a thread.
    """
    notes, why = _run.notes, None
    if notes is not None:
        # The session and its sockets may be closed meanwhile.
        with contextlib.suppress(HummingbirdError, OSError, ValueError):
            why = notes.first_failure(_GRACE, current().channel.loss if is_initialized() else str)
    return PeerError(
        "this party was told to stop (SIGTERM)" + (f", after a failure: {why}" if why else ""),
        where=name(),
        hint="launchers do so when another party has failed: see its message",
    )
