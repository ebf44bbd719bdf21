"""`python -m hummingbird run`: exit codes, restarts, signals, one error for all parties, and who reaches its ports."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hummingbird import __main__ as command
from hummingbird.commands import run as run_command
from hummingbird.errors import ConfigError, EnvironmentProblem
from hummingbird.launching import host as module
from hummingbird.launching.host import Failure
from tests.support import python
from tests.support.covering import every
from tests.support.nursery import alive
from tests.support.paths import ROOT
from tests.support.patience import HANG, until

Run = Callable[..., Failure | None]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a script as two parties, or as told, in the test's folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "HUMMINGBIRD_LANES"):
        monkeypatch.delenv(name, raising=False)

    def call(script: str, parties: int = 2, lanes: int = 1, restarts: int = 0) -> Failure | None:
        Path("script.py").write_text(f"import os, signal, sys, time\nrank = os.environ['RANK']\n{script}")
        return module.run(["script.py", "a", "--b"], parties, lanes, restarts, print)

    return call


def test_each_process_knows_its_place(
    run: Run, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables of another launcher are not handed on."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "of a shell in a torchrun")
    names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "HUMMINGBIRD_LANES", "MASTER_ADDR"
    told = f"print(*map(os.environ.get, {names}), *sys.argv[1:], 'TORCHELASTIC_RUN_ID' in os.environ)"
    assert run(told, 2, 2) is None
    expected = [f"{rank} 4 {rank} 4 2 127.0.0.1 a --b False" for rank in range(4)]
    assert sorted(capfd.readouterr().out.splitlines()) == expected


@pytest.mark.parametrize(("end", "code"), every(3, [("os.kill(os.getpid(), 9)", -9), ("sys.exit(7)", 7), ("1 / 0", 1)]))
def test_one_that_fails_ends_the_others(run: Run, end: str, code: int) -> None:
    wait = "open('waits', 'w').write(str(os.getpid())); time.sleep(3600)"
    await_ = "\n    while not os.path.exists('waits') or not open('waits').read(): time.sleep(0.01)\n    "
    assert run(f"if rank == '1':{await_}{end}\nelse: {wait}") == Failure("party 1", code, False)
    assert not alive(int(Path("waits").read_text()))


def test_who_does_not_want_to_end_is_killed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GRACE", 0.5)
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN); open('ready', 'w'); time.sleep(3600)"
    assert run(
        f"if rank == '0': {ignore}\nwhile not os.path.exists('ready'): time.sleep(0.01)\nsys.exit(3)"
    ) == Failure("party 1", 3, False)


def test_the_killed_are_causes() -> None:
    """Several have ended between two looks."""
    life = module._Life.__new__(module._Life)
    life._names = ["party 0", "party 1", "party 2"]

    class Ended:
        def __init__(self, code: int) -> None:
            self.returncode = code

        def poll(self) -> int:
            return self.returncode

    life._all = [Ended(1), Ended(0), Ended(-9)]  # type: ignore[list-item]
    assert life.follow(module._Signals()) == Failure("party 2", -9, False)


def test_all_begin_anew(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    life = "life = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
    assert run(f"{life}sys.exit(5 if life < 1 and rank == '1' else 0)", restarts=2) is None
    said = ["party 1 ended with exit status 5: all parties begin anew, 1 of at most 2 times"]
    assert capfd.readouterr().out.splitlines() == said
    assert run(f"{life}sys.exit(5 if life < 2 and rank == '1' else 0)", restarts=1) == Failure("party 1", 5, False)


@pytest.mark.parametrize("number", every(2, [signal.SIGTERM, signal.SIGINT]))
def test_a_signal_reaches_each_once(run: Run, capfd: pytest.CaptureFixture[str], number: signal.Signals) -> None:
    """Both have a handler before either asks for it; who ends orderly makes the run end so, and nothing begins anew."""
    heard = "heard = []\nsignal.signal(NUMBER, lambda *_: heard.append(1))\nopen(f'ready{rank}', 'w')\n"
    ready = "while not all(map(os.path.exists, ('ready0', 'ready1'))): time.sleep(0.01)\n"
    ask = "if rank == '0': os.kill(os.getppid(), NUMBER)\n"
    ended = "while not heard: time.sleep(0.01)\ntime.sleep(0.5)\nos.write(1, b'%d\\n' % len(heard))\n"
    ended += "sys.exit(int(sys.argv[0] == 'x'))"  # a line in one write: both parties write into one file
    script = f"{heard}{ready}{ask}{ended}".replace("NUMBER", str(int(number)))
    before = signal.getsignal(number)
    assert run(script, restarts=3) is None
    assert capfd.readouterr().out.split() == ["1", "1"]
    for rank in range(2):
        Path(f"ready{rank}").unlink()
    failed = run(script.replace("== 'x'", "!= 'x'"), restarts=3)
    assert failed is not None and (failed.code, failed.told) == (1, True)
    assert signal.getsignal(number) is before


def test_refusals(run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"parties=1 \(at run\)"):
        run("", 1)
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(EnvironmentProblem, match="RANK=0: this process is a party of a run already"):
        run("")
    for words, told in ((["--"], "there is no program"), (["--max-restarts", "-1", "x.py"], "--max-restarts -1")):
        assert command.main(["run", "--parties", "2", *words]) == 1
        assert re.match(rf"error: {told}.* \(at run\)\nhint: ", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--parties 2 -- example.py --parties 3 -- x", ["example.py", "--parties", "3", "--", "x"]),
        ("--parties 2 example.py --lanes 3", ["example.py", "--lanes", "3"]),
        ("--parties 2 -- -m hummingbird serve --lanes 3", ["-m", "hummingbird", "serve", "--lanes", "3"]),
        ("--parties 2 -m hummingbird serve --lanes 3", ["-m", "hummingbird", "serve", "--lanes", "3"]),
    ],
)
@pytest.mark.parametrize("failure", [None, Failure("party 1", 7, False), Failure("party 1", -9, False)])
def test_words_and_codes(
    line: str,
    words: list[str],
    failure: Failure | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(run_command, "run_parties", lambda *arguments: given.extend(arguments[:4]) or failure)
    monkeypatch.setenv("HUMMINGBIRD_LANES", "2")
    assert command.main(["run", *line.split()]) == (0 if failure is None else 7 if failure.code == 7 else 137)
    assert given == [words, 2, 2, 0]
    told = "error: party 1 was killed by SIGKILL\nhint: the system may have ended it"
    assert capsys.readouterr().err.startswith(told if failure is not None and failure.code < 0 else "")


@contextlib.contextmanager
def started(folder: Path, script: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """The command, as a user starts it."""
    (folder / "script.py").write_text(script)
    kept = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    line = [sys.executable, "-m", "hummingbird", "run", "--parties", "2", "--", *(words or ["script.py"])]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    variables = {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    with python.Parent(line, cwd=folder, env=variables, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="the system of another kind does not tell a child")
def test_a_run_that_is_killed_leaves_nobody(tmp_path: Path) -> None:
    with started(tmp_path, "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(3600)") as process:
        assert process.stdout is not None
        pids = [int(process.stdout.readline()) for _ in range(2)]
        process.kill()
        process.wait(HANG)
        until(lambda: not any(map(alive, pids)), "the parties to end")


@pytest.mark.slow
def test_one_error_stays_two_lines(tmp_path: Path) -> None:
    """The parties fail for one reason at the same time."""
    words = ["-m", "hummingbird", "infer", "--model", "nowhere:net", "--data", "nowhere:images"]
    with started(tmp_path, "", *words) as process:
        _, told = process.communicate(timeout=HANG)
    assert process.returncode == 1
    assert re.fullmatch(r"\[party \d\] error: .*nowhere.* \(at --(data|model)\)\nhint: .*\n", told), told


def listening(pids: list[int]) -> set[str]:
    """Addresses and ports at which these processes listen, as /proc has them: hexadecimal, separated by a colon."""
    inodes = set()
    for pid in pids:
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                inodes |= set(re.findall(r"socket:\[(\d+)\]", os.readlink(path)))
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {words[1] for words in lines if words[3] == "0A" and words[9] in inodes}


MEETS = """
import os, sys, time, warnings
warnings.simplefilter("error")
import hummingbird
session = hummingbird.init()
print(os.getpid(), flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_nobody_on_another_host_reaches_its_ports(tmp_path: Path) -> None:
    """The store and what the parties listen at are on 127.0.0.1; `init` has nothing to warn of."""
    with started(tmp_path, MEETS) as process:
        assert process.stdout is not None
        pids = [int(process.stdout.readline() or 0) for _ in range(2)]
        assert all(pids), process.communicate()
        found = listening([process.pid, *pids])
        process.send_signal(signal.SIGINT)
        process.wait(HANG)
    assert {address.partition(":")[0] for address in found} == {"0100007F"}
