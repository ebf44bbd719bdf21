"""Ciphertexts as they are sent, and their bytes: fresh ones and public keys to the server, replies to the client.

Fresh ciphertexts are sent as one 16-byte seed of their uniform parts a, and c_0 of each in the transformed domain:
26-bit residues modulo four primes, 53,248 bytes. A reply has two primes left. It consists of c_1, 26,624 bytes, and the
coefficients of c_0 that the client reads, 6.5 bytes each: coefficient i of the phase c_0 + c_1 s depends on coefficient
i of c_0 only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hummingbird import prg
from hummingbird.cost import bfv_fresh, bfv_reply
from hummingbird.errors import InputError
from hummingbird.he.bfv.scheme import DEGREE, REST, RING
from hummingbird.he.scheme.ckks import expand
from hummingbird.kernels.ciphertexts import pack, packed_bytes, unpack
from hummingbird.kernels.ciphertexts.ring import BITS
from hummingbird.kernels.shares import pack_words, unpack_words

_PRIMES, _LEFT = len(RING.primes), len(REST.primes)
_SECOND = packed_bytes((_LEFT, DEGREE))  # c_1 of a reply


@dataclass(frozen=True)
class Fresh:
    """New ciphertexts (c_0, a) as the owner of the secret sends them: all c_0, and one seed in place of all a.

    seed: 16 bytes, from which `parts` expands the random polynomials a.
    body: the polynomials c_0 of n ciphertexts, int32 (n, 4, N): modulo four primes, transformed (NTT).
    """

    seed: bytes
    body: Tensor

    def parts(self) -> Tensor:
        """Return both polynomials, c_0 and a, of each of the n ciphertexts: int32 (n, 2, 4, N), 128 KiB for each
        ciphertext.

        They are modulo four primes, and transformed (NTT). Each a is expanded from the seed.
        """
        return torch.stack([self.body, expand(RING, self.seed, len(self.body))], 1)

    def to_bytes(self) -> bytes:
        """Return the ciphertexts as bytes: the seed, 16 bytes, then all residues, 53,248 bytes for each ciphertext."""
        return self.seed + pack(RING, self.body).numpy().tobytes()

    @staticmethod
    def from_bytes(data: bytes, count: int) -> Fresh:
        """Return the `count` ciphertexts that `to_bytes` has written to `data`.

        Raises InputError for another length, or for a value that is not below its prime.
        """
        check_length(data, bfv_fresh(count), "he.bfv.Fresh.from_bytes(data)")
        body = unpack(RING, as_tensor(data, prg.SEED_BYTES), (count, _PRIMES, DEGREE))
        return Fresh(bytes(data[: prg.SEED_BYTES]), body)


@dataclass(frozen=True)
class PublicKey:
    """A public key (b, a): a ciphertext of 0 under the secret s, with which a server encrypts without knowing s.

    b + a s is a small error.
    """

    sent: Fresh

    @cached_property
    def parts(self) -> Tensor:
        """The key's two polynomials b and a, modulo four primes and transformed (NTT): int32 (2, 4, N)."""
        return self.sent.parts()[0]

    def to_bytes(self) -> bytes:
        """Return the key as 53,264 bytes, which `from_bytes` reads."""
        return self.sent.to_bytes()

    @staticmethod
    def from_bytes(data: bytes) -> PublicKey:
        """Read a key from 53,264 bytes, as `to_bytes` writes them.

        Raises InputError for another length, or for a value that is not below its prime.
        """
        return PublicKey(Fresh.from_bytes(data, 1))


@dataclass(frozen=True)
class Reply:
    """A server's answer to a client: n ciphertexts (c_0, c_1), reduced to what the client needs to decrypt the outputs.

    A coefficient of c_0 is used if it holds an output; only used coefficients are kept.
    first: the used coefficients of all c_0, int32 (2, values), modulo each of two primes.
    second: all c_1, int32 (n, 2, N): N coefficients modulo each of two primes.
    places: int64 (values,), the positions of the used coefficients: coefficient i of c_0 number p is at p * N + i. Both
    sides know them.
    """

    first: Tensor
    second: Tensor
    places: Tensor

    @staticmethod
    def of(parts: Tensor, used: Sequence[Tensor]) -> Reply:
        """Make a reply from n complete ciphertexts: keep all of each c_1, and only the used coefficients of each c_0.

        parts: the ciphertexts (c_0, c_1), int32 (n, 2, 2, N): coefficients modulo each of two primes.
        used: for each ciphertext the positions of the coefficients to send, int64 (values,).
        Raises InputError if `used` has another length than n, or a position is out of range.
        """
        places = places_of(used, len(parts))
        first = parts[:, 0].transpose(0, 1).flatten(1)
        return Reply(first[:, places], parts[:, 1].contiguous(), places)

    def parts(self) -> Tensor:
        """Return the n ciphertexts (c_0, c_1), int32 (n, 2, 2, N), with coefficients modulo each of two primes.

        Coefficients of c_0 that were not sent are 0.
        """
        first = torch.zeros(_LEFT, len(self.second) * DEGREE, dtype=torch.int32)
        first[:, self.places] = self.first
        return torch.stack([first.view(_LEFT, -1, DEGREE).transpose(0, 1), self.second], 1)

    def to_bytes(self) -> bytes:
        """Return the reply as bytes: all c_1, 26,624 bytes each, then the used coefficients of c_0.

        A used coefficient takes 26 bits for each of two primes, 6.5 bytes; all residues of the first prime come first.
        """
        moduli = torch.tensor(REST.primes)[:, None]
        words = torch.where(self.first < 0, self.first + moduli, self.first).flatten()
        packed = pack(REST, self.second), pack_words(words.long(), BITS)
        return b"".join(part.numpy().tobytes() for part in packed)

    @staticmethod
    def from_bytes(data: bytes, used: Sequence[Tensor]) -> Reply:
        """Return the reply that `to_bytes` has written to `data`.

        used: for each polynomial the positions of its used coefficients, int64 (values,). Raises InputError for another
        length, or a value not below its prime.
        """
        where, count = "he.bfv.Reply.from_bytes(data)", len(used)
        values = sum(len(places) for places in used)
        check_length(data, bfv_reply(count, values), where)
        second = unpack(REST, as_tensor(data, 0, count * _SECOND), (count, _LEFT, DEGREE))
        words = unpack_words(as_tensor(data, count * _SECOND), _LEFT * values, BITS).view(_LEFT, values)
        moduli = torch.tensor(REST.primes)[:, None]
        if bool((words >= moduli).any()):
            hint = "the data is damaged, or of another layer"
            raise InputError("a value is not below its prime", where=where, hint=hint)
        return Reply(torch.where(words > moduli // 2, words - moduli, words).int(), second, places_of(used, count))


def places_of(used: Sequence[Tensor], count: int) -> Tensor:
    """Return where the used coefficients of `count` polynomials are, counted through all polynomials: one int64 tensor.

    Coefficient i of polynomial p has the position p * N + i. used: for each polynomial the positions of its used
    coefficients. Raises InputError unless each is int64 (values,) in 0 .. N-1.
    """
    where, hint = "he.bfv.Reply(used)", f"int64 (values,) for each polynomial, each from 0 to {DEGREE - 1}"
    if len(used) != count:
        raise InputError(f"{len(used)} lists of coefficients, {count} polynomials", where=where, hint=hint)
    if not all(isinstance(places, Tensor) and places.dtype == torch.int64 and places.dim() == 1 for places in used):
        raise InputError("coefficients that are no int64 (values,)", where=where, hint=hint)
    columns = torch.cat([torch.empty(0, dtype=torch.int64), *used])
    if columns.numel() and not 0 <= int(columns.min()) <= int(columns.max()) < DEGREE:
        what = f"coefficients from {int(columns.min())} to {int(columns.max())}"
        raise InputError(what, where=where, hint=hint)
    rows = torch.repeat_interleave(torch.tensor([len(places) for places in used], dtype=torch.int64))
    return rows * DEGREE + columns


def check_length(data: bytes, wanted: int, where: str) -> None:
    """Raise InputError unless there are exactly `wanted` bytes. where: the place that the error names."""
    if len(data) != wanted:
        hint = "the data is cut short, or of another layer"
        raise InputError(f"expected {wanted} bytes, got {len(data)}", where=where, hint=hint)


def as_tensor(data: bytes, start: int, stop: int | None = None) -> Tensor:
    """Return a copy of data[start:stop] as a tensor, uint8 (n,)."""
    piece = bytearray(data[start:stop])
    return torch.frombuffer(piece, dtype=torch.uint8) if piece else torch.empty(0, dtype=torch.uint8)
