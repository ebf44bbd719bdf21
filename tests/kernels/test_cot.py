"""Correlated transfers in C++ are the torch reference, byte for byte; the reference is SoftSpoken's equations."""

from __future__ import annotations

import hashlib
from functools import reduce

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels import cot
from hummingbird.kernels.reference import cot as plain
from hummingbird.prg import Stream, derive


def stream(*labels: str | int) -> Stream:
    return Stream(derive(bytes(16), "cot", *labels))


def leaves_of(name: str) -> Tensor:
    return stream(name).bytes(32 * 256).view(32, 16, 16)


def bits_of(delta: Tensor) -> list[int]:
    return [int(delta[c // 64]) >> c % 64 & 1 for c in range(128)]


def senders(leaves: Tensor, delta: Tensor) -> Tensor:
    """The leaves as the sender has them: that of x at place x ^ delta_j, nothing at place 0."""
    out, bits = torch.zeros_like(leaves), bits_of(delta)
    for j in range(32):
        nibble = sum(bits[4 * j + b] << b for b in range(4))
        for y in range(1, 16):
            out[j, y] = leaves[j, y ^ nibble]
    return out


LEAVES, DELTA = leaves_of("leaves"), stream("delta").words(2) | torch.tensor([1, 0])


# C++ is the reference: one block; the edges of a run of 16 blocks; places beyond 32 bits.
@pytest.mark.parametrize(("block", "blocks"), [(0, 0), (0, 1), (3, 15), (1, 16), (2**39, 17), (2**32 - 5, 33)])
def test_native_is_the_reference(isa: str, block: int, blocks: int) -> None:
    sums, keys = cot.receive(LEAVES, block, blocks)
    expected_sums, expected = plain.receive(LEAVES, block, blocks)
    assert torch.equal(sums, expected_sums) and torch.equal(keys, expected)
    corrections = stream("corrections", block).bytes(32 * 16 * blocks).view(32, -1)
    made = cot.send(LEAVES, DELTA, block, corrections)
    assert torch.equal(made, plain.send(LEAVES, DELTA, block, corrections))


@pytest.mark.parametrize("n", [0, 1, 3, 4, 7, 8, 9, 64, 1001])
def test_labels_of_bits(isa: str, n: int) -> None:
    labels, packed = stream("labels").words(n, 2), stream("bits").bytes((n + 7) // 8)
    made = cot.choose(labels, packed, DELTA)
    assert torch.equal(made, plain.choose(labels, packed, DELTA))
    for i in range(n):
        bit = int(packed[i // 8]) >> i % 8 & 1
        assert torch.equal(made[i], labels[i] ^ DELTA if bit else labels[i])


def test_the_reference_follows_the_equations() -> None:
    """Bit by bit, with the streams of another counter mode: AES-CTR counts up in big-endian from a given block."""
    block, transfer = 5, 77
    byte, place = 16 * 0 + transfer // 8, transfer % 8

    def bit(j: int, x: int) -> int:
        counter = block.to_bytes(16, "little")
        cipher = Cipher(algorithms.AES(LEAVES[j, x].numpy().tobytes()), modes.CTR(counter)).encryptor()
        return cipher.update(bytes(16))[byte] >> place & 1

    sums, keys = plain.receive(LEAVES, block, 1)
    for j in (0, 1, 31):
        r = [bit(j, x) for x in range(16)]
        assert int(sums[j, byte]) >> place & 1 == sum(r) % 2
        for b in range(4):
            expected = sum(r[x] for x in range(16) if x >> b & 1) % 2
            assert bits_of(keys[transfer])[4 * j + b] == expected


def test_keys_differ_by_delta_where_the_choice_is_1(path: str) -> None:
    sums, keys = cot.receive(LEAVES, 9, 3)
    choices = stream("choices").bytes(48)
    made = cot.send(senders(LEAVES, DELTA), DELTA, 9, sums ^ choices)
    assert torch.equal(keys, cot.choose(made, choices, DELTA))


def test_a_transfer_follows_from_its_number(path: str) -> None:
    sums, keys = cot.receive(LEAVES, 100, 40)
    for block, blocks in [(100, 1), (107, 16), (139, 1), (120, 20)]:
        start = block - 100
        part_sums, part = cot.receive(LEAVES, block, blocks)
        assert torch.equal(part, keys[128 * start : 128 * (start + blocks)])
        assert torch.equal(part_sums, sums[:, 16 * start : 16 * (start + blocks)])


def test_known_answer(path: str) -> None:
    """Both parties' releases must agree."""
    sums, keys = cot.receive(LEAVES, 1, 2)
    digest = hashlib.sha256(sums.numpy().tobytes() + keys.numpy().tobytes()).hexdigest()
    assert digest == "5df9cbc5cc20a483a28fa1c09c7ecc932f4ba34b0c481752e81da443b2d1bce6"


def test_the_sender_does_not_read_place_0(path: str) -> None:
    corrections, other = stream("corrections").bytes(32 * 32).view(32, -1), LEAVES.clone()
    other[:, 0] ^= 255
    made = cot.send(LEAVES, DELTA, 0, corrections)
    assert torch.equal(made, cot.send(other, DELTA, 0, corrections))
    other[:, 1] ^= 255
    assert not torch.equal(made, cot.send(other, DELTA, 0, corrections))


def test_bad_arguments_are_refused() -> None:
    corrections, labels = torch.zeros(32, 16, dtype=torch.uint8), torch.zeros(9, 2, dtype=torch.int64)
    bits = torch.zeros(2, dtype=torch.uint8)
    wrong = [
        (lambda: cot.receive(LEAVES[1:], 0, 1), "leaves"),
        (lambda: cot.receive(LEAVES.to(torch.int64), 0, 1), "leaves"),
        (lambda: cot.receive("leaves", 0, 1), "leaves"),  # type: ignore[arg-type]
        (lambda: cot.receive(LEAVES, -1, 1), "block"),
        (lambda: cot.receive(LEAVES, 2**40, 1), "blocks"),
        (lambda: cot.receive(LEAVES, 0, -1), "blocks"),
        (lambda: cot.send(LEAVES, DELTA[:1], 0, corrections), "delta"),
        (lambda: cot.send(LEAVES, DELTA.to(torch.int32), 0, corrections), "delta"),
        (lambda: cot.send(LEAVES, DELTA, 0, corrections[1:]), "corrections"),
        (lambda: cot.send(LEAVES, DELTA, 0, corrections[:, 1:]), "corrections"),
        (lambda: cot.send(LEAVES, DELTA, 0, None), "corrections"),  # type: ignore[arg-type]
        (lambda: cot.choose(labels[:, :1], bits, DELTA), "labels"),
        (lambda: cot.choose(labels, bits[1:], DELTA), "bits"),
        (lambda: cot.choose(labels, bits, DELTA[None]), "delta"),
    ]
    for call, name in wrong:
        with pytest.raises(InputError, match=name):
            call()


@pytest.mark.parametrize("n", [0, 1, 16, 17, 64, 1040])
@pytest.mark.parametrize(("first", "block"), [(0, 0), (16 * 5, 3), (2**46, 2**20 - 1)])
def test_pads_are_the_reference(isa: str, n: int, first: int, block: int) -> None:
    keys, key = stream("keys").words(n, 2), stream("S").words(2)
    for delta in (None, DELTA):
        assert torch.equal(cot.pads(keys, key, first, block, delta), plain.pads(keys, key, first, block, delta))


def test_pads_follow_their_equation(path: str) -> None:
    """A transfer's pads depend on its number and its block, and on how calls are cut they do not."""
    keys, key = stream("keys").words(40, 2), stream("S").words(2)
    found = cot.pads(keys, key, 160, 7, DELTA)
    number = int.from_bytes(key.numpy().tobytes(), "little") ^ (160 + 33) // 16 << 20 ^ 7
    cipher = Cipher(algorithms.AES(number.to_bytes(16, "little")), modes.ECB()).encryptor()
    for rows, label in ((found[:2], keys[33]), (found[2:], keys[33] ^ DELTA)):
        x = label.numpy().tobytes()
        expected = bytes(a ^ b for a, b in zip(cipher.update(x), x, strict=True))
        assert rows[:, 33].numpy().tobytes() == expected
    assert torch.equal(cot.pads(keys, key, 160, 7), found[:2])
    assert torch.equal(cot.pads(keys[32:], key, 192, 7, DELTA), found[:, 32:])
    assert not torch.equal(cot.pads(keys, key, 160, 8, DELTA), found)
    for first, block in ((8, 0), (0, 2**20), (-16, 0)):
        with pytest.raises(InputError):
            cot.pads(keys, key, first, block)


# Silent transfers -----------------------------------------------------------------------------------------------------

KEYS = stream("S").words(2, 2)
NOTHING = torch.zeros(1, 2, dtype=torch.int64)  # a table whose sums are 0


def grown(trees: int, depth: int, first: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Roots, sums of all levels and leaves of a sender's trees."""
    roots, leaves = stream("roots", trees).words(trees, 2), torch.full((trees << depth, 2), -1)
    cot.send_silent(roots, DELTA, NOTHING, KEYS, first, 0, leaves)
    return roots, cot.tree_sums(roots, DELTA, KEYS, first, depth), leaves


# Depths below and above the 32 nodes that are expanded at once, and the 16 outputs.
@pytest.mark.parametrize(("trees", "depth"), [(1, 1), (3, 2), (2, 3), (2, 5), (3, 6), (2, 8), (1, 13)])
@pytest.mark.parametrize(("first", "output", "log_table"), [(0, 0, 0), (2**40 + 5, 2**40 + 3, 8)])
def test_silent_keys_are_the_reference(
    isa: str, trees: int, depth: int, first: int, output: int, log_table: int
) -> None:
    roots, table = stream("roots").words(trees, 2), stream("table").words(1 << log_table, 2)
    sums = cot.tree_sums(roots, DELTA, KEYS, first, depth)
    assert torch.equal(sums, plain.tree_sums(roots, DELTA, KEYS, first, depth))
    out, expected = (torch.full((trees << depth, 2), value) for value in (-1, 1))
    cot.send_silent(roots, DELTA, table, KEYS, first, output, out)
    plain.send_silent(roots, DELTA, table, KEYS, first, output, expected)
    assert torch.equal(out, expected)
    paths = stream("paths", depth).words(trees) & (1 << depth) - 1
    others = stream("others", depth).words(trees, depth, 2)
    cot.receive_silent(paths, others, table, KEYS, first, output, out)
    plain.receive_silent(paths, others, table, KEYS, first, output, expected)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("depth", [1, 2, 4, 7])
def test_leaves_differ_by_delta_at_the_path_alone(path: str, depth: int) -> None:
    """For every path of a tree; the lowest bits are 0 at the sender, and 1 at the path at the receiver."""
    trees, seen = 1 << depth, torch.full((1 << 2 * depth, 2), -1)
    paths = torch.arange(trees)
    _, sums, leaves = grown(trees, depth, 9)
    others = sums ^ (1 - (paths[:, None] >> torch.arange(depth) & 1))[..., None] * DELTA
    cot.receive_silent(paths, others, NOTHING, KEYS, 9, 0, seen)
    expected = leaves.view(trees, trees, 2).clone()
    expected[paths, paths] ^= DELTA
    assert torch.equal(seen.view(trees, trees, 2), expected) and not (leaves[:, 0] & 1).any()
    assert torch.equal(seen.view(trees, trees, 2)[..., 0] & 1, torch.eye(trees, dtype=torch.int64))


def test_all_leaves_sum_to_delta(path: str) -> None:
    """So that one sum tells the other one, and one block is sent for a level."""
    _, sums, leaves = grown(1, 6)
    total = reduce(torch.bitwise_xor, leaves)
    assert torch.equal(total, DELTA ^ torch.tensor([1, 0])) and len({tuple(row.tolist()) for row in sums[0]}) == 6


def test_a_tree_follows_its_equation(path: str) -> None:
    """A tree of two levels, and the key of its number."""
    roots, sums, leaves = grown(1, 2, 77)
    number = int.from_bytes(KEYS[0].numpy().tobytes(), "little") ^ 77
    cipher = Cipher(algorithms.AES(number.to_bytes(16, "little")), modes.ECB())

    def hashed(node: Tensor) -> Tensor:
        low, high = node.tolist()
        turned = torch.tensor([high, low ^ high]).numpy().tobytes()
        out = bytes(a ^ b for a, b in zip(cipher.encryptor().update(turned), turned, strict=True))
        return torch.frombuffer(bytearray(out), dtype=torch.int64)

    nodes = [roots[0], roots[0] ^ DELTA]
    left = [hashed(node) for node in nodes]
    assert torch.equal(sums[0], torch.stack([roots[0], left[0] ^ left[1]]))
    expected = torch.stack([*left, *(x ^ node for x, node in zip(left, nodes, strict=True))])
    assert torch.equal(leaves, expected & torch.tensor([-2, -1]))


def test_a_hash_without_s_shows_delta() -> None:
    """The attack copy, on the path 0 of a tree of two levels: a right node would be AES(x), from which x follows."""
    key, number = KEYS[0].numpy().tobytes(), int.from_bytes(DELTA.numpy().tobytes(), "little")
    cipher, root = Cipher(algorithms.AES(key), modes.ECB()), stream("root").words(2)

    def block(data: bytes) -> int:
        return int.from_bytes(data, "little")

    def aes(x: int) -> int:
        return block(cipher.encryptor().update(x.to_bytes(16, "little")))

    def without(x: int) -> int:
        return aes(x) ^ x

    def turned(x: int) -> int:
        low, high = x & 2**64 - 1, x >> 64
        return aes(high | (low ^ high) << 64) ^ (high | (low ^ high) << 64)

    r = block(root.numpy().tobytes())
    for hashed, shown in ((without, True), (turned, False)):
        beside, total = r ^ number, r ^ hashed(r) ^ r ^ number ^ hashed(r ^ number)  # what the receiver learns
        right = total ^ beside ^ hashed(beside)
        found = block(cipher.decryptor().update(right.to_bytes(16, "little")))
        assert (found ^ beside == number) == shown
    sums = cot.tree_sums(root[None], DELTA, KEYS, 0, 2)[0]
    assert block((sums[1] ^ DELTA).numpy().tobytes()) == r ^ turned(r) ^ r ^ number ^ turned(r ^ number)


def test_an_output_is_a_leaf_and_ten_blocks(path: str) -> None:
    """As the equation says, with the numbers of output 5 computed here; where calls are cut does not matter."""
    table, roots, outputs = stream("table").words(1 << 12, 2), stream("roots").words(3, 2), torch.empty(24, 2).long()
    cot.send_silent(roots, DELTA, table, KEYS, 0, 0, outputs)
    leaves = torch.empty_like(outputs)
    cot.send_silent(roots, DELTA, NOTHING, KEYS, 0, 0, leaves)
    cipher = Cipher(algorithms.AES(KEYS[1].numpy().tobytes()), modes.ECB()).encryptor()
    expected, words = leaves[5], []
    for counter in (10, 11):
        block = int.from_bytes(cipher.update(counter.to_bytes(16, "little")), "little") ^ counter
        words += [block & 2**64 - 1, block >> 64]
    for j in range(10):
        expected = expected ^ table[words[j // 3] >> 21 * (j % 3) & 4095]
    assert torch.equal(outputs[5], expected)
    part = torch.empty(16, 2, dtype=torch.int64)
    cot.send_silent(roots[1:], DELTA, table, KEYS, 1, 8, part)
    assert torch.equal(part, outputs[8:])


def test_known_silent_keys(path: str) -> None:
    """Both parties' releases must agree."""
    out = torch.empty(128, 2, dtype=torch.int64)
    table = stream("table").words(1 << 9, 2)
    cot.send_silent(stream("roots").words(2, 2), DELTA, table, KEYS, 3, 128, out)
    digest = hashlib.sha256(out.numpy().tobytes()).hexdigest()
    assert digest == "4e0132c4782af988c06a0dff906edf1898c018837a7c7e296e2542ccad262013"


def test_bad_trees_are_refused() -> None:
    roots, out, sums = torch.zeros(2, 2).long(), torch.zeros(8, 2).long(), torch.zeros(2, 2, 2).long()
    wrong = [
        (lambda: cot.tree_sums(roots, DELTA, KEYS, 0, 14), "depth"),
        (lambda: cot.tree_sums(roots[:0], DELTA, KEYS, 0, 1), "roots"),
        (lambda: cot.tree_sums(roots, DELTA[:1], KEYS, 0, 1), "delta"),
        (lambda: cot.tree_sums(roots, DELTA, KEYS[0], 0, 1), "keys"),
        (lambda: cot.send_silent(roots, DELTA, out, KEYS, 0, 0, out[:7]), "out"),
        (lambda: cot.send_silent(roots, DELTA, out, KEYS, -1, 0, out), "first"),
        (lambda: cot.send_silent(roots, DELTA, out, KEYS, 0, -1, out), "output"),
        (lambda: cot.send_silent(roots, DELTA, out[:6], KEYS, 0, 0, out), "table"),
        (lambda: cot.send_silent(roots, DELTA, out, KEYS, 0, 0, out[:, 0]), "out"),
        (lambda: cot.receive_silent(roots[:, 0], sums[:, :1], out, KEYS, 0, 0, out), "others"),
        (lambda: cot.receive_silent(roots[:, 0], sums[0], out, KEYS, 0, 0, out), "others"),
        (lambda: cot.receive_silent(roots[:1, 0], sums, out, KEYS, 0, 0, out), "paths"),
    ]
    for call, name in wrong:
        with pytest.raises(InputError, match=name):
            call()
