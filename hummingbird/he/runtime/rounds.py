"""All that crosses in a turn: tensors up and down, their order in the two streams, and the client's choice of a scale.

A tensor crosses in slices of ciphertexts, each with its place in the turn's stream: `Upload` and `Download`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from hummingbird import records
from hummingbird.errors import InputError
from hummingbird.he.scheme import packing as packings
from hummingbird.he.scheme.ckks import NOISE
from hummingbird.he.scheme.params import Parameters
from hummingbird.records import field

SLICE = 256  # ciphertexts
MOST_SCALE = 60  # and least, negated
MOST_STEPS = 1 << 12  # of a net; the largest in the benchmarks has some 200
MOST_DIMENSIONS = 16
MOST_PRIMES = 65
MOST_GAIN = 1 << 1000  # float64 has room for it
MOST_MESSAGE = ((1 << 30) - NOISE - 0.5) * (1 - 2.0**-40)  # of what is encrypted, before it is rounded


_STEP = records.whole(0, MOST_STEPS)
_SHAPE = records.many(records.whole(), MOST_DIMENSIONS)
_SCALE = records.whole(-MOST_SCALE, MOST_SCALE)
_DIGITS = records.text(4096, 1)
_UNIT = records.through(
    records.row(_DIGITS, _DIGITS),
    lambda parts: Fraction(*map(int, parts)),
    lambda unit: (str(unit.numerator), str(unit.denominator)),
)


@dataclass(frozen=True)
class EncryptedInput:
    """A value that the client encrypts. value: its step's number. shape: of one image.

    typical: the root mean square that the plan was made for; 0 where the client chooses a scale for each image.
    """

    value: int = field(_STEP)
    shape: tuple[int, ...] = field(_SHAPE)
    typical: float = field(records.real(), default=0.0)

    @property
    def count(self) -> int:
        """Ciphertexts: one per value of an image."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Return:
    """A value that the server sends back: integers to be multiplied by `unit`, and by 2^-s where the client chose s.

    value, shape: as in `EncryptedInput`. rows, places, tile: the order of the stream, see `order`. last: the rows are
    the last dimension of `shape`, else they are the first. size: components of a ciphertext; primes: how many are left.
    gains, one_gain: the integers are at most sum of gains[i] |integer of send i| + one_gain |integer of the one|.
    noise: predicted error of the integers, a deviation. relative: what comes on top, as a part of a typical value.
    """

    value: int = field(_STEP)
    shape: tuple[int, ...] = field(_SHAPE)
    rows: int = field(records.whole(1))
    places: int = field(records.whole(1))
    tile: int = field(records.whole(1))
    last: bool = field(records.flag())
    size: int = field(records.whole(2, MOST_PRIMES))
    primes: int = field(records.whole(1, MOST_PRIMES))
    unit: Fraction = field(_UNIT)
    gains: tuple[int, ...] = field(records.many(records.whole(0, MOST_GAIN - 1), MOST_STEPS))
    one_gain: int = field(records.whole(0, MOST_GAIN - 1))
    noise: float = field(records.real())
    relative: float = field(records.real())

    @property
    def count(self) -> int:
        """Ciphertexts: one per value of an image."""
        return self.rows * self.places

    def room(self, parameters: Parameters) -> float:
        """The bound that integers must stay below, before the server drops primes: half the modulus.

        Dropping q leaves x/q and a rounding of at most (1 + ||s||_1)/2 <= (1 + N)/2, which takes q (1 + N)/2 of it.
        """
        whole, left = parameters.modulus(len(parameters.primes)), parameters.modulus(self.primes)
        rounding = 0 if whole == left else (whole // left) * (1 + parameters.degree)
        return (whole - rounding) / 2 * (1 - 2.0**-40)  # of float64's roundings in what it is compared with

    def order(self) -> Tensor:
        """Where the ciphertexts of the stream belong: int64 (count,) of positions in (rows, places).

        Tiles of `tile` places one after the other, within a tile row after row.
        """
        grid = torch.arange(self.count).view(self.rows, self.places)
        whole = self.places // self.tile * self.tile
        tiles = grid[:, :whole].unflatten(1, (-1, self.tile)).transpose(0, 1)
        return torch.cat([tiles.reshape(-1), grid[:, whole:].reshape(-1)])


@dataclass(frozen=True)
class Round:
    """A turn: what the client computes and sends, and what it gets back.

    steps: numbers of the steps the client runs first. scale: log2 of the input scale; None: the client's choice, for
    each image. usual: the scale that values of the expected size get. After the sends comes one ciphertext more: of
    the constant 1, at each image's scale, where `one`; of zero where `zero`, with which the server masks its answer.
    """

    steps: tuple[int, ...] = field(records.many(_STEP, MOST_STEPS))
    sends: tuple[EncryptedInput, ...] = field(records.many(records.record(EncryptedInput), MOST_STEPS))
    returns: tuple[Return, ...] = field(records.many(records.record(Return), MOST_STEPS))
    one: bool = field(records.flag())
    scale: int | None = field(records.maybe(_SCALE))
    usual: int = field(_SCALE)

    @property
    def zero(self) -> bool:
        """Whether the server masks: where the client does not see every layer's result anyway."""
        return self.scale is not None

    @property
    def sent(self) -> int:
        """Ciphertexts up."""
        return sum(send.count for send in self.sends) + (self.one or self.zero)

    @property
    def returned(self) -> int:
        """Ciphertexts down."""
        return sum(back.count for back in self.returns)

    def up(self) -> Iterator[tuple[int, int]]:
        """First and last + 1 ciphertext of every slice of the client's stream."""
        yield from _cut(0, self.sent)

    def down(self) -> Iterator[tuple[int, int, Return]]:
        """First and last + 1 ciphertext of every slice of the server's stream, and the tensor it belongs to.

        No slice spans two tiles.
        """
        first = 0
        for back in self.returns:
            for place in range(0, back.places, back.tile):
                count = back.rows * min(back.tile, back.places - place)
                yield from ((start, stop, back) for start, stop in _cut(first, first + count))
                first += count

    def fit(self, peaks: Tensor, parameters: Parameters, packing: str) -> Tensor:
        """The largest input scale of every image for which no integer can leave its modulus: log2, int64 (images,).

        peaks: (sends, images), the largest absolute values. -1 where there is no such scale. Proven, not
        likely: |e| <= 21, roundings of at most 1/2, and every sum bounded by the gains: with g_i the gains, m the
        packing's largest coefficient and g that of the one, an integer is at most

            2^s m (sum_i g_i peak_i + g) + 21.5 (sum_i g_i + g).

        A slot's value has this bound whatever the others hold, and a coefficient is at most m times the largest slot.
        A message with its error stays below 2^30, for the kernel's int32.
        """
        peaks, errors, most = peaks.double().abs(), NOISE + 0.5, packings.peak(packing)
        largest = torch.cat([peaks, peaks.new_full((1, peaks.shape[1]), float(self.one))]).amax(0)
        bounds = [MOST_MESSAGE / (most * largest)]
        for back in self.returns:
            gains = torch.tensor([float(gain) for gain in back.gains], dtype=peaks.dtype).to(peaks.device)
            one = float(back.one_gain)
            bounds.append((back.room(parameters) - errors * (gains.sum() + one)) / (most * (gains @ peaks + one)))
        bound = torch.stack(bounds).amin(0).nan_to_num(0.0, posinf=2.0**MOST_SCALE).clamp(0.5, 2.0**MOST_SCALE)
        return torch.frexp(bound).exponent.long() - 1  # 2^(exponent - 1) <= bound


@dataclass(frozen=True, eq=False)
class Upload:
    """Ciphertexts first .. first + n - 1 of a turn's stream: `seed` makes the components c1, `body` is c0.

    seed: 16 bytes, fresh for every slice. body: int32 (n, L, N), coefficients, or transformed where public.form is
    "ntt".
    """

    turn: int
    first: int
    seed: bytes
    body: Tensor


@dataclass(frozen=True, eq=False)
class Download:
    """Ciphertexts first .. first + n - 1 of a turn's stream back: `body` is int32 (n, size, primes, N)."""

    turn: int
    first: int
    body: Tensor


def check_body(body: Any, shape: tuple[int, ...], where: str) -> None:
    """InputError unless the residues of a slice, from whoever moves slices, are an int32 tensor of this shape."""
    if not isinstance(body, Tensor) or body.dtype != torch.int32 or tuple(body.shape) != shape:
        got = f"{body.dtype} {tuple(body.shape)}" if isinstance(body, Tensor) else type(body).__name__
        raise InputError(f"expected torch.int32 {shape}, got {got}", where=where, hint="see he/runtime/rounds.py")


def _cut(first: int, end: int) -> Iterator[tuple[int, int]]:
    for start in range(first, end, SLICE):
        yield start, min(start + SLICE, end)
