"""Polynomials of ciphertexts: the torch reference against Python's integers, each C++ version against the reference."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.ciphertexts import (
    DEGREES,
    ETA,
    Ring,
    compose,
    encrypt,
    encrypt_ntt,
    largest_primes,
    noise,
    pack,
    phase,
    ternary,
    uniform,
    unpack,
)
from hummingbird.kernels.ciphertexts.polynomials import FORMS
from hummingbird.kernels.ciphertexts.ring import BITS, centred, root
from hummingbird.kernels.reference.ciphertexts import polynomials
from hummingbird.kernels.reference.ciphertexts.ring import transform
from hummingbird.prg import Stream, derive

SHAPES = [(1024, 1, 5), (2048, 2, 3), (4096, 3, 2), (8192, 2, 2), (16384, 1, 2), (32768, 1, 1)]
EDGE = 1 << 25  # the largest coefficient that a transform takes


def stream(*labels: str | int) -> Stream:
    return Stream(derive(bytes(16), "polynomial kernels", *labels))


def ring_of(degree: int, count: int) -> Ring:
    return Ring.of(degree, largest_primes(degree, count))


def low_prime(degree: int, least: int = 1 << 25) -> int:
    """By default just above 2^25: of 26-bit words, almost half are no residues."""
    candidates = range(least + 1, 1 << 26, 2 * degree)
    return next(q for q in candidates if all(q % d for d in range(3, 1 << 13, 2)))


def extremes(ring: Ring, n: int) -> Tensor:
    """Coefficients of the largest absolute value, with several patterns of signs, and random ones."""
    x = uniform(ring, stream("extremes", ring.degree), n)
    x[0] = EDGE
    for row, period in zip(range(1, n), (1, 2, 64), strict=False):
        x[row] = EDGE * (1 - 2 * (torch.arange(ring.degree) // period % 2)).int()
    return x


def sample(ring: Ring, n: int) -> dict[str, Tensor]:
    """Messages, errors, uniform and secret polynomials, with the largest values among them."""
    source, shape = stream("sample", ring.degree), (n, ring.degree)
    message = (source.bytes(4 * n * ring.degree).view(torch.int32) >> 2).view(shape) // 2
    message[0, :4] = torch.tensor([(1 << 30) - 1 - ETA, -(1 << 30) + 1 + ETA, 0, -1])
    a, secret = uniform(ring, source, n), uniform(ring, source, 1)[0]
    for index, q in enumerate(ring.primes):
        a[0, index, :8], secret[index, :4] = q // 2, -(q // 2)
    return {"message": message, "noise": noise(source, *shape), "a": a, "secret": secret}


def evaluated(ring: Ring, x: list[int], prime: int, position: int) -> int:
    q = ring.primes[prime]
    point, value = pow(root(ring.degree, q), int(ring.order[position]), q), 0
    for coefficient in reversed(x):
        value = (value * point + coefficient) % q
    return value


def schoolbook(a: Tensor, b: Tensor, q: int) -> Tensor:
    """a b mod X^N + 1 and q, centred: int64 (N,)."""
    total, turned = torch.zeros_like(b), b.clone()
    for factor in a.tolist():
        total = (total + factor * turned) % q  # below 2^51
        turned = torch.cat([-turned[-1:], turned[:-1]])  # times X
    return centred(total, q)


# ---- the reference is right


@pytest.mark.parametrize("degree", DEGREES)
def test_primes_and_roots(degree: int) -> None:
    primes = largest_primes(degree, 16)
    assert list(primes) == sorted(primes, reverse=True) and len(set(primes)) == 16
    skipped = set(range(primes[-1], 1 << 26, 2 * degree)) - set(primes)
    assert all(any(q % d == 0 for d in range(3, 1 << 13, 2)) for q in skipped)
    for q in primes:
        assert all(q % d for d in range(2, 1 << 13)) and q % (2 * degree) == 1 and q < 1 << 26
        zeta = root(degree, q)
        assert pow(zeta, degree, q) == q - 1
        first = next(x for x in range(2, q) if pow(x, (q - 1) // (2 * degree), q) == zeta)
        assert all(pow(x, (q - 1) // 2, q) == 1 for x in range(2, first))  # x^((q-1)/2N) is not primitive


@pytest.mark.parametrize(("degree", "count", "n"), SHAPES)
def test_values_are_at_the_powers_that_order_names(degree: int, count: int, n: int) -> None:
    ring = ring_of(degree, count)
    bits = degree.bit_length() - 1
    assert ring.order.tolist() == [2 * int(f"{p:0{bits}b}"[::-1], 2) + 1 for p in range(degree)]
    x = extremes(ring, n)
    values = transform(ring, x, False)
    for row in range(n):
        prime = row % count
        coefficients = x[row, prime].tolist()
        for position in (0, 1, degree // 2, degree - 1, 7 * row + 5)[: 5 if degree < 8192 else 2]:
            q = ring.primes[prime]
            assert (int(values[row, prime, position]) - evaluated(ring, coefficients, prime, position)) % q == 0


@pytest.mark.parametrize(("degree", "count", "n"), SHAPES)
def test_transform_is_linear_and_has_an_inverse(degree: int, count: int, n: int) -> None:
    ring, moduli = ring_of(degree, count), torch.tensor(largest_primes(degree, count))[:, None]
    source = stream("round trip", degree)
    x, y = uniform(ring, source, n), uniform(ring, source, n)
    assert ring.intt(ring.ntt(x)).equal(x) and ring.ntt(ring.intt(x)).equal(x)
    total = torch.remainder(x.long() + y + moduli // 2, moduli) - moduli // 2
    values = torch.remainder(ring.ntt(x).long() + ring.ntt(y) + moduli // 2, moduli) - moduli // 2
    assert ring.ntt(total.int()).equal(values.int())
    # Values that a sum of eight unreduced ones meets at its largest come back as they are mod q.
    edge = extremes(ring, n)
    assert bool(((ring.ntt(ring.intt(edge)) - edge) % moduli == 0).all())
    assert bool(((ring.intt(ring.ntt(edge)) - edge) % moduli == 0).all())


@pytest.mark.parametrize("degree", [1024, 2048, 4096])
@pytest.mark.parametrize("low", [False, True])
def test_products_of_values_are_negacyclic_products(degree: int, low: bool) -> None:
    ring = Ring.of(degree, [low_prime(degree)] if low else largest_primes(degree, 1))
    q, source = ring.primes[0], stream("schoolbook", degree)
    x, y = uniform(ring, source, 1), uniform(ring, source, 1)
    product = centred(ring.ntt(x).long() * ring.ntt(y), q).int()
    assert ring.intt(product)[0, 0].equal(schoolbook(x[0, 0].long(), y[0, 0].long(), q).int())


@pytest.mark.parametrize(("degree", "count"), [(1024, 1), (2048, 2), (4096, 4)])
def test_the_phase_of_an_encryption_is_message_and_error(degree: int, count: int) -> None:
    ring, n = ring_of(degree, count), 3
    given = sample(ring, n)
    secret = ternary(stream("secret"), degree)
    given["secret"] = ring.ntt(secret.repeat(count, 1))
    plain = given["message"] + given["noise"]
    wanted = torch.stack([centred(plain.long(), q) for q in ring.primes], 1).int()
    mixed, values = encrypt(ring, **given), encrypt_ntt(ring, **given)
    assert ring.ntt(mixed).equal(values)
    # The definition, with s as coefficients.
    product = schoolbook(ring.intt(given["a"])[0, 0].long(), secret.long(), ring.primes[0])
    assert mixed[0, 0].equal(centred(plain[0] - product, ring.primes[0]).int())
    for c_0, form in ((mixed, "mixed"), (values, "ntt")):
        found = phase(ring, torch.stack([c_0, given["a"]], 1), given["secret"], form)
        assert found.equal(wanted)
        if count > 1:  # |m + e| < 2^30 < Q/2
            assert compose(ring, found).equal(plain.double())


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_phase_is_a_polynomial_in_the_secret(parts: int) -> None:
    ring = ring_of(1024, 1)
    q, source = ring.primes[0], stream("parts", parts)
    c, secret = uniform(ring, source, parts)[None], uniform(ring, source, 1)[0]
    c[:, :, :, :8], secret[:, :8] = q // 2, -(q // 2)
    columns = zip(secret[0].tolist(), *c[0, :, 0].tolist(), strict=True)
    values = [sum(part * s**i for i, part in enumerate(column)) % q for s, *column in columns]
    wanted = ring.intt(centred(torch.tensor(values), q).int().view(1, 1, -1))
    assert phase(ring, c, secret, "ntt").equal(wanted)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16])
def test_compose_against_big_integers(count: int) -> None:
    """Exact below 2^53 and for two primes, else within L 2^-52 of the value: two roundings of 2^-53 for each step."""
    ring, rng = ring_of(1024, count), random.Random(count)
    whole, degree = math.prod(ring.primes), ring.degree
    edges = [0, 1, -1, whole // 2, -(whole // 2), whole // 2 - 1, 2**53 - 1, -(2**53) + 1]
    small = [rng.randrange(-(2 ** rng.randrange(1, 54)) + 1, 2 ** rng.randrange(1, 54)) for _ in range(500)]
    values = [v for v in edges + small if abs(v) <= whole // 2]
    values += [rng.randrange(-(whole // 2), whole // 2 + 1) for _ in range(degree - len(values))]
    x = torch.stack([torch.tensor([(v + q // 2) % q - q // 2 for v in values]) for q in ring.primes])[None].int()
    for found, value in zip(compose(ring, x)[0].tolist(), values, strict=True):
        if count <= 2 or abs(value) < 2**53:
            assert found == value
        else:
            assert abs(int(found) - value) <= abs(value) * count >> 52


# ---- every native version equals the reference


@pytest.mark.parametrize(("degree", "count", "n"), SHAPES)
def test_native_transforms_equal_reference(isa: str, degree: int, count: int, n: int) -> None:
    ring = ring_of(degree, count)
    for x in (extremes(ring, n), torch.zeros(0, count, degree, dtype=torch.int32)):
        assert ring.ntt(x).equal(transform(ring, x, False))
        assert ring.intt(x).equal(transform(ring, x, True))
    low = Ring.of(degree, [low_prime(degree)])
    x = extremes(low, 2)
    assert low.ntt(x).equal(transform(low, x, False))
    assert low.intt(x).equal(transform(low, x, True))


@pytest.mark.parametrize(("degree", "count", "n"), SHAPES)
def test_native_ciphertexts_equal_reference(isa: str, degree: int, count: int, n: int) -> None:
    ring, given = ring_of(degree, count), sample(ring_of(degree, count), n)
    assert encrypt(ring, **given).equal(polynomials.encrypt(ring, **given))
    assert encrypt_ntt(ring, **given).equal(polynomials.encrypt_ntt(ring, **given))
    for parts, form in ((2, "mixed"), (2, "ntt"), (3, "ntt"), (5, "ntt")):
        c = torch.stack([given["a"].roll(i, -1) for i in range(parts)], 1)
        wanted = polynomials.phase(ring, c, given["secret"], form)
        assert phase(ring, c, given["secret"], form).equal(wanted)
    assert compose(ring, given["a"]).equal(polynomials.compose(ring, given["a"]))
    packed = pack(ring, given["a"])
    assert packed.equal(polynomials.pack(ring, given["a"]))
    assert unpack(ring, packed, given["a"].shape).equal(given["a"])


def test_native_compose_rounds_as_torch_does(isa: str) -> None:
    ring = ring_of(1024, 16)
    x = uniform(ring, stream("compose"), 2)
    assert compose(ring, x).equal(polynomials.compose(ring, x))


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_threads_share_the_polynomials(isa: str, threads: int) -> None:
    ring, before = ring_of(2048, 2), torch.get_num_threads()
    given = sample(ring, 65)
    c = torch.stack([given["a"], given["a"].flip(-1)], 1)
    alone = ring.ntt(given["a"]), encrypt(ring, **given), phase(ring, c, given["secret"], "mixed")
    torch.set_num_threads(threads)
    try:
        shared = ring.ntt(given["a"]), encrypt(ring, **given), phase(ring, c, given["secret"], "mixed")
    finally:
        torch.set_num_threads(before)
    assert all(a.equal(b) for a, b in zip(alone, shared, strict=True))


def test_tensors_that_are_not_contiguous(isa: str) -> None:
    ring = ring_of(1024, 2)
    x = uniform(ring, stream("strides"), 6).view(3, 2, 2, 1024)
    turned = x.transpose(0, 1)
    assert ring.ntt(turned).equal(ring.ntt(turned.contiguous())) and ring.ntt(x[1, 0]).equal(ring.ntt(x)[1, 0])
    assert phase(ring, turned, x[0, 0], "ntt").equal(phase(ring, turned.contiguous(), x[0, 0], "ntt"))
    assert pack(ring, turned).equal(pack(ring, turned.contiguous()))


def test_a_flipped_input_changes_the_output(isa: str) -> None:
    ring = ring_of(1024, 2)
    given = sample(ring, 2)
    for name, tensor in given.items():
        changed = tensor.clone()
        changed.view(-1)[777] += 1
        assert not encrypt(ring, **given | {name: changed}).equal(encrypt(ring, **given))
    c = torch.stack([given["a"], given["a"]], 1)
    for part in (0, 1):
        changed = c.clone()
        changed[1, part, 1, 1023] += 1
        assert not phase(ring, changed, given["secret"], "mixed").equal(phase(ring, c, given["secret"], "mixed"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_reference_on_a_gpu() -> None:
    ring = ring_of(2048, 2)
    given = sample(ring, 3)
    there = {name: tensor.cuda() for name, tensor in given.items()}
    c = torch.stack([given["a"], given["a"].flip(-1)], 1)
    assert ring.intt(there["a"]).cpu().equal(ring.intt(given["a"]))
    assert encrypt(ring, **there).cpu().equal(encrypt(ring, **given))
    assert encrypt_ntt(ring, **there).cpu().equal(encrypt_ntt(ring, **given))
    for form in FORMS:
        assert phase(ring, c.cuda(), there["secret"], form).cpu().equal(phase(ring, c, given["secret"], form))
    assert compose(ring, there["a"]).cpu().equal(compose(ring, given["a"]))
    packed = pack(ring, there["a"])
    assert packed.cpu().equal(pack(ring, given["a"]))
    assert unpack(ring, packed, c[:, 0].shape).cpu().equal(given["a"])


# ---- errors

RING = Ring.of(1024, largest_primes(1024, 2))
X, PLAIN = torch.zeros(3, 2, 1024, dtype=torch.int32), torch.zeros(3, 1024, dtype=torch.int32)
PARTS, DATA = torch.zeros(3, 2, 2, 1024, dtype=torch.int32), torch.zeros(2 * 3328, dtype=torch.uint8)
ENCRYPT = {"message": PLAIN, "noise": PLAIN, "a": X, "secret": X[0]}
Q = RING.primes[0]
WRONG: list[tuple[str, Callable[[], object], str]] = [
    ("Ring.of", lambda: Ring.of(1000, [Q]), "1000"),
    ("Ring.of", lambda: Ring.of(512, [Q]), "512"),
    ("Ring.of", lambda: Ring.of(65536, [Q]), "65536"),
    ("Ring.of", lambda: Ring.of("2048", [Q]), "2048"),  # type: ignore[arg-type]
    ("Ring.of", lambda: Ring.of(1024, []), "0 primes"),
    ("Ring.of", lambda: Ring.of(1024, [Q, Q]), "2 primes, 1"),
    ("Ring.of", lambda: Ring.of(1024, largest_primes(1024, 65)), "65 primes"),
    ("Ring.of", lambda: Ring.of(1024, [Q + 2048]), str(Q + 2048)),
    ("Ring.of", lambda: Ring.of(1024, [12289]), "12289"),
    ("Ring.of", lambda: Ring.of(1024, [-Q]), str(-Q)),
    ("Ring.of", lambda: Ring.of(1024, [float(Q)]), str(float(Q))),  # type: ignore[list-item]
    ("Ring.of", lambda: Ring.of(1024, [1 << 400]), "modulus"),
    ("Ring.take(count)", lambda: RING.take(3), "3 of 2"),
    ("Ring.take(count)", lambda: RING.take(0), "0 of 2"),
    ("largest_primes(count)", lambda: largest_primes(32768, 1000), "1000"),
    ("largest_primes(count)", lambda: largest_primes(32768, 0), "0"),
    ("Ring.ntt(x)", lambda: RING.ntt(X.long()), "torch.int64"),
    ("Ring.ntt(x)", lambda: RING.ntt(X[:, :1]), "(3, 1, 1024)"),
    ("Ring.ntt(x)", lambda: RING.ntt(X[0, 0]), "(1024,)"),
    ("Ring.intt(x)", lambda: RING.intt(X[..., :512]), "(3, 2, 512)"),
    ("Ring.intt(x)", lambda: RING.intt([1]), "list"),  # type: ignore[arg-type]
    ("uniform(n)", lambda: uniform(RING, Stream(bytes(16)), -1), "-1"),
    ("noise(n)", lambda: noise(Stream(bytes(16)), -1, 1024), "-1"),
    ("noise(degree)", lambda: noise(Stream(bytes(16)), 1, 1.5), "1.5"),  # type: ignore[arg-type]
    ("ternary(degree)", lambda: ternary(Stream(bytes(16)), -1), "-1"),
    ("encrypt(message)", lambda: encrypt(RING, **ENCRYPT | {"message": PLAIN[:2]}), "(2, 1024)"),
    ("encrypt(noise)", lambda: encrypt(RING, **ENCRYPT | {"noise": PLAIN.long()}), "torch.int64"),
    ("encrypt(a)", lambda: encrypt(RING, **ENCRYPT | {"a": X[0]}), "(2, 1024)"),
    ("encrypt(secret)", lambda: encrypt(RING, **ENCRYPT | {"secret": X}), "(3, 2, 1024)"),
    ("encrypt(secret)", lambda: encrypt(RING, **ENCRYPT | {"secret": X[0].to("meta")}), "meta"),
    ("encrypt_ntt(message)", lambda: encrypt_ntt(RING, **ENCRYPT | {"message": X}), "(3, 2, 1024)"),
    ("phase(c)", lambda: phase(RING, X, X[0], "ntt"), "(3, 2, 1024)"),
    ("phase(c)", lambda: phase(RING, PARTS[:, :1], X[0], "ntt"), "1 parts"),
    ("phase(c)", lambda: phase(RING, PARTS.repeat(1, 2, 1, 1), X[0], "mixed"), "4 parts"),
    ("phase(secret)", lambda: phase(RING, PARTS, X, "ntt"), "(3, 2, 1024)"),
    ("phase(secret)", lambda: phase(RING, PARTS, X[0].to("meta"), "ntt"), "meta"),
    ("phase(form)", lambda: phase(RING, PARTS, X[0], "coefficients"), "coefficients"),
    ("compose(x)", lambda: compose(RING, X[0]), "(2, 1024)"),
    ("pack(x)", lambda: pack(RING, X.double()), "torch.float64"),
    ("unpack(shape)", lambda: unpack(RING, DATA, (1, 1024)), "(1, 1024)"),
    ("unpack(shape)", lambda: unpack(RING, DATA, (-1, 2, 1024)), "-1"),
    ("unpack(shape)", lambda: unpack(RING, DATA, (1 << 80, 2, 1024)), "1208925819614629174706176"),
    ("unpack(shape)", lambda: unpack(RING, DATA[:0], (0, 1 << 62, 1 << 62, 2, 1024)), "(0, "),
    ("unpack(data)", lambda: unpack(RING, DATA, (1 << 35, 2, 1024)), "(6656,)"),
    ("unpack(data)", lambda: unpack(RING, DATA[1:], (1, 2, 1024)), "(6655,)"),
    ("unpack(data)", lambda: unpack(RING, DATA.int(), (1, 2, 1024)), "torch.int32"),
    ("unpack(data)", lambda: unpack(RING, bytes(6656), (1, 2, 1024)), "bytes"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("where", "call", "got"), WRONG, ids=[f"{i}-{w[0]}" for i, w in enumerate(WRONG)])
def test_wrong_arguments_are_named(where: str, call: Callable[[], object], got: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert caught.value.where == f"kernels.{where}"
    assert got in caught.value.what and caught.value.hint


def test_rings_are_values() -> None:
    primes = largest_primes(2048, 3)
    ring = Ring.of(2048, primes)
    assert ring is Ring.of(2048, list(primes)) and ring.take(2) == Ring.of(2048, primes[:2]) != ring
    assert hash(ring.take(3)) == hash(ring) and ETA == 21 and BITS == 26
