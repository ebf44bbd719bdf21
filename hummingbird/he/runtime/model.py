"""A converted net that runs both roles in one process, and the measurements of a run."""

from __future__ import annotations

import resource
import sys
import time
from collections import deque
from typing import Generic

import torch
from torch import Tensor

from hummingbird.errors import ConfigError
from hummingbird.he.runtime import report
from hummingbird.he.runtime.client import Client, ClientBatch
from hummingbird.he.runtime.client_spec import Public
from hummingbird.he.runtime.memory import installed, predicted
from hummingbird.he.runtime.program import Plan
from hummingbird.he.runtime.server import Server
from hummingbird.kernels import devices
from hummingbird.kernels.ciphertexts import packed_bytes
from hummingbird.prg import SEED_BYTES
from hummingbird.structure import Result
from hummingbird.table import Report

_COMPARED = 64  # images whose outputs are kept for `report` to compare


class HEModel(Generic[Result]):
    """A converted net with both roles in this process: `model(images)` encrypts images and evaluates the net on them.

    The server role never gets the key. plan: the plan to run. device: "cpu" or "cuda". server, client: the two roles;
    `server` can be saved, and a service can take it (he/service/server.py). Raises InputError for a missing device.

    >>> model = he.convert_model(net, (4,))
    >>> model
    HEModel(client-aided, inputs 4, 2048 to a batch, 2 exchanges; report() has all)
    >>> model(images).shape
    torch.Size([20, 3])
    >>> report = model.report()  # a table: what is encrypted, bytes, seconds, errors
    """

    def __init__(self, plan: Plan, device: str = "cpu") -> None:
        # Ciphertexts of a layer are large, and fresh memory costs more than the arithmetic on it.
        devices.keep_freed_memory()
        self.plan = plan
        self.server = Server(plan, device)
        self.client = Client(plan.public, device)
        self.last: report.CallFigures | None = None

    def __repr__(self) -> str:
        public = self.public
        shape, turns = " x ".join(map(str, public.input_shape)), len(public.turns)
        asked = "1 exchange" if turns == 1 else f"{turns} exchanges"
        return f"HEModel({public.mode}, inputs {shape}, {public.slots} to a batch, {asked}; report() has all)"

    @property
    def public(self) -> Public:
        """The part of the plan that the client may know."""
        return self.plan.public

    def __call__(self, images: Tensor) -> Result:
        """Compute the net's outputs, float32 (n, *output) each, of images (n, *input_shape), in batches.

        Raises InputError for a wrong shape, type or range, before anything is encrypted; ConfigError if a batch takes
        more memory than this machine has.
        """
        needed, has = predicted(self.plan).process, installed(self.server.device)
        if needed > has:
            owner = "this machine" if self.server.device.type == "cpu" else str(self.server.device)
            what = f"a batch takes {needed / 1e9:.3g} GB for client and server, {owner} has {has / 1e9:.3g}"
            hint = "a batch takes the same for 1 image as for all: run them on two machines, or take a smaller net"
            raise ConfigError(what, where="memory", hint=hint)
        batches = deque(self.client.batches(images))  # all are checked before the first is encrypted
        precision = [batch.precision for batch in batches]
        count: dict[str, float] = dict.fromkeys(("client", "server", "up", "down"), 0)
        clock = time.perf_counter
        before, outputs = _resident(), []
        while batches:
            batch = batches.popleft()
            for number in range(len(self.public.turns)):
                self._turn(batch, number, count)
            start = clock()
            outputs.append(batch.parts())
            count["client"] += clock() - start
        results = [torch.cat(parts) for parts in zip(*outputs, strict=True)]
        kept = images[:_COMPARED].detach().clone(), [out[:_COMPARED].clone() for out in results]
        self.last = report.CallFigures(len(images), len(precision), count, before, _peak(), precision, *kept)
        return self.public.joined([results])

    def _turn(self, batch: ClientBatch, number: int, count: dict[str, float]) -> None:
        """Run turn `number` of a batch: send all of the client's slices to the server, then all slices of the answer
        back.

        count: seconds of "client" and "server", and bytes "up" and "down", to which those of this turn are added.
        """
        clock = time.perf_counter
        turn, start = self.server.turn(number), clock()
        for sent in batch.uploads(number):
            sending = clock()
            turn.receive(sent)
            count["up"] += packed_bytes(sent.body.shape) + SEED_BYTES
            count["client"] += sending - start
            start = clock()
            count["server"] += start - sending
        for back in turn.downloads():
            sending = clock()
            batch.receive(back)
            count["down"] += packed_bytes(back.body.shape)
            count["server"] += sending - start
            start = clock()
            count["client"] += start - sending

    def report(self) -> Report:
        """Return the plan as a text table; after a call also what was measured, and outputs beside the plain net's."""
        text = report.before(self.plan)
        return text if self.last is None else Report.of(text, report.after(self.plan, self.last))


def _peak() -> int:
    """Return the largest resident memory that this process has had so far, in bytes."""
    try:
        with open("/proc/self/status") as file:  # getrusage keeps a large parent's peak through fork and exec
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def _resident() -> int:
    """Return this process's resident memory now, in bytes; on systems that do not report it, the largest so far."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return _peak()
