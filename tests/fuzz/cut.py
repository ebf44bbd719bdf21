"""How far two parties may be from torch: a bound on every element of every step, by a plan's units and windows.

Weights are compared by themselves: integers that the plan holds for a layer, times their unit, are the layer's own to
half a unit, which is at most 1/32 of their root mean square (hybrid/scales.py). Values are then those of torch with
such weights, but for

    2^-9          of the input: 8 bits of fraction, rounded to the nearest
    2^(m-16)      where a window [k:m) is cut: at every comparison, and between two layers
    2^-7 of it    where a value joins a sum, or a window, whose unit it is no power of two away from; no more than that
    2^-9 of it    for the slope of a LeakyReLU

and all of it is promised while what is cut stays within its window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hummingbird.bits import BitConfig, BitWindow
from hummingbird.graph import OPS, Step
from hummingbird.hybrid.lowering import SLOPE
from hummingbird.hybrid.plan import Gate, Linear, Model
from hummingbird.hybrid.plan_builder import INPUT_FRACTION
from hummingbird.hybrid.scales import FACTOR, HELD
from hummingbird.ring import SCALE
from tests.fuzz.bounds import carried

FLOAT32 = 2.0**-22  # of a folded norm, twice
_LAYERS = {
    **dict.fromkeys(("conv", "linear"), ("weight", "bias")),
    **dict.fromkeys(("affine", "scale_last"), ("scale", "shift")),
}


class Promise(Exception):
    """A plan that does not hold what it promises."""


class Cut:
    """A model of a net's steps, under these windows. outside: the first layer whose values leave its window, or ""."""

    def __init__(self, steps: Sequence[Step], model: Model, config: BitConfig) -> None:
        self._plan, self._config, self.outside = model.plan, config, ""
        self._named = {step.name: (number, step) for number, step in enumerate(model.plan.steps)}
        windows = (config.default, *config.layers.values())
        self._lift = BitWindow(min(w.k for w in windows), max(w.m for w in windows))
        self.steps = [self._held(step, model) for step in steps]

    def walk(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The net's result, float64, by weights as the plan holds them, and the bound on its error."""
        values, errors = carried(self.steps, x, 2.0 ** (-INPUT_FRACTION - 1), self._bound)
        return values[-1], errors[-1]

    def _held(self, step: Step, model: Model) -> Step:
        """The step with the weights of the plan; Promise where they are not its own."""
        if step.op not in _LAYERS:
            return step
        number, linear = self._named[step.name]
        unit, source = linear.unit, self._plan.steps[linear.inputs[0].index].unit
        attrs, (weight, bias) = dict(step.attrs), _LAYERS[step.op]
        own = attrs[weight].double()
        half = min(unit / source / 2, float(own.square().mean().sqrt()) / (2 * HELD))
        attrs[weight] = model.parameters[number].weight.double().view_as(own) * (unit / source)
        self._near(step.name, attrs[weight], own, half)
        shift = model.parameters[number].bias.double() * unit
        self._near(f"{step.name}'s bias", shift, torch.zeros(()) if attrs[bias] is None else attrs[bias], unit / 2)
        attrs[bias] = shift if attrs[bias] is None else shift.view_as(attrs[bias])
        return replace(step, attrs=attrs)

    @staticmethod
    def _near(name: str, held: Tensor, own: Tensor, half: float) -> None:
        own = own.double().flatten()
        far = (held.flatten() - own).abs() - FLOAT32 * own.abs()
        if bool((far > half * (1 + 1e-9)).any()):
            raise Promise(f"{name} is held to {float(far.max()):.3g}, not {half:.3g}")

    # Bounds ----------------------------------------------------------------------------------------------------------

    def _bound(self, step: Step, *given: Tensor) -> Tensor:
        return _BOUNDS[step.op](self, step, *given)

    def cut(self, name: str, window: BitWindow, x: Tensor, e: Tensor, more: float = 0.0) -> Tensor:
        """The error of what is cut to a window; more: what is added to it before it is compared."""
        e = e + self._stretch(f"{name}.cut.scaled")[0] * (x.abs() + e) + 2.0 ** (window.m - SCALE)
        if float((x.abs() + e).max()) + more >= 2.0 ** (window.k - 1 - SCALE):
            self.outside = self.outside or name
        return e

    def _stretch(self, name: str) -> list[float]:
        """How far the integers by which a sum's parts are multiplied are off, each as a share of the part."""
        if name not in self._named:
            return [0.0]
        step = self._named[name][1]
        units = [self._plan.steps[ref.index].unit for ref in step.inputs]
        off = [abs(abs(f) * step.unit / unit - 1) for f, unit in zip(step.attrs["factors"], units, strict=True)]
        if max(off) > FACTOR:
            raise Promise(f"{name} multiplies a part by {max(off):.3g} too much")
        return off

    def compared(self, step: Step, x: Tensor, e: Tensor, more: float = 0.0) -> Tensor:
        return self.cut(step.name, self._config.window(step.name), x, e, more)

    def layer(self, step: Step, x: Tensor, e: Tensor) -> Tensor:
        """|W| e, of e behind a cut where the layer reads what none has cut yet."""
        linear = self._named[step.name][1]
        source = self._plan.steps[linear.inputs[0].index]
        assert isinstance(linear, Linear)
        while source.name.startswith(f"{step.name}."):  # planes that become channels
            source = self._plan.steps[source.inputs[0].index]
        if isinstance(source, Gate) and source.name.endswith(".lift"):
            e = self.cut(source.name.removesuffix(".lift"), self._lift, x, e)
        weight, bias = _LAYERS[step.op]
        attrs = dict(step.attrs)
        attrs |= {weight: attrs[weight].abs(), bias: None if bias == "bias" else torch.zeros_like(attrs[bias])}
        return OPS[step.op](attrs, e)

    def add(self, step: Step, x: Tensor, e: Tensor, *other: Tensor) -> Tensor:
        """A number is added to half a unit, on top of what becomes of a part that is multiplied."""
        if not other:
            return e + self._stretch(step.name)[0] * (x.abs() + e) + self._named[step.name][1].unit / 2
        y, f = other
        one, two = self._stretch(step.name)
        return e + f + one * (x.abs() + e) + two * (y.abs() + f)

    def mul(self, step: Step, x: Tensor, e: Tensor) -> Tensor:
        """Another unit, and for a factor below zero another sign."""
        return e * abs(step.attrs.get("value", 1.0))

    def hardtanh(self, step: Step, x: Tensor, e: Tensor) -> Tensor:
        """Both ends are whole units: the window's, or the image's, which is coarser."""
        window, ends = self._config.window(step.name), max(abs(step.attrs["low"]), abs(step.attrs["high"]))
        coarsest = 2.0 ** max(window.m - SCALE, -INPUT_FRACTION)
        return self.compared(step, x, e, ends) + 1.5 * min(self._named[f"{step.name}.above_low"][1].unit, coarsest)

    def leaky_relu(self, step: Step, x: Tensor, e: Tensor) -> Tensor:
        e = self.compared(step, x, e)
        return e + SLOPE * (x.abs() + e)

    def prelu(self, step: Step, x: Tensor, e: Tensor) -> Tensor:
        """Slopes are a layer's weights, held to half a unit, on what is below zero."""
        e, slope = self.compared(step, x, e), float(step.attrs["weight"].abs().max())
        layer = self._named[f"{step.name}.slope"][1]
        held = layer.unit / self._plan.steps[layer.inputs[0].index].unit / 2
        one, other = self._stretch(step.name)
        return e * max(1.0, slope + held) + (x.abs() + e) * (held + one + other * (slope + held))

    def cat(self, step: Step, xs: Sequence[Tensor], es: Sequence[Tensor]) -> Tensor:
        found = []
        for place, (x, e) in enumerate(zip(xs, es, strict=True)):
            found.append(e + self._stretch(f"{step.name}.{place}")[0] * (x.abs() + e))
        return OPS["cat"](step.attrs, tuple(found))

    def max_pool(self, step: Step, x: Tensor, e: Tensor) -> Tensor:
        """The differences of two values have to stay in the window."""
        return OPS["max_pool"](step.attrs, self.compared(step, x, e, float((x.abs() + e).max())))

    def exact(self, step: Step, x: Tensor, e: Tensor) -> Tensor:
        return OPS[step.op](step.attrs, e)


_BOUNDS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(_LAYERS, Cut.layer),
    **dict.fromkeys(("avg_pool", "adaptive_avg_pool", "mean", "pad"), Cut.exact),
    "relu": Cut.compared,
    "hardtanh": Cut.hardtanh,
    "leaky_relu": Cut.leaky_relu,
    "prelu": Cut.prelu,
    "cat": Cut.cat,
    "max_pool": Cut.max_pool,
    **dict.fromkeys(("add", "sub"), Cut.add),
    **dict.fromkeys(("mul", "neg"), Cut.mul),
}
