"""Tile sizes of kernels on a GPU: from sizes.json, which `tune` writes after a search, else the defaults.

    {"NVIDIA H100 80GB HBM3": {"lift": {"LANES": 128, "num_warps": 4}}}

There is no search while a net runs: parties on equal GPUs run equal programs.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from hummingbird import disk, records
from hummingbird.errors import InputError

FILE = Path(__file__).with_name("sizes.json")

Sizes = dict[str, int]  # a kernel's constants by name, num_warps and num_stages

_TILE = {"LANES": 128, "num_warps": 4}
DEFAULTS: dict[str, Sizes] = {
    **dict.fromkeys(("chacha20", "dpf"), {"size": 128, "num_warps": 4}),
    "rows": {"Q": 64, "C": 128, "R": 64, "num_warps": 8},  # with more, registers are spilled
    **dict.fromkeys(("mask_words", "open_words", "compare_opened", "lift", "deal_masks"), _TILE),
    **dict.fromkeys(("evaluate_opened", "deal_polynomials"), _TILE),
    "cut": {"PLACES": 32, "CHANNELS": 32, "num_warps": 4},
    # With eight warps the compiler for capability 9.0 uses two layouts of the sums, and converts between them in each
    # step: 69 barriers a step, and 554 instructions of a thread for 1000 multiply-adds of 5 x 3 digits, where four
    # warps take 2 and 159; 2629 against 753 for 8 x 8 digits, for which 64 outputs would have more sums than registers.
    "multiply": {"PLACES": 64, "OUTPUTS": 64, "TERMS": 64, "num_warps": 4, "num_stages": 2},
    "multiply_wide": {"PLACES": 64, "OUTPUTS": 32, "TERMS": 64, "num_warps": 4, "num_stages": 2},  # of many digits
}
# Before 9.0 the factors are in registers too: 64 outputs spill 344 bytes, some of them in each step, and take 255
# instructions, where 32 outputs take 230.
_OLDER: dict[str, Sizes] = {"multiply": {"OUTPUTS": 32}}
_CHOICES = {
    "LANES": (32, 64, 128, 256),  # fewer than threads would draw blocks several times; 32 are whole blocks of bits
    "size": (64, 128, 256, 512),
    "Q": (32, 64, 128),
    "C": (64, 128, 256),
    "R": (32, 64, 128),
    "PLACES": (64, 128),
    "CHANNELS": (32, 64),
    "OUTPUTS": (32, 64),
    "TERMS": (32, 64),
    "num_warps": (1, 2, 4, 8),
    "num_stages": (2, 3),
}
_CARDS = records.mapping(records.mapping(records.mapping(records.whole(1), 16), 64), 1 << 10)
_tried: dict[str, Sizes] = {}  # the sizes that `tune` is trying


@functools.cache
def stored() -> dict[str, dict[str, Sizes]]:
    """Return the tile sizes in the file sizes.json: GPU -> kernel -> name of a size -> its value."""
    found: dict[str, dict[str, Sizes]] = records.read(FILE.read_bytes(), _CARDS, name="sizes", where=str(FILE))
    return found


@functools.cache
def card(index: int) -> str:
    """Return the name that CUDA gives to GPU number `index`."""
    return torch.cuda.get_device_name(index)


def _card_of(device: torch.device) -> str:
    return card(torch.cuda.current_device() if device.index is None else device.index)


def capability(device: torch.device) -> tuple[int, int]:
    """Return the compute capability of a GPU; for another device, as with Triton's interpreter, that of an H100."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)


def sizes(kernel: str, device: torch.device) -> Sizes:
    """Return the tile sizes of the kernel named `kernel` on a device: those in sizes.json, else the defaults."""
    if kernel in _tried:
        return _tried[kernel]
    found: Any = stored().get(_card_of(device), {}) if device.type == "cuda" else {}
    older = _OLDER[kernel] if kernel in _OLDER and capability(device) < (9, 0) else {}
    return {**DEFAULTS[kernel], **older, **found.get(kernel, {})}


@contextlib.contextmanager
def trying(kernel: str, candidate: Sizes) -> Iterator[None]:
    """Make `sizes` return the tile sizes `candidate` for a kernel, inside a `with` block."""
    _tried[kernel] = candidate
    try:
        yield
    finally:
        del _tried[kernel]


def candidates(kernel: str) -> Iterator[Sizes]:
    """Yield all combinations of tile sizes that `tune` tries for the kernel named `kernel`."""
    names = DEFAULTS[kernel]
    for values in itertools.product(*(_CHOICES[name] for name in names)):
        candidate = dict(zip(names, values, strict=True))
        if candidate.get("LANES", 256) >= 32 * candidate["num_warps"]:
            yield candidate


def tune(
    runs: Mapping[str, Callable[[], object]], seconds: Callable[[Callable[[], object]], float]
) -> dict[str, Sizes]:
    """Search for the fastest tile sizes of kernels, and return them by kernel; takes minutes on a GPU.

    runs: kernel -> a function that launches it once or a few times. seconds: a function that runs such a function and
    returns its time in seconds. Sizes that do not fit the GPU are skipped. InputError for a kernel without sizes.
    """
    if unknown := set(runs) - set(DEFAULTS):
        hint = f"those that have: {', '.join(DEFAULTS)}"
        raise InputError(f"no sizes of {', '.join(sorted(unknown))}", where="kernels.gpu.tune", hint=hint)
    best: dict[str, Sizes] = {}
    for kernel, run in runs.items():
        times: list[tuple[float, Sizes]] = []
        for candidate in candidates(kernel):
            with trying(kernel, candidate), contextlib.suppress(*_too_large()):
                times.append((seconds(run), candidate))
        best[kernel] = min(times, key=lambda one: one[0])[1]
    return best


def _too_large() -> tuple[type[Exception], ...]:
    from triton.runtime.errors import OutOfResources

    return (OutOfResources,)


def keep(name: str, found: Mapping[str, Sizes]) -> None:
    """Write to sizes.json the tile sizes that `tune` found on the GPU named `name`.

    found: tile sizes by kernel. The sizes of other GPUs and other kernels stay in the file.
    """
    cards = {**stored(), name: {**stored().get(name, {}), **found}}
    disk.save(FILE, [f"{json.dumps(cards, indent=1, sort_keys=True)}\n".encode()])
    stored.cache_clear()
