"""The vocabulary: all operations of this folder's modules, and the rule of each torch module, function and method.

OPERATIONS: name of an operation -> its `Op`. FUNCTIONS, METHODS and `module_rule`: torch's names -> rules.
"""

from __future__ import annotations

import copy
import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hummingbird.graph.ops import (
    activations,
    arithmetic,
    attention,
    elementwise,
    encoder,
    functions,
    linear,
    moments,
    net,
    norms,
    packed,
    pools,
    public,
    recurrent,
    resize,
    select,
    shapes,
    written_out,
)
from hummingbird.graph.ops.op import Op, Refused, Rule, Spelling

ROOMS: tuple[Any, ...] = (net, linear, norms, activations, pools, arithmetic, select, attention, encoder, recurrent)
ROOMS += (moments, written_out, packed, shapes, resize, public, functions, elementwise)
OPERATIONS: dict[str, Op] = {op.name: op for room in ROOMS for op in getattr(room, "OPS", ())}
REFUSED: list[Refused] = [refused for room in ROOMS for refused in getattr(room, "REFUSED", ())]
SPELLINGS: list[Spelling] = [
    *(spelling for op in OPERATIONS.values() for spelling in op.spellings),
    *(spelling for room in ROOMS for spelling in getattr(room, "SPELLINGS", ())),
]
# Layers that may do nothing at inference, recognised by name, as their library may not be installed.
_IDENTITY_NAMES = frozenset({"StochasticDepth", "DropPath"})

_MODULES: dict[type[nn.Module], tuple[Rule, str]] = {
    module: (spelling.rule, attributes) for spelling in SPELLINGS for module, attributes in spelling.modules.items()
}


def _named(space: Any) -> dict[str, Rule]:
    """Return the rules for the functions or methods of `space`: name, with or without a trailing underscore -> rule.

    space: torch, torch.nn.functional or Tensor.
    """
    return {
        form: spelling.rule
        for spelling in SPELLINGS
        for name in spelling.names.split()
        for form in (name, name + "_")
        if hasattr(space, form)
    }


def _operators(prefix: str = "") -> dict[Any, Rule]:
    return {
        getattr(operator, prefix + name): spelling.rule
        for spelling in SPELLINGS
        for name in spelling.operators.split()
        if hasattr(operator, prefix + name)
    }


METHODS: dict[str, Rule] = _named(torch.Tensor) | {
    name: spelling.rule for spelling in SPELLINGS for name in spelling.methods.split()
}
IN_PLACE_OPERATORS = _operators("i")
FUNCTIONS: dict[Any, Rule] = {
    **{getattr(space, form): rule for space in (torch, F) for form, rule in _named(space).items()},
    **_operators(),
    **IN_PLACE_OPERATORS,
    **{function: spelling.rule for spelling in SPELLINGS for function in spelling.functions},
}

# Other spellings of a parameter, in torch's functions and methods.
KEYWORDS = {"axis": "dim", "axis0": "dim0", "axis1": "dim1", "keepdims": "keepdim", "train": "training"} | {
    "split_size_or_sections": "split_size"
}


def module_rule(module: nn.Module) -> tuple[Rule, str] | None:
    """Return the rule of a module, and the names of the module's attributes that the rule takes as parameters.

    None for a module without rule. A parametrized layer counts as its original type.
    """
    if type(module).__name__ in _IDENTITY_NAMES and _does_nothing(module):
        return net.identity, ""
    return _MODULES.get(nn.utils.parametrize.type_before_parametrizations(module))


def _does_nothing(module: nn.Module) -> bool:
    """Whether a module returns a test input unchanged, and has no weights and no submodules.

    It is asked of classes that are known by their name alone, such as DropPath, because any library may have one.
    """
    if [*module.children(), *module.parameters(), *module.buffers()]:
        return False
    x = torch.linspace(-3.0, 3.0, 120).reshape(2, 3, 4, 5)
    twin = copy.deepcopy(module).eval()
    try:
        # Not called: while a net is traced, calls of modules are part of it.
        return bool(torch.equal(twin.forward(x), x))
    except Exception:  # forward() is the user's code; then it is traced as such
        return False
