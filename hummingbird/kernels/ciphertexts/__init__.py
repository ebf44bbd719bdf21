"""Operations on RNS ciphertexts of CKKS and BFV: the ring and its transform, encryption, arithmetic, sampling.

A ciphertext is an int32 tensor (size, L, N): `size` ring elements, residues modulo L primes, N coefficients or values.
"""

from hummingbird.kernels.ciphertexts.arithmetic import (
    EXACT,
    accumulate,
    add,
    encode,
    linear,
    multiply,
    shift,
    square,
    switch,
    taps,
)
from hummingbird.kernels.ciphertexts.polynomials import (
    ETA,
    compose,
    encrypt,
    encrypt_ntt,
    noise,
    pack,
    packed_bytes,
    phase,
    ternary,
    uniform,
    unpack,
    wide,
)
from hummingbird.kernels.ciphertexts.ring import DEGREES, Ring, largest_primes

__all__ = [
    "DEGREES",
    "ETA",
    "EXACT",
    "Ring",
    "accumulate",
    "add",
    "compose",
    "encode",
    "encrypt",
    "encrypt_ntt",
    "largest_primes",
    "linear",
    "multiply",
    "noise",
    "pack",
    "packed_bytes",
    "phase",
    "shift",
    "square",
    "switch",
    "taps",
    "ternary",
    "uniform",
    "unpack",
    "wide",
]
