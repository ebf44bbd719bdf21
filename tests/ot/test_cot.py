"""Correlated transfers: right at every number, and what goes wrong where a number serves twice."""

from __future__ import annotations

from functools import cache, reduce
from random import Random

import pytest
import torch
from torch import Tensor

from hummingbird import cost, prg
from hummingbird.errors import AgreementError, HummingbirdError, InputError
from hummingbird.kernels import pack_bits, pack_words
from hummingbird.kernels.cot import choose
from hummingbird.ot import cot
from tests.support.chance import chi_square_limit


@cache
def parties() -> tuple[cot.Sender, cot.Receiver]:
    start = cot.SetUp()
    receiver, reply = cot.accept(start.message)
    assert (len(start.message), len(reply)) == cost.COT_SET_UP
    return start.finish(reply), receiver


def drawn_bits(count: int) -> Tensor:
    return prg.fresh().bits(count)


def related(sender_keys: Tensor, choices: Tensor, keys: Tensor, delta: Tensor) -> bool:
    return torch.equal(keys, choose(sender_keys, pack_bits(choices), delta))


# One transfer, parts of blocks, whole blocks, runs of 16 blocks and more; small and large numbers.
COUNTS = [0, 1, 5, 127, 128, 129, 1000, 2048, 2049, 5000]


@pytest.mark.parametrize("first", [0, 128, 128 * 12345, 128 * 2**39])
@pytest.mark.parametrize("count", COUNTS)
def test_keys_are_correlated(first: int, count: int) -> None:
    sender, receiver = parties()
    message, choices, keys = receiver.random(first, count)
    assert choices.shape == (count,) and keys.shape == (count, 2) and choices.dtype == torch.uint8
    assert len(message) == cot.message_bytes(count, random=True) == cost.cot_message(count, random=True)
    assert related(sender.extend(first, count, message, random=True), choices, keys, sender.delta)
    wanted = drawn_bits(count)
    message, keys = receiver.chosen(first, wanted)
    assert len(message) == cot.message_bytes(count, random=False) == cost.cot_message(count, random=False)
    assert related(sender.extend(first, count, message, random=False), wanted, keys, sender.delta)


def test_bytes_of_a_transfer() -> None:
    assert cot.message_bytes(1024, random=True) * 8 == 31 * 1024
    assert cot.message_bytes(1024, random=False) == 4 * 1024
    assert [cot.numbers(count) for count in (0, 1, 128, 129)] == [0, 128, 128, 256]


def test_a_transfer_follows_from_its_number_in_any_process() -> None:
    sender, receiver = parties()
    _, choices, keys = receiver.random(0, 1000)
    again = cot.Receiver(receiver.leaves.clone())  # as one would keep it on a disk
    message, part_choices, part = again.random(256, 300)
    assert torch.equal(part, keys[256:556]) and torch.equal(part_choices, choices[256:556])
    other = cot.Sender(sender.delta.clone(), sender.leaves.clone())
    assert torch.equal(other.extend(256, 300, message, random=True), sender.extend(256, 300, message, random=True))


def test_sessions_have_nothing_in_common() -> None:
    _, receiver = parties()
    start = cot.SetUp()
    other, reply = cot.accept(start.message)
    sender = start.finish(reply)
    assert sender.delta[0] & 1 and not torch.equal(sender.delta, parties()[0].delta)
    assert not (other.random(0, 128)[2] == receiver.random(0, 128)[2]).any()
    message, choices, keys = receiver.random(0, 128)
    assert not related(sender.extend(0, 128, message, random=True), choices, keys, sender.delta)


def test_the_reply_hides_the_sums_that_the_sender_must_not_know() -> None:
    """The sums of each tree's last level follow from its leaves: none is sent as it is, or two under one key."""
    start = cot.SetUp()
    receiver, reply = cot.accept(start.message)
    hidden = torch.frombuffer(bytearray(reply[cost.BASE_OT_ANSWER :]), dtype=torch.uint8).view(32, 4, 2, 16)[:, 3]
    halves = receiver.leaves.view(32, 2, 8, 16)  # leaves whose number has the highest bit 0, and 1
    sums = reduce(torch.bitwise_xor, halves.unbind(2))
    assert not (hidden == sums).all(2).any()
    assert not ((hidden[:, 0] ^ hidden[:, 1]) == (sums[:, 0] ^ sums[:, 1])).all(1).any()


# How garblers use them ------------------------------------------------------------------------------------------------


def test_a_bit_that_comes_later_is_told_by_one_label() -> None:
    """The data side garbles: L, Q and e before the bits p are there."""
    sender, receiver = parties()
    n, w = 77, 10
    message, waiting, keys = receiver.random(128, n * w)
    labels = prg.fresh().words(n * w, 2)
    hidden = labels ^ sender.extend(128, n * w, message, random=True)
    shares = prg.fresh().words(n) & (1 << w) - 1
    bits = (shares[:, None] >> torch.arange(w) & 1).to(torch.uint8).view(-1)
    asked = pack_words(shares, w) ^ pack_bits(waiting)  # online, w bits an instance
    told = choose(hidden, asked, sender.delta)  # online, 16 bytes a bit
    assert torch.equal(told ^ keys, choose(labels, pack_bits(bits), sender.delta))


def test_two_answers_for_a_number_show_delta() -> None:
    sender, receiver = parties()
    message, _, _ = receiver.random(0, 128)
    hidden = prg.fresh().words(128, 2) ^ sender.extend(0, 128, message, random=True)
    asked = prg.fresh().bytes(16)
    once, twice = (choose(hidden, packed, sender.delta) for packed in (asked, ~asked))
    assert ((once ^ twice) == sender.delta).all()


def test_two_messages_of_a_number_show_the_sum_of_their_choices() -> None:
    _, receiver = parties()
    first, second = drawn_bits(256), drawn_bits(256)
    one, two = (torch.frombuffer(bytearray(receiver.chosen(0, x)[0]), dtype=torch.uint8) for x in (first, second))
    assert ((one ^ two).view(32, -1) == pack_bits(first ^ second)).all()
    apart = torch.frombuffer(bytearray(receiver.chosen(256, second)[0]), dtype=torch.uint8)
    assert not ((one ^ apart).view(32, -1) == pack_bits(first ^ second)).all(1).any()


# Messages look uniform ------------------------------------------------------------------------------------------------


def chi_square(data: bytes | Tensor) -> float:
    """Chi-square of the 256 values of a byte: 255 on average, with a deviation of 22.6, if bytes are uniform."""
    octets = torch.frombuffer(bytearray(data), dtype=torch.uint8) if isinstance(data, bytes) else data.view(torch.uint8)
    counts = torch.bincount(octets.reshape(-1).long(), minlength=256).double()
    expected = octets.numel() / 256
    return float(((counts - expected) ** 2 / expected).sum())


BOUND = chi_square_limit(256)


@pytest.mark.parametrize("bit", [0, 1])
def test_messages_and_keys_are_uniform_whatever_the_choices(bit: int) -> None:
    sender, receiver = parties()
    count, first = 1 << 15, 1 << 20
    message, keys = receiver.chosen(first, torch.full((count,), bit, dtype=torch.uint8))
    assert chi_square(message) < BOUND and chi_square(keys) < BOUND
    assert chi_square(sender.extend(first, count, message, random=False)) < BOUND
    message, choices, _ = receiver.random(first, count)
    assert chi_square(message) < BOUND and chi_square(pack_bits(choices)) < BOUND


def test_the_test_of_uniformity_can_fail() -> None:
    octets = prg.fresh().bytes(1 << 17)
    assert chi_square(octets) < BOUND
    octets[octets == 77] = 78  # one value is missing
    assert chi_square(octets) > BOUND


# Bad input ------------------------------------------------------------------------------------------------------------


def test_a_message_of_another_size_is_refused_by_both_counts() -> None:
    sender, receiver = parties()
    message, _, _ = receiver.random(0, 1000)
    for bad in (b"", message[:-1], message + b"\0", message[:31]):
        with pytest.raises(AgreementError, match=f"take 3968 bytes here, the receiver sent {len(bad)}"):
            sender.extend(0, 1000, bad, random=True)
    with pytest.raises(AgreementError, match="1000 transfers with chosen choices take 4096 bytes here"):
        sender.extend(0, 1000, message, random=False)
    with pytest.raises(AgreementError):
        sender.extend(0, 1025, message, random=True)


def test_numbers_and_choices_are_checked() -> None:
    sender, receiver = parties()
    for call in (lambda first: receiver.random(first, 5), lambda first: receiver.chosen(first, drawn_bits(5))):
        with pytest.raises(InputError, match="number 64 is no multiple of 128"):
            call(64)
        for first in (-128, 128 * 2**40, 2**70):
            with pytest.raises(InputError, match="first"):
                call(first)
    with pytest.raises(InputError, match="count"):
        receiver.random(0, -1)
    with pytest.raises(InputError, match="count"):
        sender.extend(0, -1, b"", random=True)
    with pytest.raises(InputError, match="neither 0 nor 1"):
        receiver.chosen(0, torch.tensor([0, 2], dtype=torch.uint8))
    with pytest.raises(InputError, match="uint8"):
        receiver.chosen(0, torch.tensor([0, 1]))


def test_a_bad_set_up_is_refused() -> None:
    start = cot.SetUp()
    _, reply = cot.accept(start.message)
    for bad in (b"", reply[:-1], reply + b"\0", bytes(4128)):
        with pytest.raises(InputError):
            start.finish(bad)
    with pytest.raises(InputError, match="expected 8192 bytes"):
        cot.accept(start.message[1:])


def mutated(random: Random, message: bytes) -> bytes:
    """Another message: noise, or this one with bits changed, a part cut out, put twice, or zero."""
    if (kind := random.randrange(5)) == 0:
        return random.randbytes(random.choice([random.randrange(64), len(message), random.randrange(2 * len(message))]))
    at, size = random.randrange(len(message) + 1), random.choice([1, 16, 32, 100])
    head, part, tail = message[:at], message[at : at + size], message[at + size :]
    noise = bytes(byte ^ 1 << random.randrange(8) for byte in part)
    return head + (b"", noise, b"", part + part, bytes(len(part)))[kind] + tail


def fuzz(rounds: int) -> tuple[int, int]:
    """Send that many other messages to every place that reads one: how many were refused, and how many read.

    A base transfer takes 10 ms, so one round in 500 is of its messages.
    """
    random, (sender, receiver), start = Random(18), parties(), cot.SetUp()
    _, reply = cot.accept(start.message)
    messages = {kind: receiver.random(0, 300)[0] if kind else receiver.chosen(0, drawn_bits(300))[0] for kind in (0, 1)}
    refused = 0
    for number in range(rounds):
        try:
            if number % 500 == 0:
                cot.accept(mutated(random, start.message))
            elif number % 500 == 1:
                start.finish(mutated(random, reply))
            else:
                kind = random.randrange(2)
                keys = sender.extend(0, 300, mutated(random, messages[kind]), random=bool(kind))
                assert keys.shape == (300, 2)
        except HummingbirdError:
            refused += 1
    return refused, rounds - refused


def test_any_message_is_read_or_refused() -> None:
    refused, read = fuzz(2000)
    assert refused > 200 and read > 200


@pytest.mark.slow
def test_a_million_messages_are_read_or_refused() -> None:
    refused, read = fuzz(1_000_000)
    assert refused > 100_000 and read > 100_000


# Trees of leaves: a sum for each level determines all leaves but one --------------------------------------------------


def known_sums(bits: Tensor, sums: Tensor) -> Tensor:
    """The sums on the other side of the path, as the base transfers give them."""
    return torch.where(bits[:, :, None] > 0, sums[:, :, 0], sums[:, :, 1])


def grown() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Each of the 16 places of the missing leaf twice: its bits and numbers, the leaves and the sums."""
    numbers = torch.arange(32) % 16
    bits = (numbers[:, None] >> torch.arange(4) & 1).to(torch.uint8)
    return bits, numbers, *cot.grow(prg.fresh().bytes(512).view(32, 16))


def test_a_punctured_tree_has_all_leaves_but_one() -> None:
    bits, numbers, leaves, sums = grown()
    made = cot.puncture(bits, known_sums(bits, sums))
    for j in range(32):
        for y in range(1, 16):
            assert torch.equal(made[j, y], leaves[j, y ^ int(numbers[j])])
    assert not made[:, 0].any()
    assert len({leaf.numpy().tobytes() for leaf in leaves.view(-1, 16)}) == 512


def test_a_sum_of_the_wrong_side_gives_other_leaves() -> None:
    """So the test above can fail."""
    bits, numbers, leaves, sums = grown()
    known = known_sums(bits, sums)
    known[5, 2] ^= 1
    made = cot.puncture(bits, known)
    wrong = [y for y in range(1, 16) if not torch.equal(made[5, y], leaves[5, y ^ int(numbers[5])])]
    assert wrong == [4, 8, 12]  # what the level brings, its children, and what the next level brings
