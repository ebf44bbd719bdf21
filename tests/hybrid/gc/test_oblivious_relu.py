"""A garbled ReLU whose labels come by oblivious transfer: both ways of garbling, from shares to shares."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hummingbird.hybrid.gc import relu
from hummingbird.kernels import pack_bits, pack_words
from hummingbird.kernels.cot import choose
from hummingbird.ot import cot
from hummingbird.prg import fresh, new_seed

N, W, RING = 100, 10, 20


@pytest.fixture(scope="module")
def transfers() -> tuple[cot.Sender, cot.Receiver]:
    start = cot.SetUp()
    receiver, reply = cot.accept(start.message)
    return start.finish(reply), receiver


def shares() -> tuple[Tensor, Tensor]:
    words = fresh().words(2, N) & (1 << W) - 1
    return words[0], words[1]


def expected(circuit: relu.Circuit, s: Tensor, p: Tensor, offset: Tensor) -> Tensor:
    return (relu.plain(circuit, s + p) + offset) & (1 << RING) - 1


@pytest.mark.parametrize("kind", ["relu", "lift"])
def test_the_data_side_garbles(transfers: tuple[cot.Sender, cot.Receiver], kind: str) -> None:
    """Its shares are known before the evaluator's: those take random transfers, and a message each way."""
    (sender, receiver), (s, p) = transfers, shares()
    circuit, key, r = relu.Circuit(kind, W, RING, "data"), new_seed(), fresh().words(N) & (1 << RING) - 1
    message, waiting, keys = receiver.random(0, N * W)  # offline
    labels = relu.new_labels(fresh(), N, W)
    tables = relu.garble(circuit, key, 0, sender.delta, labels, s, r)
    hidden = labels.view(-1, 2) ^ sender.extend(0, N * W, message, random=True)
    asked = pack_words(p, W) ^ pack_bits(waiting)  # online
    told = choose(hidden, asked, sender.delta)
    y = relu.evaluate(circuit, key, 0, (told ^ keys).view(N, W, 2), tables)
    assert torch.equal(y, expected(circuit, s, p, -r))


@pytest.mark.parametrize("kind", ["relu", "lift"])
def test_the_model_side_garbles(transfers: tuple[cot.Sender, cot.Receiver], kind: str) -> None:
    """The evaluator's shares are known: its labels are what the transfers give, and the garbler sends its own."""
    (sender, receiver), (s, p) = transfers, shares()
    circuit, key = relu.Circuit(kind, W, RING, "model"), new_seed()
    choices = (p[:, None] >> torch.arange(W) & 1).to(torch.uint8).view(-1)
    message, keys = receiver.chosen(1024, choices)  # offline
    labels = sender.extend(1024, N * W, message, random=False).view(N, W, 2)
    own = relu.new_labels(fresh(), N, W)
    tables, offsets = relu.garble_model(circuit, key, 0, sender.delta, labels, own)
    sent = relu.chosen(own, sender.delta, s)  # online
    y = relu.evaluate_model(circuit, key, 0, keys.view(N, W, 2), sent, tables)
    assert torch.equal(y, expected(circuit, s, p, offsets))
