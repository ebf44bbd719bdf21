"""A trained net to one that runs on encrypted images: `he.convert_model(net, input_shape)`.

    model = he.convert_model(net, (1, 28, 28))
    print(model.report())                             # what is encrypted, what it costs, how precise it will be
    logits = model(images)                            # float32, any number of images; both roles in this process

One walk for all converters (hummingbird.graph): canonical steps, batch norms folded. Nothing is converted unless
everything can be: ModelError lists every problem, by qualified name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from hummingbird import graph
from hummingbird.errors import ConfigError, InputError, ModelError, Problem
from hummingbird.he import magnitudes, placement
from hummingbird.he import packing as packings
from hummingbird.he.aided import PRIMES, AidedBuilder
from hummingbird.he.model import HEModel
from hummingbird.he.params import check_degree, choose, most_primes
from hummingbird.he.plan import Plan
from hummingbird.he.polynomial import build as build_polynomial
from hummingbird.he.public import MODES

RANGE = 4.0  # of inputs, where nothing else is said
_AIDED_DEGREE = 2048
_HINT = "see the list of operations in hummingbird/graph/run.py"


def convert_model(
    net: nn.Module,
    input_shape: Sequence[int],
    mode: str = "client-aided",
    packing: str | None = None,
    degree: int | None = None,
    input_range: float | None = None,
    samples: Tensor | None = None,
) -> HEModel:
    """The net on encrypted images; the net itself is left as it is and used as in eval mode.

    input_shape: of one image, (1, 28, 28). mode: "client-aided", the client computes everything but layers with
    weights and sees their results, any net; or "polynomial", one exchange, the server computes everything, for nets of
    layers, sums and products. packing: None for the best, or one of he.packing.PACKINGS. degree: of the ring, None for
    the smallest that is secure and has room. input_range: bound on |input|, checked before anything is encrypted, 4.0
    if not given; in client-aided mode only where given, as there the client fits each batch's range. samples: images
    (2 or more, *input_shape) like those to come; they make predictions precise, and in polynomial mode replace bounds
    that hold for all inputs by the largest values seen, with 2 bits of margin.
    Raises ModelError with all problems, ConfigError for options, InputError for shapes and samples.
    """
    return HEModel(make_plan(net, input_shape, mode, packing, degree, input_range, samples))


def make_plan(
    net: nn.Module,
    input_shape: Sequence[int],
    mode: str = "client-aided",
    packing: str | None = None,
    degree: int | None = None,
    input_range: float | None = None,
    samples: Tensor | None = None,
) -> Plan:
    """The plan behind `convert_model`: all that a server needs."""
    if mode not in MODES:
        raise ConfigError(f"mode={mode!r}", where="mode", hint=f"one of {', '.join(MODES)}")
    if packing is not None:
        packings.slots(packing, 2048)
    if degree is not None:
        check_degree(degree)
    if input_range is not None and not 0 < input_range < float("inf"):
        raise ConfigError(f"input_range={input_range}", where="input_range", hint="a positive bound on |input|")
    bound = input_range or (RANGE if mode == "polynomial" else None)
    inputs, basis = _inputs(tuple(input_shape), bound, samples)
    traced = graph.trace(net, elementwise=True)
    shapes, found = magnitudes.shapes(traced, inputs)
    if found:
        raise ModelError(found)
    steps = placement.prepared(traced, shapes, mode)
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


def _inputs(shape: tuple[int, ...], bound: float | None, samples: Tensor | None) -> tuple[Tensor, str]:
    """What the net is measured on, float64, and what that is in words."""
    if not all(isinstance(n, int) and n > 0 for n in shape):
        raise InputError(f"input_shape {shape}", where="input_shape", hint="positive sizes of one image: (1, 28, 28)")
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
        raise InputError("samples hold NaN or infinity", where="samples", hint="look at how they were loaded")
    if bound is not None and largest > bound:
        what = f"samples reach {largest:.4g}, input_range is {bound:g}"
        raise InputError(what, where="samples", hint="normalize them as in training, or give a larger input_range")
    return samples.detach().double(), f"{len(samples)} samples"
