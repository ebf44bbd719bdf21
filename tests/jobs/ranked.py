"""Ranks that talk or fail: `torchrun ... -m tests.jobs.ranked NAME ARGUMENT`."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from hummingbird import ranks
from hummingbird.commands.program import end_ranked
from hummingbird.commands.training import Dataset, Recipe, Training
from hummingbird.errors import AgreementError, HummingbirdError
from hummingbird.window_search.images import fingerprint
from tests.support.patience import HANG, NEVER

_SHORT = 15.0  # seconds in which two ranks that have met agree, whatever else runs here


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
        _trains(size)
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


class _Net(nn.Module):
    """A batch norm of the images, dropout, and a layer that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc, self.unused = nn.BatchNorm2d(1), nn.Linear(16, 2), nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc(F.dropout(self.norm(x).flatten(1), 0.1, self.training))
        return out


def _trains(size: int) -> None:
    """Ranks end an epoch with the same net, whose batch norms have seen all images; dropout is each rank's own."""
    torch.manual_seed(0)
    images, net = torch.randn(24, 1, 4, 4) + 3, _Net()
    facts, recipe = Dataset((1, 4, 4), 2, (0.0,), (1.0,), shift=0, flip=False), Recipe(2, batch=24, schedule="constant")
    training = Training(net, images, torch.arange(24) % 2, facts, recipe)
    unused = net.unused.weight.detach().clone()
    loss = training.run_epoch()
    # One step: the running mean is a tenth of the mean of the means of equal parts.
    torch.testing.assert_close(net.norm.running_mean, images.mean()[None] / 10)
    loss += training.run_epoch()
    assert torch.equal(net.unused.weight, unused)
    ranks.agree(lambda: {"net": fingerprint(*net.state_dict().values()), "loss": loss})
    draws = ranks.joined(lambda _: torch.rand(1), [1] * size, torch.empty(0))
    assert len(set(draws.tolist())) == size, draws


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

    return end_ranked(
        run,
        lambda: "interrupted: here is what was kept",
        _SHORT if how == "silent" and os.environ["RANK"] == "0" else NEVER,
    )


if __name__ == "__main__":
    sys.exit({"messages": messages, "fails": fails}[sys.argv[1]](*sys.argv[2:]))
