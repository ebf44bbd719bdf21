"""The two pseudo-random functions of the trees of distributed point functions, defined in plain torch.

H(j, s) is block j, 16 bytes, of a node's seed s (128 bits, the lowest one 0). Blocks 0 and 1 are the node's children,
blocks 2 to 9 the 1024 bits of a leaf.

AES: H(j, s) = AES-128_k(s ^ 2j) ^ s ^ 2j, Matyas-Meyer-Oseas, with a fresh public key k for each pair of keys, so that
an attack on many pairs is no easier than on one (Guo, Katz, Wang, Weng and Yu, "Better concrete security for half-gates
garbling (in the multi-instance setting)", CRYPTO 2020; Guo, Katz, Wang and Yu, S&P 2020). 2j does not change the lowest
bit.
CHACHA12: ChaCha with 12 rounds (Bernstein, "ChaCha, a variant of Salsa20", 2008) and the 128-bit key s; the nonce is 12
public bytes, fresh for each pair of keys. The first half of ChaCha's block 0 is the children, blocks 1 and 2 the leaf.
"""

from __future__ import annotations

import struct

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from hummingbird.kernels.lookups.dpf import AES, BLOCK
from hummingbird.kernels.reference.streams import rounds

_CONSTANTS = struct.unpack("<4i", b"expand 16-byte k")


def children(prf: int, public: Tensor, seeds: Tensor) -> Tensor:
    """Compute the two children, H(0) and H(1), of every seed: uint8 (B, n, 32).

    prf: the number of the PRF in a key's header. public: the keys' public part, uint8 (B, 16). seeds: uint8 (B, n, 16).
    H: the PRF (module head).
    """
    return _aes(public, seeds, 0, 2) if prf == AES else _chacha12(public, seeds, 0)[:, :, : 2 * BLOCK]


def leaf(prf: int, public: Tensor, seeds: Tensor) -> Tensor:
    """Compute the leaf, H(2) .. H(9), of every seed: uint8 (B, n, 128). Arguments as in `children`."""
    if prf == AES:
        return _aes(public, seeds, 2, 8)
    return torch.cat([_chacha12(public, seeds, counter) for counter in (1, 2)], dim=2)


def _aes(public: Tensor, seeds: Tensor, first: int, count: int) -> Tensor:
    x = seeds[:, :, None, :].repeat(1, 1, count, 1)
    x[..., 0] ^= torch.arange(first, first + count, dtype=torch.uint8) << 1
    y = torch.empty_like(x)
    for key, inputs, outputs in zip(public.numpy(), x.numpy(), y.numpy(), strict=True):
        encrypt = Cipher(algorithms.AES(key.tobytes()), modes.ECB()).encryptor()
        outputs.reshape(-1)[:] = torch.frombuffer(bytearray(encrypt.update(inputs.tobytes())), dtype=torch.uint8)
    return (x ^ y).flatten(2)


def _chacha12(public: Tensor, seeds: Tensor, counter: int) -> Tensor:
    key = _words(seeds).unbind(2)  # four words, int32 (B, n) each
    nonce = _words(public[:, :12])
    state = [torch.full_like(key[0], word) for word in _CONSTANTS] + [*key, *key]
    state += [torch.full_like(key[0], counter), *(word[:, None].expand_as(key[0]) for word in nonce.unbind(1))]
    return torch.stack(rounds(state, 12), dim=2).view(torch.uint8)


def _words(octets: Tensor) -> Tensor:
    """Copy bytes, and return the copy as int32 words.

    A view would not do: a batch of one may have strides that are no multiple of a word.
    """
    return octets.clone(memory_format=torch.contiguous_format).view(torch.int32)
