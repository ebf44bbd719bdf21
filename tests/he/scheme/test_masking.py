"""Masked answers: what an attack finds in their parts without the mask, and no longer with it; how much a mask adds."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hummingbird import prg
from hummingbird.he.compile.convert import make_plan
from hummingbird.he.runtime import report
from hummingbird.he.runtime import server as server_module
from hummingbird.he.runtime.client import Client
from hummingbird.he.runtime.operations import Linear
from hummingbird.he.runtime.program import Plan
from hummingbird.he.runtime.server import Server
from hummingbird.he.scheme import masking
from hummingbird.he.scheme.ckks import Coins, SecretKey, expand
from hummingbird.he.scheme.masking import added, distance_bits, likely, masked
from hummingbird.he.scheme.params import choose
from hummingbird.kernels.ciphertexts import noise, phase, ternary
from tests.support.chance import chi_square_limit
from tests.support.he_cases import LINEAR, PRODUCTS, Fn, images, made

INPUTS = 3
PAIRS = [(i, j) for i in range(INPUTS) for j in range(i, INPUTS)]


def quadratic() -> Plan:
    """Linear, square, linear, without biases: all of it is the quadratic form; answers keep all primes."""
    torch.manual_seed(0)
    net = Fn(lambda s, x: s.b(s.a(x) ** 2), a=nn.Linear(INPUTS, 4, bias=False), b=nn.Linear(4, 1, bias=False)).eval()
    plan = make_plan(net, (INPUTS,), "polynomial")
    (turn,) = plan.public.turns
    (back,) = turn.returns
    whole = replace(back, primes=len(plan.public.parameters.primes))
    return replace(plan, public=replace(plan.public, turns=(replace(turn, returns=(whole,)),)))


def form(plan: Plan) -> list[int]:
    """The quadratic form in whole weights, as the answer has it: its coefficients by `PAIRS`."""
    first, second = (op.parts[0][0].long() for op in plan.programs[0].operations if isinstance(op, Linear))
    lift = 1 << plan.programs[0].masks[0].lift
    matrix = (first.T @ (second.T * first)).tolist()
    return [int(matrix[i][j]) * (1 + (i != j)) * lift for i, j in PAIRS]


def answered(plan: Plan) -> tuple[Tensor, Tensor, Tensor, Any]:
    """The view of an honest client of one image: the parts a of what it sent, the phases, the answer, and its key."""
    client = Client(plan.public)
    batch, turn = client.begin(torch.randn(1, INPUTS).clamp(-1, 1)), Server(plan).turn(0)
    (sent,) = batch.uploads(0)
    turn.receive(sent)
    (back,) = turn.downloads()
    ring = plan.public.parameters.ring
    a = expand(ring, sent.seed, len(sent.body))
    phases = phase(ring, torch.stack([sent.body, a], 1), client._key._secret, "ntt")
    return a[:-1], phases[:-1], back.body[0], client._key


def solved(columns: list[list[int]], values: list[int], q: int) -> list[int]:
    """x with sum_k columns[k][i] x[k] = values[i] mod q, by elimination on the first rows that allow it."""
    rows = [[column[i] % q for column in columns] + [values[i] % q] for i in range(len(values))]
    done: list[list[int]] = []
    for k in range(len(columns)):
        pivot = next(row for row in rows if row[k])
        rows.remove(pivot)
        inverse = pow(pivot[k], -1, q)
        pivot = [x * inverse % q for x in pivot]
        rows = [[(x - row[k] * p) % q for x, p in zip(row, pivot, strict=True)] for row in rows]
        done = [[(x - row[k] * p) % q for x, p in zip(row, pivot, strict=True)] for row in done] + [pivot]
    return [row[-1] for row in done]


def attack(plan: Plan) -> tuple[list[int], float]:
    """The quadratic form, modulo the first prime, from the answer's last part c_2 = sum Q_ij a_i a_j: found from a few
    points of the transform. And the fraction of other points that it explains.
    """
    q = plan.public.parameters.primes[0]
    a, _, answer, _ = answered(plan)
    known, c2 = a[:, 0].long() % q, answer[2, 0].long() % q
    columns = [known[i] * known[j] % q for i, j in PAIRS]
    few = slice(0, len(PAIRS))
    found = solved([column[few].tolist() for column in columns], c2[few].tolist(), q)
    explained = sum(column * x % q for column, x in zip(columns, found, strict=True)) % q
    return found, float((explained == c2)[few.stop :].double().mean())


def unmasked(ring: Any, c: Tensor, zero: Tensor, flood: int, form: str) -> Tensor:
    return c


def test_an_honest_client_reads_the_quadratic_form_off_an_answer_without_a_mask_and_not_off_a_masked_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = quadratic()
    q = plan.public.parameters.primes[0]
    found, explained = attack(plan)
    assert explained < 0.01 and found != [x % q for x in form(plan)]
    monkeypatch.setattr(server_module, "masked", unmasked)
    found, explained = attack(plan)
    assert explained == 1.0 and found == [x % q for x in form(plan)]


def test_nothing_is_rounded_before_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """The phase of an answer is the form, exactly, of the phases of what was sent: no error of the server's making."""
    monkeypatch.setattr(server_module, "masked", unmasked)
    plan = quadratic()
    ring, q = plan.public.parameters.ring, plan.public.parameters.primes[0]
    _, phases, answer, key = answered(plan)
    got = ring.ntt(phase(ring, answer[None], key._secret, "ntt"))[0, 0].long() % q
    sent = ring.ntt(phases)[:, 0].long() % q
    wanted = sum(sent[i] * sent[j] % q * (x % q) % q for (i, j), x in zip(PAIRS, form(plan), strict=True)) % q
    assert torch.equal(got, wanted)


@pytest.mark.parametrize(("kind", "size"), [("mixed", 2), ("ntt", 2), ("ntt", 3), ("ntt", 5)])
def test_what_a_mask_adds(kind: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that look uniform, a flood of the width asked for, and besides it no more than the bound of the proof."""
    torch.manual_seed(1)
    key, count, flood = SecretKey(choose(4096, 4)), 4, 70
    ring = key.ring
    seed, body = key.encrypt(torch.zeros(1, 4096, dtype=torch.int32), Coins(ring, 1), kind)
    zero = torch.stack([body, expand(ring, seed, 1)], 1)[0]
    nothing = torch.zeros(count, size, 4, 4096, dtype=torch.int32)
    first, second = (masked(ring, nothing, zero, flood, kind) for _ in range(2))
    assert not any(torch.equal(first[i, j], second[i, j]) for i in range(count) for j in range(size))
    for number, prime in enumerate(ring.primes):
        for part in first[:, :, number].transpose(0, 1):
            bins = torch.bincount((part.flatten().long() % prime) * 16 // prime, minlength=16).double()
            expected = part.numel() / 16
            assert float(((bins - expected) ** 2 / expected).sum()) < chi_square_limit(16)
    grown = key.decrypt(first, kind)
    assert float(grown.abs().max()) <= 2.0 ** (flood - 1) + added(4096, size)
    assert float(grown.square().mean().sqrt()) == pytest.approx(masking.deviation(flood), rel=0.03)  # 16,384 values
    monkeypatch.setattr(masking, "wide", lambda ring, stream, n, bits: torch.zeros(n, 4, 4096, dtype=torch.int32))
    rest = float(key.decrypt(masked(ring, nothing, zero, flood, kind), kind).abs().max())
    assert 2.0**-7 * 4096 ** ((size - 2) / 2) < rest <= likely(4096, size)


@pytest.mark.parametrize("name", [*LINEAR, *PRODUCTS])
def test_every_plan_keeps_the_distance_it_states(name: str) -> None:
    plan = make_plan(*made({**LINEAR, **PRODUCTS}[name]), "polynomial")
    (turn,), (program,) = plan.public.turns, plan.programs
    answers = sum(back.count for back in turn.returns)
    assert len(program.masks) == len(turn.returns) and turn.zero
    for back, mask in zip(turn.returns, program.masks, strict=True):
        degree = plan.public.parameters.degree
        assert distance_bits(mask.flood, degree, back.size, answers) >= masking.DISTANCE
    stated = plan.distance_bits()
    assert stated >= masking.DISTANCE and f"within 2^-{math.floor(stated)} of" in report.before(plan)


def test_the_last_ciphertext_sent_encrypts_zero() -> None:
    plan = quadratic()
    client = Client(plan.public)
    (sent,) = client.begin(images(5, (INPUTS,))).uploads(0)
    ring = plan.public.parameters.ring
    last = torch.stack([sent.body, expand(ring, sent.seed, len(sent.body))], 1)[-1:]
    assert len(sent.body) == INPUTS + 1 and float(client._key.decrypt(last, "ntt").abs().max()) <= 21


def test_every_part_has_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """With r = 0 and no flood a mask of zero is f_0, f_1 + g_0, .., g_(k-1): without g the last part would be r a, from
    which r follows. Errors are centred binomial, of variance 21/2, two of them of 21.
    """
    torch.manual_seed(2)
    key, count, size = SecretKey(choose(4096, 4)), 4, 4
    ring = key.ring
    seed, body = key.encrypt(torch.zeros(1, 4096, dtype=torch.int32), Coins(ring, 1), "ntt")
    zero = torch.stack([body, expand(ring, seed, 1)], 1)[0]
    none = torch.zeros(count, 4, 4096, dtype=torch.int32)
    monkeypatch.setattr(masking, "ternary", lambda stream, n: torch.zeros(n, dtype=torch.int32))
    monkeypatch.setattr(masking, "wide", lambda ring, stream, n, bits: none)
    made = masked(ring, torch.zeros(count, size, 4, 4096, dtype=torch.int32), zero, 70, "ntt")
    for part, variance in zip(made.unbind(1), (10.5, 21.0, 21.0, 10.5), strict=True):
        error = ring.intt(part.contiguous())[:, 0].long() % ring.primes[0]
        error = torch.where(error > ring.primes[0] // 2, error - ring.primes[0], error).double()
        assert float(error.abs().max()) <= 42
        # The deviation of a variance over 16,384 values is sqrt(2 / 16384) = 1.1 % of it; 7.6 of them are 8.4 %.
        assert float(error.square().mean()) == pytest.approx(variance, rel=0.084)


def test_a_distance_is_that_of_every_coefficient_of_every_ciphertext() -> None:
    """Shifting a uniform number of 2^B values by e changes e / 2^B of its distribution: N coefficients, n answers."""
    for flood, degree, size, count in ((70, 4096, 2, 1), (90, 8192, 3, 5), (61, 4096, 2, 3)):
        most = 2 * math.sqrt(21 * degree * 96 * math.log(2)) + 21
        shift = Fraction(math.ceil(most) * sum(degree**i for i in range(size - 1)))
        distance = degree * count * (shift / (1 << flood) + Fraction(2 * (size - 1), 1 << 95))
        assert distance_bits(flood, degree, size, count) == pytest.approx(-math.log2(distance), abs=1e-9)


def test_a_sum_of_errors_stays_below_the_likely_bound_and_comes_near_its_tail() -> None:
    """All of 2^21 sums of N errors are below the bound for a tail of 2^-95; some exceed that for a tail of 2^-8."""
    degree, count = 1024, 2048
    bound = math.sqrt(21 * degree * 96 * math.log(2))
    assert likely(degree, 2) == math.ceil(2 * bound + 21) < added(degree, 2)
    errors = noise(prg.fresh("cpu"), count, degree).double()
    secrets = ternary(prg.fresh("cpu"), count * degree).view(degree, count).double()
    largest = (errors @ secrets[:, :1024]).abs()
    assert float(largest.max()) <= bound
    share = float((largest > math.sqrt(21 * degree * 9 * math.log(2))).double().mean())
    assert 0 < share <= 2.0**-8
