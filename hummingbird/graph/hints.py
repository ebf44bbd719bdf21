"""Hints: what to use in place of a layer or function without a private form.

A module of `ops/` lists what it refuses itself (`Refused`, ops/op.py); this module has the rest.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch
from torch import nn

from hummingbird.graph.ops.vocabulary import REFUSED

_WRAPPED = "it is traced into if there is an example: hummingbird.convert_model(net, example=x)"
RANDOM = "private inference would repeat one draw for ever: leave the noise out at inference"

_MODULES: dict[type[Any], str] = {
    nn.modules.lazy.LazyModuleMixin: "its weights have no shape yet: run the net once on an example",
    **{module: refused.hint for refused in REFUSED for module in refused.modules},
}

_PROGRAM = "pass the ExportedProgram itself, or the nn.Module that it was made from"
_QUANTIZED = "pass the float net, as it was before quantization: private inference has its own fixed-point numbers"
_QUANTIZED_HOMES = ("torch.ao.nn.", "torch.ao.quantization.observer", "torch.ao.quantization.fake_quantize")


def program_hint(value: Any) -> str:
    """Return the hint for a program of torch.jit or torch.export that is not read as a net; "" for other values."""
    home = type(value).__module__
    return _PROGRAM if isinstance(value, torch.jit.ScriptFunction) or home.startswith("torch.export") else ""


def _is_quantized(module: nn.Module) -> bool:
    return type(module).__module__.startswith(_QUANTIZED_HOMES) or "activation_post_process" in module._modules


def is_unsupported(module: nn.Module) -> bool:
    """Whether a module has no private form, so that an error names it and not the functions that it calls."""
    return isinstance(module, tuple(_MODULES)) or bool(program_hint(module)) or _is_quantized(module)


_FUNCTIONS = {
    **{name: refused.hint for refused in REFUSED for name in refused.names.split()},
    "dim": "the rank of the input is fixed at conversion: remove the check",
    "item": "a private value cannot become a Python number: compute with the tensor itself",
    **dict.fromkeys(("numel", "len"), "write the number, or use mean instead of dividing a sum by a size"),
    **dict.fromkeys(("rand_like", "randn_like", "bernoulli", "randint_like", "normal"), RANDOM),
}
ANY = "write it with what docs/limits.md lists; hummingbird.register_converter teaches convert_model a layer of yours"


def module_hint(module: nn.Module) -> str:
    """Return the hint that says what to use in place of a module that cannot be converted."""
    if _is_quantized(module):
        return _QUANTIZED
    return program_hint(module) or next((hint for kind, hint in _MODULES.items() if isinstance(module, kind)), ANY)


def function_hint(name: str, target: Any = None) -> str:
    """Return the hint for a function or method that cannot be converted.

    name: its name. target: the object that the graph calls, if it is a function.
    """
    if isinstance(target, torch._ops.OpOverload):  # aten.linear.default, in the module of an exported program
        name = target._opname
        return _PROGRAM if hasattr(torch, name) or hasattr(torch.nn.functional, name) else _FUNCTIONS.get(name, ANY)
    if isinstance(target, FunctionType) and not target.__module__.startswith("torch."):  # kept whole by fx.wrap
        return _WRAPPED
    return _FUNCTIONS.get(name.rstrip("_"), ANY)
