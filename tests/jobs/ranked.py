"""Ranks that talk or fail: `torchrun ... -m tests.jobs.ranked NAME ARGUMENT`."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch

from hummingbird import ranks
from hummingbird.commands.ranked import end_ranked
from hummingbird.errors import AgreementError, HummingbirdError
from tests.support.patience import HANG, NEVER


def messages(out: str) -> None:
    """Everything that ranks tell each other, checked at each; then they differ, and go on in a job of its own."""
    with ranks.job(HANG):
        own, size = ranks.rank(), ranks.size()
        ran: list[int] = []

        def run(number: int) -> torch.Tensor:
            ran.append(number)
            return torch.full((number + 1, 2), number + 0.1)

        found = ranks.joined(run, [1, 2, 3, 4], torch.empty(0, 2))
        assert ran == [*ranks.part(4)] == [*range(own, 4, size)]
        assert torch.equal(found, torch.cat([torch.full((n + 1, 2), n + 0.1) for n in range(4)]))
        few = ranks.joined(lambda number: torch.tensor([7]), [1], torch.empty(0, dtype=torch.int64))  # of rank 0 alone
        assert few.tolist() == [7]
        assert ranks.mean(torch.tensor(own + 0.5)).item() == (size - 1) / 2 + 0.5
        assert ranks.told(lambda: b"from %d" % own) == b"from 0" and ranks.told(bytes) == b""
        assert ranks.device("cpu") == "cpu"
        ranks.agree(lambda: {"net": "one", "size": size})
    said = ""
    try:
        with ranks.job(HANG):
            ranks.agree(lambda: {"net": f"net {min(ranks.rank(), 1)}", "size": size})
    except AgreementError as error:
        said = str(error)
    assert said.startswith("the ranks differ in net: rank 0 has net 0, rank 1 has net 1 (at ranks)\nhint: "), said
    with ranks.job(HANG):
        ranks.agree(dict)
    Path(f"{out}.{own}").write_text("done")


def fails(how: str) -> int:
    """Rank 1 ends or is silent while the others wait for it."""

    def run() -> None:
        ranks.agree(dict)
        if ranks.rank() == 1:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "raises":
                raise HummingbirdError("no such file", where="--weights", hint="make it")
            if how == "breaks":
                raise ZeroDivisionError("by 0")
            time.sleep(NEVER)
        print("waiting", flush=True)
        ranks.agree(dict)

    return end_ranked(run, lambda: "interrupted: here is what was kept", 3.0 if how == "silent" else NEVER)


if __name__ == "__main__":
    sys.exit({"messages": messages, "fails": fails}[sys.argv[1]](*sys.argv[2:]))
