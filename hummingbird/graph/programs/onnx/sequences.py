"""ONNX's recurrent layers and attention, by torch's functions.

Each recurrent layer is unrolled into its steps in time, as torch's own are while a net is traced (ops/recurrent.py).
The order of its gates is ONNX's: input, output, forget, cell for an LSTM; update, reset, hidden for a GRU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from hummingbird.errors import InputError
from hummingbird.graph.ops.recurrent import gated, gru_grows, in_time, lstm_grows, lstm_step, most_after
from hummingbird.graph.programs.onnx.values import ints, is_known, operator, rank, shape, tensor, unlike


def _directions(direction: str) -> list[bool]:
    """List the directions of a recurrent layer, True for one that goes backwards in time.

    direction: ONNX's attribute.
    """
    unlike("direction", direction, "forward", "reverse", "bidirectional")
    return {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]


def _unrolled(
    X: Any,
    weights: tuple[Any, Any, Any],
    states: Sequence[Any],
    sequence_lens: Any,
    direction: str,
    layout: int,
    cell: Callable[[Any, Any, tuple[Any, ...], int, float | None], tuple[Any, ...]],
    arranged: Callable[[Any], Any],
    grows: Callable[[float], float] | None = None,
) -> tuple[Any, ...]:
    """Run a recurrent layer of ONNX step by step in time; return its outputs: Y, then the last states.

    X: (time, batch, features). Y: the states h of all time steps, (time, directions, batch, hidden). states: the first
    states, (directions, batch, hidden) each, or None for zeros. layout: if 1, the batch comes first in all of these.
    weights: ONNX's W, R and B of all directions. sequence_lens, direction: as in ONNX.
    cell: computes the next state, a tuple that begins with h. Its arguments are what the input adds to the gates, a
    pair of the state's matrix and bias, the state (() for zeros), the number of the direction, and a bound of the next
    state or None. arranged: a function that puts the rows of a weight into the order that `cell` takes. grows: as for
    `most_after`.
    """
    if layout:  # the batch before the time
        X, states = X.transpose(0, 1), [None if state is None else tensor(state).transpose(0, 1) for state in states]
    if sequence_lens is not None:
        lengths = ints(sequence_lens, "sequence_lens")
        if any(length != shape(X)[0] for length in lengths):
            raise InputError("sequences of different lengths", hint="all must have the length of the input: pad them")
    w, r, b = (tensor(part) for part in weights)
    given = [None if state is None or (is_known(state) and not np.any(state)) else tensor(state) for state in states]
    backwards = _directions(direction)
    outputs, last = [], []
    for number, turned in enumerate(backwards):
        half = None if b is None else shape(b)[1] // 2
        mine = None if b is None else (arranged(b[number, :half]), arranged(b[number, half:]))
        parts = F.linear(X, arranged(w[number]), None if mine is None else mine[0]).unbind(0)
        start = None if given[0] is None else tuple(state[number] for state in given if state is not None)
        if start is not None and len(start) != len(given):
            raise InputError("an initial_h without an initial_c", hint="give both, or neither")
        state: tuple[Any, ...] = () if start is None else start
        term = None if mine is None else mine[1]
        ordered = [(part,) for part in parts][:: -1 if turned else 1]
        extra = (arranged(r[number]), term), number, most_after(len(ordered), grows, state)

        def run(part: Any, *state: Any, extra: Any = extra) -> tuple[Any, ...]:
            weights, number, most = extra
            return cell(part, weights, state, number, most)

        states = in_time(run, ordered, state)
        steps = [state[0] for state in states]
        outputs.append(torch.stack(steps[::-1] if turned else steps, 0))
        last.append(states[-1])
    if len(backwards) == 1:
        y, *ends = outputs[0].unsqueeze(1), *(part.unsqueeze(0) for part in last[0])
    else:
        y, *ends = torch.stack(outputs, 1), *(torch.stack(parts, 0) for parts in zip(*last, strict=True))
    return (y.permute(2, 0, 1, 3), *(part.transpose(0, 1) for part in ends)) if layout else (y, *ends)


def _of_state(weights: Any, state: tuple[Any, ...]) -> Any:
    """Compute what a recurrent layer's state adds to its gates: weights times h plus bias.

    weights: the matrix and the bias, or None in place of the bias. state: its first entry is h, (batch, hidden); ()
    stands for a state of 0, for which the bias is returned.
    """
    return F.linear(state[0], *weights) if state else weights[1]


def _plus(a: Any, b: Any) -> Any:
    return a if b is None else a + b


def _usual(activations: Sequence[str] | None, clip: float | None, backwards: list[bool], usual: Sequence[str]) -> None:
    """Raise InputError if a recurrent layer has other activations than the default ones, or a limit of its gates.

    activations, clip: ONNX's attributes, None for the defaults. backwards: an entry for each direction. usual: the
    names of the default activations of one direction.
    """
    unlike("clip", clip or None, None)
    names = [*usual] * len(backwards) if activations is None else [name.capitalize() for name in activations]
    unlike("activations", names, [*usual] * len(backwards))


@operator("RNN", 22)
def rnn(
    X: Any,
    W: Any,
    R: Any,
    B: Any = None,
    sequence_lens: Any = None,
    initial_h: Any = None,
    *,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
) -> tuple[Any, ...]:
    unlike("clip", clip or None, None)
    count = len(_directions(direction))
    names = ["Tanh"] * count if activations is None else [name.capitalize() for name in activations]
    unlike("activations", sorted(set(names)), ["Tanh"], ["Relu"], ["Relu", "Tanh"])

    def cell(a: Any, weights: Any, state: tuple[Any, ...], number: int, most: float | None) -> tuple[Any, ...]:
        return ((torch.tanh if names[number] == "Tanh" else torch.relu)(_plus(a, _of_state(weights, state))),)

    return _unrolled(X, (W, R, B), (initial_h,), sequence_lens, direction, layout, cell, lambda weight: weight)


@operator("LSTM", 22)
def lstm(
    X: Any,
    W: Any,
    R: Any,
    B: Any = None,
    sequence_lens: Any = None,
    initial_h: Any = None,
    initial_c: Any = None,
    P: Any = None,
    *,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
) -> tuple[Any, ...]:
    """Run ONNX's LSTM, and return its outputs Y, Y_h and Y_c.

    Its gates are those of torch's LSTM in another order: i, o, f, g. The arguments are ONNX's inputs and
    attributes.
    """
    unlike("input_forget", input_forget, 0)
    _usual(activations, clip, _directions(direction), ("Sigmoid", "Tanh", "Tanh"))
    if P is not None and not (is_known(P) and not np.any(P)):
        raise InputError("an LSTM with peepholes (its input P)", hint="train without them")

    def arranged(weight: Any) -> Any:
        i, o, f, g = weight.chunk(4, 0)
        return torch.cat([f, i, o, g], 0)

    def cell(a: Any, weights: Any, state: tuple[Any, ...], number: int, most: float | None) -> tuple[Any, ...]:
        return lstm_step(None, "", a, _of_state(weights, state), state, most)

    states = initial_h, initial_c
    return _unrolled(X, (W, R, B), states, sequence_lens, direction, layout, cell, arranged, lstm_grows)


@operator("GRU", 22)
def gru(
    X: Any,
    W: Any,
    R: Any,
    B: Any = None,
    sequence_lens: Any = None,
    initial_h: Any = None,
    *,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
) -> tuple[Any, ...]:
    """Run ONNX's GRU, h' = sigmoid(z) h + (1 - sigmoid(z)) n, and return its outputs Y and Y_h.

    n = tanh(W x + b + sigmoid(r) (R h + c))   if linear_before_reset is 1, as in torch
    n = tanh(W x + b + R (sigmoid(r) h) + c)   if it is 0

    z, r: the update and the reset gate. b, c: the biases of W and R. The arguments are ONNX's inputs and attributes.
    """
    _usual(activations, clip, _directions(direction), ("Sigmoid", "Tanh"))

    def cell(a: Any, weights: Any, state: tuple[Any, ...], number: int, most: float | None) -> tuple[Any, ...]:
        *zr, n = a.chunk(3, 1)
        recurrent, term = weights
        size = shape(recurrent)[1]
        if linear_before_reset or not state:
            all_old = _of_state(weights, state)
            *old_zr, old = (None, None, None) if all_old is None else all_old.chunk(3, -1)
        else:
            old_zr = F.linear(state[0], recurrent[: 2 * size], None if term is None else term[: 2 * size]).chunk(2, -1)
        z, r = torch.sigmoid(torch.cat([_plus(x, y) for x, y in zip(zr, old_zr, strict=True)], 1)).chunk(2, 1)
        if linear_before_reset:
            n = torch.tanh(_plus(n, None if old is None else r * old))
        elif not state:
            n = torch.tanh(_plus(n, old))
        else:
            hidden = None if term is None else term[2 * size :]
            n = torch.tanh(n + F.linear(r * state[0], recurrent[2 * size :], hidden))
        return (gated(z, n, state, most),)

    arranged = lambda weight: weight  # noqa: E731
    return _unrolled(X, (W, R, B), (initial_h,), sequence_lens, direction, layout, cell, arranged, gru_grows)


# Attention -----------------------------------------------------------------------------------------------------------


@operator("Attention", 25)
def attention(
    Q: Any,
    K: Any,
    V: Any,
    attn_mask: Any = None,
    past_key: Any = None,
    past_value: Any = None,
    nonpad_kv_seqlen: Any = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
) -> Any:
    """Compute ONNX's Attention, softmax(scale Q K^T + mask) V, by torch's attention.

    Q, K, V: (batch, heads, positions, size), or (batch, positions, heads * size); the result has the form of Q. The
        other arguments are ONNX's inputs and attributes. Raises InputError for a cache of keys and values, and for
        attributes that are not supported.
    """
    for name, value in {"past_key": past_key, "past_value": past_value, "nonpad_kv_seqlen": nonpad_kv_seqlen}.items():
        if value is not None:
            raise InputError(f"an attention with {name}", hint="export the net without a cache of keys and values")
    unlike("softcap", softcap, 0.0)
    unlike("left_window_size", left_window_size, -1)
    unlike("right_window_size", right_window_size, -1)
    flat = rank(Q) == 3
    q, k, v = (tensor(value) for value in (Q, K, V))
    if flat:
        if not q_num_heads or not kv_num_heads:
            raise InputError("an attention without q_num_heads and kv_num_heads", hint="the file is wrong")
        heads = (q_num_heads, kv_num_heads, kv_num_heads)
        q, k, v = (
            x.reshape(*shape(x)[:2], count, shape(x)[2] // count).transpose(1, 2)
            for x, count in zip((q, k, v), heads, strict=True)
        )
    if is_causal and shape(q)[2] != shape(k)[2]:
        raise InputError("a causal attention of other keys than queries", hint="give as many keys as queries")
    groups = shape(q)[1] // shape(k)[1]
    if groups > 1:
        k, v = (torch.cat([x[:, n // groups : n // groups + 1] for n in range(shape(q)[1])], 1) for x in (k, v))
    mask = None if attn_mask is None else tensor(attn_mask)
    if mask is not None and is_causal:
        raise InputError("an attention with a mask that is causal too", hint="join both in the mask")
    found = F.scaled_dot_product_attention(q, k, v, mask, 0.0, bool(is_causal), scale=scale)
    return found.transpose(1, 2).reshape(*shape(Q)[:2], shape(q)[1] * shape(v)[3]) if flat else found
