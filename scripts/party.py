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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from hummingbird import kernels
from hummingbird.errors import ConfigError, HummingbirdError
from hummingbird.version import VERSION

ROOT = Path(__file__).resolve().parent.parent


def add_session_arguments(parser: argparse.ArgumentParser) -> None:
    """--dealer, --tls-*, --timeout."""
    group = parser.add_argument_group("session")
    group.add_argument(
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
    return {"dealer": args.dealer, "tls": tls, "timeout": args.timeout}


def run_party(main: Callable[[], None]) -> None:
    """Run a party's program; an error is printed in two lines, told to the other parties, and ends the process with
    code 1.
    """
    from hummingbird.mpc import session as sessions

    try:
        main()
        sessions.uninit()
    except (HummingbirdError, ValueError, OSError) as error:
        # First of all: a launcher may end this process as soon as another party has heard of it. And in one write, so
        # that parties on one terminal do not write into each other's lines.
        sys.stderr.write(f"[party {os.environ.get('RANK', '0')}] error: {_words(error)}\n")
        sys.stderr.flush()
        sessions.abort(error)
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
