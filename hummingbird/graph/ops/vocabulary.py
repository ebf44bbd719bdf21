"""Which torch module, function or method follows which rule: three tables, all listed here.

MODULES gives a rule and the module's attributes in the rule's own parameter names. NAMES is looked up in torch, in
torch.nn.functional and among the tensor methods, with and without the trailing underscore of the in-place form.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hummingbird.graph.ops import attention, encoder, norms, public, resize, select, written_out
from hummingbird.graph.ops import layers as layer
from hummingbird.graph.ops import shapes as shape

Rule = Callable[..., Any]

# Layers that may do nothing at inference, recognised by name where the library that holds them is not imported.
_IDENTITY_NAMES = frozenset({"StochasticDepth", "DropPath"})

_CONV = "weight bias stride padding dilation groups padding_mode"
_NORM = "running_mean running_var weight bias eps"
_INSTANCE = "track_running_stats weight bias eps"
_ATTENTION = "num_heads batch_first in_proj_weight in_proj_bias q_proj_weight k_proj_weight v_proj_weight"
_ATTENTION += " bias_k bias_v add_zero_attn out_proj"
_POOL = "kernel_size stride padding ceil_mode"

_ACTIVATIONS: dict[str, Rule] = {
    name: layer.elementwise(name) for name in ("relu", "sigmoid", "hardsigmoid", "tanh", "silu", "hardswish")
}

_MODULES: dict[type[nn.Module], tuple[Rule, str]] = {
    nn.Conv1d: (partial(layer.conv, n=1), _CONV),
    nn.Conv2d: (partial(layer.conv, n=2), _CONV),
    nn.ConvTranspose1d: (partial(layer.conv_transpose, n=1), _CONV + " output_padding"),
    nn.ConvTranspose2d: (partial(layer.conv_transpose, n=2), _CONV + " output_padding"),
    nn.Linear: (layer.linear, "weight bias"),
    nn.BatchNorm1d: (layer.batch_norm, _NORM),
    nn.BatchNorm2d: (layer.batch_norm, _NORM),
    nn.SyncBatchNorm: (layer.batch_norm, _NORM),
    nn.LayerNorm: (norms.layer_norm, "normalized_shape weight bias eps"),
    nn.GroupNorm: (norms.group_norm, "num_groups weight bias eps"),
    nn.InstanceNorm1d: (partial(norms.instance_norm_layer, n=1), _INSTANCE),
    nn.InstanceNorm2d: (partial(norms.instance_norm_layer, n=2), _INSTANCE),
    nn.ReLU: (_ACTIVATIONS["relu"], ""),
    nn.ReLU6: (layer.relu6, ""),
    nn.LeakyReLU: (layer.leaky_relu, "negative_slope"),
    nn.PReLU: (layer.prelu, "weight"),
    nn.Hardtanh: (layer.hardtanh, "min_val max_val"),
    nn.Sigmoid: (_ACTIVATIONS["sigmoid"], ""),
    nn.Hardsigmoid: (_ACTIVATIONS["hardsigmoid"], ""),
    nn.Tanh: (_ACTIVATIONS["tanh"], ""),
    nn.SiLU: (_ACTIVATIONS["silu"], ""),
    nn.Hardswish: (_ACTIVATIONS["hardswish"], ""),
    nn.GELU: (layer.gelu, "approximate"),
    nn.Softmax: (layer.softmax("softmax"), "dim"),
    nn.LogSoftmax: (layer.softmax("log_softmax"), "dim"),
    nn.MaxPool1d: (partial(layer.max_pool, n=1), _POOL + " dilation return_indices"),
    nn.MaxPool2d: (partial(layer.max_pool, n=2), _POOL + " dilation return_indices"),
    nn.AvgPool1d: (partial(layer.avg_pool, n=1), _POOL + " count_include_pad"),
    nn.AvgPool2d: (partial(layer.avg_pool, n=2), _POOL + " count_include_pad divisor_override"),
    nn.AdaptiveAvgPool1d: (partial(layer.adaptive_avg_pool, n=1), "output_size"),
    nn.AdaptiveAvgPool2d: (partial(layer.adaptive_avg_pool, n=2), "output_size"),
    nn.AdaptiveMaxPool1d: (partial(layer.adaptive_max_pool, n=1), "output_size return_indices"),
    nn.AdaptiveMaxPool2d: (partial(layer.adaptive_max_pool, n=2), "output_size return_indices"),
    nn.MultiheadAttention: (attention.multihead, _ATTENTION),
    nn.TransformerEncoderLayer: (encoder.encoder_layer, encoder.PARTS),
    nn.TransformerEncoder: (encoder.encoder, "layers norm"),
    nn.Embedding: (public.embedding, "weight padding_idx max_norm norm_type scale_grad_by_freq sparse"),
    nn.EmbeddingBag: (public.embedding_bag, "weight max_norm mode include_last_offset padding_idx"),
    nn.Flatten: (shape.flatten, "start_dim end_dim"),
    nn.Unflatten: (written_out.unflatten_layer, "dim unflattened_size"),
    nn.GLU: (written_out.glu, "dim"),
    nn.Threshold: (written_out.threshold, "threshold value"),
    nn.Softmin: (written_out.softmin, "dim"),
    nn.ZeroPad1d: (shape.zero_pad, "padding"),
    nn.ZeroPad2d: (shape.zero_pad, "padding"),
    nn.Identity: (layer.identity, ""),
    nn.Upsample: (resize.interpolate, "size scale_factor mode align_corners recompute_scale_factor"),
    nn.UpsamplingNearest2d: (resize.upsample_nearest, "size scale_factor"),
    nn.UpsamplingBilinear2d: (resize.upsample_bilinear, "size scale_factor"),
    nn.PixelShuffle: (resize.pixel_shuffle, "upscale_factor"),
    nn.PixelUnshuffle: (resize.pixel_unshuffle, "downscale_factor"),
    nn.ChannelShuffle: (resize.channel_shuffle, "groups"),
    nn.ReflectionPad1d: (partial(shape.zero_pad, mode="reflect"), "padding"),
    nn.ReflectionPad2d: (partial(shape.zero_pad, mode="reflect"), "padding"),
    nn.ReplicationPad1d: (partial(shape.zero_pad, mode="replicate"), "padding"),
    nn.ReplicationPad2d: (partial(shape.zero_pad, mode="replicate"), "padding"),
    nn.ConstantPad1d: (shape.zero_pad, "padding value"),
    nn.ConstantPad2d: (shape.zero_pad, "padding value"),
    nn.Dropout: (layer.identity, ""),
    nn.Dropout1d: (layer.identity, ""),
    nn.Dropout2d: (layer.identity, ""),
    nn.Dropout3d: (layer.identity, ""),
    nn.AlphaDropout: (layer.identity, ""),
    nn.FeatureAlphaDropout: (layer.identity, ""),
}
if hasattr(nn, "RMSNorm"):  # torch 2.4
    _MODULES[nn.RMSNorm] = (norms.rms_norm, "normalized_shape weight eps")

_COMPARISONS = {
    "gt": ("gt", "greater"),
    "ge": ("ge", "greater_equal"),
    "lt": ("lt", "less"),
    "le": ("le", "less_equal"),
}

NAMES: dict[str, Rule] = {
    **_ACTIVATIONS,
    "conv1d": partial(layer.conv, n=1),
    "conv2d": partial(layer.conv, n=2),
    "conv_transpose1d": partial(layer.conv_transpose, n=1),
    "conv_transpose2d": partial(layer.conv_transpose, n=2),
    "linear": layer.linear,
    "layer_norm": norms.layer_norm,
    "group_norm": norms.group_norm,
    "instance_norm": norms.instance_norm,
    "rms_norm": norms.rms_norm,
    "matmul": attention.matmul,
    "mm": attention.matmul,
    "bmm": attention.bmm,
    "addmm": attention.addmm,
    "baddbmm": attention.baddbmm,
    "einsum": attention.einsum,
    "scaled_dot_product_attention": attention.scaled_dot_product_attention,
    "unflatten": attention.unflatten,
    "sqrt": written_out.sqrt,
    "rsqrt": written_out.rsqrt,
    "var": written_out.var,
    "glu": written_out.glu,
    "threshold": written_out.threshold,
    "softmin": written_out.softmin,
    "rot90": written_out.rot90,
    "narrow": written_out.narrow,
    "select": written_out.select,
    "index_select": written_out.index_select,
    "relu6": layer.relu6,
    "leaky_relu": layer.leaky_relu,
    "prelu": layer.prelu,
    "hardtanh": layer.hardtanh,
    "clamp": layer.clamp,
    "clip": layer.clamp,
    "clamp_min": layer.clamp,
    "gelu": layer.gelu,
    "softmax": layer.softmax("softmax"),
    "log_softmax": layer.softmax("log_softmax"),
    "argmax": layer.argmax,
    "max_pool1d": partial(layer.max_pool, n=1),
    "max_pool2d": partial(layer.max_pool, n=2),
    "avg_pool1d": partial(layer.avg_pool, n=1),
    "avg_pool2d": partial(layer.avg_pool, n=2),
    "adaptive_avg_pool1d": partial(layer.adaptive_avg_pool, n=1),
    "adaptive_avg_pool2d": partial(layer.adaptive_avg_pool, n=2),
    "adaptive_max_pool1d": partial(layer.adaptive_max_pool, n=1),
    "adaptive_max_pool2d": partial(layer.adaptive_max_pool, n=2),
    "dropout": layer.dropout,
    "dropout1d": layer.dropout,
    "dropout2d": layer.dropout,
    "dropout3d": layer.dropout,
    "alpha_dropout": layer.dropout,
    "feature_alpha_dropout": layer.dropout,
    "contiguous": layer.identity,
    "clone": layer.identity,
    "detach": layer.identity,
    "add": shape.arithmetic("add"),
    "addcmul": shape.addcmul,
    "sub": shape.arithmetic("sub"),
    "subtract": shape.arithmetic("sub"),
    "rsub": shape.rsub,
    "mul": shape.arithmetic("mul"),
    "multiply": shape.arithmetic("mul"),
    "div": shape.div,
    "divide": shape.div,
    "true_divide": shape.div,
    "floor_divide": shape.arithmetic("floordiv"),
    "neg": shape.neg,
    "negative": shape.neg,
    "pow": shape.power,
    "square": shape.square,
    "mean": shape.reduction("mean"),
    "sum": shape.reduction("sum"),
    "cat": shape.join("cat"),
    "concat": shape.join("cat"),
    "concatenate": shape.join("cat"),
    "stack": shape.join("stack"),
    "expand": shape.expand,
    "flatten": shape.flatten,
    "reshape": shape.reshape,
    "view": shape.reshape,
    "permute": shape.permute,
    "transpose": shape.transpose,
    "swapaxes": shape.transpose,
    "swapdims": shape.transpose,
    "squeeze": shape.squeeze,
    "unsqueeze": shape.unsqueeze,
    "chunk": shape.chunk,
    "split": shape.split,
    "unbind": shape.unbind,
    "pad": shape.pad,
    "size": shape.size,
    "clamp_max": layer.clamp_max,
    "abs": select.magnitude,
    "absolute": select.magnitude,
    "maximum": select.extreme("max"),
    "minimum": select.extreme("min"),
    "max": select.extreme("max"),
    "min": select.extreme("min"),
    **{form: select.compared(name) for name, forms in _COMPARISONS.items() for form in forms},
    "where": select.where,
    "masked_fill": select.masked_fill,
    "interpolate": resize.interpolate,
    "upsample": resize.interpolate,
    "upsample_nearest": resize.upsample_nearest,
    "upsample_bilinear": resize.upsample_bilinear,
    "pixel_shuffle": resize.pixel_shuffle,
    "pixel_unshuffle": resize.pixel_unshuffle,
    "channel_shuffle": resize.channel_shuffle,
    "flip": resize.flip,
    "roll": resize.roll,
}

_CASTS: dict[str, Rule] = {
    **dict.fromkeys(("to", "type", "type_as"), select.cast()),
    **{name: select.cast(getattr(torch, name)) for name in ("float", "double", "half", "int", "long")},
}

_OPERATORS: dict[str, Rule] = {
    "add": NAMES["add"],
    "sub": NAMES["sub"],
    "mul": NAMES["mul"],
    "truediv": shape.div,
    "floordiv": NAMES["floor_divide"],
    "pow": shape.power,
    "matmul": attention.matmul,
}

METHODS: dict[str, Rule] = {
    form: rule for name, rule in NAMES.items() for form in (name, name + "_") if hasattr(torch.Tensor, form)
} | {"where": select.where_method, **_CASTS}
IN_PLACE_OPERATORS = {getattr(operator, "i" + name): rule for name, rule in _OPERATORS.items()}
FUNCTIONS: dict[Any, Rule] = {
    **{
        getattr(space, form): rule
        for name, rule in NAMES.items()
        for space in (torch, F)
        for form in (name, name + "_")
        if hasattr(space, form)
    },
    **{getattr(operator, name): rule for name, rule in _OPERATORS.items()},
    **IN_PLACE_OPERATORS,
    operator.neg: shape.neg,
    operator.abs: select.magnitude,
    **{getattr(operator, name): NAMES[name] for name in _COMPARISONS},
    operator.getitem: shape.getitem,
    getattr: shape.attribute,
    F.batch_norm: layer.batch_norm,
    F.embedding: public.embedding,
    F.embedding_bag: public.embedding_bag,
}

# Other spellings of a parameter, in torch's functions and methods.
KEYWORDS = {"axis": "dim", "axis0": "dim0", "axis1": "dim1", "keepdims": "keepdim", "train": "training"} | {
    "split_size_or_sections": "split_size"
}


def module_rule(module: nn.Module) -> tuple[Rule, str] | None:
    """The rule of a module and the attributes it takes; a parametrized layer counts as the layer it was."""
    if type(module).__name__ in _IDENTITY_NAMES and _does_nothing(module):
        return layer.identity, ""
    return _MODULES.get(nn.utils.parametrize.type_before_parametrizations(module))


def _does_nothing(module: nn.Module) -> bool:
    """Whether a module, which may be anybody's class of a known name, returns its input as it is."""
    if [*module.children(), *module.parameters(), *module.buffers()]:
        return False
    x = torch.linspace(-3.0, 3.0, 120).reshape(2, 3, 4, 5)
    twin = copy.deepcopy(module).eval()
    try:
        # Not called: while a net is traced, calls of modules are part of it.
        return bool(torch.equal(twin.forward(x), x))
    except Exception:  # forward() is the user's code; then it is traced as such
        return False
