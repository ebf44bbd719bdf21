"""What every program that runs as a party shares: options, errors told to the other parties, and starting parties
from a script.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from hummingbird import kernels
from hummingbird.errors import ConfigError, HummingbirdError
from hummingbird.version import VERSION
from scripts.link import Place

ROOT = Path(__file__).resolve().parent.parent
_GRACE = 10.0  # seconds for the other parties to end when one has failed


def add_session_arguments(parser: argparse.ArgumentParser) -> None:
    """--dealer, --store, --tls-*, --timeout."""
    group = parser.add_argument_group("session")
    source = group.add_mutually_exclusive_group()
    source.add_argument(
        "--store",
        metavar="DIR",
        help="no dealer: material that `python -m hummingbird deal` has dealt in advance, this party's folder or the "
        "one that holds party-RANK ({rank} is replaced). Whoever can read two parties' folders can read their secrets",
    )
    source.add_argument(
        "--dealer",
        metavar="HOST:PORT",
        help="where the dealer of correlated randomness listens (`python -m hummingbird dealer`). It must not collude "
        "with any party. Default: party 0 starts one on this host",
    )
    group.add_argument(
        "--tls-cert", type=Path, help="this party's certificate, for the name party-RANK ({rank} is replaced)"
    )
    group.add_argument("--tls-key", type=Path, help="its key")
    group.add_argument(
        "--tls-ca", type=Path, help="certificate of the authority that signed all parties' and the dealer's"
    )
    group.add_argument(
        "--timeout", type=float, default=120.0, help="longest silence of another party, seconds (default 120)"
    )


def session_options(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments for `hummingbird.init`."""
    from hummingbird.wire.service import Tls

    paths = [args.tls_cert, args.tls_key, args.tls_ca]
    if any(paths) and not all(paths):
        raise ConfigError("--tls-cert, --tls-key and --tls-ca go together")
    rank = os.environ.get("RANK", "0")
    tls = Tls(*(Path(str(path).replace("{rank}", rank)) for path in paths)) if all(paths) else None
    return {"dealer": args.dealer, "store": args.store, "tls": tls, "timeout": args.timeout}


def run_party(main: Callable[[], None]) -> None:
    """Run a party's program; an error is printed in two lines, told to the other parties, and ends the process with
    code 1.
    """
    from hummingbird.mpc import launch

    try:
        main()
        launch.uninit()
    except (HummingbirdError, ValueError, OSError) as error:
        # First of all: a launcher may end this process as soon as another party has heard of it. And in one write, so
        # that parties on one terminal do not write into each other's lines.
        sys.stderr.write(f"[party {os.environ.get('RANK', '0')}] error: {_words(error)}\n")
        sys.stderr.flush()
        launch.abort(error)
        sys.exit(1)


def _words(error: Exception) -> str:
    """What failed, where, and a hint."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.strerror} (at {error.filename})\nhint: is the path right, and may this user read it?"
    return str(error)


def machine() -> dict[str, str]:
    """Versions and CPU, for the rows of a benchmark."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cpu = f"{names[0]}, {len(names)} cores" if names else platform.processor() or platform.machine()
    return {"hummingbird": VERSION, "torch": torch.__version__, "kernels": kernels.active(), "cpu": cpu}


def torchrun(parties: int, module: str, arguments: Sequence[str], timeout: float = 1800.0) -> Any:
    """Run `python -m module arguments --json FILE` as N parties on this host; returns what party 0 wrote to FILE."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={parties}"]
        # torchrun sets OMP_NUM_THREADS=1 and says so; one thread per party is what a 2-core machine wants.
        environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), "PYTHONPATH": str(ROOT)}
        command = [*launcher, "-m", module, *arguments, "--json", str(result)]
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, timeout=timeout, stdout=subprocess.PIPE, stderr=None, text=True
        )
        if ended.returncode:
            raise HummingbirdError(
                f"{module} {' '.join(arguments)} failed with code {ended.returncode}:\n{ended.stdout}"
            )
        return json.loads(result.read_text())


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
        "PYTHONPATH": str(ROOT),
    }


def _wait(processes: Sequence[subprocess.Popen[bytes]], deadline: float) -> bool:
    """Wait for all to end; whether one failed, or ran on at the deadline or `_GRACE` after another's failure."""
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        if any(process.returncode for process in processes):
            deadline = min(deadline, time.monotonic() + _GRACE)
        time.sleep(0.02)
    return any(process.poll() != 0 for process in processes)
