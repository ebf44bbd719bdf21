"""Arrivals: rates, burstiness, hours, sizes, exact repeats, and files that are refused."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from hummingbird.capacity.arrivals import HOUR, Arrivals, Gaps, Hourly, Trace, Users, constant, poisson, trace
from hummingbird.errors import ConfigError, InputError

KINDS = [poisson(4.0), Gaps(4.0, 0.3), constant(4.0), Hourly((4.0, 0.0, 8.0)), Users(5, 2.0)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
def test_a_seed_repeats_exactly(kind: Arrivals) -> None:
    first, again, other = (kind.load(3, 50, seed) for seed in (7, 7, 8))
    times = [load.due if load.due is not None else load.think for load in (first, again, other)]
    assert (times[0] == times[1]).all()
    assert (times[0] != times[2]).any() or kind == constant(4.0)
    assert (first.sizes() == again.sizes()).all()


@pytest.mark.parametrize("burstiness", [1.0, 0.3, 5.0, math.inf])
def test_gaps_have_their_rate_and_variance(burstiness: float) -> None:
    gaps = np.diff(Gaps(4.0, burstiness).load(100, 2001, 1).due, axis=1)
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)
    assert gaps.var() == pytest.approx(0.25**2 / burstiness, rel=0.1, abs=1e-12)


def test_all_requests_come_earlier_at_a_higher_rate() -> None:
    slow, fast = (Gaps(rate, 0.5).load(2, 30, 1).due for rate in (1.0, 2.0))
    np.testing.assert_allclose(slow, 2 * fast)


def test_each_hour_has_its_rate() -> None:
    due = Hourly((0.01, 0.0, 0.05)).load(200, 600, 1).due
    hour = (due // HOUR).astype(int)
    assert due.min() >= 0 and (np.diff(due, axis=1) >= 0).all()
    assert not (hour % 3 == 1).any()
    for number, rate in {0: 0.01, 2: 0.05, 3: 0.01, 5: 0.05}.items():  # the second round as the first
        expected = 200 * rate * HOUR
        assert abs((hour == number).sum() - expected) < 5 * math.sqrt(expected)


def test_images_of_several_sizes() -> None:
    kind = poisson(1.0, images={1: 3, 8: 1})
    sizes = kind.load(100, 1000, 1).sizes()
    assert set(np.unique(sizes)) == {1, 8}
    assert (sizes == 8).mean() == pytest.approx(0.25, abs=0.01)
    assert kind.mean_images == 2.75
    assert set(np.unique(kind.load(10, 100, 1, per_request=3).sizes())) == {1, 3}  # eight by threes


def test_sessions_begin_now_and_then() -> None:
    assert poisson(1.0, session=20).load(100, 1000, 1).first.mean() == pytest.approx(0.05, abs=0.005)
    assert not poisson(1.0).load(10, 100, 1).first.any()


def test_a_trace_is_the_same_in_every_run(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("# seconds, images\n0.5\n\n1.5, 4\n1.5 2  # two at once\n")
    read = trace(tmp_path / "trace")
    load = read.load(2, 3, 0)
    assert load.due.tolist() == [[0.5, 1.5, 1.5]] * 2 and load.sizes().tolist() == [[1, 4, 2]] * 2
    assert read.mean_images == pytest.approx(7 / 3)
    with pytest.raises(ConfigError, match="4 requests from a trace of 3"):
        read.load(1, 4, 0)


@pytest.mark.parametrize(
    "text, message",
    [
        ("1\n3\n2\n", "(?s)a request at 2 s after one at 3 s.*line 3"),
        ("1\nsoon\n", "line 2"),
        ("-1\n", "no request"),
        ("nan\n", "no request"),
        ("1 0\n", "no request"),
        ("1 2 3\n", "no request"),
        ("1 1.5\n", "no request"),
        ("# nothing\n", "(?s)no requests.*trace"),
    ],
)
def test_a_bad_trace_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "trace").write_text(text)
    with pytest.raises(InputError, match=message):
        trace(tmp_path / "trace")


def test_what_cannot_be_is_refused() -> None:
    for make, message in [
        (lambda: poisson(0.0), "rate"),
        (lambda: poisson(math.nan), "rate"),
        (lambda: Gaps(1.0, 0.0), "burstiness"),
        (lambda: poisson(1.0, images=0), "images of a request"),
        (lambda: poisson(1.0, images={1: 0.0}), "all sizes have weight 0"),
        (lambda: poisson(1.0, patience=-1.0), "patience"),
        (lambda: Hourly((0.0, 0.0)), "no requests in any hour"),
        (lambda: Users(0, 1.0), "users"),
        (lambda: Trace(()), "no requests"),
        (lambda: poisson(1.0).load(0, 5, 0), "runs"),
    ]:
        with pytest.raises(ConfigError, match=message):
            make()
