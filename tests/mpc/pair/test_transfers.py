"""Random transfers and their words: the relations of both parties' results, and what a second use would reveal."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hummingbird.kernels.cot import choose, pads
from hummingbird.mpc.pair.lockstep import Rounds, run, together
from hummingbird.mpc.pair.price import SILENT
from hummingbird.mpc.pair.transfers import ReceivedRot, Rot, SentRot, part
from hummingbird.ot import silent
from hummingbird.ot.silent import LpnSet
from tests.support.chance import DEVIATIONS, chi_square_limit
from tests.support.pairs import bits_of, drawn, linked_by, low, packed, stepwise

N = 1 << 12


def rots(n: int = N) -> tuple[SentRot, ReceivedRot]:
    (sent, _), (_, received) = drawn(n, 0)
    return sent, received


def both(rots: tuple[Rot, Rot], use: Callable[[Rot], Rounds[Tensor]]) -> list[Tensor]:
    return stepwise([use(rot) for rot in rots]).results


def random_words(n: int = N) -> Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (n,))


def uniform(bits: Tensor) -> bool:
    """Whether 0 and 1 are about equally often among these bits, for each row."""
    count = bits.double().sum(-1)
    return bool(((count - bits.shape[-1] / 2).abs() < DEVIATIONS * bits.shape[-1] ** 0.5 / 2).all())


@pytest.mark.parametrize("width", [1, 2, 7, 33, 63, 64])
def test_words_are_multiplied_by_the_choice(width: int) -> None:
    sent, received = rots()
    value, choice = random_words(), bits_of(received.own)
    first, second = both((sent, received), lambda rot: rot.words(width, value))
    assert torch.equal(low(first + second, width), low(value * choice, width))
    first, second = both((sent, received), lambda rot: rot.words(64, value))  # the next word has pads of its own
    assert torch.equal(first + second, value * choice)


@pytest.mark.parametrize("rows", [0, 1, 7, 64, 65, 127])
def test_bits_are_multiplied_by_the_choice(rows: int) -> None:
    sent, received = rots()
    value = packed(torch.randint(0, 2, (rows, N))) if rows else torch.empty(0, N // 8, dtype=torch.uint8)
    first, second = both((sent, received), lambda rot: rot.bits(value))
    assert torch.equal(first ^ second, value & received.own)


@pytest.mark.parametrize("width", [-1, 0, 1, 2, 40, 64])
def test_own_bits_are_multiplied(width: int) -> None:
    sent, received = rots()
    seen = stepwise([rot.own_words(width) for rot in (sent, received)])
    product = bits_of(sent.own & received.own)
    first, second = seen.results
    if width > 0:
        assert torch.equal(low(first + second, width), low(product, width))
    assert [m.numel() for m in seen.sent[0]] == ([N * (width - 1) // 8] if width > 1 else [])


def test_products_of_own_bits_cost_no_message() -> None:
    sent, received = rots()
    assert torch.equal(sent.own_product() ^ received.own_product(), sent.own & received.own)
    (bit, first), (nothing, second) = sent.free_product(), received.free_product()
    assert torch.equal(first ^ second, bit & received.own) and not nothing.any()
    assert all(map(uniform, map(bits_of, (bit, sent.own, received.own, bit ^ sent.own, first, second))))


def test_turned_choices_are_those_wanted() -> None:
    sent, received = rots()
    wanted = packed(torch.randint(0, 2, (N,)))
    seen = stepwise([rot.turned(wanted) for rot in (sent, received)])
    assert torch.equal(seen.sent[1][0], wanted ^ received.own) and uniform(bits_of(seen.sent[1][0]))
    value = random_words()
    first, second = both(tuple(seen.results), lambda rot: rot.words(64, value))
    assert torch.equal(first + second, value * bits_of(wanted))


def test_a_part_is_the_same_transfers() -> None:
    sent, received = rots()
    value = random_words(64)
    first, second = both((part(sent, 128, 64), part(received, 128, 64)), lambda rot: rot.words(64, value))
    assert torch.equal(first + second, value * bits_of(received.own)[128:192])


def test_numbers_are_used_once() -> None:
    (first, _), _ = drawn(160, 16)
    (second, _), _ = drawn(16, 16)
    assert second.first >= first.first + 160


def test_silent_transfers_are_random_transfers(monkeypatch: pytest.MonkeyPatch) -> None:
    """In draws of both directions, over several iterations: keys, choices, numbers, and both parties' stock."""
    monkeypatch.setattr(silent, "SIZES", (LpnSet(60, 7, 4), LpnSet(80, 8, 5)))
    ends, firsts = linked_by(SILENT), []
    for sent, received in [(16, 0), (0, 32), (1600, 1600), (48, 9600), (8000, 16), (0, 0)]:
        bits, rounds, left = ends[0].stock.drawn(sent, received)
        seen = stepwise([ends[0].draw(sent, received), ends[1].draw(received, sent)])
        assert len(seen.sent[0]) == rounds and 8 * sum(m.numel() for each in seen.sent for m in each) == bits
        assert ends[0].stock == ends[1].stock.turned == left
        for out, into in ((seen.results[0][0], seen.results[1][1]), (seen.results[1][0], seen.results[0][1])):
            assert torch.equal(into.keys, choose(out.keys, into.own, out.delta)) and out.first == into.first
            value = random_words(out.n)
            first, second = stepwise([out.words(64, value), into.words(64, value)]).results
            assert torch.equal(first + second, value * bits_of(into.own))
        firsts.append(seen.results[0][0].first)
    assert firsts == [0, 128, 128, 1792, 1920, 9984]
    assert ends[0].stock.sent.size == ends[0].stock.received.size == 1


def test_words_of_one_round_share_a_frame_and_no_pad() -> None:
    sent, received = rots()
    value, other = random_words(), packed(torch.randint(0, 2, (30, N)))
    seen = stepwise([together(rot.words(40, value), rot.bits(other), rot.words(20, value)) for rot in (sent, received)])
    assert [m.numel() for m in seen.sent[0]] == [N * 90 // 8]
    (a, b, c), (d, e, f) = seen.results
    choice = bits_of(received.own)
    assert torch.equal(low(a + d, 40), low(value * choice, 40)) and torch.equal(b ^ e, other & received.own)
    assert torch.equal(low(c + f, 20), low(value * choice, 20))


def test_every_bit_that_is_received_is_uniform() -> None:
    """Also beside the receiver's choice and its share, whatever the words are."""
    sent, received = rots(1 << 14)
    zero = torch.zeros(1 << 14, dtype=torch.int64)
    seen = stepwise([rot.words(64, zero) for rot in (sent, received)])
    message, share = (x.view(torch.int64) if x.dtype == torch.uint8 else x for x in (seen.sent[0][0], seen.results[1]))
    for word in (message, share):
        bits = word[None] >> torch.arange(64)[:, None] & 1
        assert uniform(bits) and uniform(bits ^ bits_of(received.own))
    counts = torch.bincount(message & 255, minlength=256).double()
    assert float(((counts - 64) ** 2 / 64).sum()) < chi_square_limit(256)


# What goes wrong where a rule is broken -------------------------------------------------------------------------------


def test_a_pad_used_twice_shows_the_difference_of_words() -> None:
    sent, received = rots()
    one, two = packed(torch.randint(0, 2, (1, N))), packed(torch.randint(0, 2, (1, N)))
    _, first = sent.hide_bits(one)
    _, fresh = sent.hide_bits(two)
    sent._next = 1  # the attack copy: the same pads again
    _, second = sent.hide_bits(two)
    assert torch.equal(first ^ second, one ^ two)
    assert not torch.equal(first ^ fresh, one ^ two)


def test_a_number_received_twice_shows_the_difference_of_choices() -> None:
    sent, received = rots()
    wanted, other = packed(torch.randint(0, 2, (N,))), packed(torch.randint(0, 2, (N,)))
    first = stepwise([rot.turned(wanted) for rot in (sent, received)]).sent[1][0]
    second = stepwise([rot.turned(other) for rot in (sent, received)]).sent[1][0]
    assert torch.equal(first ^ second, wanted ^ other)
    with pytest.raises(AssertionError, match="in use"):  # after a word, which the product refuses
        both((sent, received), lambda rot: rot.bits(wanted[None]))
        stepwise([rot.turned(other) for rot in (sent, received)])


def test_a_transfer_without_a_hash_shows_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message of words that are 0 is the difference of two pads: without a hash that is delta."""

    def without_hash(keys: Tensor, key: Tensor, first: int, block: int, delta: Tensor | None = None) -> Tensor:
        return keys.T if delta is None else torch.cat([keys.T, (keys ^ delta).T])

    def attacked() -> bool:
        sent, received = rots()
        sent._next = received._next = 64  # a whole lane
        seen = stepwise([rot.bits(torch.zeros(64, N // 8, dtype=torch.uint8)) for rot in (sent, received)])
        message = bits_of(seen.sent[0][0].view(64, -1))  # k_0 ^ k_1, as the words are known to be 0
        return bool((message == (sent.delta[1] >> torch.arange(64) & 1)[:, None]).all())

    assert not attacked()
    monkeypatch.setattr("hummingbird.mpc.pair.transfers.pads", without_hash)
    assert attacked()


def test_pads_of_one_block_twice_are_equal() -> None:
    """The attack copy of a block that does not count up: two words would be hidden by the same pads."""
    sent, _ = rots(16)
    same = [pads(sent.keys, sent.key, sent.first, block) for block in (0, 0, 1)]
    assert torch.equal(same[0], same[1]) and not torch.equal(same[0], same[2])


def test_run_hands_each_protocol_its_messages() -> None:
    sent: list[Tensor] = []

    def echo(message: Tensor, size: int) -> Tensor:
        sent.append(message)
        return torch.arange(size).byte()

    def one(value: int) -> Rounds[list[int]]:
        (got,) = yield [torch.tensor([value], dtype=torch.uint8)], [2]
        return got.tolist()

    def two() -> Rounds[list[int]]:
        yield [], []
        got = yield [], [1, 3]
        return [len(x) for x in got]

    assert run(together(one(7), two(), one(9)), echo) == [[0, 1], [1, 3], [2, 3]]
    assert [message.tolist() for message in sent] == [[7, 9], []]
