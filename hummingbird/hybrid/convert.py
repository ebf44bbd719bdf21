"""Convert a trained net to a plan for two parties, with the trace of all converters (hummingbird.graph).

    private = convert_model(net, (3, 32, 32), bits="bits.json")
    print(private.report())                            # windows, rings, bytes, noise
    private.prepare(16)                                # before the images are known
    logits = private(images)                           # float32; both sides in this process

lowering.py lowers the steps, scales.py chooses units, plan_builder.py derives rings. A net is converted completely or
not at all: ModelError lists every problem, by qualified name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from hummingbird import graph
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.errors import ConfigError, InputError, ModelError, Problem, shown
from hummingbird.graph.calls import separate
from hummingbird.graph.example_shapes import settled
from hummingbird.graph.steps import refs
from hummingbird.he.compile import magnitudes
from hummingbird.hybrid import plan_json
from hummingbird.hybrid.constants import ARITHMETIC, absorbed
from hummingbird.hybrid.lowering import COMPARING, Lowering, problems
from hummingbird.hybrid.net import HybridNet
from hummingbird.hybrid.plan import GARBLERS, Model
from hummingbird.prg import new_seed
from hummingbird.structure import Result

RANGE = 4.0  # bound on |image| if the windows have no input_range
PROTOCOL = "cut"  # in the provenance of windows
_MOST_SIZE = 1 << 31  # of a dimension


def convert_model(
    net: nn.Module,
    input_shape: Sequence[int],
    bits: BitConfig | BitWindow | str | PathLike[str] | None = None,
    garbler: str = "data",
) -> HybridNet[Result]:
    """Convert a net for two parties, both in this process; arguments and errors are those of `make_plan`.

    Also raises ConfigError for weights and rings for which the encrypted products would reveal something about the
    weights.

    >>> model = hybrid.convert_model(net, (4,), bits=BitWindow(20, 10))
    >>> logits = model(images[:2])
    >>> logits.shape, bool((logits - net(images[:2])).abs().max() < 0.1)
    (torch.Size([2, 3]), True)
    """
    model = make_plan(net, input_shape, bits, garbler)
    return HybridNet(model, plan_json.digest(plan_json.describe(model, new_seed())))


def make_plan(
    net: nn.Module,
    input_shape: Sequence[int],
    bits: BitConfig | BitWindow | str | PathLike[str] | None = None,
    garbler: str = "data",
) -> Model:
    """Return the `Model` of a net: its plan and integer weights. The net does not change, and is used as in eval mode.

    input_shape: of one image, such as (3, 32, 32).
    bits: windows, in one of the forms that `hummingbird.convert_model` takes. Every activation needs a window of 2 to
    24 bits. A layer whose result another layer reads without an activation between them needs one too, under the
    layer's own name. A window of the last layer bounds the logits; without one, the weights bound them. `input_range`
    of `bits` bounds images; the default is 4.0.
    garbler: "data" or "model", the side that garbles.
    Raises ModelError with all problems, ConfigError for windows and options, InputError for shapes.

    >>> made = hybrid.make_plan(net, (4,), bits=BitWindow(20, 10))
    >>> [(step.name, step.op) for step in made.plan.steps]
    [('input', 'input'), ('0', 'linear'), ('1.cut', 'cut'), ('1', 'gate'), ('2', 'linear'), ('output', 'output')]
    """
    return TracedNet(net, input_shape).plan(BitConfig.of(bits), garbler)


class TracedNet:
    """A net traced for images of one shape, from which plans with different windows are made.

    net: the net; it does not change. input_shape: of one image. Raises ModelError for a net that cannot be converted,
    InputError for a shape.
    """

    def __init__(self, net: nn.Module, input_shape: Sequence[int]) -> None:
        shape = _shape(input_shape)
        self._net = graph.trace(settled(net, torch.empty(1, *shape), secret=True), secret=True)
        self._searched = lambda: graph.trace(settled(net, torch.empty(1, *shape)))
        found = [Problem(step.name, "its weights have no values", "load them") for step in self._net if _is_meta(step)]
        if found:
            raise ModelError(found)
        few = magnitudes.pattern(shape, RANGE)[:2]
        self.steps = absorbed(self._net, magnitudes.shapes(self._net, few)[0])
        self.shapes, found = magnitudes.shapes(self.steps, few)
        found += problems(self.steps, self.shapes)
        if found:
            raise ModelError(found)
        self._output()

    @property
    def outputs(self) -> dict[str, int]:
        """How many values each activation or max pooling makes for an image, by name of the layer.

        The layers are in the order in which they run.
        """
        pairs = zip(self.steps, self.shapes, strict=True)
        return {step.name: math.prod(shape or ()) for step, shape in pairs if step.op in COMPARING}

    def plan(self, config: BitConfig, garbler: str = "data") -> Model:
        """Make the plan of the net with these windows; errors are those of `make_plan`.

        garbler: the side that garbles, "data" or "model".
        """
        if garbler not in GARBLERS:
            raise ConfigError(f"garbler={garbler!r}", where="garbler", hint=f"one of {', '.join(GARBLERS)}")
        check_windows(self._net, config, self._searched)
        lowering = Lowering(self.steps, self.shapes, config)
        last = lowering.run()
        input_range = RANGE if config.input_range is None else config.input_range
        window = config.layers.get(last.name)
        return lowering.drafts.finished(last, garbler, input_range, window, self._output())

    def _output(self) -> dict[str, Any]:
        """Return the attributes of the plan's output step: {} for a net with one result.

        For a net with several results they are "structure", such as a tuple of tensors, and "shapes", of each result
        for one image.
        """
        if "structure" not in self.steps[-1].attrs:
            return {}
        results = separate(self.steps)[-1].inputs
        return {
            "structure": self.steps[-1].attrs["structure"],
            "shapes": tuple(self.shapes[ref.index] for ref in refs(results)),
        }


def check_windows(
    steps: Sequence[graph.Step], config: BitConfig, searched: Callable[[], Sequence[graph.Step]] | None = None
) -> None:
    """Raise ConfigError for windows that do not fit the net's steps.

    A window's name must be the name of a step that may have a window, and its `q` must be 0. Windows from a search must
    come from a search for this net. Assumptions about rows (`bits.BitConfig`) are not allowed.
    steps: of the net. config: the windows.
    searched: a function without arguments that returns the net's steps as a search for windows traces them. It is
    called only for windows from a search. Default: `steps`.
    """
    if rounding := [name for name, window in (("default", config.default), *config.layers.items()) if window.q]:
        what = f"windows with a q: {', '.join(rounding)}; values of a net without a dealer have scales of their own"
        raise ConfigError(what, where="bits", hint="leave q out, BitWindow(k, m)")
    if config.rows:
        what = f"rows of {', '.join(sorted(config.rows))}: a net without a dealer has no softmax and no norm"
        raise ConfigError(what, where="bits", hint="leave rows out, BitConfig(default, layers)")
    if config.weight_bits is not None:
        what = f"weight_bits={config.weight_bits}: weights of a net without a dealer have scales of their own"
        raise ConfigError(what, where="bits", hint="leave weight_bits out")
    config.check_names([*(step.name for step in steps if step.op in COMPARING), *lifted(steps)])
    config.check_use(lambda: [graph.fingerprint(steps if searched is None else searched())], PROTOCOL, None)


def lifted(steps: Sequence[graph.Step]) -> list[str]:
    """List the names of the steps that may have a window although they compare nothing.

    They are layers, sums, products and concatenations. If another layer reads such a step's result without an
    activation between them, a lift gate reads the bits in the window. If the step makes a result of the net, the window
    bounds the result's values.
    """
    return [step.name for step in steps if step.op in ("conv", "linear", "affine", "cat", *ARITHMETIC)]


def _is_meta(step: graph.Step) -> bool:
    return any(isinstance(value, Tensor) and value.is_meta for value in step.attrs.values())


def _shape(shape: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(shape, Sequence) or not shape or not all(type(n) is int and 0 < n < _MOST_SIZE for n in shape):
        hint = "positive sizes of one image: (3, 32, 32)"
        raise InputError(f"input_shape is {shown(shape)}", where="input_shape", hint=hint)
    return tuple(shape)
