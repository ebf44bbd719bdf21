"""Services, goals and files that `plan` refuses: each error says what, where, and how to mend it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.commands.test_plan import NET, PAPER, profile, refused, tiny

Edit = Callable[[dict[str, Any]], Any]


def put(*path: str | int, value: Any) -> Edit:
    """An edit of one field, by the names on the way to it."""

    def edit(data: Any) -> None:
        for name in path[:-1]:
            data = data[name]
        data[path[-1]] = value

    return edit


# An edit of a service's file; what the error says, and where, and what mends it.
SERVICES: dict[str, tuple[Edit, str, str, str]] = {
    "another format": (put("format", value="x"), "no service", "bad.json", "plan show --save"),
    "another version": (put("version", value=2), "version 2 of the format", "bad.json", "reads version 1"),
    "an unknown field": (put("colour", value=1), "unknown field 'colour'", "bad.json", "known: format, version, name"),
    "of a host": (put("hosts", "client", "ram", value=1), "unknown field 'ram'", "hosts.client", "known: cores, store"),
    "of a step": (put("request", "steps", 0, "x", value=1), "'x'", "request.steps[0]", "known: name, after, compute"),
    "a missing field": (lambda data: data.pop("request"), "no field 'request'", "bad.json", "malformed service"),
    "an unknown host": (
        put("request", "steps", 2, "compute", "host", value="moon"),
        "unknown host moon",
        "request, step evaluate",
        "one of client, server",
    ),
    "a cycle": (
        put("request", "steps", 0, "after", value=["evaluate"]),
        "a cycle: these steps wait for one another",
        "request: steps send, talk, evaluate",
        "remove one of their `after`",
    ),
    "an unknown step": (
        put("request", "steps", 0, "after", value=["tea"]),
        "waits for tea",
        "step send",
        "one of send",
    ),
    "too many tokens": (
        put("request_tokens", value=5),
        "a request of 5 tokens, but the stores hold 4",
        "request_tokens",
        "a larger store",
    ),
    "a negative size": (
        put("hosts", "client", "store", value=-1),
        "-1 is no number",
        "client: store",
        "from 0, in bytes",
    ),
    "a size in words": (put("hosts", "client", "store", value="64GB"), "'64GB' is no", "client: store", "in bytes"),
    "a link of nothing": (put("hosts", "client", "up", value=0), "0 is no number", "client: up", "above 0, in bits"),
    "negative seconds": (
        put("refill", "steps", 0, "compute", "core_seconds", value=-1),
        "-1 is no number of seconds",
        "refill.steps[0].compute",
        "from 0, in seconds",
    ),
    "no number": (put("rtt", value=float("nan")), "NaN, which is no number of JSON", "bad.json", "copied completely"),
    "half a core": (put("hosts", "server", "cores", value=0.5), "0.5 cores", "hosts.server", "whole number from 1"),
}


@pytest.mark.parametrize("case", SERVICES)
def test_bad_files(capsys: pytest.CaptureFixture[str], tmp_path: Path, case: str) -> None:
    edit, what, where, hint = SERVICES[case]
    data = json.loads(tiny(tmp_path).read_text())
    edit(data)
    (tmp_path / "bad.json").write_text(json.dumps(data))
    said = refused(capsys, "show", "--service", str(tmp_path / "bad.json"))
    for part in (what, where, hint):
        assert part in said, said


# Options beside the service; what the error says, where and how to mend it.
LOADS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "a rate of nothing": (["run", "--rate", "0/s"], ("--rate", "'0/s' is not above 0", "such as 20/min")),
    "a negative rate": (["run", "--rate=-3/s"], ("--rate", "'-3/s' is not a rate", "such as 20/min")),
    "an endless rate": (["run", "--rate", "1e999/s"], ("--rate", "is no finite number", "such as 20/min")),
    "a size of nothing": (["show", "--store", "0GB"], ("--store", "'0GB' is not above 0", "such as 64GB")),
    "a time of nothing": (["show", "--rtt", "0s"], ("--rtt", "'0s' is not above 0", "such as 2s")),
    "a link of nothing": (["show", "--up", "0mbit"], ("--up", "'0mbit' is not above 0", "such as 352mbit")),
    "an hour of nothing": (["run", "--hourly", "1/s", "0/s"], ("--hourly", "'0/s' is not above 0", "20/min")),
    "a price below nothing": (["show", "--prices", "gb-sent=-1"], ("-1.0 is no number", "prices.gb_sent", "from 0")),
    "too many images": (
        ["run", "--rate", "1/s", "--images", "9"],
        ("a request of 9 tokens, but a store of 4", "(at tokens)", "a larger store, or smaller requests"),
    ),
    "an empty trace": (["run", "--trace", "EMPTY"], ("no requests", "empty.txt", "a line for each")),
    "a trace out of order": (
        ["run", "--trace", "MIXED"],
        ("4 s after one at 5 s", "mixed.txt, line 3", "sort the lines"),
    ),
    "a load above the limit": (
        ["solve", "--goal", "p99=5s", "--vary", "cores", "--rate", "3/s"],
        ("p99=5 s is not met", "(at goal)", "serves 2/s, set by 1 refill at a time", "vary something else"),
    ),
    "too few for a rate": (
        ["solve", "--goal", "p99=5s", "--vary", "rate", "--requests", "5"],
        ("runs of 5 requests, too short to show the steady state", "(at requests)", "1,000 requests in a run"),
    ),
    "too few for a percentile": (
        ["sweep", "--rate", "1/s", "--vary", "rtt", "--values", "1ms", "--requests", "40", "--runs", "2"],
        ("the quantile 0.99 of 80 requests", "(at requests)", "simulate 459 requests at least"),
    ),
    "users without a rate": (
        ["solve", "--goal", "p99=5s", "--vary", "replicas", "--users", "3", "--think", "1s"],
        ("replicas for arrivals without a rate", "(at arrivals)", "poisson", "`plan solve`: --rate"),
    ),
    "a rate for hours": (
        ["solve", "--goal", "p99=5s", "--vary", "rate", "--hourly", "1/s"],
        ("these arrivals have no rate to vary", "(at arrivals)", "none of --hourly, --trace and --users"),
    ),
    "an unknown unit": (
        ["show", "--bandwidth", "352Mb/s"],
        ("--bandwidth", "'352Mb/s' is not a link such as 352mbit", "(units: bit, kbit, mbit, gbit; without one bit)"),
    ),
    "a rate without a unit": (
        ["run", "--rate", "4"],
        ("--rate", "'4' is not a rate such as 20/min", "(units: /s, /min, /h, /day)"),
    ),
}
IDLE = {"rate": "0.25", "replicas": "0.25", "store": "0.25", "cores": "0.25", "bandwidth": "0.05", "split": "0.15"}


@pytest.mark.parametrize("case", LOADS)
def test_bad_requests(capsys: pytest.CaptureFixture[str], tmp_path: Path, case: str) -> None:
    words, says = LOADS[case]
    files = {"EMPTY": tmp_path / "empty.txt", "MIXED": tmp_path / "mixed.txt"}
    files["EMPTY"].write_text("# nobody\n")
    files["MIXED"].write_text("1\n5\n4\n")
    said = refused(capsys, *(str(files.get(word, word)) for word in words), "--service", str(tiny(tmp_path)))
    for part in says:
        assert part in said, said


@pytest.mark.parametrize("vary", IDLE)
def test_a_goal_below_idle_names_what_idle_takes(capsys: pytest.CaptureFixture[str], tmp_path: Path, vary: str) -> None:
    """0.2 s on the client's link down, 0.01 s of rounds, 0.04 s of work on four cores; at best without a link."""
    words = ["solve", "--service", str(tiny(tmp_path)), "--goal", "p99=0.03s", "--vary", vary, "--rate", "1/s"]
    said = refused(capsys, *words)
    assert f"a p99 of 0.03 s, below the {IDLE[vary]} s that an idle service takes (at goal)" in said
    assert "hint: a goal above that" in said


def test_too_many_threads_and_profiles_of_elsewhere(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    said = refused(capsys, "show", *PAPER, "--threads", "4", "18", "32")
    assert "18 HE threads" in said and "(at threads)" in said and "at most 17" in said
    said = refused(capsys, "show", *NET, "--profile", str(profile(tmp_path, hummingbird="0.0")))
    assert "release 0.0, here are release" in said and "profile.json" in said and "calibrate again" in said
