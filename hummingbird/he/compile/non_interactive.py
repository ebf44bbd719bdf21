"""Scales of polynomial nets: one exchange, the server multiplies ciphertexts, nobody helps.

The plan is that of the smallest degree that has room for it (`attempt.Attempt` plans at given parameters). Values are
bounded for all inputs in range, or by the largest ones seen, with a margin (bounds.py). An attempt that finds no room
says how many primes would do; degrees are tried from the smallest. Where values cancel, so that answers have fewer than
_WANTED bits, inputs and weights are held finer by as many bits as lack, as long as that helps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hummingbird.errors import ConfigError, ModelError, Problem
from hummingbird.he.compile import bounds
from hummingbird.he.compile.magnitudes import Magnitude
from hummingbird.he.compile.placement import Placement
from hummingbird.he.compile.plan_attempt import PlanAttempt, TooLarge, is_product
from hummingbird.he.runtime.precision import LEAST
from hummingbird.he.runtime.program import Plan
from hummingbird.he.scheme import noise
from hummingbird.he.scheme.params import DEGREES, PRIME_BITS, choose, most_primes

_WANTED = noise.PRECISION - 3  # bits of a typical answer


def build(
    placement: Placement,
    sizes: Sequence[Magnitude | None],
    packing: str | None,
    degree: int | None,
    bound: float,
    calibrated: bool,
    basis: str,
) -> Plan:
    """The plan of the smallest degree that has room, or of the given one.

    ConfigError where none has; ModelError where less than LEAST bits of a typical answer would be right.
    """
    steps = placement.steps
    multiplies = [steps[i] for i in placement.served[0] if is_product(steps[i])]
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
    """ModelError unless typical answers have LEAST bits above their errors."""
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
