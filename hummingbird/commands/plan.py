"""`plan`: what a private-inference service can carry on given machines, and the least that meets a goal."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hummingbird.capacity.service_json import to_text
from hummingbird.commands import plan_show
from hummingbird.commands.files import check_writable, write_json, write_together
from hummingbird.commands.plan_service import add_service, service_of
from hummingbird.commands.program import add_command

HELP = "Plan a private-inference service: latencies, what limits them, and the least that meets a goal."
_DESCRIPTION = """Plan a private-inference service before it is paid for.

A service is a net and a protocol on machines over a link. Its bytes and rounds are the exact prices of the protocol,
its seconds come from a profile of such a machine (python -m scripts.calibrate), machines and link are given here.
Quantities are in words: 20/min, 64GB, 352mbit, 2s."""
_SHOW = """Print a service: hosts, steps with their seconds, bytes of a token and how many the stores hold, and the
largest rate of requests with what sets it. Nothing is simulated: these are closed forms on means."""
_EXAMPLES = {
    "show": """examples:
  python -m hummingbird plan show --service asplos23/cg --net tinyimagenet/resnet18 --up 835mbit --down 165mbit \\
      --threads 4 17 32 --store 16GB
  python -m hummingbird plan show --service masked --model models:get_model resnet18 10 --input 1x3x32x32 \\
      --profile profile.json --bandwidth 352mbit --store 64GB --save service.json
""",
}
ACTIONS = tuple(_EXAMPLES)
Run = Callable[[argparse.Namespace], int]


def add_parser(commands: Any) -> None:
    """Add the command and its actions to the command line."""
    top = add_command(commands, "plan", HELP, _DESCRIPTION, "each action has its own --help\n")
    actions = top.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = _action(actions, "show", "Print a service: steps, seconds, tokens, the largest rate.", _SHOW, _show)
    show.add_argument("--save", type=Path, metavar="FILE", help="write the service, for --service")


def _action(actions: Any, name: str, line: str, description: str, run: Run) -> argparse.ArgumentParser:
    made = add_command(actions, name, line, description, _EXAMPLES[name])
    add_service(made)
    made.add_argument("--json", metavar="FILE", help="write the figures; - prints them in place of the tables")
    made.set_defaults(run=lambda args: _checked(args, run))
    return made


def _checked(args: argparse.Namespace, run: Run) -> int:
    """Run an action whose files can be written."""
    for option in ("json", "save", "plot"):
        path = getattr(args, option, None)
        if path is not None and str(path) != "-":
            check_writable(Path(path), f"--{option}")
    return run(args)


def _out(args: argparse.Namespace, figures: Any, text: str) -> None:
    """Print the tables, or figures alone for `--json -`; write those of --json FILE."""
    if args.json == "-":
        print(json.dumps(figures, indent=2))
        return
    print(text)
    if args.json is not None:
        write_json(Path(args.json), figures)


def _show(args: argparse.Namespace) -> int:
    service = service_of(args)
    _out(args, plan_show.figures(service), plan_show.tables(service))
    if args.save is not None:
        write_together({args.save: to_text(service).encode()})
    return 0
