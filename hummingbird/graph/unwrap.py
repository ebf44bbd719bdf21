"""The net inside its wrappers: DataParallel, DistributedDataParallel, torch.compile and torch.jit.

Wrappers do not change what a net computes. Layers have the names of the net without its wrappers, so windows that were
found for the wrapped net fit the bare one, and the reverse.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from hummingbird.errors import InputError, ModelError, Problem
from hummingbird.graph.hints import program_hint
from hummingbird.graph.programs import from_object

_PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def unwrapped(net: Any) -> nn.Module:
    """Return the net inside its wrappers, such as DataParallel; no copy is made.

    The programs of torch.export, TorchScript and ONNX are nets too: they become a `ProgramNet`.
    Raises InputError for an object that is no net.
    """
    while isinstance(net, nn.Module) and (inner := _inside(net)) is not None:
        net = inner
    net = from_object(net) or net
    if isinstance(net, nn.Module):
        return net
    hint = program_hint(net) or "pass the net itself, as in convert_model(net)"
    raise InputError(f"expected a torch.nn.Module, got {type(net).__name__}", where="net", hint=hint)


def plain_copy(net: Any) -> nn.Module:
    """Return a deep copy of a net, in eval mode, without the wrappers around it and inside it.

    TorchScript modules inside it become nets of their own (`ScriptedNet`).

    Raises InputError as `unwrapped`, ModelError for a net that cannot be copied.
    """
    net = unwrapped(net)
    try:
        twin: nn.Module = copy.deepcopy(net).eval()
    except Exception as error:  # the net may hold anything, and its own __deepcopy__ runs
        hint = "remove what cannot be copied: weight_norm and other computed weights, open files, locks"
        what = f"it cannot be copied: {str(error).partition(chr(10))[0]}"
        raise ModelError([Problem("net", what, hint)]) from None
    _unwrap_below(twin)
    return twin


def _unwrap_below(net: nn.Module) -> None:
    for name, child in net._modules.items():
        if child is not None:
            net._modules[name] = plain = unwrapped(child)
            _unwrap_below(plain)


def submodule(net: nn.Module, path: str) -> nn.Module:
    """Return the submodule at `path` of an unwrapped net; wrappers inside the net do not count in the path."""
    for name in path.split(".") if path else ():
        net = unwrapped(getattr(net, name))
    return net


def _inside(net: nn.Module) -> nn.Module | None:
    """Return the net inside a wrapper, such as DataParallel or torch.compile's; None for a net that is no wrapper."""
    if isinstance(net, _PARALLEL):
        return net.module
    if type(net).__name__ == "OptimizedModule" and type(net).__module__.startswith("torch._dynamo"):
        compiled: nn.Module = net._modules["_orig_mod"]  # type: ignore[assignment]
        return compiled
    return None
