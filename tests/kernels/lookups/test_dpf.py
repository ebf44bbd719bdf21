"""Distributed point functions in C++ are the torch reference, byte for byte; both are AES and ChaCha12 as published;
keys that are none are refused.
"""

from __future__ import annotations

import os
import sys
from functools import cache

import pytest
import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels import lookups
from hummingbird.kernels.cpu import library
from hummingbird.kernels.reference import lookups as plain
from hummingbird.kernels.reference.lookups import children, leaf
from hummingbird.prg import Stream, derive
from tests.support import python
from tests.support.paths import ROOT

# One leaf or less; the edges of leaves and of windows of 64 leaves; trees with no power of two of leaves.
ROWS = [1, 7, 1023, 1024, 1025, 2048, 3000, 5000, 65536, 65537, 131072, 333_333]


def stream(*labels: str | int) -> Stream:
    return Stream(derive(bytes(16), "dpf", *labels))


def some(rows: int, count: int, *labels: str | int) -> Tensor:
    """Indices below `rows`: the first and the last, and others (2^63 mod rows is no matter here)."""
    alphas = (stream("alphas", rows, *labels).words(count) & 2**63 - 1) % rows
    return torch.cat([torch.tensor([0, rows - 1]), alphas])


def pairs(rows: int, name: str, count: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    return lookups.generate(some(rows, count, name), rows, name, stream("keys", rows, name).bytes)


def octets(text: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


def crafted(number: int, public: Tensor, root: Tensor) -> Tensor:
    """A key of party 0 for one leaf, without correction: its selection bits are H(2..9) of the root."""
    key = torch.zeros(lookups.key_bytes(1), dtype=torch.uint8)
    key[:16] = torch.tensor([*b"DPF", 1, number, 0, 0, 0, 1, *bytes(7)], dtype=torch.uint8)
    key[16 : 16 + len(public)] = public
    key[32:48] = root
    return key[None]


# Published values ----------------------------------------------------------------------------------------------------

# ChaCha12, 128-bit keys: Strombergson, draft-strombergson-chacha-test-vectors-01, TC1 and TC8; blocks 0 and 1.
CHACHA12 = {
    "TC1": (
        "00000000000000000000000000000000",
        "0000000000000000",
        "e1047ba9476bf8ff312c01b4345a7d8ca5792b0ad467313f1dc412b5fdce3241"
        "0dea8b68bd774c36a920f092a04d3f95274fbeff97bc8491fcef37f85970b450",
        "1d43b61a8f7e19fceddef368ae6bfb11101bd9fd3e4d127de30db2db1b472e76"
        "426803a45e15b962751986ef1d9d50f598a5dcdc9fa529a28357991e784ea20f",
    ),
    "TC8": (
        "c46ec1b18ce8a878725a37e780dfb735",
        "1ada31d5cf688221",
        "b02bd81eb55c8f68b5e9ca4e307079bc225bd22007eddc6702801820709ce098"
        "07046a0d2aa552bfdbb49466176d56e32d519e10f5ad5f2746e241e09bdf9959",
        "17be0873edde9af5b86246441ce410195baede41f8bdab6ad253226382ee383e"
        "3472f945a5e6bd628c7a582bcf8f899870596a58dab83b51a50c7dbb4f3e6e76",
    ),
}


@pytest.mark.parametrize("name", CHACHA12)
def test_chacha12_is_the_published_one(isa: str, name: str) -> None:
    key, iv, zeroth, first = (octets(text) for text in CHACHA12[name])
    nonce = torch.cat(
        [torch.zeros(4, dtype=torch.uint8), iv]
    )  # the counter's upper word there is the nonce's first here
    public = torch.cat([nonce, torch.zeros(4, dtype=torch.uint8)])[None]
    assert torch.equal(children(lookups.CHACHA12, public, key.view(1, 1, 16)).view(-1), zeroth[:32])
    assert torch.equal(leaf(lookups.CHACHA12, public, key.view(1, 1, 16)).view(-1)[:64], first)
    assert torch.equal(lookups.expand(crafted(lookups.CHACHA12, nonce, key), 0, 1)[0, :64], first)


@pytest.mark.parametrize(
    ("key", "plain", "cipher"),
    [  # FIPS 197, appendices B and C.1
        ("2b7e151628aed2a6abf7158809cf4f3c", "3243f6a8885a308d313198a2e0370734", "3925841d02dc09fbdc118597196a0b32"),
        ("000102030405060708090a0b0c0d0e0f", "00112233445566778899aabbccddeeff", "69c4e0d86a7b0430d8cdb78070b4c55a"),
    ],
)
def test_aes_is_the_published_one(isa: str, key: str, plain: str, cipher: str) -> None:
    """Block j of a leaf is H(j + 2, s) = AES(s ^ 2 (j + 2)) ^ s ^ 2 (j + 2)."""
    expected = octets(plain) ^ octets(cipher)
    for j in range(8):
        root = octets(plain)
        root[0] ^= 2 * (j + 2)
        assert torch.equal(leaf(lookups.AES, octets(key)[None], root.view(1, 1, 16))[0, 0, 16 * j :][:16], expected)
        assert torch.equal(lookups.expand(crafted(lookups.AES, octets(key), root), 0, 1)[0, 16 * j :][:16], expected)


# C++ is the reference ------------------------------------------------------------------------------------------------


@cache
def reference(rows: int, name: str) -> tuple[Tensor, ...]:
    """Random bytes for five pairs, both parties' keys, the signs, both parties' bits: all by the reference."""
    random = stream("random", rows, name).bytes(5 * 48)
    first, second, signs = plain.generate(some(rows, 3, name), rows, lookups.PRFS[name], random.view(-1, 48))
    bits = [plain.expand(keys, 0, lookups.leaves_of(rows)) for keys in (first, second)]
    return random, first, second, signs, *bits


@pytest.mark.parametrize("name", lookups.PRFS)
@pytest.mark.parametrize("rows", ROWS)
def test_native_is_the_reference(isa: str, rows: int, name: str) -> None:
    random, *expected, first_bits, second_bits = reference(rows, name)
    made = lookups.generate(some(rows, 3, name), rows, name, lambda _: random)
    assert all(torch.equal(a, b) for a, b in zip(made, expected, strict=True))
    for keys, bits in zip(made, (first_bits, second_bits), strict=False):
        assert keys.shape == (5, lookups.key_bytes(rows))
        assert torch.equal(lookups.expand(keys, 0, lookups.leaves_of(rows)), bits)


@pytest.mark.parametrize("name", lookups.PRFS)
def test_any_range_of_leaves_is_a_part_of_the_whole(isa: str, name: str) -> None:
    _, keys, _, _, bits, _ = reference(ROWS[-1], name)  # 326 leaves
    whole = bits.view(5, -1, 128)
    for first, leaves in [(0, 0), (326, 0), (325, 1), (0, 64), (63, 2), (191, 1), (60, 4), (7, 290), (250, 51)]:
        expected = whole[:, first : first + leaves].reshape(5, -1)
        assert torch.equal(lookups.expand(keys, first, leaves), expected), (first, leaves)
        if leaves < 5:
            assert torch.equal(plain.expand(keys, first, leaves), expected), (first, leaves)


@pytest.mark.parametrize("name", lookups.PRFS)
@pytest.mark.parametrize("rows", [1, 5000, 70_000])
def test_a_batch_of_one_is_as_good(rows: int, name: str) -> None:
    """Its strides are free, so views of its bytes need care."""
    random, *expected, bits, _ = reference(rows, name)
    one = plain.generate(some(rows, 3, name)[1:2], rows, lookups.PRFS[name], random.view(-1, 48)[1:2])
    assert all(torch.equal(a, b[1:2]) for a, b in zip(one, expected, strict=True))
    assert torch.equal(plain.expand(one[0], 0, lookups.leaves_of(rows)), bits[1:2])
    assert torch.equal(plain.expand(expected[0][1:2], 0, lookups.leaves_of(rows)), bits[1:2])
    assert lookups.check(torch.cat([one[0], one[1]])[1:2], "here", rows, 1) == rows


def test_one_batch_may_mix_prfs_and_parties(isa: str) -> None:
    keys = torch.cat([part for name in lookups.PRFS for part in pairs(70_000, name)[:2]])
    order = torch.tensor([(7 * i) % len(keys) for i in range(len(keys))])
    bits = lookups.expand(keys, 0, 69)
    assert torch.equal(lookups.expand(keys[order], 0, 69), bits[order])
    assert torch.equal(plain.expand(keys[order], 0, 69), bits[order])
    assert torch.equal(lookups.expand(keys[::2], 0, 69), bits[::2])  # strided


@pytest.mark.parametrize("name", lookups.PRFS)
def test_the_deepest_tree(isa: str, name: str) -> None:
    alpha, leaves = lookups.MOST_ROWS - 5, lookups.leaves_of(lookups.MOST_ROWS)
    keys = lookups.generate(torch.tensor([alpha]), lookups.MOST_ROWS, name, stream("deep").bytes)[:2]
    ends = [lookups.expand(key, leaves - 70, 70) for key in keys]
    assert torch.equal(ends[0], plain.expand(keys[0], leaves - 70, 70))
    assert (ends[0] ^ ends[1]).nonzero().tolist() == [[0, 70 * 128 - 1]]
    assert torch.equal(*(lookups.expand(key, leaves // 2, 3) for key in keys))


def test_without_the_library_the_reference_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    made = pairs(3000, "aes")
    bits = lookups.expand(made[0], 1, 2)
    monkeypatch.setattr(library, "_library", None)
    assert all(torch.equal(a, b) for a, b in zip(pairs(3000, "aes"), made, strict=True))
    assert torch.equal(lookups.expand(made[0], 1, 2), bits)


def test_no_memory_outside_the_key_and_the_bits() -> None:
    """A key that ends where the process's memory ends, and bits too: another access would kill the process."""
    if not library.available():
        pytest.skip("the native library is not built")
    program = (
        "import ctypes, mmap, torch\n"
        "from hummingbird.kernels import lookups\n"
        "from hummingbird.kernels.reference import lookups as plain\n"
        "from hummingbird.kernels.cpu import library\n"
        "from hummingbird.prg import Stream\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "def ending(size):\n"
        "    page = mmap.PAGESIZE; pages = -(-size // page)\n"
        "    area = mmap.mmap(-1, (pages + 1) * page)\n"
        "    start = ctypes.addressof(ctypes.c_char.from_buffer(area))\n"
        "    assert libc.mprotect(ctypes.c_void_p(start + pages * page), page, 0) == 0\n"
        "    kept.append(area)\n"
        "    return start + pages * page - size\n"
        "kept = []\n"
        "for rows in (1, 1025, 5000, 70_000):\n"
        "    for name in ('aes', 'chacha12'):\n"
        "        key = lookups.generate(torch.tensor([rows - 1]), rows, name, Stream(bytes(16)).bytes)[0]\n"
        "        leaves = lookups.leaves_of(rows)\n"
        "        expected = plain.expand(key, 0, leaves).numpy().tobytes()\n"
        "        at, out = ending(key.numel()), ending(128 * leaves)\n"
        "        ctypes.memmove(at, key.data_ptr(), key.numel())\n"
        "        for isa in library.ISAS:\n"
        "            if library.set_isa(isa):\n"
        "                library.handle().hb_dpf_expand(at, 1, key.numel(), 0, leaves, out)\n"
        "                assert ctypes.string_at(out, 128 * leaves) == expected, (rows, name, isa)\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = python.run([sys.executable, "-c", program], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


# Errors ---------------------------------------------------------------------------------------------------------------


def changed(place: int, value: int, rows: int = 70_000, name: str = "chacha12") -> Tensor:
    keys = pairs(rows, name)[0].clone()
    keys[2, place] = value
    return keys


def test_what_is_no_key_is_refused_with_the_reason() -> None:
    keys = pairs(70_000, "aes")[0]
    assert lookups.check(keys, "here", 70_000, 0) == 70_000
    last = lookups.key_bytes(70_000) - 128
    wrong = [
        (changed(0, 0), "key 2 of the batch does not begin as a key"),
        (changed(2, 0x47), "key 2 of the batch does not begin as a key"),
        (changed(3, 2), "key 2 of the batch is not of version 1"),
        (changed(4, 0), "key 2 of the batch names an unknown PRF"),
        (changed(4, 3), "key 2 of the batch names an unknown PRF"),
        (changed(5, 2), "key 2 of the batch names a party that is neither"),
        (changed(5, 1), "key 2 of the batch is not for party 0"),
        (changed(7, 1), "key 2 of the batch names a party"),
        (changed(8, 1), "key 2 of the batch is for a table of another size than key 0, which has 70000 rows"),
        (changed(13, 2), "key 2 of the batch is for a table of no or more than"),
        (changed(30, 1), "key 2 of the batch is damaged.* nonce"),
        (changed(32, int(pairs(70_000, "chacha12")[0][2, 32]) ^ 1), "key 2 of the batch is damaged.* root"),
        (changed(last - 1, 4), "key 2 of the batch is damaged.* spare bits"),
        (changed(last - 17, 255), "key 2 of the batch is damaged.* spare bits"),
        (keys[:, :-1], "cut short or too long: 294 bytes"),
        (torch.cat([keys, keys[:, :1]], dim=1), "cut short or too long: 296 bytes"),
        (keys[:, : lookups.key_bytes(1) - 1], "one key of 176 bytes or more, got 5 of 175"),
        (keys[:0], "at least one key"),
        (keys[0], "expected keys uint8"),
        (keys.long(), "torch.int64"),
        (keys.to("meta"), "meta"),
        (b"", "bytes"),
        (pairs(70_001, "aes")[0], "for a table of 70001 rows, this one has 70000"),
        (pairs(1 << 20, "aes")[0], "for a table of 1048576 rows, this one has 70000"),
        (torch.zeros_like(keys), "key 0 of the batch does not begin as a key"),
    ]
    for bad, reason in wrong:
        with pytest.raises(InputError, match=f"(?s){reason}.*here"):
            lookups.check(bad, "here", 70_000, 0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="key 0 of the batch is not for party 1"):
        lookups.check(keys, "here", party=1)


@pytest.mark.parametrize("name", lookups.PRFS)
@pytest.mark.parametrize("party", [None, 0, 1])
def test_the_library_refuses_what_the_definition_refuses(
    name: str, party: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert library.available()
    rows, verdicts = 70_000, []
    whole = pairs(rows, name)[party or 0]
    for place in range(lookups.key_bytes(rows)):
        for flip in (1, 2, 4, 128, 255):
            keys = whole.clone()
            keys[2, place] ^= flip
            both = []
            for fast in (True, False):
                monkeypatch.setattr(library, "available", lambda fast=fast: fast)
                try:
                    both.append(lookups.check(keys, "here", rows, party))
                except InputError as error:
                    both.append(error.what)
            assert both[0] == both[1], (place, flip)
            verdicts.append(both[0] == rows)
    assert 0.2 < sum(verdicts) / len(verdicts) < 0.98


def test_a_key_of_no_rows_is_refused() -> None:
    key = crafted(lookups.AES, torch.zeros(16, dtype=torch.uint8), torch.zeros(16, dtype=torch.uint8))
    assert lookups.check(key, "here") == 1
    for rows in (0, lookups.MOST_ROWS + 1, 2**63, 2**64 - 1):
        key[0, 8:16] = octets(rows.to_bytes(8, "little").hex())
        with pytest.raises(InputError, match="no or more than"):
            lookups.check(key, "here")


@pytest.mark.parametrize("name", lookups.PRFS)
def test_fuzzed_keys_give_an_error_or_bits(isa: str, name: str) -> None:
    """Never a crash: every cut, every bit of the head flipped, and random bytes in random places."""
    whole = pairs(5000, name)[1][:1]
    refused = 0
    for size in range(whole.shape[1]):
        with pytest.raises(InputError):
            lookups.expand(whole[:, :size], 0, 5)
    source = stream("fuzz", name)
    for trial in range(1500):
        key = whole.clone()
        if trial < 8 * 48:
            key[0, trial // 8] ^= 1 << trial % 8
        else:
            places = source.words(1 + trial % 4) & 0x7FFFFFFF
            key[0, places % whole.shape[1]] = source.bytes(len(places))
        if trial % 7 == 6:
            key = source.bytes(key.numel()).view(1, -1)
        try:
            assert lookups.expand(key, 0, 5).shape == (1, 640)
        except InputError:
            refused += 1
    assert 300 < refused < 1500


@pytest.mark.parametrize(("first", "leaves"), [(-1, 1), (0, 70), (69, 1), (5, -1), (2**62, 2**62)])
def test_leaves_outside_the_table_are_refused(first: int, leaves: int) -> None:
    with pytest.raises(InputError, match="expected leaves from 0 to 69"):
        lookups.expand(pairs(70_000, "aes")[0], first, leaves)
