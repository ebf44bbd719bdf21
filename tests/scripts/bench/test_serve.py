"""The planner beside real services: what is pure in it on made-up times, and the whole program on a few requests."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from threading import Thread
from typing import Any, cast

import numpy as np
import pytest
from torch import nn

from hummingbird import convert_model
from hummingbird.capacity import recurrence
from hummingbird.capacity.limit import limits
from hummingbird.capacity.profile import Profile
from hummingbird.capacity.system import Draws, Load, System
from hummingbird.commands.program import machine
from hummingbird.errors import ConfigError
from hummingbird.mpc.dealer.store import material_facts
from hummingbird.mpc.plan.dry_run import dry_run
from scripts.bench import serve, serve_offered, serve_reality, serve_timed
from scripts.bench.link import obstacle
from scripts.bench.serve_calibrate import Calibrated
from scripts.bench.serve_offered import ENGINES, Figures, Offered, ask_alone, own, predicted, tolerance
from scripts.tools import calibrate

FAST = Calibrated((0.012,) * 9, (0.011,) * 9, (0.010,) * 9, 0.016)
KEPT = Calibrated((0.012,) * 9, (0.011,) * 9, (0.010,) * 9, 0.016, (0.021,) * 9, (0.005,) * 9)


def offered(kept: int) -> Offered:
    """A run of 400 requests of a service that is as the recurrence says; a set is dealt in the last of its seconds."""
    generator = np.random.default_rng(0)
    due = 7.0 + np.cumsum(generator.exponential(0.03, 400))
    lined, seconds = due + 0.002, generator.uniform(0.01, 0.03, 400)
    refill = generator.uniform(0.01, 0.05, 400) if kept else None
    system = System(tokens=kept, stored=kept) if kept else System()
    draws = Draws(seconds[None], None if refill is None else refill[None])
    outcome = recurrence.simulate(system, Load(due=(lined - lined[0])[None]), draws)
    went, done = (times[0] + lined[0] for times in (outcome.went, outcome.left))
    there = outcome.refilled[0] + lined[0] if kept else np.empty(0)
    sets = np.stack([there - 0.005, there], axis=1)
    return Offered(due, done + 0.003, lined, went, done, sets, 0)


def planned(
    calibrated: Calibrated, kept: int, keepers: int, due: np.ndarray, engine: str, cores: int = 2, at_once: int = 1
) -> Figures:
    """The prediction for a service on so many cores."""
    service = calibrated.service("a service", kept, cores, keepers, at_once)
    return predicted(service, calibrated.beside(service), due, engine, 0)


@pytest.mark.parametrize("kept", [0, 4])
def test_a_runs_own_seconds_give_its_own_figures(kept: int) -> None:
    run = offered(kept)
    errors = own(run, kept).errors(run.figures)
    assert set(errors) == {"p50", "p95", "p99", "throughput"}
    assert max(map(abs, errors.values())) < 1e-9
    if kept:  # and without the store it is another system
        assert own(run, 0).errors(run.figures)["p99"] < -0.05


def test_what_is_predicted_is_the_queue_of_busy_seconds_and_the_rest_of_a_lone_request() -> None:
    """Requests far apart take what a lone one takes; at every load all wait as in a queue of one at a time."""
    far = np.arange(1, 40.0)
    for engine in ENGINES:
        found = planned(FAST, 0, 1, far, engine)
        assert (found.p50, found.p99) == (pytest.approx(0.012), pytest.approx(0.012))
    due = np.cumsum(np.random.default_rng(1).exponential(0.02, 4000))
    half = planned(FAST, 0, 1, due, ENGINES[0])
    done = recurrence.simulate(System(), Load(due=due[None]), Draws(np.full((1, 1), 0.01)))
    assert half.p95 == pytest.approx(float(np.quantile(done.latency, 0.95)) + 0.002)


@pytest.mark.parametrize(("cores", "engine"), [(1, ENGINES[1]), *itertools.product((2, 8), ENGINES)])
def test_requests_that_wait_are_computed_in_turns(cores: int, engine: str) -> None:
    """Three at a time, far apart: the first finds no other and goes on alone, the other two then end together."""
    due = np.sort(np.concatenate([np.arange(1, 30.0) + later for later in (0.0, 1e-6, 2e-6)]))
    one, two = (planned(FAST, 0, 1, due, engine, cores, at_once) for at_once in (1, 2))
    assert (one.p50, one.p99) == (pytest.approx(0.022, abs=1e-5), pytest.approx(0.032, abs=1e-5))
    assert (two.p50, two.p99) == (pytest.approx(0.032, abs=1e-5), pytest.approx(0.032, abs=1e-5))
    bounds = limits(FAST.service("a service", 0, cores, 1, 2))
    assert bounds[0].rate == pytest.approx(100)


@pytest.mark.slow
def test_keepers_slow_the_parties_in_the_event_engine_alone() -> None:
    """A second one slows them more, and the recurrence does not see it."""
    due = np.cumsum(np.random.default_rng(1).exponential(0.03, 500))
    without, alone, shared = (planned(each, kept, 1, due, engine) for each, kept, engine in (
        (FAST, 0, ENGINES[0]), (KEPT, 4, ENGINES[0]), (KEPT, 4, ENGINES[1])
    ))  # fmt: skip
    assert without.p50 <= alone.p50 < shared.p50 and without.p99 < alone.p99 < shared.p99
    assert planned(KEPT, 4, 2, due, ENGINES[0]) == alone
    both = planned(KEPT, 4, 2, due, ENGINES[1])
    assert shared.p50 < both.p50 and shared.p99 < both.p99
    for keepers in (1, 2):  # on cores of their own they do not
        apart = planned(KEPT, 4, keepers, due, ENGINES[1], cores=4)
        assert apart.p50 == pytest.approx(alone.p50) and apart.p99 == pytest.approx(alone.p99)
        bounds = {limit.cause: limit.rate for limit in limits(KEPT.service("kept", 4, 2, keepers))}
        assert bounds["1 refill at a time"] == pytest.approx(1 / 0.021)
        assert bounds["cores of host"] == pytest.approx(2 / (0.020 + keepers * 0.8 * 0.005))


def test_a_second_keeper_deals_what_the_first_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many sets, at the same time, which are deleted; none while the first is told to deal alone."""
    private = convert_model(nn.Sequential(nn.Linear(3, 2), nn.ReLU()).eval())
    what = {"steps": [dry_run(private, (1, 3), 2).batch], "shape": (1, 3), "slots": 1, "parties": 2, "lanes": 1}
    what |= {"facts": material_facts(private.facts), "cipher": "aes-128-ctr"}
    begun = tmp_path / "begun"
    begun.touch()
    with open(tmp_path / "sets.txt", "a") as out:
        monkeypatch.setattr(serve_timed, "_out", out, raising=False)
        first = serve_timed.Keeper(tmp_path / "kept", **what)
        second = serve_timed.Second(tmp_path / "other", **what)
        for keep, both in (("2 0", 0), ("3 1", 1), ("4 1", 2), ("5 0", 2)):
            Path(f"{out.name}.keep").write_text(keep)
            assert first.unused() <= 0
            assert Path(f"{out.name}.heard").read_text() == keep
            first.add()
            assert begun.stat().st_size == both
        for number in (1, 2):
            assert second.add()[0] == number
            assert [path.name for path in (tmp_path / "other").iterdir()] == ["kept.json"]
        waiting = Thread(target=second.add, daemon=True)
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        Path(f"{out.name}.keep").write_text("9 1")
        first.unused(), first.add()
        waiting.join(60)
        assert not waiting.is_alive()
    first.close(), second.close()


def test_lone_requests_are_asked_one_after_another() -> None:
    """No request while another is under way, each counted from when it was due."""
    asked: list[tuple[float, float]] = []

    class Service:
        def ask(self, number: int) -> int:
            began = time.perf_counter()
            time.sleep(0.01)
            asked.append((began, time.perf_counter()))
            return 0

    idle = np.array([0.0, 0.02, 0.005])
    latencies = ask_alone(cast(Any, Service()), idle)
    assert len(latencies) == len(asked) == 3 and (latencies >= 0.01).all()
    for (_, ended), (began, _), seconds in zip(asked, asked[1:], idle[1:], strict=False):
        assert began - ended >= seconds


def test_the_pace_of_short_calibrations_scales_a_profile() -> None:
    slow = Calibrated((0.024,) * 3, (0.022,) * 3, (0.015,) * 3, 0.016)
    now = FAST.at_pace([FAST, slow])
    assert now.alone[0] == pytest.approx(0.018) and now.busy[0] == pytest.approx(0.0125)
    assert now.inside[0] == pytest.approx(0.0165)
    assert now.beside(now.service("a", 0, 2)) == pytest.approx(0.0055)
    assert now.beside(now.service("a", 0, 2, at_once=2)) == pytest.approx(0.0015)
    assert FAST.drift(slow) == pytest.approx(1.0) and FAST.drift(FAST) == 0
    profile = Profile(machine(), 1, (KEPT.row("a"),))
    assert Calibrated.of(profile, "a") == KEPT
    with pytest.raises(ConfigError, match="no measurements of a service: b"):
        Calibrated.of(profile, "b")


def test_medians_and_verdicts_tell_a_run_that_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_offered, "_RUNS", dict.fromkeys(ENGINES, 10))

    class Service:
        name, images, kept, keepers = "a service", 1, 4, 1

    run = offered(4)
    plan = KEPT.service("a service", 4, 2)
    good = serve_reality.compare(run, plan, KEPT.beside(plan), 33.0, 0)
    found = serve_reality.row(Service(), 50.0, [good], 2)  # type: ignore[arg-type]
    assert found["dropped_runs"] == 2 and found["measured_p50_milliseconds"] == pytest.approx(1e3 * good.measured.p50)
    assert found["allowed_percent"] == pytest.approx(15) and tolerance(0.7) == pytest.approx(0.05 * (1 + 1 / 0.3))
    none = serve_reality.row(Service(), 30.0, [], 3)  # type: ignore[arg-type]
    text = serve_reality.table([found, none])
    assert "50 %" in text and "15.0 %" in text
    first, second, _, dropped = serve_reality.verdicts([found, none], 5.0)
    assert first.endswith("1 of 1 rows") and second.endswith("0 of 1 rows") and dropped.endswith("5 runs")


def test_errors_are_relative_to_what_was_measured() -> None:
    made = Figures.of(np.arange(100.0), np.arange(100.0) + 0.5)
    assert (made.p50, made.p99) == (0.5, 0.5) and made.throughput == pytest.approx(100 / 99.5)
    assert Figures(0.6, 0.5, 0.4, made.throughput).errors(made)["p50"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["--predict", "absent.json"], "absent.json"),
        (["--predict", "absent.json", "--loads", "100"], "--loads"),
        (["--groups", "1"], "--groups"),
    ],
)
def test_wrong_options_are_one_error(words: list[str], where: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve.main(words) == 1
    said = capsys.readouterr()
    assert said.err.startswith("error: ") and where in said.err and not said.out


def test_services_on_a_link_that_cannot_be_made_are_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And not calibrated, which is said."""
    monkeypatch.setattr(serve_reality, "obstacle", lambda link: "no namespaces here")
    profile = tmp_path / "profile.json"
    profile.write_text(Profile(machine(), 1, (KEPT.row("a"),)).to_text())
    assert serve.main(["--predict", str(profile), "--services", "near", "small"]) == 1
    said = capsys.readouterr().err
    assert "no namespaces here" in said and "--services near lookups" in said
    monkeypatch.setattr(serve_reality, "services", lambda: dict.fromkeys(serve_reality.LINKED, None))
    assert list(serve_reality.calibrated_rows(1)) == []
    assert "no namespaces here" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(bool(obstacle(serve_reality.LINK)), reason="a link between parties needs root and tc")
def test_services_run_beside_their_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of the program, on few requests: what a queue gets from a run's own seconds is what was measured."""
    profile, file = tmp_path / "profile.json", tmp_path / "rows.json"
    assert calibrate.main(["--only", "serve", "--repeats", "4", "--json", str(profile)]) == 0
    small = ["--loads", "30", "--requests", "40", "--runs", "1", "--tries", "1", "--samples", "5", "--drift", "1e6"]
    assert serve.main(["--predict", str(profile), *small, "--json", str(file)]) == 0
    rows = json.loads(file.read_text())
    kept = [(row["kept_slots"], row["keepers"]) for row in rows]
    assert kept == [(None, 0), (4, 1), (4, 2), (None, 0), (None, 0)] and all(row["runs"] == 1 for row in rows)
    for row in rows:
        assert 0 < row["measured_p50_milliseconds"] <= row["measured_p99_milliseconds"]
        assert abs(row["own_p50_error_percent"]) < 50  # a busy machine wakes threads late
    assert "dropped" in capsys.readouterr().out


@pytest.mark.slow
def test_groups_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of the program, in a short run: every answer is right, and no request of the rollout fails."""
    monkeypatch.setattr(serve, "_STOPPED", 3.0)
    file = tmp_path / "rows.json"
    assert serve.main(["--groups", "2", "--seconds", "1", "--json", str(file)]) == 0
    rows = json.loads(file.read_text())
    assert [row["part"] for row in rows] == ["one group", "all groups"] * 3 + ["calm", "one stopped", "rollout"]
    assert all(row["requests"] > 0 and row["refused"] == 0 for row in rows)
    assert max(row["changed_percent"] for row in rows) < 2  # digits' windows change few answers
    said = capsys.readouterr().out
    assert "a rollout: 0 of " in said and "(mark: 0.9)" in said
