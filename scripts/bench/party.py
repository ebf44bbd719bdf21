"""Starting parties, all on this host or each in a place of its own; and worker processes that end with this one."""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from hummingbird.errors import HummingbirdError
from scripts.bench.link import Place
from scripts.program import ROOT, single_threaded

_GRACE = 10.0  # seconds for the other parties to end when one has failed


def on_this_host(parties: int, program: str, arguments: Sequence[str], timeout: float = 1800.0) -> Any:
    """Run `python -m program arguments --json FILE` as N parties on this host; returns what party 0 wrote to FILE.

    program: a module, or a module and the name of a command, "hummingbird infer".
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        launcher = [sys.executable, "-m", "hummingbird", "run", "--parties", str(parties), "--"]
        # One thread per party, whatever the machine: figures are compared between machines.
        environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), "PYTHONPATH": str(ROOT)}
        command = [*launcher, "-m", *program.split(), *arguments, "--json", str(result)]
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, timeout=timeout, stdout=subprocess.PIPE, stderr=None, text=True
        )
        if ended.returncode:
            raise HummingbirdError(
                f"{program} {' '.join(arguments)} failed with code {ended.returncode}:\n{ended.stdout}"
            )
        return json.loads(result.read_text())


@contextlib.contextmanager
def serving(
    *commands: Sequence[str], ready: str = "", variables: Sequence[Mapping[str, str]] = ()
) -> Iterator[list[subprocess.Popen[str]]]:
    """Programs `python -m hummingbird COMMAND` of one thread each, until the end of the block.

    ready: how the line of each begins that says that it serves; HummingbirdError for one that ends before. "": nobody
    waits for lines.
    variables: of each program's environment.
    """
    said, started = subprocess.PIPE if ready else subprocess.DEVNULL, list[subprocess.Popen[str]]()
    try:
        for words, own in zip(commands, variables or [{}] * len(commands), strict=True):
            command, environment = [sys.executable, "-m", "hummingbird", *words], single_threaded(**own)
            started.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=said, text=True))
        for process, words in zip(started, commands, strict=True):
            if process.stdout is not None and not any(line.startswith(ready) for line in process.stdout):
                raise HummingbirdError("the server did not start; its error is above", where=" ".join(words[:4]))
        yield started
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(60)


def rows_of(
    module: str, job: str, args: argparse.Namespace, names: Sequence[str], prefix: Sequence[str] = (), **variables: str
) -> list[dict[str, Any]]:
    """The rows of `python -m module --worker job --json FILE`, with some of this program's options, on one thread.

    prefix: words before the command. HummingbirdError if it fails, below what it said.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        words = [*prefix, sys.executable, "-m", module, "--worker", job, "--json", str(file)]
        words += [word for name in names if getattr(args, name) for word in (f"--{name}", str(getattr(args, name)))]
        ended = subprocess.run(words, cwd=ROOT, env=single_threaded(**variables), stdout=subprocess.DEVNULL)
        if ended.returncode:
            raise HummingbirdError(f"the job ended with code {ended.returncode}; its error is above", where=job)
        rows: list[dict[str, Any]] = json.loads(file.read_text())
        return rows


def launch(where: Sequence[Place], module: str, arguments: Sequence[str], timeout: float = 3600.0) -> Any:
    """Run `python -m module arguments --result FILE` as one party in each place; returns what party 0 wrote.

    HummingbirdError, with what the parties said, if one fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        result, outputs = Path(folder) / "result.json", [Path(folder) / f"{rank}.txt" for rank in range(len(where))]
        command = [sys.executable, "-m", module, *arguments, "--result", str(result)]
        processes = []
        try:
            for rank, (place, output) in enumerate(zip(where, outputs, strict=True)):
                with output.open("w") as file:
                    processes.append(
                        subprocess.Popen(
                            [*place.prefix, *command],
                            cwd=ROOT,
                            env={**os.environ, **place.environment, **_torchrun(rank, len(where))},
                            stdout=file,
                            stderr=subprocess.STDOUT,
                        )
                    )
            failed = _wait(processes, time.monotonic() + timeout)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if failed:
            said = "\n".join(f"party {rank}: {output.read_text()}" for rank, output in enumerate(outputs))
            raise HummingbirdError(f"{module} {' '.join(arguments)} failed:\n{said}")
        return json.loads(result.read_text())


def _torchrun(rank: int, parties: int) -> dict[str, str]:
    """torchrun's variables for parties that share a host; one thread each."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(parties),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(parties),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }


def _wait(processes: Sequence[subprocess.Popen[bytes]], deadline: float) -> bool:
    """Wait for all to end; whether one failed, or ran on at the deadline or `_GRACE` after another's failure."""
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        if any(process.returncode for process in processes):
            deadline = min(deadline, time.monotonic() + _GRACE)
        time.sleep(0.02)
    return any(process.poll() != 0 for process in processes)


def workers(count: int, threads: int | None = None) -> ProcessPoolExecutor:
    """A pool of fresh processes, as a context, which end when this one does, whatever ended it: SIGKILL, too.

    threads: of torch in each; as many as torch likes if not given.
    """
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(count, spawn, initializer=_begin, initargs=(threads,))


def _begin(threads: int | None) -> None:
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    if threads is not None:
        import torch  # here: a worker without it begins in a moment

        torch.set_num_threads(threads)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()  # a pipe that the parent's death closes
    os._exit(1)
