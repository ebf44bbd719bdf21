"""Why a layer or function has no private form here, and what to use in its place."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch
from torch import nn

_ROOT = "train with BatchNorm, which costs nothing, or with LayerNorm, GroupNorm or RMSNorm, which convert"
_UNIT = "vectors of n values at unit length are F.rms_norm(x, (n,), eps=1e-12) / n ** 0.5"
_LOG = "return the logits, and compute it on the opened result; of logarithms, log_softmax is known"
_ATTENTION = "write it with nn.MultiheadAttention or F.scaled_dot_product_attention"
TABLE = "private indices: hummingbird.lookup gives a net its rows; public ones, int64, are in example=(x, indices)"
_RECURRENT = (
    "torch's LSTM, GRU and RNN are unrolled on an example, hummingbird.convert_model(net, example=x); "
    "others: write the steps"
)
_WRAPPED = "it is traced into if there is an example: hummingbird.convert_model(net, example=x)"
_COMPARE = "use max_pool, argmax or relu; of two tensors maximum, minimum, >, >= and where are known"
ROOTS = "needs a private logarithm, exponential or root: use relu, sigmoid, tanh, silu, gelu or x * x"
_SMOOTH = "no private form: use ReLU, LeakyReLU, SiLU, GELU or Hardswish"
_ONE_TYPE = "leave it out, or convert with example=: a private value has one type and one place"
_FILL = "write a constant tensor in __init__, or a number"
RANDOM = "private inference would repeat one draw for ever: leave the noise out at inference"
_PRODUCT = "a product of two private matrices is not in the vocabulary: one factor must be a constant matrix"
_3D = "one or two spatial dimensions only"

_MODULES: dict[type[Any], str] = {
    nn.modules.lazy.LazyModuleMixin: "its weights have no shape yet: run the net once on an example",
    nn.InstanceNorm3d: _3D,
    nn.LocalResponseNorm: _ROOT,
    nn.CrossMapLRN2d: _ROOT,
    nn.LogSigmoid: _LOG,
    nn.Transformer: _ATTENTION,
    nn.TransformerDecoder: _ATTENTION,
    nn.TransformerDecoderLayer: _ATTENTION,
    nn.RNNBase: _RECURRENT,
    nn.RNNCellBase: _RECURRENT,
    nn.ELU: _SMOOTH,
    nn.SELU: _SMOOTH,
    nn.CELU: _SMOOTH,
    nn.Softplus: _SMOOTH,
    nn.Softsign: _SMOOTH,
    nn.Mish: _SMOOTH,
    nn.RReLU: _SMOOTH,
    nn.Hardshrink: _SMOOTH,
    nn.Softshrink: _SMOOTH,
    nn.Tanhshrink: _SMOOTH,
    nn.Conv3d: _3D,
    nn.ConvTranspose3d: _3D,
    nn.BatchNorm3d: _3D,
    nn.MaxPool3d: _3D,
    nn.AvgPool3d: _3D,
    nn.AdaptiveAvgPool3d: _3D,
    nn.Bilinear: _PRODUCT,
}

_PROGRAM = "pass the nn.Module that it was made from: what is converted are a net's layers, not a compiled program"
_QUANTIZED = "pass the float net, as it was before quantization: private inference has a fixed point of its own"
_QUANTIZED_HOMES = ("torch.ao.nn.", "torch.ao.quantization.observer", "torch.ao.quantization.fake_quantize")


def program_hint(value: Any) -> str:
    """The hint for a net that has no layers any more, torch.jit's or torch.export's; "" for others."""
    home = type(value).__module__
    return _PROGRAM if isinstance(value, torch.jit.ScriptModule) or home.startswith("torch.export") else ""


def _is_quantized(module: nn.Module) -> bool:
    return type(module).__module__.startswith(_QUANTIZED_HOMES) or "activation_post_process" in module._modules


def is_unsupported(module: nn.Module) -> bool:
    """Whether a problem names this module as a whole, not the functions that it calls."""
    return isinstance(module, tuple(_MODULES)) or bool(program_hint(module)) or _is_quantized(module)


_FUNCTIONS = {
    "normalize": _UNIT,
    "local_response_norm": _ROOT,
    **dict.fromkeys(("logsigmoid", "logsumexp", "nll_loss", "cross_entropy"), _LOG),
    "grid_sample": "no private resampling: use interpolate, or resample before the net",
    "multi_head_attention_forward": _ATTENTION,
    "gather": TABLE,
    **dict.fromkeys(("exp", "log", "log1p", "expm1", "norm", "std"), ROOTS),
    **dict.fromkeys(("elu", "selu", "celu", "softplus", "softsign", "mish"), _SMOOTH),
    **dict.fromkeys(("max", "min", "amax", "amin", "argmin", "topk", "sort"), _COMPARE),
    **dict.fromkeys(("eq", "ne", "sign", "logical_and", "logical_or", "logical_not"), _COMPARE),
    **dict.fromkeys(("conv3d", "max_pool3d", "avg_pool3d", "adaptive_avg_pool3d"), _3D),
    "reciprocal": "needs a private reciprocal: divide by a constant, or fold the scale into a layer",
    "expand_as": "leave it out: x * y broadcasts by itself",
    "dim": "the rank of the input is fixed at conversion: remove the check",
    "item": "a private value cannot become a Python number: compute with the tensor itself",
    **dict.fromkeys(("numel", "len"), "write the number, or use mean instead of dividing a sum by a size"),
    **dict.fromkeys(("to", "float", "double", "half", "bfloat16", "type", "type_as", "cpu", "cuda"), _ONE_TYPE),
    **dict.fromkeys(("new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like"), _FILL),
    **dict.fromkeys(("rand_like", "randn_like", "bernoulli", "randint_like", "normal"), RANDOM),
    "t": "x.transpose(0, 1)",
    "repeat": "torch.cat([x, x], dim)",
}
ANY = "write it with what docs/limits.md lists; hummingbird.register_converter teaches convert_model a layer of yours"


def module_hint(module: nn.Module) -> str:
    """The hint for a module that cannot be converted."""
    if _is_quantized(module):
        return _QUANTIZED
    return program_hint(module) or next((hint for kind, hint in _MODULES.items() if isinstance(module, kind)), ANY)


def function_hint(name: str, target: Any = None) -> str:
    """The hint for a function or method that cannot be converted; `target`: what the graph calls."""
    if isinstance(target, torch._ops.OpOverload):  # aten.linear.default: the graph of an exported program
        return _PROGRAM
    if isinstance(target, FunctionType) and not target.__module__.startswith("torch."):  # kept whole by fx.wrap
        return _WRAPPED
    return _FUNCTIONS.get(name.rstrip("_"), ANY)
