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


# The masked opening (protocols/masked.py) -----------------------------------------------------------------------------
#
# Words of `width` bits travel as one stream of bits, least significant first: element i is bits i * width and on. Eight
# of them fill `width` bytes.


def pack_words(x: torch.Tensor, width: int) -> torch.Tensor:
    """The low `width` bits of every element: int64 (n,) -> uint8 (ceil(n width / 8),)."""
    n = x.numel()
    lanes = torch.nn.functional.pad(x & _low(width), (0, -n % 8)).view(-1, 8).t().contiguous()
    out = torch.zeros(width, lanes.shape[1], dtype=torch.uint8, device=x.device)
    for lane, byte, shift in _overlaps(width):
        piece = _logical_shift(lanes[lane], shift) if shift >= 0 else lanes[lane] << -shift
        out[byte] |= (piece & 0xFF).to(torch.uint8)
    return out.t().reshape(-1)[: (n * width + 7) // 8]


def unpack_words(data: torch.Tensor, n: int, width: int) -> torch.Tensor:
    """The first n words, without sign: uint8 (ceil(n width / 8),) -> int64 (n,)."""
    count = -(-n // 8)
    places = torch.nn.functional.pad(data, (0, count * width - data.numel())).view(count, width).t().contiguous()
    out = torch.zeros(8, count, dtype=torch.int64, device=data.device)
    for lane, byte, shift in _overlaps(width):
        piece = places[byte].to(torch.int64)
        out[lane] |= piece << shift if shift >= 0 else piece >> -shift
    return (out & _low(width)).t().reshape(-1)[:n]


def _low(width: int) -> int:
    """The lowest `width` bits."""
    return (1 << width) - 1 if width < 64 else -1


def _overlaps(width: int) -> list[tuple[int, int, int]]:
    """(lane, byte, shift): byte `byte` of a group of eight words holds bits from `shift` on of word `lane`."""
    return [
        (lane, byte, 8 * byte - lane * width)
        for lane in range(8)
        for byte in range(lane * width // 8, (lane * width + width + 7) // 8)
    ]


def mask_words(share: torch.Tensor, mask: torch.Tensor, shift: int, width: int) -> torch.Tensor:
    """round(share / 2^shift) + mask mod 2^width, packed: two int64 (n,) -> uint8 (ceil(n width / 8),)."""
    return pack_words(((share + (1 << shift >> 1)) >> shift) + mask, width)


def open_words(frames: list[torch.Tensor], n: int, width: int) -> torch.Tensor:
    """The sum of packed words mod 2^width, without sign: int64 (n,)."""
    total = unpack_words(frames[0], n, width)
    for frame in frames[1:]:
        total += unpack_words(frame, n, width)
    return total & _low(width)


def step_table(x: torch.Tensor, bits: int) -> torch.Tensor:
    """T[v] = [x mod 2^bits <= v] for all v, as bits, the elements one after the other: uint8 (ceil(n 2^bits / 8),)."""
    step = x & _low(bits)
    if bits < 3:
        return pack_words(torch.full_like(step, -1) << step, 1 << bits)
    places = torch.arange(0, 1 << bits, 8, device=x.device)  # of every byte; ones begin 0 to 8 bits above it
    return ((0xFF << (step[:, None] - places).clamp(0, 8)) & 0xFF).to(torch.uint8).view(-1)


def lookup(
    opened: torch.Tensor, table: torch.Tensor, low: int, bits: int, rows: tuple[int, ...] = (0, 1)
) -> torch.Tensor:
    """What a step table T of L says about v, bits low..low+bits-1 of an opened word: uint8 (len(rows), ceil(n/8)).

    Row 0 is [L < v] = T[v - 1], row 1 [L <= v] = T[v]; 2 and 3 are the same for v with its top bit flipped.
    """
    v = (opened >> low) & _low(bits)
    start = torch.arange(opened.numel(), device=opened.device) << bits

    answers = []
    for row in rows:
        place = (v ^ (row // 2 << (bits - 1))) - (1 - row % 2)
        index = start + place.clamp(min=0)
        bit = (table[index >> 3] >> (index & 7).to(torch.uint8)) & (place >= 0).to(torch.uint8)
        answers.append(pack_bits(bit))
    return torch.stack(answers)


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
    """This party's shares of y and z, see the equations in protocols/masked.py: two int64 (n,)."""
    n, low = opened.numel(), _low(k)
    bits = from_bits(choice[0], n), from_bits(choice[1], n)
    one = int(first)
    # Shares of the two bits and of the mask, whose own carries are taken off.
    b, s = (c * one + (1 - 2 * c) * r for c, r in zip(bits, (bit, wrap), strict=True))
    carried = carry << k if k < 64 else 0
    own = (mask & low) - carried
    below = 1 - ((opened >> (k - 1)) & 1)  # [X < 2^(w-1)]
    over = (below * one - s) << k if k < 64 else 0
    z = opened * one - own + over
    y = opened * b - bits[0] * own - (1 - 2 * bits[0]) * product + over * below
    return y, z
