"""Services of private lookups: bytes and work are the price's, batches the server's; the wire is outside of a slot."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from hummingbird.__main__ import main
from hummingbird.capacity import (
    Compute,
    Hosts,
    Send,
    Service,
    Users,
    constant,
    from_text,
    limits,
    pir,
    poisson,
    run,
    to_text,
)
from hummingbird.capacity.lookups import SERVERS, amounts
from hummingbird.capacity.profile import Measurement, Profile
from hummingbird.commands.program import machine
from hummingbird.errors import ConfigError
from hummingbird.pir.batching.batch_code import BatchCode
from hummingbird.pir.batching.cost_model import price
from hummingbird.pir.batching.plan import Plan

CODES = (BatchCode(64, 4, 1, 2), BatchCode.cuckoo(1000, 8))  # 8 and 12 keys: 16 inferences in a pass
FIXED, EACH = 2e-3, 1e-3  # seconds of a pass, and of an inference in it


def profile() -> Profile:
    """Passes that take FIXED seconds, and EACH for every message."""
    rows = []
    for number in range(2, 12):
        inferences = 1 + number % 8
        work = amounts(price([BatchCode(pow(number, 3, 23) + 100, 1 + number % 5, 1, number)], 8 + number), inferences)
        seconds = (FIXED * work["passes"] + EACH * work["message"],)
        rows.append(Measurement("pir", f"{number}", "", work, {"answer": seconds}))
    return Profile(machine(), 1, tuple(rows))


@pytest.fixture(scope="module")
def service() -> Service:
    return pir(CODES[1:], 32, profile())


def test_bytes_are_the_price() -> None:
    found, cost = pir(CODES, 32, profile()), price(CODES, 32)
    assert found.transit is not None
    sends = [step.work for step in found.transit.steps if isinstance(step.work, Send)]
    assert sum(send.bytes for send in sends if send.source == "client") == cost.up
    assert sum(send.bytes for send in sends if send.target == "client") == cost.down
    assert {send.source for send in sends} == {"client", *SERVERS} and found.refill is None
    assert found.batch == 192 // 12 and found.hold == 0.002


def test_a_pass_reads_the_table_once() -> None:
    cost = price(CODES, 32)
    alone, together = amounts(cost, 1), amounts(cost, 4)
    assert alone["passes"] == 2 and {name: alone[name] for name in cost.work} == cost.work
    assert {name for name in alone if together[name] * 4 == alone[name]} == {"passes", "bucket", "held"}
    assert {name for name in alone if together[name] == alone[name]} == set(alone) - {"passes", "bucket", "held"}


def test_seconds_of_a_pass_and_of_each_in_it(service: Service) -> None:
    step = service.request.steps[0].work
    assert isinstance(step, Compute) and step.core_seconds == pytest.approx(FIXED + EACH, rel=1e-6)
    assert service.each == pytest.approx(EACH, rel=1e-6)


@pytest.mark.slow
def test_cores_that_are_faster_are_so_for_all_of_a_pass() -> None:
    """Passes measured on two threads, on a host of one core."""
    both = pir(CODES[1:], 32, dataclasses.replace(profile(), threads=2))
    one = both.at(Hosts(cores=1))
    assert limits(both)[0].rate == pytest.approx(16 / (FIXED + 16 * EACH), rel=1e-6)
    assert limits(one)[0].rate == pytest.approx(limits(both)[0].rate / 2) and one.each == 2 * both.each


def test_a_lone_request_waits_for_others_and_for_the_wire(service: Service) -> None:
    there = service.at(Hosts(rtt=0.03))
    got = run(there, None, constant(1.0), runs=2, requests=50)
    expected = service.hold + FIXED + EACH + there.transit_seconds()
    assert got.outcome.latency == pytest.approx(np.full((2, 50), expected), rel=1e-6)
    assert got.means["transit"].value == pytest.approx(0.03, rel=1e-3)
    assert got.means["wait"].value == pytest.approx(service.hold) and got.utilisation["slots"] < 0.01


def test_the_limit_is_that_of_full_batches(service: Service) -> None:
    """The wire holds nobody up: below the limit the queue lasts, above it latency grows."""
    far = service.at(Hosts(rtt=1.0))
    most = limits(far)[0]
    assert most.rate == pytest.approx(16 / (FIXED + 16 * EACH), rel=1e-6)
    assert {limit.cause for limit in limits(far)[:3]} == {"1 batch at a time", *(f"cores of {one}" for one in SERVERS)}
    below = run(far, None, poisson(0.8 * most.rate), runs=10, requests=2000)
    assert not below.overloaded and 1.0 < below.quantile(0.99).value < 1.2
    assert run(far, None, poisson(1.1 * most.rate), runs=10, requests=2000).overloaded
    assert below.utilisation["server-0 cores"] == pytest.approx(below.utilisation["slots"], rel=0.05)


def test_a_link_that_is_too_thin_limits(service: Service) -> None:
    thin = service.at(Hosts(bandwidth=1e5))
    most = limits(thin)[0]
    assert most.cause.startswith("the link") and most.rate == pytest.approx(1e5 / (4 * price(CODES[1:], 32).up))
    assert run(thin, None, poisson(1.1 * most.rate), runs=2, requests=500).overloaded


def test_batches_and_transit_are_in_the_file(service: Service) -> None:
    again = from_text(to_text(service), "service")
    assert again == service and (again.batch, again.hold) == (16, 0.002) and again.transit == service.transit


def test_what_does_not_fit_is_refused(service: Service) -> None:
    with pytest.raises(ConfigError, match="no measurements of pir: answer") as caught:
        pir(CODES, 32, Profile(machine(), 1, ()))
    assert "scripts.tools.calibrate --only pir --json" in str(caught.value)
    with pytest.raises(ConfigError, match="0 bytes of a record"):
        pir(CODES, 0, profile())
    with pytest.raises(ConfigError, match="batches go with open arrivals"):
        run(service, None, Users(3, 1.0), runs=2, requests=50)


@pytest.mark.slow
def test_on_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, plan = tmp_path / "profile.json", tmp_path / "plan.json"
    path.write_text(profile().to_text())
    plan.write_text(Plan(CODES[1], BatchCode(64, 4, 1, 2), torch.arange(64)).to_json())
    words = ["plan", "show", "--service", "pir", "--profile", str(path), "--table", "1000x32"]
    assert main([*words, "--plan", str(plan), "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(step.get("bytes", 0) for step in found["steps"]) == price(CODES, 32).bytes
    assert found["requests_per_batch"] == 16
    assert main([*words, "--lookups", "3", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(step.get("bytes", 0) for step in found["steps"]) == price([BatchCode(1000, 1, 1, 3)], 32).bytes
    assert main(words) == 0 and "up to 192 are served as one" in capsys.readouterr().out
    for bad, says in (
        (["--plan", str(plan), "--table", "999x32"], "a table of 999 rows, and a plan for 1000"),
        (["--plan", str(plan), "--lookups", "2"], "--lookups beside --plan"),
        (["--plan", str(path)], "malformed plan"),
        (["--model", "models"], "--model beside --service pir"),
    ):
        assert main([*words, *bad]) == 1
        assert says in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*words, "--table", "1000"])
    assert "no table such as 1048576x256" in capsys.readouterr().err
