"""Running the steps of `scripts.tools.gpu`: each in a process with a limit, its outcome on disk as soon as it is known.

A call has some minutes, and starts no step that is not expected to end in what is left of them. So a second call, with
the first one's folder, goes on where that one stopped: with the steps that were not run, then with those that failed.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from hummingbird.commands.output import write_json
from hummingbird.errors import HummingbirdError, InputError
from scripts.program import ROOT
from scripts.tools.gpu_steps import Run, Step, missing

STATE, LOG = "gpu.json", "gpu.log"
PASSED = "passed"
_SAID = 4000  # characters of a failed step's output that the state keeps
_LONGER = 3  # times the expected seconds after which a step is stopped
_RESERVE = 10.0  # seconds for writing the page
_ROOM = 48 << 30  # bytes for material dealt in advance, in memory if it has so much

State = dict[str, Any]


def load(folder: Path) -> State:
    """Read the state that earlier calls have left in a folder; InputError for something else."""
    path = folder / STATE
    if not path.exists():
        return {"steps": {}}
    try:
        state = json.loads(path.read_text())
        if not isinstance(state["steps"], dict):
            raise ValueError("no steps")
    except (ValueError, KeyError, TypeError) as problem:
        hint = "give --out another folder"
        raise InputError(f"this is no state of an earlier call: {problem}", where=str(path), hint=hint) from None
    return dict(state)


def order(steps: Sequence[Step], state: State) -> list[Step]:
    """The steps of this call: what prepares the machine, what was not run yet, what failed."""
    outcome = {step.name: state["steps"].get(step.name, {}).get("state", "") for step in steps}
    new = [step for step in steps if not step.always and not outcome[step.name].startswith((PASSED, "failed"))]
    again = [step for step in steps if not step.always and outcome[step.name].startswith("failed")]
    return [*(step for step in steps if step.always), *new, *again]


def run_all(steps: Sequence[Step], run: Run, out: Path, minutes: float, state: State) -> None:
    """Run what the minutes allow, and add it to the state, which is written to `out` after every step."""
    deadline = time.monotonic() + 60 * minutes - _RESERVE
    state["dry_run"] = run.tiny
    for step in order(steps, state):
        left = deadline - time.monotonic()
        if absent := missing(step):
            outcome: State = {"state": f"left out: {absent} is not installed"}
        elif left < step.seconds and not run.tiny:
            outcome = {"state": f"left out: takes {step.seconds:.0f} s, {max(0.0, left):.0f} s were left"}
        else:
            print(f"{step.name}: {step.what} ...", file=sys.stderr, flush=True)
            state["steps"][step.name] = {"state": "failed: the call ended while it ran"}  # unless it does not
            write_json(out / STATE, state)
            limit = left if run.tiny else min(_LONGER * step.seconds, left)  # a CPU has no expected seconds
            outcome = _run(step, run, out, max(1.0, limit))
        print(f"{step.name}: {outcome['state']}", file=sys.stderr, flush=True)
        if not outcome["state"].startswith("left out") or step.name not in state["steps"]:
            state["steps"][step.name] = outcome
        write_json(out / STATE, state)
        if step.always and outcome["state"] != PASSED:
            break  # nothing would run


def _run(step: Step, run: Run, out: Path, limit: float) -> State:
    """One step's outcome: its state, seconds, machine, command and figures, and what it said if it failed."""
    started = time.monotonic()
    try:
        words = step.words(run)
    except HummingbirdError as problem:
        return {"state": f"failed: {problem.what}", "said": str(problem)}
    if words is None:
        return {"state": PASSED, "seconds": 0.0}
    with tempfile.TemporaryDirectory(dir=_roomy()) as folder:
        rows, log = Path(folder) / "rows.json", Path(folder) / "log.txt"
        command = [*step.before, sys.executable, *words, *(["--json", str(rows)] if step.writes else [])]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": folder, "OMP_NUM_THREADS": "1"}
        with log.open("w") as file:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment | step.environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                code: int | None = process.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end(process)
        said = log.read_text(errors="replace")
        shown = shlex.join(["python", *words])
        with (out / LOG).open("a") as file:
            file.write(f"\n==== {step.name}: {shown}\n{said}")
        # What a step has written so far is right, also where it did not come to its end.
        figures = json.loads(rows.read_text()) if rows.exists() else []
        outcome: State = {"seconds": time.monotonic() - started, "command": shown, "machine": machine()}
        outcome["figures"] = figures
        if code is None:
            return {"state": f"failed: stopped after {limit:.0f} s", **outcome, "said": said[-_SAID:]}
        if code or (step.writes and not rows.exists()):
            return {"state": f"failed: it ended with code {code}", **outcome, "said": said[-_SAID:]}
        last = said.strip().splitlines()[-1:] if not step.writes else []
        return {"state": PASSED, **outcome, "said": "".join(last)}


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stop what is left of a step: its own process group, which holds the parties that it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _roomy() -> str | None:
    """A folder in memory for gigabytes of material, or None for the usual place."""
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() and shutil.disk_usage(memory).free > _ROOM else None


def sources() -> dict[str, str]:
    """The commit, "none" where git knows of none, and a digest of the sources: a copy of them has the same."""
    words = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        said = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=30).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        said = ""
    digest = hashlib.sha256()
    found = (path for room in ("hummingbird", "models", "scripts", "tests") for path in (ROOT / room).rglob("*"))
    for path in sorted(path for path in found if path.suffix in {".py", ".cpp", ".h"}):
        digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return {"commit": said or "none", "sources": digest.hexdigest()[:12]}


def machine() -> dict[str, str]:
    """Card, driver and versions, and what was run there."""
    packages = ("torch", "triton", "numpy")
    versions = {name: _version(name) for name in packages}
    asked = "name,memory.total,driver_version,clocks.max.sm"
    try:
        words = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"]
        card = subprocess.run(words, capture_output=True, text=True, timeout=30).stdout.strip() or "none"
    except (OSError, subprocess.TimeoutExpired):
        card = "none"
    return {"card": card, "python": platform.python_version(), **versions, "cores": str(os.cpu_count()), **sources()}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"
