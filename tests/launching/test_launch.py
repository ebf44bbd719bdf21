"""`hummingbird.launch`: results, printed lines, refusals, and that no way of ending leaves a process behind."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import hummingbird
from hummingbird.channel import meter
from hummingbird.errors import ConfigError, EnvironmentProblem, InputError, LaunchError
from hummingbird.launching import launch as module
from hummingbird.launching import party, sending
from hummingbird.table import Report
from tests.support import python
from tests.support.paths import ROOT
from tests.support.patience import HANG, NEVER, until

SLOW = pytest.mark.slow


@pytest.fixture(params=["forked", pytest.param("fresh", marks=SLOW)])
def started(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How parties start: as forks of a process that has imported everything, or as interpreters of their own."""
    if request.param == "forked":
        python.forking(monkeypatch, module)
    return str(request.param)


def trained() -> torch.nn.Sequential:
    """A net of a class that no other process can import, after parallel loops on several threads."""

    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    hummingbird.register_converter(Twice, lambda module: module)
    net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), Twice(), torch.nn.Linear(256, 4))
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        optimizer = torch.optim.SGD(net.parameters(), 0.01)
        for _ in range(3):
            (torch.rand(256, 256) @ torch.rand(256, 256)).sum()
            optimizer.zero_grad()
            net(torch.rand(512, 64)).square().mean().backward()
            optimizer.step()
    finally:
        torch.set_num_threads(before)
    return net.eval()


@pytest.mark.usefixtures("started")
def test_parties_compute_what_the_net_does(nothing_is_left: None, capsys: pytest.CaptureFixture[str]) -> None:
    net, images = trained(), torch.rand(5, 64)

    def infer(session: Any, net: torch.nn.Module, scale: float) -> dict[str, Any]:
        print(f"here is {session.rank}\nof {session.parties}\n", end="")  # one write: nothing comes between
        print("no line's end", end="", file=sys.stderr)
        private = hummingbird.convert_model(net)
        shared = hummingbird.cryptensor(images * scale if session.rank == 0 else None, src=0)
        large = torch.arange(1 << 18)
        return {
            "large": large,
            "logits": private(shared).get_plain_text(dst=0),
            "rank": [session.rank, (os.getpid(), None)],
            "started": subprocess.Popen(["sleep", "3600"]).pid,
        }

    first, second = hummingbird.launch(infer, net, 0.5, timeout=NEVER)
    with torch.no_grad():
        assert (first["logits"] - net(images * 0.5)).abs().max() < 1e-3
    assert torch.equal(first["large"], torch.arange(1 << 18)) and torch.equal(second["large"], first["large"])
    assert second["logits"] is None and (first["rank"][0], second["rank"][0]) == (0, 1)
    assert {os.getpid(), first["rank"][1][0], second["rank"][1][0]} == {*pids(first, second), os.getpid()}
    out, err = capsys.readouterr()
    for said, lines in (  # a library's warning may come between
        (out, ["[party 1] here is 1", "[party 1] of 2", "here is 0", "of 2"]),
        (err, ["[party 1] no line's end", "no line's end"]),
    ):
        found = [line for line in said.splitlines() if re.search("here is|of 2|no line's end", line)]
        assert sorted(found) == lines, said
    assert not any(map(alive, pids(first, second)))
    until(lambda: not alive(first["started"]) and not alive(second["started"]), "what was killed to end")


def pids(*results: dict[str, Any]) -> list[int]:
    found = [result["rank"][1][0] for result in results]
    assert len(set(found)) == len(found)
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_function_that_is_sent_by_value_knows_its_file() -> None:
    def outer() -> Any:
        return lambda: None

    sent = sending.unpacked_call(sending.packed_call(outer, (), {}))[0]
    assert sent is not outer
    assert sent.__code__.co_filename == sent().__code__.co_filename == __file__
    assert sent.__code__.co_firstlineno == outer.__code__.co_firstlineno


def wait_for_ever(session: Any, how: str) -> None:
    """Waits at party 0 for what party 1 never sends."""
    if session.rank == 1:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "raises":
            raise ValueError("the images are upside down")
        if how == "exits":
            os._exit(0)
    hummingbird.cryptensor(torch.ones(1) if session.rank == 1 and how != "returns" else None, src=1).get_plain_text()


def test_causes_come_before_what_follows_from_them() -> None:
    def ended(error: str = "", when: float = 0.0, stopped: bool = False) -> Any:
        report = {"error": {"type": error, "when": when}} if error else {}
        return SimpleNamespace(report=report, stopped=stopped, ended=when)

    wanted = [
        ended(when=4.0),  # killed from outside, noticed late
        ended("ValueError", 2.0),
        ended("ValueError", 3.0),
        ended("PeerError", 1.0),
        ended("PeerError", 5.0, stopped=True),
        ended(when=1.0, stopped=True),  # hung until it was killed here
    ]
    for order in itertools.permutations(wanted):
        assert sorted(order, key=module._order) == wanted


def test_an_error_without_a_text_is_told() -> None:
    class Strange(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert party._told(Strange())["text"] == "(no text: RuntimeError in its __str__)"
    assert party._told(InputError("it is small", hint="make it larger"))["text"] == "it is small"


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("killed", "party 1 failed: it was killed by SIGKILL"),
        pytest.param("raises", "party 1 failed: ValueError: the images are upside down", marks=SLOW),
        pytest.param("exits", "party 1 failed: it ended with exit status 0 before the function had ret", marks=SLOW),
        pytest.param("returns", "party 1 failed: InputError: party 1 must give a tensor, got NoneType", marks=SLOW),
    ],
)
def test_a_party_that_fails_is_named_first(how: str, told: str) -> None:
    before = sockets()
    with pytest.raises(LaunchError) as caught:
        hummingbird.launch(wait_for_ever, how, timeout=NEVER)
    # Though the error, and all that its frames hold, is kept. Threads of other tests may have one for a moment.
    until(lambda: sockets() <= before, "all sockets to be closed")
    text = str(caught.value)
    assert text.startswith(told), text
    assert [*caught.value.failures] == ["party 1", "party 0"] and "\nthen party 0: PeerError: party 1 " in text
    assert (f'{__file__}", line' in text) == (how in ("raises", "returns"))  # the line in the function
    hint = {"killed": "the system may have", "exits": "the function, or a library", "returns": "", "raises": None}[how]
    assert f"\nhint: {hint}" in text if hint is not None else "hint" not in text


def sockets() -> set[str]:
    """Those of this process."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the folder itself, open for this loop
            found.add(os.readlink(path))
    return {name for name in found if name.startswith("socket:")}


@SLOW
def test_a_death_of_party_0_which_takes_the_dealer_along_is_the_first_cause() -> None:
    def dies(session: Any) -> None:
        if session.rank == 0:
            os.kill(os.getpid(), signal.SIGSEGV)
        private = hummingbird.convert_model(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval())
        private(hummingbird.cryptensor(torch.rand(1, 4) if session.rank == 1 else None, src=1))

    with pytest.raises(LaunchError, match="^party 0 failed: it was killed by SIGSEGV\nthen party 1: "):
        hummingbird.launch(dies, timeout=NEVER)


@SLOW
def test_what_cannot_come_back_and_who_does_not_start() -> None:
    with pytest.raises(LaunchError, match=r"InputError: the result\['net'\]\[0\] is a torch.nn.modules.linear.Linear"):
        hummingbird.launch(lambda session: {"net": [torch.nn.Linear(1, 1)]}, timeout=NEVER)
    with pytest.raises(LaunchError, match="party [01] failed: it did not start within 0.01 s\nthen party [01]: "):
        hummingbird.launch(wait_for_ever, "", timeout=0.01)
    with pytest.raises(LaunchError, match="party [01] failed: ModuleNotFoundError: No module named 'of_this_process'"):
        sys.modules["of_this_process"] = type(sys)("of_this_process")
        try:
            exec("def own(session): pass", vars(sys.modules["of_this_process"]))
            hummingbird.launch(sys.modules["of_this_process"].own, timeout=NEVER)
        finally:
            del sys.modules["of_this_process"]


@SLOW
def test_three_parties_of_two_lanes() -> None:
    def gathered(session: Any, x: torch.Tensor) -> torch.Tensor | None:
        shared = hummingbird.cryptensor(x[session.part(len(x))] if session.rank == 2 else None, src=2)
        rows = (shared * 2).get_plain_text(dst=1)
        return session.gather(rows) if session.rank == 1 else None

    x = torch.arange(5.0)[:, None]
    first, second, third = hummingbird.launch(gathered, x, parties=3, lanes=2, timeout=NEVER)
    assert first is third is None and torch.allclose(second, x * 2, atol=1e-3)


SCRIPT = """
import os, subprocess, time
import torch
import hummingbird

def forever(session):
    started = subprocess.Popen(["sleep", "3600"])
    print("pid", os.getpid(), "parent", os.getppid(), "and pid", started.pid, flush=True)
    if session.rank == 1:
        time.sleep(3600)
    hummingbird.cryptensor(None, src=1)

try:
    hummingbird.launch(forever, timeout=3600)
except KeyboardInterrupt:
    print("interrupted")
"""


@SLOW
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_whatever_ends_the_caller_ends_its_parties(tmp_path: Path, number: signal.Signals) -> None:
    """SIGINT is what Ctrl-C sends; the dealer goes as well. A script needs no guard of its main part."""
    (tmp_path / "script.py").write_text(SCRIPT)
    keep = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    environment = {**keep, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "script.py"]
    caller = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert caller.stdout is not None
        lines = [caller.stdout.readline() for _ in range(2)]
        parties = [int(pid) for line in lines for pid in re.findall(r"pid (\d+)", line)]
        assert len(parties) == 4  # and what each has started
        assert f"parent {caller.pid}" in lines[0] and [line.startswith("[party 1] ") for line in lines].count(True) == 1
        assert [path.name.startswith("hummingbird-") for path in tmp_path.iterdir()].count(True) == 1  # the dealer's
        caller.send_signal(number)
        said, _ = caller.communicate(timeout=HANG)
    finally:
        caller.kill()
    assert said == ("interrupted\n" if number == signal.SIGINT else "")
    if number == signal.SIGINT:
        assert not any(map(alive, parties[::2]))
    until(lambda: not any(map(alive, parties)), "the parties to end")
    until(lambda: [path.name for path in tmp_path.iterdir()] == ["script.py"], "the dealer to end")


def test_values_come_back_as_they_went() -> None:
    frozen = torch.nn.Parameter(torch.rand(2, 3)).t()
    value = {
        "a": (1, 2.5, None, True, "text", b"bytes", 1 << 80),
        3: [frozen, {}, (), torch.tensor(1, dtype=torch.int8)],
    }
    found = sending.unpacked_result(sending.packed_result(sending.plain(value)))
    assert found["a"] == value["a"] and found[3][1:3] == [{}, ()] and found[3][3].dtype == torch.int8
    assert torch.equal(found[3][0], frozen) and not found[3][0].requires_grad
    with hummingbird.meter() as counting:
        meter.count(bits=80, rounds=1)
    counted, table = sending.unpacked_result(sending.packed_result(sending.plain((counting, counting.table()))))
    assert counted.rows == counting.rows and counted.total.bits_sent == 80 and counted.seconds == counting.seconds
    assert (type(table), table, table.html) == (Report, counting.table(), counting.table().html)
    large = sending.packed_result(sending.plain(torch.zeros(1 << 20)[:2]))
    assert len(large) < 1 << 16  # the part alone
    for other, name in (
        (torch.eye(2).to_sparse(), "torch.sparse_coo on cpu"),
        ({1}, "builtins.set"),
        ({"x": [object()]}, r"\['x'\]\[0\]"),
        (hummingbird.BitWindow(8, 0), ""),
    ):
        with pytest.raises(InputError, match=f"the result.*{name}"):
            sending.plain(other)


def test_refusals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def nothing(session: Any) -> None:
        raise AssertionError("nothing starts")

    with pytest.raises(InputError, match="expected a function, got int"):
        hummingbird.launch(3)  # type: ignore[arg-type]
    for options, told in (
        ({"parties": 1}, "parties=1"),
        ({"parties": 2.0}, "parties=2.0"),
        ({"lanes": 0}, "lanes=0"),
        ({"timeout": 0}, "timeout=0"),
        ({"device": "tpu"}, "device='tpu'"),
    ):
        with pytest.raises(ConfigError, match=rf"{told} \(at launch\)\nhint: "):
            hummingbird.launch(nothing, **options)  # type: ignore[arg-type]
    with open(tmp_path / "open", "w") as file, pytest.raises(InputError, match="cannot be sent to another process"):
        hummingbird.launch(nothing, file)
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(EnvironmentProblem, match="RANK=0: this process is a party"):
        hummingbird.launch(nothing)


def test_a_session_of_ones_own_is_in_the_way(alone: object) -> None:
    with pytest.raises(EnvironmentProblem, match="has a session of its own.*\nhint: call hummingbird.uninit"):
        hummingbird.launch(wait_for_ever, "")
