"""The kernels in C++ (csrc/*.cpp), called through ctypes, which lets go of Python's lock meanwhile.

The library is optional: without it, or with HUMMINGBIRD_KERNELS=torch in the environment, `usable` is always false and
the torch reference runs. It picks the widest vector instructions of the processor by itself. Arguments are not checked
here but in the package's public functions: a wrong size would be a wrong memory access.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import torch

from hummingbird.errors import EnvironmentProblem

ISAS = ("portable", "avx2", "avx512")
_ABI = 6  # the same number as hb_abi() in csrc/dispatch.cpp

_pointer, _long, _int, _word = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_uint64
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "hb_isa": (_int, []),
    "hb_set_isa": (_int, [_int]),
    "hb_to_planes": (None, [_pointer, _long, _int, _int, _pointer]),
    "hb_from_bits": (None, [_pointer, _long, _pointer]),
    "hb_pack_bits": (None, [_pointer, _long, _pointer]),
    "hb_select": (None, [_long, *[_pointer] * 7, _int, _int, _long, _pointer, _pointer]),
    "hb_rescale": (None, [_long, *[_pointer] * 3, _int, _int, _long, _pointer]),
    "hb_pack_words": (None, [_pointer, _long, _int, _pointer]),
    "hb_mask_words": (None, [_pointer, _pointer, _long, _int, _int, _pointer]),
    "hb_open_words": (None, [_pointer, _int, _long, _int, _pointer]),
    "hb_step_table": (None, [_pointer, _long, _int, _pointer]),
    "hb_lookup": (None, [_pointer, _long, _pointer, _int, _int, _int, _pointer]),
    "hb_lift": (None, [_long, *[_pointer] * 7, _int, _int, _pointer, _pointer]),
    "hb_conv2d": (None, [_pointer, _pointer, _pointer, _int, _pointer]),
    "hb_twin_relu": (None, [_pointer, _long, _int, _word, *[_int] * 3, _word, _word, _int, _pointer, _pointer]),
    "hb_linear": (None, [*[_pointer] * 5, _int, _int, _pointer]),
    "hb_combine": (None, [_pointer, _pointer, *[_long] * 4, *[_pointer] * 3, _int, _pointer]),
    "hb_shift": (None, [*[_pointer] * 4, _int]),
    "hb_multiply": (None, [_pointer, _pointer, *[_long] * 5, _pointer, _int, _pointer]),
    "hb_dpf_check": (_int, [_pointer, *[_long] * 4]),
    "hb_dpf_expand": (None, [_pointer, *[_long] * 4, _pointer]),
    "hb_dpf_generate": (None, [_pointer, _long, *[_pointer] * 5]),
    "hb_gfni": (_int, []),
    "hb_set_gfni": (_int, [_int]),
    "hb_rows_write": (None, [_pointer, *[_long] * 4, _pointer]),
    "hb_rows_update": (None, [_pointer, _long, _long, _pointer, _long, _pointer]),
    "hb_rows_answer": (None, [_pointer, *[_long] * 3, _int, _pointer, *[_long] * 3, _int, _pointer]),
    "hb_transform": (None, [_pointer, _long, _long, _pointer, _long, _int, _int, _pointer]),
    "hb_encrypt": (None, [_pointer, _long, _long, *[_pointer] * 4, _long, _int, _int, _pointer]),
    "hb_phase": (None, [_pointer, _long, _long, _pointer, _long, _pointer, _long, _int, _int, _pointer]),
    "hb_compose": (None, [_pointer, _long, _long, _long, _pointer, _pointer]),
    "hb_noise": (None, [_pointer, _long, _pointer]),
    "hb_uniform": (_long, [_pointer, _long, _long, _long, _pointer, _pointer]),
    "hb_pack": (None, [_pointer, _long, _long, _long, _pointer, _pointer]),
    "hb_unpack": (_int, [_pointer, _long, _long, _long, _pointer, _pointer]),
}


def _load() -> Any:
    wanted = os.environ.get("HUMMINGBIRD_KERNELS", "")
    if wanted not in ("", "torch"):
        raise EnvironmentProblem(
            f"HUMMINGBIRD_KERNELS is {wanted!r}, which is no known choice",
            where="kernels",
            hint="set it to torch for the plain torch kernels, or unset it for the fastest ones",
        )
    paths = [Path(__file__).with_name("_native" + suffix) for suffix in EXTENSION_SUFFIXES]
    path = next((path for path in paths if path.exists()), None)
    if path is None or wanted:
        return None
    try:
        library = ctypes.CDLL(str(path))
        if library.hb_abi() != _ABI:
            raise OSError(f"{path} was built from another version of the sources")
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        # Slower, but right: the reference takes over.
        message = f"the native kernels are not used, install the package again: {error}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return None
    return library


_library = _load()


def available() -> bool:
    """Whether the shared library was found and loaded."""
    return _library is not None


def library() -> Any:
    """The shared library itself, for the modules that keep their wrappers beside their torch definition."""
    return _library


def usable(*tensors: torch.Tensor) -> bool:
    """Whether the library can take these tensors: all on the CPU and contiguous."""
    return _library is not None and all(t.device.type == "cpu" and t.is_contiguous() for t in tensors)


def isa() -> str:
    """The instruction set in use, one of `ISAS`."""
    return ISAS[_library.hb_isa()]


def set_isa(name: str) -> bool:
    """Use one of `ISAS` from now on, in the whole process; False, and no change, where the processor lacks it."""
    return _library.hb_set_isa(ISAS.index(name)) == 0


def to_planes(x: torch.Tensor, low: int, count: int) -> torch.Tensor:
    """See `reference.to_planes`."""
    planes = torch.empty((count, (x.numel() + 7) // 8), dtype=torch.uint8)
    _library.hb_to_planes(x.data_ptr(), x.numel(), low, count, planes.data_ptr())
    return planes


def from_bits(plane: torch.Tensor, n: int) -> torch.Tensor:
    """See `reference.from_bits`."""
    out = torch.empty(n, dtype=torch.int64)
    _library.hb_from_bits(plane.data_ptr(), n, out.data_ptr())
    return out


def pack_bits(bits: torch.Tensor) -> torch.Tensor:
    """See `reference.pack_bits`."""
    out = torch.empty((bits.numel() + 7) // 8, dtype=torch.uint8)
    _library.hb_pack_bits(bits.data_ptr(), bits.numel(), out.data_ptr())
    return out


def rescale(
    opened: torch.Tensor, mask_high: torch.Tensor, mask_low: torch.Tensor, shift: int, first: bool, offset: int
) -> torch.Tensor:
    """See `reference.rescale`."""
    z = torch.empty_like(opened)
    inputs = [t.data_ptr() for t in (opened, mask_high, mask_low)]
    _library.hb_rescale(opened.numel(), *inputs, shift, first, offset, z.data_ptr())
    return z


def select(
    opened: torch.Tensor,
    choice: torch.Tensor,
    bit: torch.Tensor,
    mask_high: torch.Tensor,
    mask_low: torch.Tensor,
    bit_high: torch.Tensor,
    bit_low: torch.Tensor,
    shift: int,
    first: bool,
    offset: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `reference.select`."""
    y, z = torch.empty_like(opened), torch.empty_like(opened)
    inputs = [t.data_ptr() for t in (opened, choice, bit, mask_high, mask_low, bit_high, bit_low)]
    _library.hb_select(opened.numel(), *inputs, shift, first, offset, y.data_ptr(), z.data_ptr())
    return y, z


def pack_words(x: torch.Tensor, width: int) -> torch.Tensor:
    """See `reference.pack_words`."""
    out = torch.empty((x.numel() * width + 7) // 8, dtype=torch.uint8)
    _library.hb_pack_words(x.data_ptr(), x.numel(), width, out.data_ptr())
    return out


def mask_words(share: torch.Tensor, mask: torch.Tensor, shift: int, width: int) -> torch.Tensor:
    """See `reference.mask_words`."""
    out = torch.empty((share.numel() * width + 7) // 8, dtype=torch.uint8)
    _library.hb_mask_words(share.data_ptr(), mask.data_ptr(), share.numel(), shift, width, out.data_ptr())
    return out


def open_words(frames: list[torch.Tensor], n: int, width: int) -> torch.Tensor:
    """See `reference.open_words`."""
    out = torch.empty(n, dtype=torch.int64)
    pointers = (_pointer * len(frames))(*[frame.data_ptr() for frame in frames])
    _library.hb_open_words(pointers, len(frames), n, width, out.data_ptr())
    return out


def step_table(x: torch.Tensor, bits: int) -> torch.Tensor:
    """See `reference.step_table`."""
    out = torch.empty(((x.numel() << bits) + 7) // 8, dtype=torch.uint8)
    _library.hb_step_table(x.data_ptr(), x.numel(), bits, out.data_ptr())
    return out


def lookup(
    opened: torch.Tensor, table: torch.Tensor, low: int, bits: int, rows: tuple[int, ...] = (0, 1)
) -> torch.Tensor:
    """See `reference.lookup`."""
    n, wanted = opened.numel(), sum(1 << row for row in rows)
    out = torch.empty((len(rows), (n + 7) // 8), dtype=torch.uint8)
    _library.hb_lookup(opened.data_ptr(), n, table.data_ptr(), low, bits, wanted, out.data_ptr())
    return out


def lift(
    opened: torch.Tensor,
    choice: torch.Tensor,
    mask: torch.Tensor,
    carry: torch.Tensor,
    bit: torch.Tensor,
    wrap: torch.Tensor,
    product: torch.Tensor,
    k: int,
    first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `reference.lift`."""
    y, z = torch.empty_like(opened), torch.empty_like(opened)
    inputs = [t.data_ptr() for t in (opened, choice, mask, carry, bit, wrap, product)]
    _library.hb_lift(opened.numel(), *inputs, k, first, y.data_ptr(), z.data_ptr())
    return y, z


def conv2d(
    x: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    size: Sequence[int],
) -> torch.Tensor:
    """See `products.conv2d`; x and weight are not empty, `size` is the height and width of the result."""
    out = torch.empty((x.shape[0], weight.shape[0], *size), dtype=torch.int64)
    kernel = (weight.shape[0], *weight.shape[2:])
    numbers = (*x.shape, *kernel, *stride, *dilation, groups, *size)  # struct Shape of csrc/products.cpp
    shape = (ctypes.c_int64 * len(numbers))(*numbers)
    _library.hb_conv2d(x.data_ptr(), weight.data_ptr(), shape, torch.get_num_threads(), out.data_ptr())
    return out


def twin_relu(
    v: torch.Tensor, key: int, cut: tuple[int, int, int, int, int, bool], both: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """See `twin.reference_twin_relu`; v is float32 or bfloat16, cut a `twin.Cut`."""
    y, z = torch.empty_like(v), torch.empty_like(v) if both and cut[-1] else None
    half, out = v.dtype == torch.bfloat16, None if z is None else z.data_ptr()
    _library.hb_twin_relu(v.data_ptr(), v.numel(), half, key, *cut, y.data_ptr(), out)
    return y, v if both and z is None else z
