"""Softmax, log-softmax and argmax along one dimension, by a tree of maxima (`Arithmetic.maximum`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hummingbird.bits import EXACT, BitWindow, Rows
from hummingbird.errors import ConfigError, InputError
from hummingbird.graph.ops.attention import shown_places
from hummingbird.mpc.functions import softmax_tables, splines
from hummingbird.mpc.functions.polynomials import EXP_AT
from hummingbird.mpc.functions.softmax_tables import Tables
from hummingbird.mpc.layers.arithmetic import Arithmetic
from hummingbird.mpc.layers.comparing import Comparing, Shares
from hummingbird.mpc.layers.layer import FLOOR, MARGIN
from hummingbird.mpc.protocols.beaver import Times
from hummingbird.mpc.protocols.interfaces import Comparison
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared
from hummingbird.ring import SCALE, exponent_of

_FAR = 32.0  # exp and its spline end above -log(2^20) - 7, to the left of which differences from a maximum are clamped


class Softmax(Comparing):
    """Layer for exp(x - max) / sum along `dim`: a maximum tree, exp, 1/x and a product. Relative error below 2^-7.

    exp and 1/x are tables if the protocol has tables (softmax_tables.py), otherwise splines. They are chosen for the
    length of `dim`: the sum of exp errs by less than 2^-9 of the sum, which is at least 1, and 1/sum has the relative
    error 2^-9. Raises InputError for more than 2^17 values along `dim`.

    told: a range of the rows that the layer cannot use, for its printed form.
    causal: whether the layer hides each key that comes after its query.
    hidden: a bool tensor that broadcasts to x, true where a value is hidden; None for no mask.
    The layer's second input, a public mask of the call, may hide further values. Hidden values cost as much as others.
    """

    input_limit = SCALE
    whole_ring = True
    fraction = splines.RECIPROCAL_FRACTION
    opens_sum = False

    hidden: Tensor | None

    def __init__(
        self,
        dim: int,
        comparison: Comparison,
        told: Rows | None = None,
        causal: bool = False,
        hidden: Tensor | None = None,
    ) -> None:
        super().__init__(comparison)
        self.dim, self.told, self.causal = dim, told, causal
        self.register_buffer("hidden", hidden)

    def forward(self, session: Session, x: Shared, *mask: Tensor) -> Shared:
        share, scale = x.share, x.scale
        if self.comparison.drops:
            return Shared(share, scale)
        out = self.formula(Shares(session, self.comparison, scale), share, *mask)
        return Shared(out, SCALE + self.fraction)

    def _shown(self, x: Tensor, mask: Sequence[Tensor]) -> Tensor | None:
        """Combine all masks: return a tensor that is true where a value counts; None if all values do.

        x: the layer's input. In the result `dim` is moved to the front.
        mask: the attention mask of this call, if there is one; at most one entry.
        """
        places = shown_places(x, self.causal, self.hidden, mask[0] if mask else None)
        return None if places is None else places.movedim(self.dim, 0)

    @property
    def _clamping(self) -> Comparison:
        """The comparison that clamps x - max to the range of the table of exp.

        The ends of this range are at most 14 away from 0.
        """
        known = self.comparison
        k, m = known.window.k, min(known.window.m, softmax_tables.CLAMP)
        return known.wider(BitWindow(min(64, max(k, SCALE + 4) + 1), m), known.valid)

    @property
    def _exponents(self) -> Comparison:
        """The comparison of the spline of exp, whose argument is x - max.

        It has room for the spline's knots, and decides on fine bits, whatever the window of the maximum is: a spline is
        in place of a table, which does not depend on that window.
        """
        known = self.comparison
        return self._deciding(max(known.window.k, exponent_of(2 * _FAR) + SCALE), splines.FINE, known.valid)

    def _sums(self, length: int) -> Comparison:
        """The comparison of the spline of 1/x or log x, whose argument is the sum of `length` values of exp."""
        most = length * (1 + 2.0**-9 + self.comparison.undecided * ((length - 1).bit_length() + 1))
        return self._deciding(exponent_of(2 * most) + SCALE, 0, 64)

    def _deciding(self, k: int, m: int, valid: int) -> Comparison:
        known = self.comparison
        return known if known.window == EXACT else known.wider(BitWindow(min(64, k), min(m, known.window.m)), valid)

    def needs(self, scales: Sequence[int], later: int) -> int:
        if self.comparison.drops:
            return later
        compared = [self.comparison, self._exponents, *([self._clamping] if self.comparison.has_tables else [])]
        return max(later, softmax_tables.READ, *(comparison.needs(scales[0]) for comparison in compared))

    def reads(self, later: int | None) -> int | None:
        here = super().reads(later)
        if self.comparison.drops or here is None or (exponents := self._exponents.reads) is None:
            return here if self.comparison.drops else None
        here = max(here, exponents)
        if not self.comparison.has_tables:
            return here
        return max(here, softmax_tables.READ - SCALE) + 1  # one more for differences, as in `_clamping`

    def farthest(self, scale: int) -> float:
        return _FAR

    def bound(self, bounds: Sequence[int]) -> int:
        return bounds[0] if self.comparison.drops else 1

    def label(self) -> str:
        return super().label() + ("" if self.told is None else f", no table for rows in {self.told}")

    def tables(self, length: int) -> Tables | None:
        """Return the tables of exp and 1/x for rows of `length` values; None if splines replace them."""
        if not self.comparison.has_tables or self.comparison.window.q:
            return None  # with a rounded maximum the sum may be below 1
        return softmax_tables.tables(length, self._missed(length), self.opens_sum)

    def formula(self, n: Arithmetic, x: Tensor, *mask: Tensor) -> Tensor:
        shown = self._shown(x, mask)
        below = self._below(n, x, shown)
        found = self.tables(len(below))
        if found is None:
            exp = _counted(self._exponential(n, below), shown)
            # One opening cuts both the elements and their sum: a sum of rounded elements would err by more.
            numerator, total = n.cut(SCALE, exp, exp.sum(0), top=_top(len(exp), n.undecided))
            inverse = self._of_sum(n, splines.reciprocal(len(exp)), total, len(exp))
            (inverse,) = n.cut(SCALE, inverse)  # the remaining bits distinguish numbers down to 1/length
            left = 0
        else:
            exp, more = _counted(self._looked_up(n, below, found), shown), found.exp.scale - SCALE
            total = exp.sum(0) - n.constant(found.middle, more)
            inverse = n.with_comparison(self.comparison, SCALE + more).polynomial(total, found.reciprocal, found.lifted)
            # One opening for both: 1/sum is shifted to the left by the bits that are cut off exp.
            inverse = n.times(inverse, 1 << more, more)
            numerator, inverse = n.cut(more, exp, inverse, top=found.lifted + more - MARGIN)
            left = self.fraction - found.reciprocal.scale  # bits of fraction that the product does not need
        out = n.apply(Times(max(1, self.read - left)), numerator, inverse.unsqueeze(0))
        return n.times(out, 1 << left, left).movedim(0, self.dim).to(x.dtype)

    def _below(self, n: Arithmetic, x: Tensor, shown: Tensor | None = None) -> Tensor:
        """Return x - max, where max is the maximum along `dim`; in the result `dim` is moved to the front.

        n: the kind of numbers.
        shown: true where a value counts, with `dim` at the front; None if all do.
        """
        values = n.precise(x, SCALE).movedim(self.dim, 0)
        if len(values) > splines.LONGEST:
            raise InputError(f"softmax over {len(values)} places", hint=f"at most {splines.LONGEST}")
        values = filled(values, shown)
        return values - n.maximum(values)

    def _missed(self, length: int) -> float:
        """Return by how much the computed maximum of `length` values may be too small.

        At each level of the tree of maxima, a comparison may take a positive difference for a negative one, up to
        `Comparison.undecided`.
        """
        return self.comparison.undecided * (length - 1).bit_length()

    def _exponential(self, n: Arithmetic, below: Tensor) -> Tensor:
        """Compute exp(x - max) by a spline. n: the kind of numbers. below: x - max."""
        return splines.evaluate(splines.exponential(len(below)), below, n.with_comparison(self._exponents, n.scale))

    def _of_sum(self, n: Arithmetic, curve: splines.Fit, total: Tensor, length: int) -> Tensor:
        """Compute a function of the sum of `length` values of exp by a spline. n: the kind of numbers."""
        return splines.evaluate(curve, total, n.with_comparison(self._sums(length), n.scale))

    def _looked_up(self, n: Arithmetic, below: Tensor, found: Tables) -> Tensor:
        """Compute exp(x - max) by the table `found.exp`; return it with its lowest `found.bits` bits right.

        n: the kind of numbers.
        below: x - max. Values beyond the table's range are clamped first.
        """
        missed = self._missed(len(below))
        if missed > softmax_tables.HIGH or self.comparison.range(n.scale) > softmax_tables.REACH:
            ends = (softmax_tables.LOW, softmax_tables.HIGH) if missed else (softmax_tables.LOW,)
            y = n.with_comparison(self._clamping, n.scale).relus(below, ends)
            below = (y[0] - y[1] if missed else y[0]) + n.constant(softmax_tables.LOW)
        return n.polynomial(below + n.constant(EXP_AT), found.exp, found.bits)


def _counted(exp: Tensor, shown: Tensor | None) -> Tensor:
    return exp if shown is None else exp * shown.to(exp.dtype)


def _top(length: int, undecided: float) -> int:
    """Return how many bits hold a sum of `length` values of exp at scale 2^32, if a spline computes exp.

    Each value is at most 1 + 2^-9, and more if comparisons take small positive values for negative ones.
    undecided: up to which number a comparison may do so. Each level of the tree of maxima may find the row's maximum
        too small by this number, and the spline, with slopes up to 1, may err by it.
    """
    missed = undecided * ((length - 1).bit_length() + 1)
    return 2 * SCALE + exponent_of(1 + 2.0**-9 + missed) + length.bit_length()


class LogSoftmax(Softmax):
    """Layer for x - max - log(S) along `dim`, where S is the sum of exp(x - max): a maximum tree, exp and a spline.

    The error is below 2^-7. S >= 1 errs by 2^-9 S + 2^-9 as in `Softmax`, hence its logarithm by 2^-8, and the spline
    of the logarithm by 2^-11. Without bits to compare the layer is the identity. Raises InputError for more than 2^17
    values.
    """

    fraction = 0
    opens_sum = True

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        return valid[0]  # x itself is added to the result

    def reads(self, later: int | None) -> int | None:
        here = super().reads(later)
        return None if here is None or later is None else max(here, later)

    def bound(self, bounds: Sequence[int]) -> int:
        # x - max, and the logarithm of 2^17, which is below 2^4
        return bounds[0] if self.comparison.drops else max(bounds[0] + 1, 4) + 1

    def formula(self, n: Arithmetic, x: Tensor, *mask: Tensor) -> Tensor:
        below = self._below(n, x)
        found = self.tables(len(below))
        # Cut before the comparisons: in gmw each would round the sum by itself, by 2^-16, at slopes near 1.
        if found is None:
            exp = self._exponential(n, below)
            (total,) = n.cut(SCALE, exp.sum(0), top=_top(len(exp), n.undecided))
        else:
            exp = self._looked_up(n, below, found)
            (total,) = n.cut(found.exp.scale - SCALE, exp.sum(0), top=found.bits - MARGIN)
        log = self._of_sum(n, splines.logarithm(len(exp)), total, len(exp))
        (log,) = n.cut(splines.LOGARITHM_FRACTION, log)
        return (below - log.unsqueeze(0)).movedim(0, self.dim).to(x.dtype)


class Argmax(Comparing):
    """Layer for the index of the first maximum along `dim`, as a value of scale 2^16: index 3 is 3.0.

    With n values and 2^c >= n, the integers v_i = 2^c x_i + n - 1 - i are all different and have x's order. A maximum
    tree finds the largest, M; relu(v_i - M + 1) is 1 at its index and 0 elsewhere. Only the upper bound k of the window
    is used: the comparisons are exact in all lower bits.
    """

    input_limit = SCALE
    whole_ring = True

    def __init__(self, dim: int, keepdim: bool, comparison: Comparison) -> None:
        super().__init__(comparison)
        self.dim, self.keepdim = dim, keepdim

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        if self.comparison.drops:
            raise ConfigError("argmax needs bits to compare", hint="give it a window, or leave it out of the net")
        return 64

    def bound(self, bounds: Sequence[int]) -> int:
        return FLOOR

    def needs(self, scales: Sequence[int], later: int) -> int:
        return 64  # for simplicity: the widened window may need fewer

    def _widened(self, bits: int) -> Comparison:
        """Make the comparison of the integers v_i = 2^c x_i + n - 1 - i with each other, for the layer's n values x_i.

        bits: c.
        The window of the new comparison begins at bit 0. Its upper bound is c + 1 bits above that of the layer's
        window: c for the factor 2^c, and one for differences. It is at most the number of low bits that are right in
        the shares of the v_i, unless the layer's window reaches bit 64.
        """
        known = self.comparison
        valid = min(64, known.valid + bits)
        window = BitWindow(64 if known.window.k == 64 else min(valid, known.window.k + bits + 1), 0)
        return known.wider(window, valid)

    def formula(self, n: Arithmetic, x: Tensor) -> Tensor:
        values = x.movedim(self.dim, 0)
        length = len(values)
        bits = (length - 1).bit_length()
        n = n.with_comparison(self._widened(bits))
        places = torch.arange(length, device=x.device).view(-1, *[1] * (values.dim() - 1))
        values = n.times(values, 1 << bits, 0) + n.units(length - 1 - places)
        at = n.relu(values - n.maximum(values) + n.units(torch.ones_like(places[:1])))
        index = n.times((at * places).sum(0), 1 << SCALE, 0)
        return index.unsqueeze(self.dim) if self.keepdim else index


def filled(values: Tensor, places: Tensor | None) -> Tensor:
    """Replace each hidden value of a row by the first shown value of this row, and return the values.

    values: rows lie along dimension 0.
    places: true where a value is shown; None if all are.
    """
    if places is None:
        return values
    return torch.where(places, values, values.gather(0, places.to(torch.int8).argmax(0, keepdim=True)))
