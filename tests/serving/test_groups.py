"""Several groups of parties behind one client: which one it asks, what it does while one is away, and the file."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from hummingbird.bits import BitWindow
from hummingbird.convert import build
from hummingbird.errors import AgreementError, ConfigError, InputError, OverloadError, UnavailableError
from hummingbird.serving import groups as module
from hummingbird.serving import lines_file
from hummingbird.serving.client import Client
from hummingbird.serving.groups import Groups, group_file
from hummingbird.serving.models import Models, ServedModel
from hummingbird.serving.party_group import PartyGroup
from hummingbird.serving.plan import describe
from hummingbird.serving.worker import Worker
from tests.serving.test_client import LOST, Group, X, group_of, groups
from tests.support.parties import sessions, together
from tests.support.patience import HANG, NEVER, until
from tests.support.serving_nets import doubled

__all__ = ["groups"]  # the fixture


def asked(group: Group) -> int:
    return len(group.parties[0].requests)


@pytest.fixture
def many() -> Iterator[list[Group]]:
    """Four groups of parties that serve the same."""
    with ExitStack() as stack:
        yield [stack.enter_context(group_of(number)) for number in range(4)]


def test_the_group_with_less_work_is_asked(groups: list[Group]) -> None:
    first, second = groups
    for party in first.parties:
        party.load = 1000
    with Client([group.addresses for group in groups], timeout=HANG) as client:
        for _ in range(10):
            assert torch.equal(client(X), X)
        assert (asked(first), asked(second)) == (0, 10)
        for group, load in zip(groups, (0, 1000), strict=True):
            for party in group.parties:
                party.load = load
        client(X)  # its answer says that the second has much to do, and the first's report is old by then
        for group in client._groups._all:
            group.reported = -HANG
        assert torch.equal(client(X), X) and asked(first) == 1


def test_requests_that_are_under_way_are_work(groups: list[Group]) -> None:
    """Forty requests at once go to both groups in equal parts, though no party has reported any work."""
    answers = threading.Event()  # none comes before all requests are under way, however slow the machine is
    for party in (*groups[0].parties, *groups[1].parties):
        party.hold = answers
    with Client([group.addresses for group in groups], timeout=NEVER) as client, ThreadPoolExecutor(1) as beside:
        known = client._groups._all

        async def all_of_them() -> list[torch.Tensor]:
            return await asyncio.gather(*(client.ask(X) for _ in range(40)))

        def when_all_are_sent() -> list[int]:
            try:
                until(lambda: sum(group.images for group in known) == 40 * len(X), "forty requests under way")
                return [group.images for group in known]
            finally:
                answers.set()

        under_way = beside.submit(when_all_are_sent)
        asyncio.run(all_of_them())
        assert under_way.result(HANG) == [20 * len(X)] * 2
        assert [group.images for group in known] == [0, 0]


def test_a_report_is_asked_for_when_it_is_old(groups: list[Group], monkeypatch: pytest.MonkeyPatch) -> None:
    with Client([group.addresses for group in groups], timeout=HANG) as client:
        monkeypatch.setattr(module, "FRESH", NEVER)
        client(X)
        before = [group.parties[0].described for group in groups]
        for _ in range(5):
            client(X)
        assert [group.parties[0].described for group in groups] == before
        monkeypatch.setattr(module, "FRESH", 0.0)
        client(X)
        assert all(group.parties[0].described > old for group, old in zip(groups, before, strict=True))


def test_four_groups_share_the_load(many: list[Group]) -> None:
    with Client([group.addresses for group in many], timeout=HANG) as client, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(client, [X] * 200))
    assert all(torch.equal(out, X) for out in found)
    assert sum(map(asked, many)) == 200 and min(map(asked, many)) >= 20


def test_a_request_that_one_group_has_no_room_for_goes_to_another(
    groups: list[Group], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = groups
    first.parties[0].refusals = [OverloadError("no room", retry_after=NEVER)] * 100
    with Client([first.addresses, second.addresses], timeout=HANG) as client:
        for _ in range(10):
            assert torch.equal(client(X), X)
        assert asked(first) <= 1 and asked(second) == 10  # it rests as it says, for ten seconds
        first.parties[0].refusals = []
        second.parties[1].refusals = [OverloadError("no room", retry_after=NEVER)] * 2
        monkeypatch.setattr(module, "_LONGEST", 0.5)
        assert torch.equal(client(X), X)


def test_another_group_is_asked_while_one_does_not_serve(groups: list[Group]) -> None:
    with Client([group.addresses for group in groups], timeout=HANG) as client:
        for group in groups:
            group.parties[1].refusals = [LOST]
        assert torch.equal(client(X), X)
        for server in groups[1].servers:
            server.stop(0).wait(HANG)
        for _ in range(5):
            assert torch.equal(client(X), X)
        ids = [request.id for group in groups for request in group.parties[0].requests]
        bodies = [request.body for group in groups for request in group.parties[0].requests]
        assert len(ids) == len(set(ids)) == len(set(bodies))


def test_a_group_that_is_not_there_keeps_no_client_waiting(groups: list[Group]) -> None:
    nobody = [f"unix:{groups[0].folder}/nobody{rank}" for rank in range(2)]
    with Client([nobody, groups[1].addresses], timeout=NEVER) as client:
        assert torch.equal(client(X), X)


def test_a_silent_group_delays_a_request_by_little(groups: list[Group], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes are stopped: connections stand, and nothing answers."""
    monkeypatch.setattr(module, "GLANCE", HANG)  # this group's report never fails while the test runs
    over = threading.Event()
    first, second = groups
    with Client([group.addresses for group in groups], timeout=NEVER) as client:
        client(X)
        for party in first.parties:
            party.wait = over
        for group in client._groups._all:
            group.reported = -HANG
        began = time.monotonic()
        before = asked(second)
        assert torch.equal(client(X), X) and asked(second) == before + 1
        assert time.monotonic() - began < HANG / 2
        over.set()


def test_groups_serve_the_same_net(groups: list[Group]) -> None:
    first, second = groups
    for party in second.parties:
        party.service = replace(party.service, net="cd" * 32)
    with Client([first.addresses, second.addresses], timeout=HANG) as client:
        for group in groups:
            group.parties[0].refusals = [LOST] * 10
        with pytest.raises(AgreementError, match="serve another net than the parties that this client asked"):
            client(X)


def test_a_party_of_another_group_is_refused_by_name(groups: list[Group]) -> None:
    first, second = groups
    with pytest.raises(AgreementError, match="belong to different services: group 0 and 1"):
        Client([first.addresses[0], second.addresses[1]], timeout=HANG)


def test_parties_that_name_different_groups_are_refused() -> None:
    both, private = sessions(2), build(doubled(), BitWindow(30, 0))
    described = [describe(private, (4,), 8, session, "ab" * 16, group=rank) for rank, session in enumerate(both)]

    def join(rank: int) -> Worker:
        return Worker(Models(both[rank], "", fixed=ServedModel(private, described[rank])), both[rank])

    with pytest.raises(AgreementError, match="group"):
        together([partial(join, 0), partial(join, 1)])
    with pytest.raises(InputError, match="group -1"):
        describe(private, (4,), 8, both[0], "ab" * 16, group=-1)


def test_parties_that_are_about_to_meet_again_are_asked_again(groups: list[Group]) -> None:
    """One of them is in the next session already; a client that has known them waits, a new one is refused."""
    first, second = groups[0].parties
    with Client(groups[0].addresses, timeout=HANG) as client:
        client._groups.forget()
        first.service = replace(first.service, session="cd" * 16)
        with pytest.raises(AgreementError, match="belong to different services: session"):
            Client(groups[0].addresses, timeout=HANG)
        with ThreadPoolExecutor(1) as pool:
            before = first.described
            answer = pool.submit(client, X)
            until(lambda: first.described > before + 1, "a second attempt")
            second.service = first.service
            assert torch.equal(answer.result(HANG), X)


@pytest.mark.parametrize("load", ["9" * 5000, "-1", "many", ""])
def test_what_is_no_number_of_images_is_no_report(groups: list[Group], load: str) -> None:
    for party in groups[0].parties:
        party.load = load  # type: ignore[assignment]
        party.describe_load = 0
    with Client(groups[0].addresses, timeout=HANG) as client:
        assert torch.equal(client(X), X) and client._groups._all[0].work == 0


def test_a_call_s_requests_may_run_in_several_groups(groups: list[Group]) -> None:
    x = torch.rand(40, 3)
    with Client([group.addresses for group in groups], timeout=HANG) as client:
        for _ in range(8):
            assert (client(x) - x).abs().max() < 1e-3  # five requests, two under way at a time
        assert min(map(asked, groups)) > 0


# The file -------------------------------------------------------------------------------------------------------------


def lines(path: Path, found: list[Group]) -> Path:
    text = "".join(f"{' '.join(group.addresses)}  # group {number}\n" for number, group in enumerate(found))
    path.with_suffix(".new").write_text(f"# all groups\n\n{text}")
    os.replace(path.with_suffix(".new"), path)
    return path


def test_groups_come_and_go_while_a_client_runs(
    groups: list[Group], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines_file, "_LOOK", 0.0)
    first, second = groups
    path = lines(tmp_path / "groups", [first])
    with Client.from_file(path, timeout=HANG) as client:
        client(X)
        lines(path, [second])
        assert torch.equal(client(X), X) and (asked(first), asked(second)) == (1, 1)
        sent = client.sent_bytes
        lines(path, [second, first])
        for _ in range(20):
            client(X)
        assert min(map(asked, groups)) > 1 and client.sent_bytes == 11 * sent
        path.write_text("only:1")
        with pytest.warns(RuntimeWarning, match="1 address.*\n.*\n?the groups known before stay in use"):
            assert torch.equal(client(X), X)
        path.unlink()
        with pytest.warns(RuntimeWarning, match="cannot be read"):
            assert torch.equal(client(X), X)
        assert torch.equal(client(X), X)  # no second warning


def test_a_request_under_way_ends_in_a_group_that_the_file_no_longer_has(
    groups: list[Group], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines_file, "_LOOK", 0.0)
    first, second = groups
    path, over = lines(tmp_path / "groups", [first]), threading.Event()
    with Client.from_file(path, timeout=HANG) as client, ThreadPoolExecutor(1) as pool:
        first.parties[0].hold = over
        answer = pool.submit(client, X)
        until(lambda: asked(first) == 1, "the request")
        lines(path, [second])
        assert torch.equal(client(X), X) and asked(second) == 1
        over.set()
        assert torch.equal(answer.result(HANG), X)
        until(lambda: not client._groups._gone, "the group to be left")


def test_a_group_that_goes_while_a_request_waits_for_its_report_is_not_asked(
    many: list[Group], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request goes to a group that the file has now."""
    monkeypatch.setattr(lines_file, "_LOOK", 0.0)
    monkeypatch.setattr(module, "GLANCE", HANG)
    path, over = lines(tmp_path / "groups", many[:2]), threading.Event()
    with Client.from_file(path, timeout=HANG) as client, ThreadPoolExecutor(1) as pool:
        for group in many[:2]:
            for party in group.parties:
                party.wait = over
        for known in client._groups._all:
            known.reported = -HANG
        answer = pool.submit(client, X)
        until(lambda: client._groups._asking, "the request to ask for reports")
        lines(path, many[2:3])
        assert torch.equal(client(X), X)
        assert torch.equal(answer.result(HANG), X) and asked(many[2]) == 2
        over.set()


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "no groups"),
        ("# nothing\n", "no groups"),
        ("a:1 b:2\nc:3", "1 address.*c:3"),
        ("a:1 b:2\nb:2 c:3", "b:2 stands twice"),
        (" ".join(f"h{number}:1" for number in range(65)), "65 address"),
        ("\udcff", "cannot be read"),
    ],
)
def test_a_file_that_names_no_groups_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "groups"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises((InputError, ConfigError), match=words) as found:
        Client.from_file(path)
    assert str(path) in str(found.value) and found.value.hint
    with pytest.raises(InputError, match="cannot be read"):
        group_file(tmp_path / "none").read()


def test_an_address_stands_in_one_group() -> None:
    with pytest.raises(ConfigError, match="b:2 stands twice"):
        Client([["a:1", "b:2"], ["b:2", "c:3"]])


def test_chooses_with_less_work_of_two_and_not_of_all() -> None:
    """The busiest of four is never chosen, the idlest most often: in a half of all pairs."""

    async def choices() -> list[int]:
        found = Groups([[f"a{n}:1", f"b{n}:1"] for n in range(4)], HANG, lambda them: PartyGroup(them, None, None, b""))
        for number, group in enumerate(found._all):
            group._report(number)
        counts = [0] * 4
        for _ in range(600):
            group = await found.enter(0)
            counts[found._all.index(group)] += 1
            found.leave(group, 0)
            for number, each in enumerate(found._all):
                each._report(number)
        return counts

    counts = asyncio.run(choices())
    assert counts[3] == 0 and 240 <= counts[0] <= 360 and 140 <= counts[1] <= 260 and 50 <= counts[2] <= 150


def test_all_groups_away_is_an_error_with_the_reason(groups: list[Group]) -> None:
    for group in groups:
        group.parties[0].refusals = [LOST] * 10_000
    with Client([group.addresses for group in groups], timeout=HANG) as client:
        client._groups.timeout = 3.0
        with pytest.raises(UnavailableError, match="party 1 was lost"):
            client(X)
