"""`plan` as a user types it: what it prints, what it writes, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from hummingbird.__main__ import main
from hummingbird.capacity import Compute, Host, Rounds, Send, Service, chain, from_text, paper, to_text
from hummingbird.capacity.compose import composed
from hummingbird.capacity.profile import Measurement, Profile
from hummingbird.capacity.published import asplos23
from hummingbird.commands.program import machine
from models import get_model
from tests.support.covering import every

PAPER = ["--service", "asplos23/sg", "--net", "tinyimagenet/resnet18", "--up", "500mbit", "--down", "0.5gbit"]
NET = ["--service", "masked", "--model", "models:get_model", "digits", "10", "--input", "2x1x8x8"]


def figures(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["plan", *words, "--json", "-"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The error's text, of exit code 1 or of the parser's 2."""
    try:
        assert main(["plan", *words]) == 1
    except SystemExit as ended:
        assert ended.code == 2
    return capsys.readouterr().err


def tiny(tmp_path: Path) -> Path:
    """A service of 0.5 s refills and 0.25 s requests, 4 tokens."""
    hosts = {"client": Host(store=40, up=8e3, down=8e3), "server": Host(cores=4)}
    steps = ("send", Send("client", "server", 200)), ("talk", Rounds(5)), ("evaluate", Compute("server", 0.16, 4))
    service = Service(
        "tiny",
        hosts,
        request=chain(*steps),
        refill=chain(("make", Compute("client", 0.5))),
        token_bytes={"client": 10},
        rtt=0.004,
    )
    path = tmp_path / "tiny.json"
    path.write_text(to_text(service))
    return path


def profile(tmp_path: Path, **changes: str) -> Path:
    names = ("products", "values", "bits", "offline_bits", "share_bytes", "layers", "slices")
    made = dict.fromkeys(("mpc masked pair", "mpc masked pair:silent"), ("compute", "make"))
    parts = {"mpc masked": ("compute", "expand", "deal"), **made}
    rows = [
        Measurement(
            kind,
            f"{n}",
            "",
            {name: float(pow(n, at, 23)) for at, name in enumerate(names, 1)},
            dict.fromkeys(parts[kind], (1e-3, 2e-3)),
        )
        for n in range(2, 12)
        for kind in parts
    ]
    path = tmp_path / "profile.json"
    path.write_text(Profile({**machine(), **changes}, 1, tuple(rows)).to_text())
    return path


def test_show_a_measured_net(capsys: pytest.CaptureFixture[str]) -> None:
    found = figures(capsys, "show", *PAPER, "--threads", "4", "1", "32", "--store", "140GB")
    assert found["client_bytes_per_token"] == 8 * 4444360 + 18248 * 2228224
    assert found["tokens"] == 140 * 10**9 // found["client_bytes_per_token"] == 3
    assert found["offline_seconds"] == pytest.approx(1809, rel=1e-3) and round(found["online_seconds"]) == 243
    assert found["limit_cause"] == "1 refill at a time"
    assert found["limit_requests_per_second"] == pytest.approx(1 / found["offline_seconds"])


@pytest.mark.slow
def test_show_a_net_of_ones_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = [
        "show",
        *NET,
        "--profile",
        str(profile(tmp_path)),
        "--store",
        "1MB",
        "--bandwidth",
        "1mbit",
        "--rtt",
        "2ms",
    ]
    assert main(["plan", *words, "--save", str(tmp_path / "service.json")]) == 0
    text = capsys.readouterr().out
    assert "the stores hold" in text and "composed of its layers" in text and "images/h" in text
    found = figures(capsys, *words)
    assert found["tokens"] == 10**6 // found["party-0_bytes_per_token"] and found["images_per_request"] == 2
    again = figures(capsys, "show", "--service", str(tmp_path / "service.json"))
    assert again == found
    assert "a store beside a dealer that streams" in refused(capsys, *words, "--dealer", "stream")
    without = [word for word in words if word not in ("--store", "1MB")]
    streamed = figures(capsys, *without)  # as `serve` without a store
    assert streamed["offline_seconds"] == 0 and streamed["tokens"] == 0 and "streams" in streamed["service"]
    assert figures(capsys, *without, "--dealer", "stream") == streamed
    pair = figures(capsys, *without, "--dealer", "pair")
    assert "the two parties make" in pair["service"] and pair["tokens"] == 0
    assert {step["step"] for step in pair["steps"]} > {"make party-0", "make party-1", "rounds of material"}
    kept = figures(capsys, *words, "--dealer", "pair")
    assert kept["party-0_bytes_per_token"] == kept["party-1_bytes_per_token"] and "a store that" in kept["service"]
    assert "without the size of a store" in refused(capsys, *without, "--dealer", "store")


def test_two_parties_without_a_dealer_by_their_transfers_and_link(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["show", *NET, "--profile", str(profile(tmp_path))]

    def steps(*more: str) -> dict[str, dict[str, Any]]:
        return {step["step"]: step for step in figures(capsys, *words, *more)["steps"]}

    pair, silent = steps("--dealer", "pair"), steps("--dealer", "pair:silent")
    sent = "material party-0 to party-1"
    assert silent[sent]["bytes"] < pair[sent]["bytes"]
    linked = steps("--dealer", "pair:0.02:1e6")  # the link on which "silent" is the fastest
    assert linked[sent]["bytes"] == pytest.approx(1e6 / 8 * linked[sent]["seconds"])
    assert linked["rounds"]["seconds"] == pytest.approx(linked["rounds"]["rounds"] * 0.01)
    assert steps("--dealer", "pair:0.02:1e6", "--rtt", "2s")["rounds"]["seconds"] == pytest.approx(
        linked["rounds"]["rounds"]
    )
    assert "beside --dealer pair, which makes material for 'pair'" in refused(
        capsys, *words, "--dealer", "pair", "--aim", "pair:silent"
    )
    assert "stream, store, pair, pair:silent" in refused(capsys, *words, "--dealer", "host:80")
    assert "stream, store, pair, pair:silent" in refused(capsys, *words, "--dealer", "pair:loud")


def test_show_a_file_on_other_machines(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["show", "--service", str(tiny(tmp_path))]
    found = figures(capsys, *words)
    assert found["online_seconds"] == pytest.approx(0.2 + 0.01 + 0.04) and found["tokens"] == 4
    assert found["limit_requests_per_second"] == pytest.approx(2.0)
    words += ["--up", "16kbit", "--rtt", "40ms", "--store", "1kB", "--cores", "1"]
    changed = figures(capsys, *words, "--workers", "2")
    assert changed["online_seconds"] == pytest.approx(0.1 + 0.1 + 0.16) and changed["tokens"] == 100


OWN = ["--model", "models:get_model", "digits", "10", "--input", "1x1x8x8", "--up", "20mbit", "--down", "100mbit"]


def garbling(tmp_path: Path) -> str:
    """A profile on which an AND takes 1 ns to garble and 0.5 ns to evaluate, on two threads."""
    rows = [
        Measurement(
            "gc",
            f"{n}",
            "",
            {"and_gates": gates, "instances": n},
            {"garble": (1e-9 * gates,), "evaluate": (5e-10 * gates,)},
        )
        for n, gates in ((1.0, 8e3), (2.0, 4e3), (3.0, 9e3))
    ]
    path = tmp_path / "gc.json"
    path.write_text(Profile(machine(), 2, tuple(rows)).to_text())
    return str(path)


@pytest.mark.parametrize("kind", ["sg", "cg"])
def test_show_garbled_circuits_for_a_net_of_ones_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str
) -> None:
    """Bytes are those of its layers; with a profile garbling is AND gates times the seconds of one."""
    net = composed(get_model("digits", 10), (1, 8, 8))
    found = figures(capsys, "show", "--service", kind, *OWN, "--store", "1GB")
    assert found["client_bytes_per_token"] == paper.token_bytes(kind, net, asplos23())
    steps = {step["step"]: step for step in found["steps"]}
    assert steps["circuits"]["bytes"] == net.sg.garbled and steps["prediction"]["bytes"] == net.sg.prediction
    assert "composed of its layers by units of asplos23" in found["notes"][0]
    here = figures(capsys, "show", "--service", kind, *OWN, "--store", "1GB", "--profile", garbling(tmp_path))
    steps = {step["step"]: step for step in here["steps"]}
    gates = net.relus * asplos23().units.garbled_relu_bytes / 32
    assert steps["garbling"]["core_seconds"] == pytest.approx(2e-9 * gates, rel=1e-6)
    assert steps["evaluation"]["core_seconds"] == pytest.approx(1e-9 * gates, rel=1e-6)
    assert "garbled circuits: AND gates" in here["notes"][1]


def test_bad_garbled_services(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    start = ["show", "--service", "sg"]
    assert "a request of 2 images" in refused(capsys, *start, *OWN[:4], *OWN[6:], "--input", "2x1x8x8")
    assert "without --up" in refused(capsys, *start, *OWN[:6], "--down", "1mbit")
    assert "without a net" in refused(capsys, *start, *OWN[4:])
    assert "--bits beside --service sg" in refused(capsys, *start, *OWN, "--bits", "x")
    assert "--dealer beside --service sg" in refused(capsys, *start, *OWN, "--dealer", "stream")
    said = refused(capsys, *start, *OWN, "--profile", str(profile(tmp_path)))
    assert "no measurements of gc: garble" in said and "scripts.tools.calibrate --only gc --json" in said


BAD = {
    "a rate in words": (["--bandwidth", "fast"], "is not a link such as 352mbit"),
    "a link of nothing": (["--bandwidth", "0mbit"], "is not above 0"),
    "a time in the wrong unit": (["--rtt", "3GB"], "is not a time such as 2s"),
    "a store below nothing": (["--store", "-1GB"], "--store"),
    "more threads than the table": (["--threads", "4", "18", "32"], "18 HE threads, but tinyimagenet/resnet18 was"),
    "no thread": (["--threads", "0", "1", "1"], "whole number from 1"),
    "a price of nothing known": (["--prices", "tea=1"], "'tea=1' is no price"),
    "a price in words": (["--prices", "gb-sent=cheap"], "is no price"),
    "a net beside another": (["--model", "models:get_model"], "--model beside --service asplos23/sg"),
    "no folder": (["--json", "nowhere/x.json"], "there is no folder nowhere"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_options(capsys: pytest.CaptureFixture[str], case: str) -> None:
    words, says = BAD[case]
    assert says in refused(capsys, "show", *PAPER, *words)


def test_bad_services(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "no service 'nowhere.json'" in refused(capsys, "show", "--service", "nowhere.json")
    assert "no measured net 'tea'" in refused(capsys, "show", *PAPER[:2], "--net", "tea", *PAPER[4:])
    assert "without --up" in refused(capsys, "show", *PAPER[:4])
    assert "without --profile" in refused(capsys, "show", *NET)
    assert "without a net" in refused(capsys, "show", *NET[:2], *NET[6:], "--profile", "x")
    assert "no service 'xx'" in refused(capsys, "show", "--service", "asplos23/xx", *PAPER[2:])
    edited = json.loads(tiny(tmp_path).read_text())
    (tmp_path / "bad.json").write_text(json.dumps({**edited, "request_tokens": 5}))
    assert "5 tokens, but the stores hold 4" in refused(capsys, "show", "--service", str(tmp_path / "bad.json"))


ELSEWHERE = [({"hummingbird": "0.1"}, "release 0.1"), ({"kernels": "abacus"}, "kernels abacus")]


@pytest.mark.parametrize(("changes", "says"), ELSEWHERE)
def test_profiles_of_elsewhere(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, changes: dict[str, str], says: str
) -> None:
    said = refused(capsys, "show", *NET, "--profile", str(profile(tmp_path, **changes)))
    assert f"measured with {says}" in said
    assert "hint: calibrate again" in said


def test_a_damaged_profile(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    whole = profile(tmp_path).read_text()
    for text in ("", "{}", whole.replace('"version": 1', '"version": 2'), whole.replace("0.001", "0"), whole[:-20]):
        (tmp_path / "bad.json").write_text(text)
        assert "bad.json" in refused(capsys, "show", *NET, "--profile", str(tmp_path / "bad.json"))
    assert "cannot be read" in refused(capsys, "show", *NET, "--profile", "nowhere.json")


def test_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["run", "--service", str(tiny(tmp_path)), "--rate", "60/min", "--requests", "400", "--runs", "3"]
    found = figures(capsys, *words)
    assert found["engine"] == "recurrence" and found["rate"] == pytest.approx(1.0)
    shown = [found[name]["value"] for name in ("p50", "p95", "p99")]
    assert found["p50"]["low"] <= shown[0] <= shown[1] <= shown[2] <= found["p99"]["high"]
    assert found["limit"] == pytest.approx(2.0) and 0 < found["levels"]["stored"] <= 4
    assert figures(capsys, *words, "--seed", "0") == found != figures(capsys, *words, "--seed", "1")


@pytest.mark.slow
def test_run_in_words_and_by_events(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["run", "--service", str(tiny(tmp_path)), "--rate", "60/min", "--requests", "400", "--runs", "3"]
    assert main(["plan", *words, "--prices", "core-hour=1", "--json", str(tmp_path / "run.json")]) == 0
    text = capsys.readouterr().out
    assert "95 % interval" in text and "every phase has its cores and links to itself" in text and "5 an hour" in text
    assert json.loads((tmp_path / "run.json").read_text())["cost_per_hour"] == pytest.approx(5.0)
    assert main(["plan", *words[:3], "--rate", "3/s"]) == 0
    assert "above the largest rate: 150 % of it" in capsys.readouterr().out
    assert "events" in figures(capsys, *words, "--engine", "events")["engine"]


@pytest.mark.slow
def test_pictures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Below the limit, above it, and at an answer: three that differ."""
    service = ["--service", str(tiny(tmp_path)), "--requests", "500"]
    below, above, answer = (["--plot", str(tmp_path / f"{name}.png")] for name in ("below", "above", "answer"))
    figures(capsys, "run", *service, "--rate", "1/s", "--runs", "2", *below)
    figures(capsys, "run", *service, "--rate", "9/s", "--runs", "2", *above)
    figures(capsys, "solve", *service, "--goal", "mean=1s", "--vary", "rate", *answer)
    pictures = {Path(path).read_bytes() for _, path in (below, above, answer)}
    assert len(pictures) == 3 and all(one.startswith(b"\x89PNG") and len(one) > 5000 for one in pictures)


def test_bad_pictures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["run", "--service", str(tiny(tmp_path)), "--rate", "1/s", "--plot"]
    assert "names no format" in refused(capsys, *words, "x.tea")
    assert "there is no folder" in refused(capsys, *words, "nowhere/x.png")


@pytest.mark.slow
def test_batches_on_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Equal gaps of 1 s: the first of three waits 2 s for the third, or 1.2 s for the second alone."""
    words = ["run", "--service", str(tiny(tmp_path)), "--rate", "1/s", "--burstiness", "inf", "--runs", "1"]
    words += ["--requests", "600", "--batch", "3"]
    full = figures(capsys, *words, "--window", "5s")
    assert full["latency_mean"]["value"] == pytest.approx(1.0 + 0.25)
    assert full["wait_mean"]["value"] == pytest.approx(1.0) and full["utilisation"]["server cores"] < 0.1
    assert figures(capsys, *words, "--window", "5s", "--each", "60ms")["online_mean"]["value"] == pytest.approx(0.37)
    two = figures(capsys, *words, "--window", "1.2s")
    assert two["latency_mean"]["value"] == pytest.approx(1.2 - 0.5 + 0.25)
    events = figures(capsys, *words, "--window", "1.2s", "--engine", "events")
    assert events["latency_mean"] == pytest.approx(two["latency_mean"])
    solve = ["solve", *words[1:3], "--goal", "p99=3s", "--vary", "rate", "--requests", "1000"]
    alone = figures(capsys, *solve, "--workers", "9", "--cores", "9")
    several = figures(capsys, *solve, "--workers", "9", "--cores", "9", "--batch", "4", "--window", "1s")
    assert several["value"] > 1.5 * alone["value"]


def test_sessions_on_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A set-up of 1 s before the first request of each client, of five that each makes."""
    path = tiny(tmp_path)
    service = dataclasses.replace(from_text(path.read_text(), ""), session=chain(("setup", Compute("server", 1.0))))
    path.write_text(to_text(service))
    words = ["run", "--service", str(path), "--rate", "0.05/s", "--runs", "1", "--requests", "3000"]
    assert figures(capsys, *words)["online_mean"]["value"] == pytest.approx(0.25)
    assert figures(capsys, *words, "--session", "5")["online_mean"]["value"] == pytest.approx(0.25 + 1 / 5, rel=0.15)
    assert figures(capsys, *words, "--session", "1")["online_mean"]["value"] == pytest.approx(1.25)


def test_run_other_requests(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["run", "--service", str(tiny(tmp_path)), "--runs", "2"]
    (tmp_path / "trace.txt").write_text("".join(f"{2 * n} 1\n" for n in range(600)))
    traced = figures(capsys, *words, "--trace", str(tmp_path / "trace.txt"))
    assert traced["requests"] == 600 and traced["p99"]["value"] == pytest.approx(0.25)
    words += ["--requests", "2000"]
    assert figures(capsys, *words, "--users", "3", "--think", "5s")["p99"]["value"] < 1
    assert figures(capsys, *words, "--rate", "9/s", "--queue", "2")["shares"]["rejected"] > 0.5


@pytest.mark.slow
def test_run_requests_of_hours_in_bursts_and_without_patience(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["run", "--service", str(tiny(tmp_path)), "--runs", "2"]
    assert figures(capsys, *words, "--hourly", "30/min", "90/min")["rate"] == pytest.approx(1.0)
    assert figures(capsys, *words, "--rate", "1/s", "--burstiness", "inf")["p99"]["value"] == pytest.approx(0.25)
    assert figures(capsys, *words, "--rate", "9/s", "--patience", "2s")["shares"]["gave up"] > 0.5


def test_sweep(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["sweep", "--service", str(tiny(tmp_path)), "--rate", "1/s", "--requests", "400", "--runs", "3"]
    plot = ["--plot", str(tmp_path / "x.svg")]
    rows = figures(capsys, *words, "--vary", "rate", "--values", "30/min", "1/s", "3/s", *plot)
    assert [row["value"] for row in rows] == [0.5, 1.0, 3.0]
    assert [row["overloaded"] for row in rows] == [False, False, True]
    assert rows[0]["latency_mean"]["value"] < rows[1]["latency_mean"]["value"]
    assert (tmp_path / "x.svg").stat().st_size > 1000


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    every(2, [("store", "10B", "1kB"), ("up", "8kbit", "1mbit"), ("rtt", "100ms", "1ms"), ("cores", "1", "4")]),
)
def test_sweeps_of_a_machine(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, bad: str, good: str
) -> None:
    words = ["sweep", "--service", str(tiny(tmp_path)), "--rate", "1/s", "--requests", "400", "--runs", "3"]
    first, second = figures(capsys, *words, "--vary", name, "--values", bad, good)
    assert first["latency_mean"]["value"] > second["latency_mean"]["value"]


def test_solve(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["solve", "--service", str(tiny(tmp_path)), "--goal", "p99=1s", "--requests", "1000", "--seed", "3"]
    found = figures(capsys, *words, "--vary", "rate")
    assert found["p99_seconds"] <= 1.0 and found["value"] < found["limit_requests_per_second"]
    at = figures(capsys, "run", *words[1:3], "--rate", f"{found['value']!r}/s", "--runs", "2", *words[5:])
    assert at["p99"]["value"] == pytest.approx(found["p99_seconds"])


@pytest.mark.slow
def test_solve_for_a_store_and_in_words(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["solve", "--service", str(tiny(tmp_path)), "--goal", "p99=1s", "--requests", "1000", "--seed", "3"]
    store = figures(capsys, *words, "--vary", "store", "--rate", "1/s")
    assert store["value"] % 10 == 0 and store["next_token_bytes"] == store["value"] + 10
    assert main(["plan", *words, "--vary", "rate"]) == 0
    text = capsys.readouterr().out
    assert "images/h with a p99 of" in text and "what moves the p99" in text


LOADS = {
    "nobody": ([], "no requests"),
    "a rate of nothing": (["--rate", "0/s"], "is not above 0"),
    "a rate in seconds": (["--rate", "5s"], "is not a rate such as 20/min"),
    "users who do not think": (["--users", "3"], "--users without --think"),
    "thinking nobody": (["--rate", "1/s", "--think", "3s"], "--think without --users"),
    "bursts of nothing": (["--users", "3", "--think", "3s", "--burstiness", "2"], "--burstiness without --rate"),
    "a burstiness of nothing": (["--rate", "1/s", "--burstiness", "0"], "burstiness"),
    "too few requests": (["--rate", "1/s", "--requests", "40", "--runs", "2"], "the quantile 0.99 of 80 requests"),
    "a window of nobody": (["--rate", "1/s", "--window", "2s"], "--window without batches"),
    "more for each of one": (["--rate", "1/s", "--each", "2s"], "--each without batches"),
    "batches of users": (["--users", "3", "--think", "3s", "--batch", "2"], "batches go with open arrivals"),
    "batches in a full queue": (["--rate", "1/s", "--batch", "2", "--queue", "3"], "batches go with open arrivals"),
    "a batch that no store serves": (["--rate", "1/s", "--batch", "5"], "a batch of 5 tokens"),
    "a batch of nobody": (["--rate", "1/s", "--batch", "0"], "whole number from 1"),
    "sessions of none": (["--rate", "1/s", "--session", "5"], "--session of a service without one"),
    "sessions of users": (["--users", "3", "--think", "3s", "--session", "5"], "--session beside --users"),
    "no trace": (["--trace", "nowhere.txt"], "cannot be read"),
    "a trace out of order": (["--trace", "TRACE"], "line 3"),
}


@pytest.mark.parametrize("case", LOADS)
def test_bad_loads(capsys: pytest.CaptureFixture[str], tmp_path: Path, case: str) -> None:
    words, says = LOADS[case]
    (tmp_path / "trace.txt").write_text("1\n5\n4\n")
    words = [str(tmp_path / "trace.txt") if word == "TRACE" else word for word in words]
    assert says in refused(capsys, "run", "--service", str(tiny(tmp_path)), *words)


GOALS = {
    "a goal in words": (["--goal", "fast"], "is no goal such as p99=2s"),
    "a goal below idle": (["--goal", "p99=0.2s"], "below the 0.25 s that an idle service takes"),
    "two workers who want a rate": (["--goal", "p99=1s", "--vary", "cores"], "no requests"),
    "what cannot vary": (["--goal", "p99=1s", "--vary", "tea"], "invalid choice"),
}


@pytest.mark.parametrize("case", GOALS)
def test_bad_goals(capsys: pytest.CaptureFixture[str], tmp_path: Path, case: str) -> None:
    words, says = GOALS[case]
    vary = [] if "--vary" in words else ["--vary", "rate"]
    assert says in refused(capsys, "solve", "--service", str(tiny(tmp_path)), *vary, *words)


def test_bad_sweeps(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["sweep", "--service", str(tiny(tmp_path)), "--users", "2", "--think", "9s"]
    assert "is not a size such as" in refused(capsys, *words, "--vary", "store", "--values", "big")
    assert "no rate to vary" in refused(capsys, *words, "--vary", "rate", "--values", "1/s")
    assert "names no format" in refused(capsys, *words, "--vary", "slots", "--values", "1", "--plot", "x.tea")
