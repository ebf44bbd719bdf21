"""The command that waits for a GPU: what it runs when, what it keeps, what it says; and all its steps on the CPU."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from hummingbird.errors import EnvironmentProblem, InputError
from hummingbird.kernels.gpu.sizes import DEFAULTS
from hummingbird.mpc.plan import microbatch
from scripts.bench.kernel_cases import TUNED
from scripts.tools import gpu, gpu_page, gpu_run, gpu_setup, gpu_steps
from scripts.tools.gpu_steps import STEPS, Run, Step
from tests.support.paths import ROOT
from tests.support.patience import HANG, PROGRAM, until

LONGEST = 2.5 * PROGRAM  # a dozen programs, of which some start parties; pytest ends a test after 3 times PROGRAM
REAL, TINY = Run(None, "cuda"), Run(None, "cpu")


def step(name: str, code: str, expected: float = 1.0, **more: Any) -> Step:
    """A step that is a line of Python; `FILE` in it is where its figures go."""
    text = f"import sys, json, pathlib\nFILE = pathlib.Path(sys.argv[-1])\n{code}"
    return Step(name, f"step {name}", expected, lambda run: ["-c", text], **more)


def passing(name: str, expected: float = 1.0) -> Step:
    return step(name, f"FILE.write_text(json.dumps([dict(name={name!r})]))", expected)


def went(state: dict[str, Any]) -> dict[str, str]:
    return {name: outcome["state"].partition(":")[0] for name, outcome in state["steps"].items()}


def test_a_second_call_goes_on_where_the_first_one_stopped(tmp_path: Path) -> None:
    """One passes, one fails, one takes longer than is left; then there is time, and the fault is mended."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    state = gpu_run.load(first)
    steps = [passing("a"), step("b", "print('what it said'); sys.exit(3)"), passing("long", 1e6)]
    gpu_run.run_all(steps, REAL, first, 5, state)
    written = json.loads((first / gpu_run.STATE).read_text())
    assert written == state and went(state) == {"a": "passed", "b": "failed", "long": "left out"}
    assert state["steps"]["a"]["figures"] == [{"name": "a"}] and state["steps"]["a"]["machine"]["torch"]
    assert "code 3" in state["steps"]["b"]["state"] and state["steps"]["b"]["said"] == "what it said\n"
    assert "what it said" in (first / gpu_run.LOG).read_text()

    first.rename(second)  # copied to another place
    steps = [step("a", "sys.exit('ran twice')"), passing("b"), passing("long")]
    state = gpu_run.load(second)
    assert [s.name for s in gpu_run.order(steps, state)] == ["long", "b"]
    gpu_run.run_all(steps, REAL, second, 5, state)
    assert went(state) == {"a": "passed", "b": "passed", "long": "passed"}


def test_a_failure_is_not_forgotten_where_there_is_no_time(tmp_path: Path) -> None:
    state: dict[str, Any] = {"steps": {"b": {"state": "failed: it ended with code 3", "said": "why"}}}
    gpu_run.run_all([passing("b", 1e6)], REAL, tmp_path, 5, state)
    assert state["steps"]["b"]["said"] == "why"


def test_what_prepares_the_machine_runs_every_time_and_first(tmp_path: Path) -> None:
    always = step("set up", "sys.exit(1)", writes=False, always=True)
    state = gpu_run.load(tmp_path)
    gpu_run.run_all([passing("a"), always], REAL, tmp_path, 5, state)
    assert went(state) == {"set up": "failed"}  # nothing else is tried
    mended = replace(always, words=lambda run: None)
    gpu_run.run_all([passing("a"), mended], REAL, tmp_path, 5, state)
    assert went(state) == {"set up": "passed", "a": "passed"}


def test_a_step_that_takes_too_long_is_stopped_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is one that starting Python takes already; the sleeper would outlive its parent."""
    mark = tmp_path / "child"
    child = f"import os, time, pathlib; pathlib.Path({str(mark)!r}).write_text(str(os.getpid())); time.sleep(3600)"
    code = f"import subprocess, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(3600)"
    waiting = subprocess.Popen.wait

    def wait(process: Any, timeout: float | None = None) -> int:
        if timeout is None:
            return waiting(process)
        until(lambda: mark.exists() and mark.read_text(), "the child")
        raise subprocess.TimeoutExpired("step", timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    monkeypatch.setattr(gpu_run, "machine", dict)
    state = gpu_run.load(tmp_path)
    gpu_run.run_all([step("slow", code, 2.0)], REAL, tmp_path, 5, state)
    assert state["steps"]["slow"]["state"] == "failed: stopped after 6 s"
    number = int(mark.read_text())
    deadline = time.monotonic() + HANG
    while Path(f"/proc/{number}/stat").exists() and Path(f"/proc/{number}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline


def test_what_a_step_has_written_is_kept_where_it_fails(tmp_path: Path) -> None:
    """And while it runs, the state on disk says what is true if the call is ended then."""
    look = f"print(json.loads(pathlib.Path({str(tmp_path / gpu_run.STATE)!r}).read_text())['steps']['a']['state'])"
    code = f"{look}; FILE.write_text(json.dumps([dict(kernel='lift')])); sys.exit(3)"
    state = gpu_run.load(tmp_path)
    gpu_run.run_all([step("a", code)], REAL, tmp_path, 5, state)
    found = gpu_run.load(tmp_path)["steps"]["a"]
    assert found["state"] == "failed: it ended with code 3" and found["figures"] == [{"kernel": "lift"}]
    assert found["said"] == "failed: the call ended while it ran\n"
    assert found["machine"]["commit"] and re.fullmatch("[0-9a-f]{12}", found["machine"]["sources"])


def test_a_program_that_is_not_installed_is_said(tmp_path: Path) -> None:
    state = gpu_run.load(tmp_path)
    gpu_run.run_all([step("a", "", needs="no-such-program")], REAL, tmp_path, 5, state)
    assert state["steps"]["a"]["state"] == "left out: no-such-program is not installed"


@pytest.mark.parametrize("text", ["{", "[]", '{"steps": 3}', "{}"])
def test_a_folder_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / gpu_run.STATE).write_text(text)
    with pytest.raises(InputError, match="no state of an earlier call"):
        gpu_run.load(tmp_path)


# Set-up ---------------------------------------------------------------------------------------------------------------


def test_wheels_are_installed_where_they_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = next(s for s in STEPS if s.name == "wheels")
    assert wheels.words(TINY) is None  # all is here
    monkeypatch.setattr(gpu_steps, "CARRIED", ("torch", "no_such_module"))
    for run in (REAL, Run(tmp_path, "cuda")):
        with pytest.raises(EnvironmentProblem, match="not installed here: no_such_module"):
            wheels.words(run)
    (tmp_path / "one.whl").touch()
    words = wheels.words(Run(tmp_path, "cuda"))
    assert words is not None and words[-1] == str(tmp_path / "one.whl") and "--no-index" in words


@pytest.mark.parametrize(
    ("ended", "code"), [([True], 0), ([False, True, True], 0), ([False, False], 1), ([False, True, False], 1)]
)
def test_native_kernels_are_there_only_where_they_load(
    ended: list[bool], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of another machine, or of other sources, are built anew. A build that leaves nothing ends well too."""
    asked: list[list[str]] = []
    monkeypatch.setattr(gpu_setup, "ends_well", lambda words: asked.append(words) or ended.pop(0))
    assert gpu_setup.build_kernels() == code and not ended
    assert asked[:2] == [gpu_setup.LOADS, gpu_setup.BUILD][: len(asked)]


def test_batches_fill_what_is_under_way_and_the_first_step_timed_is_resnet18() -> None:
    under_way, sliced = microbatch.in_flight(torch.device("cuda")), 0
    for words in [step.words(REAL) or [] for step in STEPS]:
        if "--slice" in words:
            batch, size = (int(words[words.index(name) + 1]) for name in ("--batch", "--slice"))
            assert batch % size == 0 and batch // size % under_way == 0
            sliced += 1
    names = [step.name for step in STEPS if not step.always]
    assert sliced == 2 and names[:2] == ["smoke", "resnet18"]


def test_all_sizes_are_searched() -> None:
    words = [word for step in STEPS if step.name.startswith("tune") for word in step.words(REAL) or []]
    assert set(DEFAULTS) == set(TUNED) == set(words) & set(TUNED)


def test_sizes_found_earlier_are_used_by_a_later_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine may be another one, of the same kind: the folder of state is all that comes along."""
    row = {"kernel": "lift", "sizes": {"LANES": 64, "num_warps": 2}, "device": "a card"}
    found = {"tune": {"state": "failed: stopped after 600 s", "figures": [row]}}
    (tmp_path / gpu_run.STATE).write_text(json.dumps({"steps": found}))
    kept: dict[str, Any] = {}
    monkeypatch.setattr(gpu.sizes, "keep", kept.__setitem__)
    monkeypatch.setattr(gpu, "device", lambda dry_run: "cuda")
    monkeypatch.setattr(gpu_run, "run_all", lambda *_: None)
    gpu.main(["--out", str(tmp_path)])
    assert kept == {"a card": {"lift": {"LANES": 64, "num_warps": 2}}}


def test_fetched_wheels_are_few_and_a_failure_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def pip(words: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(words)
        (tmp_path / f"{len(asked)}.whl").write_bytes(bytes(1000))
        return subprocess.CompletedProcess(words, 0, "", "")

    assert [path.name for path in gpu_setup.fetch(tmp_path, pip)] == ["1.whl", "2.whl"]
    assert all(words[0] == sys.executable and str(tmp_path) in words for words in asked)
    monkeypatch.setattr(gpu_setup, "MOST_BYTES", 1999)
    with pytest.raises(EnvironmentProblem, match="more than"):
        gpu_setup.fetch(tmp_path, pip)
    with pytest.raises(EnvironmentProblem, match="no network there"):
        gpu_setup.fetch(tmp_path, lambda words, **_: subprocess.CompletedProcess(words, 1, "", "no network there"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "run needs --out"),
        (["wheels"], "wheels needs --wheels"),
        (["--out", "x", "--minutes", "0"], "more than 0 minutes"),
        (["page", "--out", "absent"], "there are no figures"),
        (["--out", "x"], "no GPU that PyTorch can use"),
    ],
)
def test_what_cannot_be_done_is_one_error(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert gpu.main(words) == 1
    assert said in capsys.readouterr().err


# The machine's packages -----------------------------------------------------------------------------------------------

# As Python's `sitecustomize`: this program and all that it starts find no module of these names.
BARRED = """
import sys

class Barred:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {barred!r} else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Barred, sys.meta_path)
"""
IMPORTED = """
import importlib, pkgutil, sys, hummingbird
for found in pkgutil.walk_packages(hummingbird.__path__, "hummingbird."):
    if not found.name.endswith("._native"):  # no module of Python
        importlib.import_module(found.name)
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*[name for name in ("crypten", "grpc_health", "matplotlib") if name in sys.modules])
"""


def _named(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def barred() -> set[str]:
    """Modules of packages that are installed here, and neither there nor carried."""
    there, waiting = {"hummingbird-mpc", *map(_named, gpu_setup.CARRIED)}, [*map(_named, gpu_setup.PRESENT)]
    while waiting:  # what the packages there need is there
        if (package := waiting.pop()) not in there:
            there.add(package)
            with contextlib.suppress(metadata.PackageNotFoundError):
                needed = [line for line in metadata.requires(package) or [] if "extra ==" not in line]
                waiting += [_named(re.match(r"[\w.-]+", line)[0]) for line in needed]  # type: ignore[index]
    modules = metadata.packages_distributions().items()
    return {module for module, packages in modules if there.isdisjoint(map(_named, packages))}


@pytest.fixture
def there(tmp_path: Path) -> dict[str, str]:
    """The environment of programs that find that machine's packages only."""
    folder = tmp_path / "barred"
    folder.mkdir()
    names = barred()
    assert {"grpc_health", "matplotlib", "timm"} <= names and names.isdisjoint(["torch", "grpc", "crypten", "google"])
    (folder / "sitecustomize.py").write_text(BARRED.format(barred=names))
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])}


@pytest.mark.slow
def test_every_step_s_program_is_imported_with_that_machine_s_packages(there: dict[str, str]) -> None:
    """The programs of steps, every module of the package, which they import as they run, and the tests marked gpu."""
    words = [step.words(REAL) or [] for step in STEPS]
    programs = {line[1] for line in words if line[:1] == ["-m"]} - {"pytest", "pip"} | {"scripts.tools.gpu_setup"}
    assert {"scripts.bench.resnet", "scripts.bench.kernels", "scripts.bench.relu"} <= programs
    (tests,) = [line for line in words if line[:2] == ["-m", "pytest"]]
    collect = [*tests[:2], "--collect-only", "-q", *(word for word in tests[2:] if word.startswith("/"))]
    for command in (["-c", IMPORTED, *sorted(programs)], collect):
        done = subprocess.run(
            [sys.executable, *command], cwd=ROOT, env=there, capture_output=True, text=True, timeout=PROGRAM
        )
        assert done.returncode == 0, done.stdout + done.stderr
        if command is not collect:
            assert done.stdout.split() == ["crypten"]


# The page -------------------------------------------------------------------------------------------------------------


def test_the_page_shows_rates_beside_marks() -> None:
    image = {"material": "stored", "online_seconds_per_image": 1 / 2600, "times": "measured"}
    rows = [image | {"link": "loopback"}, image | {"link": "10 Gb/s", "times": "computed"}]
    state = {"steps": {"resnet18": {"state": "passed", "seconds": 9.0, "machine": {"card": "a card"}, "figures": rows}}}
    for row in rows:
        row |= {"seconds_per_image": 0.5, "dealer_seconds_per_image": 0.25}
    shown = gpu_page.page(state)
    assert "| ResNet-18/CIFAR, 516 images, loopback | 2,500 images/s | 2,600 images/s | measured |" in shown
    assert "| the same at 10 Gb/s | 1,900 images/s | 2,600 images/s | computed |" in shown
    assert "- card a card" in shown and f"| 100,000 queries/s | {gpu_page.NOT_YET} |" in shown
    assert "dry run" not in shown and "A dry run" in gpu_page.page(state | {"dry_run": True})


def test_the_document_shows_the_published_figures() -> None:
    assert gpu_page.section(gpu_page.published()) in gpu_page.DOCUMENT.read_text()


def test_only_a_gpu_s_figures_are_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document, source = tmp_path / "gpu.md", tmp_path / "gpu.json"
    document.write_text(f"before\n{gpu_page.BEGIN}old\n{gpu_page.END}after\n")
    monkeypatch.setattr(gpu_page, "DOCUMENT", document)
    monkeypatch.setattr(gpu_page, "PUBLISHED", tmp_path / "published.json")
    source.write_text(json.dumps({"steps": {}, "dry_run": True}))
    with pytest.raises(InputError, match="a dry run's figures"):
        gpu_page.publish(source)
    row = {"kernel": "lift", "sizes": {"LANES": 64, "num_warps": 2}, "device": "a card"}
    source.write_text(json.dumps({"steps": {"tune": {"state": "passed", "figures": [row]}}, "dry_run": False}))
    kept: dict[str, Any] = {}
    monkeypatch.setattr(gpu_page.sizes, "keep", kept.__setitem__)
    gpu_page.publish(source)
    assert kept == {"a card": {"lift": {"LANES": 64, "num_warps": 2}}}
    text = document.read_text()
    assert text == f"before\n{gpu_page.section(gpu_page.published())}after\n" and "old" not in text


# All steps ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_step_runs_on_the_cpu(tmp_path: Path, there: dict[str, str]) -> None:
    """A stand-in for compute-sanitizer passes the program on. All figures of the page have a place to come from.

    No program finds a package which that machine lacks.
    """
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "compute-sanitizer").write_text('#!/bin/sh\nwhile [ "$1" != 20 ]; do shift; done\nshift\nexec "$@"\n')
    (tools / "compute-sanitizer").chmod(0o755)
    command = [sys.executable, "-m", "scripts.tools.gpu", "--dry-run", "--out", str(tmp_path / "out")]
    command += ["--minutes", str(LONGEST / 60)]
    environment = {**there, "PATH": f"{tools}:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LONGEST)
    assert done.returncode == 0, done.stdout + done.stderr
    state = json.loads((tmp_path / "out" / gpu_run.STATE).read_text())
    assert {name: outcome["state"] for name, outcome in state["steps"].items()} == {s.name: "passed" for s in STEPS}
    for figure in gpu_page.FIGURES:
        rows = gpu_page.rows_of(state, figure.step)
        assert any(figure.key in row and figure.where.keys() <= row.keys() for row in rows), figure
    assert all(row["equal"] for row in gpu_page.rows_of(state, "smoke"))
    shown = (tmp_path / "out" / gpu.PAGE).read_text()
    assert "A dry run" in shown and "ResNet-18" in shown and "chacha20 | triton" in shown
