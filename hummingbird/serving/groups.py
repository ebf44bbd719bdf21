"""The groups of parties among which a client chooses for each request, and the file from which it reads them.

A *group* is two parties or more that serve a net together (party_group.py). Several groups may serve the same net, and
a request runs in one of them. The client chooses two groups at random, and asks the one that has less work: the images
that the client itself has sent there, and those that the group's parties last reported. Every answer brings a report.
One that is older than `FRESH` seconds is asked for again, which takes a round trip, at both groups at the same time.

With two choices in place of one, the longest queue grows like log log n with the number of groups n, and not like log n
(Mitzenmacher, 2001). And groups that are slow, or full, get fewer requests.

A group that fails rests, for as long as its refusal says (but at most ten seconds) or for a second at most, and others
are asked meanwhile. So does a group that does not even say that it is alive while a request waits there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import TypeVar

from hummingbird.errors import (
    AgreementError,
    ConfigError,
    HummingbirdError,
    InputError,
    NotFoundError,
    OverloadError,
    PeerError,
    UnavailableError,
)
from hummingbird.rpc.client import Retry
from hummingbird.serving.description import MOST_PARTIES, ServiceDescription, version_of
from hummingbird.serving.lines_file import LinesFile
from hummingbird.serving.party_group import Joined, PartyGroup

_T = TypeVar("_T")
PAUSES = (0.1, 1.0)  # seconds before the next attempt: at first, and at most
GLANCE = 3.0  # seconds for a group to answer where there are several
FRESH = 1.0  # seconds for which a group's report of its work holds
_WATCH = 5.0  # seconds that a request waits until its group must show that it is alive
_SOON = 0.1  # seconds for which a client waits for the second of two reports, at least
_LONGEST = 10.0  # seconds of a group's rest: by then it may have room, though it expected none
_RANDOM = secrets.SystemRandom()


def group_file(path: str | os.PathLike[str]) -> LinesFile[list[list[str]]]:
    """Return the file of groups at this path: each line has the addresses of a group's parties."""
    return LinesFile(path, _groups_in, "the groups known before stay in use")


def _groups_in(lines: list[list[str]], where: str) -> list[list[str]]:
    if not lines:
        raise InputError("no groups", where=where, hint="a line of addresses for each group: a:9100 b:9100")
    check_groups(lines, where)
    return lines


def check_groups(groups: Sequence[Sequence[str]], where: str) -> None:
    """Raise ConfigError unless each group has the addresses of 2 to `MOST_PARTIES` parties, and none stands twice.

    where: the place that the error names.
    """
    seen: dict[str, Sequence[str]] = {}
    for addresses in groups:
        if not 2 <= len(addresses) <= MOST_PARTIES:
            what = f"{len(addresses)} address(es) for a group: {' '.join(addresses)[:200]}"
            raise ConfigError(what, where=where, hint="the addresses of all parties, two or more, for each group")
        for address in addresses:
            if address in seen:
                what = f"{address} stands twice: in {' '.join(seen[address])} and in {' '.join(addresses)}"
                raise ConfigError(what, where=where, hint="each party belongs to one group, and is named once")
            seen[address] = addresses


class Groups:
    """The groups of a client: chooses one for each request. Any thread may call any method.

    groups: the addresses of each group, or the file that has them. timeout: seconds for each request, and for the
    attempts to repeat it. made: makes a `PartyGroup` of addresses. model: NAME@VERSION, or NAME for its newest version;
    "": the only one.
    """

    def __init__(
        self,
        groups: LinesFile[list[list[str]]] | list[list[str]],
        timeout: float,
        made: Callable[[list[str]], PartyGroup],
        model: str = "",
    ) -> None:
        self.timeout, self.model = timeout, model
        self._name: str | None = None  # of the model served first, which all groups must serve
        self._nets: dict[str, str] = {}  # the fingerprint of each version, which is the same in all groups
        self._file, self._made = groups if isinstance(groups, LinesFile) else None, made
        self._lock = threading.Lock()
        self._all = [made(addresses) for addresses in (groups.read() if isinstance(groups, LinesFile) else groups)]
        self._gone: list[PartyGroup] = []  # no longer in the file, with requests under way
        self._past = [0, 0]  # bytes sent to, and received from, groups that are closed
        self._asking: set[asyncio.Future[bool]] = set()  # reports under way; asyncio itself holds them weakly

    def __str__(self) -> str:
        return " or ".join(map(repr, self._all))

    @property
    def sent_bytes(self) -> int:
        """Bytes of all requests sent so far."""
        return self._past[0] + sum(group.sent_bytes for group in (*self._all, *self._gone))

    @property
    def received_bytes(self) -> int:
        """Bytes of all answers received so far."""
        return self._past[1] + sum(group.received_bytes for group in (*self._all, *self._gone))

    def forget(self) -> None:
        """Let the next request ask its group for the description again."""
        for group in self._all:
            group.forget()

    def close(self) -> None:
        """Disconnect from all groups; may be called twice."""
        for group in (*self._all, *self._gone):
            group.close()

    async def described(self) -> ServiceDescription:
        """Return the description of the service by one of the groups."""

        async def service(group: PartyGroup, joint: Joined, left: float) -> ServiceDescription:
            return joint.service

        return await self.attempts(service, 0)

    async def attempts(
        self, attempt: Callable[[PartyGroup, Joined, float], Awaitable[_T]], images: int, model: str | None = None
    ) -> _T:
        """Call `attempt` for one group of parties after another until it succeeds; return its result.

        attempt: a coroutine function of a group, of the `Joined` service of this group, and of the seconds left. While
        no group serves and has room, attempts go on until the timeout; then the last error is raised. images: how many
        the attempt sends. model: the one that a call has begun with; None: this client's.
        Raises NotFoundError if no group has the model; or if one lacks the model that a call has begun with, and
        another fails: a client of the newest version then begins the call again.
        """
        retry, lacking = Retry(self.timeout, PAUSES), dict[PartyGroup, NotFoundError]()
        while True:
            group = await self.enter(images, lacking)
            try:
                joint = await self.join(group, retry.left, model)
                return await self.watched(group, attempt(group, joint, retry.left))
            except NotFoundError as error:
                lacking[group], pause = error, 0.0
                if lacking.keys() >= set(self._all):
                    raise
            except PeerError as error:
                pause = self.failed(group, error, retry)
                if lacking and model not in (None, self.model):
                    raise next(iter(lacking.values())) from error
            finally:
                self.leave(group, images)
            await asyncio.sleep(pause)

    async def enter(self, images: int, without: Collection[PartyGroup] = ()) -> PartyGroup:
        """Choose a group for a request, and return it.

        images: how many it has; they are the group's until `leave`. without: groups that are chosen only if there are
        no others.
        """
        while True:
            self._reread()
            began = time.monotonic()
            known = [group for group in self._all if group not in without] or self._all
            awake = [group for group in known if group.rests <= began]
            two = _RANDOM.sample(awake, 2) if len(awake) > 1 else awake or [min(known, key=lambda group: group.rests)]

            def silent(group: PartyGroup, began: float = began) -> bool:
                return began > group.reported + FRESH

            if len(two) == 2:
                await self._hear([group for group in two if silent(group)])
            with self._lock:
                if two := [group for group in two if group in self._all]:  # the file may have changed meanwhile
                    group = min(two, key=lambda each: (each.rests > began, silent(each), each.work))
                    group.images += images
                    group.users += 1
                    return group

    def leave(self, group: PartyGroup, images: int) -> None:
        """Note that a request of so many images has ended, whatever became of it."""
        with self._lock:
            group.images -= images
            group.users -= 1
            self._close_unused()

    async def join(self, group: PartyGroup, left: float, model: str | None = None) -> Joined:
        """Connect to the parties of a group within `left` seconds; return their `Joined` service.

        model: the one that is asked for; None: this client's. If there are other groups, a PeerError is raised as an
        UnavailableError (OverloadError and NotFoundError as they are), so that they are tried next. Raises
        AgreementError if this group serves another net than the groups that answered before.
        """
        several = len(self._all) > 1
        try:
            joint = await group.join(min(left, GLANCE) if several else left, self.model if model is None else model)
        except PeerError as error:
            if not several or isinstance(error, (UnavailableError, OverloadError, NotFoundError)):
                raise
            raise UnavailableError(error.what, where=str(group), hint=error.hint) from None
        found, name = joint.service, version_of(joint.service.model)[0]
        self._name = name if self._name is None else self._name
        if several and self._name != name:
            what = f"the parties at {group} serve {name or 'a net without a name'}, and others {self._name or 'one'}"
            raise AgreementError(what, where="Client", hint="name groups that serve the same models, or name a model")
        if self._nets.setdefault(found.model, found.net) != found.net and several:
            what = f"the parties at {group} serve another net than the parties that this client asked before"
            what += f", under the same name, {found.model}" if found.model else ""
            raise AgreementError(what, where="Client", hint="name groups that serve the same net, windows included")
        return joint

    def failed(self, group: PartyGroup, error: PeerError, retry: Retry) -> float:
        """Let a group rest that has failed; return the seconds until the next attempt at some group, or raise `error`.

        retry: of the request.
        """
        if isinstance(error, UnavailableError):
            group.forget()
        return retry.failed(error, partial(self._rest, group))

    def _rest(self, group: PartyGroup, seconds: float) -> float:
        """Let a group rest that has failed; return the seconds until some group may be asked.

        seconds: for which this group is asked only if all groups rest; where there are several, `_LONGEST` at most.
        """
        now = time.monotonic()
        group.rests = now + (seconds if len(self._all) == 1 else min(seconds, _LONGEST))
        return max(0.0, min(each.rests for each in self._all) - now)

    async def watched(self, group: PartyGroup, attempt: Awaitable[_T]) -> _T:
        """Return the result of `attempt`, a request in `group`; raise UnavailableError if the group falls silent.

        A request may take long. While it waits, the client asks the group from time to time for its work. If there are
        other groups, and this one does not answer within `GLANCE` seconds, the request is cancelled.
        """
        if len(self._all) == 1:
            return await attempt
        task = asyncio.ensure_future(attempt)
        try:
            while not (await asyncio.wait([task], timeout=_WATCH))[0]:
                with contextlib.suppress(AgreementError, NotFoundError):  # parties that say so are alive
                    await group.join(GLANCE, self.model, FRESH)
        except PeerError as error:
            what = f"silent while a request waits: {error.what}"
            raise UnavailableError(what, where=str(group), hint=error.hint) from None
        finally:
            task.cancel()
        return task.result()

    async def _hear(self, groups: list[PartyGroup]) -> None:
        """Ask groups for their work; wait for the first report, and then for the other one as long again."""
        if not groups:
            return
        asked = [asyncio.ensure_future(self._report(group)) for group in groups]
        for task in asked:
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
        began, alone = time.monotonic(), len(asked) == 1  # alone: the other one has reported a moment ago
        done, waiting = await asyncio.wait(asked, timeout=_SOON if alone else None, return_when=asyncio.FIRST_COMPLETED)
        if done and waiting:
            heard = any(task.result() for task in done)
            await asyncio.wait(waiting, timeout=max(_SOON, time.monotonic() - began) if heard else None)

    async def _report(self, group: PartyGroup) -> bool:
        """Ask a group for its work, `GLANCE` seconds at most; return whether it has answered."""
        try:
            await group.join(GLANCE, self.model, FRESH)
        except HummingbirdError as error:  # other errors than lost parties are raised where the group is chosen
            if isinstance(error, PeerError):
                self._rest(group, PAUSES[1])
            return False
        return True

    def _reread(self) -> None:
        """Take the groups that the file has now, if it has changed."""
        if self._file is None:
            return
        with self._lock:
            found = self._file.changed()
            if found is None:
                return
            known = {frozenset(group.addresses): group for group in self._all}
            names = [frozenset(addresses) for addresses in found]
            self._all = [known.pop(name) if name in known else self._made(sorted(name)) for name in names]
            self._gone += known.values()
            self._close_unused()

    def _close_unused(self) -> None:
        """Disconnect from groups that the file no longer has, and that no request uses."""
        for group in [group for group in self._gone if not group.users]:
            self._gone.remove(group)
            group.close()
            self._past[0] += group.sent_bytes
            self._past[1] += group.received_bytes
