"""Correlated randomness: what the dealer draws, and how every party gets its share from a seed.

Each kind is two lists of fields and one function. The *free* fields are uniform: party i expands its own share of
them from its own 128-bit seed. The *derived* fields are a function of the free ones: parties 1..N-1 expand their
shares of those as well, and only party 0 needs a message, the correction

    derived - (sum or xor of the other parties' shares),

which is uniform from its point of view. So a request costs party 0 the bits of the derived fields and everyone else
nothing. The dealer holds all seeds, and sees no input; it must not collude with any party (Beaver 1995; the
"corrections to one party" layout is that of CrypTen's trusted third party, Knott et al. 2021, section 3).

Every request has an index. Its seed is derive(party seed, index, kind), so no two requests share a bit of randomness.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hummingbird import cost, kernels, ring
from hummingbird.cost import packed
from hummingbird.errors import DealerError
from hummingbird.prg import Stream, derive


@dataclass(frozen=True)
class Field:
    """One tensor of a correlation: additive shares in Z_2^64 (`ring`), or xor shares of words, packed bits or 0/1
    words.
    """

    kind: str  # "ring" | "words" | "packed" | "bit"
    shape: tuple[int, ...]
    owner: int | None = None  # the only party with a share that is not zero
    width: int = 64  # of "ring": shares add up mod 2^width, and a correction travels with that many bits per element
    key: int | None = None  # of a mask that outlives the request: the same values for the same key, in every request
    earlier: bool = False  # such a mask that the parties have from a request before

    @property
    def layout(self) -> tuple[torch.dtype, tuple[int, ...]]:
        """Type and shape of a correction on the wire."""
        if self.width < 64:
            return torch.uint8, (packed(math.prod(self.shape) * self.width),)
        return (torch.uint8 if self.kind == "packed" else torch.int64), self.shape

    @property
    def bits(self) -> int:
        """Size of a correction on the wire."""
        dtype, shape = self.layout
        return 8 * dtype.itemsize * math.prod(shape)

    def draw(self, stream: Stream, rank: int) -> Tensor:
        """Party `rank`'s share from its stream; all zeros, at no cost, if another party owns the field."""
        if self.owner is not None and self.owner != rank:
            dtype = torch.uint8 if self.kind == "packed" else torch.int64
            return torch.zeros(self.shape, dtype=dtype, device=stream.device)
        if self.kind == "packed":
            return stream.bytes(math.prod(self.shape)).view(self.shape)
        if self.kind == "bit":
            return stream.bits(*self.shape).long()
        return stream.words(*self.shape)

    def combine(self, shares: Sequence[Tensor]) -> Tensor:
        """The value that all shares stand for."""
        total = shares[0].clone()
        for share in shares[1:]:
            total = total.add_(share) if self.kind == "ring" else total.bitwise_xor_(share)
        return total

    def correction(self, value: Tensor, shares: Sequence[Tensor]) -> Tensor:
        """What is left of `value` for party 0 when the others hold `shares`, as it travels (`layout`)."""
        subtract = torch.sub if self.kind == "ring" else torch.bitwise_xor
        for share in shares:  # into the share's own memory, which nobody looks at again
            value = subtract(value, share, out=share)
        return kernels.pack_words(value.reshape(-1), self.width) if self.width < 64 else value

    def received(self, correction: Tensor) -> Tensor:
        """Party 0's share from its correction."""
        if self.width == 64:
            return correction
        return kernels.unpack_words(correction, math.prod(self.shape), self.width).view(self.shape)


@dataclass(frozen=True)
class Request:
    """One piece of correlated randomness: a kind of `KINDS` and its parameters (JSON values only)."""

    kind: str
    params: dict[str, Any] = field(default_factory=dict)

    @property
    def free(self) -> list[Field]:
        return KINDS[self.kind].free(**self.params)

    @property
    def derived(self) -> list[Field]:
        return KINDS[self.kind].derived(**self.params)

    @property
    def shares(self) -> list[Field]:
        """The fields of which a party gets its share, in order."""
        return [item for item in self.free if not item.earlier] + self.derived

    @property
    def correction_bits(self) -> int:
        """Offline bits that party 0 receives."""
        return sum(item.bits for item in self.derived)


@dataclass(frozen=True)
class Kind:
    """`derive(shares, *values, **params)`: the derived values from every party's free shares and the combined free
    values.
    """

    free: Callable[..., list[Field]]
    derived: Callable[..., list[Field]]
    derive: Callable[..., list[Tensor]]


def _stream(seed: bytes, index: int, request: Request, device: torch.device | str = "cpu") -> Stream:
    return Stream(derive(seed, "request", index, request.kind), device)


def _draw(item: Field, seed: bytes, stream: Stream, rank: int) -> Tensor:
    """A free field's share: from the request's stream, or from its own if it outlives the request."""
    return item.draw(stream if item.key is None else Stream(derive(seed, "fixed", item.key), stream.device), rank)


def expand(request: Request, index: int, seed: bytes, rank: int, device: torch.device | str = "cpu") -> list[Tensor]:
    """Party `rank`'s shares of the free fields, and of the derived ones too unless it is party 0, on `device`."""
    stream = _stream(seed, index, request, device)
    free = [_draw(item, seed, stream, rank) for item in request.free if not item.earlier]
    return free + [item.draw(stream, rank) for item in (request.derived if rank else [])]


def layout(request: Request) -> list[tuple[torch.dtype, tuple[int, ...]]]:
    """Types and shapes of a request's corrections."""
    return [item.layout for item in request.derived]


def received(request: Request, corrections: Sequence[Tensor]) -> list[Tensor]:
    """Party 0's shares of the derived fields, from its corrections."""
    return [item.received(tensor) for item, tensor in zip(request.derived, corrections, strict=True)]


def corrections(request: Request, index: int, seeds: Sequence[bytes]) -> list[Tensor]:
    """The dealer's work: what party 0 must receive (`layout`), from all parties' seeds."""
    free, derived = request.free, request.derived
    streams = [_stream(seed, index, request) for seed in seeds]
    shares = [
        [_draw(item, seed, stream, rank) for rank, (seed, stream) in enumerate(zip(seeds, streams, strict=True))]
        for item in free
    ]
    values = [item.combine(parts) for item, parts in zip(free, shares, strict=True)]
    out = []
    results = KINDS[request.kind].derive(shares, *values, **request.params)
    for item, value in zip(derived, results, strict=True):
        others = [item.draw(stream, rank) for rank, stream in enumerate(streams) if rank]
        out.append(item.correction(value, others))
    return out


# CrypTen's provider interface ---------------------------------------------------------------------------------------


def _product_shape(size0: list[int], size1: list[int], op: str, kwargs: dict[str, Any]) -> tuple[int, ...]:
    """Shape of the product, found by torch on tensors that hold no data."""
    if op == "mul":  # for broadcasting on the meta device torch first imports its compiler, 1.6 s
        return tuple(torch.broadcast_shapes(size0, size1))
    a, b = torch.empty(size0, device="meta"), torch.empty(size1, device="meta")
    return tuple(getattr(torch, op)(a, b, **kwargs).shape)


def _product(size0: list[int], size1: list[int], op: str, kwargs: dict[str, Any]) -> list[Field]:
    return [Field("ring", _product_shape(size0, size1, op, kwargs))]


# The protocols of this package --------------------------------------------------------------------------------------


def _shifted(mask: Tensor, shift: int) -> tuple[Tensor, Tensor]:
    """mask >> shift with zeros, and with copies of the top bit, drawn in."""
    arithmetic = mask >> shift
    logical = arithmetic & ((1 << (64 - shift)) - 1) if shift else arithmetic
    return logical, arithmetic


def _select(shares: Any, bit: Tensor, mask: Tensor, *, count: int, shift: int) -> list[Tensor]:
    plain = kernels.from_bits(bit.view(-1), count)
    if not shift:
        return [plain, plain * mask]
    logical, arithmetic = _shifted(mask, shift)
    return [plain, logical, arithmetic, plain * logical, plain * arithmetic]


def quotients(words: Tensor, divisor: int) -> tuple[Tensor, Tensor]:
    """words // divisor, read as unsigned and as signed 64-bit numbers and rounded down; divisor in 1..2^28."""
    signed = words.div(divisor, rounding_mode="floor")
    half = ((words >> 1) & (2**63 - 1)).div(divisor, rounding_mode="floor") << 1
    # At most 2 divisor - 1 is left, below 2^29; a divisor of 1 leaves 0 or 1.
    return half + (words - half * divisor >= divisor).long(), signed


def _wraps(shares: list[list[Tensor]], _: Tensor, *, shape: list[int]) -> list[Tensor]:
    """How often the signed sum of the parties' shares leaves [-2^63, 2^63), counted with sign (Knott et al., appendix
    C).
    """
    parts = shares[0]
    count, total = torch.zeros(shape, dtype=torch.int64), parts[0]
    for part in parts[1:]:
        after = total + part
        count -= ((total < 0) & (part < 0) & (after >= 0)).long()
        count += ((total >= 0) & (part >= 0) & (after < 0)).long()
        total = after
    return [count]


def _masked(count: int, k: int, m: int, tables: int, ring: int) -> list[Field]:
    """Derived fields of "masked": carry, r_b, r_s, r_b lambda, and a step table per chunk of the window."""
    high = Field("ring", (count,), width=ring - k)
    rings = [high, Field("ring", (count,), width=ring), high, Field("ring", (count,), width=ring)]
    return rings + [Field("packed", (packed(count << bits),)) for bits in cost.chunks(k - m, tables)]


def _mask(
    shares: list[list[Tensor]], word: Tensor, bits: Tensor, *, count: int, k: int, m: int, tables: int, ring: int
) -> list[Tensor]:
    """The dealer's side of protocols/masked.py: `word` and `bits` are the combined free fields."""
    low = (1 << k) - 1 if k < 64 else -1
    mask = word & low
    total = shares[0][0] & low
    for part in shares[0][1:]:
        total = total + (part & low)
    carry = (total - mask) >> k if k < 64 else torch.zeros_like(mask)  # only its low ring - k bits are used
    choice, lift = (kernels.from_bits(plane, count) for plane in bits)
    out, at = [carry, choice, lift, choice * mask], m
    for size in cost.chunks(k - m, tables):
        out.append(kernels.step_table(mask >> at, size))
        at += size
    return out


def _rings(number: int, count: int) -> list[Field]:
    return [Field("ring", (count,)) for _ in range(number)]


KINDS: dict[str, Kind] = {
    # a, b uniform; c = op(a, b)
    "additive": Kind(
        lambda size0, size1, op, kwargs: [Field("ring", tuple(size0)), Field("ring", tuple(size1))],
        _product,
        lambda _, a, b, *, op, kwargs, **sizes: [ring.bilinear(op, a, b, **kwargs)],
    ),
    # b uniform, the same whenever the key is: the mask of a weight (protocols/weight_mask.py)
    "fixed": Kind(lambda shape, key: [Field("ring", tuple(shape), key=key)], lambda **_: [], lambda *_, **__: []),
    # a uniform, b from "fixed"; c = op(a, b)
    "linear": Kind(
        lambda size0, size1, op, kwargs, key: [
            Field("ring", tuple(size0)),
            Field("ring", tuple(size1), key=key, earlier=True),
        ],
        lambda size0, size1, op, kwargs, key: _product(size0, size1, op, kwargs),
        lambda _, a, b, *, op, kwargs, **rest: [ring.bilinear(op, a, b, **kwargs)],
    ),
    # r uniform; r^2
    "square": Kind(
        lambda shape: [Field("ring", tuple(shape))],
        lambda shape: [Field("ring", tuple(shape))],
        lambda _, r, *, shape: [r * r],
    ),
    # a, b words; a & b
    "binary": Kind(
        lambda size0, size1: [Field("words", tuple(size0)), Field("words", tuple(size1))],
        lambda size0, size1: [Field("words", tuple(torch.broadcast_shapes(size0, size1)))],
        lambda _, a, b, **sizes: [a & b],
    ),
    # one random bit per element, xor shared in a word and additively shared in the ring
    "b2a": Kind(
        lambda shape: [Field("bit", tuple(shape))],
        lambda shape: [Field("ring", tuple(shape))],
        lambda _, r, *, shape: [r],
    ),
    # r uniform; the number of wraps of its shares
    "wraps": Kind(lambda shape: [Field("ring", tuple(shape))], lambda shape: [Field("ring", tuple(shape))], _wraps),
    # packed bits a (party 0's alone), b (party 1's alone); a & b: the first AND of a two-party sum
    "and_private": Kind(
        lambda planes, count: [
            Field("packed", (planes, packed(count)), 0),
            Field("packed", (planes, packed(count)), 1),
        ],
        lambda planes, count: [Field("packed", (planes, packed(count)))],
        lambda _, a, b, **shape: [a & b],
    ),
    # packed bits a, b; a & b
    "and": Kind(
        lambda planes, count: [Field("packed", (planes, packed(count)))] * 2,
        lambda planes, count: [Field("packed", (planes, packed(count)))],
        lambda _, a, b, **shape: [a & b],
    ),
    # packed bits p, g (planes) and q (second <= planes); p & g and p[-second:] & q: two ANDs with a common operand,
    # one level of a carry tree
    "and_pair": Kind(
        lambda planes, second, count: [Field("packed", (n, packed(count))) for n in (planes, planes, second)],
        lambda planes, second, count: [Field("packed", (n, packed(count))) for n in (planes, second)],
        lambda _, p, g, q, *, planes, second, count: [p & g, p[planes - second :] & q],
    ),
    # a mask lambda mod 2^k, two bits, and what protocols/masked.py needs of them
    "masked": Kind(
        lambda count, k, m, tables, ring: [Field("ring", (count,)), Field("packed", (2, packed(count)))],
        _masked,
        _mask,
    ),
    # a mask and a bit for protocols/truncation.py: r, a >> shift with zeros or sign drawn in, and r times both
    "select": Kind(
        lambda count, shift: [Field("packed", (1, packed(count))), Field("ring", (count,))],
        lambda count, shift: _rings(5 if shift else 2, count),
        _select,
    ),
    # a mask alone, for an exact division
    "divide": Kind(
        lambda count, divisor: [Field("ring", (count,))],
        lambda count, divisor: _rings(2, count),
        lambda _, a, *, count, divisor: list(quotients(a, divisor)),
    ),
    # a mask alone, for an exact truncation
    "truncate": Kind(
        lambda count, shift: [Field("ring", (count,))],
        lambda count, shift: _rings(2, count),
        lambda _, a, *, count, shift: list(_shifted(a, shift)),
    ),
}

_LIMIT = 1 << 28  # elements of one request: 2 GiB of masks
_OPTIONS = ("stride", "padding", "output_padding", "dilation", "groups")  # of torch's convolutions


def check(request: Request) -> None:
    """DealerError unless the request is one of `KINDS` with parameters of sane type and size; the dealer calls it
    first.
    """
    if request.kind not in KINDS:
        raise DealerError(f"unknown kind of correlated randomness {request.kind!r}", hint=f"known: {', '.join(KINDS)}")
    malformed = f"malformed request for {request.kind!r}"
    params = request.params
    if not isinstance(params, dict) or not all(
        isinstance(value, list) == (key in _SHAPES) and _natural(value)
        for key, value in params.items()
        if key not in _NAMED
    ):
        what = f"a size exceeds the limits (0 to {_LIMIT}, 8 dimensions): {str(params)[:_SHOWN]}"
        raise DealerError(f"{malformed}: {what}")
    for name, most in _MOST.items():  # before any list is built from it
        if params.get(name, 0) > most:
            raise DealerError(f"{malformed}: {name} {params[name]} is not in 0..{most}")
    if not 0 < params.get("divisor", 1):
        raise DealerError(f"{malformed}: divisor {params['divisor']} is not positive")
    op, kwargs = params.get("op"), params.get("kwargs")
    if request.kind in ("additive", "linear") and (op not in ring.BILINEAR or not _are_options(kwargs)):
        # Before anything is looked up by these names: they come from another process.
        raise DealerError(f"{malformed}: op {str(op)[:_SHOWN]!r}, options {str(kwargs)[:_SHOWN]}")
    try:
        fields = request.free + request.derived
        padded = 0 if kwargs is None else _padded(params["size0"], params["size1"], str(op), kwargs)
    except Exception as error:  # sizes that no product has, missing or surplus parameters
        raise DealerError(f"{malformed}: {str(error)[:_SHOWN]}") from None
    if any(not 0 <= item.width <= 64 for item in fields) or params.get("second", 0) > params.get("planes", 0):
        raise DealerError(f"{malformed}: {str(params)[:_SHOWN]}")
    shapes = [item.shape for item in fields]
    if any(n < 0 for shape in shapes for n in shape) or max(padded, *map(math.prod, shapes)) > _LIMIT:
        raise DealerError(f"a request for {request.kind!r} exceeds {_LIMIT} elements", hint="run smaller batches")


def _padded(size0: list[int], size1: list[int], op: str, kwargs: dict[str, Any]) -> int:
    """Elements of a convolution's input with its margins and, transposed, its gaps; 0 for other products.

    The result's size does not bound them: dilation takes away what padding adds.
    """
    if not op.startswith("conv"):
        return 0
    spatial = int(op[-2])

    def option(name: str, default: int) -> list[int]:
        value = kwargs.get(name, default)
        return value * (spatial // len(value)) if isinstance(value, list) else [value] * spatial

    sides, margins, reach = size0[-spatial:], option("padding", 0), [0] * spatial
    if op.startswith("conv_transpose"):
        sides = [n * step for n, step in zip(sides, option("stride", 1), strict=True)]
        reach = [by * (n - 1) for by, n in zip(option("dilation", 1), size1[-spatial:], strict=True)]
    margins = [abs(far - margin) for far, margin in zip(reach, margins, strict=True)]
    return math.prod(size0[:-spatial]) * math.prod(n + 2 * m for n, m in zip(sides, margins, strict=True))


_NAMED = ("op", "kwargs")
_SHAPES = ("shape", "size0", "size1")
_MOST = {"shift": 62, "k": 64, "m": 64, "tables": 64, "ring": 64}
_SHOWN = 200  # characters of what another process sent


def _natural(value: Any) -> bool:
    """A size, or a list of at most 8 of them."""
    if isinstance(value, list):
        return len(value) <= 8 and all(_natural(item) and isinstance(item, int) for item in value)
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LIMIT


def _are_options(kwargs: Any) -> bool:
    return isinstance(kwargs, dict) and all(key in _OPTIONS and _natural(value) for key, value in kwargs.items())
