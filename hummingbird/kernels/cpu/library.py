"""The shared library of the C++ kernels (csrc/*.cpp), loaded with ctypes.

The library is optional: without it, or with HUMMINGBIRD_KERNELS=torch in the environment, `available` returns False and
the torch reference runs. HUMMINGBIRD_KERNELS=PATH names another build, which then must load (`make test-sanitized`).
The library chooses the processor's widest vector instructions itself. It does not check arguments.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

from hummingbird.errors import EnvironmentProblem

ISAS = ("portable", "avx2", "avx512")
_ABI = 20  # the same number as hb_abi() in csrc/dispatch.cpp

_pointer, _long, _int, _word = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_uint64
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "hb_isa": (_int, []),
    "hb_set_isa": (_int, [_int]),
    "hb_to_planes": (None, [_pointer, _long, _int, _int, _pointer]),
    "hb_from_bits": (None, [_pointer, _long, _pointer]),
    "hb_from_planes": (None, [_pointer, _long, _int, _pointer]),
    "hb_pack_bits": (None, [_pointer, _long, _pointer]),
    "hb_select": (None, [_long, *[_pointer] * 7, _int, _int, _long, _pointer, _pointer]),
    "hb_rescale": (None, [_long, *[_pointer] * 3, _int, _int, _long, _pointer]),
    "hb_pack_words": (None, [_pointer, _long, _int, _pointer]),
    "hb_mask_words": (None, [_pointer, _pointer, _int, _long, _int, _int, _pointer]),
    "hb_open_words": (None, [_pointer, _int, _long, _int, _pointer]),
    "hb_step_table": (None, [_pointer, _long, _int, _pointer]),
    "hb_lookup": (None, [_pointer, _long, _pointer, _int, _int, _int, _pointer]),
    "hb_selected_sums": (None, [_pointer, _int, _pointer, _pointer, *[_long] * 4, _int, _pointer]),
    "hb_lift": (None, [_long, *[_pointer] * 4, *[_int] * 3, _pointer, _pointer]),
    "hb_aes": (_int, []),
    "hb_aes128": (None, [_pointer, _long, _long, _pointer]),
    "hb_deal_masks": (None, [_pointer, _int, _long, *[_int] * 4, *[_pointer] * 3, _int]),
    "hb_deal_polynomials": (None, [_pointer, _int, _pointer, _pointer, _long, *[_int] * 3, *[_pointer] * 3, _int]),
    "hb_evaluate_opened": (None, [_pointer, _long, *[_pointer] * 4, *[_int] * 5, _pointer]),
    "hb_conv2d": (None, [_pointer, _pointer, _pointer, _int, _pointer]),
    "hb_twin_relu": (None, [_pointer, _long, _int, _word, *[_int] * 3, _word, _word, _int, _int, _pointer, _pointer]),
    "hb_linear": (None, [*[_pointer] * 5, _int, _int, _pointer]),
    "hb_combine": (None, [_pointer, _pointer, *[_long] * 4, *[_pointer] * 3, _int, _pointer]),
    "hb_shift": (None, [*[_pointer] * 4, _int]),
    "hb_multiply": (None, [_pointer, _pointer, *[_long] * 5, _pointer, _int, _pointer]),
    "hb_taps": (None, [*[_pointer] * 7, _int, _pointer]),
    "hb_dpf_check": (_int, [_pointer, *[_long] * 4]),
    "hb_dpf_expand": (None, [_pointer, *[_long] * 4, _pointer]),
    "hb_dpf_generate": (None, [_pointer, _long, *[_pointer] * 5]),
    "hb_garble": (None, [*[_int] * 3, _pointer, _long, _long, *[_pointer] * 7, _int]),
    "hb_cot_receive": (None, [_pointer, _long, _long, _pointer, _pointer]),
    "hb_cot_send": (None, [_pointer, _pointer, _long, _long, _pointer, _pointer]),
    "hb_cot_choose": (None, [_pointer, _pointer, _pointer, _long, _pointer]),
    "hb_cot_pads": (None, [_pointer, _pointer, _pointer, _long, _int, _long, _pointer]),
    "hb_cot_tree_sums": (None, [*[_pointer] * 3, _long, _long, _int, _pointer]),
    "hb_cot_send_silent": (None, [*[_pointer] * 3, _long, _long, _int, _pointer, _int, _long, _pointer]),
    "hb_cot_receive_silent": (None, [*[_pointer] * 3, _long, _long, _int, _pointer, _int, _long, _pointer]),
    "hb_gfni": (_int, []),
    "hb_set_gfni": (_int, [_int]),
    "hb_rows_write": (None, [_pointer, *[_long] * 4, _pointer]),
    "hb_rows_update": (None, [_pointer, _long, _long, _pointer, _long, _pointer, _int]),
    "hb_rows_read": (None, [_pointer, *[_long] * 4, _pointer]),
    "hb_rows_gather": (None, [_pointer, _long, _long, _pointer, _long, _pointer]),
    "hb_rows_answer": (None, [_pointer, *[_long] * 3, _int, _pointer, *[_long] * 3, _int, _pointer]),
    "hb_keywords_hash": (None, [_pointer, _pointer, _long, _pointer, _int, _pointer]),
    "hb_keywords_place": (_long, [_pointer, _long, _long, _long, _pointer]),
    "hb_keywords_find": (None, [_pointer, _long, _long, _pointer, _int, _pointer]),
    "hb_transform": (None, [_pointer, _long, _long, _pointer, _long, _int, _int, _pointer]),
    "hb_encrypt": (None, [_pointer, _long, _long, *[_pointer] * 4, _long, _int, _int, _pointer]),
    "hb_phase": (None, [_pointer, _long, _long, _pointer, _long, _pointer, _long, _int, _int, _pointer]),
    "hb_encode": (None, [_pointer, _pointer, _long, _long, _long, _int, _word, *[_pointer] * 3]),
    "hb_accumulate": (None, [*[_pointer] * 7, _int, _pointer]),
    "hb_compose": (None, [_pointer, _long, _long, _long, _pointer, _pointer]),
    "hb_noise": (None, [_pointer, _long, _pointer]),
    "hb_wide": (None, [_pointer, _long, _int, _long, _long, _long, _pointer, _pointer]),
    "hb_uniform": (_long, [_pointer, _long, _long, _long, _pointer, _pointer]),
    "hb_pack": (None, [_pointer, _long, _long, _long, _pointer, _pointer]),
    "hb_unpack": (_int, [_pointer, _long, _long, _long, _pointer, _pointer]),
}


def _load() -> Any:
    wanted = os.environ.get("HUMMINGBIRD_KERNELS", "")
    if wanted == "torch":
        return None
    if wanted and not Path(wanted).is_file():
        raise EnvironmentProblem(
            f"HUMMINGBIRD_KERNELS is {wanted!r}, which is neither torch nor a file",
            where="kernels",
            hint="set it to torch for the plain torch kernels, or unset it for the fastest ones",
        )
    paths = [Path(__file__).with_name("_native" + suffix) for suffix in EXTENSION_SUFFIXES]
    path = Path(wanted).resolve() if wanted else next((path for path in paths if path.exists()), None)
    if path is None:
        return None
    try:
        library = ctypes.CDLL(str(path))
        if library.hb_abi() != _ABI:
            raise OSError(f"{path} was built from another version of the sources")
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        if wanted:
            hint = "build it again from these sources, or unset HUMMINGBIRD_KERNELS"
            raise EnvironmentProblem(f"not usable kernels: {error}", where=wanted, hint=hint) from None
        # The reference runs instead: slower, but correct.
        message = f"the native kernels are not used, install the package again: {error}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return None
    return library


_library = _load()


def available() -> bool:
    """Whether the shared library of the C++ kernels was found and loaded."""
    return _library is not None


def handle() -> Any:
    """Return the loaded shared library, whose functions are `hb_...` of csrc/; None if there is none."""
    return _library


def isa() -> str:
    """Return the instruction set that the C++ kernels use: "portable", "avx2" or "avx512"."""
    return ISAS[_library.hb_isa()]


def set_isa(name: str) -> bool:
    """Choose the instruction set that the C++ kernels use in this process from now on.

    name: "portable", "avx2" or "avx512". Returns False, and changes nothing, if the processor lacks it.
    """
    return _library.hb_set_isa(ISAS.index(name)) == 0


def gfni() -> bool:
    """Return whether the C++ kernels for AVX2 and AVX-512 use GFNI, instructions for products of bit matrices."""
    return bool(_library.hb_gfni())


def set_gfni(on: bool) -> bool:
    """Choose whether this process uses the instruction set GFNI from now on.

    Returns False, and changes nothing, if the processor lacks it.
    """
    return bool(_library.hb_set_gfni(on) == 0)


def aes() -> bool:
    """Whether AES uses the processor's AES instructions."""
    return bool(_library.hb_aes())


def xor_path() -> str:
    """Return the name of the implementation that XORs a table's rows here.

    It is "avx512+gfni", "avx2+gfni", "avx2" or "portable" in the C++ library, or "torch".
    """
    if not available():
        return "torch"
    return isa() if isa() == "portable" else f"{isa()}+gfni" if gfni() else "avx2"
