"""The messages of a turn: tensors up and down, their order in the two streams, and the client's choice of a scale.

A tensor is sent in slices, `Upload` and `Download`: at most 256 ciphertexts (`SLICE`) each, with their position in the
turn's stream. These slices are not the slices of a batch that the glossary describes.
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
MOST_SCALE = 60  # scales are 2^-60 .. 2^60
MOST_STEPS = 1 << 12  # of a net; the largest in the benchmarks has some 200
MOST_DIMENSIONS = 16
MOST_PRIMES = 65
MOST_GAIN = 1 << 1000  # float64 has room for it
MOST_MESSAGE = ((1 << 30) - NOISE - 0.5) * (1 - 2.0**-40)  # bound on an encoded value before rounding


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
    """A value that the client encrypts and sends in a turn.

    value: number of its step. shape: for one image. typical: the root mean square that the plan assumes; 0 if the
    client chooses a scale for each image.
    """

    value: int = field(_STEP)
    shape: tuple[int, ...] = field(_SHAPE)
    typical: float = field(records.real(), default=0.0)

    @property
    def count(self) -> int:
        """Number of ciphertexts that the client sends for this value: one for each position in a tensor of `shape`.

        A ciphertext has the values of all images at this position, one in each slot.
        """
        return math.prod(self.shape)


@dataclass(frozen=True)
class Return:
    """A value that the server returns in a turn. Its numbers are integers times `unit`.

    If the client chooses the scale 2^s of its inputs itself, they are the integers times `unit` times 2^-s.
    value: number of its step. shape: for one image.
    rows, places: the ciphertexts are an array (rows, places). tile: how many places are sent together (`order`).
    last: whether the last dimension of `shape` counts the rows; otherwise the first does.
    size: components of a ciphertext.
    primes: number of primes left in its modulus.
    gains, one_gain: how much the server enlarges integers, at most: a returned integer is at most the sum over i of
    gains[i] times the largest integer of sent value i, plus one_gain times the integer of the encrypted constant 1.
    noise: predicted standard deviation of the integers' errors.
    relative: further error, relative to a typical value.
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
        """Number of ciphertexts that the server returns for this value: one for each position in a tensor of `shape`.

        A ciphertext has the values of all images at this position, one in each slot.
        """
        return self.rows * self.places

    def room(self, parameters: Parameters) -> float:
        """Return how large |integer| may be, at most, before the server's last divisions, so that the client decrypts
        it correctly.

        Before the server sends a ciphertext of this value, it may divide it by some primes. The bound is half of the
        modulus of all primes, less what the roundings of these divisions cost. Dividing x by a prime q leaves x/q and a
        rounding error of at most (1 + N)/2, since the N coefficients of the secret are -1, 0 or 1; that costs
        q (1 + N)/2.
        """
        whole, left = parameters.modulus(len(parameters.primes)), parameters.modulus(self.primes)
        rounding = 0 if whole == left else (whole // left) * (1 + parameters.degree)
        return (whole - rounding) / 2 * (1 - 2.0**-40)  # for float64 roundings in the value it is compared with

    def order(self) -> Tensor:
        """Return the order in which the ciphertexts of this value are sent: int64 (count,), their numbers in an array.

        The array has `rows` rows and `places` columns. It is sent in tiles of `tile` columns, one tile after another,
        and each tile row by row.
        """
        grid = torch.arange(self.count).view(self.rows, self.places)
        whole = self.places // self.tile * self.tile
        tiles = grid[:, :whole].unflatten(1, (-1, self.tile)).transpose(0, 1)
        return torch.cat([tiles.reshape(-1), grid[:, whole:].reshape(-1)])


@dataclass(frozen=True)
class Round:
    """A turn: the client computes some steps, sends encrypted values, and receives values from the server.

    steps: numbers of the steps that the client runs first. sends: the values that it then encrypts.
    returns: the values that the server sends back.
    one: whether the client sends one more ciphertext, of the constant 1 at each image's scale; layers with a bias need
    it.
    scale: log2 of the scale of the encrypted values; None if the client chooses one for each image.
    usual: log2 of the scale that fits values of the size that the plan expects.
    """

    steps: tuple[int, ...] = field(records.many(_STEP, MOST_STEPS))
    sends: tuple[EncryptedInput, ...] = field(records.many(records.record(EncryptedInput), MOST_STEPS))
    returns: tuple[Return, ...] = field(records.many(records.record(Return), MOST_STEPS))
    one: bool = field(records.flag())
    scale: int | None = field(records.maybe(_SCALE))
    usual: int = field(_SCALE)

    @property
    def zero(self) -> bool:
        """Whether the client sends an encrypted zero in this turn, with which the server masks its answer.

        It does in polynomial mode. In client-aided mode answers are not masked.
        """
        return self.scale is not None

    @property
    def sent(self) -> int:
        """Number of ciphertexts that the client sends in this turn."""
        return sum(send.count for send in self.sends) + (self.one or self.zero)

    @property
    def returned(self) -> int:
        """Number of ciphertexts that the server sends in this turn."""
        return sum(back.count for back in self.returns)

    def up(self) -> Iterator[tuple[int, int]]:
        """Yield a range of ciphertexts for each `Upload` of the client: its first ciphertext, and its last + 1.

        The ciphertexts that the client sends in this turn are numbered from 0. A range has at most 256 of them.
        """
        yield from _cut(0, self.sent)

    def down(self) -> Iterator[tuple[int, int, Return]]:
        """Yield a range of ciphertexts for each `Download` of the server, with the returned value that it belongs to.

        A range is its first ciphertext, and its last + 1. The ciphertexts that the server sends in this turn are
        numbered from 0. A range has at most 256 of them, all from one tile.
        """
        first = 0
        for back in self.returns:
            for place in range(0, back.places, back.tile):
                count = back.rows * min(back.tile, back.places - place)
                yield from ((start, stop, back) for start, stop in _cut(first, first + count))
                first += count

    def fit(self, peaks: Tensor, parameters: Parameters, packing: str) -> Tensor:
        """Choose for each image the largest input scale at which no integer can overflow: log2 of it, int64 (images,).

        peaks: (sends, images), the largest absolute value of each sent value for each image. packing: how values are
        encoded in polynomials. The result is -1 if no scale of 1 or more fits.
        The bound is proven: errors of encryption are at most 21, roundings at most 1/2, and the gains of `Return` bound
        every sum. With the scale 2^s, the gains g_i, the gain g of the constant 1, and the packing's largest
        coefficient m, an integer is at most

            2^s m (sum_i g_i peak_i + g) + 21.5 (sum_i g_i + g).

        One image's values do not affect the bound of another one: a coefficient is at most m times the largest value. A
        message with its error stays below 2^30, because the kernel uses int32.
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
    """At most 256 of the ciphertexts (component 0, component 1) that the client sends in a turn, in their order.

    turn: number of the turn. first: number of the first of these ciphertexts, counted from the turn's beginning.
    seed: 16 bytes, new for every `Upload`, from which the server expands all components 1.
    body: all components 0, int32 (n, primes, N): NTT values if the net's form is "ntt", else coefficients.
    """

    turn: int
    first: int
    seed: bytes
    body: Tensor


@dataclass(frozen=True, eq=False)
class Download:
    """At most 256 of the ciphertexts that the server sends in a turn, in their order.

    turn: number of the turn. first: number of the first of these ciphertexts, counted from the turn's beginning.
    body: the ciphertexts, int32 (n, components, primes, N).
    """

    turn: int
    first: int
    body: Tensor


def check_body(body: Any, shape: tuple[int, ...], where: str) -> None:
    """Raise InputError unless `body`, that of an `Upload` or a `Download`, is an int32 tensor of this shape.

    where: the place for the error.
    """
    if not isinstance(body, Tensor) or body.dtype != torch.int32 or tuple(body.shape) != shape:
        got = f"{body.dtype} {tuple(body.shape)}" if isinstance(body, Tensor) else type(body).__name__
        raise InputError(f"expected torch.int32 {shape}, got {got}", where=where, hint="see he/runtime/rounds.py")


def _cut(first: int, end: int) -> Iterator[tuple[int, int]]:
    for start in range(first, end, SLICE):
        yield start, min(start + SLICE, end)
