"""A server's table in parts on the nodes of its owner's Ray cluster; each part is a Ray actor, a process.

A part maps the table's file on its own node and loads its own leaves (`workers.TableShard`): rows do not pass through
the server. The server sends a query's whole keys to all parts; each starts at its first leaf, and the server combines
the answers.

    version of a part = number of changes (`RayParts.write`) that it has made; the server counts them too

Every message names the version that it is for, and a part at another version does not answer. So a part that was
restarted, or missed a change, can make a query fail, and cannot make its answer wrong.

Ray restarts a lost part, on its node or, if the node is lost, on another one with room. The part loads its rows again,
which must have the same digests as before, and gets the changes since then from the server's journal. Until then
queries are refused with a time after which to ask again. Updates are made meanwhile; the lost part gets them later.

Trust: a Ray cluster runs any code of whoever reaches it, and unpickles what they send. It belongs to the owner of one
of the two servers, on a network of its own (SECURITY.md).
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hummingbird.errors import (
    AgreementError,
    EnvironmentProblem,
    HummingbirdError,
    InputError,
    PeerError,
    UnavailableError,
    needs,
)
from hummingbird.pir.prepared import leaf_digests
from hummingbird.pir.serving.workers import Changes, TableShard, cut, joined
from hummingbird.pir.table import Source, State, first_state
from hummingbird.version import VERSION

CONNECT = 10.0  # seconds in which the cluster's address must take a connection
PLACE = 60.0  # seconds in which the cluster must have room for all parts; it may have to start nodes
_LOAD = 3600.0  # seconds for a part to load its rows
_WORK = 300.0  # for one answer or change
_LOOK = 0.5  # between two looks at a part
_AGAIN = 3.0  # between two attempts to bring back a part whose file cannot be used
_SOON = 1.0  # the least time after which a refused query is to be asked again
_SMALL = 96 << 10  # bytes of an argument that travels inside each call; Ray puts larger ones into its object store
_PROCESS = 600 << 20  # bytes of memory that a part takes besides its rows, mostly torch
_SAMPLE = 256  # rows by which two copies of a file are compared before any is loaded
_UNMADE = -1  # version of a part whose rows are right, and that lacks changes
_NONE = torch.empty(0, dtype=torch.int64), torch.empty(0, 0, dtype=torch.uint8)  # no change
_log = logging.getLogger(__name__)


# A part, on its node --------------------------------------------------------------------------------------------------


class RayPart:
    """The actor that holds rows `first` to `last` - 1 of a table in a file; `load` reads them.

    path, tensor: the file on this node, and the table's name in it. threads: for a pass over the rows.
    """

    def __init__(self, path: str, tensor: str | None, first: int, last: int, threads: int) -> None:
        self._path, self._tensor, self._rows, self._threads = path, tensor, (first, last), threads
        self._shard: TableShard | None = None
        self._version: int | None = None

    def load(self) -> tuple[str, State, list[bytes]]:
        """Read the rows from the file. The server checks what they are before it gives this part a version, by `write`.

        Returns this package's release, the state of a sample of the file's rows (`sampled`), and the digests of this
        part's leaves. Raises the errors of `Source.open`.
        """
        torch.set_num_threads(self._threads)
        self._shard, self._version = None, None
        source = replace(Source.open(self._path, self._tensor), digests=None)  # this node's copy of the file is read
        sample = sampled(source)
        if self._rows[1] > source.facts.rows:
            raise InputError(f"the file has {source.facts.text()}", where=self._path)
        shard = TableShard(source, *self._rows)
        shard.load()
        self._shard = shard
        return VERSION, sample, shard.digests

    def version(self) -> int | None:
        """Return the number of changes that this part has made; -1 if it lacks some, None before the first `write`."""
        return self._version

    def write(self, version: int, indices: np.ndarray, records: np.ndarray) -> None:
        """Change rows. version: of this part afterwards. indices: int64 (n,), records: uint8 (n, record_bytes)."""
        if self._shard is None:
            raise PeerError("this part has not loaded its rows")
        if len(indices):
            self._shard.write(torch.from_numpy(indices.copy()), torch.from_numpy(records.copy()))
        self._version = version

    def answer(self, version: int, keys: np.ndarray, width: int) -> np.ndarray | None:
        """Combine the records of this part that keys select, as `workers.Shard.answer`; None at another version."""
        if self._shard is None or self._version != version:
            return None
        return self._shard.answer(torch.from_numpy(keys.copy()), width).numpy()


def sampled(source: Source) -> State:
    """Return the state that a table would have if it were a sample of the rows of `source`, evenly spaced."""
    places = np.linspace(0, source.facts.rows - 1, min(_SAMPLE, source.facts.rows)).astype(np.int64)
    return first_state(source.facts, source.version, leaf_digests(np.ascontiguousarray(source.records[places])))


class _Remote:
    """One part, as the server sees it.

    actor: Ray's handle. away: since when the part is missing, by time.monotonic(); None while it is there. why: the
    reason. took: seconds until it was there at the start. digests: of its leaves.
    """

    def __init__(self, number: int, count: int, first: int, last: int) -> None:
        self.name = f"part {number} of {count} (rows {first} to {last - 1})"
        self.number, self.first, self.last = number, first, last
        self.actor: Any = None
        self.away: float | None = None
        self.why = ""
        self.took = 1.0
        self.digests: list[bytes] = []


# All parts, as the server sees them -----------------------------------------------------------------------------------


class RayParts:
    """A table in a file, divided among actors on the nodes of a Ray cluster; the `workers.Shard` of a server.

    address: `auto` for the cluster that this host is a node of, HOST:PORT of the cluster's head, or `local` for a new
    one on this host alone. A process that has called ray.init() already keeps its cluster, whatever the address.
    path, tensor: the file, which must be at this path on every node, and the table's name in it. count: number of
    parts. threads: of each part, which reserves as many CPUs.
    With at least as many nodes as parts every part gets a node of its own; on fewer nodes the parts are spread evenly,
    and a lost node takes several with it.
    Raises EnvironmentProblem without ray, a cluster, or room for the parts; InputError for a bad address or file, or
    more parts than leaves (blocks of 1024 rows); AgreementError if a node's file is another one; PeerError if a part
    ends while it loads.

        shard = RayParts("auto", Path("table.npy"), None, 16)
        server = pir.Server(Source.open("table.npy"), 0, shard=shard)
    """

    def __init__(self, address: str, path: Path, tensor: str | None, count: int, threads: int = 1) -> None:
        source = Source.open(path, tensor)
        runs = cut(source.facts.rows, count, "--parts")
        self._parts = [_Remote(number, count, *run) for number, run in enumerate(runs)]
        self._sample, self._threads = sampled(source), threads
        self._job = (str(path.absolute()), tensor)
        self._version = 0
        self._changes: Changes | None = None
        self._closing = threading.Event()
        self._minders: list[threading.Thread] = []
        self._group: Any = None
        self._ray, self._own = _connected(address)
        try:
            self._place(max(last - first for first, last in runs) * source.facts.record_bytes)
            started = time.monotonic()
            for part in self._parts:
                self._start(part)
            loading = {part: part.actor.load.remote() for part in self._parts}
            for part, told in loading.items():
                self._loaded(part, told)
                part.took = time.monotonic() - started
            self._gathered({part: self._sent(part, self._version, *_NONE) for part in self._parts}, _WORK)
        except BaseException:
            self.close()
            raise
        self.digests = [digest for part in self._parts for digest in part.digests]

    def accept(self, keys: Tensor, width: int) -> None:
        """Raise UnavailableError while a part is missing."""
        self._refuse()

    def answer(self, keys: Tensor, width: int) -> Tensor:
        """Combine the records that keys select, as `workers.Shard.answer`; raises UnavailableError without a part."""
        self._refuse()
        array = keys.contiguous().numpy()
        held = self._ray.put(array) if array.nbytes > _SMALL else array
        asked = {part: part.actor.answer.remote(self._version, held, width) for part in self._parts}
        found = self._gathered(asked, _WORK)
        for part in [part for part, answer in found.items() if answer is None]:
            self._lost(part, "it was restarted, or missed a change")
            del found[part]
        if len(found) < len(self._parts):  # even if the missing ones are back by now
            self._refuse()
            raise UnavailableError("a part of the table was lost and is back", hint="ask again", retry_after=_SOON)
        return joined([torch.from_numpy(answer.copy()) for answer in found.values()], width)

    def write(self, indices: Tensor, records: Tensor) -> None:
        """Replace records in all parts that are there; the others get them from the journal when they are back."""
        self._version += 1
        there = [part for part in self._parts if part.away is None]
        self._gathered({part: self._sent(part, self._version, indices, records) for part in there}, _WORK)

    def check(self) -> bool:
        """Return whether all parts are there."""
        return all(part.away is None for part in self._parts)

    def follow(self, changes: Changes) -> None:
        """From now on watch all parts, and bring back those that are lost, with the changes that `changes` gives."""
        self._changes = changes
        for part in self._parts:
            thread = threading.Thread(target=self._mind, args=(part,), name=f"pir-part-{part.number}", daemon=True)
            self._minders.append(thread)
            thread.start()

    def close(self) -> None:
        """End the actors, and leave the cluster if this object has joined it; may be called twice."""
        if self._closing.is_set():
            return
        self._closing.set()
        with contextlib.suppress(self._ray.exceptions.RayError):  # the cluster may have ended before
            for part in self._parts:
                if part.actor is not None:
                    self._ray.kill(part.actor)
            if self._group is not None:
                self._ray.util.remove_placement_group(self._group)
        ends = time.monotonic() + 2 * _LOOK
        for thread in self._minders:
            thread.join(max(0.0, ends - time.monotonic()))
        if self._own:
            self._ray.shutdown()

    # Places and actors ------------------------------------------------------------------------------------------------

    def _place(self, most: int) -> None:
        """Reserve room for all parts on the cluster's nodes. most: bytes of the largest part."""
        need = {"CPU": self._threads, "memory": most + _PROCESS}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        fit = sum(all(node.get(name, 0) >= amount for name, amount in need.items()) for node in nodes)
        alone, count = fit >= len(self._parts), len(self._parts)
        make = self._ray.util.placement_group
        self._group = make([need] * count, strategy="STRICT_SPREAD" if alone else "SPREAD")
        if not self._group.wait(PLACE):
            free = self._ray.available_resources()
            what = f"no room for {count} parts of {self._threads} CPUs and {need['memory'] / 1e9:.1f} GB each"
            has = f"{len(nodes)} nodes with {free.get('CPU', 0):g} CPUs and {free.get('memory', 0) / 1e9:.1f} GB free"
            hint = f"the cluster has {has}: add nodes, or take fewer --parts or --threads"
            raise EnvironmentProblem(what, where="--ray", hint=hint)
        if not alone:
            _log.warning("%d parts on %d nodes: a lost node takes several parts with it", count, fit)

    def _start(self, part: _Remote) -> None:
        place = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(self._group, part.number)
        options = {"num_cpus": self._threads, "max_restarts": -1, "max_task_retries": 0, "scheduling_strategy": place}
        made = self._ray.remote(RayPart).options(**options)
        part.actor = made.remote(*self._job, part.first, part.last, self._threads)

    def _loaded(self, part: _Remote, told: Any) -> None:
        """Wait until a part has loaded its rows, and check that they are those of this table.

        told: Ray's reference of what `RayPart.load` returns. Raises HummingbirdError, naming the part.
        """
        try:
            release, sample, digests = self._ray.get(told, timeout=_LOAD)
        except self._ray.exceptions.RayError as error:
            raise _failed(error, part.name) from None
        if release != VERSION:
            what = f"its node has release {release}, this host {VERSION}"
            raise AgreementError(what, where=part.name, hint="install the same release on all nodes")
        if sample != self._sample or part.digests not in ([], digests):
            hint = f"copy {self._job[0]} again to the node where this part is"
            raise AgreementError("its node has another table in the file", where=part.name, hint=hint)
        part.digests = digests

    # Calls ------------------------------------------------------------------------------------------------------------

    def _sent(self, part: _Remote, version: int, indices: Tensor, records: Tensor) -> Any:
        """Send a part those of some changes that are in its rows; returns Ray's reference of the acknowledgement."""
        own = (indices >= part.first) & (indices < part.last)
        return part.actor.write.remote(version, indices[own].numpy(), records[own].numpy())

    def _gathered(self, asked: Mapping[_Remote, Any], seconds: float) -> dict[_Remote, Any]:
        """Wait for the results of one call to each of several parts; those without a result are lost.

        asked: Ray's references. seconds: to wait for all. Returns the results of the other parts.
        """
        ends, found = time.monotonic() + seconds, dict[_Remote, Any]()
        for part, told in asked.items():
            try:
                found[part] = self._ray.get(told, timeout=max(0.0, ends - time.monotonic()))
            except self._ray.exceptions.RayError as error:
                self._lost(part, f"its process or node does not answer ({type(error).__name__})")
                if not isinstance(error, self._ray.exceptions.RayActorError):  # it hangs, or failed: a fresh process
                    self._ray.kill(part.actor, no_restart=False)
        return found

    def _refuse(self) -> None:
        """Raise UnavailableError if a part is missing, with the time after which it should be back."""
        away = [(part, since) for part in self._parts if (since := part.away) is not None]
        if away:
            left = max(_SOON, *(part.took + since - time.monotonic() for part, since in away))
            names = f"{away[0][0].name}: {away[0][0].why}"
            what = f"{len(away)} of {len(self._parts)} parts of the table are missing; {names}"
            hint = f"ask again in {left:.0f} s, when it should be back"
            raise UnavailableError(what, hint=hint, retry_after=left)

    def _lost(self, part: _Remote, why: str) -> None:
        if part.away is None and not self._closing.is_set():
            part.why, part.away = why, time.monotonic()
            _log.warning("%s is lost: %s", part.name, why)

    # Watching ---------------------------------------------------------------------------------------------------------

    def _mind(self, part: _Remote) -> None:
        """Notice the loss of a part, also while there are no queries, and bring it back; runs until `close`."""
        look: Any = None  # a call that is under way; it may wait behind an answer
        while not self._closing.wait(_LOOK):
            try:
                if part.away is not None:
                    look = None
                    self._bring(part)
                elif look is None:
                    look = part.actor.version.remote()
                elif self._ray.wait([look], timeout=0)[0]:
                    if self._ray.get(look) is None:
                        self._lost(part, "it was restarted")
                    look = None
            except self._ray.exceptions.RayError as error:
                self._lost(part, f"its process or node does not answer ({type(error).__name__})")
            except Exception as error:  # its file, or the journal; they may be mended meanwhile
                why = error.what if isinstance(error, HummingbirdError) else type(error).__name__
                if part.why != why and not self._closing.is_set():
                    part.why = why
                    _log.warning("%s cannot be brought back yet: %s", part.name, error)
                self._closing.wait(_AGAIN)

    def _bring(self, part: _Remote) -> None:
        """Try to bring back a part: load its rows if it has none that were checked, and make the changes that it lacks.

        Raises RayError if it is not there yet, or lost again, and the errors of `_loaded` and of the journal.
        """
        try:
            version = self._ray.get(part.actor.version.remote(), timeout=_WORK)
        except self._ray.exceptions.ActorDiedError:  # Ray will not restart it
            self._start(part)
            raise
        if version is None:
            self._loaded(part, part.actor.load.remote())
        assert self._changes is not None
        with self._changes() as changes:
            if version != self._version:
                for change in changes:
                    self._ray.get(self._sent(part, _UNMADE, *change), timeout=_WORK)
                self._ray.get(self._sent(part, self._version, *_NONE), timeout=_WORK)
            if part.away is not None:
                _log.warning("%s is back after %.1f s", part.name, time.monotonic() - part.away)
            part.away, part.why = None, ""


# The cluster ----------------------------------------------------------------------------------------------------------


def _connected(address: str) -> tuple[Any, bool]:
    """Join a Ray cluster, unless this process has; return the module ray, and whether this call has joined."""
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")  # a late call after the end must not start a cluster
    with needs("ray", "--ray"):
        import ray
        import ray.exceptions
        import ray.util.scheduling_strategies
    if ray.is_initialized():
        return ray, False
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
    if address == "local":  # a cluster of this process alone, which nobody else is to reach
        options |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    else:
        _probe(os.environ.get("RAY_ADDRESS", "auto") if address == "auto" else address)
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address, **options)
    except Exception as error:
        hint = (
            "this host must be a node of the cluster (ray start), with the same Ray, Python and, if it has one, token"
        )
        what = f"cannot join a Ray cluster: {str(error).strip().splitlines()[0]}"
        raise EnvironmentProblem(what, where=f"--ray {address}", hint=hint) from None
    finally:
        if main:  # Ray has set its own, which would end this program at once
            signal.signal(signal.SIGTERM, handler)
    return ray, True


def _probe(address: str) -> None:
    """Raise an error unless an address is `auto`, or one that takes a connection: Ray would try for minutes."""
    if address == "auto":
        return
    where = f"--ray {address}"
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal():
        hint = "auto, local or HOST:PORT, on a node of the cluster; an address ray:// is for clients outside of it"
        raise InputError("not the address of a Ray cluster", where=where, hint=hint)
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT).close()
    except (OSError, OverflowError) as error:
        hint = "is the head running (ray start --head), is this its port, by default 6379?"
        raise EnvironmentProblem(f"no Ray cluster answers: {error}", where=where, hint=hint) from None


def _failed(error: Exception, where: str) -> HummingbirdError:
    """Return the error for a part that could not load its rows. error: Ray's. where: the part."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, (InputError, EnvironmentProblem)):
        hint = cause.hint or "every node needs the table's file, at this path"
        return type(cause)(cause.what, where=f"{where}, {cause.where}", hint=hint)
    last = str(error).strip().splitlines()[-1:]
    hint = "every node needs this release of hummingbird-mpc[ray], and memory for its part"
    return PeerError(f"it ended while it loaded its rows: {''.join(last)}", where=where, hint=hint)
