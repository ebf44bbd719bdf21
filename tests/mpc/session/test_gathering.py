"""Lanes of one party: parts of the images, and what lane 0 gathers of them."""

from __future__ import annotations

import dataclasses
import signal

import pytest
import torch

from hummingbird.channel.meter import meter
from hummingbird.errors import InputError, PeerError
from hummingbird.mpc.session.lanes import LanePosition, part
from hummingbird.mpc.session.session import Session
from tests.support.nursery import Nursery
from tests.support.parties import sessions


@pytest.fixture
def single() -> Session:
    return sessions(1)[0]


def test_parts_are_contiguous_and_differ_by_one_at_most() -> None:
    for lanes in range(1, 7):
        for count in range(20):
            parts = [part(LanePosition(0, 2, lane, lanes), count) for lane in range(lanes)]
            assert [place for part in parts for place in range(count)[part]] == list(range(count))
            sizes = [part.stop - part.start for part in parts]
            assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)
    for wrong in (-1, 2.0, None, True):
        with pytest.raises(InputError, match="images"):
            part(LanePosition(0, 2, 0, 2), wrong)  # type: ignore[arg-type]


def test_one_lane_gathers_its_own(single: Session) -> None:
    rows = torch.randn(4, 3)
    assert single.part(4) == slice(0, 4) and torch.equal(single.gather(rows), rows)
    with meter() as m:
        pass
    assert single.gather_meter(m) is m


def test_nothing_is_gathered_after_the_end(single: Session) -> None:
    """A lane of several would take its own rows for those of all."""
    ended = dataclasses.replace(single, lanes=2)
    for gather in (
        lambda: ended.gather(torch.ones(1, 1)),
        lambda: ended.gathering.tally([1, 1]),
        lambda: ended.gathering.told("x"),
    ):
        with pytest.raises(PeerError, match="the session has ended"):
            gather()


WRONG = [None, [1.0], torch.zeros(2, dtype=torch.complex64), torch.zeros([1] * 9), torch.tensor(1)]


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_gathered(single: Session, wrong: object) -> None:
    with pytest.raises(InputError, match="cannot gather"):
        single.gather(wrong)  # type: ignore[arg-type]


def test_a_lane_that_does_nothing_ends_the_wait(single: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hummingbird.mpc.session.lanes.PATIENCE", 0.1)
    tally, seen = single.gathering.tally([3]), list[int]()
    tally.add(2)
    with pytest.raises(PeerError, match=r"lane 0 of this party did nothing for 0.1 s"):
        tally.wait(seen.append)
    assert set(seen) == {2}
    tally.add(1)
    tally.wait(seen.append)
    assert seen[-1] == 3


def test_lanes_gather_rows_meters_and_counts(nursery: Nursery) -> None:
    lanes = nursery.start(["gathers"], 3, HUMMINGBIRD_LANES="3")
    assert [lane.wait() for lane in lanes] == [0] * 3, [lane.err.read_text() for lane in lanes]
    assert all(lane.out.read_text().splitlines().count("gathered") == 1 for lane in lanes)


def test_a_lane_that_is_lost_while_others_gather(nursery: Nursery) -> None:
    lanes = nursery.start(["lost"], 3, HUMMINGBIRD_LANES="3")
    assert [lane.wait() for lane in lanes] == [1, 0, 0]  # lane 1 had no more to do
    text = lanes[0].err.read_text()
    assert "party 0, lane 2 closed the connection: it ended or was killed (at party 0, lane 0)" in text, text


@pytest.mark.slow
def test_a_lane_that_is_lost_before_it_gathers(nursery: Nursery) -> None:
    """No launcher stops the others: the lane that it talked to notes the failure, and those that wait read it."""
    lanes = nursery.start(["behind"], 4, HUMMINGBIRD_LANES="2")
    assert [lane.wait() for lane in lanes] == [1, 0, 1, 1]
    texts = [lane.err.read_text() for lane in lanes]
    lost = "party 0, lane 1 closed the connection: it ended or was killed"
    assert f"lane 1 of this party did not come to the end, after a failure: {lost}" in texts[0], texts[0]
    assert lost in texts[3], texts[3]


def test_lane_0_leaves_after_the_other_lanes_of_its_party(nursery: Nursery) -> None:
    """It serves the store in which a slower lane still looks whether all work is done."""
    lanes = nursery.start(["leaves", "late"], 4, HUMMINGBIRD_LANES="2")
    assert [lane.wait() for lane in lanes] == [0] * 4, [lane.err.read_text() for lane in lanes]
    assert all(lane.out.read_text().splitlines().count("left") == 1 for lane in lanes)


@pytest.mark.slow
def test_lane_0_ends_with_the_failure_of_a_lane_that_has_not_left(nursery: Nursery) -> None:
    """Party 0 has mostly left by then, and with it torchrun's store. If its lane 0 has not, it reports that failure."""
    lanes = nursery.start(["leaves", "fails"], 4, HUMMINGBIRD_LANES="2")
    assert [lane.wait() for lane in lanes][1:] == [0, 1, 1]
    text = lanes[2].err.read_text()
    assert "party 1, lane 1 did not come to the end, after a failure: no paper (at the printer)" in text, text


@pytest.mark.slow
def test_sigterm_ends_the_wait_for_a_lane_that_was_killed(nursery: Nursery) -> None:
    """Nobody notes how that lane ended: a launcher stops the others."""
    lanes = nursery.start(["leaves", "killed"], 4, HUMMINGBIRD_LANES="2")
    assert [lanes[number].wait() for number in (0, 1, 3)] == [0, 0, -signal.SIGKILL]
    assert lanes[2].process.poll() is None
    lanes[2].process.send_signal(signal.SIGTERM)
    assert lanes[2].wait() == 1
    assert "[party 1, lane 0] error: this party was told to stop (SIGTERM)" in lanes[2].err.read_text()
