"""Lower the steps of a traced net to steps of a plan: one rule for each operation, or a problem that names the reason.

A layer reads values at rest, whose masks are drawn before any layer runs. Two layers without an activation between them
get a `lift`, a gate that computes the identity.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from hummingbird.bits import BitConfig, BitWindow
from hummingbird.errors import ConfigError, InputError, Problem
from hummingbird.graph import Step as NetStep
from hummingbird.graph.ops.pools import equal_windows, places
from hummingbird.graph.steps import refs
from hummingbird.hybrid import spatial
from hummingbird.hybrid.constants import ARITHMETIC, multiplied, scale_last, summed
from hummingbird.hybrid.plan import WIDTHS
from hummingbird.hybrid.plan_builder import PlanBuilder, UnfinishedStep
from hummingbird.hybrid.scales import joined
from hummingbird.ring import SCALE

COMPARING = frozenset({"relu", "leaky_relu", "prelu", "hardtanh", "max_pool"})
_LAST = frozenset({"softmax", "log_softmax", "sigmoid", "tanh"})
_LAST_HINT = "leave it out of the net, and compute it on the result, which is opened: logits.softmax(1)"
_LAST_HINT += "; hummingbird.convert_model has it, on shares"
SLOPE = 2.0**-9  # largest error of a LeakyReLU's slope, rounded to c / 2^f
_HINT = "train with Conv, Linear, BatchNorm, ReLU, ReLU6, LeakyReLU, PReLU, sums, cat, MaxPool, AvgPool and views"
_HINT += "; hummingbird.convert_model has all operations, on shares"


class Lowering:
    """Turns the steps of a traced net into steps of a plan, with a rule for each operation.

    steps: of the net, with folded batch norms. shapes: of every value for one image. config: the windows. `run` raises
    ConfigError for windows that a garbled gate cannot have.
    """

    def __init__(self, steps: Sequence[NetStep], shapes: Sequence[Any], config: BitConfig) -> None:
        self.steps, self.shapes, self.config = steps, shapes, config
        self.drafts = PlanBuilder()
        self.values: dict[int, UnfinishedStep] = {}
        self._lifts: dict[int, UnfinishedStep] = {}
        self.behind = moved(steps)

    def run(self) -> UnfinishedStep:
        """Turn all steps into steps of a plan; returns the plan's step for the value of the last one."""
        self._check_windows()
        for number, step in enumerate(self.steps):
            if step.op == "output":
                continue
            given = [self.values[ref.index] for ref in refs(step.inputs)]
            self.values[number] = _RULES[step.op](self, number, step, *given)
        return self.values[next(refs(self.steps[-1].inputs)).index]

    def results(self, name: str, parts: Sequence[UnfinishedStep]) -> UnfinishedStep:
        """Bring several results of the net to one unit, and concatenate them; return the plan's step that does so.

        name: of the plan's step. parts: the results in the plan. A window under a result's name bounds its values.
        """
        scale = joined([part.scale for part in parts])
        rows = []
        for place, part in enumerate(parts):
            window = self.config.layers.get(part.name)
            limit = None if window is None else 2.0 ** (window.k - 1 - SCALE)
            same = self.drafts.weighted(f"{name}.{place}", [part], scale, signs=(1,), limit=limit)
            rows.append(self.drafts.local(f"{name}.{place}.row", "reshape", same, (math.prod(part.shape),), {}))
        return self.drafts.concatenated(name, rows)

    def _check_windows(self) -> None:
        """Raise ConfigError, listing all layers, for windows that a garbled gate cannot have."""
        relus = {pool: relu for relu, pool in self.behind.items()}
        wrong, small, outside = [], [], []
        for number, step in enumerate(self.steps):
            if step.op not in COMPARING:
                continue
            window = self.pool_window(number) if step.op == "max_pool" else self.config.window(step.name)
            if window.w not in WIDTHS:
                wrong.append(f"{step.name} {window}")
            elif step.op == "hardtanh" and 2.0 ** (window.k - 1 - SCALE) <= (bound := _farthest(step)):
                outside.append(f"{step.name} {window}, of the bound {bound:g}")
            elif number in relus and window.k <= (relu := self.config.window(self.steps[relus[number]].name)).k:
                small.append(f"{step.name} {window}, of values in {relu}")
        least, most = WIDTHS[0], WIDTHS[-1]
        if wrong:
            hint = "bits=BitWindow(20, 10) for all layers, or a file of `find-bits --cut`"
            raise ConfigError(
                f"a gate takes {least} to {most} bits, but windows are: {', '.join(wrong)}", where="bits", hint=hint
            )
        if outside:
            what = f"differences to a clamp's bounds leave its window: {', '.join(outside)}"
            raise ConfigError(what, where="bits", hint="a larger k: [k:m) holds numbers below 2^(k-17)")
        if small:
            hint = "a k above the ReLU's, or no window: then it is one bit wider than the ReLU's"
            what = f"differences leave the window of a max pooling: {', '.join(small)}"
            raise ConfigError(what, where="bits", hint=hint)

    def pool_window(self, number: int) -> BitWindow:
        """Return the window that a max pooling uses for the difference of any two values. number: of the pooling's
        step.

        It is the pooling's own window, with one exception: a ReLU before the pooling is computed after it, and no
        window is given for the pooling. Then it is the ReLU's window with one more high bit, as a difference can have
        twice the size.
        """
        relu = next((relu for relu, pool in self.behind.items() if pool == number), None)
        named = {self.steps[number].name, self.steps[number].name.partition("#")[0]} & set(self.config.layers)
        if relu is None or named:
            return self.config.window(self.steps[number].name)
        window = self.config.window(self.steps[relu].name)
        return window if window.k == 64 else BitWindow(window.k + 1, window.m)

    def resting(self, x: UnfinishedStep) -> UnfinishedStep:
        """Return x if a layer may read it; otherwise the result of a lift gate on x, which is added if needed.

        A layer may read only a value of which the data's side knows its share before any image. A gate's result is such
        a value, because the data's side draws the result's mask. The lift gate's result has the bits of x that lie in
        its window. All layers that read x share the gate. Raises ConfigError if a gate is needed and x has no window of
        2 to 24 bits.
        """
        if x.rests:
            return x
        if id(x) in self._lifts:
            return self._lifts[id(x)]
        source = x
        while source.op not in ("cut", "linear", "sum", "cat"):
            source = source.inputs[0]
        window = source.window or self.config.window(source.name)
        if window.w not in WIDTHS:
            what = (
                f"a layer follows without an activation, so its input needs a window of 2 to 24 bits, and has {window}"
            )
            raise ConfigError(what, where=source.name, hint=f"add one for {source.name!r} to bits, or a default")
        cut = self.drafts.cut(f"{x.name}.cut", x, window)
        self._lifts[id(x)] = self.drafts.gate(f"{x.name}.lift", cut, "lift", window)
        return self._lifts[id(x)]

    def relu(self, name: str, x: UnfinishedStep) -> UnfinishedStep:
        window = self.config.window(name)
        return self.drafts.gate(name, self.drafts.cut(f"{name}.cut", x, window), "relu", window)


def _farthest(clamp: NetStep) -> float:
    return max(abs(clamp.attrs["low"]), abs(clamp.attrs["high"]))


def moved(steps: Sequence[NetStep]) -> dict[int, int]:
    """Find the ReLUs that are computed after a max pooling instead of before it, on fewer values.

    They are the ReLUs whose only reader is the pooling. Returns a dictionary from the number of the ReLU's step to the
    number of the pooling's step.
    """
    readers = Counter(ref.index for step in steps for ref in refs(step.inputs))
    found = {}
    for number, step in enumerate(steps):
        if step.op == "max_pool":
            source = next(refs(step.inputs)).index
            if steps[source].op == "relu" and readers[source] == 1:
                found[source] = number
    return found


def _linear(to: Lowering, number: int, step: NetStep, x: UnfinishedStep) -> UnfinishedStep:
    weight = step.attrs["weight"][:, :, None, None]
    geometry = {"image": (weight.shape[1], 1, 1), "weight": tuple(weight.shape)}
    return to.drafts.linear(step.name, to.resting(x), to.shapes[number], weight, step.attrs["bias"], geometry)


def _affine(to: Lowering, number: int, step: NetStep, x: UnfinishedStep) -> UnfinishedStep:
    """Turn a batch norm that follows no layer into a layer of the plan: a 1x1 convolution of each channel.

    to: collects the plan's steps. number, step: the net's. x: the step's input. Returns the plan's step for the result.
    """
    weight, channels = step.attrs["scale"].view(-1, 1, 1, 1), x.shape[0]
    image = (channels, 1, math.prod(x.shape[1:]))
    geometry = {"image": image, "weight": tuple(weight.shape), "groups": channels}
    return to.drafts.linear(step.name, to.resting(x), x.shape, weight, step.attrs["shift"], geometry)


def _relu(to: Lowering, number: int, step: NetStep, x: UnfinishedStep) -> UnfinishedStep:
    return x if number in to.behind else to.relu(step.name, x)


def _hardtanh(to: Lowering, number: int, step: NetStep, x: UnfinishedStep) -> UnfinishedStep:
    """Turn a clamp into steps of the plan: low + relu(x - low) - relu(x - high). One gate computes both ReLUs.

    to: collects the plan's steps. number, step: the net's. x: the step's input. Returns the plan's last step for it.
    """
    window, drafts, name = to.config.window(step.name), to.drafts, step.name
    low, high = step.attrs["low"], step.attrs["high"]
    cut, count, shifted = drafts.cut(f"{name}.cut", x, window), x.shape[0], []
    for what, bound in (("low", low), ("high", high)):
        scale = cut.scale.times(1.0)
        shifted.append(drafts.weighted(f"{name}.{what}", [cut], scale, signs=(1,), real=-bound) if bound else cut)
    gate = drafts.gate(f"{name}.above", drafts.concatenated(f"{name}.both", shifted), "relu", window)
    above = [
        drafts.local(f"{name}.above_{what}", "rows", gate, x.shape, {"start": start, "stop": start + count})
        for what, start in (("low", 0), ("high", count))
    ]
    scale, limit = gate.scale.times(1.0), max(abs(low), abs(high))
    return drafts.weighted(name, above, scale, signs=(1, -1), real=low, limit=limit)


def _leaky_relu(to: Lowering, number: int, step: NetStep, x: UnfinishedStep) -> UnfinishedStep:
    """Turn a LeakyReLU into steps of the plan: (c lift(x) + (2^f - c) relu(x)) / 2^f, with c / 2^f near the slope.

    Here lift(x) is x, from a lift gate. to: collects the plan's steps. number, step: the net's. Returns the last step.
    """
    slope, window, drafts, name = step.attrs["slope"], to.config.window(step.name), to.drafts, step.name
    f = next(f for f in range(10) if abs(round(slope * 2**f) / 2**f - slope) <= SLOPE)
    c = round(slope * 2**f)
    cut = drafts.cut(f"{name}.cut", x, window)
    relu = drafts.gate(f"{name}.relu", cut, "relu", window)
    if not c:
        return relu
    lift = drafts.gate(f"{name}.lift", cut, "lift", window)
    return drafts.weighted(name, [lift, relu], relu.scale.times(2.0**-f), factors=(c, 2**f - c))


def _prelu(to: Lowering, number: int, step: NetStep, x: UnfinishedStep) -> UnfinishedStep:
    """Turn a PReLU into steps of the plan: relu(x) - slope relu(-x). A layer multiplies by the slopes.

    One gate computes both ReLUs. to: collects the plan's steps. number, step: the net's. Returns the plan's last step.
    """
    window, drafts, name, count = to.config.window(step.name), to.drafts, step.name, x.shape[0]
    cut = drafts.cut(f"{name}.cut", x, window)
    minus = drafts.weighted(f"{name}.minus", [cut], cut.scale.times(1.0), signs=(-1,))
    gate = drafts.gate(f"{name}.parts", drafts.concatenated(f"{name}.both", [cut, minus]), "relu", window)
    above, below = (
        drafts.local(f"{name}.{what}", "rows", gate, x.shape, {"start": start, "stop": start + count})
        for what, start in (("above", 0), ("below", count))
    )
    weight = -step.attrs["weight"].expand(count).reshape(-1, 1, 1, 1)
    geometry = {"image": (count, 1, math.prod(x.shape[1:])), "weight": tuple(weight.shape), "groups": count}
    return drafts.sum(name, [above, drafts.linear(f"{name}.slope", below, x.shape, weight, None, geometry)])


def _cat(to: Lowering, number: int, step: NetStep, *parts: UnfinishedStep) -> UnfinishedStep:
    """Turn a concatenation into steps of the plan that bring values to one unit, and concatenate them; return the last
    one.

    Values are concatenated along an image's first dimension; for another dimension, they are permuted before and after.
    to: collects the plan's steps. number, step: the net's. parts: the values, in the plan.
    """
    drafts, name, axis = to.drafts, step.name, step.attrs["dim"] % (len(parts[0].shape) + 1)
    scale = joined([part.scale for part in parts])
    order = [axis, *(d for d in range(1, len(parts[0].shape) + 1) if d != axis)]
    same = []
    for place, part in enumerate(parts):
        alike = part if part.scale is scale else drafts.weighted(f"{name}.{place}", [part], scale, signs=(1,))
        same.append(_turned(to, f"{name}.{place}.turned", alike, order))
    found = drafts.concatenated(name, same)
    back = [1 + order.index(d) for d in range(1, len(order) + 1)]
    return _turned(to, f"{name}.back", found, back)


def _turned(to: Lowering, name: str, x: UnfinishedStep, order: Sequence[int]) -> UnfinishedStep:
    if list(order) == sorted(order):
        return x
    shape = tuple(x.shape[d - 1] for d in order)
    return to.drafts.local(name, "permute", x, shape, {"dims": tuple(order)})


def _max_pool(to: Lowering, number: int, step: NetStep, x: UnfinishedStep) -> UnfinishedStep:
    """Turn a max pooling into steps of the plan: max(a, b) = a + relu(b - a), a tree for each dimension of the pool's
    kernel.

    A ReLU before the pooling is computed after it, on fewer values. to: collects the plan's steps. Returns the last
    step.
    """
    a, drafts, name = step.attrs, to.drafts, step.name
    window, n = to.pool_window(number), len(a["kernel"])
    x = drafts.cut(f"{name}.cut", x, window)
    for d in reversed(range(n)):
        axis = len(x.shape) - n + d
        kernel, stride, padding, dilation = a["kernel"][d], a["stride"][d], a["padding"][d], a["dilation"][d]
        rows = places(x.shape[axis], kernel, stride, padding, dilation, a["ceil_mode"]).tolist()
        if rows == [list(range(x.shape[axis]))]:
            continue
        shape = (kernel, *x.shape[:axis], len(rows[0]), *x.shape[axis + 1 :])
        attrs = {"axis": 1 + axis, "places": tuple(map(tuple, rows))}
        x = _maximum(drafts, f"{name}.{d}", drafts.local(f"{name}.{d}.taps", "taps", x, shape, attrs), window)
    relu = next((relu for relu, pool in to.behind.items() if pool == number), None)
    return x if relu is None else to.relu(to.steps[relu].name, x)


def _maximum(drafts: PlanBuilder, name: str, x: UnfinishedStep, window: BitWindow) -> UnfinishedStep:
    """Add steps to a plan for the maximum over the first dimension of x, as a tree of ReLUs; return the last step.

    drafts: the plan under construction. name: how the names of the new steps begin. window: of the differences between
    two values, which the ReLUs read.
    """
    while x.shape[0] > 1:
        count, half = x.shape[0], x.shape[0] // 2

        def part(what: str, start: int, stop: int, x: UnfinishedStep = x) -> UnfinishedStep:
            shape = (stop - start, *x.shape[1:])
            return drafts.local(f"{name}.{x.shape[0]}.{what}", "rows", x, shape, {"start": start, "stop": stop})

        a, b = part("first", 0, half), part("second", half, 2 * half)
        at = f"{name}.{count}"
        difference = drafts.weighted(f"{at}.difference", [b, a], a.scale.times(1.0), signs=(1, -1))
        above = drafts.gate(f"{at}.above", difference, "relu", window)
        largest = drafts.weighted(f"{at}.largest", [a, above], a.scale.times(1.0), signs=(1, 1))
        largest.window = window
        x = (
            largest
            if count == 2 * half
            else drafts.concatenated(f"{at}.left", [largest, part("odd", count - 1, count)])
        )
    return drafts.local(f"{name}.max", "reshape", x, x.shape[1:], {})


def _reshape(to: Lowering, number: int, step: NetStep, x: UnfinishedStep, *sizes: UnfinishedStep) -> UnfinishedStep:
    shape = to.shapes[number]
    return x if shape == x.shape else to.drafts.local(step.name, "reshape", x, shape, {})


def _permute(to: Lowering, number: int, step: NetStep, x: UnfinishedStep) -> UnfinishedStep:
    order = list(range(len(x.shape) + 1))
    if step.op == "permute":
        order = [dim % len(order) for dim in step.attrs["dims"]]
    else:
        one, other = step.attrs["dim0"] % len(order), step.attrs["dim1"] % len(order)
        order[one], order[other] = order[other], order[one]
    return to.drafts.local(step.name, "permute", x, to.shapes[number], {"dims": tuple(order[1:])})


def _none(to: Lowering, number: int, step: NetStep, *given: Any) -> Any:
    return None  # a size: shapes are known


_RULES: dict[str, Callable[..., Any]] = {
    "input": lambda to, number, step: to.drafts.input(step.name, to.shapes[number]),
    "conv": spatial.conv,
    "linear": _linear,
    "affine": _affine,
    "relu": _relu,
    "hardtanh": _hardtanh,
    "leaky_relu": _leaky_relu,
    "prelu": _prelu,
    "cat": _cat,
    "max_pool": _max_pool,
    "avg_pool": spatial.avg_pool,
    "adaptive_avg_pool": spatial.adaptive_avg_pool,
    "mean": spatial.mean,
    "scale_last": scale_last,
    **dict.fromkeys(("add", "sub"), summed),
    **dict.fromkeys(("mul", "neg"), multiplied),
    "pad": lambda to, number, step, x: to.drafts.local(
        step.name, "pad", x, to.shapes[number], {"pads": tuple(step.attrs["pads"])}
    ),
    **dict.fromkeys(("flatten", "reshape", "squeeze", "unsqueeze", "unflatten"), _reshape),
    "getitem": lambda to, number, step, x: None if to.shapes[number] is None else _reshape(to, number, step, x),
    **dict.fromkeys(("permute", "transpose"), _permute),
    "pack": lambda to, number, step, *parts: to.results(step.name, parts),
    **dict.fromkeys(("size", "int"), _none),
}


def problems(steps: Sequence[NetStep], shapes: Sequence[Any]) -> list[Problem]:
    """List a problem for each step that cannot become steps of a plan, and for a net without weights.

    A step is a problem if its operation has no rule here or an option that the rule does not support. So is a softmax
    or sigmoid at the end: the caller can compute it on the opened result. shapes: of each step's value for one image.
    """
    found, last = [], next(refs(steps[-1].inputs), None)
    for number, step in enumerate(steps):
        if step.op in _LAST and last is not None and last.index == number:
            what = f"{step.op} is not supported on garbled gates and shares, and is the last step"
            found.append(Problem(step.name, what, _LAST_HINT))
            continue
        problem = _problem(step, [shapes[ref.index] for ref in refs(step.inputs)], shapes[number])
        if problem is not None:
            found.append(Problem(step.name, *problem))
    if not any(step.op in ("conv", "linear", "affine", "scale_last") for step in steps):
        found.append(Problem("net", "no layer has weights: there is nothing to keep private", "run it in the clear"))
    return found


def _problem(step: NetStep, sources: Sequence[Any], shape: Any) -> tuple[str, str] | None:
    a = step.attrs
    source: Any = next(iter(sources), None)
    if step.op == "output":
        return None
    if step.op == "getitem" and shape is None:
        return None  # of a size
    whole = source is not None and shape is not None and math.prod(shape) == math.prod(source)  # None: of several parts
    if step.op == "getitem" and not (whole and _is_whole(a["index"])):
        return "a part of a value", "the only index supported is None: x[:, None]; hummingbird.convert_model has all"
    if step.op == "cat" and a["dim"] % (len(source) + 1) == 0:
        return "cat of images", "keep the first dimension to itself"
    if step.op not in _RULES:
        return f"{step.op} is not supported on garbled gates and shares", _HINT
    if step.op in ARITHMETIC and isinstance(a.get("value"), Tensor):
        what = f"a tensor of shape {tuple(a['value'].shape)} beside values of shape {tuple(source)}"
        return what, "give it the shape of one image's values: sums and products do not broadcast"
    if step.op == "mul" and len(sources) == 2:
        return "a product of two values is not supported on garbled gates and shares", _HINT
    if step.op == "mul" and a["value"] == 0:
        return "a product with 0", "leave it out"
    if step.op == "scale_last" and a["scale"].dim() > len(source):
        return "a factor that images share", "keep the first dimension to itself"
    if step.op in ("add", "sub") and len(sources) == 2 and sources[0] != sources[1]:
        what = f"a sum of values of shapes {sources[0]} and {sources[1]}"
        return what, "bring both to one shape: sums do not broadcast"
    if step.op == "linear" and len(source) != 1:
        return f"a linear layer on rows of {tuple(source)}", "flatten before it, or use a convolution of 1x1"
    if step.op == "leaky_relu" and not 0 <= a["slope"] <= 1:
        return f"a slope of {a['slope']:g}", "a slope from 0 to 1"
    if step.op == "pad" and (a["value"] != 0 or len(a["pads"]) > 2 * len(source) or min(a["pads"]) < 0):
        return (
            "padding with nonzero numbers, of the batch dimension, or to a smaller size",
            "pad with zeros: nn.ZeroPad2d",
        )
    if step.op == "avg_pool" and (a["ceil_mode"] or (any(a["padding"]) and not a["count_include_pad"])):
        return "an average over windows of several sizes", "ceil_mode=False, count_include_pad=True"
    if step.op == "mean" and (
        a["dims"] is None or sorted(d % (len(source) + 1) for d in a["dims"]) != [*range(2, len(source) + 1)]
    ):
        return f"a mean over dimensions {a['dims']}", "over all places of an image: x.mean((2, 3))"
    if step.op in ("permute", "transpose") and _moves_batch(step, len(source) + 1):
        return "images change places with channels", "keep the first dimension to itself"
    if step.op == "adaptive_avg_pool":
        try:
            equal_windows(source, a["output_size"])
        except InputError as error:
            return error.what, error.hint
    return None


def _is_whole(index: Any) -> bool:
    """Return whether an index, as in x[index], selects all values of a tensor, in order."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(part is None or part is Ellipsis or part == slice(None) for part in parts)


def _moves_batch(step: NetStep, dims: int) -> bool:
    a = step.attrs
    return a["dims"][0] % dims != 0 if step.op == "permute" else 0 in (a["dim0"] % dims, a["dim1"] % dims)
