"""The masked opening as parties on GPUs run it, with a dealer on one: the same shares as on CPUs, in three launches.

The choice of kernels and the streams are told that the CPU is a device. Those of Triton run in its interpreter, or, for
the quick tier, plain torch in the place of each: tests/kernels/shares/test_triton_opening.py compares them.
"""

from __future__ import annotations

import pytest

from tests.support.triton import interpret

PROGRAM = """
import os, sys, threading, traceback, warnings
import torch
from hummingbird.kernels import registry
from hummingbird.kernels.gpu import shares, streams
from hummingbird.kernels.streams import chacha20_key
from hummingbird.mpc.correlations import request
from hummingbird.mpc.dealer.client import LocalDealer
from hummingbird.mpc.protocols import masked
from hummingbird.mpc.session.session import Session
from hummingbird.prg import Stream, derive
from tests.support.parties import channels, share, together

CPU, parties = torch.device("cpu"), 2
seeds = [bytes([party + 1] * 32) for party in range(parties)]
warnings.simplefilter("ignore")

def run(x, k, m, ring):
    shares, here = share(x, parties), channels(parties)
    sessions = [Session(r, parties, c, LocalDealer(r, parties, seeds)) for r, c in enumerate(here)]

    def relu(session, value):
        try:
            return masked.relu(session, value, 3, k, m, ring)
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # the other party would wait for this one

    out = together([lambda s=s, v=v: relu(s, v) for s, v in zip(sessions, shares)])
    for channel in here:
        channel.close()
    return out

CASES = [(6, 3, 9, 20), (20, 12, 36, 50), (12, 0, 64, 20)]  # the smallest, one table, and two below a tree
KERNELS = sys.argv[1]
values, on_cpus = [], []
for k, m, ring, n in CASES:
    torch.manual_seed(k)
    values.append(torch.randint(-(1 << k + 1), 1 << k + 1, (n,)))
    on_cpus.append(run(values[-1], k, m, ring))

def stream(seed, turn, request, device="cpu"):
    own = derive(seed, "request", turn.receiver, turn.number, request.kind)
    if request.kind != "masked":
        return Stream(own)
    made = Stream(own, "meta")
    made._key, made.device = chacha20_key(own, CPU), CPU
    return made

launches, inside, lock = [], [], threading.RLock()  # the interpreter is for one thread at a time

def find(operation, backend, tensors, find=registry._find):
    found = find(operation, "gpu", tensors)
    if ".gpu." not in found.__module__:
        return found

    run = found if KERNELS == "gpu" else find(operation, KERNELS, tensors)

    def launch(*arguments):
        with lock:
            if KERNELS == "gpu" or not inside:  # plain torch calls other operations
                launches.append(operation.__name__)
            inside.append(operation)
            try:
                return run(*arguments)
            finally:
                inside.pop()

    return launch

registry._find, request._stream = find, stream
for (k, m, ring, n), x, expected in zip(CASES, values, on_cpus):
    launches.clear()
    torch.manual_seed(k)
    torch.randint(-(1 << k + 1), 1 << k + 1, (n,))
    got = run(x, k, m, ring)
    assert all(one.equal(other) for pair, of in zip(got, expected) for one, other in zip(pair, of)), (k, m)
    if k != 12:
        expected = ["mask_words", "compare_opened", "lift"] * 2 + ["deal_masks"]
        assert sorted(launches) == sorted(expected), launches
print("same")
"""


@pytest.mark.parametrize("kernels", ["reference", pytest.param("gpu", marks=pytest.mark.slow)])
def test_shares_are_those_of_parties_on_cpus(kernels: str) -> None:
    assert interpret(PROGRAM, kernels).endswith("same\n")
