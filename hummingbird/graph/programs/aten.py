"""ATen operations as calls of torch's functions, which the vocabulary of this package knows by name.

ATen is torch's library of operations: the graphs of torch.export and TorchScript consist of them. Most have the name
and the arguments of a function of torch. `_SPECIAL` has the others: arguments in another order, several results of
which one counts at inference, layouts and devices. An operation that torch has as a function, and the vocabulary does
not know, is called all the same, so that the trace refuses it by its name.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from hummingbird.graph.build import Unsupported
from hummingbird.graph.ops.recurrent import unrolled
from hummingbird.graph.ops.vocabulary import FUNCTIONS, METHODS

# Arguments that change no value: where and how a tensor lies in memory, and the choice of a library.
_MEMORY = frozenset(
    "memory_format layout device pin_memory non_blocking copy cudnn_enable cudnn_enabled implicit".split()
)
_CHECKS = frozenset(  # assertions, which a graph keeps beside its operations
    "_assert_scalar _assert_async _assert_tensor_metadata sym_constrain_range sym_constrain_range_for_size".split()
)
Function = Callable[..., Any]


def is_check(name: str) -> bool:
    """Whether an operation of ATen only checks values, such as `_assert_async`, and has no result. name: its name."""
    return name in _CHECKS


def bound(
    op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments (positional, by keyword) of an operation without those that change no value.

    Left out are arguments such as a device or a memory layout. op: the operation of ATen. args, kwargs: the arguments
    that a graph gives it. The positional ones come in the order of the operation's schema. An argument that the graph
    does not give, and which so has its default, is not added.
    """
    names = [argument.name for argument in op._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    kept = {name: value for name, value in given.items() if name not in _MEMORY}
    positional: list[Any] = []
    for name in names:
        if name not in kept or op._schema.arguments[len(positional)].kwarg_only:
            break
        positional.append(kept.pop(name))
    return tuple(positional), kept


def function_of(op: Any) -> Function:
    """Return the function that computes an operation; it is called with the arguments that `bound` returns.

    op: an operation of ATen (OpOverload), or a function of Python that a graph calls on sizes. Raises Unsupported for
        an operation that is not torch's own.
    """
    function: Function
    if not isinstance(op, torch._ops.OpOverload):
        home, name = getattr(op, "__module__", ""), getattr(op, "__name__", str(op))
        if home not in ("_operator", "math") and not (home == "torch" and name.startswith("sym_")):
            raise Unsupported(f"function {name} is no operation of torch", "write it with torch's functions")
        function = op
        return function
    if op.namespace != "aten":
        raise Unsupported(f"operation {op} is none of torch's own", "write it with torch's functions, and export again")
    name = op._opname
    for spelling in (f"{name}.{op._overloadname}", name):
        if spelling in _SPECIAL:
            return _SPECIAL[spelling]
    if name.endswith("_") and not name.endswith("__"):
        return _in_place(name, op)
    # torch.nn.functional leaves out further results, such as indices.
    spaces = (torch, F) if len(op._schema.returns) == 1 else (torch,)
    for space in spaces:
        if getattr(space, name, None) in FUNCTIONS:
            function = getattr(space, name)
            return function
    if name in METHODS:
        return method(name)
    for space in spaces:
        if callable(getattr(space, name, None)):
            function = getattr(space, name)
            return function
    return method(name) if hasattr(Tensor, name) else op


def method(name: str) -> Function:
    """Return a function that calls the method `name` of its first argument."""

    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(x, name)(*args, **kwargs)

    return call


_OPERATORS = {"add_": operator.iadd, "sub_": operator.isub, "mul_": operator.imul, "div_": operator.itruediv}


def _in_place(name: str, op: Any) -> Function:
    if name in _OPERATORS:
        return lambda x, other, **more: getattr(x, name)(other, **more) if more else _OPERATORS[name](x, other)
    if hasattr(Tensor, name):
        return method(name)
    plain = getattr(F, name.rstrip("_"), None)
    return op if plain is None else lambda x, *args: plain(x, *args, inplace=True)


def _cast(x: Any, dtype: Any = None) -> Any:
    """Cast a tensor to `dtype`, as a cast in a program does; None leaves the tensor as it is.

    Private inference has one number type, so every floating-point type becomes float32.
    """
    if dtype is None:
        return x
    if dtype.is_floating_point:
        return x.float()
    return x.to(dtype)


_CONVOLUTIONS: tuple[Function, ...] = (F.conv1d, F.conv2d, F.conv3d)


def _convolution(
    input: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Any:
    space = len(stride)
    convolve: Function
    if not transposed:
        convolve = _CONVOLUTIONS[space - 1]
        return convolve(input, weight, bias, stride, padding, dilation, groups)
    convolve = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[space - 1]
    return convolve(input, weight, bias, stride, padding, output_padding, groups, dilation)


def _addmm(input: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    product = torch.matmul(mat1, mat2)
    product = product if alpha == 1 else product * alpha
    return product + (input if beta == 1 else input * beta)


def _elu(input: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Any:
    if input_scale != 1 and scale == 1:
        return F.celu(input, 1 / input_scale)
    if input_scale != 1:
        raise Unsupported(f"elu with scale={scale} and input_scale={input_scale}", "write it as elu or celu")
    return F.elu(input, alpha) if scale == 1 else F.elu(input, alpha) * scale


def _batch_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: Any, eps: Any) -> Any:
    return (F.batch_norm(x, mean, var, weight, bias, False, momentum, eps),)


def _training_batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: Any, eps: Any
) -> Any:
    return (F.batch_norm(x, mean, var, weight, bias, training, momentum, eps),)


def _group_norm(x: Any, weight: Any, bias: Any, n: Any, c: Any, space: Any, groups: int, eps: Any) -> Any:
    return (F.group_norm(x, groups, weight, bias, eps),)


def _slice(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    end = None if isinstance(end, int) and end >= (1 << 63) - 1 else end  # ATen's word for "to the end"
    start = None if isinstance(start, int) and start == 0 else start
    if start is None and end is None and step == 1:
        return x
    part, whole = slice(start, end, step), slice(None)
    index = (..., part, *(whole,) * (-dim - 1)) if dim < 0 else (*(whole,) * dim, part)
    return x[index]


def _index(x: Any, indices: Any) -> Any:
    return x[tuple(slice(None) if index is None else index for index in indices)]


def _softmax(function: Function) -> Function:
    def call(x: Any, dim: int, half_to_float: bool = False) -> Any:
        return function(x, dim)

    return call


def _attention(query: Any, key: Any, value: Any, dropout_p: float = 0.0, is_causal: bool = False, **more: Any) -> Any:
    return _attended(query, key, value, more.get("attn_mask"), dropout_p, is_causal, more.get("scale"))


def _attended(q: Any, k: Any, v: Any, mask: Any, dropout_p: float, is_causal: bool, scale: Any) -> Any:
    more = {} if scale is None else {"scale": scale}
    return (F.scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal, **more),)


def _resize(mode: str, corners: bool) -> Function:
    """Return the function for the operation upsample_<mode> of ATen, which calls torch's interpolate.

    The function takes the tensor, the size or None, then `align_corners` if `corners` is True, then the scale factors.
    """

    def call(x: Any, size: Any, *rest: Any, **named: Any) -> Any:
        rest = tuple(rest) + tuple(named.values())
        align = {"align_corners": bool(rest[0])} if corners else {}
        factors = [factor for factor in rest[1 if corners else 0 :] if factor is not None]
        factors = [*factors[0]] if factors and isinstance(factors[0], (tuple, list)) else factors
        if size is not None:
            return F.interpolate(x, size=tuple(size), mode=mode, **align)
        return F.interpolate(x, scale_factor=tuple(factors), mode=mode, **align)

    return call


def _same(x: Any, *args: Any, **kwargs: Any) -> Any:
    return x


def _recurrent(kind: type[nn.RNNBase], op: Any, nonlinearity: str = "tanh") -> Function:
    """Return the function for an operation of ATen that computes all layers of a recurrent net, such as aten::lstm.

    On tensors the function calls the operation. While a net is traced, it makes calls for each time step in place of
    the operation. kind: nn.LSTM, nn.GRU or nn.RNN. op: the operation. nonlinearity: of an RNN, "tanh" or "relu".
    """

    def call(
        input: Any,
        hx: Any,
        params: Any,
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        if not isinstance(input, fx.Proxy):
            rest = has_biases, num_layers, dropout, train, bidirectional, batch_first
            return op(input, hx, params, *rest)
        layer = kind.__new__(kind)  # __init__ would draw weights
        nn.Module.__init__(layer)
        sides = ("", "_reverse")[: 1 + bidirectional]
        kinds = ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if has_biases else ()))
        names = [f"{name}_l{at}{side}" for at in range(num_layers) for side in sides for name in kinds]
        if len(params) != len(names):
            raise Unsupported("a recurrent layer with a projection", "leave proj_size out")
        vars(layer).update(zip(names, params, strict=True), training=train, proj_size=0, nonlinearity=nonlinearity)
        vars(layer).update(num_layers=num_layers, bias=has_biases, batch_first=batch_first, dropout=dropout)
        vars(layer).update(bidirectional=bidirectional)
        output, last = unrolled(layer, input, hx)
        return (output, *last) if kind is nn.LSTM else (output, last)

    return call


def _cell(kind: type[nn.RNNCellBase], op: Any, nonlinearity: str = "tanh") -> Function:
    """Return the function for an operation of ATen that computes one step of a recurrent cell, such as lstm_cell.

    kind: nn.LSTMCell, nn.GRUCell or nn.RNNCell. op, nonlinearity: as for `_recurrent`.
    """

    def call(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
        if not isinstance(input, fx.Proxy):
            return op(input, hx, w_ih, w_hh, b_ih, b_hh)
        cell = kind.__new__(kind)
        nn.Module.__init__(cell)
        vars(cell).update(weight_ih=w_ih, weight_hh=w_hh, bias_ih=b_ih, bias_hh=b_hh, bias=b_ih is not None)
        vars(cell).update(nonlinearity=nonlinearity)
        return unrolled(cell, input, hx)

    return call


_SPECIAL: dict[str, Function] = {
    "_to_copy": lambda x, *, dtype=None: torch.clone(_cast(x, dtype)),
    "to.dtype": lambda x, dtype: _cast(x, dtype),
    "to.dtype_layout": lambda x, *, dtype=None: _cast(x, dtype),
    "to.device": lambda x, *, dtype: _cast(x, dtype),
    "to.other": lambda x, other: _cast(x, other.dtype),
    "type_as": lambda x, other: _cast(x, other.dtype),
    **dict.fromkeys(("alias", "detach", "lift_fresh"), _same),
    **dict.fromkeys(("clone", "lift_fresh_copy"), torch.clone),
    "_reshape_alias": lambda x, size, stride: x.reshape(size),
    "detach_": _same,
    "_unsafe_view": method("reshape"),
    "view": method("reshape"),
    "convolution": _convolution,
    "_convolution_mode": lambda x, weight, bias, stride, *rest: _CONVOLUTIONS[len(stride) - 1](
        x, weight, bias, stride, *rest
    ),
    "_convolution": lambda *args, **library: _convolution(*args[:9]),  # and the choice of a library
    "addmm": _addmm,
    "linalg_vector_norm": torch.linalg.vector_norm,
    "expand_as": lambda x, other: x.expand(other.shape),
    "mm": torch.matmul,
    "bmm": torch.matmul,
    "elu": _elu,
    "selu": F.selu,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "native_batch_norm": _training_batch_norm,
    "_native_batch_norm_legit": _training_batch_norm,
    "_native_batch_norm_legit.no_stats": lambda x, weight, bias, training, momentum, eps: (
        F.batch_norm(x, None, None, weight, bias, True, momentum, eps),
    ),
    "batch_norm": lambda x, weight, bias, mean, var, training, momentum, eps: F.batch_norm(
        x, mean, var, weight, bias, training, momentum, eps
    ),
    "instance_norm": lambda x, weight, bias, mean, var, use_input_stats, momentum, eps: F.instance_norm(
        x, mean, var, weight, bias, use_input_stats, momentum, eps
    ),
    "native_layer_norm": lambda x, shape, weight, bias, eps: (F.layer_norm(x, shape, weight, bias, eps),),
    "native_group_norm": _group_norm,
    "max_pool3d_with_indices": lambda *args, **kwargs: (F.max_pool3d(*args, **kwargs),),
    "max_pool2d_with_indices": lambda *args, **kwargs: (F.max_pool2d(*args, **kwargs),),
    "max_pool1d_with_indices": lambda *args, **kwargs: (F.max_pool1d(*args, **kwargs),),
    "_adaptive_avg_pool2d": F.adaptive_avg_pool2d,
    "_adaptive_avg_pool3d": F.adaptive_avg_pool3d,
    "adaptive_max_pool1d": lambda x, size: (F.adaptive_max_pool1d(x, size),),
    "adaptive_max_pool2d": lambda x, size: (F.adaptive_max_pool2d(x, size),),
    "adaptive_max_pool3d": lambda x, size: (F.adaptive_max_pool3d(x, size),),
    "_softmax": _softmax(torch.softmax),
    "_log_softmax": _softmax(torch.log_softmax),
    "_safe_softmax": _softmax(torch.softmax),
    "softmax.int": lambda x, dim, dtype=None: torch.softmax(x, dim),
    "log_softmax.int": lambda x, dim, dtype=None: torch.log_softmax(x, dim),
    "embedding": lambda weight, indices, *rest: F.embedding(indices, weight),
    "slice.Tensor": _slice,
    "index.Tensor": _index,
    "sym_size.int": lambda x, dim: x.shape[dim],
    "size.int": lambda x, dim: x.shape[dim],
    "size": lambda x: x.shape,
    "split_with_sizes": torch.split,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "dropout": F.dropout,
    **{f"{name}dropout_": F.dropout for name in ("", "feature_", "alpha_", "feature_alpha_")},  # all do nothing in eval
    "feature_dropout": F.dropout,
    "constant_pad_nd": lambda x, pad, value=0: F.pad(x, pad, "constant", value),
    **{f"reflection_pad{n}d": lambda x, pad: F.pad(x, pad, "reflect") for n in (1, 2, 3)},
    **{f"replication_pad{n}d": lambda x, pad: F.pad(x, pad, "replicate") for n in (1, 2, 3)},
    **{f"upsample_nearest{n}d": _resize("nearest", False) for n in (1, 2, 3)},
    **{f"_upsample_nearest_exact{n}d": _resize("nearest-exact", False) for n in (1, 2, 3)},
    "upsample_trilinear3d": _resize("trilinear", True),
    "upsample_bilinear2d": _resize("bilinear", True),
    "upsample_bicubic2d": _resize("bicubic", True),
    "upsample_linear1d": _resize("linear", True),
    "lstm_cell": _cell(nn.LSTMCell, torch.ops.aten.lstm_cell),
    "gru_cell": _cell(nn.GRUCell, torch.ops.aten.gru_cell),
    "rnn_tanh_cell": _cell(nn.RNNCell, torch.ops.aten.rnn_tanh_cell),
    "rnn_relu_cell": _cell(nn.RNNCell, torch.ops.aten.rnn_relu_cell, "relu"),
    "lstm.input": _recurrent(nn.LSTM, torch.ops.aten.lstm.input),
    "gru.input": _recurrent(nn.GRU, torch.ops.aten.gru.input),
    "rnn_tanh.input": _recurrent(nn.RNN, torch.ops.aten.rnn_tanh.input),
    "rnn_relu.input": _recurrent(nn.RNN, torch.ops.aten.rnn_relu.input, "relu"),
}
