"""Machine operations, by field: each has a definition in plain torch, and faster implementations.

    shares        a party's work on ring elements mod 2^64: bits, words, masked openings, polynomials, exact products
    simulation    the comparison of a simulation
    ciphertexts   the ring of CKKS and BFV: transforms, encryption, linear layers, products, sampling
    lookups       distributed point functions, and the rows that their bits select
    garble        garbled circuits of a ReLU on shares of few bits
    cot           correlated oblivious transfers, extended from trees of leaves
    streams       key streams of ChaCha20 and AES-128, and tensors that are parts of one

These modules declare the operations, with description and checks. `reference/` has their definitions in plain torch,
`cpu/` implementations in C++, `gpu/` in Triton; only `registry` chooses among them. `checks` has checks of arguments,
`devices` finds devices, and makes large tensors reuse freed memory.
"""

from hummingbird.kernels.cpu import library
from hummingbird.kernels.shares import (
    Factor,
    compare_opened,
    conv2d,
    deal_masks,
    deal_polynomials,
    evaluate_opened,
    from_bits,
    from_planes,
    lift,
    lookup,
    mask_values,
    mask_words,
    matmul,
    move_polynomials,
    open_words,
    pack_bits,
    pack_words,
    rescale,
    select,
    selected_sums,
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
    "deal_polynomials",
    "evaluate_opened",
    "from_bits",
    "from_planes",
    "lift",
    "lookup",
    "mask_values",
    "mask_words",
    "matmul",
    "move_polynomials",
    "open_words",
    "pack_bits",
    "pack_words",
    "rescale",
    "select",
    "selected_sums",
    "step_table",
    "to_planes",
    "twin_relu",
    "unpack_words",
]


def active() -> str:
    """Return the name of the implementation that computes on this machine's CPU.

    It is "avx512", "avx2" or "portable", instruction sets of the C++ library; or "torch", which stands for plain torch.
    """
    return library.isa() if library.available() else "torch"
