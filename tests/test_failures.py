"""Every failure is one clear error at every living party, within the timeout, with a code that is not 0; none hangs.

Real processes over real sockets, with a real dealer. Most parties are forks of one process that has imported torch
already (tests/failure_jobs.py); torchrun itself starts those of the last tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from hummingbird.errors import PeerError
from hummingbird.wire import connect
from models import get_model
from tests.failure_jobs import BAD_INPUTS, FAILURES, SECRET, TIMEOUT, net, rows
from tests.parties import ROOT, environment, free_port

# Seconds until a failure that the operating system reports (a closed connection) must be told: 0.05 on a quiet
# machine. Silence is a failure only after TIMEOUT, and a dealer has 2 s more for its last words.
SOON = 5.0
SILENCE = TIMEOUT + 2.0 + SOON
# And from there to the process's end: 2 s for parties that read no more, 2 s for a dealer that is not there, 5 s for a
# dealer that was started here and does not end.
ENDING = 9.0 + SOON


@dataclass
class Party:
    """A forked process: its id, its files."""

    nursery: Nursery
    pid: int
    variables: dict[str, str]
    out: Path
    err: Path

    def wait(self, seconds: float) -> int:
        """The exit code; a party that runs on is killed, and the test fails."""
        code = self.nursery.ask({"wait": self.pid, "seconds": seconds})
        if code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.nursery.ask({"wait": self.pid, "seconds": 5})
            pytest.fail(f"a party hangs:\n{self.err.read_text()}")
        return int(code)

    def until(self, text: str, seconds: float = 60.0) -> None:
        """Wait for its output."""
        deadline = time.monotonic() + seconds
        while text not in self.out.read_text():
            assert time.monotonic() < deadline, f"no {text!r}:\n{self.err.read_text()}"
            time.sleep(0.01)

    def children(self) -> list[int]:
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]


class Nursery:
    """The process that parties are forked from."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.failure_jobs"],
            cwd=ROOT,
            env=environment(0, 1, 1),
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def ask(self, request: dict[str, object]) -> int | None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer: int | None = json.loads(self.process.stdout.readline())
        return answer

    def fork(self, job: Sequence[str], rank: int, parties: int, port: int, **variables: str) -> Party:
        self.count += 1
        out, err = self.folder / f"{self.count}.out", self.folder / f"{self.count}.err"
        for path in (out, err):
            path.touch()
        pid = self.ask(
            {
                "job": list(job),
                "out": str(out),
                "err": str(err),
                "environment": {**environment(rank, parties, port), "TMPDIR": str(self.folder), **variables},
            }
        )
        assert pid is not None
        return Party(self, pid, variables, out, err)

    def start(self, job: Sequence[str], parties: int, **variables: str) -> list[Party]:
        """All parties of a run."""
        port = free_port()
        return [self.fork(job, rank, parties, port, **variables) for rank in range(parties)]


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    folder = Path(tempfile.mkdtemp(prefix="hb"))  # pytest's own may be too long for a socket's path
    here = Nursery(folder)
    yield here
    assert here.process.stdin is not None and here.process.stdout is not None
    here.process.stdin.close()
    here.process.wait(10)
    here.process.stdout.close()
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def dealer() -> Iterator[str]:
    """The address of one dealer for many runs."""
    folder = tempfile.mkdtemp(prefix="hb")
    address = f"unix:{folder}/d"
    command = [sys.executable, "-m", "hummingbird.mpc.dealer.command", "--listen", address]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        yield address
        process.terminate()
    shutil.rmtree(folder)


def error_of(party: Party, code: int) -> str:
    """The one error message of a party that has failed as it should."""
    text = party.err.read_text()
    assert code == 1, (code, text)
    assert "Traceback" not in text and text.count("] error: ") == 1, text
    assert re.search(r"^\[party \d\] error: .+ \(at .+\)\nhint: .+$", text, re.MULTILINE), text
    return text


def all_fail(parties: Sequence[Party], seconds: float, what: str, since: float | None = None) -> list[str]:
    """Every party says one error and ends within this time; prints how long both took (pytest -rP)."""
    started = time.monotonic() if since is None else since
    while time.monotonic() - started < seconds:
        if all("] error: " in party.err.read_text() for party in parties):
            break
        time.sleep(0.01)
    said = time.monotonic() - started
    assert said < seconds, [party.err.read_text() for party in parties]
    messages = [error_of(party, party.wait(ENDING)) for party in parties]
    print(f"MEASURED {what}: said after {said:.2f} s, ended after {time.monotonic() - started:.2f} s")
    return messages


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def gone(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while alive(pid):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            return False
        time.sleep(0.02)
    return True


# Living parties ------------------------------------------------------------------------------------------------------

Seen = list[dict[str, tuple[str, str, float]]]


@pytest.fixture(scope="module", params=[2, 3])
def seen(request: pytest.FixtureRequest, nursery: Nursery, dealer: str) -> Seen:
    """Every failure of `FAILURES`, one after the other, as each party sees it: class, text, seconds."""
    parties = nursery.start(["failures", *FAILURES], request.param, DEALER=dealer)
    for party in parties:
        code = party.wait(60)
        assert code == 0, party.err.read_text()
    out = [json.loads(party.out.read_text()) for party in parties]
    for name in FAILURES:
        print(f"MEASURED {name}, {len(out)} parties: {', '.join(f'{one[name][2]:.3f}' for one in out)} s")
    return out


DIFFERENCES = {
    "weights": "disagree on net: ",
    "architecture": "disagree on net: ",
    "bits": "disagree on bits: ",
    "bits of a layer": "disagree on bits: ",
    "owner": "disagree on weights: ",
    "owner or public": "on weights: ",
    "version": "disagree on hummingbird version: ",
    "other operation": "at different places: ",
    "layer skipped": "at different places: ",
    "large messages": "at different places: ",
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_parties_that_differ_are_told_how(seen: Seen, name: str):
    told_by_0 = 0
    for me, party in enumerate(seen):
        kind, text, seconds = party[name]
        assert DIFFERENCES[name] in text and seconds < SOON, (kind, text)
        assert "party 0 " in text and "party 1 " in text or me == 2, text
        assert re.search(r"party \d (has|expects) .* party \d (has|expects) ", text), text
        assert "\nhint: all parties must run the same program" in text and text.count("hint: ") == 1, text
        # A third party may hear of it from another one.
        assert kind == "AgreementError" or (me == 2 and text.startswith("party 0 stopped: ")), (kind, text)
        told_by_0 += f"(at party {me})" in text
    assert told_by_0 in (0, len(seen))


def test_both_values_are_shown(seen: Seen):
    assert "party 0 has 0.1.0, party 1 has 9.9.9" in seen[0]["version"][1]
    assert "party 1 has 9.9.9, party 0 has 0.1.0" in seen[1]["version"][1]
    assert '"k": 20' in seen[0]["bits"][1] and '"k": 21' in seen[0]["bits"][1]
    assert '"3": { "k": 18' in seen[0]["bits of a layer"][1]
    assert "party 0 has private to party 0, party 1 has private to party 1" in seen[0]["owner"][1]
    assert "has public, party 1 has private to party 0" in seen[0]["owner or public"][1]
    place = re.escape("party 0 expects int64[5, 6] at layer 'opening'")
    assert re.search(place, seen[0]["other operation"][1]) and re.search(place, seen[1]["other operation"][1])
    assert "at layer '0'; party 1 expects int64[5, 6] at layer 'opening'" in seen[0]["layer skipped"][1]


def test_different_batch_sizes(seen: Seen):
    what = "expects shape (4, 6), party 0 shares shape (5, 6) (at cryptensor)"
    kind, text, seconds = seen[0]["batch"]
    assert kind == "PeerError" and f"party 1 stopped: party 1 {what}" in text and seconds < SOON
    kind, text, seconds = seen[1]["batch"]
    assert kind == "AgreementError" and text.startswith(f"party 1 {what}\nhint: use the same batch size")


INPUT_ERRORS = {
    "NaN": "holds NaN or infinity",
    "range": "leaves the fixed-point range",
    "dtype": "expected a floating-point tensor, got torch.int64",
    "nine dimensions": "at most 8 dimensions, got 9",
    "no tensor": "party 0 must give a tensor, got ndarray",
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_input_errors_reach_the_other_parties(seen: Seen, name: str):
    kind, text, seconds = seen[0][name]
    assert kind == "InputError" and INPUT_ERRORS[name] in text and "(at cryptensor)" in text
    for party in seen[1:]:
        kind, text, seconds = party[name]
        assert kind == "PeerError" and seconds < SOON
        assert text.startswith("party 0 stopped: ") and INPUT_ERRORS[name] in text, text
        assert "e+" not in text, "a value of party 0's input"


def test_a_shape_the_net_cannot_take_is_an_error_everywhere(seen: Seen):
    for party in seen:
        kind, text, _ = party["net's input"]
        assert kind == "InputError" and "cannot take an input of shape (5, 7)" in text and "(at input)" in text


def test_an_exception_s_text_stays_at_its_party(seen: Seen):
    assert seen[0]["exception"][:2] == ["ZeroDivisionError", f"{SECRET} / 0"]
    for party in seen[1:]:
        kind, text, seconds = party["exception"]
        assert kind == "PeerError" and text.startswith("party 0 stopped: ZeroDivisionError (at party ")
        assert SECRET not in text and seconds < SOON


def test_the_reason_is_read_though_a_write_fails_first(seen: Seen):
    for me in (0, *range(2, len(seen))):
        kind, text, seconds = seen[me]["large message"]
        assert kind == "PeerError" and seconds < SOON
        assert text == f"party 1 stopped: party 1 is out of paper (at the printer) (at party {me})\nhint: buy some"


def test_a_party_that_ends_early(seen: Seen):
    for me in (0, *range(2, len(seen))):
        kind, text, seconds = seen[me]["ended"]
        assert kind == "PeerError" and "it ended or was killed" in text and seconds < SOON


def test_second_init_is_refused(seen: Seen):
    for party in seen:
        kind, text, _ = party["twice"]
        assert kind == "EnvironmentProblem" and "initialized already\nhint: call hummingbird.uninit()" in text


def test_init_again(nursery: Nursery, dealer: str):
    """No use before init; three sessions in one process, two with a dealer of their own, give the same result."""
    parties = nursery.start(["again"], 2, DEALER=dealer)
    for party in parties:
        assert party.wait(100) == 0, party.err.read_text()
        before, convert, *results = json.loads(party.out.read_text())
        for text in (before, convert):
            assert "hint: " in text
        assert before.startswith("no session")
        first = torch.tensor(results[0])
        with torch.no_grad():
            assert first.allclose(net()(rows()), atol=2**-10)  # 13 products of at most 2^-16 each
        for other in results[1:]:
            assert torch.tensor(other).allclose(first, atol=2**-10)
    assert not list(nursery.folder.glob("hummingbird-*"))


# Parties that are not there ------------------------------------------------------------------------------------------


def test_missing_parties(nursery: Nursery, dealer: str):
    """Only one of two, with and without the one that is the meeting point; two of three."""
    runs: list[tuple[int, tuple[int, ...]]] = [(2, (0,)), (2, (1,)), (3, (0, 2))]
    seconds = 4.0
    started = time.monotonic()
    parties = []
    for size, present in runs:
        port = free_port()
        command = ["meet", str(seconds)]
        parties.append([nursery.fork(command, rank, size, port, DEALER=dealer) for rank in present])
    for (size, present), run in zip(runs, parties, strict=True):
        # The rendezvous of torch.distributed has two steps, each with this timeout.
        for text in all_fail(run, 2 * seconds + SOON, f"{present} of {size}", started):
            assert f"the {size} parties did not meet within {seconds:g} s" in text
            assert "MASTER_ADDR" in text
    assert time.monotonic() - started > seconds


def test_unreachable_dealer(nursery: Nursery):
    parties = nursery.start(["meet", "3"], 2, DEALER=f"unix:{nursery.folder}/nobody")
    for text in all_fail(parties, 3 + SOON, "unreachable dealer"):
        assert "nothing answers" in text and f"unix:{nursery.folder}/nobody" in text


@contextlib.contextmanager
def dealing(nursery: Nursery, version: str = "") -> Iterator[Party]:
    """A dealer of its own, which a test may end."""
    address = f"unix:{nursery.folder}/d{nursery.count}"
    party = nursery.fork(["deal", version], 0, 1, 1, DEALER=address)
    party.until("listening")
    yield party
    if alive(party.pid):
        os.kill(party.pid, signal.SIGKILL)
    party.wait(5)


def test_dealer_of_another_version(nursery: Nursery):
    with dealing(nursery, "0.0.1") as other:
        parties = nursery.start(["meet", f"{TIMEOUT}"], 2, DEALER=other.variables["DEALER"])
        for text in all_fail(parties, SOON, "dealer of another version"):
            assert re.search(r"party \d runs version \S+, the dealer runs version 0.0.1", text), text


# Processes that die in the middle -------------------------------------------------------------------------------------


def under_way(nursery: Nursery, size: int, timeout: float = 60.0, **variables: str) -> list[Party]:
    """Parties in the middle of inference."""
    parties = nursery.start(["forever", f"{timeout}"], size, **variables)
    for party in parties:
        party.until("running")
    time.sleep(random.random() / 2)
    return parties


class LocalDealer:
    """The dealer that party 0 has started, and its directory."""

    def __init__(self, nursery: Nursery, parties: Sequence[Party]) -> None:
        (self.pid,) = parties[0].children()
        command = Path(f"/proc/{self.pid}/cmdline").read_text().split("\0")
        self.folder = Path(command[command.index("--listen") + 1].removeprefix("unix:")).parent
        assert alive(self.pid) and self.folder.parent == nursery.folder

    def check_that_nothing_is_left(self, killed: bool = False) -> None:
        assert gone(self.pid, ENDING), "the dealer outlives its parties"
        # The directory is party 0's; when that is killed, an empty one remains.
        assert not list(self.folder.iterdir()) if killed else not self.folder.exists()


@pytest.mark.parametrize("size, victim", [(2, 0), (2, 1), (3, 2)])
def test_killed_party_and_the_dealer_of_party_0(nursery: Nursery, size: int, victim: int):
    parties = under_way(nursery, size)
    dealer = LocalDealer(nursery, parties)
    os.kill(parties[victim].pid, signal.SIGKILL)
    living = [party for rank, party in enumerate(parties) if rank != victim]
    for text in all_fail(living, SOON, f"kill -9 of party {victim} of {size}"):
        assert f"party {victim} closed the connection: it ended or was killed" in text, text
    assert parties[victim].wait(1) == -signal.SIGKILL
    dealer.check_that_nothing_is_left(killed=victim == 0)


@pytest.mark.parametrize("size, victim", [(2, 0), (2, 1), (3, 0), (3, 1)])
def test_killed_party(nursery: Nursery, dealer: str, size: int, victim: int):
    """At random moments."""
    parties = under_way(nursery, size, DEALER=dealer)
    os.kill(parties[victim].pid, signal.SIGKILL)
    living = [party for rank, party in enumerate(parties) if rank != victim]
    for text in all_fail(living, SOON, f"kill -9 of party {victim} of {size}"):
        assert f"party {victim} closed the connection: it ended or was killed" in text, text
    parties[victim].wait(1)


def test_party_killed_while_it_joins(nursery: Nursery, dealer: str):
    """At any moment of init: the other ends with an error, at the latest after the timeouts of meeting."""
    seconds = 4.0
    for number in range(2):
        parties = nursery.start(["forever", f"{seconds}"], 2, DEALER=dealer)
        time.sleep(0.05 + random.random() / 2)
        victim = number % 2
        os.kill(parties[victim].pid, signal.SIGKILL)
        all_fail([parties[1 - victim]], 2 * seconds + SOON, f"kill -9 of party {victim} in init")
        parties[victim].wait(1)


def terminate(parties: Sequence[Party], victim: int) -> None:
    """SIGTERM, which is what launchers send."""
    os.kill(parties[victim].pid, signal.SIGTERM)
    for text in all_fail(parties, SOON, f"SIGTERM to party {victim} of {len(parties)}"):
        assert "this party was told to stop (SIGTERM)" in text, text
        assert "when another party has failed" in text


def test_terminated_party_and_its_dealer(nursery: Nursery):
    parties = under_way(nursery, 2)
    dealer = LocalDealer(nursery, parties)
    terminate(parties, 0)
    dealer.check_that_nothing_is_left()


def test_terminated_party(nursery: Nursery, dealer: str):
    terminate(under_way(nursery, 3, DEALER=dealer), 1)


def test_killed_dealer(nursery: Nursery):
    with dealing(nursery) as dealer:
        parties = under_way(nursery, 2, DEALER=dealer.variables["DEALER"])
        os.kill(dealer.pid, signal.SIGKILL)
        texts = all_fail(parties, SOON, "kill -9 of the dealer")
    assert "the connection is lost" in texts[0] and "(at dealer unix:" in texts[0]
    assert "party 0 stopped: the connection is lost" in texts[1]


def test_silent_processes(nursery: Nursery, dealer: str):
    """A dealer or a party that hangs is one that is gone, after the timeout."""
    with dealing(nursery) as stopped:
        first = under_way(nursery, 2, TIMEOUT, DEALER=stopped.variables["DEALER"])
        second = under_way(nursery, 3, TIMEOUT, DEALER=dealer)
        started = time.monotonic()
        os.kill(stopped.pid, signal.SIGSTOP)
        os.kill(second[1].pid, signal.SIGSTOP)
        texts = all_fail([second[0], second[2]], SILENCE, "a party that hangs", started)
        assert all(f"party 1 sent or took nothing for {TIMEOUT:g} s" in text for text in texts), texts
        texts = all_fail(first, SILENCE, "a dealer that hangs", started)
        assert "no answer in time (at dealer" in texts[0]
        assert f"party 0 sent or took nothing for {TIMEOUT:g} s" in texts[1] or "stopped: no answer in time" in texts[1]
    os.kill(second[1].pid, signal.SIGCONT)
    all_fail([second[1]], SOON, "a party that hung, when it comes back")


def test_a_party_ends_though_another_reads_nothing(nursery: Nursery, dealer: str):
    """A thread that is sending does not keep a process alive that has called sys.exit."""
    parties = nursery.start(["blocked"], 2, DEALER=dealer)
    parties[0].until("sending")
    started = time.monotonic()
    assert parties[0].wait(2.5) == 3
    print(f"sys.exit while sending: {time.monotonic() - started:.1f} s")
    assert "party 0 closed the connection" in all_fail([parties[1]], SOON, "and the other party")[0]


def test_a_script_of_its_own(nursery: Nursery, dealer: str):
    """A program that does not use run_party: its own traceback at home, only the type's name elsewhere."""
    parties = nursery.start(["script"], 2, DEALER=dealer)
    assert [party.wait(30) for party in parties] == [1, 1]
    # torch.distributed writes [rank0]: before each line of a traceback.
    first, second = (re.sub(r"^\[rank\d\]: ", "", party.err.read_text(), flags=re.MULTILINE) for party in parties)
    assert first.count("Traceback") == 1 and first.endswith(f"ZeroDivisionError: {SECRET} / 0\n")
    assert "PeerError: party 0 stopped: ZeroDivisionError (at party 1)\nhint: " in second and SECRET not in second


def test_a_party_that_is_gone_is_not_waited_for():
    """Nobody listens at its address any more: an error at once, not after the timeout."""
    server, gone_already = connect.listen("127.0.0.1"), connect.listen("127.0.0.1")
    addresses = [server.getsockname(), gone_already.getsockname()]
    gone_already.close()
    started = time.monotonic()
    with pytest.raises(PeerError, match="cannot connect to party 1 at 127.0.0.1"):
        connect.connect(0, addresses, server, bytes(16), 60.0)
    assert time.monotonic() - started < SOON


# scripts/infer.py -----------------------------------------------------------------------------------------------------


def bits_file(folder: Path, name: str, **changes: object) -> str:
    content = {"format": "hummingbird-bits", "version": 1, "layers": {}, **changes}
    (folder / name).write_text(json.dumps(content))
    return f"--bits {folder / name}"


def test_wrong_arguments(nursery: Nursery, dealer: str, tmp_path: Path):
    """Each is an error in words at both parties; where only one can see it, the other is told."""
    torch.save({"fc.weight": torch.zeros(10, 10)}, tmp_path / "other.pt")
    (tmp_path / "text.pt").write_text("no checkpoint")
    unknown = bits_file(tmp_path, "unknown", layers={"relu9": {"k": 20, "m": 4}})
    wrong = {
        f"--checkpoint {tmp_path / 'other.pt'}": "does not fit Digits",
        f"--checkpoint {tmp_path / 'text.pt'}": "is no weights-only checkpoint",
        "--checkpoint /nowhere/x.pt": "No such file or directory",
        "--bits /nowhere/x.json": "cannot read the bit configuration: No such file",
        unknown: "the bit configuration names ['relu9'], which the net lacks",
        bits_file(tmp_path, "foreign", version=7): "bit configuration version 7, this release reads version 1",
        bits_file(tmp_path, "order", default={"k": 4, "m": 20}): "window [4:20) has k < m",
        "--window nonsense": "'nonsense' is not a window (at --window)",
        "--window 80:2": "window [80:2) leaves the 64-bit ring",
        "--weights 7": "weights=7 (at weights)",
        "--weights mine": "weights='mine' (at weights)",
        "--protocol magic": "unknown protocol 'magic' (at protocol)",
        "--model resnet18": "the net cannot take an input of shape (100, 1, 8, 8)",
        f"--dataset mnist --model cryptonets --data {tmp_path}": "there is no file",
    }
    parties = nursery.start(["arguments", *wrong], 2, DEALER=dealer)
    assert [party.wait(60) for party in parties] == [0, 0], [party.err.read_text() for party in parties]
    first, second = (json.loads(party.out.read_text()) for party in parties)
    for (line, expected), here, there in zip(wrong.items(), first, second, strict=True):
        print(f"MEASURED {line}: {here[2]:.2f}, {there[2]:.2f} s")
        assert expected in here[1] and here[2] < SOON, (line, here)
        # Party 1 hears of it from party 0 if that was faster: all of our own errors, of others the type.
        assert expected in there[1] or re.match(r"party 0 stopped: (File|Value)", there[1]), (line, there)
        assert there[2] < SOON, (line, there)
    assert there[0] == "PeerError" and there[1].startswith("party 0 stopped: there is no file"), there


def test_under_torchrun(dealer: str, tmp_path: Path):
    """The launcher sees the failure and ends; each party has said what it knows."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    script = ["scripts/infer.py", "--model", "digits", "--timeout", "60"]
    wrong = {
        "No such file or directory (at /nowhere/x.pt)": ["--checkpoint", "/nowhere/x.pt", "--dealer", dealer],
        "there is no file": [
            *["--model", "cryptonets", "--checkpoint", str(tmp_path / "c.pt")],
            *["--dataset", "mnist", "--data", str(tmp_path)],
        ],
    }
    torch.save(get_model("cryptonets", 10).state_dict(), tmp_path / "c.pt")
    started = time.monotonic()
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    runs = [
        subprocess.Popen([*launcher, *script, *arguments], cwd=ROOT, env=variables, text=True, stderr=subprocess.PIPE)
        for arguments in wrong.values()
    ]
    for run, expected in zip(runs, wrong, strict=True):
        _, text = run.communicate(timeout=100)
        print(f"MEASURED torchrun, {expected}: {time.monotonic() - started:.1f} s from the start of two launchers")
        assert run.returncode == 1
        said = re.findall(r"^\[party (\d)\] error: (.*)\nhint: ", text, re.MULTILINE)
        assert sorted(rank for rank, _ in said) == ["0", "1"], text
        assert expected in dict(said)["0"], text
        reasons = (expected, "party 0 stopped: FileNotFoundError", "told to stop (SIGTERM)")
        assert any(reason in dict(said)["1"] for reason in reasons), text
    assert not list(tmp_path.glob("hummingbird-*"))
