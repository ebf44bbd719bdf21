"""Triton's kernels without a GPU: run in its interpreter, and compiled for GPUs that are not there."""

from __future__ import annotations

import ast
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support import python
from tests.support.paths import ROOT


def interpret(program: str, *words: str) -> str:
    """Run a program with Triton's interpreter; what it prints. Skips the test where there is no Triton.

    In a process of its own, as Triton reads the variable once, when it is imported.
    """
    pytest.importorskip("triton")
    with tempfile.TemporaryDirectory() as folder:
        return run(program, *words, TRITON_INTERPRET="1", TRITON_CACHE_DIR=folder)


def run(program: str, *words: str, given: str = "", **environment: str) -> str:
    """Run a program in a process of its own; what it prints. given: its input."""
    command, variables = [sys.executable, "-c", program, *words], {**os.environ, **environment}
    ended = python.run(command, env=variables, cwd=ROOT, input=given, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


class Launch(NamedTuple):
    """A kernel as it is launched, compiled for these types: what Triton keeps apart.

    function: its module and name, "dpf:_leaves" in hummingbird/kernels/gpu. types: of its arguments ("*i64", "i32",
    "constexpr"). constants, attributes: by place, of constants and of addresses and numbers that 16 divides.
    """

    function: str
    types: dict[str, Any]
    constants: dict[tuple[int, ...], Any]
    attributes: dict[tuple[int, ...], Any]
    num_warps: int = 4
    num_stages: int = 3
    fused: bool = True  # products of floats with sums
    capability: int | None = None

    def __str__(self) -> str:
        """Name the function, and its constants but for the tiles' sizes: "opening:_lift K=20 ..."."""
        names = list(self.types)
        given = {names[at[0]]: value for at, value in self.constants.items() if names[at[0]].isupper()}
        tiles = ("LANES", "PLACES", "OUTPUTS", "TERMS", "CHANNELS", "Q", "C", "R")
        shown = [f"{name}={value}" for name, value in given.items() if name not in tiles]
        return " ".join([self.function, *shown]).replace(", ", ",")


class Usage(NamedTuple):
    """Registers of a thread, bytes of its stack (spilled registers), shared memory of a program in bytes."""

    registers: int
    stack: int
    shared: int


# Kernels are launched on a card that is not there: what would be compiled is noted, and nothing runs. The meta device
# stands for the card, as tensors there have types and shapes alone.
RECORDER = """
import atexit, torch, triton, warnings
from triton import knobs
from triton.backends.compiler import GPUTarget
from hummingbird.kernels import registry
from hummingbird.kernels.gpu import sizes
from hummingbird.kernels.gpu.products import WAYS, conv2d_by_digits
from hummingbird.kernels.shares import products

warnings.simplefilter("ignore")

class Card:
    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

noted, card = {}, None

def note(*, fn, compile, **_):
    constants, attributes = compile["constants"], {at: found for at, found in compile["configs"][0].items() if found}
    function = fn.module.rpartition(".")[2] + ":" + fn.name.rpartition(".")[2]
    options = compile["num_warps"], compile["num_stages"], compile["enable_fp_fusion"]
    launch = function, compile["signature"], constants, attributes, *options, card
    noted[repr(launch)] = None
    return True  # compiled: nothing is left to do

def on_every_card(*arguments):  # products, whose tiles are of several sizes
    global card
    for card in (80, 90):
        out = conv2d_by_digits(*arguments)
    card = None
    return out

WAYS["digits"] = on_every_card
sizes.capability = lambda device: divmod(card or 90, 10)
triton.runtime.driver.set_active(Card())
knobs.runtime.jit_cache_hook = note
torch.cuda.get_device_capability = lambda device=None: (9, 0)
products._width = lambda code: 18  # bits of weights, which nobody can read there
find, META = registry._find, torch.device("meta")
registry._find = lambda operation, backend, tensors: find(
    operation, "gpu" if any(x.is_meta for x in tensors) else backend, tensors
)
atexit.register(lambda: print("", *noted, sep="\\n"))
"""


@cache
def launches(program: str, *words: str) -> tuple[Launch, ...]:
    """Note what a program launches on the meta device, each specialisation once; skips the test without Triton."""
    pytest.importorskip("triton")
    with tempfile.TemporaryDirectory() as folder:
        said = run(RECORDER + program, *words, TRITON_INTERPRET="0", TRITON_CACHE_DIR=folder)
    return tuple(Launch(*ast.literal_eval(line)) for line in said.splitlines() if line.startswith("("))


PROGRAM = """
import ast, importlib, json, re, subprocess, sys, tempfile
from pathlib import Path
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
target = GPUTarget("cuda", int(sys.argv[1]), 32)
for line in sys.stdin:
    place, types, constants, attributes, warps, stages, fused = ast.literal_eval(line)
    module, name = place.split(":")
    function = getattr(importlib.import_module("hummingbird.kernels.gpu." + module), name)
    options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": fused}
    try:
        made = triton.compile(ASTSource(function, types, constants, attributes), target=target, options=options)
    except Exception as error:
        print(json.dumps(f"{type(error).__name__}: {error}"), flush=True)
        continue
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        dump = subprocess.run([tools, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    registers, stack = re.search(r"REG:(\\d+) STACK:(\\d+)", dump).groups()
    print(json.dumps([int(registers), int(stack), made.metadata.shared]), flush=True)
"""


@cache
def _usages(capability: int) -> dict[str, Usage | str]:
    """Usages that are known, of kernels by `_line`: nets launch many of the same."""
    return {}


def compiled(kernels: Sequence[Launch], capability: int) -> list[Usage | str]:
    """Compile kernels down to machine code for a GPU of this capability (90: H100): what each uses, or the error.

    Skips the test where there is no Triton, or one without its assembler. In one process of its own, as Triton may have
    been imported for its interpreter here.
    """
    triton = pytest.importorskip("triton")
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    if not (tools / "ptxas").exists() or not (tools / "cuobjdump").exists():
        pytest.skip("this Triton has no assembler for NVIDIA GPUs")
    kept = _usages(capability)
    if wanted := dict.fromkeys(line for line in map(_line, kernels) if line not in kept):
        with tempfile.TemporaryDirectory() as folder:
            environment = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": folder}
            said = run(PROGRAM, str(capability), given="\n".join(wanted), **environment)
        found = [json.loads(line) for line in said.splitlines()[-len(wanted) :]]
        kept |= {line: one if isinstance(one, str) else Usage(*one) for line, one in zip(wanted, found, strict=True)}
    return [kept[line] for line in map(_line, kernels)]


def _line(kernel: Launch) -> str:
    return repr(tuple(kernel)[:-1])
