"""Machine operations on shares: bit planes, packed bits and words, the masked selection, the masked opening; and the
plaintext twin's comparison.

Every function here checks its arguments and then runs the fastest version that can take them: C++ (`native`) for
contiguous tensors on the CPU, plain torch (`reference`, the definition) for all others. Nothing above chooses.
Bits are packed least significant first: element i is bit i % 8 of byte i // 8; the spare bits of the last byte are 0.
Arithmetic is mod 2^64. All functions raise InputError for a wrong type, shape, device or range, and send nothing.
"""

from __future__ import annotations

import torch

from hummingbird.errors import InputError
from hummingbird.kernels import native, reference
from hummingbird.kernels.products import conv2d, matmul
from hummingbird.kernels.twin import Cut, twin_relu

__all__ = [
    "Cut",
    "active",
    "conv2d",
    "from_bits",
    "lift",
    "lookup",
    "mask_words",
    "matmul",
    "open_words",
    "pack_bits",
    "pack_words",
    "rescale",
    "select",
    "step_table",
    "to_planes",
    "twin_relu",
    "unpack_words",
]


def active() -> str:
    """What runs on this machine's CPU: "avx512", "avx2", "portable" (the C++ library), or "torch" (the reference)."""
    return native.isa() if native.available() else "torch"


def _bytes(n: int) -> int:
    return (n + 7) // 8


def _check(
    where: str,
    tensor: torch.Tensor,
    dtype: torch.dtype,
    like: torch.Tensor,
    size: int | None = None,
    rows: int | None = None,
) -> None:
    """A tensor of this type, on the device of `like`, 1-D of `size` elements (None: any number), or so many rows."""
    if not isinstance(tensor, torch.Tensor):
        raise InputError(f"expected a tensor, got {type(tensor).__name__}", where=where, hint="pass a torch.Tensor")
    if tensor.dtype != dtype:
        hint = "ring elements are torch.int64, packed and single bits torch.uint8"
        raise InputError(f"expected {dtype}, got {tensor.dtype}", where=where, hint=hint)
    shape = (tensor.numel() if size is None else size,) if rows is None else (rows, size)
    if tensor.shape != shape:
        expected = "(n,)" if size is None else shape
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


def pack_words(x: torch.Tensor, width: int) -> torch.Tensor:
    """Pack the low `width` bits of every element into one stream of bits, least significant first.

    x: int64 (n,). 0 <= width <= 64. Returns uint8 (ceil(n width / 8),).

        pack_words(torch.tensor([1, 2, 3]), 3).tolist() == [0b11_010_001, 0]
    """
    _check("kernels.pack_words(x)", x, torch.int64, x)
    _check_range("kernels.pack_words(width)", width, 0, 64)
    return native.pack_words(x, width) if native.usable(x) else reference.pack_words(x, width)


def unpack_words(data: torch.Tensor, n: int, width: int) -> torch.Tensor:
    """The words of `pack_words`, without sign: uint8 (ceil(n width / 8),) -> int64 (n,)."""
    _check_range("kernels.unpack_words(width)", width, 0, 64)
    _check_range("kernels.unpack_words(n)", n, 0, 2**56)
    _check("kernels.unpack_words(data)", data, torch.uint8, data, _bytes(n * width))
    return native.open_words([data], n, width) if native.usable(data) else reference.unpack_words(data, n, width)


def mask_words(share: torch.Tensor, mask: torch.Tensor, shift: int, width: int) -> torch.Tensor:
    """Round a share to a coarser scale, add a mask and pack: what a party opens.

    share, mask: int64 (n,). 0 <= shift <= 62. Returns round(share / 2^shift) + mask mod 2^width, packed:
    uint8 (ceil(n width / 8),).
    """
    function = "kernels.mask_words"
    _check(f"{function}(share)", share, torch.int64, share)
    _check(f"{function}(mask)", mask, torch.int64, share, share.numel())
    _check_range(f"{function}(shift)", shift, 0, 62)
    _check_range(f"{function}(width)", width, 0, 64)
    run = native.mask_words if native.usable(share, mask) else reference.mask_words
    return run(share, mask, shift, width)


def open_words(frames: list[torch.Tensor], n: int, width: int) -> torch.Tensor:
    """Sum packed words of all parties mod 2^width: a list of uint8 (ceil(n width / 8),) -> int64 (n,), without sign."""
    _check_range("kernels.open_words(width)", width, 0, 64)
    _check_range("kernels.open_words(n)", n, 0, 2**56)
    if not frames:
        raise InputError("no frame to open", where="kernels.open_words(frames)", hint="give every party's, the own too")
    for frame in frames:
        _check("kernels.open_words(frames)", frame, torch.uint8, frames[0], _bytes(n * width))
    return native.open_words(frames, n, width) if native.usable(*frames) else reference.open_words(frames, n, width)


def step_table(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Tables of a step at each element: bit v of table i is [x_i mod 2^bits <= v].

    x: int64 (n,). 1 <= bits <= 8. Returns uint8 (ceil(n 2^bits / 8),), one table of 2^bits bits after the other.

        step_table(torch.tensor([1, 3]), 2).tolist() == [0b1000_1110]
    """
    _check("kernels.step_table(x)", x, torch.int64, x)
    _check_range("kernels.step_table(bits)", bits, 1, 8)
    return native.step_table(x, bits) if native.usable(x) else reference.step_table(x, bits)


def lookup(
    opened: torch.Tensor, table: torch.Tensor, low: int, bits: int, rows: tuple[int, ...] = (0, 1)
) -> torch.Tensor:
    """What (shares of) step tables say about v, bits low..low+bits-1 of opened words.

    opened: int64 (n,), public. table: uint8 (ceil(n 2^bits / 8),), as `step_table` makes them, or xor shares of such.
    1 <= bits <= 8, low + bits <= 64. rows: the wanted ones, ascending, of 0 [L < v], 1 [L <= v], and 2 and 3, the same
    for v with its top bit flipped. Returns uint8 (len(rows), ceil(n/8)), packed.
    """
    function = "kernels.lookup"
    _check(f"{function}(opened)", opened, torch.int64, opened)
    _check_range(f"{function}(bits)", bits, 1, 8)
    _check_range(f"{function}(low)", low, 0, 64 - bits)
    _check(f"{function}(table)", table, torch.uint8, opened, _bytes(opened.numel() << bits))
    if not rows or list(rows) != [row for row in range(4) if row in rows]:
        hint = "name at least one of the rows 0 to 3, in ascending order"
        raise InputError(f"no choice of rows: {rows}", where=f"{function}(rows)", hint=hint)
    run = native.lookup if native.usable(opened, table) else reference.lookup
    return run(opened, table, low, bits, rows)


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
    """This party's shares of y = b z and of z, mod 2^64, from an opening mod 2^k; equations in protocols/masked.py.

    opened: int64 (n,), public, z + lambda mod 2^k, without sign. choice: uint8 (2, ceil(n/8)), public, packed c_b and
    c_s. mask: int64 (n,), this party's summand of lambda, of which the low k bits count; carry, bit, wrap, product:
    int64 (n,), its shares of the summands' carry, r_b, r_s and r_b lambda. 1 <= k <= 64. first: True for exactly one
    party. Returns (y, z): int64 (n,) each.
    """
    function, n = "kernels.lift", opened.numel() if isinstance(opened, torch.Tensor) else 0
    words = {"opened": opened, "mask": mask, "carry": carry, "bit": bit, "wrap": wrap, "product": product}
    for name, tensor in words.items():
        _check(f"{function}({name})", tensor, torch.int64, opened, n)
    _check(f"{function}(choice)", choice, torch.uint8, opened, _bytes(n), rows=2)
    _check_range(f"{function}(k)", k, 1, 64)
    run = native.lift if native.usable(choice, *words.values()) else reference.lift
    return run(opened, choice, mask, carry, bit, wrap, product, k, first)
