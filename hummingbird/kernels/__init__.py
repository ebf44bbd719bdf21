"""Machine operations, by field, each with a definition in plain torch and faster implementations behind one choice.

    shares        bits, words, masked openings and exact products of ring elements mod 2^64: what a party computes
    simulation    the comparison of a simulation
    ciphertexts   the ring of CKKS: transforms, encryption, linear layers, products, sampling
    lookups       distributed point functions, and the rows that their bits select
    garble        garbled circuits of a ReLU on shares of few bits
    cot           correlated oblivious transfers, extended from trees of leaves
    streams       key streams of ChaCha20 and AES-128: random bytes where the shares are

These modules declare: an operation's description and checks stand there, once. `reference/` defines in plain torch,
`cpu/` has C++, `gpu/` Triton; `registry` chooses, and nothing else does. `heap` makes large tensors reuse memory.
"""

from hummingbird.kernels.cpu import library
from hummingbird.kernels.shares import (
    Factor,
    compare_opened,
    conv2d,
    deal_masks,
    from_bits,
    lift,
    lookup,
    mask_values,
    mask_words,
    matmul,
    open_words,
    pack_bits,
    pack_words,
    rescale,
    select,
    step_table,
    to_planes,
    unpack_words,
)
from hummingbird.kernels.simulation import Cut, twin_relu

__all__ = [
    "Cut",
    "Factor",
    "active",
    "compare_opened",
    "conv2d",
    "deal_masks",
    "from_bits",
    "lift",
    "lookup",
    "mask_values",
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
    """Name what runs on this machine's CPU: "avx512", "avx2", "portable" (the C++ library), or "torch" (reference)."""
    return library.isa() if library.available() else "torch"
