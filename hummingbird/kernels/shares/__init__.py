"""Operations on shares, ring elements mod 2^64: bits and words, masked openings, tables of polynomials, exact products.

All of them are local and send nothing. They raise InputError for a wrong type, shape, device or range.
"""

from hummingbird.kernels.shares.opening import (
    compare_opened,
    deal_masks,
    lift,
    lookup,
    mask_values,
    mask_words,
    open_words,
    rescale,
    select,
    step_table,
)
from hummingbird.kernels.shares.packing import from_bits, from_planes, pack_bits, pack_words, to_planes, unpack_words
from hummingbird.kernels.shares.polynomials import deal_polynomials, evaluate_opened, move_polynomials
from hummingbird.kernels.shares.products import Factor, conv2d, matmul, selected_sums

__all__ = [
    "Factor",
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
    "unpack_words",
]
