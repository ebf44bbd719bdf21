"""Plans of polynomial nets: one exchange, in which the server multiplies ciphertexts and the client computes no layer.

`build` returns the plan with the smallest degree that has enough primes. `PlanAttempt` plans at given parameters, or
reports how many primes would suffice. Bounds on values hold for all inputs in range, or are the largest values seen,
with a margin (bounds.py). If values cancel, so that answers have fewer than _WANTED bits, inputs and weights get as
many more bits as are missing, as long as that helps.

A value is an integer times a unit. The unit is an exact fraction: 2^-s for an input, u 2^-t after weights at scale 2^t,
u^2 after a square. s and t are the smallest that keep each kind of error below 2^-12 of a typical value
(ckks.PRECISION), or `finer` bits less if values cancel later; s may be negative, for values of 2^30 and more. Products
are not relinearised, so ciphertexts have 2, 3, 5, 9 components. No scale is lowered before the answer is masked:
nothing is rounded, and an answer's error reveals nothing about the weights (masking.py). The flood is the largest that
leaves the answer 13 bits; if it hides too little, the answer's scale is raised first. After masking, the answer is
divided by as many primes as keep the rounding error below 2^-14 of a typical value.

No integer may overflow its modulus: |value| is at most its bound (bounds.py) plus an error of 8 standard deviations.
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
from hummingbird.he.compile.builder import (
    PlanBuilder,
    common,
    exact_norm,
    log2,
    margin,
    parts,
    public_steps,
    quantized,
    rounded,
)
from hummingbird.he.compile.im2col import SUMS, Map, is_weighted, linear_map, view
from hummingbird.he.compile.magnitudes import Magnitude
from hummingbird.he.compile.placement import Placement
from hummingbird.he.compile.registers import Located, Registers
from hummingbird.he.runtime.client_spec import Public
from hummingbird.he.runtime.operations import Form, Linear, Product, WeightedSum
from hummingbird.he.runtime.precision import LEAST
from hummingbird.he.runtime.program import Plan, ReportLine
from hummingbird.he.runtime.rounds import MOST_SCALE, EncryptedInput, Return, Round
from hummingbird.he.scheme import ckks, masking
from hummingbird.he.scheme import packing as packings
from hummingbird.he.scheme.masking import Mask
from hummingbird.he.scheme.packing import spread
from hummingbird.he.scheme.params import DEGREES, PRIME_BITS, Parameters, choose, most_primes

_WANTED = ckks.PRECISION - 3  # bits of a typical answer
_SPARE = 2  # bits below ckks.PRECISION for the error that dropping primes adds
_FLOOD = ckks.PRECISION + 1  # bits by which a typical answer exceeds its flood
_MOST_PARTS = 8  # components of a product's factor: kernels.multiply adds up at most these exactly
_WEIGHTS = 24  # bits by which a row sum of integer weights may exceed 26
_HOPELESS = 1e4  # cap on the missing bits, which may be infinite
_PEAK = 8  # standard deviations that an error may reach


class TooLarge(Exception):
    """Raised in planning if a step's value does not fit the modulus.

    name: of the step. primes: a number of primes that would suffice for this step.
    """

    def __init__(self, name: str, primes: int) -> None:
        super().__init__(name)
        self.name, self.primes = name, primes


def is_product(step: Step) -> bool:
    """Return whether a step multiplies two values with each other, so that the server multiplies ciphertexts."""
    return step.op == "square" or (step.op == "mul" and len(step.inputs) == 2)


def _is_whole(weights: Tensor, most: int) -> bool:
    """Return whether all weights are integers of at most `most` in absolute value."""
    return bool((weights == weights.round()).all()) and float(weights.abs().max()) <= most


class PlanAttempt(PlanBuilder):
    """An attempt to make the plan of a net in the mode "polynomial", with given parameters of the encryption.

    sizes: the measured magnitude of each step's value. limits: a bound on |value| for each step.
    finer: by how many bits errors must be smaller than by default.
    `plan` makes the plan; it raises TooLarge if the parameters have too few primes.
    """

    def __init__(
        self,
        placement: Placement,
        sizes: Sequence[Magnitude | None],
        parameters: Parameters,
        packing: str,
        limits: Sequence[float],
        finer: int = 0,
    ) -> None:
        super().__init__(placement, sizes)
        self.parameters, self.packing, self.limits = parameters, packing, limits
        self.precision = ckks.PRECISION + finer
        self.bits: dict[int, float] = {}  # of a typical returned value above its error; filled by `plan`
        self.ring, self.degree = parameters.ring, parameters.degree
        self.located: dict[int, Located] = {}
        self.maps: dict[int, Map] = {}
        self.sends = [EncryptedInput(i, self.size(i).shape, rounded(self.size(i).rms)) for i in placement.sends[0]]
        received = sum(send.count for send in self.sends) + 1  # the last one encrypts zero
        self.registers = Registers(Form(received, 2, len(parameters.primes)))

    def plan(self, bound: float, basis: str) -> Plan:
        """Build and return the plan, or raise TooLarge if a value does not fit the modulus.

        bound: on |input|, which the client checks. basis: where sizes come from, in words for the report.
        """
        self.client_steps(0)
        scale = self._input_scale()
        first = 0
        fresh = ckks.fresh_error(self.packing, self.degree) * 2.0**-scale
        for send in self.sends:
            positions = torch.arange(first, first + send.count).view(send.shape)
            self.located[send.value] = Located(0, positions, Fraction(2) ** -scale)
            self.errors[send.value] = math.hypot(self.error(send.value), fresh)
            first += send.count
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
        self.bits = {back.value: self._bits(back.value) for back in returns}
        turn = Round(tuple(self.placement.client[0]), tuple(self.sends), tuple(returns), False, scale, scale)
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
        program = self.registers.program(registers, masks)
        lines = tuple(self.lines[i] for i in sorted(self.lines))
        return Plan(public, tuple(self.steps), (program,), lines, basis)

    def _bits(self, index: int) -> float:
        return math.log2(max(self.size(index).rms, 2.0**-1000) / max(self.errors[index], 2.0**-1000))

    def _input_scale(self) -> int:
        """Return s for inputs encoded at scale 2^s, so fine that encryption's error is small beside a typical input.

        It is small if it is below 2^-`self.precision` of a typical input. But encoded inputs must stay below 2^30,
        since the kernel uses int32; s is smaller if this demands it.
        """
        fresh = ckks.fresh_error(self.packing, self.degree)
        needed = [fresh / max(self.size(send.value).rms, 2.0**-30) for send in self.sends]
        largest = packings.peak(self.packing) * max(self.limits[send.value] for send in self.sends)
        room = math.floor(29 - math.log2(max(largest, 2.0**-30)))
        return max(-MOST_SCALE, min(math.ceil(self.precision + math.log2(max(needed))), room, MOST_SCALE))

    # ---- where ciphertexts are, and whether they fit

    def _check(self, index: int) -> None:
        """Raise TooLarge if a step's integers, with their errors, could exceed half of the modulus of their
        ciphertexts.

        index: of the step.
        """
        located = self.located[index]
        primes = self.registers.form(located).primes
        largest = packings.peak(self.packing) * self.limits[index] + _PEAK * self.error(index)
        bits = 1 + math.log2(max(largest, 2.0**-200)) - log2(located.unit)
        missing = bits - math.log2(self.parameters.modulus(primes))
        if missing >= 0:
            more = math.floor(min(missing, _HOPELESS) / PRIME_BITS) + 1
            raise TooLarge(self.steps[index].name, len(self.parameters.primes) + more)

    def _locate(self, index: int) -> Located:
        """Return where the ciphertexts of a step's value are at the server.

        The server computes nothing for a free step, such as a reshape: the value consists of its inputs' ciphertexts,
        in another order. Raises TooLarge for a value that does not fit its modulus. index: of the step.
        """
        if index not in self.located:
            self.error(index)
            self.located[index] = self._free(index)
            self._check(index)
        return self.located[index]

    def _free(self, index: int) -> Located:
        step = self.steps[index]
        if step.op in ("cat", "stack"):
            return self._joined(index)
        before = self._locate(self.read(index)[0])
        if step.op == "neg":
            return replace(before, unit=-before.unit)
        if step.op == "mul":
            if step.attrs["value"] == 0:
                raise ModelError([Problem(step.name, "a product with 0", "leave it out")])
            return replace(before, unit=before.unit * Fraction(step.attrs["value"]))
        return replace(before, index=view(step, before.index))

    def _joined(self, index: int) -> Located:
        """Return where the ciphertexts of a step's value are, for a step that concatenates or stacks values.

        If all parts are in one register and have one unit, the result is there too, as a list of positions. Otherwise
        all parts are copied to a new register. index: of the step.
        """
        step, read = self.steps[index], self.read(index)
        places = [self._locate(i) for i in read]
        if len({(place.register, place.unit) for place in places}) == 1:
            return replace(places[0], index=view(step, *(place.index for place in places)))
        unit, factors, wrong = common([place.unit for place in places])
        self.errors[index] = math.hypot(self.errors[index], wrong * max(self.size(i).rms for i in read))
        shifted, first = [], 0
        for place in places:
            shifted.append(torch.where(place.index < 0, -1, place.index + first))
            first += self.registers.form(place).count
        registers = tuple(place.register for place in places)
        return self.registers.pick(registers, view(step, *shifted), tuple(factors), unit)

    def _droppable(self, form: Form, unit: Fraction, rms: float) -> tuple[int, Fraction, float]:
        """Decide by how many primes an answer is divided before it is sent: by as many as its precision permits.

        Returns the number of primes that are left, the unit after the divisions, and the rounding error that they add.
        form: of the register that holds the answer. unit: the real number that an integer 1 of the answer stands for
        before the divisions. rms: a typical value of the answer, as root mean square.
        """
        count, added = form.primes, 0.0
        rounding = ckks.switch_error(self.packing, self.degree, form.size)
        while count > 1:
            larger = unit * self.parameters.primes[count - 1]
            now = math.hypot(added, rounding * abs(float(larger)))
            if now > rms * 2.0 ** -(self.precision + _SPARE):
                break
            unit, count, added = larger, count - 1, now
        return count, unit, added

    # ---- the server's steps

    def _serve(self, index: int) -> None:
        step = self.steps[index]
        own = 0.0
        if is_weighted(step) or step.op in SUMS:
            own = self._linear(index)
        elif is_product(step):
            self._multiply(index)
        elif len(step.inputs) == 2:
            own = self._add(index)
        else:
            own = self._shift(index)
        if is_product(step):
            a, b = (self.errors[i] for i in (self.read(index)[0], self.read(index)[-1]))
            own = a * b
        self.errors[index] = math.hypot(self.passed_on(index), own)
        self._check(index)
        located = self.located[index]
        form = self.registers.form(located)
        self.lines[index] = ReportLine(
            step.name,
            step.op,
            "encrypted",
            0,
            register=located.register,
            level=form.primes,
            scale=-log2(located.unit),
            margin=margin(self.ring, self.registers.operations[located.register - 1]),
            rms=self.size(index).rms,
            error=self.errors[index],
        )

    def _linear(self, index: int) -> float:
        """Plan a layer, a pool or a sum; return the error from rounding its weights and bias, as a root mean square.

        index: of the step.
        """
        source = self.read(index)[0]
        located = self._locate(source)
        linear = linear_map(self.steps[index], located.index)
        bits, own = 0, 0.0
        most = exact_norm(self.ring)
        if linear.weights is not None and not _is_whole(linear.weights, most):
            wrong = math.sqrt(linear.gather.taps.numel() * ckks.ROUNDING) * self.size(source).rms
            rms = max(self.size(index).rms, 2.0**-200)
            norm = max(float(linear.weights.abs().sum(2).max()), 2.0**-200)
            wanted = self.precision + math.log2(max(wrong, 2.0**-200) / rms)
            single = max(float(linear.weights.abs().max()), 2.0**-200)  # the smallest row sum: of a single weight
            exact = min(PRIME_BITS + _WEIGHTS - math.log2(norm), math.log2(most - 1) - math.log2(single))
            bits = min(math.ceil(wanted), math.floor(exact))
            own = wrong * 2.0**-bits
        weights = parts(quantized(linear, bits, False), most, self.steps[index].name)
        unit = located.unit * Fraction(2) ** -bits / Fraction(linear.divisor)
        constants = None
        if linear.bias is not None:
            constants, rounding = self._residues(linear.bias, unit)
            own = math.hypot(own, rounding)
        operation = Linear(located.register, linear.gather, weights, None, constants)
        self.located[index] = self.registers.add(operation, linear.shape, unit, linear)
        self.maps[index] = linear
        return own

    def _residues(self, values: Tensor, unit: Fraction) -> tuple[Tensor, float]:
        """Convert real constants to integers in a given unit; return their residues, and the largest rounding error.

        values: n constants. unit: the real number that the integer 1 stands for.
        The residues are int32 (n, primes), centred around 0: one for each prime of the modulus.
        """
        exact = [Fraction(value) / unit for value in values.tolist()]
        whole = [round(value) for value in exact]
        wrong = float(max(abs((x - value) * unit) for x, value in zip(whole, exact, strict=True)))
        half = [q // 2 for q in self.parameters.primes]
        rows = [[(x + h) % q - h for q, h in zip(self.parameters.primes, half, strict=True)] for x in whole]
        return torch.tensor(rows, dtype=torch.int32), wrong

    def _multiply(self, index: int) -> None:
        shape, read = self.size(index).shape, self.read(index)
        a, b = (self.registers.own(self._locate(i), self.size(i).shape) for i in (read[0], read[-1]))
        if read[0] != read[-1]:
            a, b = (self.registers.own(x, shape) for x in (a, b))
        sizes = self.registers.form(a).size, self.registers.form(b).size
        if min(sizes) > _MOST_PARTS:
            what = f"a product of ciphertexts of {sizes[0]} and {sizes[1]} parts, one must have at most {_MOST_PARTS}"
            hint = "at most three squares in a row: every one doubles the parts; or mode='client-aided'"
            raise ModelError([Problem(self.steps[index].name, what, hint)])
        self.located[index] = self.registers.add(Product(a.register, b.register), shape, a.unit * b.unit)

    def _add(self, index: int) -> float:
        """Plan a step a + b or a - b; return the error from bringing a and b to one unit, as a root mean square.

        Both operands are copied, if needed, so that their ciphertexts have equally many components and primes. Shapes
        broadcast.
        index: of the step.
        """
        step, shape = self.steps[index], self.size(index).shape
        a, b = (self._locate(i) for i in (step.inputs[0].index, step.inputs[1].index))
        forms = self.registers.form(a), self.registers.form(b)
        size, primes = max(form.size for form in forms), min(form.primes for form in forms)
        a, b = (self.registers.own(x, shape, size, primes) for x in (a, b))
        unit, factors, wrong = common([a.unit, b.unit if step.op == "add" else -b.unit])
        operation = WeightedSum(a.register, b.register, (factors[0], factors[1]))
        self.located[index] = self.registers.add(operation, shape, unit)
        return wrong * max(self.size(i).rms for i in self.read(index))

    def _shift(self, index: int) -> float:
        """Plan a step that adds a number from the net's code, or pads with it; return the number's rounding error.

        index: of the step.
        """
        step, before = self.steps[index], self._locate(self.read(index)[0])
        a, positions, where = step.attrs, before.index, torch.ones_like(before.index)
        if step.op == "pad":
            positions, where = view(step, positions), (view(step, torch.zeros_like(positions)) < 0).long()
        unit = -before.unit if a.get("reversed") else before.unit
        added = -a["value"] if step.op == "sub" and not a["reversed"] else a["value"]
        constants, own = self._residues(torch.tensor([0.0, added], dtype=torch.float64), unit)
        shifted = constants[where.reshape(-1)]
        self.located[index] = self.registers.pick((before.register,), positions, (1,), unit, constants=shifted)
        return own

    def _return(self, index: int, answers: int) -> tuple[Return, Mask]:
        """Plan how an answer is sent back, masked and then divided by primes; return its `Return` and its `Mask`.

        It is divided by as many primes as its precision allows. index: number of the answer's step. answers: number of
        ciphertexts of all answers together.
        """
        located, shape, rms = self.located[index], self.size(index).shape, self.size(index).rms
        rows, places, tile, last = self.registers.stream(located, self.maps.get(index), self.degree)
        form = self.registers.form(located)
        mask = self._mask(located.unit, rms, form.size, answers)
        unit = located.unit / (1 << mask.lift)
        flood = masking.deviation(mask.flood) * spread(self.packing, self.degree) * abs(float(unit))
        self.errors[index] = math.hypot(self.errors[index], flood)
        self.located[index] = replace(located, unit=unit)
        self._check(index)
        count, unit, added = self._droppable(form, unit, rms)
        self.errors[index] = error = math.hypot(self.errors[index], added)
        noise_left = rounded(error / abs(float(unit)))
        back = Return(index, shape, rows, places, tile, last, form.size, count, unit, (), 0, noise_left, 0.0)
        down = back.count * back.size * count * self.degree * PRIME_BITS // 8
        self.lines[index] = replace(self.lines[index], error=error, down=down)
        return back, mask

    def _mask(self, unit: Fraction, rms: float, size: int, answers: int) -> Mask:
        """Choose the noise, the flood, that hides the weights in an answer: the largest with which 13 bits of a typical
        answer stay right; return a `Mask`.

        If that flood hides too little, the answer is first multiplied by a power of two, the mask's `lift`.
        unit: the real number that an integer 1 of the answer stands for. rms: a typical answer, as root mean square.
        size: components of a ciphertext. answers: number of ciphertexts of all answers together.
        """
        room = max(rms, 2.0**-200) * 2.0**-_FLOOD / (spread(self.packing, self.degree) * abs(float(unit)))
        flood = math.floor(math.log2(room / masking.deviation(0)))
        hidden = masking.distance_bits(flood, self.degree, size, answers)
        lift = max(0, math.ceil(masking.DISTANCE - hidden))
        while masking.distance_bits(flood + lift, self.degree, size, answers) < masking.DISTANCE:
            lift += 1  # a part of the distance does not shrink with the flood
        return Mask(lift, flood + lift)


def build(
    placement: Placement,
    sizes: Sequence[Magnitude | None],
    packing: str | None,
    degree: int | None,
    bound: float,
    calibrated: bool,
    basis: str,
) -> Plan:
    """Make the plan of a net in polynomial mode, with the given degree or the smallest that has enough primes.

    sizes: the measured magnitude of each step's value. bound: bound on |input|. calibrated: whether the largest
    measured values serve as bounds, instead of proven ones. basis: where sizes come from, in words for the report.
    Raises ConfigError if no degree has enough primes; ModelError if less than 6 bits of a typical answer would be
    right.
    """
    steps = placement.steps
    multiplies = [steps[i] for i in placement.served[0] if is_product(steps[i])]
    packing = packing or ("real" if multiplies else "coefficients")
    if multiplies and packing != "real":
        what = f"packing={packing!r}, and {multiplies[0].name!r} multiplies ciphertexts"
        raise ConfigError(what, where="packing", hint="leave packing out: products need the real packing")
    if calibrated:
        limits = [bound, *bounds.seen(sizes)[1:]]  # the client checks the input's bound
        basis = f"{basis}; ranges: largest values seen, 2 bits of margin, no proof"
    else:
        shape = placement.shapes[0]
        limits = bounds.proven(steps, shape, bound)
        basis = f"{basis}; ranges: proven for |input| <= {bound:g}"
    for index in placement.sends[0]:
        if math.isinf(limits[index]):
            hint = "give samples= of your data, or compute it before the net"
            raise ModelError([Problem(steps[index].name, "no bound is known for values that are encrypted", hint)])
    short: TooLarge | None = None
    best: tuple[float, PlanAttempt, Plan] | None = None
    finer, helps = 0, True
    for candidate in DEGREES if degree is None else (degree,):
        count = 1
        while helps and count <= most_primes(candidate):
            attempt = PlanAttempt(placement, sizes, choose(candidate, count), packing, limits, finer)
            try:
                plan = attempt.plan(bound, basis)
            except TooLarge as error:
                short, count = error, max(count + 1, error.primes)
                continue
            bits = min(attempt.bits.values())
            helps = bits < _WANTED and (best is None or bits > best[0] + 0.5)
            finer += math.ceil(max(_WANTED - bits, 0))
            if best is None or bits > best[0]:
                best = bits, attempt, plan
    if best is not None:
        _check_bits(best[1])
        return best[2]
    assert short is not None
    raise ConfigError(
        f"scale out of bounds: values at {short.name!r} need {short.primes} primes of {PRIME_BITS} bits",
        where="degree" if degree is not None else "net",
        hint="a larger degree has room for more primes"
        if degree is not None and degree < DEGREES[-1]
        else "give samples= where proven ranges are far too large, use fewer products, or mode='client-aided'",
    )


def _check_bits(attempt: PlanAttempt) -> None:
    """Raise ModelError if fewer than 6 bits (`LEAST`) of an answer's typical value would be right; list such answers.

    attempt: one that has made its plan, and so has predicted the bits of a typical value of each answer.
    """
    steps = attempt.steps
    found = [
        Problem(
            steps[index].name,
            f"less than {LEAST} bits of its values would be right: they cancel, or are too far apart in size",
            "give samples= of your data and the input_range= that they have, or take mode='client-aided'",
        )
        for index, bits in attempt.bits.items()
        if bits < LEAST
    ]
    if found:
        raise ModelError(found)
