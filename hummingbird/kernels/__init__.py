"""Machine operations on shares: bit planes, packed bits, the masked selection.

Every function here checks its arguments and then runs the fastest version that can take them: C++ (`native`) for
contiguous tensors on the CPU, plain torch (`reference`, the definition) for all others. Nothing above chooses.
Bits are packed least significant first: element i is bit i % 8 of byte i // 8; the spare bits of the last byte are 0.
Arithmetic is mod 2^64. All functions raise InputError for a wrong type, shape, device or range, and send nothing.
"""

from __future__ import annotations

import torch

from hummingbird.errors import InputError
from hummingbird.kernels import native, reference

__all__ = ["active", "from_bits", "pack_bits", "rescale", "select", "to_planes"]


def active() -> str:
    """What runs on this machine's CPU: "avx512", "avx2", "portable" (the C++ library), or "torch" (the reference)."""
    return native.isa() if native.available() else "torch"


def _bytes(n: int) -> int:
    return (n + 7) // 8


def _check(where: str, tensor: torch.Tensor, dtype: torch.dtype, like: torch.Tensor, size: int | None = None) -> None:
    """A 1-D tensor of this type, on the device of `like`, of `size` elements (None: any number)."""
    if not isinstance(tensor, torch.Tensor):
        raise InputError(f"expected a tensor, got {type(tensor).__name__}", where=where, hint="pass a torch.Tensor")
    if tensor.dtype != dtype:
        hint = "ring elements are torch.int64, packed and single bits torch.uint8"
        raise InputError(f"expected {dtype}, got {tensor.dtype}", where=where, hint=hint)
    if tensor.dim() != 1 or size not in (None, tensor.numel()):
        expected = "(n,)" if size is None else f"({size},)"
        hint = "flatten with .reshape(-1); n elements have ceil(n/8) packed bytes"
        raise InputError(f"expected shape {expected}, got {tuple(tensor.shape)}", where=where, hint=hint)
    if tensor.device != like.device:
        hint = "move all arguments to one device with .to()"
        raise InputError(f"expected device {like.device}, got {tensor.device}", where=where, hint=hint)


def _check_range(where: str, value: int, least: int, most: int) -> None:
    if not isinstance(value, int) or not least <= value <= most:
        hint = "see the function's description for what is allowed"
        raise InputError(f"expected a whole number from {least} to {most}, got {value}", where=where, hint=hint)


def to_planes(x: torch.Tensor, low: int, count: int) -> torch.Tensor:
    """Cut a window of bits out of every element: row j holds bit low + j of all.

    x: int64 (n,), ring elements. 0 <= low, 0 <= count, low + count <= 64. Returns uint8 (count, ceil(n/8)), packed.

        to_planes(torch.tensor([5, 2]), 0, 3).tolist() == [[0b01], [0b10], [0b01]]
    """
    _check("kernels.to_planes(x)", x, torch.int64, x)
    _check_range("kernels.to_planes(low)", low, 0, 64)
    _check_range("kernels.to_planes(count)", count, 0, 64 - low)
    return native.to_planes(x, low, count) if native.usable(x) else reference.to_planes(x, low, count)


def from_bits(plane: torch.Tensor, n: int) -> torch.Tensor:
    """Unpack bits into ring elements 0 and 1; the spare bits are not read.

    plane: uint8 (ceil(n/8),), packed. Returns int64 (n,).

        from_bits(torch.tensor([0b101], dtype=torch.uint8), 3).tolist() == [1, 0, 1]
    """
    _check_range("kernels.from_bits(n)", n, 0, 2**63 - 8)
    _check("kernels.from_bits(plane)", plane, torch.uint8, plane, _bytes(n))
    return native.from_bits(plane, n) if native.usable(plane) else reference.from_bits(plane, n)


def pack_bits(bits: torch.Tensor) -> torch.Tensor:
    """Pack bits, eight to a byte; of each input byte, only bit 0 is read.

    bits: uint8 (n,), zeros and ones. Returns uint8 (ceil(n/8),), packed.

        pack_bits(torch.tensor([1, 0, 1], dtype=torch.uint8)).tolist() == [0b101]
    """
    _check("kernels.pack_bits(bits)", bits, torch.uint8, bits)
    return native.pack_bits(bits) if native.usable(bits) else reference.pack_bits(bits)


def rescale(
    opened: torch.Tensor, mask_high: torch.Tensor, mask_low: torch.Tensor, shift: int, first: bool, offset: int
) -> torch.Tensor:
    """This party's share of an opened value, shifted right and unmasked; `reference` has the equation.

    opened: int64 (n,), public. mask_high, mask_low: int64 (n,), this party's shares of the shifted mask, for a set and
    a clear top bit of `opened`. 0 <= shift <= 62. first: True for exactly one party. 0 <= offset < 2^63, public.
    Returns z: int64 (n,).
    """
    function, n = "kernels.rescale", opened.numel() if isinstance(opened, torch.Tensor) else 0
    for name, tensor in (("opened", opened), ("mask_high", mask_high), ("mask_low", mask_low)):
        _check(f"{function}({name})", tensor, torch.int64, opened, n)
    _check_range(f"{function}(shift)", shift, 0, 62)
    _check_range(f"{function}(offset)", offset, 0, 2**63 - 1)
    run = native.rescale if native.usable(opened, mask_high, mask_low) else reference.rescale
    return run(opened, mask_high, mask_low, shift, first, offset)


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
    """This party's shares of y = b z and of z, from the opened value and c = b xor r; equations in `reference`.

    opened, mask_high, mask_low, shift, first, offset: as for `rescale`. choice: uint8 (ceil(n/8),), public, packed c.
    bit: int64 (n,), shares of r. bit_high, bit_low: int64 (n,), shares of r times the shifted mask, as for the mask.
    Returns (y, z): int64 (n,) each.
    """
    function, n = "kernels.select", opened.numel() if isinstance(opened, torch.Tensor) else 0
    words = {"opened": opened, "bit": bit, "mask_high": mask_high, "mask_low": mask_low}
    for name, tensor in (words | {"bit_high": bit_high, "bit_low": bit_low}).items():
        _check(f"{function}({name})", tensor, torch.int64, opened, n)
    _check(f"{function}(choice)", choice, torch.uint8, opened, _bytes(n))
    _check_range(f"{function}(shift)", shift, 0, 62)
    _check_range(f"{function}(offset)", offset, 0, 2**63 - 1)
    run = native.select if native.usable(choice, bit_high, bit_low, *words.values()) else reference.select
    return run(opened, choice, bit, mask_high, mask_low, bit_high, bit_low, shift, first, offset)
