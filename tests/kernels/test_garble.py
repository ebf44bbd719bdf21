"""Garbled circuits compute the ReLU and the cut for all shares; C++ is the torch reference, byte for byte; the hash is
AES as published; bad arguments are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.hybrid.gc.relu import plain
from hummingbird.kernels.garble import (
    GARBLERS,
    KINDS,
    MOST_TILES,
    Circuit,
    evaluate,
    evaluate_model,
    garble,
    garble_model,
    tiles,
)
from hummingbird.kernels.reference import garble as reference
from tests.support.garbling import KEY, Case, case

ALL = [(kind, garbler) for kind in KINDS for garbler in GARBLERS]


def check(one: Case) -> None:
    tables, extra = one.garbled()
    expected = plain(one.circuit, one.shares + one.others) + extra & (1 << one.circuit.ring) - 1
    assert torch.equal(one.evaluated(tables), expected)


@pytest.mark.parametrize(("kind", "garbler"), ALL)
@pytest.mark.parametrize("width", [2, 3, *(pytest.param(width, marks=pytest.mark.slow) for width in (4, 5))])
def test_all_shares_of_few_bits(path: str, width: int, kind: str, garbler: str) -> None:
    """In rings smaller than the shares, as large, larger, and the largest."""
    for ring in (1, width - 1, width, width + 1, 32) if path != "torch" else (width - 1, 32):
        check(case(Circuit(kind, width, ring, garbler)))


@pytest.mark.parametrize(("kind", "garbler"), ALL)
@pytest.mark.parametrize(("width", "ring"), [(10, 20), (24, 32), (17, 5)])
def test_random_shares(isa: str, width: int, ring: int, kind: str, garbler: str) -> None:
    check(case(Circuit(kind, width, ring, garbler), 1003))


def test_the_check_can_fail() -> None:
    one = case(Circuit("relu", 4, 8, "data"), 100)
    tables, _ = one.garbled()
    expected = plain(one.circuit, one.shares + one.others) - one.masks & 255
    for place in (0, -1):  # a gate's block, and a correction
        damaged = tables.clone()
        damaged[place] ^= 128
        assert 1 <= int((one.evaluated(damaged) != expected).sum()) < 16  # instances of one tile at most


def test_the_plain_version_is_a_relu_of_signed_numbers() -> None:
    x = torch.tensor([0, 1, 3, 4, 7, 8, 13])
    assert plain(Circuit("relu", 3, 4, "data"), x).tolist() == [0, 1, 3, 0, 0, 0, 0]
    assert plain(Circuit("lift", 3, 4, "data"), x).tolist() == [0, 1, 3, 12, 15, 0, 13]


# Sizes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "ring", "garbler", "octets"),
    [
        ("relu", 20, "data", 342),
        ("relu", 20, "model", 355.5),
        ("relu", 10, "data", 307),
        ("lift", 20, "data", 272 + 11 * 20 / 8),
        ("lift", 20, "model", 288 + 25),
    ],
)
def test_tables_have_the_size_that_the_circuit_says(kind: str, ring: int, garbler: str, octets: float) -> None:
    circuit = Circuit(kind, 10, ring, garbler)
    assert circuit.table_bytes(1600) == 1600 * octets
    for n in (0, 1, 15, 16, 17, 40):
        assert (
            case(circuit, n).garbled()[0].numel()
            == circuit.table_bytes(n)
            == circuit.table_bytes(n % 16) + (circuit.table_bytes(16) * (n // 16))
        )
    assert [tiles(n) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]


# C++ is the reference ------------------------------------------------------------------------------------------------


@cache
def by_reference(kind: str, width: int, ring: int, garbler: str, n: int) -> tuple[Case, tuple[Tensor, ...]]:
    one = case(Circuit(kind, width, ring, garbler), n)
    head = (one.circuit, KEY, one.tile)
    if garbler == "model":
        tables, offsets = reference.garble_model(*head, one.delta, one.labels, one.own)
        return one, (tables, offsets, reference.evaluate_model(*head, one.held, one.sent, tables))
    tables = reference.garble(*head, one.delta, one.labels, one.shares, one.masks)
    return one, (tables, -one.masks, reference.evaluate(*head, one.held, tables))


@pytest.mark.parametrize(("kind", "garbler"), ALL)
@pytest.mark.parametrize(("width", "ring", "n"), [(2, 1, 1), (3, 7, 16), (10, 20, 83), (24, 31, 50), (5, 32, 17)])
def test_native_is_the_reference(isa: str, width: int, ring: int, n: int, kind: str, garbler: str) -> None:
    one, (tables, extra, results) = by_reference(kind, width, ring, garbler, n)
    made = one.garbled()
    assert torch.equal(made[0], tables) and torch.equal(made[1], extra)
    assert torch.equal(one.evaluated(tables), results)


@pytest.mark.parametrize("garbler", GARBLERS)
def test_tiles_are_numbered_from_the_first_one_on(isa: str, garbler: str) -> None:
    """A part that begins at a tile, with that tile's number, is the part of the whole; with another it is not."""
    one = case(Circuit("relu", 6, 9, garbler), 80)
    size, whole = one.circuit.table_bytes(32), one.garbled()[0]
    cut = {name: getattr(one, name)[32:] for name in ("labels", "own", "shares", "others", "masks")}
    for tile, same in ((one.tile + 2, True), (one.tile + 3, False), (one.tile + 2 + 2**32, False)):
        part = Case(one.circuit, one.delta, **cut, tile=tile)
        assert torch.equal(part.garbled()[0], whole[size:]) == same
        check(part)


def test_threads_do_not_matter(isa: str) -> None:
    one = case(Circuit("relu", 10, 20, "data"), 6003)
    before, made = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            tables, _ = one.garbled()
            made.append((tables, one.evaluated(tables)))
    finally:
        torch.set_num_threads(before)
    for tables, results in made[1:]:
        assert torch.equal(tables, made[0][0]) and torch.equal(results, made[0][1])


@pytest.mark.parametrize("garbler", GARBLERS)
def test_strided_tensors_are_as_good(path: str, garbler: str) -> None:
    one = case(Circuit("lift", 4, 6, garbler), 20)
    names = ("labels", "own", "shares", "others", "masks")
    spread = {name: torch.stack([getattr(one, name)] * 2, dim=1)[:, 1] for name in names}
    assert torch.equal(Case(one.circuit, one.delta, **spread).garbled()[0], one.garbled()[0])


# The hash ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "text", "cipher"),
    [  # FIPS 197, appendices B and C.1
        ("2b7e151628aed2a6abf7158809cf4f3c", "3243f6a8885a308d313198a2e0370734", "3925841d02dc09fbdc118597196a0b32"),
        ("000102030405060708090a0b0c0d0e0f", "00112233445566778899aabbccddeeff", "69c4e0d86a7b0430d8cdb78070b4c55a"),
    ],
)
def test_the_hash_is_aes_as_published(isa: str, key: str, text: str, cipher: str) -> None:
    """x = sigma(sigma(text)), for sigma^3 is the identity; S is such that row 0's key is the published one."""
    octets = [torch.frombuffer(bytearray.fromhex(word), dtype=torch.int64) for word in (text, cipher)]
    x, expected = reference.sigma(reference.sigma(octets[0])), octets[0] ^ octets[1]
    assert torch.equal(reference.sigma(x), octets[0])
    tile, number = 0x123456789, 48
    session = (int.from_bytes(bytes.fromhex(key), "little") ^ (tile << 8 | number)).to_bytes(16, "little")
    assert torch.equal(reference.Hash(session, tile)(number, x[None])[0], expected)
    # Tables of zeros leave the pads of both wires: of x_0 = p_0, and of x_1 = p_1 ^ c_1, c_1 a hash of p_0 and 0.
    labels = torch.stack([x, torch.zeros(2, dtype=torch.int64)])[None]
    circuit = Circuit("lift", 2, 32, "data")
    result = evaluate(circuit, session, tile, labels, torch.zeros(circuit.table_bytes(1), dtype=torch.uint8))
    other = reference.Hash(session, tile)
    second = other(number + 1, other(0, x[None]))[:, 0]
    assert int(result - second) & 2**32 - 1 == int(expected[0]) & 2**32 - 1


def test_sigma_never_meets_itself() -> None:
    """sigma and sigma + 1 are invertible: R, sigma(R) and R ^ sigma(R) differ, for R other than 0."""
    for place in range(128):
        word = -(2**63) if place % 64 == 63 else 1 << place % 64
        x = torch.tensor([0, word] if place >= 64 else [word, 0])
        assert torch.equal(reference.sigma(reference.sigma(x)), reference.sigma(x) ^ x)
        assert torch.equal(reference.sigma(reference.sigma(reference.sigma(x))), x)


# Bad arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (("sign", 10, 20, "data"), "kind"),
        (("relu", 1, 20, "data"), "width"),
        (("relu", 25, 20, "data"), "width"),
        (("relu", 10.0, 20, "data"), "width"),
        (("relu", 10, 0, "data"), "ring"),
        (("relu", 10, 33, "data"), "ring"),
        (("relu", 10, 20, "client"), "garbler"),
    ],
)
def test_circuits_out_of_range_are_refused(arguments: tuple[str, int, int, str], where: str) -> None:
    with pytest.raises(InputError, match=where):
        Circuit(*arguments)


GOOD, MODEL = case(Circuit("relu", 4, 8, "data"), 3), case(Circuit("relu", 4, 8, "model"), 3)
TABLES = torch.zeros(GOOD.circuit.table_bytes(3), dtype=torch.uint8)
MODEL_TABLES = torch.zeros(MODEL.circuit.table_bytes(3), dtype=torch.uint8)
CALLS: dict[str, tuple[Callable[..., object], dict[str, object]]] = {
    "garble": (
        garble,
        {
            "circuit": GOOD.circuit,
            "key": KEY,
            "tile": 0,
            "delta": GOOD.delta,
            "labels": GOOD.labels,
            "shares": GOOD.shares,
            "masks": GOOD.masks,
        },
    ),
    "evaluate": (
        evaluate,
        {"circuit": GOOD.circuit, "key": KEY, "tile": 0, "labels": GOOD.labels, "tables": TABLES},
    ),
    "garble_model": (
        garble_model,
        {
            "circuit": MODEL.circuit,
            "key": KEY,
            "tile": 0,
            "delta": MODEL.delta,
            "labels": MODEL.labels,
            "own": MODEL.own,
        },
    ),
    "evaluate_model": (
        evaluate_model,
        {
            "circuit": MODEL.circuit,
            "key": KEY,
            "tile": 0,
            "labels": MODEL.labels,
            "own": MODEL.own,
            "tables": MODEL_TABLES,
        },
    ),
}
BAD: dict[str, list[object]] = {
    "circuit": [None, Circuit("relu", 5, 8, "data"), Circuit("relu", 5, 8, "model")],
    "key": ["0" * 16, bytes(15), bytes(17), None],
    "tile": [-1, MOST_TILES, 0.5],
    "delta": [torch.tensor([2, 1]), torch.tensor([1]), torch.tensor([1.0, 1.0]), None],
    "labels": [GOOD.labels[:, :3], GOOD.labels[..., 0], GOOD.labels.int(), GOOD.labels.to("meta"), None],
    "own": [GOOD.labels[:2], GOOD.labels.double(), None],
    "shares": [torch.tensor([0, 16, 0]), torch.tensor([0, -1, 0]), GOOD.shares[:2], GOOD.shares.int()],
    "masks": [torch.tensor([0, 256, 0]), torch.tensor([0, -1, 0]), GOOD.masks[:2], None],
    "tables": [TABLES[1:], torch.cat([MODEL_TABLES] * 2), TABLES.to(torch.int8), None],
}


@pytest.mark.parametrize("name", CALLS)
def test_bad_arguments_are_refused(path: str, name: str) -> None:
    call, arguments = CALLS[name]
    call(**arguments)
    for argument in arguments:
        for value in BAD[argument]:
            with pytest.raises(InputError, match="kernels.garble"):
                call(**arguments | {argument: value})


def test_errors_name_no_secret() -> None:
    arguments = CALLS["garble"][1]
    with pytest.raises(InputError, match="from 0 to 15") as error:
        garble(**arguments | {"shares": torch.tensor([3, 12345, 0])})  # type: ignore[arg-type]
    assert "12345" not in str(error.value)
