"""Operations on RNS ciphertexts of CKKS and BFV: the ring and its transform, encryption, arithmetic, sampling.

A ciphertext is an int32 tensor (size, L, N): `size` ring elements, residues modulo L primes, N coefficients or values.
"""

from hummingbird.kernels.ciphertexts.arithmetic import EXACT, add, linear, multiply, shift, square, switch
from hummingbird.kernels.ciphertexts.bfv import accumulate, encode
from hummingbird.kernels.ciphertexts.monomials import taps
from hummingbird.kernels.ciphertexts.polynomials import compose, encrypt, encrypt_ntt, pack, packed_bytes, phase, unpack
from hummingbird.kernels.ciphertexts.ring import DEGREES, Ring, largest_primes
from hummingbird.kernels.ciphertexts.sampling import ETA, noise, ternary, uniform, wide

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
