"""Several models in one service: the file, what parties compare, and how clients find the version that they ask for."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import grpc
import pytest
import torch
from torch import nn

import hummingbird
from hummingbird.bits import BitWindow
from hummingbird.errors import AgreementError, HummingbirdError, InputError, NotFoundError, UnavailableError
from hummingbird.rpc import service as wire
from hummingbird.serving.client import Client
from hummingbird.serving.description import CHANGES, LOAD, ServiceDescription, version_of
from hummingbird.serving.message import Request, digest_of
from hummingbird.serving.models import Listed, Models, Offer, model_file, models_of
from hummingbird.serving.scheduler import Action, Decision
from tests.serving.test_client import SERVICE, Group, Party, X
from tests.serving.test_scheduler import held, run, scheduler
from tests.support.parties import sessions, together
from tests.support.patience import HANG, NEVER, until

NAME = "ab" * 16


# The file -------------------------------------------------------------------------------------------------------------


def test_a_line_of_the_file_is_a_model(tmp_path: Path) -> None:
    path = tmp_path / "models"
    path.write_text("# two versions\ndigits@1 saved/1 1x8x8\n\ndigits@12 saved/2 3 2x5 # of two inputs\n")
    assert model_file(path).read() == {
        "digits@1": Listed("digits@1", Path("saved/1"), ((1, 8, 8),)),
        "digits@12": Listed("digits@12", Path("saved/2"), ((3,), (2, 5))),
    }
    assert [version_of(text) for text in ("a@3", "a", "", "a@0", "a@b@2")] == [
        ("a", 3),
        ("a", 0),
        ("", 0),
        ("a@0", 0),
        ("a@b", 2),
    ]


@pytest.mark.parametrize(
    "line",
    ["", "a saved 4", "a@0 saved 4", "a@1 saved", "a@1 saved 4x", "a@1 saved 0", "@1 saved 4", "a@1 s 4\na@1 t 4"],
)
def test_other_lines_are_refused(line: str) -> None:
    with pytest.raises(InputError) as found:
        models_of([words.split() for words in line.splitlines()], "models")
    assert found.value.where == "models" and found.value.hint


# What parties compare -------------------------------------------------------------------------------------------------


def saved(folder: Path, seed: int) -> Path:
    """A saved net, whose weights follow from the seed."""
    torch.manual_seed(seed)
    hummingbird.save(nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval(), folder, bits=BitWindow(30, 0))
    return folder


class Parties:
    """Two parties with a file of models each; `said` has what each tells of a model, in order."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.sessions = folder, sessions(2)
        self.said: list[list[tuple[str, bool | None, str]]] = [[], []]
        self.left: list[ServiceDescription] = []
        self.models = []
        for rank, session in enumerate(self.sessions):
            told = lambda *state, rank=rank: self.said[rank].append(state)  # noqa: E731
            self.models.append(Models(session, NAME, model_file(folder / f"models-{rank}"), most=8, told=told))
            self.models[rank]._retire = self.models[rank].offer.retire

    def write(self, *texts: str) -> None:
        for rank, text in enumerate(texts if len(texts) > 1 else texts * 2):
            (self.folder / f"models-{rank}").write_text(text)

    def begin(self) -> None:
        together([models.begin for models in self.models])

    def change(self, *texts: str) -> None:
        """The files change, both parties prepare what is new, and compare."""
        self.write(*texts)
        together([partial(self._change, rank) for rank in range(2)])

    def _change(self, rank: int) -> None:
        self.models[rank].prepare(model_file(self.folder / f"models-{rank}").read())
        self.models[rank].compare()

    @property
    def served(self) -> list[list[str]]:
        return [[service.model for service in models.offer.services] for models in self.models]

    def states(self, rank: int = 0) -> dict[str, tuple[bool | None, str]]:
        return {title: (ready, why) for title, ready, why in self.said[rank]}


@pytest.fixture
def parties(tmp_path: Path) -> Iterator[Parties]:
    for number in range(1, 4):
        saved(tmp_path / f"v{number}", number)
    opened = Parties(tmp_path)
    yield opened
    for session in opened.sessions:
        session.channel.close()


def test_what_all_parties_list_is_served_and_the_rest_is_said(parties: Parties) -> None:
    one, two, three = (f"{parties.folder}/v{number} 4\n" for number in (1, 2, 3))
    parties.write(f"a@1 {one}a@2 {two}", f"a@1 {one}b@1 {three}c@1 {parties.folder}/none 4\n")
    parties.begin()
    assert parties.served == [["a@1"], ["a@1"]]
    assert parties.states() == {
        "a@1": (True, ""),
        "a@2": (False, "party 1 does not have it"),
        "b@1": (False, "party 1 has it, and party 0 does not list it"),
    }
    assert "no saved net" in parties.states(1)["c@1"][1]  # which party 0 does not hear of
    before = [models.offer.changes for models in parties.models]
    parties.change(f"a@1 {one}a@2 {two}", f"a@1 {one}a@2 {two}")
    assert parties.served == [["a@1", "a@2"]] * 2 and parties.states()["a@2"] == (True, "")
    assert parties.states()["b@1"][0] is None and parties.states(1)["c@1"][0] is None  # gone
    assert [models.offer.changes for models in parties.models] == [number + 1 for number in before]


def test_a_model_of_the_same_name_with_other_weights_is_refused_by_name(parties: Parties) -> None:
    """Between the parties, where both are named; and at one party, which goes on with those that it has."""
    one, two = (f"{parties.folder}/v{number} 4\n" for number in (1, 2))
    parties.write(f"a@1 {one}a@2 {one}", f"a@1 {one}a@2 {two}")
    parties.begin()
    assert parties.served == [["a@1"]] * 2
    ready, why = parties.states()["a@2"]
    assert not ready and why.startswith("party 1 has other weights") and "at party 0" in why
    assert parties.states(1)["a@2"][1].startswith("party 0 has other weights")
    parties.change(f"a@1 {two}", f"a@1 {one}")
    assert parties.served == [["a@1"]] * 2
    ready, why = parties.states()["a@1"]
    assert ready and "v2 has other weights" in why and "another version" in why
    shutil.rmtree(parties.folder / "v1")
    parties.change(f"a@1 {two}", f"a@1 {one}")
    assert parties.served == [["a@1"]] * 2 and "no saved net" in parties.states(1)["a@1"][1]
    parties.change(f"a@1 {two}a@2 {two}", f"a@2 {two}")  # which was not served: the right weights may come now
    assert parties.served == [["a@2"]] * 2


def test_parties_without_a_model_in_common_say_what_each_has(parties: Parties) -> None:
    parties.write(f"a@1 {parties.folder}/v1 4", f"a@2 {parties.folder}/v1 4")
    with pytest.raises(AgreementError, match="no model in common: a@1: party 1 does not have it; a@2: party 1 has it"):
        parties.begin()


def test_a_model_that_leaves_is_kept_until_its_requests_have_run(parties: Parties) -> None:
    one, two = (f"{parties.folder}/v{number} 4\n" for number in (1, 2))
    parties.write(f"a@1 {one}a@2 {two}")
    parties.begin()
    zero = parties.models[0]
    (old,) = [model for model in zero.ready.values() if model.service.model == "a@1"]
    parties.change(f"a@2 {two}", f"a@1 {one}a@2 {two}")
    assert parties.served == [["a@2"]] * 2 and zero.ready[old.service.digest] is old
    assert zero.offer.named(old.service.digest) is old.service and not zero.offer.serves(old.service.digest)
    asked: list[int] = []
    for rank, models in enumerate(parties.models):
        models._changed = partial(asked.append, rank)
    parties.change(f"a@1 {one}a@2 {two}")
    assert parties.served == [["a@2"]] * 2  # not while it leaves
    ended = [models.end(old.service.digest) for models in parties.models]
    assert ended[0] is old and asked == [0, 1] and old.service.digest not in zero.ready
    parties.change(f"a@1 {one}a@2 {two}")
    assert parties.served == [["a@1", "a@2"]] * 2


def test_the_file_is_read_again_while_the_service_runs(parties: Parties, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hummingbird.serving.models._LOOK", 0.01)
    monkeypatch.setattr("hummingbird.serving.lines_file._LOOK", 0.0)
    parties.write(f"a@1 {parties.folder}/v1 4")
    parties.begin()
    changed, zero = threading.Event(), parties.models[0]
    zero.watch(changed.set, zero.offer.retire)
    parties.write(f"a@1 {parties.folder}/v1 4\na@2 {parties.folder}/v2 4")
    assert changed.wait(HANG) and set(zero._prepared) == {"a@1", "a@2"}
    zero.close()


# Party 0's choice -----------------------------------------------------------------------------------------------------


def test_a_batch_has_requests_for_one_model() -> None:
    order = scheduler(2, most=8, wait=NEVER)
    ids = [*held(order, 1, 2, model=1), *held(order, 1, model=2), *held(order, 3, model=1), *held(order, 4, model=2)]
    assert order.next(NEVER) == run([ids[0], ids[1], ids[3]])
    assert order.next(0) == []  # five images of the other model, which have not waited
    full = held(order, 3, model=2)
    assert order.next(0) == run([ids[2], ids[4], *full]) and order.empty


def test_a_model_is_forgotten_when_no_request_waits_for_it() -> None:
    order = scheduler(2, most=8, wait=NEVER)
    first, second = held(order, 1, model=1), held(order, 1, model=2)
    order.retire(1, b"digest of one...")
    assert order.next(NEVER) == [*run(first), Decision(b"digest of one...", Action.UNLOAD)]
    order.retire(2, b"digest of two...")
    order.change()
    assert order.next(0) == [Decision(bytes(16), Action.CHANGE)]
    order.give_up(second[0])
    decisions = order.next(NEVER)
    assert decisions == [Decision(second[0], Action.GIVEN_UP), Decision(b"digest of two...", Action.UNLOAD)]
    assert order.next(0) == []


# Clients --------------------------------------------------------------------------------------------------------------


def version(model: str, **how: object) -> ServiceDescription:
    return replace(SERVICE, model=model, net=f"{sum(model.encode()):02x}" * 16, **how)  # type: ignore[arg-type]


@dataclass
class Several(Party):
    """A party with several models; `versions` are those that it has answered requests for.

    first: begins with the id of the first request, the same list at all parties. answered: called when that request
    has its answer; all other requests wait for the event.
    """

    offer: Offer = field(default_factory=Offer)
    versions: list[str] = field(default_factory=list)
    first: list[bytes] = field(default_factory=list)
    answered: tuple[Callable[[], None], threading.Event] | None = None

    def describe(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        self.described += 1
        found = self.offer.choose(message.decode())
        return found.answer(self.rank, time.time(), self.load, self.offer.changes)

    def ask(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        request = Request.read(message, self.offer.named(digest_of(message)), self.rank)
        self.first.append(request.id)
        if self.answered is not None and request.id != self.first[0]:
            assert self.answered[1].wait(HANG)
        self.service = self.offer.named(digest_of(message))
        self.versions.append(self.service.model)
        answer = super().ask(message, context)
        if self.answered is not None and request.id == self.first[0]:
            self.answered[0]()
        context.set_trailing_metadata(((LOAD, str(self.load)), (CHANGES, str(self.offer.changes))))
        return answer


@contextmanager
def several(*models: str, number: int = 0) -> Iterator[Group]:
    """A group of two parties that serve these models."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        how = {"group": number, "session": f"{number:032x}"}
        services = [version(model, **how) for model in models]
        parties = [Several(rank, services[0], offer=Offer(*services)) for rank in range(2)]
        for party in parties:
            server = wire.serve({"Describe": party.describe, "Ask": party.asked}, f"unix:{folder}/{party.rank}")
            stack.callback(lambda server=server: server.stop(0).wait(HANG))
        yield Group(Path(folder), list(parties), [])


def exchange(group: Group, old: str | None, new: str | None) -> None:
    """Both parties of a group serve another version from now on."""
    for party in group.parties:
        assert isinstance(party, Several)
        how = {"group": party.service.group, "session": party.service.session}
        if new is not None:
            party.offer.begin(version(new, **how))
        if old is not None:
            gone = version(old, **how)
            party.offer.retire(gone)
            party.offer.end(gone.digest)


def asked(group: Group) -> list[str]:
    party = group.parties[0]
    assert isinstance(party, Several)
    return party.versions


def test_a_client_asks_the_version_or_the_newest_one() -> None:
    with several("a@2", "a@10", "b@1") as group:
        for model, found in (("a", "a@10"), ("a@2", "a@2"), ("b", "b@1")):
            with Client(group.addresses, timeout=HANG, model=model) as client:
                assert torch.equal(client(X), X) and client.service.model == found
        assert asked(group) == ["a@10", "a@2", "b@1"]
        for model, words in (("", "several models: a@2, a@10, b@1"), ("a@3", "no model 'a@3'"), ("c", "no model 'c'")):
            with pytest.raises(NotFoundError, match=words):
                Client(group.addresses, timeout=HANG, model=model)
        with pytest.raises(InputError, match="no name of a model"):
            Client(group.addresses, model="a" * 200)
    with several("a@1", "a@2") as group, Client(group.addresses, timeout=HANG) as client:
        assert client.service.model == "a@2"  # one name needs none


def test_a_model_that_is_listed_but_not_ready_is_waited_for() -> None:
    offer = Offer()
    for model in ("", "a"):
        with pytest.raises(UnavailableError):
            offer.listed = frozenset({"a@1"})
            offer.choose(model)
    with pytest.raises(NotFoundError):
        offer.choose("b")
    with pytest.raises(UnavailableError):
        offer.named(bytes(16))


def test_a_newer_version_is_asked_from_the_next_request_on() -> None:
    with several("a@1") as group, Client(group.addresses, timeout=HANG, model="a") as client:
        client(X)
        exchange(group, None, "a@2")
        client(X)  # its answer says that the models have changed
        assert torch.equal(client(X), X)
        assert asked(group) == ["a@1", "a@1", "a@2"]


def test_a_call_whose_version_leaves_begins_again_and_counts_each_image_once() -> None:
    """A call has answers of one version only, though it has several requests."""
    with several("a@1") as group, Client(group.addresses, timeout=HANG, model="a") as client:
        done, images = [], X.repeat(12, 1)  # 24 images, of which a request takes 8
        first, answers, exchanged = list[bytes](), itertools.count(1), threading.Event()

        def answered() -> None:
            if next(answers) == len(group.parties):
                exchange(group, "a@1", "a@2")
                exchanged.set()

        for party in group.parties:
            assert isinstance(party, Several)
            party.first, party.answered = first, (answered, exchanged)
        assert torch.equal(client(images, progress=done.append), images)
        assert sum(done) == len(images)
        assert set(asked(group)[-3:]) == {"a@2"} and len(images) == 3 * SERVICE.most


def test_a_client_of_one_version_hears_that_it_has_left() -> None:
    with several("a@1", "a@2") as group, Client(group.addresses, timeout=HANG, model="a@1") as client:
        client(X)
        exchange(group, "a@1", None)
        with pytest.raises(NotFoundError, match="no model 'a@1'"):
            client(X)


def test_groups_may_have_other_versions_while_one_after_another_is_restarted() -> None:
    with several("a@1", number=0) as first, several("a@2", number=1) as second:
        addresses = [first.addresses, second.addresses]
        with Client(addresses, timeout=HANG, model="a") as client:
            for _ in range(10):
                assert torch.equal(client(X), X)
            assert set(asked(first)) == {"a@1"} and set(asked(second)) == {"a@2"}
            for party in first.parties:
                party.refusals = [UnavailableError("party 1 was lost")] * 50
            for _ in range(10):
                assert torch.equal(client(X), X)
            for party in first.parties:
                party.refusals = []
        with Client(addresses, timeout=HANG, model="a@2") as client:
            before = len(asked(second))
            for _ in range(5):
                assert torch.equal(client(X), X)
            assert len(asked(second)) == before + 5
        with pytest.raises(NotFoundError):
            Client(addresses, timeout=HANG, model="a@3")


def test_groups_of_another_model_are_refused_by_name() -> None:
    """Also groups that have other weights under the same name and version."""
    with several("a@1", number=0) as first, several("b@1", number=1) as second, several("a@1", number=2) as third:
        for party in third.parties:
            assert isinstance(party, Several)
            party.offer = Offer(replace(party.service, net="ee" * 16))

        def until_both(other: Group) -> HummingbirdError:
            addresses = [first.addresses, other.addresses]
            with Client(addresses, timeout=HANG) as client, pytest.raises(AgreementError) as error:
                for _ in range(200):
                    client(X)
            return error.value

        assert "serve b, and others a" in (text := str(until_both(second))) or "serve a, and others b" in text
        assert "another net" in (text := str(until_both(third))) and "under the same name, a@1" in text


def test_parties_that_change_their_models_are_asked_again() -> None:
    with several("a@1") as group:
        first, second = group.parties
        assert isinstance(first, Several) and isinstance(second, Several)
        new = replace(version("a@2"), group=0, session=first.service.session)
        first.offer.begin(new)
        with ThreadPoolExecutor(1) as pool:
            made = pool.submit(Client, group.addresses, timeout=HANG, model="a")
            until(lambda: first.described > 1, "a second attempt")
            second.offer.begin(new)
            with made.result(HANG) as client:
                assert client.service.model == "a@2"
