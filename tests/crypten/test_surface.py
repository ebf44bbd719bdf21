"""CrypTen's public surface on our tensors: every function, module and message is right, or refused with a reason.

The programs are in tests/jobs/crypten_surface.py, the functions with their bounds in tests/support/crypten_cases.py.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest
import torch

import hummingbird
from hummingbird import ring
from hummingbird.crypten import adapter
from hummingbird.errors import DealerError, EnvironmentProblem
from hummingbird.mpc.protocols import division
from hummingbird.mpc.protocols.division import Division, quotients
from hummingbird.mpc.protocols.truncation import truncate_price
from hummingbird.ring import SCALE
from tests.support import python
from tests.support.parties import channels, compute, init_alone, share, succeed, together
from tests.support.paths import ROOT
from tests.support.patience import PROGRAM


def run(job: str, parties: int, *words: str) -> Any:
    ended = succeed(["-W", "ignore", "-m", "tests.jobs.crypten_surface", job, *words], parties)
    return json.loads(ended[0].out.strip().splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("parties", [1, 2, 3])
def test_functions_compute_what_torch_computes(parties: int) -> None:
    results = run("table", parties)
    assert len(results) > 500
    wrong = {name: pair for name, pair in results.items() if not pair[0] <= pair[1]}
    assert not wrong, f"error above bound: {wrong}"


@pytest.mark.slow
@pytest.mark.parametrize("parties", [2, 3])
def test_modules_losses_and_training(parties: int) -> None:
    wrong = {name: pair for name, pair in run("nets", parties).items() if not pair[0] <= pair[1]}
    assert not wrong, f"error above bound: {wrong}"


TWO = [2, *(pytest.param(parties, marks=pytest.mark.slow) for parties in (1, 3))]


@pytest.mark.parametrize("parties", TWO)
def test_xor_shared_words_and_other_scales(parties: int) -> None:
    assert run("binary", parties) == []


@pytest.mark.parametrize("parties", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_refusals_come_before_anything_is_sent(parties: int) -> None:
    assert run("refusals", parties) == {}


@pytest.mark.parametrize(
    ("parties", "normal"), [(2, ""), *(pytest.param(n, "normal", marks=pytest.mark.slow) for n in (1, 2, 3))]
)
def test_messages_files_and_random_numbers(parties: int, normal: str) -> None:
    assert run("communication", parties, normal) == []


def test_crypten_notices_that_parties_share_different_shapes() -> None:
    said = run("unequal", 2)
    assert "crypten.cryptensor" in said and "(3,)" in said and "(4,)" in said


def test_a_foreign_session_is_refused() -> None:
    """CrypTen's own session, by processes' and by threads' communicator, keeps ours from starting."""
    program = """
import torch, hummingbird
from hummingbird.errors import EnvironmentProblem
from hummingbird.crypten.adapter import crypten
{start}
try:
    hummingbird.init()
except EnvironmentProblem as error:
    assert "crypten.uninit()" in str(error)
    print("refused")
"""
    variables = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    environment = {name: value for name, value in os.environ.items() if name not in variables}
    for start in ("crypten.init()", "crypten.init_thread(0, 1)"):
        ended = python.run(
            [sys.executable, "-W", "ignore", "-c", program.format(start=start)],
            env={**environment, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=PROGRAM,
        )
        assert ended.stdout.strip().endswith("refused"), ended.stdout + ended.stderr


def test_crypten_init_changes_nothing_in_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    init_alone()
    try:
        with pytest.warns(RuntimeWarning, match="already initialized"):
            adapter.crypten.init()
        assert isinstance(adapter.PartyCommunicator.get(), adapter.PartyCommunicator)
        with pytest.raises(EnvironmentProblem, match=r"hummingbird\.uninit"):
            adapter.crypten.uninit()
        left = hummingbird.cryptensor(torch.ones(3))
    finally:
        hummingbird.uninit()
    for late in (lambda: left * left, left.get_plain_text, lambda: adapter.crypten.cryptensor(torch.ones(3))):
        with pytest.raises(EnvironmentProblem, match=r"hummingbird\.init\(\)"):
            late()


def test_opened_values_are_right_at_every_sixteenth_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """CrypTen decodes a negative number v 1 too low with probability |v| / 2^16: half of these."""
    monkeypatch.delenv("RANK", raising=False)
    init_alone()
    try:
        for whole in (1, 30, 1000, 30000):
            fractions = torch.arange(2**SCALE, dtype=torch.int64)
            words = torch.cat([-(whole << SCALE) - fractions, (whole << SCALE) + fractions])
            opened = adapter.from_share(words).get_plain_text()
            assert torch.equal(opened, ring.decode(words))
    finally:
        hummingbird.uninit()


@pytest.mark.parametrize("parties", [1, 2, 3])
@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 1000, 65536, (1 << 28) - 1, 1 << 28])
def test_division_is_exact_to_one_unit_up_to_the_edges(parties: int, divisor: int) -> None:
    edge = (1 << 62) - divisor - 1
    x = torch.cat([torch.tensor([0, 1, -1, divisor, -divisor, edge, -edge]), torch.randint(-edge, edge, (3000,))])
    shares = compute(parties, lambda session, s: division.divide(session, s, divisor), share(x, parties))
    total = sum(shares[1:], shares[0].clone())
    more = total - x.div(divisor, rounding_mode="floor")
    assert set(more.unique().tolist()) <= {0, 1}


def test_division_by_shares_alone_would_be_wrong() -> None:
    """The check above can fail: cutting each share of large values, as CrypTen does, is far off."""
    x = torch.full((1000,), 1 << 61)
    parts = [part.div(7, rounding_mode="trunc") for part in share(x, 2)]
    assert int((sum(parts[1:], parts[0].clone()) - x // 7).abs().max()) > 2**50


def test_quotients_of_all_words() -> None:
    words = torch.cat([torch.tensor([0, 1, -1, 2**63 - 1, -(2**63)]), torch.randint(-(2**63), 2**63 - 1, (2000,))])
    for divisor in (1, 2, 3, 10, 65537, 1 << 28):
        unsigned, signed = quotients(words, divisor)
        for word, large, small in zip(words.tolist(), unsigned.tolist(), signed.tolist(), strict=True):
            assert large % 2**64 == (word % 2**64) // divisor and small == word // divisor


@pytest.mark.parametrize("divisor", [0, -1, (1 << 28) + 1, 1.5, "3"])
def test_a_dealer_refuses_other_divisors(divisor: Any) -> None:
    with pytest.raises(DealerError, match="divide"):
        Division(4, divisor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(5)[2:3].expand(1).as_strided((1,), (0,)),
        torch.arange(10).view(2, 5)[:1, :1],
        torch.arange(10).view(2, 5).t()[1:2, 1:2],
        torch.tensor(7).expand(3, 2),
        torch.tensor(7),
        torch.zeros(0, 3, dtype=torch.int64),
        torch.arange(12).view(3, 4)[:, ::2],
    ],
)
def test_tensors_travel_however_they_lie_in_memory(tensor: torch.Tensor) -> None:
    pair = channels(2)
    received = together([lambda c=c: c.exchange(tensor) for c in pair])
    assert torch.equal(received[0][1][0], tensor) and torch.equal(received[1][0][0], tensor)
    for channel in pair:
        channel.close()


def test_a_division_costs_what_a_truncation_does() -> None:
    with hummingbird.meter() as m:
        compute(2, lambda session, x: division.divide(session, x, 3), share(torch.arange(100), 2))
    price = truncate_price(100, 2)
    assert (m.total.bits_sent, m.total.rounds) == (2 * price.bits, 2 * price.rounds)  # threads share the meter
    assert m.total.received_bits == price.offline_bits  # the parties' together
