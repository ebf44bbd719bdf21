"""A program of the package under the contract's hand: `python -m tests.jobs.contract FOLDER COMMAND ...`.

It is what COMMAND is, except for three things that files of FOLDER decide: it says for the first time that it is ready
when `go` is there, and makes `inside` when it would say so; callers may be silent for half a second while `hasty` is
there, and else for ever; and a party waits for the other half of a request until the request's deadline.
`hummingbird.serve` is a command too: a party by that function, with limits, figures and a log as COMMANDs have.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import hummingbird
from hummingbird.__main__ import main
from hummingbird.errors import HummingbirdError
from hummingbird.rpc.options import add_service, service_of
from hummingbird.rpc.server import ServiceProgram
from hummingbird.serving import dispatcher
from hummingbird.serving import serve as serving
from tests.support.patience import NEVER
from tests.support.serving_nets import doubled

PYTHON = "hummingbird.serve"
_HASTE = 0.5  # seconds


class _Limits:
    """Limits whose `stall` is a file's to say."""

    def __init__(self, limits: Any, hasty: Path) -> None:
        self._limits, self._hasty = limits, hasty

    def __getattr__(self, name: str) -> Any:
        return getattr(self._limits, name)

    @property
    def stall(self) -> float:
        """Seconds that a caller may leave a message unread, or a request unsent."""
        return _HASTE if self._hasty.exists() else NEVER


def under(folder: Path, config: dict[str, Any]) -> None:
    """Have the programs of this process wait for the files of a folder. config: more of their configuration."""
    begin, ready = ServiceProgram.__init__, ServiceProgram.ready

    def begun(self: ServiceProgram, name: str, given: Any, **how: Any) -> None:
        limits = config.get("limits")
        own = {**config, "limits": replace(given.limits, **limits)} if limits else config
        begin(self, name, replace(given, **own), **how)
        self.gate.limits = _Limits(self.gate.limits, folder / "hasty")  # type: ignore[assignment]

    def held(self: ServiceProgram, yes: bool = True) -> None:
        if yes and not (folder / "inside").exists():
            (folder / "inside").touch()
            while not ((folder / "go").exists() or self.stopping):
                time.sleep(0.01)
        ready(self, yes)

    ServiceProgram.__init__, ServiceProgram.ready = begun, held  # type: ignore[method-assign]
    dispatcher._SENDING = NEVER


def serve(folder: Path, words: list[str]) -> int:
    """`hummingbird.serve`, with the options of a command that serves."""
    parser = argparse.ArgumentParser()
    add_service(parser)
    config = service_of(parser.parse_args(words))
    most = config.limits
    limits = {"requests": most.requests, "per_client": most.per_client, "named": most.named}
    under(folder, {"metrics": config.metrics, "log": config.log, "grace": config.grace, "limits": limits})
    serving.join = partial(serving.join, grace=config.grace)  # type: ignore[attr-defined]
    try:
        hummingbird.init(tls=config.tls)
        hummingbird.serve(hummingbird.convert_model(doubled()), (4,), config.listen[0], tls=config.tls)
        hummingbird.uninit()
    except HummingbirdError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    place, command = Path(sys.argv[1]), sys.argv[2:]
    if command[0] == PYTHON:
        sys.exit(serve(place, command[1:]))
    under(place, {})
    sys.exit(main(command))
