"""torch's recurrent layers and cells, as calls for each time step of the example.

    RNN    h' = tanh or relu of a + b               a = W x_t + b_ih, of all steps at once; b = V h + b_hh
    LSTM   c' = sigmoid(f) c + sigmoid(i) tanh(g)   h' = sigmoid(o) tanh(c')              i, f, g, o = a + b
    GRU    n = tanh(a_n + sigmoid(r) b_n)           h' = sigmoid(z) h + (1 - sigmoid(z)) n       r, z = a + b

The gates f, i and o of an LSTM are one sigmoid, with g's tanh beside it, and both terms of a sum are one product: a
step of an LSTM or a GRU has four functions and products in a row, one of an RNN has one. These functions replace a
layer's forward() while the net is traced, and use the layer's own parameters. Without an initial state, or with one
that is 0, the terms of the state are left out.

g has a table of its own: its values and the error that it may have often differ from those of f, i and o.

The input of an upper layer is a stack of the lower layer's states. For private inference its product with weights is
made for each time step by itself (`by_time`, graph/time_steps.py).

A first state of 0 bounds all later states: |c| <= t after t steps of an LSTM, and |h| <= 1 in a GRU. The planner, which
sees one step at a time, would count a bit more for every step, until no bound is left and every step needs openings of
its own. So the sum that makes the state carries the bound (`sum_within`). It allows for gates that err by ERROR.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from hummingbird.graph.build import StepBuilder, Unsupported
from hummingbird.graph.ops.op import Refused, Spelling
from hummingbird.graph.ops.packed import Sequences
from hummingbird.graph.ops.public import shown
from hummingbird.graph.steps import Ref

UNROLLED = (nn.RNN, nn.LSTM, nn.GRU, nn.RNNCell, nn.LSTMCell, nn.GRUCell)

State = tuple[Any, ...]  # (h,), for an LSTM (h, c); empty: all 0
ERROR = 2.0**-8  # a sigmoid's or a tanh's result may exceed 1 by this much


def unrolled(layer: nn.RNNBase | nn.RNNCellBase, input: Any, hx: Any = None) -> Any:
    """Compute the result of a recurrent layer or cell by other functions of torch, step by step in time.

    layer: of a type in UNROLLED. A layer's result is (output, last states), a cell's is the next state. input: (batch,
    time, features), or (time, batch, features) without batch_first; of a cell (batch, features). hx: the first states;
    None: 0.
    Raises Unsupported for a sequence without a batch, and for first states of other shapes than torch takes.
    """
    kind = type(layer).__name__
    packed = input if isinstance(input, Sequences) else None
    input = input if packed is None else packed.x
    if not isinstance(input, (Tensor, fx.Proxy)):
        what, hint = f"{kind} on a {type(input).__name__}", "make it by pack_padded_sequence, or give a padded tensor"
        raise Unsupported(what, hint)
    if isinstance(layer, nn.RNNCellBase):
        if input.dim() != 2:
            raise Unsupported(f"{kind} on an input without a batch", "give (batch, features)")
        return _cell(layer, input, hx)
    if input.dim() != 3:
        raise Unsupported(f"{kind} on a sequence without a batch", "give (batch, time, features)")
    lstm, time = isinstance(layer, nn.LSTM), packed.time if packed else 1 if layer.batch_first else 0
    given: Sequence[Any] = () if hx is None else hx if lstm else (hx,)
    before = layer.num_layers * (1 + layer.bidirectional), input.size(1 - time)
    gates, width = cast(Tensor, layer.weight_hh_l0).shape  # an LSTM has four gates, each as wide as c
    _check_states(kind, given, (*before, width), (*before, gates // 4))
    given = () if all(_most(part) == 0 for part in given) else given
    last: list[State] = []
    x = input
    for number in range(layer.num_layers):
        directions = []
        for backwards in (False, True)[: 1 + layer.bidirectional]:
            state = tuple(part[len(last)] for part in given)
            names = f"_l{number}" + "_reverse" * backwards
            out, state = _sequence(layer, names, x, time, state, backwards, packed)
            directions.append(out)
            last.append(state)
        x = torch.cat(directions, 2) if layer.bidirectional else directions[0]
        if layer.dropout and number < layer.num_layers - 1:
            x = F.dropout(x, layer.dropout, layer.training)
    states = tuple(torch.stack(parts) for parts in zip(*last, strict=True))
    result = x if packed is None else packed._replace(x=packed.chosen(x, packed.mask))
    return result, states if lstm else states[0]


def _cell(layer: nn.RNNCellBase, input: Any, hx: Any) -> Any:
    """Compute the next state of a recurrent cell: h, or (h, c) for an LSTM. input: (batch, features). hx: the state."""
    lstm = isinstance(layer, nn.LSTMCell)
    state: State = () if hx is None else tuple(hx) if lstm else (hx,)
    _check_states(type(layer).__name__, state, *[(input.shape[0], layer.hidden_size)] * 2)
    state = () if all(_most(part) == 0 for part in state) else state
    step, arranged, grows = _STEPS[type(layer)]
    w, v = arranged(layer.weight_ih), arranged(layer.weight_hh)
    b, c = (arranged(layer.bias_ih), arranged(layer.bias_hh)) if layer.bias else (None, None)
    a = F.linear(input, w, b)
    found = step(layer, "", a, F.linear(state[0], v, c) if state else c, state, most_after(1, grows, state))
    return found if lstm else found[0]


def _check_states(kind: str, states: Sequence[Any], *shapes: tuple[Any, ...]) -> None:
    """Raise Unsupported unless the first states, h or (h, c), have these shapes. kind: names the layer."""
    for state, shape in zip(states, shapes, strict=False):
        if tuple(state.shape) != shape:
            raise Unsupported(
                f"{kind} on a first state of shape {tuple(state.shape)}", f"give {shape}, as torch takes it"
            )


def _sequence(
    layer: nn.RNNBase, names: str, x: Any, time: int, state: State, backwards: bool, packed: Sequences | None
) -> tuple[Tensor, State]:
    """Run one layer of a recurrent module in one direction; return its states h of all time steps, and its last state.

    Behind the end of a packed sequence the states h are arbitrary: no layer's results within sequences depend on them.
    layer: the module. names: the end of the names of the weights of this layer and direction, such as "_l0_reverse". x:
    the layer's input. time: the dimension of x that counts time steps. state: the state before the first time step,
    (h,) or for an LSTM (h, c); () for zeros. backwards: go from the last time step to the first. packed: the sequences'
    lengths, if they are packed.
    """
    step, arranged, grows = _STEPS[type(layer)]
    w, v = (arranged(getattr(layer, kind + names)) for kind in ("weight_ih", "weight_hh"))
    b, c = (arranged(getattr(layer, kind + names)) if layer.bias else None for kind in ("bias_ih", "bias_hh"))
    project = getattr(layer, "weight_hr" + names) if layer.proj_size else None
    parts: list[tuple[Any, ...]] = [(a,) for a in F.linear(x, w, b).unbind(time)]
    most, first = most_after(len(parts), grows, state), state

    def run(a: Any, *state: Any) -> State:
        state = step(layer, names, a, F.linear(state[0], v, c) if state else c, state, most)
        return state if project is None else (F.linear(state[0], project), *state[1:])

    def run_inside(a: Any, mask: Any, *state: Any) -> State:
        """Run a step where the mask is true; elsewhere, behind the end of a sequence, keep the first state."""
        new = run(a, *state)
        if not first:
            return tuple(shown(x, mask) for x in new)
        return tuple(shown(x - y, mask) + y for x, y in zip(new, first, strict=True))

    if packed is None:
        states = in_time(run, parts[::-1] if backwards else parts, state)
    elif backwards:
        parts = [(*part, packed.mask[:, place : place + 1]) for place, part in enumerate(parts)]
        states = in_time(run_inside, parts[::-1], state)
    else:
        states = in_time(run, parts, state)
    every = [torch.stack(part[::-1] if backwards else part, time) for part in zip(*states, strict=True)]
    if packed is None:
        return every[0], states[-1]
    last = states[-1] if backwards else tuple(packed.chosen(part, packed.ends()).sum(time) for part in every)
    return every[0], last


def in_time(run: Callable[..., State], parts: Sequence[tuple[Any, ...]], state: State) -> list[State]:
    """Run a recurrent step over the parts of a sequence; return the states after each of them.

    run: takes a part's values, then the state's, and returns the next state. state: before the first part; () for
    zeros. From the third step on, the calls are those of the second step for other inputs: symbols take them over
    (`_Calls`), about ten times faster than by `run`. (The first step may have no state, or use it in another way.)
    """
    states: list[State] = []
    calls: _Calls | None = None
    for part in parts:
        given = *part, *state
        if calls is not None:
            state = calls.again(*given)
        elif states and state and all(isinstance(x, fx.Proxy) for x in given) and given[0].tracer.running is not None:
            calls = _Calls(run, *given)
            state = calls.result
        else:
            state = run(*given)
        states.append(state)
    return states


class _Calls:
    """The calls of a function on symbols; they can be recorded once more for other symbols of the same shapes.

    run: the function, which returns a tuple of symbols. given: its arguments, all different symbols. result: what it
    returned.
    """

    def __init__(self, run: Callable[..., State], *given: Any) -> None:
        self._tracer, self._given = given[0].tracer, [x.node for x in given]
        before = len(self._tracer.graph.nodes)
        self.result = run(*given)
        self._nodes = list(self._tracer.graph.nodes)[before:]

    def again(self, *given: Any) -> State:
        """Record the calls for the arguments `given`, and return the results, without running the function."""
        new = dict(zip(self._given, (x.node for x in given), strict=True))
        values = self._tracer.running.values
        for node in self._nodes:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda old: new.get(old, old))
            new[node] = self._tracer.create_node(node.op, node.target, args, kwargs)
            new[node].meta, values[new[node]] = dict(node.meta), values[node]
        return tuple(self._tracer.proxy(new[x.node]) for x in self.result)


# One time step: (layer, end of the weights' names, what input and state add, state, bound of the new one) -> new state


def _plus(a: Any, b: Any) -> Any:
    return a if b is None else a + b


def labelled(x: Any, label: str) -> Any:
    """Return x, a function's result in every time step; the steps are "label", "label#1" and so on, within the layer.

    So what is known of "label", such as its range, holds for all time steps, of any number (`BitConfig.rows_of`).
    """
    if isinstance(x, fx.Proxy):
        x.node.meta["label"] = label
    return x


def _rnn(layer: nn.RNNBase, names: str, a: Any, b: Any, state: State, most: float | None) -> State:
    return (labelled((torch.tanh if layer.nonlinearity == "tanh" else torch.relu)(_plus(a, b)), "h" + names),)


def lstm_step(layer: Any, names: str, a: Any, b: Any, state: State, most: float | None) -> State:
    gates, g = _plus(a, b).split([a.shape[1] // 4 * 3, a.shape[1] // 4], 1)
    f, i, o = labelled(torch.sigmoid(gates), "gates" + names).chunk(3, 1)
    g = labelled(torch.tanh(g), "g" + names)
    if state:
        kept, new = (torch.cat([f, i], 1) * torch.cat([state[1], g], 1)).chunk(2, 1)
        c = sum_within(kept, new, most)
    else:
        c = _noted(i * g, most)
    return o * labelled(torch.tanh(c), "c" + names), c


def arranged_lstm(weight: Any) -> Any:
    """Return an LSTM's weight with its rows in another order of gates, so that one sigmoid computes three of them.

    torch has the order i, f, g, o; the result has f, i, o, g. Cells ask for the same weight at every time step: a
    symbol keeps its result.
    """
    known = weight.node.meta if isinstance(weight, fx.Proxy) else {}
    if "arranged" not in known:
        i, f, g, o = weight.chunk(4, 0)
        known["arranged"] = torch.cat([f, i, o, g], 0)
    return known["arranged"]


def _gru(layer: Any, names: str, a: Any, b: Any, state: State, most: float | None) -> State:
    sizes = [a.shape[1] // 3 * 2, a.shape[1] // 3]
    rz, n = a.split(sizes, 1)
    old_rz, old = (None, None) if b is None else b.split(sizes, -1)
    r, z = labelled(torch.sigmoid(_plus(rz, old_rz)), "gates" + names).chunk(2, 1)
    n = torch.tanh(_plus(n, None if old is None else r * old))
    return (gated(z, labelled(n, "n" + names), state, most),)


def gated(z: Any, n: Any, state: State, most: float | None) -> Any:
    """Return a GRU's next state, z h + (1 - z) n, by one product. state: (h,); () for zeros. most: bound of the result.

    n + z (h - n) would have half of the products, but its n has only as many right bits as a table gives: it would need
    an opening before the next step's weights.
    """
    if not state:
        return _noted((1 - z) * n, most)
    kept, new = (torch.cat([z, 1 - z], 1) * torch.cat([state[0], n], 1)).chunk(2, 1)
    return sum_within(kept, new, most)


def _same(weight: Any) -> Any:
    return weight


# Bounds of states ----------------------------------------------------------------------------------------------------


def lstm_grows(most: float) -> float:
    """Return a bound of |f c + i g| for |c| <= most, where |f|, |i| and |g| may exceed 1 by ERROR."""
    return most * (1 + ERROR) + (1 + ERROR) ** 2


def gru_grows(most: float) -> float:
    """Return a bound of |z h + (1 - z) n| for |h| <= most, where z, 1 - z and |n| may exceed 1 by ERROR."""
    return max(most, 1 + ERROR) * (1 + 2 * ERROR)


def most_after(steps: int, grows: Callable[[float], float] | None, state: State) -> float | None:
    """Return a bound of a recurrent state after some steps; None if none is known.

    grows: bound of a state -> bound of the next one; None if a state has no bound of this kind. state: the first state,
    () for zeros, whose last part has the bound.
    """
    most = _most(state[-1]) if state else 0.0
    for _ in range(min(steps, _LONGEST)):
        most = None if most is None or grows is None else grows(most)
    return most


_LONGEST = 4000  # steps after which a bound has passed 2^20, where all bounds end


def sum_within(x: Any, y: Any, most: float | None) -> Any:
    """Return x + y. most: a bound of its magnitude, which the steps keep for the planner; None if none is known."""
    if most is None or not isinstance(x, fx.Proxy):
        return x + y
    return _noted(x.tracer.create_proxy("call_function", sum_within, (x, y, most), {}), most)


def _noted(x: Any, most: float | None) -> Any:
    """Return x; a symbol keeps the bound `most` of its magnitude, for the steps of cells after it (`_most`)."""
    if isinstance(x, fx.Proxy) and most is not None:
        x.node.meta["most"] = most
    return x


def _most(state: Any) -> float | None:
    """Return a bound of a first state's magnitude; None if none is known.

    It is the state's largest number, if the state is a tensor or a symbol for one, or what was noted when it was
    computed. None is known after a write in place, which torch counts for all views of a tensor. Numbers of private
    weights are not known: item() gives none then (scalar_reads.py).
    """
    if isinstance(state, Tensor):
        most = state.abs().max().item() if state.numel() and not state.is_meta else None
        return float(most) if isinstance(most, (int, float)) else None
    if state.tracer.running.written(state.node):
        return None
    if (noted := state.node.meta.get("most")) is not None:
        return float(noted)
    node = state.node
    while node.op.startswith("call") and getattr(node.target, "__name__", node.target) in _MOVES:
        node = node.args[0]
    if node.op == "get_attr":  # a parameter, or a tensor made in forward() by the name that torch.fx gives it
        made = node.target.startswith("_tensor_constant")
        own = getattr(state.tracer.root, node.target) if made else state.tracer.own(node)
        return None if own is None else _most(own)
    return 0.0 if node.target is torch.zeros else None


_MOVES = frozenset("getitem expand repeat unsqueeze squeeze to contiguous clone detach select".split())


def _sum_within(b: StepBuilder, x: Any, y: Any, most: float) -> Ref:
    return b.emit("add", b.tensor(x), b.tensor(y), most=most)


_STEPS: dict[type[nn.Module], tuple[Callable[..., State], Callable[[Any], Any], Callable[[float], float] | None]] = {
    **dict.fromkeys((nn.RNN, nn.RNNCell), (_rnn, _same, None)),
    **dict.fromkeys((nn.LSTM, nn.LSTMCell), (lstm_step, arranged_lstm, lstm_grows)),
    **dict.fromkeys((nn.GRU, nn.GRUCell), (_gru, _same, gru_grows)),
}

SPELLINGS = [Spelling(_sum_within, functions=(sum_within,))]
REFUSED = [
    Refused(
        "torch's LSTM, GRU and RNN, and their cells, are unrolled on an example: "
        "hummingbird.convert_model(net, example=x)",
        (nn.RNNBase, nn.RNNCellBase),
    ),
]
