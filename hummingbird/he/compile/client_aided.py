"""Plans of client-aided inference: one multiplication by weights in each turn.

In a turn the client encrypts x 2^s and the constant 2^s. The server multiplies with integer weights w 2^t, where the
bias is a weight on the constant, and the client divides by 2^(s+t). The client chooses s for every image from its
max|x|, which the server never learns, such that no integer can overflow its modulus. The encrypted constant has a slot
for every image, so one image's scale does not affect another's:

    ||w 2^t||_1 (max|x| 2^s + 1/2 + 21) + |b 2^t| (2^s + 21) < Q/2.

The plan fixes t, for each layer the one with the smallest predicted error: finer weights leave less room for the input.
Pools and sums need no multiplication; their divisors become part of the unit. Before sending a result, the server
divides it by all primes but the first if the rounding error (ckks.switch_error) is small beside a typical value: that
halves the bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import torch
from torch import Tensor

from hummingbird.errors import ConfigError
from hummingbird.he.compile.builder import (
    PlanBuilder,
    common,
    exact_norm,
    margin,
    parts,
    public_steps,
    quantized,
    rounded,
)
from hummingbird.he.compile.im2col import Map, has_bias, is_weighted, linear_map, view
from hummingbird.he.compile.magnitudes import Magnitude
from hummingbird.he.compile.placement import FREE, Placement
from hummingbird.he.compile.registers import Located, Registers
from hummingbird.he.runtime.client_spec import Public
from hummingbird.he.runtime.operations import Form, Linear, Operation, WeightedSum
from hummingbird.he.runtime.program import Plan, Program, ReportLine
from hummingbird.he.runtime.rounds import EncryptedInput, Return, Round
from hummingbird.he.scheme import ckks
from hummingbird.he.scheme.params import PRIME_BITS, Parameters

PRIMES = 2
HEADROOM = 2  # times the largest measured value: a full batch has larger values than a few images
_BITS = range(60, -61, -1)  # candidates for t
_Gains = tuple[list[int], int]  # gains of a register's integers: of each send, and of the constant


class AidedBuilder(PlanBuilder):
    """Builds the plan of a net in the mode "client-aided", in which the client computes everything but layers with
    weights.

    It builds the turns one after another, because the errors of a turn affect the next one.
    """

    def __init__(
        self,
        placement: Placement,
        sizes: Sequence[Magnitude | None],
        parameters: Parameters,
        packing: str,
        bound: float | None,
        basis: str,
    ) -> None:
        super().__init__(placement, sizes)
        if len(parameters.primes) < PRIMES:
            raise ConfigError(
                f"degree {parameters.degree} has room for {parameters.bits:.0f} bits, client-aided inference needs 52",
                where="degree",
                hint="take 2048, or more",
            )
        self.parameters, self.packing, self.bound, self.basis = parameters, packing, bound, basis

    def build(self) -> Plan:
        """Build all turns, and return the plan."""
        built = []
        for number in range(len(self.placement.served)):
            self.client_steps(number)
            built.append(_TurnBuilder(self, number).build())
        self.client_steps(len(built))
        public = Public(
            "client-aided",
            self.packing,
            self.parameters,
            self.size(0).shape,
            self.bound,
            public_steps(self.placement),
            tuple(turn for turn, _ in built),
            tuple(self.placement.client[-1]),
        )
        lines = tuple(self.lines[i] for i in sorted(self.lines))
        return Plan(public, tuple(self.steps), tuple(program for _, program in built), lines, self.basis)


class _TurnBuilder:
    """Builds one turn of a client-aided plan: the server's operations, and a description of the values that it returns.

    It also computes by what factor each operation can enlarge integers.
    whole: the builder of the plan with all turns. number: of this turn.
    """

    def __init__(self, whole: AidedBuilder, number: int) -> None:
        self.whole, self.number = whole, number
        self.placement, self.steps, self.parameters = whole.placement, whole.steps, whole.parameters
        self.sends = [EncryptedInput(i, whole.size(i).shape) for i in self.placement.sends[number]]
        self.firsts = [sum(send.count for send in self.sends[:i]) for i in range(len(self.sends) + 1)]
        self.served = self.placement.served[number]
        self.one = any(has_bias(self.steps[i]) for i in self.served)
        self.ring = self.parameters.ring
        self.most = exact_norm(self.ring)
        self.registers = Registers(Form(self.firsts[-1] + self.one, 2, PRIMES))
        self.gains: list[_Gains] = []  # one for each operation's result
        self.located: dict[int, Located] = {}
        self.maps: dict[int, Map] = {}
        self.bits: dict[int, int] = {}
        self.own: dict[int, tuple[float, float]] = {}  # a layer's own errors: times 2^-s, and of rounded weights

    def build(self) -> tuple[Round, Program]:
        """Build the turn: return its description for the client, a `Round`, and the server's `Program` for it."""
        for position, send in enumerate(self.sends):
            positions = torch.arange(self.firsts[position], self.firsts[position + 1]).view(send.shape)
            self.located[send.value] = Located(0, positions, Fraction(1))
        for index in self.served:
            if is_weighted(self.steps[index]):
                self.maps[index] = linear_map(self.steps[index], self._locate(self.whole.read(index)[0]).index)
                self.bits[index] = self._weight_bits(index)
        self._agree()
        for index in self.served:
            if is_weighted(self.steps[index]):
                self._layer(index)
            elif len(self.steps[index].inputs) == 2:
                self._sum(index)
            else:
                self._pool(index)
        back = self.placement.returns[self.number]
        program = self.registers.program([self.located[i].register for i in back])
        returns = tuple(self._return(index) for index in back)
        turn = Round(tuple(self.placement.client[self.number]), tuple(self.sends), returns, self.one, None, 0)
        return self._judged(turn, program), program

    def _locate(self, index: int) -> Located:
        if index not in self.located:
            before = self._locate(self.whole.read(index)[0])
            self.located[index] = replace(before, index=view(self.steps[index], before.index))
        return self.located[index]

    # ---- weights

    def _weight_bits(self, index: int) -> int:
        """Choose the scale 2^t at which a layer's weights become integers; return t, with which the predicted error is
        smallest.

        Only such t are tried with which float64 adds the products with integer weights exactly. If there is none, the
        result is the least t of all, and a later check reports the layer. index: number of the layer's step.
        """
        linear, size = self.maps[index], self.whole.size(self.whole.read(index)[0])
        assert linear.weights is not None
        ones, bias = linear.weights.abs().sum(2).flatten(), _bias(linear)
        largest, both = float(ones.max()), float((ones + bias).max())
        room = self.parameters.modulus(PRIMES) / 2 / max(largest * HEADROOM * size.peak + float(bias.max()), 2.0**-200)
        coarse = _rms(linear.weights.square().sum(2).sqrt()) * ckks.fresh_error(
            self.whole.packing, self.parameters.degree
        )
        terms = linear.gather.taps.numel()

        def error(bits: int) -> float:
            input_scale = min(room * 2.0**-bits, 2.0**29 if self.one else math.inf)
            return math.hypot(coarse / input_scale, math.sqrt(terms * ckks.ROUNDING) * size.rms * 2.0**-bits)

        # Rounding adds at most 1/2 to each of the weights and the bias.
        allowed = [bits for bits in _BITS if both * 2.0**bits + terms / 2 + 1 <= self.most]
        return min(allowed, key=error) if allowed else _BITS[-1]

    def _agree(self) -> None:
        """Give layers whose results are added to each other the same scale of integer weights, so that the sum has one
        unit.

        It is the coarsest scale that any of these layers has. `bits` changes, which holds log2 of each layer's scale.
        """
        behind: dict[int, set[int]] = {}
        for index in self.served:
            if is_weighted(self.steps[index]):
                behind[index] = {index}
                continue
            behind[index] = set().union(*(behind[self._raw(i)] for i in self.whole.read(index)))
            bits = min(self.bits[i] for i in behind[index])
            self.bits.update(dict.fromkeys(behind[index], bits))

    def _raw(self, index: int) -> int:
        """Return the number of the step that computed the ciphertexts of which a step's value consists.

        A free step, such as a reshape, uses the ciphertexts of its input: from step `index` this goes back over free
        steps to the first one that is not free.
        """
        while self.placement.places[index].side == FREE:
            index = self.whole.read(index)[0]
        return index

    # ---- operations

    def _layer(self, index: int) -> None:
        linear, bits, degree = self.maps[index], self.bits[index], self.parameters.degree
        source = self._locate(self.whole.read(index)[0]).index
        weights = quantized(linear, bits)
        terms, has_bias = linear.gather.taps.numel(), linear.bias is not None
        taken, bias = weights[..., :terms], weights[..., terms:]
        gains = [0] * len(self.sends)
        last = int(source.max())  # a layer reads a single send
        gains[next((i for i in range(len(gains)) if last < self.firsts[i + 1]), 0)] = int(taken.abs().sum(2).max())
        coarse = _rms(taken.square().sum(2).sqrt()) * ckks.fresh_error(self.whole.packing, degree)
        coarse = math.hypot(coarse, _rms(bias) * ckks.fresh_error(self.whole.packing, degree)) * 2.0**-bits
        own = math.sqrt(ckks.ROUNDING * (terms * self.whole.size(self.whole.read(index)[0]).rms ** 2 + has_bias))
        self.own[index] = coarse, own * 2.0**-bits
        cut = parts(weights, self.most, self.steps[index].name)
        operation = Linear(0, linear.gather, cut, self.firsts[-1] if has_bias else None, None)
        self._made(index, operation, (gains, int(bias.abs().max()) if has_bias else 0), Fraction(2) ** -bits)

    def _pool(self, index: int) -> None:
        located = self._locate(self.whole.read(index)[0])
        linear = self.maps[index] = linear_map(self.steps[index], located.index)
        sends, one = self.gains[located.register - 1]
        most = linear.gather.most
        operation = Linear(located.register, linear.gather, (quantized(linear, 0),), None, None)
        gains = [gain * most for gain in sends], one * most
        self._made(index, operation, gains, located.unit / Fraction(linear.divisor))

    def _sum(self, index: int) -> None:
        """Add the server's operations for a step a + b or a - b, whose shapes broadcast, to the turn.

        index: of the step.
        """
        shape = self.whole.size(index).shape
        a, b = (self._spread(self._locate(ref.index), shape) for ref in self.steps[index].inputs)
        unit, (f, g), _ = common([a.unit, b.unit if self.steps[index].op == "add" else -b.unit])
        (first, first_one), (second, second_one) = self.gains[a.register - 1], self.gains[b.register - 1]
        gains = [abs(f) * x + abs(g) * y for x, y in zip(first, second, strict=True)]
        operation = WeightedSum(a.register, b.register, (f, g))
        self._made(index, operation, (gains, abs(f) * first_one + abs(g) * second_one), unit)

    def _spread(self, located: Located, shape: tuple[int, ...]) -> Located:
        """Copy a value into a register of its own, broadcast to `shape`; return where the copy is.

        A register is an array of ciphertexts at the server. located: where the value is now. Nothing is copied if the
        value already fills a register in this shape.
        """
        own = self.registers.own(located, shape)
        if own.register != located.register:
            self.gains.append(self.gains[located.register - 1])
        return own

    def _made(self, index: int, operation: Operation, gains: _Gains, unit: Fraction) -> None:
        self.gains.append(gains)
        shape = self.whole.size(index).shape
        self.located[index] = self.registers.add(operation, shape, unit, self.maps.get(index))

    # ---- returned values

    def _return(self, index: int) -> Return:
        located = self.located[index]
        rows, places, tile, last = self.registers.stream(located, self.maps.get(index), self.parameters.degree)
        sends, one = self.gains[located.register - 1]
        gains = tuple(_coarse(gain) for gain in sends)
        shape = self.whole.size(index).shape
        unit, one_gain = located.unit, _coarse(one)
        return Return(index, shape, rows, places, tile, last, 2, PRIMES, unit, gains, one_gain, 0, 0)

    def _judged(self, turn: Round, program: Program) -> Round:
        """Predict the errors of a turn; return the turn with the errors in each of its `returns`, and note them for the
        report.

        turn: the turn without errors. program: the server's program for it.
        The predictions assume the input scale that fits the measured sizes. A value that the server returns is divided
        by all primes but the first, if the rounding error of this is small beside the value or no larger than its other
        errors.
        """
        whole = self.whole
        peaks = [HEADROOM * whole.size(send.value).peak for send in self.sends]
        fitted = turn.fit(torch.tensor(peaks, dtype=torch.float64)[:, None], self.parameters, whole.packing)
        scale = max(0, int(fitted))
        for index in self.served:
            located = self.located[index]
            coarse, own = self.own.get(index, (0.0, 0.0))
            whole.errors[index] = math.hypot(whole.passed_on(index), coarse * 2.0**-scale, own)
            operation = program.operations[located.register - 1]
            whole.lines[index] = ReportLine(
                self.steps[index].name,
                self.steps[index].op,
                "encrypted",
                self.number,
                register=located.register,
                level=PRIMES,
                scale=scale - math.log2(abs(located.unit)),
                margin=margin(self.ring, operation),
                rms=whole.size(index).rms,
                error=whole.errors[index],
            )
        dropped = math.prod(self.parameters.primes[1:])
        rounding = ckks.switch_error(whole.packing, self.parameters.degree, 2) * dropped * 2.0**-scale
        backs = []
        for back in turn.returns:
            error, added = whole.errors[back.value], rounding * abs(float(back.unit))
            (coarse, own), rms = self._made_here(back.value), whole.size(back.value).rms
            integers = coarse / abs(float(back.unit))
            if added <= max(error, rms * 2.0**-ckks.PRECISION):
                back = replace(back, primes=1, unit=back.unit * dropped)
                whole.errors[back.value] = error = math.hypot(error, added)
                integers = math.hypot(integers / dropped, ckks.switch_error(whole.packing, self.parameters.degree, 2))
            back = replace(back, noise=rounded(integers), relative=rounded(own / max(rms, 2.0**-200)))
            backs.append(back)
            line = whole.lines[back.value]
            whole.lines[back.value] = replace(
                line, error=error, down=back.count * 2 * back.primes * self.parameters.degree * PRIME_BITS // 8
            )
        return replace(turn, returns=tuple(backs), usual=scale)

    def _made_here(self, index: int) -> tuple[float, float]:
        """Return the two errors that this turn adds to a step's value: from encrypting its inputs, and from rounding
        weights.

        Both are root mean squares. The first is in units of 2^-s, where the client encrypts at scale 2^s; the second is
        in real numbers. index: the step's number.
        """
        if index in self.own or index in self.placement.sends[self.number]:
            return self.own.get(index, (0.0, 0.0))
        size = self.whole.sizes[index]
        made = [(1.0 if size is None else size.gains[i], self._made_here(i)) for i in set(self.whole.read(index))]
        coarse, own = (math.hypot(*(gain * errors[kind] for gain, errors in made)) for kind in (0, 1))
        return coarse, own


def _bias(linear: Map) -> Tensor:
    return torch.zeros(1, dtype=torch.float64) if linear.bias is None else linear.bias.abs()


def _rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt()) if x.numel() else 0.0


def _coarse(gain: int) -> int:
    """Round a gain up by at most a 16th, so that the client learns only five significant bits of it; return the result.

    gain: a bound on the factor by which a turn enlarges integers.
    """
    shift = max(0, gain.bit_length() - 5)
    return -(-gain >> shift) << shift
