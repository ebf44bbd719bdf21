"""Rules of torch's transformer encoder, layer by layer; its own forward() would choose between fused programs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hummingbird.graph.build import StepBuilder, Unsupported
from hummingbird.graph.ops import activations, attention, linear, norms
from hummingbird.graph.ops.op import Spelling
from hummingbird.graph.steps import Ref

_ACTIVATIONS: dict[Any, Callable[..., Ref]] = {
    torch.nn.functional.relu: activations.activation("relu"),
    torch.nn.functional.gelu: activations.gelu,
    torch.nn.functional.silu: activations.activation("silu"),
    torch.relu: activations.activation("relu"),
}
# Attributes of a layer that `encoder_layer` takes.
PARTS = "self_attn linear1 linear2 norm1 norm2 norm_first activation dropout dropout1 dropout2"
_MODULES: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.SiLU: "silu"}


def encoder(
    b: StepBuilder,
    src: Any,
    mask: Any = None,
    src_key_padding_mask: Any = None,
    is_causal: Any = None,
    *,
    layers: nn.ModuleList,
    norm: Any,
) -> Ref:
    """Convert a call of nn.TransformerEncoder to steps, layer by layer, with the final norm if there is one.

    The steps are added to `b`; returns a reference to the result. The other arguments are as in torch.
    """
    x = b.tensor(src)
    for number, module in enumerate(layers):
        with _inside(b, f"layers.{number}"):
            _check(module, nn.TransformerEncoderLayer)
            parts = {name: getattr(module, name) for name in PARTS.split()}
            x = encoder_layer(b, x, mask, src_key_padding_mask, bool(is_causal), **parts)
    with _inside(b, "norm"):
        return x if norm is None else _normed(b, norm, x)


def encoder_layer(
    b: StepBuilder,
    src: Any,
    src_mask: Any = None,
    src_key_padding_mask: Any = None,
    is_causal: bool = False,
    *,
    self_attn: nn.MultiheadAttention,
    linear1: nn.Linear,
    linear2: nn.Linear,
    norm1: nn.Module,
    norm2: nn.Module,
    norm_first: bool,
    activation: Any,
    **dropouts: nn.Module,
) -> Ref:
    """Convert a call of nn.TransformerEncoderLayer to steps: attention, then two linear layers.

    The value before each of these two parts is added to the part's result.
    The steps are added to `b`; returns a reference to the result. The other arguments are as in torch.
    """
    x = b.tensor(src)
    _check(self_attn, nn.MultiheadAttention)
    for layer_of_two in (linear1, linear2):
        _check(layer_of_two, nn.Linear)
    for dropout in dropouts.values():
        _check(dropout, nn.Dropout)

    def attended(x: Ref) -> Ref:
        own: dict[str, Any] = {name: getattr(self_attn, name) for name in attention.PARTS.split()}
        with _inside(b, "self_attn"):
            return attention.multihead(b, x, x, x, src_key_padding_mask, False, src_mask, True, is_causal, **own)[0]

    def fed(x: Ref) -> Ref:
        with _inside(b, "linear1"):
            x = linear.linear(b, x, linear1.weight, linear1.bias)
        with _inside(b, "activation"):
            x = _activated(b, activation, x)
        with _inside(b, "linear2"):
            return linear.linear(b, x, linear2.weight, linear2.bias)

    for name, part, norm in (("1", attended, norm1), ("2", fed, norm2)):
        with _inside(b, f"norm{name}"):
            given = _normed(b, norm, x) if norm_first else x
        x = b.emit("add", x, part(given), suffix=f".add{name}")
        if not norm_first:
            with _inside(b, f"norm{name}"):
                x = _normed(b, norm, x)
    return x


@contextmanager
def _inside(b: StepBuilder, name: str) -> Any:
    outer = b.name
    b.name = f"{outer}.{name}"
    try:
        yield
    finally:
        b.name = outer


def _check(module: nn.Module, kind: type[nn.Module]) -> None:
    """Raise Unsupported unless a submodule of the encoder has the type `kind` that torch's own encoder has there.

    Hooks on the submodule, and a forward() set on it, are refused too: the conversion would lose them.
    """
    found = nn.utils.parametrize.type_before_parametrizations(module)
    if found is not kind:
        raise Unsupported(f"an encoder with {found.__name__}", f"use nn.{kind.__name__}")
    if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
        what = f"a hook on {kind.__name__} in an encoder, or a forward() of its own, would be lost"
        raise Unsupported(what, "remove it, or write the encoder as a module of your own")


def _normed(b: StepBuilder, norm: nn.Module, x: Ref) -> Ref:
    _check(norm, nn.LayerNorm)
    assert isinstance(norm, nn.LayerNorm)
    return norms.layer_norm(b, x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


def _activated(b: StepBuilder, activation: Any, x: Ref) -> Ref:
    if type(activation) in (nn.GELU, *_MODULES):
        _check(activation, type(activation))
    if type(activation) is nn.GELU:
        return activations.gelu(b, x, activation.approximate)
    if type(activation) in _MODULES:
        return b.emit(_MODULES[type(activation)], x)
    rule = _ACTIVATIONS.get(activation) if not isinstance(activation, (nn.Module, Tensor)) else None
    if rule is None:
        raise Unsupported(f"an encoder with the activation {activation}", "use relu, gelu or silu")
    return rule(b, x)


SPELLINGS = [
    Spelling(encoder_layer, modules={nn.TransformerEncoderLayer: PARTS}),
    Spelling(encoder, modules={nn.TransformerEncoder: "layers norm"}),
]
