"""Triton's kernels without a GPU: run in its interpreter, and compiled for GPUs that are not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.paths import ROOT


def interpret(program: str, *words: str) -> str:
    """Run a program with Triton's interpreter; what it prints. Skips the test where there is no Triton.

    In a process of its own, as Triton reads the variable once, when it is imported.
    """
    pytest.importorskip("triton")
    with tempfile.TemporaryDirectory() as cache:
        return run(program, *words, TRITON_INTERPRET="1", TRITON_CACHE_DIR=cache)


def run(program: str, *words: str, **environment: str) -> str:
    """Run a program in a process of its own; what it prints."""
    command = [sys.executable, "-c", program, *words]
    ended = subprocess.run(command, env={**os.environ, **environment}, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


class Kernel(NamedTuple):
    """A kernel as it is launched: types of its arguments ("*i64", "i32", a tuple of them), and its constants.

    function: its module and name, "dpf:_leaves" in hummingbird/kernels/gpu.
    """

    function: str
    types: dict[str, Any]
    constants: dict[str, Any]
    num_warps: int = 4


class Usage(NamedTuple):
    """Registers of a thread, bytes of its stack (spilled registers), shared memory of a program in bytes."""

    registers: int
    stack: int
    shared: int


PROGRAM = """
import importlib, json, re, subprocess, sys, tempfile
from pathlib import Path
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
kernels, capability, found = eval(sys.argv[1]), int(sys.argv[2]), []
for place, types, constants, warps in kernels:
    module, name = place.split(":")
    function = getattr(importlib.import_module("hummingbird.kernels.gpu." + module), name)
    types = {name: "constexpr" if name in constants else types[name] for name in function.arg_names}
    target, options = GPUTarget("cuda", capability, 32), {"num_warps": warps}
    try:
        made = triton.compile(ASTSource(function, types, constants, {}), target=target, options=options)
    except Exception as error:
        found.append(f"{type(error).__name__}: {error}")
        continue
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        dump = subprocess.run([tools, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    registers, stack = re.search(r"REG:(\\d+) STACK:(\\d+)", dump).groups()
    found.append([int(registers), int(stack), made.metadata.shared])
print(json.dumps(found))
"""


def compiled(kernels: Sequence[Kernel], capability: int) -> list[Usage | str]:
    """Compile kernels down to machine code for a GPU of this capability (90: H100): what each uses, or the error.

    Skips the test where there is no Triton, or one without its assembler. In one process of its own, as Triton may have
    been imported for its interpreter here.
    """
    triton = pytest.importorskip("triton")
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    if not (tools / "ptxas").exists() or not (tools / "cuobjdump").exists():
        pytest.skip("this Triton has no assembler for NVIDIA GPUs")
    words = repr([tuple(kernel) for kernel in kernels]), str(capability)
    with tempfile.TemporaryDirectory() as cache:
        found = json.loads(run(PROGRAM, *words, TRITON_INTERPRET="0", TRITON_CACHE_DIR=cache).splitlines()[-1])
    return [one if isinstance(one, str) else Usage(*one) for one in found]
