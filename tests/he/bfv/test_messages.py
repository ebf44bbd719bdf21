"""Bytes of every message: as many as priced, the same after a round trip, and errors for anything else."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from pytest import MonkeyPatch

from hummingbird import cost
from hummingbird.errors import InputError
from hummingbird.he import bfv
from hummingbird.he.bfv.scheme import REST
from hummingbird.kernels.shares import pack_words
from tests.support.bfv_cases import WHOLE, answer, elements, weights

USED = [torch.tensor([5, 3, 4095]), torch.arange(0), torch.arange(1001)]


def messages(patch: MonkeyPatch) -> list[tuple[bytes, Callable[[bytes], object]]]:
    """A message of each kind, and how it is read."""
    got = answer(elements(0, 3, 20), weights(0, 3, 127), 20, patch)
    reply = bfv.Reply.of(got.reply.parts(), USED)
    public = got.secret.public()
    return [
        (got.secret.switching_key(public).to_bytes(), bfv.SwitchingKey.from_bytes),
        (public.to_bytes(), bfv.PublicKey.from_bytes),
        (got.fresh.to_bytes(), lambda data: bfv.Fresh.from_bytes(data, 3)),
        (reply.to_bytes(), lambda data: bfv.Reply.from_bytes(data, USED)),
    ]


def test_bytes_are_those_of_the_price(monkeypatch: MonkeyPatch) -> None:
    key, public, fresh, reply = (len(data) for data, _ in messages(monkeypatch))
    assert key == cost.bfv_switching_key() == 851_968
    assert public == cost.bfv_fresh(1) == 53264
    assert fresh == cost.bfv_fresh(3) == 16 + 3 * 53248
    assert reply == cost.bfv_reply(3, 1004) == 3 * 26624 + 6526
    assert cost.bfv_reply(0, 3) == 20  # of 6.5 bytes each


def test_messages_survive_their_bytes(monkeypatch: MonkeyPatch) -> None:
    for data, read in messages(monkeypatch):
        assert read(data).to_bytes() == data  # type: ignore[attr-defined]


def test_nothing_is_a_message_of_nothing() -> None:
    secret = bfv.Secret.new()
    none = secret.encrypt(torch.empty(0, 4096, dtype=torch.int64), 8)
    assert len(none.to_bytes()) == cost.bfv_fresh(0) and len(bfv.Fresh.from_bytes(bytes(16), 0).parts()) == 0
    sums = bfv.products(none.parts(), bfv.transform(WHOLE[None][:0]), torch.empty(0, 2).long(), 0)
    reply = bfv.evaluate(secret.public(), sums, torch.empty(0, 4096).long(), 8, [])
    assert reply.to_bytes() == b"" and secret.decrypt(bfv.Reply.from_bytes(b"", []), 8).shape == (0, 4096)


def test_another_length_and_a_value_that_is_no_residue_are_refused(monkeypatch: MonkeyPatch) -> None:
    for data, read in messages(monkeypatch):
        for bad in (data[:-1], data + b"\0", b"", data * 2):
            with pytest.raises(InputError, match="bytes"):
                read(bad)
        for start, end in ((48, len(data) - 6526), (len(data) - 6526, len(data))):  # of a reply: c_1, then c_0
            with pytest.raises(InputError, match="not below its prime"):
                read(data[:start] + b"\xff" * (end - start) + data[end:])


def test_a_residue_has_one_encoding() -> None:
    """Words of c_0, one for each prime: the largest residue is one below it."""
    last = torch.tensor(REST.primes) - 1
    for above in (torch.tensor([0, 0]), torch.tensor([1, 0]), torch.tensor([0, 1])):
        data = bytes(26624) + pack_words(last + above, 26).numpy().tobytes()
        if above.any():
            with pytest.raises(InputError, match="not below its prime"):
                bfv.Reply.from_bytes(data, [torch.tensor([7])])
        else:
            assert bfv.Reply.from_bytes(data, [torch.tensor([7])]).first.flatten().tolist() == [-1, -1]


def fuzz(patch: MonkeyPatch, times: int, seed: int = 0) -> None:
    """Damaged messages are refused, or read as others: nothing else happens."""
    chance, kinds = random.Random(seed), messages(patch)
    refused = 0
    for _ in range(times):
        data, read = chance.choice(kinds)
        damaged = bytearray(data)
        for _ in range(chance.choice((1, 10, 1000))):
            damaged[chance.randrange(len(damaged))] = chance.choice((0, 255, chance.randrange(256)))
        if chance.random() < 0.2:
            del damaged[chance.randrange(len(damaged)) :]
        try:
            assert read(bytes(damaged)).to_bytes() == bytes(damaged)  # type: ignore[attr-defined]
        except InputError as error:
            refused += 1
            assert error.where and error.hint
    assert 0.05 * times < refused < 0.95 * times


def test_damaged_messages(monkeypatch: MonkeyPatch) -> None:
    fuzz(monkeypatch, 200)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))  # half an hour of a core in one piece
def test_a_million_damaged_messages(monkeypatch: MonkeyPatch, seed: int) -> None:
    fuzz(monkeypatch, 100_000, seed)


def test_a_damaged_reply_decrypts_to_other_values(monkeypatch: MonkeyPatch) -> None:
    """Integrity is the transport's: a residue that was changed goes unseen, and damages no other value of c_0."""
    got = answer(elements(0, 1, 20), weights(0, 1, 127), 20, monkeypatch)
    data = bytearray(got.reply.to_bytes())
    data[26624] ^= 1
    other = got.secret.decrypt(bfv.Reply.from_bytes(bytes(data), [WHOLE]), 20)
    assert (other != got.wanted).nonzero().tolist() == [[0, 0]]
