"""Common parts of both plan builders: error propagation, lines of the report, integer weights.

Errors are root mean squares, like the sizes of values (magnitudes.py). A step multiplies its inputs' errors by its
gains; the builders add the errors of encryption.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import Tensor

from hummingbird.errors import ModelError, Problem
from hummingbird.graph import Step
from hummingbird.graph.steps import refs
from hummingbird.he.compile.im2col import Map
from hummingbird.he.compile.magnitudes import Magnitude
from hummingbird.he.compile.placement import CLIENT, FREE, Placement
from hummingbird.he.runtime.operations import Linear, Operation
from hummingbird.he.runtime.program import ReportLine
from hummingbird.he.runtime.spec_json import REMOTE
from hummingbird.he.scheme import ckks
from hummingbird.kernels.ciphertexts import Ring

EXACT = 1 << 53
_MOST_PARTS = 1 << 10
_FACTOR_BITS = 20  # of integer factors that bring values to a common unit


class PlanBuilder:
    """A plan under construction: predicts the error of each step's value, and collects the lines of the report.

    It is the base class of the builders for the two modes, "client-aided" and "polynomial".
    placement: the net's steps, and for each of them the role that computes it.
    sizes: the measured magnitude of each step's value, None for a value that is no tensor.
    """

    def __init__(self, placement: Placement, sizes: Sequence[Magnitude | None]) -> None:
        self.placement, self.steps, self.sizes = placement, placement.steps, sizes
        self.errors: dict[int, float] = {}
        self.lines: dict[int, ReportLine] = {}

    def size(self, index: int) -> Magnitude:
        """Return the measured `Magnitude` (shape, root mean square, peak, gains) of a step's value. index: the step's
        number.
        """
        found = self.sizes[index]
        assert found is not None, self.steps[index]
        return found

    def read(self, index: int) -> list[int]:
        """List the numbers of the steps whose values a step reads; one that it reads twice is listed twice."""
        return [ref.index for ref in refs(self.steps[index].inputs)]

    def passed_on(self, index: int) -> float:
        """Return the part of a step's predicted error that the errors of its inputs cause, as a root mean square.

        Errors that the step itself adds, such as rounded weights, are not included. index: the step's number.
        """
        found = self.sizes[index]
        if found is None:  # the parts of a chunk have the error of the whole
            return max(self.error(i) for i in self.read(index))
        return math.sqrt(sum((gain * self.error(i)) ** 2 for i, gain in found.gains.items()))

    def error(self, index: int) -> float:
        """Return the predicted error of a step's value, as a root mean square.

        A free step, such as a reshape, is computed by nobody and has the error that its inputs pass on. index: the
        step's number.
        """
        if index not in self.errors:
            self._note(index, self.passed_on(index), FREE, self.placement.places[index].turn)
        return self.errors[index]

    def client_steps(self, turn: int) -> None:
        """Predict and record the errors of the steps that the client computes before turn number `turn`."""
        for index in self.placement.client[turn]:
            rms = 0.0 if self.sizes[index] is None else self.size(index).rms
            error = math.hypot(self.passed_on(index) if self.steps[index].inputs else 0.0, rms * ckks.FLOAT32)
            self._note(index, error, FREE if self.placement.places[index].side == FREE else CLIENT, turn)

    def _note(self, index: int, error: float, side: str, turn: int) -> None:
        step, rms = self.steps[index], 0.0 if self.sizes[index] is None else self.size(index).rms
        self.errors[index] = error
        if step.op not in ("input", "output"):
            self.lines[index] = ReportLine(
                step.name, step.attrs.get("function", step.op), side, turn, rms=rms, error=error
            )


def public_steps(placement: Placement) -> tuple[Step, ...]:
    """List a net's steps as the client may know them: the client's own steps complete, all others reduced to their
    names.

    The reduced steps have the operation `REMOTE` and no inputs.
    """
    known = {index for steps in placement.client for index in steps}
    return tuple(step if i in known else Step(step.name, REMOTE) for i, step in enumerate(placement.steps))


def exact_norm(ring: Ring) -> int:
    """Return a limit on the sum of |weights| of one output: below it, float64 adds the output's products without
    rounding.

    A product is an integer weight times a residue modulo one of the primes of `ring`. The limit is an int.
    """
    prime = max(ring.primes)
    return (EXACT - prime) // ((prime - 1) // 2)


def margin(ring: Ring, operation: Operation) -> float | None:
    """Return log2 of the limit `exact_norm` over a layer's largest sum of |weights| of one output, as a float.

    If it is above 0, float64 computes the layer exactly. Returns None for an operation that is no `Linear`.
    operation: the server's operation; its weights are integers.
    """
    if not isinstance(operation, Linear):
        return None
    norm = max(float(part.abs().sum(2).max()) for part in operation.parts)
    return math.log2(exact_norm(ring) / norm) if norm else math.inf


def quantized(linear: Map, bits: int, bias: bool = True) -> Tensor:
    """Return a layer's weights times 2^bits, rounded to integers: float64 (groups, rows, terms).

    linear: the layer; a row makes one output channel of a convolution, for example.
    bias: whether to append the layer's bias to each row, if it has one; then a row has one more term.
    """
    if linear.weights is None:
        return torch.ones(1, 1, linear.gather.taps.numel(), dtype=torch.float64)
    whole = (linear.weights * 2.0**bits).round()
    if not bias or linear.bias is None:
        return whole
    return torch.cat([whole, (linear.bias * 2.0**bits).round().view(*whole.shape[:2], 1)], 2)


def parts(weights: Tensor, most: int, name: str) -> tuple[Tensor, ...]:
    """Cut a layer's integer weights into pieces that float64 computes exactly, as few and as equal as possible; return
    these.

    weights: float64 (groups, rows, terms); a row makes one output channel of a convolution, for example. They are cut
    along the terms.
    most: the largest sum of |weights| that a row of a piece may have.
    name: of the layer, for the error.
    Raises ModelError if even single weights are larger.
    """
    for count in range(1, _MOST_PARTS):
        cut = weights.chunk(count, 2)
        if all(float(part.abs().sum(2).max()) <= most for part in cut):
            return tuple(part.contiguous() for part in cut)
    what = (
        f"weights up to {float(weights.abs().max()):.3g} in units of their scale, float64 adds exactly up to {most:.3g}"
    )
    raise ModelError([Problem(name, what, "the layer's weights are too large or too far apart in size: rescale them")])


def rounded(size: float) -> float:
    """Return `size`, a positive number, rounded up by at most a 16th, so that the client learns only five significant
    bits.
    """
    mantissa, exponent = math.frexp(size)
    return math.ldexp(math.ceil(mantissa * 32) / 32, exponent)


def log2(unit: Fraction) -> float:
    """Return log2 |unit|, also for units outside the range of a float."""
    return math.log2(abs(unit.numerator)) - math.log2(unit.denominator)


def common(units: Sequence[Fraction]) -> tuple[Fraction, list[int], float]:
    """Find a unit u such that each of some units is nearly an integer times u, so that values in these units can be
    added.

    To add them, multiply each value by its integer first. Returns three things: u; the integers, one for each unit, of
    at most 20 significant bits; and the largest relative error of a unit.
    """
    least = min(units, key=abs)
    best: tuple[Fraction, list[int], float] | None = None
    for steps in (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 25, 36, 49, 64, 1 << 12):
        unit = abs(least) / steps
        factors = [_short(unit_i / unit) for unit_i in units]
        wrong = max(abs(float(f * unit / unit_i - 1)) for f, unit_i in zip(factors, units, strict=True))
        if best is None or wrong < best[2] / 2:
            best = unit, factors, wrong
        if wrong < 2.0**-_FACTOR_BITS:
            break
    assert best is not None
    return best


def _short(x: Fraction) -> int:
    """Return an integer near x, with at most 20 significant bits: later bits are rounded away."""
    whole = round(x)
    shift = max(0, whole.bit_length() - _FACTOR_BITS)
    return round(x / (1 << shift)) << shift
