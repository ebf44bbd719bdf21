"""Convert a trained net to one that runs on encrypted images: `he.convert_model(net, input_shape)`.

    model = he.convert_model(net, (1, 28, 28))
    print(model.report())                             # layers, cost and predicted precision
    logits = model(images)                            # float32, any number of images; both roles in this process

All converters share the trace (hummingbird.graph): canonical steps, batch norms folded. The steps are measured on a few
inputs (magnitudes.py) and placed (placement.py); then client_aided.py or non_interactive.py chooses integers, scales
and primes. A net is converted completely or not at all: ModelError lists every problem, by qualified name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hummingbird import graph
from hummingbird.errors import ConfigError, InputError, ModelError, Problem, shown
from hummingbird.graph.calls import separate
from hummingbird.graph.example_shapes import traced
from hummingbird.he.compile import magnitudes, placement
from hummingbird.he.compile.client_aided import PRIMES, AidedBuilder
from hummingbird.he.compile.non_interactive import build as build_polynomial
from hummingbird.he.runtime.client_spec import MODES
from hummingbird.he.runtime.memory import installed
from hummingbird.he.runtime.model import HEModel
from hummingbird.he.runtime.program import Plan
from hummingbird.he.scheme import packing as packings
from hummingbird.he.scheme.params import check_degree, choose, most_primes
from hummingbird.structure import Result

RANGE = 4.0  # default bound on |input|
_AIDED_DEGREE = 2048
_MOST_RANGE = 2.0**64  # of inputs
_MOST_SIZE = 1 << 31  # of a dimension
_REFUSED = {
    "constant": (
        "a tensor that the net holds, as a value of its own: the client would have to know it",
        "add it, multiply by it, or put it into a layer; hummingbird.convert_model takes it, on shares",
    ),
}


def convert_model(
    net: nn.Module,
    input_shape: Sequence[int],
    mode: str = "client-aided",
    packing: str | None = None,
    degree: int | None = None,
    input_range: float | None = None,
    samples: Tensor | None = None,
    device: str = "cpu",
) -> HEModel[Result]:
    """Convert a net to run on encrypted images; the net itself does not change, and is used as in eval mode.

    input_shape: of one image, such as (1, 28, 28); forward() may read it.
    mode: "client-aided", for any net: the client computes everything but the layers with weights, and sees their
    results; or "polynomial", for nets of layers, sums and products: one exchange, and the server computes everything.
    packing: how values are encoded in polynomials (he/scheme/packing.py): "coefficients", "complex" or "real"; None for
    the best.
    degree: of the polynomials of a ciphertext; None for the smallest that is secure and has enough primes.
    input_range: bound on |input|, checked before anything is encrypted. Default: 4.0 in polynomial mode, none in
    client-aided mode, where the client fits a scale to each image.
    samples: images (n, *input_shape), n >= 2, like those to come. They make predictions precise; in polynomial mode,
    bounds are then the largest measured values with 2 bits of margin, and no longer hold for all inputs.
    device: where both roles compute, "cpu" or "cuda"; plans are made on the CPU.
    Raises ModelError with all problems, ConfigError for options, InputError for shapes and samples.

    >>> model = he.convert_model(net, (4,))
    >>> logits = model(images)
    >>> bool((logits - net(images)).abs().max() < 0.01)
    True
    """
    return HEModel(make_plan(net, input_shape, mode, packing, degree, input_range, samples), device)


def make_plan(
    net: nn.Module,
    input_shape: Sequence[int],
    mode: str = "client-aided",
    packing: str | None = None,
    degree: int | None = None,
    input_range: float | None = None,
    samples: Tensor | None = None,
) -> Plan:
    """Make the plan that `convert_model` runs, and return it. A server needs nothing else.

    Arguments and errors are those of `convert_model`.

    >>> plan = he.make_plan(net, (4,))
    >>> plan.public.slots, len(plan.public.turns)
    (2048, 2)
    """
    if mode not in MODES:
        raise ConfigError(f"mode={mode!r}", where="mode", hint=f"one of {', '.join(MODES)}")
    if packing is not None:
        packings.slots(packing, 2048)
    if degree is not None:
        check_degree(degree)
    if input_range is not None and not (_is_number(input_range) and 1 / _MOST_RANGE <= input_range <= _MOST_RANGE):
        hint = "a positive bound on |input|, from 2^-64 to 2^64"
        raise ConfigError(f"input_range={input_range!r}", where="input_range", hint=hint)
    bound = input_range or (RANGE if mode == "polynomial" else None)
    shape = _shape(input_shape)
    steps = separate(traced(net, torch.zeros(()).expand(1, *shape), elementwise=True, secret=True))
    found = [Problem(step.name, "its weights have no values", "load them first") for step in steps if _is_meta(step)]
    found += [Problem(step.name, *_REFUSED[step.op]) for step in steps if step.op in _REFUSED]
    if found:
        raise ModelError(found)
    _check_memory(magnitudes.planning_bytes(steps, shape, magnitudes.PATTERN if samples is None else len(samples)))
    inputs, basis = _inputs(shape, bound, samples)
    shapes, found = magnitudes.shapes(steps, inputs)
    found += [
        Problem(step.name, "holds no values", "its shape has a zero: look at input_shape, kernels and layers' sizes")
        for step, made in zip(steps, shapes, strict=True)
        if made is not None and 0 in made
    ]
    if found:
        raise ModelError(found)
    steps = placement.prepared(steps, shapes, mode)
    shapes, _ = magnitudes.shapes(steps, inputs)
    placed, found = placement.place(steps, shapes, mode)
    if found:
        raise ModelError(found)
    if not placed.served:
        what = "no layer has weights: there is nothing to do for a server"
        raise ModelError([Problem("net", what, "run the net at the client, in the clear")])
    sizes = magnitudes.measure(steps, inputs)
    if mode == "polynomial":
        return build_polynomial(placed, sizes, packing, degree, bound or RANGE, samples is not None, basis)
    if packing == "real":
        hint = "coefficients and complex hold twice as many images"
        raise ConfigError("packing='real' in client-aided mode", where="packing", hint=hint)
    degree = degree or _AIDED_DEGREE
    parameters = choose(degree, min(PRIMES, most_primes(degree)))
    return AidedBuilder(placed, sizes, parameters, packing or "coefficients", bound, basis).build()


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_meta(step: graph.Step) -> bool:
    return any(isinstance(value, Tensor) and value.is_meta for value in step.attrs.values())


def _check_memory(needed: int) -> None:
    has = installed()
    if needed > has:
        takes = f"takes {needed / 1e9:.3g} GB; this machine has {has / 1e9:.3g}"
        what = f"planning runs the net in the clear, which {takes}"
        raise ConfigError(what, where="input_shape", hint="is it the shape of one image? give fewer samples=")


def _shape(shape: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(shape, Sequence) or not all(type(n) is int and 0 < n < _MOST_SIZE for n in shape):
        hint = "positive sizes of one image: (1, 28, 28)"
        raise InputError(f"input_shape is {shown(shape)}", where="input_shape", hint=hint)
    return tuple(shape)


def _inputs(shape: tuple[int, ...], bound: float | None, samples: Tensor | None) -> tuple[Tensor, str]:
    """Return the inputs on which the net is measured, float64, and a text about them for the report.

    shape: of one image. samples: the user's images; None: a pattern is made. bound: on |input|; None: 4.0 for the
    pattern, and none for samples. Raises InputError for fewer than two samples, and for samples of another shape,
    beyond the bound, or not finite.
    """
    if samples is None:
        bound = bound or RANGE
        words = f"{magnitudes.PATTERN} pseudo-random inputs of |x| <= {bound:g}, not samples= of your data"
        return magnitudes.pattern(shape, bound), words
    if not isinstance(samples, Tensor) or tuple(samples.shape[1:]) != shape or len(samples) < 2:
        got = tuple(samples.shape) if isinstance(samples, Tensor) else type(samples).__name__
        raise InputError(
            f"samples are {got}", where="samples", hint=f"two or more images, (n, {', '.join(map(str, shape))})"
        )
    largest = float(samples.detach().abs().max())
    if not math.isfinite(largest):
        raise InputError("samples hold NaN or infinity", where="samples", hint="check how they were loaded")
    if bound is not None and largest > bound:
        what = f"samples reach {largest:.4g}, input_range is {bound:g}"
        raise InputError(what, where="samples", hint="normalize them as in training, or give a larger input_range")
    return samples.detach().double(), f"{len(samples)} samples"
