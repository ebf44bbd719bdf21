"""Values of a net on some images: the magnitudes of those that it compares, and the ranges of rows.

HummingBird-eco derives its windows from the magnitudes. A window [k:m) holds x in ring units (2^16 is one) if -2^(k-1)
<= x < 2^(k-1), so the largest |x| of a layer determines the k that it needs (Maeng and Suh, 2023, section 4.1). For a
layer that compares differences or shifted values (max pooling, hardtanh, splines) these are measured; for a table of
polynomials, its argument.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from hummingbird import graph, ranks
from hummingbird.bits import BitConfig, BitWindow, Rows
from hummingbird.errors import ConfigError, InputError
from hummingbird.graph import OPS, Step
from hummingbird.graph.example_shapes import settled
from hummingbird.graph.ops import functions
from hummingbird.graph.ops.attention import shown_places
from hummingbird.graph.ops.norms import rows as rows_of
from hummingbird.mpc.functions.tabulated import Tabulated
from hummingbird.mpc.layers.softmax_in_range import pivots
from hummingbird.mpc.plan.builders import CUSTOM, ON_SQUARES, compares, ranged
from hummingbird.mpc.plan.ranges import by_weights
from hummingbird.mpc.plan.rewritten import UNDECIDED
from hummingbird.mpc.protocols.law import Law
from hummingbird.mpc.protocols.step_tables import TableChoice
from hummingbird.ring import SCALE
from hummingbird.simulation.compare import Compare
from hummingbird.simulation.folded import FoldedNet, FoldedState
from hummingbird.simulation.layers import Twin, Windows, check_protocol, twins


class _Watched(Compare):
    """Simulates comparisons as `Compare` does, and notes the largest |v| that was compared."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, clamp=False)
        self.largest = -1.0  # none so far

    def see(self, v: Tensor) -> None:
        """Note compared values: `largest` becomes the largest |v| of all values so far. A NaN counts as larger than all
        numbers.
        """
        if v.numel():
            seen = max((abs(float(end)) for end in torch.aminmax(v)), key=lambda size: (math.isnan(size), size))
            self.largest = seen if math.isnan(seen) else max(self.largest, seen)

    def relu(self, v: Tensor, law: Law) -> Tensor:
        self.see(v)
        return super().relu(v, law)

    def both(self, v: Tensor, law: Law, u: int | None = None, rounding: int | None = None) -> tuple[Tensor, Tensor]:
        self.see(v)
        return super().both(v, law, u, rounding)


def magnitudes(
    net: nn.Module,
    images: Tensor,
    bits: BitConfig | BitWindow | str | PathLike[str] | None = None,
    *,
    protocol: str = "masked",
    parties: int = 2,
    seed: int = 0,
    batch: int = 128,
    public: Sequence[Tensor] = (),
    progress: Callable[[int, int], None] | None = None,
    aim: str = "latency",
) -> dict[str, int]:
    """Find the largest |x| that each comparing layer of a net compares over `images` (N, ...), by name, in ring units.

    bits: windows during the run; None: exact comparisons. public: the net's public inputs, each a single tensor for all
    images, or one with a row for each image. batch: images at a time. progress: called with (images done, of all) after
    every batch. aim: as for `convert_model`.
    The largest |x| is rounded up; for a layer whose window has no bits it is 0. A max pooling whose result neither
    randomness nor the window can change is computed by torch; its differences are then bounded by an image's largest
    value less the smallest, and so are argmax's. Cost: one pass over the images, as fast as plain inference; ranks
    share it (hummingbird/ranks.py).
    Raises InputError for no images, or values that are not finite; ModelError for a net that cannot be converted, and
    ConfigError for windows that do not fit the net.
    """
    check_protocol(protocol, parties)
    check_images(images, batch)
    config = BitConfig.of(bits)
    folded = FoldedNet(net, protocol, rows=config.rows)
    windows = Windows(folded.traced, protocol, config.rows)
    config.check_names(windows.names)
    config.check_use(lambda: [graph.fingerprint(folded.traced)], protocol, parties)
    compare = _Watched(seed)
    found: dict[str, float] = {}
    passed: dict[str, float] = {}  # ReLU -> the largest |x| before the max poolings with which it was exchanged

    def watched(name: str, twin: Twin) -> Twin:
        def run(x: Tensor, *others: Any) -> Tensor:
            compare.largest = passed.pop(name, -1.0) if config.window(name).w else -1.0
            for relu in windows.order.passed.get(name, ()):
                passed[relu] = max(passed.get(relu, -1.0), _largest(x))
            out = twin(x, *others)
            if name in itself and config.window(name).w:
                compare.largest = _largest(x)
            if compare.largest < 0 and config.window(name).w:
                compare.see(_spread(x))
            if not math.isfinite(compare.largest):
                raise InputError("compares values that are not finite", where=name, hint="scale the net's weights down")
            found[name] = max(0.0, compare.largest)
            return out

        return run

    plan = windows.plan(config, TableChoice.of(aim))
    layers = twins(plan, folded.steps, parties, compare)
    instead = {name: watched(name, twin) for name, twin in layers.items()}
    itself = {step.name for step in plan if isinstance(step.layer, Tabulated)}
    parts = slices(len(images), batch)

    def started(rows: slice) -> FoldedState:
        return folded.start(images[rows], *public_rows(folded.traced, public, rows))

    def run(number: int) -> Tensor:
        go_to(number)
        folded.finish(started(parts[number]), instead)
        if progress is not None:
            progress(min((number + ranks.size()) * batch, len(images)), len(images))
        return torch.tensor([[found.get(name, 0.0) for name in windows.names]], dtype=torch.float64)

    with torch.inference_mode():
        go_to = compare.passes(lambda: folded.finish(started(slice(0, 1)), layers))
        every = ranks.joined(run, [1] * len(parts), torch.empty(0, len(windows.names), dtype=torch.float64))
    return {name: math.ceil(most * 2**SCALE) for name, most in zip(windows.names, every.amax(0).tolist(), strict=True)}


def slices(count: int, batch: int) -> list[slice]:
    """Divide `count` images into batches; returns the slice of each batch."""
    return [slice(start, min(start + batch, count)) for start in range(0, count, batch)]


def public_rows(steps: Sequence[Step], public: Sequence[Tensor], rows: slice | Tensor) -> list[Tensor]:
    """Return the rows of a net's public inputs that belong to some of the images.

    steps: the net's. public: the public inputs, in order. rows: the numbers of these images. An input that has a row
    for each image is cut to these rows; an input for all images is returned unchanged.
    """
    each = [step.attrs["shape"][:1] == (None,) for step in steps if step.op == "public"]
    return [x[rows] if own else x for x, own in zip(public, each, strict=True)]


def check_images(images: Tensor, batch: int) -> None:
    """Raise InputError unless `images` are finite real images, at least one; ConfigError unless `batch` is positive."""
    if type(batch) is not int or batch < 1:
        raise ConfigError(f"{batch!r} images at a time", where="batch", hint="a positive integer")
    if not isinstance(images, Tensor) or not images.is_floating_point():
        got = str(images.dtype) if isinstance(images, Tensor) else type(images).__name__
        raise InputError(f"expected a floating-point tensor, got {got}", where="images", hint="images.float()")
    if images.dim() < 2 or not len(images):
        hint = "a batch of at least one image, (N, C, H, W)"
        raise InputError(f"no images in a tensor of shape {tuple(images.shape)}", where="images", hint=hint)
    if images.numel() and not all(bool(end.isfinite()) for end in torch.aminmax(images)):
        raise InputError("images hold NaN or infinity", where="images", hint="look at how they are normalised")


def _largest(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else -1.0


def _spread(x: Tensor) -> Tensor:
    flat = x.flatten(1)
    return flat.amax(1) - flat.amin(1)


# Ranges of the rows of softmaxes and norms ----------------------------------------------------------------------------
#
# They are for `BitConfig.rows`: private forms of rows in a known range cost less. For a row of a softmax: its values
# less their mean, and the mean of e^(x - mean). For a row of a norm: its variance plus eps. For a function of one
# value: the value. The ranges are widened, values by `headroom` and variances by its square, as the result for a row
# beyond its range is noise. A function whose values are all on one side of 0 may have a pole there, as log and 1/x
# have: its range stays on this side.

HEADROOM = 0.25
_NARROWER = 3 / 4  # of a range: tables of ranges that differ by less may be equal
_LARGEST_CLAMPED = 2.0**12  # of a clamped input, half of what the clamp's window holds
_LEAST = 2.0**-10  # least width of a softmax's range on either side, for rows of equal values


class _Seen:
    """Keeps the least and the largest value that `note` got for one softmax, norm or function, over all batches so far.

    For a norm the values are those of which it takes the root, such as the variances of rows plus eps, without zeros,
    since a row whose squares add up to 0 gives 0 in any range. For a softmax they are x minus the mean of its row, with
    the headroom; `sum` is the largest mean of e^value in a row.
    """

    def __init__(self) -> None:
        self.least, self.most, self.sum = math.inf, -math.inf, 1.0

    def note(self, values: Tensor) -> None:
        if not values.numel():
            return
        least, most = (float(end) for end in torch.aminmax(values))
        self.least, self.most = min(self.least, least), max(self.most, most)

    def rows(self, step: Step, x: Tensor, mask: Sequence[Tensor], more: float) -> None:
        """Note the rows of a softmax's logits x. mask: public, of this call. more: 1 + the headroom."""
        dim = step.attrs["dim"]
        shown = shown_places(x, step.attrs.get("causal", False), step.attrs.get("hidden"), mask[0] if mask else None)
        if shown is None:
            centered = (x - x.mean(dim, keepdim=True)).double() * more
            self.note(centered)
            sums = centered.exp().mean(dim)
        else:
            masked, x = pivots(shown.movedim(dim, -1)), x.movedim(dim, -1).double()
            centered = torch.where(masked.shown, x - masked.mean(x), 0.0) * more
            self.note(centered)
            sums = masked.sum(centered.exp())
        self.sum = max(self.sum, float(sums.max()))


def find_rows(
    net: nn.Module,
    images: Tensor,
    *,
    headroom: float = HEADROOM,
    error: float | None = None,
    batch: int = 128,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Rows]:
    """Find for each softmax, norm and smooth function of a net the range of its rows or values, on inputs (N, ...).

    Returns a `Rows` for each layer, by its name, for `BitConfig.rows`. headroom: by which fraction values may exceed
    the range seen, 0 or more; 0.25 is a quarter. error: the largest error of the functions' results, such as 2**-8;
    None: as `Rows` says. batch: inputs that run at a time. progress: called with (inputs done, of all) after every
    batch. Cost: one pass over the inputs, in float32. Raises InputError for no inputs and values that are not finite,
    ModelError for a net that cannot be converted, ConfigError for the other arguments.

    A function of a recurrent layer has one range for all time steps (`by_weights`), by the name of the first one, so
    that it holds for inputs of any length. If what the input adds to its argument lies far beyond the numbers between
    which the function bends, the range has a `state`: then the input's part is clamped, once for all time steps.

    >>> net = torch.nn.Sequential(net, torch.nn.Softmax(1))
    >>> rows = hummingbird.find_rows(net, images)
    >>> list(rows)
    ['1']
    >>> config = BitConfig().with_rows(rows)
    """
    if isinstance(headroom, bool) or not isinstance(headroom, (int, float)) or not 0 <= headroom < math.inf:
        raise ConfigError(f"headroom={headroom!r}", where="headroom", hint="a finite number from 0")
    check_images(images, batch)
    net = settled(graph.unwrapped(net), images[:1], any_batch=False, custom=tuple(CUSTOM))
    folded, seen = FoldedNet(net, "masked"), dict[str, _Seen]()
    more, pooled, shared = 1.0 + headroom, by_weights(folded.traced), dict[tuple[Any, ...], _Seen]()

    def watched(step: Step) -> Callable[..., Any]:
        key = pooled.get(step.name, (step.name,))
        found = seen[step.name] = shared.setdefault(key, _Seen())

        def run(x: Tensor, *others: Tensor) -> Any:
            if not all(bool(value.isfinite().all()) for value in (x, *others)):
                raise InputError("rows of values that are not finite", where=step.name, hint="scale the weights down")
            if x.numel() and step.op == "softmax":
                found.rows(step, x, others, more)
            elif x.numel() and step.op not in ON_SQUARES:
                found.note(x.double())
            elif x.numel():
                for value in (x, *others):
                    squares = _under_root(step, value.double())
                    found.note(squares[squares > 0])
            return OPS[step.op](step.attrs, x, *others)

        return run

    kinds = [(name, step) for name, step in folded.steps.items() if ranged(step)]
    sums = _Sums(list(folded.steps.values()), {name: pooled.get(name, (name,)) for name, _ in kinds})
    instead = sums.watched() | {name: watched(step) for name, step in kinds}
    done = 0
    with torch.inference_mode():
        for part in images.split(batch):
            folded.finish(folded.start(part), instead)
            done += len(part)
            if progress is not None:
                progress(done, len(images))
    noted = [(name, step) for name, step in kinds if step.op not in ON_SQUARES or seen[name].most > -math.inf]
    # A call name#1 of which nothing else is known than of `name` needs no rows of its own (`BitConfig.rows_of`).
    noted = [(name, step) for name, step in noted if "#" not in name or seen.get(_first(name)) is not seen[name]]
    return {name: sums.clamped(step, _rows(step, seen[name], more, error), more) for name, step in noted}


def _first(name: str) -> str:
    return name.partition("#")[0]


class _Sums:
    """Sees the two terms of the arguments of a recurrent layer's functions: the input's, and the state's (`InputTerm`).

    steps: the net's. keys: of functions, by name; those with equal keys share what is seen.
    """

    def __init__(self, steps: Sequence[Step], keys: Mapping[str, tuple[Any, ...]]) -> None:
        terms, calls = graph.input_terms(steps), defaultdict[str, set[Any]](set)
        for step in steps:  # a layer is clamped if all its calls are, and share a range
            calls[_first(step.name)].add(keys.get(step.name) if step.name in terms else None)
        self._terms = {name: term for name, term in terms.items() if name in keys and len(calls[_first(name)]) == 1}
        self._steps, self._keys = steps, keys
        self._inputs, self._states = defaultdict[Any, _Seen](_Seen), defaultdict[Any, _Seen](_Seen)

    def watched(self) -> dict[str, Callable[..., Any]]:
        """Return functions that replace the steps that add the terms up, by name."""
        functions: dict[int, list[str]] = {}
        for name, term in self._terms.items():
            if term.total is not None:
                functions.setdefault(term.total, []).append(name)
        return {self._steps[total].name: self._watched(self._steps[total], names) for total, names in functions.items()}

    def _watched(self, step: Step, names: Sequence[str]) -> Callable[..., Any]:
        def run(*terms: Tensor) -> Any:
            for name in names:
                term, key = self._terms[name], self._keys[name]
                part = slice(term.first, term.last)
                constant = step.attrs.get("value")
                other = terms[1 - term.own] if len(terms) == 2 else torch.as_tensor(constant).expand_as(terms[0])
                self._inputs[key].note(terms[term.own][:, part].double())
                self._states[key].note(other[:, part].double())
            return OPS[step.op](step.attrs, *terms)

        return run

    def clamped(self, step: Step, rows: Rows, more: float) -> Rows:
        """Return rows with a state, if these are so much narrower that a table is smaller; else the rows themselves.

        step: the function. rows: of its argument. more: 1 + the headroom.
        """
        key = self._keys.get(step.name)
        if key not in self._inputs or step.op not in ("sigmoid", "tanh"):
            return rows
        left, right = functions.tails(f"{step.op}(x)")
        assert left is not None and right is not None
        own, seen = _rows(step, self._inputs[key], more, None), self._states[key]
        state = max(abs(seen.least), abs(seen.most)) * more + _LEAST
        low, high = max(own.least, left.at - state), min(own.most, right.at + state)
        if low >= high:  # the input alone decides
            return rows
        narrow = high + 2 * state + UNDECIDED - low <= _NARROWER * (rows.most - rows.least)
        if not narrow or max(-own.least, own.most) > _LARGEST_CLAMPED:
            return rows
        return Rows(low - state, high + state + UNDECIDED, error=rows.error, state=state)


def _under_root(step: Step, x: Tensor) -> Tensor:
    """Return the numbers of which a step takes the root, one for each row of its input x, in any shape."""
    a = step.attrs
    if step.op == "norm":
        values = rows_of(a, x)
        return (values.var(-1, unbiased=False) if a["center"] else values.square().mean(-1)) + a["eps"]
    own = {"dims": (a["dim"],), "center": False, "correction": None, "eps": 0.0} if step.op == "cosine" else a
    least = a["eps"] if step.op == "cosine" else a.get("least", 0.0)
    found: Tensor = OPS["moment"]({**own, "keepdim": False, "root": False}, x)
    return torch.where(found >= 2.0 ** (-2 * SCALE), found.clamp(min=least**2), 0.0)  # below, all values are 0


def _rows(step: Step, found: _Seen, more: float, error: float | None) -> Rows:
    if step.op == "softmax":
        return Rows(min(found.least, -_LEAST), max(found.most, _LEAST), found.sum)
    if step.op in ON_SQUARES:
        return Rows(found.least / more**2 * (1 - 2.0**-20), found.most * more**2 * (1 + 2.0**-20))
    if found.least > found.most:  # no values
        return Rows(-_LEAST, _LEAST, error=error)
    spread = max(abs(found.least), abs(found.most)) * (more - 1) + _LEAST
    if found.least >= 0:
        return Rows(found.least / more, found.most * more + _LEAST, error=error)
    if found.most <= 0:
        return Rows(found.least * more - _LEAST, found.most / more, error=error)
    return Rows(found.least - spread, found.most + spread, error=error)


def ranges(net: nn.Module, images: Tensor) -> dict[str, Rows]:
    """Find the ranges that a net's functions without tails need before anything can run; {} if it has none.

    The functions are those of `ranges.check_ranges`, such as log and 1/x. net, images: as for `find_rows`.
    """
    steps = FoldedNet(net, "masked").steps
    needed = {name for name, step in steps.items() if step.op == "function" and not compares(step)}
    return {name: rows for name, rows in find_rows(net, images).items() if name in needed} if needed else {}
