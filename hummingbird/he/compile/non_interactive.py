"""Scales of polynomial nets: one exchange, the server multiplies ciphertexts, nobody helps.

A value is an integer times a unit, a fraction that is followed exactly: 2^-s for an input, u 2^-t after weights at
scale 2^t, u^2 after a square. s and t are the smallest that keep each kind of error below 2^-12 of a typical value
(noise.py). Products are not relinearised, sizes go 2, 3, 5, 9. No scale is lowered before the answer is masked, so that
nothing is rounded and an answer's error tells nothing of the weights (masking.py); the flood is the largest that leaves
the answer 13 bits, and where that hides too little the answer's scale is raised first. Behind the mask the answer is
divided by as many primes as leave the rounding below 2^-14 of a typical value.

No integer may leave its modulus: |value| <= bound, proven for all inputs in range or seen and with a margin
(bounds.py), and an error of 8 deviations on top. An attempt that finds no room says how many primes would do; degrees
are tried from the smallest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import torch
from torch import Tensor

from hummingbird.errors import ConfigError, ModelError, Problem
from hummingbird.graph import Step
from hummingbird.he.compile import bounds
from hummingbird.he.compile.builder import Builder, Located, common, exact_norm, margin, parts, public_steps, quantized
from hummingbird.he.compile.im2col import SUMS, Map, is_weighted, linear_map, natural, view
from hummingbird.he.compile.magnitudes import Magnitude
from hummingbird.he.compile.placement import Placement
from hummingbird.he.runtime.client_spec import Public
from hummingbird.he.runtime.operations import Combine, Form, Linear, Operation, Pick, Product
from hummingbird.he.runtime.program import Line, Plan, Program
from hummingbird.he.runtime.rounds import Return, Send, Turn
from hummingbird.he.scheme import masking, noise
from hummingbird.he.scheme import packing as packings
from hummingbird.he.scheme.masking import Mask
from hummingbird.he.scheme.packing import spread
from hummingbird.he.scheme.params import DEGREES, PRIME_BITS, Parameters, choose, most_primes

_SPARE = 2  # bits below noise.PRECISION for what lowering a scale may add
_FLOOD = noise.PRECISION + 1  # bits by which a typical answer is above its flood
_MOST_PARTS = 8  # of a factor of a product: what kernels.multiply adds up exactly
_WEIGHTS = 24  # bits of a row sum of whole weights above 26, at most
_HOPELESS = 1e4  # bits
_PEAK = 8  # deviations that an error may reach


class _NoRoom(Exception):
    """A value does not fit; `primes` would do."""

    def __init__(self, name: str, primes: int) -> None:
        super().__init__(name)
        self.name, self.primes = name, primes


def build(
    placement: Placement,
    sizes: Sequence[Magnitude | None],
    packing: str | None,
    degree: int | None,
    bound: float,
    calibrated: bool,
    basis: str,
) -> Plan:
    """The plan of the smallest degree that has room, or of the given one. ConfigError where none has."""
    steps = placement.steps
    multiplies = [steps[i] for i in placement.served[0] if _is_product(steps[i])]
    packing = packing or ("real" if multiplies else "coefficients")
    if multiplies and packing != "real":
        what = f"packing={packing!r}, and {multiplies[0].name!r} multiplies ciphertexts"
        raise ConfigError(what, where="packing", hint="leave packing out: products need the real packing")
    if calibrated:
        limits = [bound, *bounds.seen(sizes)[1:]]  # the client sees to the input's
        basis = f"{basis}; ranges: largest values seen, 2 bits of margin, no proof"
    else:
        shape = placement.shapes[0]
        limits = bounds.proven(steps, shape, bound)
        basis = f"{basis}; ranges: proven for |input| <= {bound:g}"
    for index in placement.sends[0]:
        if math.isinf(limits[index]):
            hint = "give samples= of your data, or compute it before the net"
            raise ModelError([Problem(steps[index].name, "no bound is known for values that are encrypted", hint)])
    short: _NoRoom | None = None
    for candidate in DEGREES if degree is None else (degree,):
        count = 1
        while count <= most_primes(candidate):
            parameters = choose(candidate, count)
            try:
                return _Attempt(placement, sizes, parameters, packing, limits).plan(bound, basis)
            except _NoRoom as error:
                short, count = error, max(count + 1, error.primes)
    assert short is not None
    raise ConfigError(
        f"scale out of bounds: values at {short.name!r} need {short.primes} primes of {PRIME_BITS} bits",
        where="degree" if degree is not None else "net",
        hint="a larger degree has room for more primes"
        if degree is not None and degree < DEGREES[-1]
        else "give samples= where proven ranges are far too large, use fewer products, or mode='client-aided'",
    )


def _is_product(step: Step) -> bool:
    return step.op == "square" or (step.op == "mul" and len(step.inputs) == 2)


class _Attempt(Builder):
    """The plan for given parameters, or _NoRoom."""

    def __init__(
        self,
        placement: Placement,
        sizes: Sequence[Magnitude | None],
        parameters: Parameters,
        packing: str,
        limits: Sequence[float],
    ) -> None:
        super().__init__(placement, sizes)
        self.parameters, self.packing, self.limits = parameters, packing, limits
        self.ring, self.degree = parameters.ring, parameters.degree
        self.form = "ntt" if packing == "real" else "mixed"
        self.operations: list[Operation] = []
        self.located: dict[int, Located] = {}
        self.maps: dict[int, Map] = {}
        self.sends = [Send(i, self.size(i).shape) for i in placement.sends[0]]

    def plan(self, bound: float, basis: str) -> Plan:
        """The plan; `bound` and `basis` are for the client and for people."""
        self.client_steps(0)
        scale = self._input_scale()
        first = 0
        fresh = noise.fresh(self.packing, self.degree) * 2.0**-scale
        for send in self.sends:
            positions = torch.arange(first, first + send.count).view(send.shape)
            self.located[send.value] = Located(0, positions, Fraction(1, 1 << scale))
            self.errors[send.value] = math.hypot(self.error(send.value), fresh)
            first += send.count
        self.received = Form(first + 1, 2, len(self.parameters.primes))  # the last one encrypts zero
        for send in self.sends:
            self._check(send.value)
        for index in self.placement.served[0]:
            self._serve(index)
        returns, masks = [], []
        answers = sum(math.prod(self.size(index).shape) for index in self.placement.returns[0])
        for index in self.placement.returns[0]:
            back, mask = self._return(index, answers)
            returns.append(back)
            masks.append(mask)
        registers = [self.located[back.value].register for back in returns]
        turn = Turn(tuple(self.placement.client[0]), tuple(self.sends), tuple(returns), False, scale, scale)
        self.client_steps(1)
        public = Public(
            "polynomial",
            self.packing,
            self.parameters,
            self.size(0).shape,
            bound,
            public_steps(self.placement),
            (turn,),
            tuple(self.placement.client[1]),
        )
        program = Program(self.received, tuple(self.operations), tuple(registers), tuple(masks))
        lines = tuple(self.lines[i] for i in sorted(self.lines))
        return Plan(public, tuple(self.steps), (program,), lines, basis)

    def _input_scale(self) -> int:
        """s: fresh errors below 2^-12 of a typical input; a message stays below 2^30."""
        fresh = noise.fresh(self.packing, self.degree)
        needed = [fresh / max(self.size(send.value).rms, 2.0**-30) for send in self.sends]
        largest = packings.peak(self.packing) * max(self.limits[send.value] for send in self.sends)
        room = math.floor(29 - math.log2(max(largest, 2.0**-30)))
        return max(0, min(math.ceil(noise.PRECISION + math.log2(max(needed))), room))

    # ---- where ciphertexts are, and whether they fit

    def _forms(self) -> list[Form]:
        return Program(self.received, tuple(self.operations), ()).forms()

    def _form(self, located: Located) -> Form:
        return self._forms()[located.register]

    def _check(self, index: int) -> None:
        """_NoRoom unless the value's integers, with their errors, stay below half of the modulus they are kept by."""
        located = self.located[index]
        primes = self._form(located).primes
        largest = packings.peak(self.packing) * self.limits[index] + _PEAK * self.error(index)
        bits = 1 + math.log2(max(largest, 2.0**-200)) - math.log2(abs(located.unit))
        missing = bits - math.log2(self.parameters.modulus(primes))
        if missing >= 0:
            more = math.floor(min(missing, _HOPELESS) / PRIME_BITS) + 1
            raise _NoRoom(self.steps[index].name, len(self.parameters.primes) + more)

    def _locate(self, index: int) -> Located:
        """The value's ciphertexts; for a free step those of its inputs."""
        if index not in self.located:
            self.error(index)
            self.located[index] = self._free(index)
            self._check(index)
        return self.located[index]

    def _free(self, index: int) -> Located:
        step = self.steps[index]
        if step.op in ("cat", "stack"):
            return self._joined(step, self.read(index))
        before = self._locate(self.read(index)[0])
        if step.op == "neg":
            return replace(before, unit=-before.unit)
        if step.op == "mul":
            if step.attrs["value"] == 0:
                raise ModelError([Problem(step.name, "a product with 0", "leave it out")])
            return replace(before, unit=before.unit * Fraction(step.attrs["value"]))
        return replace(before, index=view(step, before.index))

    def _joined(self, step: Step, read: Sequence[int]) -> Located:
        """cat and stack: another list of positions where all parts are in one register, else copied to one."""
        places = [self._locate(i) for i in read]
        if len({(place.register, place.unit) for place in places}) == 1:
            return replace(places[0], index=view(step, *(place.index for place in places)))
        unit, factors, _ = common([place.unit for place in places])
        forms, shifted, first = self._forms(), [], 0
        for place in places:
            shifted.append(torch.where(place.index < 0, -1, place.index + first))
            first += forms[place.register].count
        index = view(step, *shifted)
        made = self._pick(tuple(place.register for place in places), index, tuple(factors), None)
        return Located(made, natural(index.shape, 1, False), unit)

    def _pick(
        self, registers: tuple[int, ...], index: Tensor, factors: tuple[int, ...], constants: Tensor | None,
        size: int = 0, primes: int = 0,
    ) -> int:  # fmt: skip
        forms = [self._forms()[register] for register in registers]
        size, primes = size or max(form.size for form in forms), primes or min(form.primes for form in forms)
        self.operations.append(Pick(registers, index.reshape(-1).int(), factors, size, primes, constants))
        return len(self.operations)

    def _own(self, located: Located, shape: tuple[int, ...], size: int = 0, primes: int = 0) -> Located:
        """The value as a register of its own, of its shape broadcast, and of this form."""
        spread = replace(located, index=located.index.expand(shape))
        form = self._form(located)
        same = size in (0, form.size) and primes in (0, form.primes)
        if same and spread.is_whole(form.count):
            return spread
        made = self._pick((located.register,), spread.index, (1,), None, size, primes)
        return Located(made, natural(shape, 1, False), located.unit)

    def _droppable(self, form: Form, unit: Fraction, rms: float) -> tuple[int, Fraction, float]:
        """How many primes remain, the unit then, and the error that dividing adds."""
        count, added = form.primes, 0.0
        rounding = noise.switch(self.packing, self.degree, form.size)
        while count > 1:
            larger = unit * self.parameters.primes[count - 1]
            now = math.hypot(added, rounding * abs(float(larger)))
            if now > rms * 2.0 ** -(noise.PRECISION + _SPARE):
                break
            unit, count, added = larger, count - 1, now
        return count, unit, added

    # ---- the server's steps

    def _serve(self, index: int) -> None:
        step = self.steps[index]
        own = 0.0
        if is_weighted(step) or step.op in SUMS:
            own = self._linear(index)
        elif _is_product(step):
            self._multiply(index)
        elif len(step.inputs) == 2:
            self._add(index)
        else:
            self._shift(index)
        if _is_product(step):
            a, b = (self.errors[i] for i in (self.read(index)[0], self.read(index)[-1]))
            own = a * b
        self.errors[index] = math.hypot(self.passed_on(index), own)
        self._check(index)
        located = self.located[index]
        form = self._form(located)
        self.lines[index] = Line(
            step.name,
            step.op,
            "encrypted",
            0,
            register=located.register,
            level=form.primes,
            scale=-math.log2(abs(located.unit)),
            margin=margin(self.ring, self.operations[located.register - 1]),
            rms=self.size(index).rms,
            error=self.errors[index],
        )

    def _linear(self, index: int) -> float:
        """Weights, pools and sums; returns the error of rounding the weights."""
        source = self.read(index)[0]
        located = self._locate(source)
        linear = linear_map(self.steps[index], located.index)
        bits, own = 0, 0.0
        if linear.weights is not None and not bool((linear.weights == linear.weights.round()).all()):
            wrong = math.sqrt(linear.gather.taps.numel() * noise.ROUNDING) * self.size(source).rms
            rms = max(self.size(index).rms, 2.0**-200)
            norm = max(float(linear.weights.abs().sum(2).max()), 2.0**-200)
            wanted = noise.PRECISION + math.log2(max(wrong, 2.0**-200) / rms)
            bits = min(math.ceil(wanted), math.floor(PRIME_BITS + _WEIGHTS - math.log2(norm)))
            own = wrong * 2.0**-bits
        weights = parts(quantized(linear, bits, False), exact_norm(self.ring), self.steps[index].name)
        unit = located.unit * Fraction(2) ** -bits / Fraction(linear.divisor)
        constants = None if linear.bias is None else self._residues(linear.bias, unit)
        self.operations.append(Linear(located.register, linear.gather, weights, None, constants))
        where = natural(linear.shape, linear.rows, linear.last)
        self.located[index], self.maps[index] = Located(len(self.operations), where, unit), linear
        return own

    def _residues(self, values: Tensor, unit: Fraction) -> Tensor:
        """Constants as whole numbers of a unit, centred residues: int32 (n, L)."""
        whole = [round(Fraction(value) / unit) for value in values.tolist()]
        half = [q // 2 for q in self.parameters.primes]
        rows = [[(x + h) % q - h for q, h in zip(self.parameters.primes, half, strict=True)] for x in whole]
        return torch.tensor(rows, dtype=torch.int32)

    def _multiply(self, index: int) -> None:
        shape, read = self.size(index).shape, self.read(index)
        a, b = (self._own(self._locate(i), self.size(i).shape) for i in (read[0], read[-1]))
        if read[0] != read[-1]:
            a, b = (self._own(x, shape) for x in (a, b))
        sizes = self._form(a).size, self._form(b).size
        if min(sizes) > _MOST_PARTS:
            what = f"a product of ciphertexts of {sizes[0]} and {sizes[1]} parts, one of them may have {_MOST_PARTS}"
            hint = "at most three squares in a row: every one doubles the parts; or mode='client-aided'"
            raise ModelError([Problem(self.steps[index].name, what, hint)])
        self.operations.append(Product(a.register, b.register))
        self.located[index] = Located(len(self.operations), natural(shape, 1, False), a.unit * b.unit)

    def _add(self, index: int) -> None:
        """a + b or a - b, of any shapes that broadcast, at a common unit and form."""
        step, shape = self.steps[index], self.size(index).shape
        a, b = (self._locate(i) for i in (step.inputs[0].index, step.inputs[1].index))
        forms = self._form(a), self._form(b)
        size, primes = max(form.size for form in forms), min(form.primes for form in forms)
        a, b = (self._own(x, shape, size, primes) for x in (a, b))
        unit, factors, _ = common([a.unit, b.unit if step.op == "add" else -b.unit])
        self.operations.append(Combine(a.register, b.register, (factors[0], factors[1])))
        self.located[index] = Located(len(self.operations), natural(shape, 1, False), unit)

    def _shift(self, index: int) -> None:
        """A number of the net's code added, or padded."""
        step, before = self.steps[index], self._locate(self.read(index)[0])
        a, positions, where = step.attrs, before.index, torch.ones_like(before.index)
        if step.op == "pad":
            positions, where = view(step, positions), (view(step, torch.zeros_like(positions)) < 0).long()
        unit = -before.unit if a.get("reversed") else before.unit
        added = -a["value"] if step.op == "sub" and not a["reversed"] else a["value"]
        constants = self._residues(torch.tensor([0.0, added], dtype=torch.float64), unit)[where.reshape(-1)]
        made = self._pick((before.register,), positions, (1,), constants)
        self.located[index] = Located(made, natural(positions.shape, 1, False), unit)

    def _return(self, index: int, answers: int) -> tuple[Return, Mask]:
        """What is sent back, masked, then divided by as many primes as precision allows. answers: of the whole plan."""
        located, linear = self.located[index], self.maps.get(index)
        shape, rms = self.size(index).shape, self.size(index).rms
        rows, last = (1, False) if linear is None else (linear.rows, linear.last)
        tile = places = located.index.numel() // rows
        if linear is not None:
            program = Program(self.received, tuple(self.operations), ())
            tile = min(places, program.tile(located.register - 1, self.degree))
        form = self._form(located)
        mask = self._mask(located.unit, rms, form.size, answers)
        unit = located.unit / (1 << mask.lift)
        flood = masking.deviation(mask.flood) * spread(self.packing, self.degree) * abs(float(unit))
        self.errors[index] = math.hypot(self.errors[index], flood)
        self.located[index] = replace(located, unit=unit)
        self._check(index)
        count, unit, added = self._droppable(form, unit, rms)
        self.errors[index] = error = math.hypot(self.errors[index], added)
        noise_left = error / abs(float(unit))
        back = Return(index, shape, rows, places, tile, last, form.size, count, unit, (), 0, noise_left, 0.0)
        down = back.count * back.size * count * self.degree * PRIME_BITS // 8
        self.lines[index] = replace(self.lines[index], error=error, down=down)
        return back, mask

    def _mask(self, unit: Fraction, rms: float, size: int, answers: int) -> Mask:
        """The largest flood that leaves a typical value 2^_FLOOD times its size, and a lift where that is too small."""
        room = max(rms, 2.0**-200) * 2.0**-_FLOOD / (spread(self.packing, self.degree) * abs(float(unit)))
        flood = math.floor(math.log2(room / masking.deviation(0)))
        hidden = masking.distance_bits(flood, self.degree, size, answers)
        lift = max(0, math.ceil(masking.DISTANCE - hidden))
        return Mask(lift, flood + lift)
