"""torch's recurrent layers, unrolled into calls for each time step of the example.

    RNN    h' = tanh or relu of a + b               a = W x_t + b_ih, of all steps at once; b = V h + b_hh
    LSTM   c' = sigmoid(f) c + sigmoid(i) tanh(g)   h' = sigmoid(o) tanh(c')              i, f, g, o = a + b
    GRU    n = tanh(a_n + sigmoid(r) b_n)           h' = n + sigmoid(z) (h - n)           r, z = a + b

With tanh(g) = 2 sigmoid(2 g) - 1, all gates of an LSTM are one sigmoid, and both terms of c' one product. These
functions replace a layer's forward() while the net is traced, and use the layer's own parameters. Without an initial
state the terms of the state are left out, as it is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from hummingbird.graph.build import Unsupported
from hummingbird.graph.ops.op import Refused

LAYERS = (nn.RNN, nn.LSTM, nn.GRU)

State = tuple[Any, ...]  # (h,), for an LSTM (h, c); empty: all 0


def unrolled(layer: nn.RNNBase, input: Any, hx: Any = None) -> Any:
    """Compute a recurrent layer's result, (output, last states), by other functions of torch, step by step in time.

    input: (batch, time, features), or (time, batch, features) without batch_first. hx: the first states; None: 0.
    Raises Unsupported for a sequence without a batch, and for packed sequences.
    """
    if not isinstance(input, (Tensor, fx.Proxy)):
        raise Unsupported(f"{type(layer).__name__} on a {type(input).__name__}", "give a tensor: pad the sequences")
    if input.dim() != 3:
        raise Unsupported(f"{type(layer).__name__} on a sequence without a batch", "give (batch, time, features)")
    lstm, time = isinstance(layer, nn.LSTM), 1 if layer.batch_first else 0
    given: Sequence[Any] = () if hx is None else hx if lstm else (hx,)
    last: list[State] = []
    x = input
    for number in range(layer.num_layers):
        directions = []
        for backwards in (False, True)[: 1 + layer.bidirectional]:
            state = tuple(part[len(last)] for part in given)
            names = f"_l{number}" + "_reverse" * backwards
            out, state = _sequence(layer, names, x, time, state, backwards)
            directions.append(out)
            last.append(state)
        x = torch.cat(directions, 2) if layer.bidirectional else directions[0]
        if layer.dropout and number < layer.num_layers - 1:
            x = F.dropout(x, layer.dropout, layer.training)
    states = tuple(torch.stack(parts) for parts in zip(*last, strict=True))
    return x, states if lstm else states[0]


def _sequence(layer: nn.RNNBase, names: str, x: Any, time: int, state: State, backwards: bool) -> tuple[Tensor, State]:
    """Run one layer of a recurrent module in one direction; return its states h of all time steps, and its last state.

    layer: the module. names: the end of the names of the weights of this layer and direction, such as "_l0_reverse". x:
    the layer's input. time: the dimension of x that counts time steps. state: the state before the first time step,
    (h,) or for an LSTM (h, c); () for zeros. backwards: go from the last time step to the first.
    """
    cell, arranged = _CELLS[type(layer)]
    w, v = (arranged(getattr(layer, kind + names)) for kind in ("weight_ih", "weight_hh"))
    b, c = (arranged(getattr(layer, kind + names)) if layer.bias else None for kind in ("bias_ih", "bias_hh"))
    project = getattr(layer, "weight_hr" + names) if layer.proj_size else None
    out: list[Tensor] = []
    parts = list(F.linear(x, w, b).unbind(time))
    for a in reversed(parts) if backwards else parts:
        state = cell(layer, a, F.linear(state[0], v, c) if state else c, state)
        if project is not None:
            state = F.linear(state[0], project), *state[1:]
        out.append(state[0])
    return torch.stack(out[::-1] if backwards else out, time), state


def _plus(a: Any, b: Any) -> Any:
    return a if b is None else a + b


def _rnn(layer: nn.RNNBase, a: Any, b: Any, state: State) -> State:
    return ((torch.tanh if layer.nonlinearity == "tanh" else torch.relu)(_plus(a, b)),)


def _lstm(layer: nn.RNNBase, a: Any, b: Any, state: State) -> State:
    f, i, o, g = torch.sigmoid(_plus(a, b)).chunk(4, 1)
    g = 2 * g - 1
    if state:
        kept, new = (torch.cat([f, i], 1) * torch.cat([state[1], g], 1)).chunk(2, 1)
        c = kept + new
    else:
        c = i * g
    return o * torch.tanh(c), c


def _arranged_lstm(weight: Any) -> Any:
    """Return an LSTM's weight with its rows in another order of gates, so that one sigmoid computes all four gates.

    torch has the order i, f, g, o; the result has f, i, o, 2 g, because tanh(g) = 2 sigmoid(2 g) - 1.
    """
    i, f, g, o = weight.chunk(4, 0)
    return torch.cat([f, i, o, 2 * g], 0)


def _gru(layer: nn.RNNBase, a: Any, b: Any, state: State) -> State:
    *rz, n = a.chunk(3, 1)
    *old_rz, old = (None, None, None) if b is None else b.chunk(3, -1)
    r, z = torch.sigmoid(torch.cat([_plus(x, y) for x, y in zip(rz, old_rz, strict=True)], 1)).chunk(2, 1)
    n = torch.tanh(_plus(n, None if old is None else r * old))
    return (n + z * (state[0] - n) if state else n - z * n,)


_CELLS: dict[type[nn.RNNBase], tuple[Callable[..., State], Callable[[Any], Any]]] = {
    nn.RNN: (_rnn, lambda weight: weight),
    nn.LSTM: (_lstm, _arranged_lstm),
    nn.GRU: (_gru, lambda weight: weight),
}

REFUSED = [
    Refused(
        "torch's LSTM, GRU and RNN are unrolled on an example, hummingbird.convert_model(net, example=x); "
        "others: write the steps",
        (nn.RNNBase, nn.RNNCellBase),
    ),
]
