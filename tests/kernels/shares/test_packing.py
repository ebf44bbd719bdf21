"""Kernels: the torch reference against Python's big integers, and each C++ version against the reference."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from hummingbird import kernels
from hummingbird.errors import EnvironmentProblem, InputError
from hummingbird.kernels.cpu import library
from hummingbird.kernels.cpu import shares as cpu
from hummingbird.kernels.reference import shares
from hummingbird.kernels.registry import best
from hummingbird.prg import Stream, derive

RING = 1 << 64
SIZES = [0, 1, 7, 8, 9, 63, 64, 65, 1000, 4097]
WINDOWS = [(0, 0), (64, 0), (0, 1), (63, 1), (13, 7), (3, 8), (20, 9), (5, 17), (1, 63), (0, 64), (56, 8), (55, 9)]
SCALES = [(0, 0), (0, 1 << 62), (1, 1 << 62), (16, 1 << 62), (16, 2**63 - 1), (62, 12345)]


def stream(*labels: str | int) -> Stream:
    return Stream(derive(bytes(16), "kernels", *labels))


def select_arguments(n: int, source: Stream) -> dict[str, torch.Tensor]:
    names = ("opened", "bit", "mask_high", "mask_low", "bit_high", "bit_low")
    choice = shares.pack_bits(source.bits(n))
    return {"choice": choice} | {name: source.words(n) for name in names}


def signed(value: int) -> int:
    return (value + (RING >> 1)) % RING - (RING >> 1)


def slow_pack(bits: list[int]) -> list[int]:
    whole = sum(bit << i for i, bit in enumerate(bits))
    return list(whole.to_bytes((len(bits) + 7) // 8, "little"))


def slow_select(
    arguments: dict[str, torch.Tensor], shift: int, first: bool, offset: int
) -> tuple[list[int], list[int]]:
    choice = int.from_bytes(bytes(arguments["choice"].tolist()), "little")
    columns = {name: [v % RING for v in t.tolist()] for name, t in arguments.items() if name != "choice"}
    ys, zs = [], []
    for i, e in enumerate(columns["opened"]):
        half = "high" if e >= RING >> 1 else "low"
        value = e // 2**shift - offset // 2**shift
        z = (value if first else 0) - columns[f"mask_{half}"][i]
        rz = value * columns["bit"][i] - columns[f"bit_{half}"][i]
        c = choice >> i & 1
        ys.append(signed(c * z + (1 - 2 * c) * rz))
        zs.append(signed(z))
    return ys, zs


# ---- the reference is right


@pytest.mark.parametrize("n", SIZES[:-2])
def test_reference_bits_against_big_integers(n: int) -> None:
    source = stream("bits", n)
    x, bits = source.words(n), source.bits(n)
    for low, count in WINDOWS:
        expected = [slow_pack([(v % RING) >> (low + j) & 1 for v in x.tolist()]) for j in range(count)]
        planes = shares.to_planes(x, low, count)
        assert planes.shape == (count, (n + 7) // 8) and planes.tolist() == expected
        numbers = [(v % RING) >> low & (1 << count) - 1 for v in x.tolist()]
        assert shares.from_planes(planes, n).tolist() == [signed(v) for v in numbers]
    packed = shares.pack_bits(bits)
    assert packed.tolist() == slow_pack(bits.tolist())
    assert shares.from_bits(packed, n).tolist() == bits.tolist()
    assert shares.pack_bits(bits | 0xFE).equal(packed)  # only bit 0 is read


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(("shift", "offset"), SCALES)
def test_reference_select_against_big_integers(shift: int, offset: int, first: bool) -> None:
    arguments = select_arguments(67, stream("select", shift, offset % 1000, int(first)))
    arguments["opened"][:4] = torch.tensor([0, -1, 2**63 - 1, -(2**63)])
    y, z = shares.select(**arguments, shift=shift, first=first, offset=offset)
    assert (y.tolist(), z.tolist()) == slow_select(arguments, shift, first, offset)
    three = (arguments[name] for name in ("opened", "mask_high", "mask_low"))
    assert shares.rescale(*three, shift, first, offset).equal(z)


def test_select_is_a_masked_relu() -> None:
    """Two parties' outputs add up to b * floor(x / 2^shift) or one less, the borrow of the truncated mask."""
    rng, n, shift, offset = random.Random(1), 200, 16, 1 << 62
    x = [rng.randrange(-(1 << 40), 1 << 40) for _ in range(n)]
    mask, r, b = ([rng.randrange(m) for _ in range(n)] for m in (RING, 2, 2))
    opened = [(v + offset + m) % RING for v, m in zip(x, mask, strict=True)]
    # Top bit of the opened value clear and of the mask set: the sum wrapped, and 2^(64 - shift) is to be given back.
    dealt = {"high": [m >> shift for m in mask], "low": [(m >> shift) - (m >> 63 << 64 - shift) for m in mask]}
    secrets = {f"mask_{half}": values for half, values in dealt.items()} | {"bit": r}
    secrets |= {f"bit_{half}": [i * v for i, v in zip(r, values, strict=True)] for half, values in dealt.items()}
    parties: list[dict[str, torch.Tensor]] = [{}, {}]
    for name, values in secrets.items():
        share = [rng.randrange(RING) for _ in range(n)]
        rest = [v - s for v, s in zip(values, share, strict=True)]
        for party, column in zip(parties, (share, rest), strict=True):
            party[name] = torch.tensor([signed(v) for v in column], dtype=torch.int64)
    choice = torch.tensor(slow_pack([i ^ j for i, j in zip(b, r, strict=True)]), dtype=torch.uint8)
    e = torch.tensor([signed(v) for v in opened], dtype=torch.int64)
    one, two = (
        kernels.select(e, choice, **party, shift=shift, first=party is parties[0], offset=offset) for party in parties
    )
    y, z = one[0] + two[0], one[1] + two[1]
    # floor(u + v) - floor(v) is floor(u) or floor(u) + 1.
    error = z - torch.tensor([v >> shift for v in x])
    assert set(error.tolist()) == {0, 1}
    assert y.equal(z * torch.tensor(b))


# ---- every native version equals the reference


@pytest.mark.parametrize("n", SIZES)
def test_native_bits_equal_reference(isa: str, n: int) -> None:
    source = stream("native bits", n)
    x, bits = source.words(n), source.bits(n)
    for low, count in WINDOWS:
        planes = shares.to_planes(x, low, count)
        assert kernels.to_planes(x, low, count).equal(planes)
        assert kernels.from_planes(planes, n).equal(shares.from_planes(planes, n))
    packed = kernels.pack_bits(bits)
    assert packed.equal(shares.pack_bits(bits))
    assert kernels.pack_bits(bits | 0xFE).equal(packed)
    assert kernels.from_bits(packed, n).equal(bits.to(torch.int64))
    assert kernels.from_bits(~packed, n).equal(1 - bits.to(torch.int64))  # with the spare bits set


@pytest.mark.parametrize("n", SIZES)
def test_native_select_equals_reference(isa: str, n: int) -> None:
    arguments = select_arguments(n, stream("native select", n))
    three = [arguments[name] for name in ("opened", "mask_high", "mask_low")]
    for shift, offset in SCALES:
        for first in (True, False):
            y, z = kernels.select(**arguments, shift=shift, first=first, offset=offset)
            wanted_y, wanted_z = shares.select(**arguments, shift=shift, first=first, offset=offset)
            assert y.equal(wanted_y) and z.equal(wanted_z)
            assert kernels.rescale(*three, shift, first, offset).equal(wanted_z)


def test_native_takes_unaligned_slices(isa: str) -> None:
    source = stream("slices")
    x, bits = source.words(300)[3:280], source.bits(300)[5:201]
    assert best(kernels.to_planes, x) is cpu.to_planes and best(kernels.pack_bits, bits) is cpu.pack_bits
    assert kernels.to_planes(x, 9, 11).equal(shares.to_planes(x, 9, 11))
    planes = shares.to_planes(x, 0, 11)[3:]
    assert kernels.from_planes(planes, 277).equal(shares.from_planes(planes, 277))
    assert kernels.pack_bits(bits).equal(shares.pack_bits(bits))


def test_every_bit_of_every_input_counts(isa: str) -> None:
    """One flipped input bit changes the output, so that an ignored element or a constant output could not pass."""
    n, source = 77, stream("mutation")
    x, bits, arguments = source.words(n), source.bits(n), select_arguments(n, source)
    constants = {"shift": 0, "first": True, "offset": 1 << 62}
    planes, packed = kernels.to_planes(x, 0, 64), kernels.pack_bits(bits)
    y, _ = kernels.select(**arguments, **constants)
    choice = shares.from_bits(arguments["choice"], n)
    for i in range(n):
        flipped = x.clone()
        flipped[i] ^= 1 << (i % 63)
        assert (kernels.to_planes(flipped, 0, 64) ^ planes).count_nonzero() == 1
        toggled = bits.clone()
        toggled[i] ^= 1
        assert (kernels.pack_bits(toggled) ^ packed).tolist()[i // 8] == 1 << (i % 8)
        half = "high" if arguments["opened"][i] < 0 else "low"
        for name, counts in ((f"bit_{half}", True), (f"mask_{half}", bool(choice[i])), ("choice", True)):
            changed = arguments[name].clone()
            changed[i // 8 if name == "choice" else i] ^= 1 << (i % 8)
            other, _ = kernels.select(**(arguments | {name: changed}), **constants)
            assert (other != y).nonzero().flatten().tolist() == ([i] if counts else [])


# ---- dispatch


def test_strided_tensors_run_the_reference() -> None:
    x = stream("strided").words(128)
    assert best(kernels.to_planes, x[::2]) is shares.to_planes
    assert kernels.to_planes(x[::2], 3, 9).equal(kernels.to_planes(x[::2].contiguous(), 3, 9))


def test_library_is_built_where_a_compiler_is() -> None:
    if os.environ.get("HUMMINGBIRD_KERNELS") == "torch" or not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("the native library is not wanted, or cannot be built")
    assert library.available(), "run `python setup.py build_ext --inplace`"
    assert kernels.active() in library.ISAS


@pytest.mark.parametrize(
    ("value", "expected"),
    [("fast", "neither torch nor a file"), (__file__, "not usable kernels")],
    ids=["absent", "no library"],
)
def test_environment_variable(value: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read as the module loads."""
    monkeypatch.setenv("HUMMINGBIRD_KERNELS", value)
    with pytest.raises(EnvironmentProblem, match=expected):
        library._load()
    monkeypatch.setenv("HUMMINGBIRD_KERNELS", "torch")
    assert library._load() is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "expected"),
    [("torch", "torch"), ("fast", "neither torch nor a file"), (__file__, "not usable kernels")],
    ids=["torch", "absent", "no library"],
)
def test_environment_variable_of_a_process(value: str, expected: str) -> None:
    program = "from hummingbird import kernels; print(kernels.active())"
    environment = os.environ | {"HUMMINGBIRD_KERNELS": value}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert expected in done.stdout + done.stderr
    assert (done.returncode == 0) == (value == "torch")


def test_a_library_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    if not library.available():
        pytest.skip("the native library is not built")
    path = library.handle()._name
    monkeypatch.setattr(library, "_ABI", -1)
    monkeypatch.delenv("HUMMINGBIRD_KERNELS", raising=False)
    with pytest.warns(RuntimeWarning, match="another version"):
        assert library._load() is None
    monkeypatch.setenv("HUMMINGBIRD_KERNELS", path)  # one that is asked for must load
    with pytest.raises(EnvironmentProblem, match="another version"):
        library._load()
    monkeypatch.undo()
    monkeypatch.setenv("HUMMINGBIRD_KERNELS", path)
    assert library._load()._name == path


# ---- errors

N = 9
WORDS, BYTES = torch.zeros(N, dtype=torch.int64), torch.zeros(2, dtype=torch.uint8)
SELECT = dict.fromkeys(("opened", "bit", "mask_high", "mask_low", "bit_high", "bit_low"), WORDS) | {"choice": BYTES}
WRONG: list[tuple[str, Callable[[], object], str]] = [
    ("to_planes(x)", lambda: kernels.to_planes(WORDS.int(), 0, 1), "torch.int32"),
    ("to_planes(x)", lambda: kernels.to_planes(WORDS.view(3, 3), 0, 1), "(3, 3)"),
    ("to_planes(x)", lambda: kernels.to_planes([1, 2], 0, 1), "list"),  # type: ignore[arg-type]
    ("to_planes(low)", lambda: kernels.to_planes(WORDS, -1, 1), "-1"),
    ("to_planes(low)", lambda: kernels.to_planes(WORDS, 65, 0), "65"),
    ("to_planes(low)", lambda: kernels.to_planes(WORDS, 1.0, 0), "1.0"),  # type: ignore[arg-type]
    ("to_planes(count)", lambda: kernels.to_planes(WORDS, 60, 5), "5"),
    ("to_planes(count)", lambda: kernels.to_planes(WORDS, 0, -1), "-1"),
    ("from_bits(n)", lambda: kernels.from_bits(BYTES, -1), "-1"),
    ("from_bits(plane)", lambda: kernels.from_bits(BYTES, 17), "(3,)"),
    ("from_bits(plane)", lambda: kernels.from_bits(BYTES, 8), "(1,)"),
    ("from_bits(plane)", lambda: kernels.from_bits(WORDS, 72), "torch.int64"),
    ("pack_bits(bits)", lambda: kernels.pack_bits(BYTES.bool()), "torch.bool"),
    ("rescale(mask_low)", lambda: kernels.rescale(WORDS, WORDS, WORDS[1:], 0, True, 0), "(8,)"),
    ("rescale(mask_high)", lambda: kernels.rescale(WORDS, WORDS.to("meta"), WORDS, 0, True, 0), "meta"),
    ("rescale(shift)", lambda: kernels.rescale(WORDS, WORDS, WORDS, 63, True, 0), "63"),
    ("rescale(offset)", lambda: kernels.rescale(WORDS, WORDS, WORDS, 0, True, 2**63), "9223372036854775808"),
    ("select(offset)", lambda: kernels.select(**SELECT, shift=0, first=True, offset=-1), "-1"),
    ("select(shift)", lambda: kernels.select(**SELECT, shift=-1, first=True, offset=0), "-1"),
]


@pytest.mark.parametrize(("where", "call", "got"), WRONG, ids=[f"{i}-{w[0]}" for i, w in enumerate(WRONG)])
def test_wrong_arguments_are_named(where: str, call: Callable[[], object], got: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert caught.value.where == f"kernels.{where}"
    assert got in caught.value.what and caught.value.hint


@pytest.mark.parametrize("name", [name for name in SELECT if name != "opened"])
def test_every_argument_of_select_is_checked(name: str) -> None:
    good = SELECT[name]
    for wrong, got in ((good[1:], "shape"), (good.double(), "float64"), (good.to("meta"), "meta")):
        with pytest.raises(InputError) as caught:
            kernels.select(**SELECT | {name: wrong}, shift=0, first=True, offset=0)
        assert caught.value.where == f"kernels.select({name})" and got in caught.value.what
