"""Labels for a garbled ReLU as both sides draw and choose them; the example of the module as it stands."""

from __future__ import annotations

import torch

from hummingbird.hybrid.gc import relu
from hummingbird.prg import Stream, derive
from tests.support.garbling import KEY


def test_the_example_of_the_module() -> None:
    stream = Stream(derive(bytes(16), "example"))
    s, p, r = (stream.words(50) & (1 << bits) - 1 for bits in (10, 10, 20))
    key, tile, n = KEY, 3, 50
    circuit = relu.Circuit("relu", 10, 20, "data")
    delta, labels = relu.new_delta(stream), relu.new_labels(stream, n, 10)
    tables = relu.garble(circuit, key, tile, delta, labels, s, r)
    y_minus_r = relu.evaluate(circuit, key, tile, relu.chosen(labels, delta, p), tables)
    assert torch.equal(y_minus_r + r & (1 << 20) - 1, relu.plain(circuit, s + p))
    assert not torch.equal(relu.evaluate(circuit, key, tile + 1, relu.chosen(labels, delta, p), tables), y_minus_r)


def test_offsets_are_odd_and_drawn() -> None:
    stream = Stream(derive(bytes(16), "offsets"))
    drawn = [relu.new_delta(stream) for _ in range(20)]
    assert all(int(delta[0]) & 1 for delta in drawn)
    assert len({tuple(delta.tolist()) for delta in drawn}) == 20
    assert {int(delta[0]) >> 1 & 1 for delta in drawn} == {int(delta[1]) & 1 for delta in drawn} == {0, 1}


def test_labels_are_chosen_bit_by_bit() -> None:
    stream = Stream(derive(bytes(16), "labels"))
    delta, labels = relu.new_delta(stream), relu.new_labels(stream, 3, 5)
    taken = relu.chosen(labels, delta, torch.tensor([0, 31, 0b01001]))
    assert torch.equal(taken[0], labels[0]) and torch.equal(taken[1], labels[1] ^ delta)
    assert [torch.equal(a, b ^ delta) for a, b in zip(taken[2], labels[2], strict=True)] == [1, 0, 0, 1, 0]
    assert torch.equal((taken ^ labels)[..., 0] & 1, torch.tensor([[0] * 5, [1] * 5, [1, 0, 0, 1, 0]]))


def test_no_instances_are_fine() -> None:
    stream = Stream(derive(bytes(16), "none"))
    delta, labels, none = relu.new_delta(stream), relu.new_labels(stream, 0, 10), torch.empty(0, dtype=torch.int64)
    circuit, model = relu.Circuit("relu", 10, 20, "data"), relu.Circuit("lift", 10, 20, "model")
    tables = relu.garble(circuit, KEY, 0, delta, labels, none, none)
    assert tables.numel() == 0 and relu.evaluate(circuit, KEY, 0, labels, tables).numel() == 0
    tables, offsets = relu.garble_model(model, KEY, 0, delta, labels, labels)
    assert tables.numel() == offsets.numel() == relu.evaluate_model(model, KEY, 0, labels, labels, tables).numel() == 0
