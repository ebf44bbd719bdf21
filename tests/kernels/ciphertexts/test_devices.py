"""Every operation on ciphertexts gives the same integers on another device: the far one of tests/support/far.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hummingbird.kernels.ciphertexts import (
    Ring,
    add,
    compose,
    encrypt,
    encrypt_ntt,
    largest_primes,
    linear,
    multiply,
    pack,
    phase,
    shift,
    square,
    switch,
    unpack,
)
from tests.support.far import DEVICE, far

RING = Ring.of(1024, largest_primes(1024, 3))


def residues(*shape: int) -> Tensor:
    moduli = torch.tensor(RING.primes)[:, None]
    x = torch.randint(0, 1 << 26, (*shape, 3, 1024)) % moduli
    return (x - moduli // 2).int()


def shifted(ring: Ring, x: Tensor, constants: Tensor) -> Tensor:
    out = x.clone()
    shift(ring, out, constants, 512)
    shift(ring, out[:, 1:], constants, 1)
    return out


def tensors() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {
        "c": residues(4, 2),
        "a": residues(4),
        "s": residues(),
        "m": torch.randint(-1000, 1000, (4, 1024)).int(),
        "w": torch.randint(-99, 99, (2, 3, 5)).double(),
        "index": torch.randint(-1, 4, (2, 6, 5)).int(),
        "grid": residues(2, 3, 2),
        "constants": residues()[:, :2].t().contiguous(),
    }


OPERATIONS: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "ntt": lambda t: RING.ntt(t["a"]),
    "intt": lambda t: RING.intt(t["a"]),
    "linear": lambda t: linear(RING, t["w"], t["index"], t["c"]),
    "add": lambda t: add(RING, t["c"], t["c"].flip(0), -12345),
    "shift": lambda t: shifted(RING, t["grid"], t["constants"]),
    "multiply": lambda t: multiply(RING, t["c"], t["c"].flip(0)),
    "square": lambda t: square(RING, t["c"]),
    "switch": lambda t: switch(RING, t["c"], "mixed"),
    "switch, all parts values": lambda t: switch(RING, t["c"], "ntt"),
    "encrypt": lambda t: encrypt(RING, t["m"], t["m"].flip(0), t["a"], t["s"]),
    "encrypt_ntt": lambda t: encrypt_ntt(RING, t["m"], t["m"].flip(0), t["a"], t["s"]),
    "phase": lambda t: phase(RING, t["c"], t["s"], "mixed"),
    "phase, all parts values": lambda t: phase(RING, t["c"], t["s"], "ntt"),
    "compose": lambda t: compose(RING, t["a"]),
    "pack": lambda t: pack(RING, t["a"]),
    "unpack": lambda t: unpack(RING, pack(RING, t["a"]), t["a"].shape),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_results_are_the_cpus(name: str) -> None:
    run, given = OPERATIONS[name], tensors()
    wanted = run(given)
    with far():
        found = run({key: tensor.to(DEVICE) for key, tensor in given.items()})
        assert found.device.type == DEVICE
        assert found.cpu().equal(wanted)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", OPERATIONS)
def test_results_are_the_cpus_on_a_gpu(name: str) -> None:
    run, given = OPERATIONS[name], tensors()
    found = run({key: tensor.cuda() for key, tensor in given.items()})
    assert found.is_cuda and found.cpu().equal(run(given))
