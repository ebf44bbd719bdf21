"""The kernels in plain torch, on any device: the definition that every fast version is tested against.

Bits are packed least significant first: element i is bit i % 8 of byte i // 8; the spare bits of the last byte are 0.
Arithmetic is that of Z_2^64: torch's int64 wraps around, and a logical shift is an arithmetic one with the copies of
the sign cleared.

`select` is the local end of the masked ReLU. All parties have opened e = x + offset + mask and c = b xor r, with b the
wanted bit and r a random bit, shared. The sum wraps past 2^64 if and only if the mask has its top bit and e has not,
as long as x + offset < 2^63: the dealer, who knows the mask, deals one share for each top bit of e, `high` and `low`.
With E = (e >> shift) - (offset >> shift), public, and A, RA the shares chosen so (of the shifted mask a, and of r a):

    z = [first] E - A        rz = E R - RA        y = c z + (1 - 2c) rz = (z - rz if c else rz)

with R the share of r (`bit`), and [first] 1 for the one party that adds public constants, else 0.

Source: public openings of masked wires with dealt corrections, E. Boyle, N. Gilboa, Y. Ishai, "Secure Computation with
Preprocessing via Function Secret Sharing", TCC 2019; the equations above are derived here, none is a paper's own.
"""

from __future__ import annotations

import torch


def _logical_shift(x: torch.Tensor, shift: int) -> torch.Tensor:
    return x if shift == 0 else (x >> shift) & ((1 << (64 - shift)) - 1)


def pack_bits(bits: torch.Tensor) -> torch.Tensor:
    """Bit 0 of every byte, eight to a byte: uint8 (n,) -> uint8 (ceil(n/8),)."""
    padded = torch.nn.functional.pad(bits & 1, (0, -bits.numel() % 8)).view(-1, 8)
    return (padded << torch.arange(8, dtype=torch.uint8, device=bits.device)).sum(1, dtype=torch.uint8)


def to_planes(x: torch.Tensor, low: int, count: int) -> torch.Tensor:
    """Row j holds bit low + j of every element: int64 (n,) -> uint8 (count, ceil(n/8))."""
    planes = torch.empty((count, (x.numel() + 7) // 8), dtype=torch.uint8, device=x.device)
    for j in range(count):
        planes[j] = pack_bits(((x >> (low + j)) & 1).to(torch.uint8))
    return planes


def from_bits(plane: torch.Tensor, n: int) -> torch.Tensor:
    """The first n packed bits as ring elements 0 and 1: uint8 (ceil(n/8),) -> int64 (n,)."""
    weights = torch.arange(8, dtype=torch.uint8, device=plane.device)
    return ((plane[:, None] >> weights) & 1).view(-1)[:n].to(torch.int64)


def rescale(
    opened: torch.Tensor, mask_high: torch.Tensor, mask_low: torch.Tensor, shift: int, first: bool, offset: int
) -> torch.Tensor:
    """This party's share z of the opened value, shifted and unmasked: int64 (n,)."""
    mask = torch.where(opened < 0, mask_high, mask_low)
    return _logical_shift(opened, shift) - (offset >> shift) - mask if first else -mask


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
    """This party's shares of y = b z and of z, see the equations above: two int64 (n,)."""
    z = rescale(opened, mask_high, mask_low, shift, first, offset)
    value = _logical_shift(opened, shift) - (offset >> shift)
    rz = value * bit - torch.where(opened < 0, bit_high, bit_low)
    return torch.where(from_bits(choice, opened.numel()).bool(), z - rz, rz), z
