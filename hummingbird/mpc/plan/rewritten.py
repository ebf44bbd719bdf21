"""Rewrites a net's steps to those that the parties compute.

There are six rewrites: max poolings move before ReLUs, and the weights before a norm subtract its mean
(graph/rewrite.py); stacked recurrent layers are taken step by step in time, and what their inputs add to the arguments
of functions is clamped (graph/time_steps.py); small columns of weights keep their precision (mpc/plan/columns.py);
masks move into the softmaxes.

A pooling that moves before a ReLU compares values of both signs. The ReLU's window holds |x| < 2^(k - 1) - (N - 1) 2^m,
so two such values differ by less than 2^k - 2 (N - 1) 2^m. k + 1 bits hold their difference, or k + 2 bits if the
pooling's own m is larger by more than one (m: the lowest bit that decides, `BitWindow.low`). The pooling's window is
widened to as many bits. Then every net that is right with the ReLU first is right with the pooling first, and windows
found for one order are valid for the other. There is one exception: a pooling with a q rounds, so that every level of
its tree may add N / 2 units of 2^q to a maximum. Values this close to the bound of the ReLU's window may leave it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from hummingbird.bits import BitConfig, BitWindow, Rows
from hummingbird.errors import ConfigError
from hummingbird.graph import by_time, centered, clamped, input_terms, pools_first
from hummingbird.graph.ops.public import HIDDEN
from hummingbird.graph.steps import Ref, Step, compact, refs
from hummingbird.mpc.plan import columns
from hummingbird.mpc.protocols.registry import named
from hummingbird.ring import SCALE

# Masks of attention become attributes of the softmax ------------------------------------------------------------------
#
# So no logit is moved out of its window. In a net's steps a mask subtracts 2^12 from the logits that it hides
# (graph/ops/attention.py); a comparison with a window below [30:0) then wraps. But masks are public, as constants or in
# each call. So a softmax takes the mask itself: it replaces hidden logits by another value of their row, which is
# local, and multiplies their exponentials by zero.


def hidden_left_out(steps: Sequence[Step]) -> list[Step]:
    """Move attention masks from their sums with logits into the softmaxes that read these sums; return the new steps.

    A softmax gets the attribute "causal" for a causal mask, the attribute "hidden" for a constant one (true where a
    logit is hidden), and a second input for a mask of each call. What a mask adds to logits that it does not hide is
    still added.
    """
    count = Counter(ref.index for step in steps for ref in refs(step.inputs))
    out = list(steps)
    for number, step in enumerate(steps):
        if step.op == "softmax" and step.attrs["dim"] == -1:
            out[number] = _masked(step, out, count)
    return compact(out)


def _masked(step: Step, out: list[Step], count: Counter[int]) -> Step:
    """Move the attention masks that are added directly before a softmax step into the softmax; return its changed step.

    A mask stays where it is if other steps read its sum with the logits, too.
    out: the net's steps. Those that add a mask may be changed there.
    count: how many steps read each step.
    """
    while count[at := step.inputs[0].index] == 1:
        before = out[at]
        rest = step.inputs[1:]
        if before.op == "causal" and "causal" not in step.attrs:
            step = replace(step, inputs=(*before.inputs, *rest), attrs=step.attrs | {"causal": True})
        elif before.op == "add" and "hidden" not in step.attrs and (places := _hidden_by(before)) is not None:
            out[at] = _shown_part(before, places)
            source = Ref(at) if bool(out[at].attrs["value"].any()) else before.inputs[0]
            step = replace(step, inputs=(source, *rest), attrs=step.attrs | {"hidden": places})
        elif before.op == "add" and not rest and (mask := _mask_of_call(before, out, count)) is not None:
            return replace(step, inputs=(*step.inputs, mask))  # the sum stays, of shown logits
        else:
            return step
    return step


def _hidden_by(add: Step) -> Tensor | None:
    """Find which logits a step hides by adding a constant to them.

    Returns a bool tensor of the constant's shape, true where the constant is 2^12 or more below the largest one of its
    row. Returns None if the step hides no logit, or adds no constant tensor.
    """
    value = add.attrs.get("value")
    if not isinstance(value, Tensor) or value.is_meta or not value.dim():
        return None
    places = value - value.amax(-1, keepdim=True) <= HIDDEN
    return places if bool(places.any()) else None


def _shown_part(add: Step, places: Tensor) -> Step:
    return replace(add, attrs=add.attrs | {"value": add.attrs["value"].masked_fill(places, 0.0)})


def _mask_of_call(add: Step, out: list[Step], count: Counter[int]) -> Ref | None:
    """Find the attention mask, public in each call, that the step `add` adds to logits; None if it adds none.

    Returns a reference to the step that gives the mask, true where a logit is hidden. Also replaces, in `out`, the step
    that shares the values which `add` adds: the new one has 0 at hidden logits, and is unchanged at others.
    out: the net's steps.
    count: how many steps read each step.
    """
    if len(add.inputs) == 2 and out[at := add.inputs[1].index].op == "share_public" and count[at] == 1:
        source: Ref = out[at].inputs[0]
        if out[source.index].op == "public_call" and out[source.index].attrs["function"] == "hidden":
            out[at] = replace(out[at], attrs=out[at].attrs | {"shown": True})
            return source
    return None


# Clamped inputs of recurrent layers -----------------------------------------------------------------------------------
#
# Where `rows` say how much the state adds to the argument of a function, what the input adds is clamped to the rest of
# the range, for all time steps at once. The clamp's comparisons leave undecided whether values are up to `UNDECIDED`
# above a bound. So the upper one is as much lower: the argument stays in the range.

NO_ROWS: Mapping[str, Rows] = {}
CLAMP = BitWindow(30, 15)  # of the clamps: what an input adds stays below 2^13
UNDECIDED = 2.0 ** (CLAMP.m - SCALE)


def clamps_of(rows: Mapping[str, Rows]) -> dict[str, tuple[float, float]]:
    """Return the numbers to which inputs' terms are clamped, by the functions' names, for those with `Rows.state`."""
    found = {}
    for name, known in rows.items():
        if known.state is not None:
            low, high = known.least + known.state, known.most - known.state
            found[name] = low, max(low, high - UNDECIDED)
    return found


def inputs_clamped(steps: Sequence[Step], rows: Mapping[str, Rows]) -> list[Step]:
    """Clamp what the inputs of recurrent layers add to the arguments of functions, by `rows`; return the new steps.

    Raises ConfigError for rows with a `state` of other functions.
    """
    clamps = clamps_of(rows)
    if not clamps:
        return list(steps)
    terms = input_terms(steps)
    for name in clamps:
        calls = [step.name for step in steps if step.name.partition("#")[0] == name]
        if calls and all(call in terms for call in calls):
            continue
        what = f"rows {rows[name]} have a state, but the layer reads no sum of an input for all time steps and a state"
        raise ConfigError(what, where=name, hint="leave the state out, or take the rows that find_rows finds")
    return clamped(steps, clamps)


# All rewrites ---------------------------------------------------------------------------------------------------------


class Rewritten(NamedTuple):
    """The steps of a net after all rewrites for private inference, such as max poolings that move before ReLUs.

    passed: for each max pooling, by name, the names of the ReLUs before which it has moved.
    clamps: the numbers to which the inputs' terms of functions are clamped, by the functions' names.
    """

    steps: list[Step]
    passed: Mapping[str, Sequence[str]]
    clamps: Mapping[str, tuple[float, float]]

    @classmethod
    def of(
        cls, steps: Sequence[Step], protocol: str, private: BitConfig | None = None, rows: Mapping[str, Rows] = NO_ROWS
    ) -> Rewritten:
        """Rewrite a net's steps for a protocol; return a `Rewritten` with the new steps.

        Attention masks move into softmaxes, small columns of weights keep their precision, stacked recurrent layers
        are taken step by step, inputs of recurrent layers are clamped, max poolings move before ReLUs, and norms
        subtract their mean through the weights before them. With "gmw" poolings and norms stay as they are: a moved
        pooling would need a rescaling.
        protocol: "masked" or "gmw".
        private: the configuration of the conversion if weights are private, else None.
        rows: those of the conversion's configuration (`BitConfig.rows`).
        """
        steps = inputs_clamped(by_time(steps), rows)
        clamps = clamps_of(rows)
        steps = hidden_left_out(columns.kept(steps) if private is None else columns.marked(steps, private))
        if not named(protocol).takes_rounded_shares:
            return cls(steps, {}, clamps)
        return cls(*pools_first(centered(steps)), clamps)

    def fits(self, config: BitConfig) -> bool:
        """Whether the rows of a configuration clamp the inputs that these steps clamp, to the same numbers."""
        return clamps_of(config.rows) == self.clamps

    def windows(self, config: BitConfig) -> BitConfig:
        """Return a configuration with the windows of steps that the rewrites have changed.

        The windows of the max poolings that moved before ReLUs are wider, since they now compare values of both signs,
        and clamps of inputs have the window CLAMP. Raises ConfigError if `config` says of other functions what a state
        adds than the rows of the rewrites.
        """
        if not self.fits(config):
            raise ConfigError("rows whose states are not those with which the net's steps were rewritten", where="rows")
        clamped_names = (step.name for step in self.steps if step.name.endswith(".input"))
        wider = {name: CLAMP for name in clamped_names if name[: -len(".input")].partition("#")[0] in self.clamps}
        for pool, relus in self.passed.items():
            window = config.window(pool)
            asked = [_room(config.window(relu), window) for relu in relus]
            if window.w:  # a pooling without bits compares nothing: it takes the first element
                wider[pool] = replace(window, k=min(64, max(window.k, *asked)))
        return replace(config, layers={**config.layers, **wider})


def _room(relu: BitWindow, pool: BitWindow) -> int:
    """Return the upper bound k of the window that a max pooling needs when it reads the values of a ReLU's input.

    relu, pool: the windows of the ReLU and of the pooling. Returns 0 for a ReLU whose window has no bits: its values
        have no bound.
    """
    return 0 if not relu.w else relu.k + (1 if pool.low <= relu.low + 1 else 2)
