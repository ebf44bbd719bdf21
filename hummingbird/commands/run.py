"""`run`: starts a program as all parties on this host."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from hummingbird.commands.program import add_command
from hummingbird.errors import InputError
from hummingbird.launching import host
from hummingbird.launching.host import run as run_parties
from hummingbird.mpc.session.lanes import VARIABLE, lanes_of
from hummingbird.rpc.options import count

HELP = "Run a script or a module as all parties on this host."
_DESCRIPTION = """Run a script, or a module after -m, as all parties on this host: one process for each party, or for
each lane of each party, with the environment variables from which hummingbird.init() reads party and lane. The parties
meet in a store on this host's loopback interface, which no other host reaches. All processes share this terminal.

If one process fails, the command stops all others with SIGTERM, and kills them after 30 seconds. SIGTERM and Ctrl-C go
to all processes. The exit status is 0 if all have ended with 0, else that of the process that failed first, or 128 + N
if signal N killed it.

Trust: all parties are processes of one user on one host, who can read the memory of each."""
_EPILOG = """examples:
  python -m hummingbird run --parties 2 -- example.py
  python -m hummingbird run --parties 2 --lanes 2 --max-restarts 10 -- -m hummingbird serve --saved saved \\
      --input 3x32x32 --listen 127.0.0.1:910{rank}
"""


def add_parser(commands: Any) -> None:
    """Add the command `run`, with its options, to the command line."""
    sub = add_command(commands, "run", HELP, _DESCRIPTION, _EPILOG)
    sub.add_argument("--parties", type=count, required=True, metavar="N", help="number of parties")
    text = f"processes of each party, one for each of its GPUs (default: {VARIABLE}, else 1)"
    sub.add_argument("--lanes", type=count, metavar="G", help=text)
    text = "how often to restart all parties after a failure (default 0)"
    sub.add_argument("--max-restarts", type=int, default=0, metavar="N", help=text)
    sub.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="...", help="a module, and its arguments")
    text = "a script, or -m and a module; then their arguments"
    sub.add_argument("script", nargs=argparse.REMAINDER, metavar="...", help=text)
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run a program on this host as all parties, one process each; return the exit code of the first that failed, or 0.

    The words of the program, a script or -m and a module, are in `args`. After a failure all parties start again, up to
    --max-restarts times.
    """
    words = ["-m", *args.module] if args.module is not None else args.script[args.script[:1] == ["--"] :]
    if not words or words == ["-m"]:
        hint = "python -m hummingbird run --parties 2 -- SCRIPT.py, or -- -m MODULE, with arguments of its own"
        raise InputError("there is no program to run", where="run", hint=hint)
    if args.max_restarts < 0:
        raise InputError(f"--max-restarts {args.max_restarts}", where="run", hint="a whole number from 0")
    failure = run_parties(words, args.parties, lanes_of(args.lanes), args.max_restarts, _say)
    if failure is None:
        return 0
    if failure.code < 0 and not failure.told:  # a killed process prints no error itself
        _say(f"error: {failure.how}\nhint: {host.KILLED}")
    return failure.code if failure.code > 0 else 128 - failure.code


def _say(text: str) -> None:
    """Print lines in one write, as all parties write to one terminal."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
