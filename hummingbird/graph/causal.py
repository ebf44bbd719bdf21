"""Chunks of a causal net: rows of a sequence that read the rows before them from a cache, as text generation does.

A net reads a sequence of N places, float (1, N, width), and returns a row for each place. It is *causal* if the row of
a place depends on this place and earlier ones alone. `CausalNet.of` proves it, from the steps of the net on all places:
every step must compute each place by itself, as the rules of ops/batch_rules.py show for a batch, but for three forms:

    attention       softmax(q k^T) v with a causal mask: q k^T and the product with v are the *products* of the net
    a table         a constant of N rows, such as positions, that is added
    reshaping       with sizes in which the number of places stands

Then rows [s, s + c) follow from their own inputs and from the earlier rows of k and v. `CausalNet.chunk` makes the
steps that compute them: the constants' rows are cut out, and products read a *cache* of all rows of k or v so far. The
names of steps stay, so windows and ranges for the net hold for its chunks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hummingbird.errors import ModelError, Problem
from hummingbird.graph.calls import on_meta
from hummingbird.graph.interpreter import OPS, Interpreter, run, run_all
from hummingbird.graph.ops.attention import shown
from hummingbird.graph.ops.batch_rules import BatchLayout, Mixed, Where
from hummingbird.graph.ops.op import like
from hummingbird.graph.ops.vocabulary import OPERATIONS
from hummingbird.graph.properties import is_size
from hummingbird.graph.steps import Ref, Step, compact, map_refs, refs
from hummingbird.prg import SEED_BYTES, Stream, derive

AT = "chunk.at"  # the public input of a chunk: int64 (2,), hidden rows at the beginning, and rows before the chunk

_MIXES = "it computes with several places of the sequence at once"
_MIXES_HINT = (
    "between places there may be causal attention alone: F.scaled_dot_product_attention(q, k, v, is_causal=True), "
    "nn.MultiheadAttention with a causal attn_mask, or softmax(q @ k^T, masked) @ v"
)
_NOT_CAUSAL = "attention in which a place reads later places"
_NOT_CAUSAL_HINT = "hide exactly the later places: is_causal=True, or a mask torch.ones(N, N).tril() of all N places"


class _Logits(NamedTuple):
    """Layout of q k^T, or of its softmax: queries in the last dimension but one, keys in the last."""

    weights: bool


class CachedProduct(NamedTuple):
    """A product of attention, in a net's steps: its number there, and that of its cache.

    turned: whether its rows are keys (q k^T); else they are values.
    """

    step: int
    key: int
    turned: bool


@dataclass(frozen=True)
class CausalNet:
    """A net that is proven to be causal, by its steps on sequences of `places` rows of `width` numbers.

    steps: with masks as attributes of softmaxes (mpc/plan/rewritten.py). products: of attention, in order.
    """

    steps: list[Step]
    places: int
    width: int
    products: list[CachedProduct]
    _layouts: list[Any]
    _shapes: list[Any]
    _tables: dict[int, int]  # step that adds a table -> the table's dimension of places, from the end

    @property
    def words(self) -> int:
        """The number of values in a row of the result, such as logits."""
        return int(self._shapes[-1][-1])

    @classmethod
    def of(cls, steps: Sequence[Step], places: int, width: int) -> CausalNet:
        """Prove that a net is causal. Raises ModelError, with every step that prevents it, if it is not."""
        return _Proof(list(steps), places, width).result()

    def chunk(self, rows: int, places: int, last: bool = True) -> list[Step]:
        """Return the steps that compute `rows` rows of a sequence from caches of `places` rows, their own included.

        last: whether the result is the last row's alone; else it has all `rows`. Steps that no other row needs then
        compute the last row only. The steps take the public input `AT` beside the rows, (1, rows, width).
        """
        return _Chunk(self, rows, places, last).steps()

    def check(self, prompt: int) -> None:
        """Compare chunks with the whole net, in plain torch on random numbers, at all places; ModelError if they
        differ."""
        x = Stream(derive(bytes(SEED_BYTES), "rows")).words(1, self.places, self.width).double() * 2.0**-62
        whole, caches, found = run(self.steps, x), dict[int, Tensor](), []
        ends = [0, prompt, min(prompt + 1, self.places), self.places]
        for start, end in zip(ends, ends[1:], strict=False):
            if end > start:
                steps = self.chunk(end - start, end, last=False)
                found.append(run_chunk(steps, x[:, start:end], torch.tensor([0, start]), caches))
        alone = prompt // 2 + 1  # words of a prompt that is padded
        before = x[:, :1].expand(1, prompt - alone, self.width)
        padded = torch.cat([before, x[:, :alone]], 1)
        at = torch.tensor([prompt - alone, 0])
        row = run_chunk(self.chunk(prompt, prompt), padded, at, {})
        unit = 1e-6 * float(whole.abs().max())
        pairs = (torch.cat(found, 1), whole), (row, whole[:, alone - 1 : alone])
        if not all(bool(((one - other).abs() <= unit).all()) for one, other in pairs):
            what = "its rows, computed one after the other, differ from those that it computes at once"
            hint = "forward() may not use the length of the sequence as a number"
            raise ModelError([Problem("output", what, hint)])


def run_chunk(steps: Sequence[Step], x: Tensor, at: Tensor, caches: dict[int, Tensor]) -> Tensor:
    """Compute a chunk in plain torch, and return its result.

    x: (1, rows, width). at: the chunk's public input (`AT`). caches: rows of keys and values by the number of the
    product, (..., rows so far, d); the chunk's own are added.
    """
    net = Interpreter(steps)

    def compute(number: int, step: Step, given: tuple[Any, ...]) -> Any:
        if step.op != "cached_matmul":
            value = OPS[step.op](step.attrs, *given)
            return like(value, x) if step.op == "constant" else value
        left, new, *_ = given
        key, turned = step.attrs["key"], step.attrs["turned"]
        new = new.transpose(-1, -2) if turned else new
        caches[key] = torch.cat([caches[key], new], -2) if key in caches else new
        held = caches[key]
        spare = step.attrs["places"] - held.shape[-2]
        every = torch.cat([held, held.new_zeros(*held.shape[:-2], spare, held.shape[-1])], -2)
        return left @ (every.transpose(-1, -2) if turned else every)

    values = net.start(x, at)
    net.run(values, compute)
    out: Tensor = values[len(steps) - 1]
    return out


# The proof ------------------------------------------------------------------------------------------------------------


class _Proof:
    def __init__(self, steps: list[Step], places: int, width: int) -> None:
        self.steps, self.places, self.width = steps, places, width
        self.layouts: list[Any] = []
        self.products: list[CachedProduct] = []
        self.tables: dict[int, int] = {}
        self.problems: list[Problem] = []

    def result(self) -> CausalNet:
        private = [step for step in self.steps if step.op in ("input", "public")]
        if len(private) != 1 or len(private[0].attrs.get("names", ("x",))) != 1:
            hint = "word vectors (1, N, width) alone: make masks and positions in __init__"
            raise ModelError([Problem(private[-1].name, "a net that generates text has one input", hint)])
        shape = (1, self.places, self.width)
        values = run_all(self.steps, *on_meta(self.steps, shape))
        shapes = [tuple(value.shape) if isinstance(value, Tensor) else value for value in values]
        for number, step in enumerate(self.steps):
            try:
                layout = self._layout(number, step, values)
            except Mixed:
                self._refuse(step, _MIXES, _MIXES_HINT)
                layout = _unknown(values[number])
            self.layouts.append(layout)
        if not self.problems and not self.products:
            self._refuse(self.steps[-1], "the net has no attention", "convert_model serves it")
        if self.problems:
            raise ModelError(self.problems)
        return CausalNet(self.steps, self.places, self.width, self.products, self.layouts, shapes, self.tables)

    def _refuse(self, step: Step, what: str, hint: str) -> None:
        self.problems.append(Problem(step.name, what, hint))

    def _layout(self, number: int, step: Step, values: Sequence[Any]) -> Any:
        """Return where the places are in a step's value: a `BatchLayout`, `_Logits`, or None; for a tuple, a list."""
        value = values[number]
        several = isinstance(value, (tuple, list))
        if step.op == "input":
            return BatchLayout(1, size=self.places)
        if not (isinstance(value, Tensor) or several) or is_size(step):
            return None
        if step.op == "getitem" and isinstance(values[step.inputs[0].index], (tuple, list)):
            return self.layouts[step.inputs[0].index][step.attrs["index"]]
        tensors = [ref.index for ref in refs(step.inputs) if isinstance(values[ref.index], Tensor)]
        where, given = [self.layouts[index] for index in tensors], [tuple(values[index].shape) for index in tensors]
        parts = value if several else [value]
        if all(layout is None for layout in where):
            return [None] * len(parts) if parts is value else None
        if any(layout == _UNKNOWN for layout in where):
            return [_UNKNOWN] * len(parts) if parts is value else _UNKNOWN
        if step.op == "output":
            if where[0] != BatchLayout(1, size=self.places) or value.dim() != 3:
                what = f"the net returns a value of shape {tuple(value.shape)}, not a row for each place"
                self._refuse(step, what, "return logits (1, N, words): generation takes the last place's by itself")
            return where[0]
        if (attention := self._attention(number, step, where, given)) is not None:
            return attention
        if any(isinstance(layout, _Logits) for layout in where):
            raise Mixed
        if step.op in ("add", "sub") and (table := self._table(step, where[0], len(value.shape))) is not None:
            self.tables[number] = table
            return where[0]
        rule = OPERATIONS[step.op].batch
        if rule is None or step.op == "custom":
            raise Mixed
        layouts = [rule(step.attrs, where, given, tuple(part.shape)) for part in parts]
        return layouts if parts is value else layouts[0]

    def _attention(self, number: int, step: Step, where: list[Any], given: list[tuple[int, ...]]) -> Any:
        """Return the layout of a step of attention's products and of what is between them; None for another step."""
        rows = [layout.axis - len(shape) for layout, shape in zip(where, given, strict=True) if _simple(layout)]
        first = where[0]
        if step.op == "matmul" and rows == [-2, -1]:
            self.products.append(CachedProduct(number, len(self.products), True))
            return _Logits(False)
        if not isinstance(first, _Logits):
            return None
        if step.op == "matmul" and first.weights and rows == [-2]:
            self.products.append(CachedProduct(number, len(self.products), False))
            return where[1]._replace(axis=max(map(len, given)) - 2)
        if step.op == "softmax" and not first.weights:
            if step.attrs["dim"] not in (-1, len(given[0]) - 1) or len(step.inputs) > 1 or not self._causal(step):
                self._refuse(step, _NOT_CAUSAL, _NOT_CAUSAL_HINT)
            return _Logits(True)
        number_only = torch.as_tensor(step.attrs.get("value", torch.zeros(2))).numel() == 1
        if step.op in ("mul", "add", "sub", "neg") and len(where) == 1 and (number_only or step.op == "neg"):
            return first
        return None

    def _causal(self, step: Step) -> bool:
        """Whether a softmax hides exactly the keys after its query."""
        hidden, seen = step.attrs.get("hidden"), shown(self.places, self.places)
        if hidden is None:
            return bool(step.attrs.get("causal", False))
        if tuple(hidden.shape[-2:]) != (self.places, self.places):
            return False
        every = hidden.reshape(-1, self.places, self.places) | (~seen if step.attrs.get("causal") else False)
        return bool((every == ~seen).all())

    def _table(self, step: Step, layout: Where, rank: int) -> int | None:
        """Return the dimension of places, from the end, of a constant that a step adds to rows; None for another."""
        value = step.attrs.get("value")
        if not isinstance(value, Tensor) or not _simple(layout) or value.dim() > rank:
            return None
        assert layout is not None
        dim = layout.axis - rank
        return dim if value.dim() >= -dim and value.shape[dim] == self.places else None


_UNKNOWN = "unknown"  # the layout of a value behind a step that was refused


def _unknown(value: Any) -> Any:
    return [_UNKNOWN] * len(value) if isinstance(value, (tuple, list)) else _UNKNOWN


def _simple(layout: Any) -> bool:
    """Whether a value has the places in a dimension that counts nothing else."""
    return isinstance(layout, BatchLayout) and layout.outer == layout.inner == 1


# The steps of a chunk -------------------------------------------------------------------------------------------------

_LAST, _ALL = 1, 2  # how many of a chunk's rows are needed of a value


class _Chunk:
    def __init__(self, net: CausalNet, rows: int, places: int, last: bool) -> None:
        self.net, self.rows, self.places, self.last = net, rows, places, last and rows > 1
        self.products = {product.step: product for product in net.products}
        self.out: list[Step] = []
        self.moved: dict[int, Ref] = {}  # number in the net -> in the chunk
        self.ends: dict[int, Ref] = {}  # the last row of a value of which all are computed
        self.masks: dict[int, Ref] = {}  # by number of rows

    def steps(self) -> list[Step]:
        need = self._needs()
        for number, step in enumerate(self.net.steps):
            if step.op == "input":
                shape = (self.rows, self.net.width)
                attrs = step.attrs | {"shape": (None, *shape), "shapes": (shape,)}
                self.moved[number] = self._emit(replace(step, attrs=attrs))
                public = {"title": AT, "shape": (2,), "dtype": "int64"}
                self.at = self._emit(Step(AT, "public", (), public))
            elif need[number]:
                self.moved[number] = self._step(number, step, need)
        return compact(self.out)

    def _emit(self, step: Step) -> Ref:
        self.out.append(step)
        return Ref(len(self.out) - 1)

    def _needs(self) -> list[int]:
        """Return for each step of the net of how many rows its value is needed: 0, `_LAST` or `_ALL`."""
        steps = self.net.steps
        need = [0] * len(steps)
        need[-1] = _LAST if self.last else _ALL
        for number in reversed(range(len(steps))):
            for place, ref in enumerate(refs(steps[number].inputs)):
                cached = number in self.products and place == 1
                need[ref.index] = max(need[ref.index], _ALL if cached and need[number] else need[number])
            layout = self.net._layouts[number]
            if need[number] == _LAST and isinstance(layout, BatchLayout) and not _simple(layout):
                for ref in refs(steps[number].inputs):  # its last row is not cut out: all of its input is computed
                    need[ref.index] = _ALL
                need[number] = _ALL
        for number, step in enumerate(steps):  # an entry of a tuple has as many rows as the others
            if step.op == "getitem" and need[number] and isinstance(self.net._layouts[step.inputs[0].index], list):
                need[number] = need[step.inputs[0].index]
        return need

    def _step(self, number: int, step: Step, need: list[int]) -> Ref:
        """Emit a step's form in the chunk, for all of the chunk's rows or the last one; return the reference to it."""
        layout = self.net._layouts[number]
        rows = self.rows if need[number] == _ALL else 1

        def read(ref: Ref) -> Ref:
            cut = (
                need[number] == _LAST and need[ref.index] == _ALL and not isinstance(self.net._layouts[ref.index], list)
            )
            return self._last(ref.index) if cut and self.net._layouts[ref.index] is not None else self.moved[ref.index]

        if number in self.products:
            product = self.products[number]
            left, right = step.inputs
            attrs = {"turned": product.turned, "key": product.key, "places": self.places, "all": self.net.places}
            rows = 1 if need[number] == _LAST else self.rows
            mask = () if product.turned else (self._mask(rows),)  # of the weights that multiply values
            inputs = (read(left), self.moved[right.index], *mask)
            return self._emit(Step(step.name, "cached_matmul", inputs, attrs))
        inputs = map_refs(step.inputs, read)
        if step.op == "softmax" and isinstance(layout, _Logits):
            attrs = {"dim": -1}
            return self._emit(replace(step, inputs=(*inputs, self._mask(rows)), attrs=attrs))
        if step.op == "root_scale" and (root := math.isqrt(size := self.net._shapes[number][-1])) ** 2 == size:
            if not root & (root - 1):  # the factor is a power of two, of few bits
                return self._emit(replace(step, op="mul", inputs=inputs, attrs={"value": torch.tensor(1 / root)}))
        if number in self.net._tables:
            return self._added(step, inputs[0], self.net._tables[number], rows)
        if step.op in ("reshape", "expand") and isinstance(layout, BatchLayout):
            sizes = list(self.net._shapes[number])
            sizes[layout.axis] = layout.outer * rows * layout.inner
            inputs = (inputs[0], *sizes)
        if step.op == "unflatten" and isinstance(layout, BatchLayout):
            step = replace(step, attrs=step.attrs | {"sizes": self._unflattened(number, step, layout, rows)})
        return self._emit(replace(step, inputs=inputs))

    def _unflattened(self, number: int, step: Step, layout: BatchLayout, rows: int) -> tuple[int, ...]:
        shape, sizes = self.net._shapes[number], step.attrs["sizes"]
        first = step.attrs["dim"] % (len(shape) - len(sizes) + 1)
        found = list(shape[first : first + len(sizes)])
        if first <= layout.axis < first + len(sizes):
            found[layout.axis - first] = layout.outer * rows * layout.inner
        return tuple(found)

    def _last(self, number: int) -> Ref:
        """Emit the last row of a value, and return the reference to it."""
        if number not in self.ends:
            index = (*(slice(None),) * self.net._layouts[number].axis, slice(-1, None))
            name = f"{self.net.steps[number].name}.last"
            self.ends[number] = self._emit(Step(name, "getitem", (self.moved[number],), {"index": index}))
        return self.ends[number]

    def _mask(self, rows: int) -> Ref:
        if rows not in self.masks:
            attrs = {"rows": rows, "chunk": self.rows, "places": self.places}
            self.masks[rows] = self._emit(Step(f"chunk.seen{rows}", "seen", (self.at,), attrs))
        return self.masks[rows]

    def _added(self, step: Step, x: Ref, dim: int, rows: int) -> Ref:
        attrs = {name: value for name, value in step.attrs.items() if name not in ("value", "reversed")}
        table = self._emit(Step(f"{step.name}.table", "constant", (), {"value": step.attrs["value"]}))
        cut = {"dim": dim, "rows": rows, "chunk": self.rows}
        own = self._emit(Step(f"{step.name}.rows", "rows_at", (table, self.at), cut))
        inputs = (own, x) if step.attrs.get("reversed") else (x, own)
        return self._emit(Step(step.name, step.op, inputs, attrs))


def buckets(prompt: int, places: int) -> list[int]:
    """Return the lengths of caches for single rows: powers of two from 64 that are longer than the prompt, and
    `places`."""
    powers = [1 << power for power in range(6, math.ceil(math.log2(places)))]
    return [*(length for length in powers if prompt < length), places]
