"""Planner: finds the scale, the valid bits and the bound of every value, and inserts rescalings where layers need them.

The low V bits of a value's shares are valid, and s of them are fraction. So the value is known modulo 2^(V - s): it has
V - s integer bits, with the sign. A linear layer keeps V and adds its weights' bits of fraction to s. If a reader
cannot take the scale, the planner rescales the value in one of two ways. With "masked" every party rounds its share,
which sends nothing and reduces s and V by the same number. An opening (`Lift`), of the bits that the value's bound
needs, restores scale 2^16 and all 64 bits. "gmw" has openings only.

Every value has a bound: 2^FLOOR, or less if its layer guarantees less (sigmoid: 2). The planner keeps the integer bits
that the bound takes (`layer.held`), and inserts an opening where fewer would be left. A layer with a window [k:m) reads
k bits, so linear layers before it need not be right beyond these. So a plan is right for all values below 2^FLOOR, and
windows cause no opening.

A last pass, from the output backwards, finds how many low bits of each value later layers read: the material of a
masked ReLU covers only these bits, and a product is exact only in these. The exception is a ReLU whose input is an
input of the net and whose result is an output: it reads as many bits of its input as its result has
(`Comparison.whole`). They are right at no cost, and no layer relies on a bound of the result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from hummingbird.errors import ConfigError, InputError
from hummingbird.graph import Ref, Step
from hummingbird.graph.steps import map_refs, refs
from hummingbird.mpc.functions.function_table import MOST_INTEGERS
from hummingbird.mpc.functions.tabulated import Tabulated
from hummingbird.mpc.layers import weighted_mean
from hummingbird.mpc.layers.activations import ReLU
from hummingbird.mpc.layers.cached import CachedMean, ProductWithCache
from hummingbird.mpc.layers.comparing import Comparing
from hummingbird.mpc.layers.layer import FINER, FLOOR, MARGIN, MAX_SCALE, Given, Layer, Lift, Local, LocalRescale, held
from hummingbird.mpc.layers.linear import Linear
from hummingbird.mpc.layers.norms import Norm
from hummingbird.mpc.layers.products import MatMul
from hummingbird.mpc.layers.softmax_in_range import SoftmaxInRange
from hummingbird.mpc.layers.weighted_mean import WeightedMean
from hummingbird.mpc.plan.columns import Halved
from hummingbird.mpc.plan.steps import PlanStep
from hummingbird.mpc.protocols.registry import named
from hummingbird.ring import SCALE, WEIGHT_SCALE, exponent_of


class Built:
    """A step of the net's graph as the planner has built it: its layer, or a plain function, and what it requires.

    limit: the highest scale that an input may have, in bits of fraction.
    whole: whether all 64 bits of its inputs' shares must be right.
    """

    def __init__(self, layer: nn.Module | None, function: Callable[..., Any] | None, limit: int, whole: bool) -> None:
        self.layer, self.function = layer, function
        self.limit = limit  # the highest scale of an input, in bits of fraction
        self.whole = whole  # whether all 64 bits of its inputs' shares must be right


class _Narrow(Exception):
    """Raised if graph step `index` has a value that must be lifted, but too few integer bits for that.

    The plan is then made anew, so that earlier steps keep enough bits.
    """

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


_FORMS = "as it is", "local", "summed", "whole"
_NO_TENSOR = frozenset(
    {"size", "int", "chunk", "split", "unbind", "public", "public_constant", "public_call", "seen"}
)  # and steps with several results, of which each reader takes one


class Planner:
    """Planner of a net's run: it makes the plan's steps from the steps of the net's graph.

    It finds the scale of every value, and inserts a rescaling where a layer cannot take a value's scale.
    build: takes a step of the graph and returns its `Built`, with its layer.
    protocol: "masked" or "gmw".
    few_rows: whether the plan is for few rows at a time, where a lift's round costs more than the bytes that spare it.
        Then tables of functions have more right bits, weights behind tables with a told error have fewer bits of
        fraction, and the net's result keeps the scale that it has if it is right in the whole ring.
    """

    def __init__(self, build: Callable[[Step], Built], protocol: str, few_rows: bool = False) -> None:
        self.build, self.rounds_shares = build, named(protocol).takes_rounded_shares
        self.few_rows = few_rows
        # Layers may share a weight, in one plan and in several of one planner. By the weight, its bits of
        # fraction and the error of what it multiplies.
        self._rounded_weights: dict[tuple[int, int, float | None], Linear] = {}

    def plan(self, steps: Sequence[Step]) -> list[PlanStep]:
        """Make the plan of a net from the steps of its graph, and return the plan's steps.

        Raises ConfigError, which names the layer, if a window or a constant does not fit.
        """
        self._steps = steps
        self._built = [self.build(step) for step in steps]
        for built in self._built:
            if self.few_rows and isinstance(built.layer, Tabulated):
                built.layer.integers = MOST_INTEGERS
        self._introduce()
        self._coarsen()
        self._bounds = self._bounded()
        self._join()
        for built, bound in zip(self._built, self._bounds, strict=True):
            if built.whole and built.layer is None:
                built.limit = SCALE + min(FINER, FLOOR - bound)  # a softmax over 1,000 classes gives 0.001
                if self.few_rows and bound < FLOOR:
                    built.limit = MAX_SCALE - max(0, bound - 14)  # |x| < 2^62 in the ring
        self._opened: set[int] = set()  # graph steps whose values some reader opens
        while True:
            self._integers = self._read()
            try:
                plan = self._forward()
            except _Narrow as narrow:
                self._opened.add(narrow.index)
                continue
            settle_rings(plan)
            _note_ranges(plan)
            return plan

    def _introduce(self) -> None:
        """Tell every matrix product which of the steps beside it are softmaxes whose rows have a known range.

        These steps are the one that computes the product's first operand, and those that read the product.
        `MatMul.beside` takes the answer.
        """
        readers: list[list[bool]] = [[] for _ in self._steps]
        known = [isinstance(built.layer, SoftmaxInRange) for built in self._built]
        for number, step in enumerate(self._steps):
            for ref in refs(step.inputs):
                readers[ref.index].append(known[number])
        for number, step in enumerate(self._steps):
            if isinstance(layer := self._built[number].layer, MatMul):
                first = next(refs(step.inputs)).index
                softmax = self._built[first].layer
                averages = isinstance(softmax, SoftmaxInRange) and softmax.dim == -1
                layer.beside(averages, bool(readers[number]) and all(readers[number]))

    def _join(self) -> None:
        """Replace the product after a softmax by a `WeightedMean`, which divides after the product, where possible.

        It is possible if four things hold: the softmax's rows are in a known range; the product is the softmax's only
        reader; the values that it averages have a known bound; and all openings fit the ring. The softmax then leaves
        out its own division.
        """
        readers = [0] * len(self._steps)
        for step in self._steps:
            for ref in refs(step.inputs):
                readers[ref.index] += 1
        for number, step in enumerate(self._steps):
            layer = self._built[number].layer
            if not isinstance(layer, MatMul) or type(layer) not in (MatMul, ProductWithCache) or not layer.averages:
                continue
            first, values = (ref.index for ref in list(refs(step.inputs))[:2])
            softmax = self._built[first].layer
            assert isinstance(softmax, SoftmaxInRange)
            bound, cached = self._bounds[values], isinstance(layer, ProductWithCache)
            if len(self._steps[first].inputs) > 1 and not cached:
                continue  # a mask of each call, which only products with cached rows read
            if readers[first] == 1 and bound < FLOOR and weighted_mean.serves(softmax.rows, bound):
                softmax.left_to_reader()
                if isinstance(layer, ProductWithCache):
                    joined: WeightedMean = CachedMean(softmax.rows, softmax, layer)
                else:
                    joined = WeightedMean(softmax.rows, softmax if softmax.masks else None)
                self._built[number] = Built(joined, None, joined.input_limit, False)
                self._bounds[first] = softmax.bound([])

    def _coarsen(self) -> None:
        """Round the public weights of each linear layer to no more bits of fraction than the layers after it need."""
        needed = [0] * len(self._steps)
        made = self._rounded_weights
        for number in reversed(range(len(self._steps))):
            step, built = self._steps[number], self._built[number]
            own = needed[number]
            if isinstance(built.layer, Layer):
                if isinstance(built.layer, Linear):
                    source = self._built[next(refs(step.inputs)).index].layer
                    error = source.told if self.few_rows and isinstance(source, Tabulated) else None
                    key = id(built.layer.weight), own, error
                    layer = made[key].again() if key in made else built.layer.coarser(own, error)
                    self._built[number] = Built(layer, None, built.limit, built.whole)
                    made.setdefault(key, layer)
                own = built.layer.weight_scale(own)
            elif built.layer is not None or built.whole:
                own = WEIGHT_SCALE
            for ref in refs(step.inputs):
                needed[ref.index] = max(needed[ref.index], own)

    def _bounded(self) -> list[int]:
        """Return log2 of the largest magnitude that each step's result can have, by step; from 0 to FLOOR (20)."""
        bounds: list[int] = []
        promised = self._promised()
        for number, (step, built) in enumerate(zip(self._steps, self._built, strict=True)):
            given = [bounds[ref.index] for ref in refs(step.inputs)]
            if step.op == "input" or step.op == "custom" or not given:
                bounds.append(FLOOR)
            else:
                own = built.layer.bound(given) if isinstance(built.layer, Layer) else max(given)
                own = min(own, self._bound_of_norm(step, built.layer), promised.get(number, FLOOR))
                bounds.append(max(0, min(FLOOR, own)))
        return bounds

    def _promised(self) -> dict[int, int]:
        """Return, by step, log2 of the magnitude below which windows promise that a recurrent state stays.

        The function that reads a state wraps beyond its window, and all later states with it: the state needs no bits
        for more. Steps are those with a known bound (attribute "most"), which is mostly larger than the window.
        """
        found: dict[int, int] = {}
        for step, built in zip(self._steps, self._built, strict=True):
            comparison = built.layer.comparison if isinstance(built.layer, Layer) else None
            if comparison is not None and not comparison.drops:
                for ref in refs(step.inputs):
                    if "most" in self._steps[ref.index].attrs:
                        found[ref.index] = min(found.get(ref.index, FLOOR), max(0, comparison.window.k - 1 - SCALE))
        return found

    def _bound_of_norm(self, step: Step, layer: nn.Module | None) -> int:
        """Return log2 of the largest magnitude of a linear layer's result if it reads a norm over the last dimension.

        step, layer: the linear layer's step, and the layer made of it.
        For any other step the result is FLOOR (20): every value of a net is below 2^20.
        """
        norm = self._built[next(refs(step.inputs)).index].layer
        if not isinstance(layer, Linear) or not isinstance(norm, Norm) or norm.attrs.get("last") != 1:
            return FLOOR
        if norm.attrs["sizes"] is None:  # a norm that the net computes by single operations
            return FLOOR
        return layer.bound_of_rows(norm.attrs["sizes"][0])

    def _read(self) -> list[int]:
        """Find how many integer bits of each step's value later layers need; return them by step.

        Integer bits are those above the binary point, with the sign.
        """
        asked: list[int | None] = [0] * len(self._steps)
        for number in reversed(range(len(self._steps))):
            step, built = self._steps[number], self._built[number]
            if number in self._opened:
                asked[number] = None
            if built.whole:
                needs: int | None = None
            else:
                needs = built.layer.reads(asked[number]) if isinstance(built.layer, Layer) else asked[number]
            for ref in refs(step.inputs):
                before = asked[ref.index]
                asked[ref.index] = None if needs is None or before is None else max(before, needs)
        # A window may be wider than a value with a known bound. Without a known bound the window's width counts.
        known = [held(bound) for bound in self._bounds]
        return [
            most if bits is None else bits if most == held(FLOOR) else min(bits, most)
            for bits, most in zip(asked, known, strict=True)
        ]

    def _forward(self) -> list[PlanStep]:
        self._plan: list[PlanStep] = []
        self._place: dict[int, int] = {}  # graph step -> plan step
        self._rescaled: dict[tuple[int, str, int], int] = {}
        for index, (step, built) in enumerate(zip(self._steps, self._built, strict=True)):
            form = self._form(index, step, built)
            scale, low, grain = self._result(step, built, form)
            inputs = self._inputs(step, built, form)
            self._place[index] = len(self._plan)
            self._plan.append(
                PlanStep(step.name, step.op, built.layer, built.function, inputs, scale, index, low, grain)
            )
        return self._plan

    def _form(self, index: int, step: Step, built: Built) -> str:
        """Choose the cheapest form of a step's inputs in which its result keeps the integer bits that later steps need.

        index, step, built: the step's index in the graph, the step, and its layer.
        Returns "as it is", "local" (each party rounds its share), "summed" (the layer lifts sums) or "whole" (lifted to
        64 bits). Raises ConfigError if no form keeps enough bits.
        """
        most, best = -1, ""
        problem: InputError | ConfigError | None = None
        for form in self._forms(step, built):
            if form == "summed" and not (isinstance(built.layer, Layer) and built.layer.adds_up):
                continue
            given = [self._in_form(ref.index, built, form) for ref in refs(step.inputs)]
            limit = MAX_SCALE if form == "summed" else built.limit
            if not all(each.scale <= limit and (each.valid == 64 or not built.whole) for each in given):
                continue
            try:
                scale, low, _ = self._result(step, built, form)
            except InputError as error:
                problem = error
                continue
            except ConfigError as error:  # a window does not fit: no other form helps
                problem = error
                break
            if not _compares_rightly(built.layer, given):
                continue
            if low - scale >= self._integers[index]:
                return form
            most, best = max((most, best), (low - scale, form))
        # A later window may ask for more bits than the value's bound allows: `Masked.k` limits it.
        if most >= held(self._bounds[index]):
            return best
        if problem is not None:
            raise ConfigError(problem.what, where=step.name, hint=problem.hint) from None
        raise ConfigError(
            f"results of this layer may reach 2^{self._bounds[index]}, and the ring holds {most - MARGIN} bits of them",
            where=step.name,
            hint="use larger constants: multiply them by a power of two, and the opened result by its inverse",
        )

    def _forms(self, step: Step, built: Built) -> tuple[str, ...]:
        """List the forms for a step's inputs from which the planner chooses, the cheapest first: names as in `_form`.

        The form "whole" comes first if the plan has all of the inputs lifted already, for other steps, so that it costs
        nothing.
        """
        forms = _FORMS if self.rounds_shares else ("as it is", "whole")
        opened = [(ref.index, "whole", self._in_form(ref.index, built, "whole").scale) for ref in refs(step.inputs)]
        return ("whole", *forms) if opened and all(key in self._rescaled for key in opened) else forms

    def _result(self, step: Step, built: Built, form: str) -> tuple[int, int, int]:
        """Compute the scale, the number of right low bits, and the grain of a step's result; return these three.

        Also sets `given` of the step's layer, which describes the step's inputs.
        form: of the inputs, as `_form` returns it.
        Raises ConfigError if the layer's window does not fit.
        """
        given = [self._in_form(ref.index, built, form) for ref in refs(step.inputs)]
        if step.op in ("size", "int", "public_call", "seen") or not given:
            return SCALE, 64, 0
        scales, valid = [each.scale for each in given], [each.valid for each in given]
        layer = built.layer
        if not isinstance(layer, Layer):
            return scales[0], valid[0], given[0].grain if step.op == "getitem" else 0
        layer.given, layer.lifts_sums = tuple(given), form == "summed"
        if layer.comparison is not None:
            layer.comparison.valid = min(valid)
            layer.comparison.check(max(scales))
        return layer.out_scale(scales), layer.valid(scales, valid), layer.grain()

    def _in_form(self, index: int, built: Built, form: str) -> Given:
        """Describe a value as it is in one of the forms of `_form`: return its scale, valid bits, grain and bound.

        index: of the graph's step that computes the value.
        built: the layer that reads it.
        """
        step = self._plan[self._place[index]]
        extra = step.scale - SCALE
        now = Given(step.scale, step.valid, step.grain, self._bounds[index])
        if form in ("as it is", "summed") or step.op in _NO_TENSOR or (extra <= 0 and step.valid == 64):
            return now
        if isinstance(built.layer, Layer) and built.layer.lifts(now):
            return now
        finest = built.limit if built.whole or isinstance(step.layer, Halved) else SCALE
        if form == "local":
            scale = finest if step.scale > built.limit else step.scale
            valid = step.valid - (step.scale - scale)
        else:
            scale, valid = min(step.scale, finest), 64
        return Given(scale, valid, max(0, step.grain - (step.scale - scale)), now.bound)

    def _inputs(self, step: Step, built: Built, form: str) -> Any:
        return map_refs(step.inputs, lambda ref: self._fitted(ref.index, built, form))

    def _fitted(self, index: int, built: Built, form: str) -> Ref:
        """Return a value's place in the plan, in the form that its reader needs; append a rescaling if there is none.

        index: of the graph's step that computes the value.
        built: the layer that reads it.
        form: "as it is", "local" (each party rounds its share), "summed" (the layer lifts sums) or "whole" (lifted to
            64 bits).
        Raises `_Narrow` if the value has too few integer bits to be lifted.
        """
        at = self._place[index]
        step, now = self._plan[at], self._in_form(index, built, "as it is")
        wanted = self._in_form(index, built, form)
        if wanted == now:
            return Ref(at)
        if form == "whole" and step.valid - step.scale < held(now.bound):
            raise _Narrow(index)
        scale = wanted.scale
        if (index, form, scale) not in self._rescaled:
            layer: Layer = LocalRescale(scale)
            if form == "whole":
                layer = Lift(step.scale + held(now.bound), scale)
            layer.given = (now,)
            name = f"{self._steps[index].name}.{'lift' if form == 'whole' else 'rescale'}"
            low = layer.valid([step.scale], [step.valid])
            self._plan.append(PlanStep(name, "rescale", layer, None, (Ref(at),), scale, index, low, layer.grain()))
            self._rescaled[index, form, scale] = len(self._plan) - 1
        return Ref(self._rescaled[index, form, scale])


def _compares_rightly(layer: nn.Module | None, given: Sequence[Given]) -> bool:
    """Whether differences of a layer's inputs from the numbers with which it compares them fit the inputs' shares.

    given: the inputs, in the form for which the layer's comparison is set. A value with a small bound, such as a
    cosine, may have few integer bits.
    """
    if not isinstance(layer, Comparing) or layer.comparison.drops or not given:
        return True
    scale, comparison = max(each.scale for each in given), layer.comparison
    far = layer.farthest(scale)
    # A value may exceed its bound by a rounding, and a difference must be less than the power of two.
    needed = exponent_of((2.0 ** max(each.bound for each in given) + far) * (1 + 2.0**-6)) if far else 0
    return comparison.range(scale) >= min(needed, replace(comparison, valid=64).range(scale))


def digest(plan: Sequence[PlanStep]) -> str:
    """Compute SHA-256 (hex) of everything that determines a net's messages, its requests to a dealer, and its splines.

    Bits of fraction follow from public weights, so two nets of one architecture may have different plans. Splines are
    fitted in floating point: parties whose machines round differently must notice it.
    """
    state = hashlib.sha256(b"hummingbird-plan-2")
    for step in plan:
        layer = step.layer
        facts = [step.name, step.op, step.scale, step.valid, type(layer).__name__]
        if isinstance(layer, Layer):
            facts += [layer.read, layer.comparison and layer.comparison.ring, *layer.constants()]
        state.update((repr(facts) + ";").encode())
    return state.hexdigest()


def _note_ranges(plan: Sequence[PlanStep]) -> None:
    """Set two attributes of each layer in the plan: `scales`, the bits of fraction of its inputs, and `range`.

    A layer is right for values below 2^range: those that it compares, or its results if it compares none.
    """
    for step in plan:
        if isinstance(step.layer, Layer):
            comparison = step.layer.comparison
            step.layer.scales = scales = tuple(plan[ref.index].scale for ref in refs(step.inputs))
            if comparison is not None and not comparison.drops:
                step.layer.range = comparison.range(max(scales))
            else:
                source = plan[step.inputs[0].index] if step.op == "rescale" else step
                low = step.layer.low if isinstance(step.layer, Lift) else source.valid
                step.layer.range = low - source.scale - MARGIN


def settle_rings(plan: Sequence[PlanStep]) -> list[int]:
    """Find how many low bits of each step's value later layers read; return the numbers by step.

    Sets `read` of each layer to this number. Sets `ring` of each comparison, the number of low bits in which its result
    must be right, and `whole`, whether its input's shares are right in all of these bits.
    """
    later, given, kept = [0] * len(plan), _given(plan), [True] * len(plan)  # kept: no layer computes with it
    later[-1] = 64
    for number in reversed(range(len(plan))):
        step = plan[number]
        places = [ref.index for ref in refs(step.inputs)]
        needed = [later[number] if step.layer is None else 64] * len(places)
        if isinstance(step.layer, Layer) and step.op != "custom":
            step.layer.read = later[number] or 1  # 1 for a result without readers
            if step.layer.comparison is not None:
                comparison = step.layer.comparison
                comparison.ring = 64 if step.layer.whole_ring else later[number]
                alone = isinstance(step.layer, ReLU) and given[places[0]] and kept[number]
                comparison.whole = alone and comparison.may_be_whole(plan[places[0]].scale)
            needed = step.layer.needs_of_each([plan[place].scale for place in places], later[number])
        for place, bits in zip(places, needed, strict=True):
            later[place] = max(later[place], bits)
            kept[place] = kept[place] and kept[number] and _moves(step)
    return later


def _given(plan: Sequence[PlanStep]) -> list[bool]:
    """Find the plan's steps whose value consists of the net's inputs, only moved or added; return a flag by step."""
    found: list[bool] = []
    for step in plan:
        values = [ref.index for ref in refs(step.inputs) if plan[ref.index].op not in ("size", "int")]
        found.append(step.op == "input" or (_moves(step) and bool(values) and all(found[at] for at in values)))
    return found


def _moves(step: PlanStep) -> bool:
    """Return whether a step only moves and adds values, in all their bits."""
    return step.layer is None or isinstance(step.layer, Local)
