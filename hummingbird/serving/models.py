"""The models that a party serves: one net, or those of a file, which come and go while the service runs.

Each line of the file has a model's name and version, the folder of its saved net, and the shape of each input:

    digits@1  saved/digits-1  1x8x8
    digits@2  saved/digits-2  1x8x8

One session of the parties serves all of them. Clients ask for a version, or for a name, which means its newest version.
Each party has a file of its own, and reads it again when it has changed. It prepares the new nets on a thread, and then
tells party 0. Party 0 lets all parties compare their lists at the same point between two batches. A model that is equal
in all lists is served from then on. A model that is missing from a list, or that differs, is not served, and each party
says why; the others are served as before. Two models are equal if their descriptions are equal: name, version, shapes,
the saved net's digest, which binds its weights, and the limits of a request.

A model that leaves a list is no longer offered. Requests in the queue for it are still computed; then all parties drop
it.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hummingbird import records
from hummingbird.convert import build
from hummingbird.errors import AgreementError, InputError, NotFoundError, UnavailableError
from hummingbird.mpc.plan.decoder import PrivateDecoder
from hummingbird.mpc.plan.net import PrivateNet
from hummingbird.mpc.session.session import Session
from hummingbird.saving import NetDescription, read_net
from hummingbird.saving.folder import description
from hummingbird.serving.description import MOST_TITLE, ServiceDescription, version_of
from hummingbird.serving.lines_file import LinesFile
from hummingbird.serving.plan import ServedTable, describe

_MOST = 256  # models of a file
_TITLE = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,63}@[1-9][0-9]{0,9}")
_SHAPE = re.compile("[1-9][0-9]{0,8}(x[1-9][0-9]{0,8}){0,7}")
_LISTS = records.mapping(records.digits(16), _MOST, MOST_TITLE)  # the digest of each model's description
_LOOK = 1.0  # seconds between two looks at the file
_VERSION = "give other weights another version"


@dataclass(eq=False, repr=False)
class ServedModel:
    """A net that a party serves.

    private: the net. service: its description. rows: the table of a net with lookups, or None. left: whether the
    parties have dropped it. A net that was dropped is never served again: it is set up once, at all parties together.
    """

    private: PrivateNet | PrivateDecoder
    service: ServiceDescription
    rows: ServedTable | None = None
    left: bool = False

    @property
    def net(self) -> PrivateNet:
        """The net, of a service that computes images."""
        assert isinstance(self.private, PrivateNet)
        return self.private


# What clients find ----------------------------------------------------------------------------------------------------


class Offer:
    """The descriptions of the nets that a party serves in one session, as clients find them. For any thread.

    services: those from the start.
    """

    def __init__(self, *services: ServiceDescription) -> None:
        self._lock = threading.Lock()
        self._all = {service.digest: service for service in services}  # those that are leaving, too
        self._leaving: set[bytes] = set()
        self.listed: frozenset[str] = frozenset()  # the models of this party's list, ready or not
        self.changes = 0  # how often models have come or left

    @property
    def services(self) -> list[ServiceDescription]:
        """The services that clients may ask for now, by name and version."""
        with self._lock:
            ready = [service for digest, service in self._all.items() if digest not in self._leaving]
        return sorted(ready, key=lambda service: version_of(service.model))

    def serves(self, digest: bytes) -> bool:
        """Whether clients may ask for the service whose description has this digest."""
        with self._lock:
            return digest in self._all and digest not in self._leaving

    def known(self, word: int) -> ServiceDescription | None:
        """Return the service with this `word`, also if it is leaving; None if there is none."""
        with self._lock:
            return next((service for service in self._all.values() if service.word == word), None)

    def named(self, digest: bytes) -> ServiceDescription:
        """Return the service whose description has this digest, also if it is leaving; another one if there is none.

        Raises UnavailableError if there is no service.
        """
        with self._lock:
            for service in [*self._all.values()][-1:] if digest not in self._all else [self._all[digest]]:
                return service
        raise _not_ready("any model")

    def choose(self, model: str) -> ServiceDescription:
        """Return the service that a client asks for.

        model: NAME@VERSION; or NAME, for its newest version that is ready; or "", where all models have one name.
        Raises NotFoundError for a model that this party does not have, UnavailableError for a name of which no version
        is ready yet.
        """
        ready, (name, version) = self.services, version_of(model)
        if not model and len({version_of(service.model)[0] for service in ready}) > 1:
            what = f"this service has several models: {_titles(ready)}"
            raise NotFoundError(what, where="model", hint='name one: Client(..., model="NAME"), ask --model NAME')
        versions = [service for service in ready if not model or version_of(service.model)[0] == name]
        for service in reversed(versions):
            if not version or service.model == model:
                return service
        if not versions and (not model or any(version_of(title)[0] == name for title in self.listed)):
            raise _not_ready(name or "any model")
        hint = f"there is {_titles(ready)}" if ready else "ask its operators which models it has"
        raise NotFoundError(f"there is no model {model[:MOST_TITLE]!r} here", where="model", hint=hint)

    def begin(self, service: ServiceDescription) -> None:
        """Offer a service from now on."""
        with self._lock:
            self._all[service.digest] = service
            self.changes += 1

    def retire(self, service: ServiceDescription) -> None:
        """Offer a service no more; requests that wait for it are still answered."""
        with self._lock:
            self._leaving.add(service.digest)
            self.changes += 1

    def end(self, digest: bytes) -> None:
        """Forget a service that is leaving."""
        with self._lock:
            self._leaving.discard(digest)
            self._all.pop(digest, None)


def _titles(services: list[ServiceDescription]) -> str:
    return ", ".join(service.model or "one net without a name" for service in services)


def _not_ready(name: str) -> UnavailableError:
    hint = "try again in a few seconds; the parties' output says what they wait for"
    return UnavailableError(f"no version of {name} is ready", where="model", hint=hint)


# The file -------------------------------------------------------------------------------------------------------------


class Listed(NamedTuple):
    """A line of the file: a model's title, NAME@VERSION, the folder of its saved net, and the shapes of its inputs."""

    title: str
    folder: Path
    shapes: tuple[tuple[int, ...], ...]


def models_of(lines: list[list[str]], where: str) -> dict[str, Listed]:
    """Return the models that a file's lines list, by title. Raises InputError for other lines.

    lines: the words of each. where: the file, for errors.
    """
    found: dict[str, Listed] = {}
    for line in lines:
        if len(line) < 3 or not _TITLE.fullmatch(line[0]) or not all(map(_SHAPE.fullmatch, line[2:])):
            hint = "NAME@VERSION, the folder of its saved net, the shape of each input: digits@1 saved/digits 1x8x8"
            raise InputError(f"no model: {' '.join(line)[:200]}", where=where, hint=hint)
        if line[0] in found:
            raise InputError(f"{line[0]} stands twice", where=where, hint=_VERSION)
        shapes = tuple(tuple(map(int, word.split("x"))) for word in line[2:])
        found[line[0]] = Listed(line[0], Path(line[1]), shapes)
    if not 1 <= len(found) <= _MOST:
        raise InputError(f"{len(found)} models", where=where, hint=f"1 to {_MOST} lines, one for each model")
    return found


def model_file(path: str | Path) -> LinesFile[dict[str, Listed]]:
    """Return the file of models at this path."""
    return LinesFile(path, models_of, "the models listed before stay in use")


class _Prepared(NamedTuple):
    mark: str  # of the saved net's digest, and the shapes
    model: ServedModel


class Models:
    """The models that one party serves in one session: those of a file, or one that is fixed.

    session: of the parties; the nets of a file take their material from its dealer. name: of the session, hexadecimal.
    file: of models. aim: of their conversion; None: the session's. most: most images of a batch. group: number of this
    group of parties. told: called at each change of a model's state, with its title, whether it is ready
    (None: it is gone), and what is wrong with it, or "". fixed: the one net, in place of a file.
    """

    def __init__(
        self,
        session: Session,
        name: str,
        file: LinesFile[dict[str, Listed]] | None = None,
        *,
        aim: str | None = None,
        most: int = 0,
        group: int = 0,
        told: Callable[[str, bool | None, str], object] = lambda title, ready, why: None,
        fixed: ServedModel | None = None,
    ) -> None:
        self._session, self._name, self._file, self._aim = session, name, file, session.aim if aim is None else aim
        self._most, self._group, self._told, self.fixed = most, group, told, fixed
        self._prepared: dict[str, _Prepared] = {}
        self._listed: Mapping[str, Listed] = {}
        self._again = False  # whether a model that has left is to be prepared anew, in case that it is listed
        self._states: dict[str, tuple[bool, str]] = {}  # of each model, as it was told last
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._changed: Callable[[], object] = lambda: None
        self._retire: Callable[[ServiceDescription], object] = lambda service: None
        self.ready = {} if fixed is None else {fixed.service.digest: fixed}  # and those that are leaving
        self.offer = Offer(*(model.service for model in self.ready.values()))

    @property
    def facts(self) -> dict[str, str]:
        """The facts that all parties must agree on before they serve, a text for each name."""
        facts = {"group": str(self._group), "max batch": str(self._most)}
        if self.fixed is None:
            return facts | {"models": "of a file"}
        service, rows = self.fixed.service, self.fixed.rows
        facts |= {"table": rows.digest if rows else "none", "input": str(service.shape), "models": "one"}
        return facts | {"max batch": str(service.most), "group": str(service.group), "service": service.digest.hex()}

    def prepare(self, listed: Mapping[str, Listed]) -> None:
        """Read and convert the nets of a list that are new, without a message; forget those that it no longer has.

        listed: the models of the file. A net that cannot be read, converted or served is told as not ready, and this
        party's list lacks it. If a folder has other weights now than the model that is served from it, this is told,
        and the list keeps the model that is served.
        """
        self._listed, self._again, self.offer.listed = listed, False, frozenset(listed)
        found: dict[str, _Prepared] = {}
        for title, line in listed.items():
            known, why = self._prepared.get(title), ""
            served = known is not None and self.offer.serves(known.model.service.digest)
            if known is not None and not known.model.left:
                found[title] = known
            try:
                saved = description(line.folder)
                mark = f"{saved.digest} {line.shapes}"
                if title not in found or (found[title].mark != mark and not served):
                    found[title] = _Prepared(mark, self._made(line, saved))
                elif found[title].mark != mark:
                    why = f"{line.folder} has other weights, windows or shapes now than are served: {_VERSION}"
            except Exception as error:  # noqa: BLE001 - whatever is wrong with one model, the others are served
                why = str(error).replace("\n", "; ") or type(error).__name__
            if why or served:
                self._tell(title, served, why)
        with self._lock:
            self._prepared = {title: entry for title, entry in found.items() if not entry.model.left}
            self._again = self._again or len(self._prepared) < len(found)

    def _made(self, line: Listed, saved: NetDescription) -> ServedModel:
        """Return the model of a line, not yet set up. Batches may run meanwhile: no state of the process is changed.

        A saved net is traced without torch.fx, and nothing is run but shapes.
        """
        session = self._session
        net = read_net(line.folder, saved, weights=saved.owner in (None, session.rank))
        private: PrivateNet = build(net, *saved.arguments, session.parties, None, self._aim)
        service = describe(
            private, line.shapes, self._most, session, self._name, None, self._group, line.title, saved.digest
        )
        if service.rowwise:
            private.images_per_slice = service.most
        return ServedModel(private, service)

    def begin(self) -> None:
        """Read the file, convert its nets, and serve those that all parties have. All parties call this at first.

        Raises errors of the file, and AgreementError if there is no model that all parties have.
        """
        assert self._file is not None
        self.prepare(self._file.read())
        self.compare()
        if not self.ready:
            what = "; ".join(f"{title}: {why}" for title, (_, why) in sorted(self._states.items()))
            hint = "all parties need the same saved nets under the same names and versions"
            raise AgreementError(f"the parties have no model in common: {what}", where="models", hint=hint)

    def compare(self) -> None:
        """Compare the lists of all parties, and serve what is in all of them from now on. All parties call this.

        Takes 1 round, and for each new model what `PrivateNet.set_up` takes. Does nothing for one net that is fixed.
        """
        if self.fixed is not None:
            return
        with self._lock:
            prepared = dict(self._prepared)
        channel, hint = self._session.channel, "install the same release everywhere"
        own = {title: entry.model.service.digest.hex() for title, entry in prepared.items()}
        lists = {channel.rank: own}
        for peer, text in channel.exchange_text(json.dumps(own)).items():
            how: Any = {"name": "list of models", "where": channel.names[peer], "hint": hint, "error": AgreementError}
            lists[peer] = records.read(text, _LISTS, **how)
        for model in list(self.ready.values()):
            service = model.service
            if self.offer.serves(service.digest) and self._odd(service.model, service.digest.hex(), lists):
                self._retire(service)
                with self._lock:
                    model.left = self._again = True
                    self._prepared.pop(service.model, None)
        for title, entry in sorted(prepared.items(), key=lambda item: item[0]):
            service = entry.model.service
            if why := self._odd(title, own[title], lists):
                self._tell(title, False, why)
            elif service.digest not in self.ready:  # the parties agree on this too: they change `ready` here
                entry.model.private.set_up(self._session)
                self.ready[service.digest] = entry.model
                self.offer.begin(service)
                self._tell(title, True)
        others = set().union(*lists.values()) - self.offer.listed
        for title in sorted(others):
            has = " and ".join(channel.names[rank] for rank in sorted(lists) if title in lists[rank])
            self._tell(title, False, f"{has} has it, and {channel.name} does not list it")
        for title in self._states.keys() - self.offer.listed - others:
            self._tell(title, None)

    def _odd(self, title: str, digest: str, lists: Mapping[int, Mapping[str, str]]) -> str:
        """Return why the parties cannot serve a model; "" if it is in all lists.

        digest: of the description that this party has, or had, of it, hexadecimal.
        """
        channel = self._session.channel
        for rank, listed in sorted(lists.items()):
            other = listed.get(title)
            if other is None:
                return f"{channel.names[rank]} does not have it"
            if other != digest:
                what = "other weights, windows or shapes"
                return f"{channel.names[rank]} has {what}: {other[:8]} there, {digest[:8]} at {channel.name}"
        return ""

    def end(self, digest: bytes) -> ServedModel | None:
        """Forget a model that has left, for which no request waits any more; return it, or None if there is none.

        digest: of its description.
        """
        self.offer.end(digest)
        with self._lock:
            again = any(entry.model.service.digest == digest for entry in self._prepared.values())
        if again:  # it was listed once more while it was leaving
            self._changed()
        return self.ready.pop(digest, None)

    def watch(self, changed: Callable[[], object], retire: Callable[[ServiceDescription], object]) -> None:
        """Read the file again when it changes, on a thread, until `close`.

        changed: called when this party's list is another one, so that all parties compare theirs. retire: called with
        the description of a model that leaves.
        """
        self._changed, self._retire = changed, retire
        if self._file is not None:
            threading.Thread(target=self._watch, name="hummingbird-models", daemon=True).start()

    def _watch(self) -> None:
        assert self._file is not None
        while not self._closed.wait(_LOOK):
            listed = self._file.changed()
            if listed is not None or self._again:
                self.prepare(self._listed if listed is None else listed)
                self._changed()

    def close(self) -> None:
        """Read the file no more, and release tables; may be called twice."""
        self._closed.set()
        if self.fixed is not None and self.fixed.rows is not None:
            self.fixed.rows.close()

    def _tell(self, title: str, ready: bool | None, why: str = "") -> None:
        """Call `told` with a model's state, unless this was said before. ready: None for a model that is gone."""
        with self._lock:
            if self._closed.is_set():
                return
            if ready is None:
                self._states.pop(title)
            elif self._states.get(title) == (ready, why):
                return
            else:
                self._states[title] = ready, why
            self._told(title, ready, why)
