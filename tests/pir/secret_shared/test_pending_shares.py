"""Shares that clients leave at one server: for one use, for who deposited it, within limits; and fuzzed deposits."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from hummingbird.errors import HummingbirdError, InputError, PeerError
from hummingbird.pir import Server, Source, dpf
from hummingbird.pir.messages import pack_deposit, unpack_deposit, unpack_result
from hummingbird.pir.secret_shared.pending_shares import Deposits, Shares
from tests.support.patience import NEVER

ROWS, DIM = 1100, 4
SOURCE = Source.of(torch.zeros(ROWS, DIM)).for_shares()


def shares(count: int = 1) -> Shares:
    return Shares(torch.zeros(count, dtype=torch.int64), torch.zeros(count, DIM, dtype=torch.int64))


def test_results_are_for_who_deposited_and_for_one_use() -> None:
    deposits = Deposits()
    deposits.add(b"t" * 16, b"r" * 16, shares())
    assert deposits.oldest(0) == b"t" * 16
    assert deposits.collect(b"t" * 16, b"r" * 16, 0.01) is None
    assert deposits.take(b"t" * 16, 0) is not None
    assert deposits.take(b"t" * 16, 0) is None and deposits.oldest(0) is None
    deposits.publish(b"t" * 16, b"result")
    for ticket, receipt in ((b"t" * 16, b"s" * 16), (b"t" * 16, b""), (b"u" * 16, b"r" * 16)):  # whoever guesses
        with pytest.raises(InputError, match="there is no deposit"):
            deposits.collect(ticket, receipt, NEVER)  # nobody waits for what will not come
    assert deposits.collect(b"t" * 16, b"r" * 16, 0) == b"result"
    with pytest.raises(InputError, match="there is no deposit"):
        deposits.collect(b"t" * 16, b"r" * 16, 0)


def test_deposits_are_limited_in_number_and_time() -> None:
    deposits = Deposits()
    deposits.add(b"a", b"", shares(1 << 16))
    with pytest.raises(InputError, match="65536 lookups may wait"):
        deposits.add(b"b", b"", shares())
    deposits.keep = 0.05
    time.sleep(0.06)
    deposits.add(b"b", b"", shares())
    assert deposits.oldest(0) == b"b"


def test_stopping_ends_all_waiting() -> None:
    deposits = Deposits()
    deposits.add(b"a", b"r", shares())
    threading.Timer(0.1, deposits.close).start()
    with pytest.raises(PeerError, match="this server is stopping"):
        deposits.collect(b"a", b"r", NEVER)
    deposits.publish(b"a", b"result")
    threading.Timer(0.1, deposits.collect, (b"a", b"r", 0)).start()
    deposits.settle(NEVER)


def test_fuzzed_deposits_and_results_are_refused() -> None:
    keys = dpf.generate(torch.arange(2), ROWS)[0]
    good = pack_deposit(bytes(16), bytes(16), keys, torch.arange(2))
    assert unpack_deposit(good, SOURCE.facts, 0)[3].tolist() == [0, 1]
    generator, server, refused = torch.Generator().manual_seed(3), Server(SOURCE, 0), 0
    for number in range(400):
        data = bytearray(good)
        if number % 4 == 0:
            data = data[: int(torch.randint(len(data), (), generator=generator))]
        else:
            data[int(torch.randint(len(data), (), generator=generator))] ^= 1 << number % 8
        for check in (server.deposit, lambda data: server.collect(data, 0), unpack_result):
            try:
                check(bytes(data))
            except HummingbirdError:
                refused += 1
    assert refused > 800
    for wrong, factors in ((keys, torch.arange(3)), (keys[:0], None), (keys[:, :-1], None)):
        with pytest.raises(InputError):
            unpack_deposit(pack_deposit(bytes(16), bytes(16), wrong, factors), SOURCE.facts, 0)
    with pytest.raises(InputError, match="a result of torch.float32"):
        server.publish(bytes(16), torch.zeros(1))
