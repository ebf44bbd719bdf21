"""Every Triton kernel compiles down to machine code for the GPUs it is meant for, without one.

The interpreter takes what the compiler does not: types that do not fit, constants that are none, wrong shapes.
"""

from __future__ import annotations

import pytest

from tests.support.triton import Kernel, Usage, compiled

DRAWN, PACKED = 1, 2
FORMS, WIDTHS = (DRAWN, *[PACKED] * 4), (32, 16, 36, 16, 36)  # at party 0
PAIRS = ("mask", "carry", "bit", "wrap", "product")
LIFT = {"opened": "*i64", "choice": "*u8", "y": "*i64", "z": "*i64", "n": "i32"}
LIFT |= {name: "*i32" for name in PAIRS} | {f"{name}_first": "i32" for name in PAIRS}
CORRECTED = LIFT | {name: "*u8" for name in PAIRS[1:]}
OWN, OWN_FORMS = CORRECTED | {"mask": "*i64", "carry": "*i64"}, (0, 0, *[PACKED] * 3)  # of whole shares
COMPARE = {"frames": ("*u8", "*u8"), "table": "*i32", "choice_bits": "*i32", "wrap_bits": "*i32"}
COMPARE |= {
    "table_first": "i32",
    "choice_first": "i32",
    "wrap_first": "i32",
    "opened": "*i64",
    "out": "*u8",
    "n": "i32",
}
DEAL = {"keys": "*i32", "parties": "i32", "firsts": ("i32",) * 9, "outs": ("*i16",) * 4 + ("*i32",) * 2, "n": "i32"}
MASK = {"share": "*i64", "mask": "*i32", "first": "i32", "out": "*i16", "n": "i32"}
NODES = {"nodes": "*i32", "stride": "i32", "n": "i32", "total": "i32", "public": "*i32", "out": "*i32"}
SUMS = {name: "i32" for name in ("bits_stride", "rows", "queries", "columns", "piece")}
SUMS |= {"bits": "*u8", "table": "*i8", "out": "*i32"}
CUT = {"x": "*i64", "out": "*i8", "place_step": "i32", "blocks": "i32", "size": "i32"}
CUT |= {name: "i32" for name in ("channels", "plane", "channel_step")}
PRODUCT: dict[str, str] = {"x": "*i8", "w": "*i8", "out": "*i64"}
PRODUCT |= {name: "i32" for name in ("x_size", "w_size", "places", "length", "out_width", "plane", "step_h", "step_w")}
PRODUCT |= {name: "i32" for name in ("channels", "inputs", "outputs", "runs", "run", "across", "down_step")}
PRODUCT |= {"across_step": "i32"}
TILE = {"PLACES": 64, "OUTPUTS": 64, "TERMS": 64}
SMALL, WIDE = {"LANES": 128}, {"WIDTHS": (32, 32, 64, 32, 64)}
WINDOW = {"K": 20, "M": 12, "BITS_FORM": DRAWN, **SMALL}
LIFTED = {"K": 20, "WHOLE": False, **SMALL}
DEALT = {"WHOLE": False, **SMALL}

KERNELS = [
    Kernel("chacha20:_blocks", {"key": "*i32", "first": "i32", "blocks": "i32", "out": "*i32"}, {"size": 128}),
    Kernel("dpf:_children", NODES | {"corrections": "*i32", "correction_stride": "i32"}, {"size": 128}),
    Kernel("dpf:_leaves", NODES | {"finals": "*i32"}, {"size": 128}),
    Kernel("rows:_sums", SUMS, {"Q": 64, "C": 128, "R": 64}, 8),
    Kernel("opening:_mask_words", MASK, {"SHIFT": 16, "WIDTH": 20, "FORM": DRAWN, "MASK_WIDTH": 32, **SMALL}),
    Kernel("opening:_open_words", {"frames": ("*u8",) * 3, "out": "*i64", "n": "i32"}, {"WIDTH": 36, **SMALL}),
    Kernel("opening:_compare_opened", COMPARE, {"FIRST": False, "TABLE_FORM": DRAWN, **WINDOW}),
    Kernel("opening:_lift", LIFT, {"FIRST": False, "FORMS": (DRAWN,) * 5, **LIFTED, **WIDE}),
    Kernel("dealing:_deal_masks", DEAL, {"K": 12, "RING": 16, "SIZES": (3, 6), "STARTS": (3, 6), **DEALT}),
    Kernel("digits:_cut", CUT, {"DIGITS": 5, "PLACES": 32, "CHANNELS": 32}),
    Kernel("digits:_multiply", PRODUCT, {"DIGITS": 5, "WEIGHT_DIGITS": 3, **TILE}, 8),
]
# Other forms and widths of the same.
MORE = [
    Kernel("opening:_mask_words", MASK, {"SHIFT": 0, "WIDTH": 64, "FORM": DRAWN, "MASK_WIDTH": 64, **SMALL}),
    Kernel("opening:_compare_opened", COMPARE, {"FIRST": False, "TABLE_FORM": DRAWN, **WINDOW, "M": 17}),
    Kernel("opening:_compare_opened", COMPARE | {"table": "*u8"}, {"FIRST": True, "TABLE_FORM": 0, **WINDOW}),
    Kernel("opening:_lift", CORRECTED, {"FIRST": True, "FORMS": FORMS, "WIDTHS": (32, 16, 36, 16, 36), **LIFTED}),
    Kernel(
        "opening:_lift",
        OWN,
        {"FIRST": True, "FORMS": OWN_FORMS, "WIDTHS": (64, 64, 64, 44, 64), **LIFTED, "WHOLE": True},
    ),
    Kernel("dealing:_deal_masks", DEAL, {"K": 20, "RING": 36, "SIZES": (3, 8), "STARTS": (9, 12), **DEALT}),
    Kernel(
        "dealing:_deal_masks", DEAL, {"K": 20, "RING": 64, "SIZES": (4, 4), "STARTS": (12, 16), **DEALT, "WHOLE": True}
    ),
    Kernel("digits:_multiply", PRODUCT, {"DIGITS": 8, "WEIGHT_DIGITS": 8, **TILE}, 8),
]
WRONG = Kernel("opening:_lift", LIFT, {"FIRST": False, "FORMS": (DRAWN,) * 4, **LIFTED, **WIDE})


def check(kernels: list[Kernel], capability: int) -> None:
    """A program's shared memory is at most 227 KiB (capability 9.0), 163 KiB (8.0). One that lacks a form is found."""
    *usages, error = compiled([*kernels, WRONG], capability)
    for kernel, usage in zip(kernels, usages, strict=True):
        print(f"{kernel.function} for {capability}: {usage}")
        assert isinstance(usage, Usage), f"{kernel.function}: {usage}"
        assert usage.shared <= (227 if capability == 90 else 163) * 1024
    assert isinstance(error, str) and ("IndexError" in error or "CompilationError" in error)


def test_every_kernel_compiles() -> None:
    check(KERNELS, 90)


@pytest.mark.slow
def test_every_form_compiles_for_older_cards_too() -> None:
    check(MORE, 90)
    check(KERNELS + MORE, 80)
