"""The one retry policy: pauses, deadline and attempts."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from hummingbird.errors import InputError, OverloadError, PeerError, UnavailableError
from hummingbird.rpc import client
from hummingbird.rpc.client import Retry


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that a test sets."""
    clock = [100.0]
    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    return clock


def away(text: str = "away") -> UnavailableError:
    return UnavailableError(text)


def test_pauses_double_up_to_the_longest(now: list[float]) -> None:
    retry = Retry(math.inf, (0.25, 1.0))
    assert [retry.failed(away()) for _ in range(4)] == [0.25, 0.5, 1.0, 1.0]


def test_a_full_service_says_when(now: list[float]) -> None:
    retry = Retry(math.inf, (0.25, 1.0))
    assert retry.failed(OverloadError("full", retry_after=5.0)) == 5.0
    assert retry.failed(OverloadError("full", retry_after=0.0)) == 0.25  # no attempt without a pause
    assert retry.failed(UnavailableError("a part is missing", retry_after=3.0)) == 3.0
    assert retry.failed(away()) == 0.25  # it is not away for longer by having been full


def test_the_deadline_ends_it(now: list[float]) -> None:
    retry, first = Retry(10.0, (1.0, 8.0)), away("first")
    assert retry.failed(first) == 1.0
    now[0] += 1.0
    assert retry.left == 9.0 and retry.failed(away()) == 2.0
    now[0] += 6.0
    with pytest.raises(UnavailableError, match="third"):  # the next attempt would begin too late
        retry.failed(away("third"))
    late = Retry(10.0, (1.0, 8.0))
    late.failed(first)
    now[0] += 11.0
    with pytest.raises(UnavailableError, match="first"):  # and not what came of the little time that was left
        late.failed(PeerError("no answer in time"))


def test_other_errors_and_too_many_attempts_end_it(now: list[float]) -> None:
    retry = Retry(math.inf, (0.0, 0.0))
    for error in (PeerError("broken"), InputError("wrong")):
        with pytest.raises(type(error), match=error.what):
            retry.failed(error)
    tries = Retry(math.inf, (0.0, 0.0), passing=(InputError,), tries=3)
    assert tries.failed(InputError("1")) == tries.failed(InputError("2")) == 0.0
    with pytest.raises(InputError, match="3"):
        tries.failed(InputError("3"))


def test_where_several_serve_the_next_attempt_is_when_one_of_them_may_be_asked(now: list[float]) -> None:
    retry, rests = Retry(5.0, (1.0, 4.0)), list[float]()

    def anywhere(rest: float) -> float:
        rests.append(rest)
        return 0.0 if len(rests) < 3 else 2.0

    errors = (away(), OverloadError("full", retry_after=9.0), away(), away())
    assert [retry.failed(error, anywhere) for error in errors[:3]] == [0.0, 0.0, 2.0]
    assert rests == [1.0, 9.0, 2.0]  # one that rests for longer than there is time does not end it
    now[0] += 4.0
    with pytest.raises(UnavailableError):
        retry.failed(errors[3], anywhere)
