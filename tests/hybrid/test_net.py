"""Both sides' protocol against its ideal parts: the same numbers, bit for bit, given the masks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hummingbird.hybrid import ideal
from hummingbird.hybrid.encrypted import mask_seed
from hummingbird.hybrid.net import HybridNet
from hummingbird.hybrid.numbering import slot_seed
from tests.hybrid.test_arithmetic import images, small

DIGEST = "ab" * 32


@pytest.mark.parametrize("garbler", ["data", "model"])
def test_the_protocol_equals_its_ideal_parts(garbler: str) -> None:
    model = small()
    model = replace(model, plan=replace(model.plan, garbler=garbler))
    net, x = HybridNet(model, DIGEST), images(3).float()
    net.prepare(2)
    assert net.ready == 2
    got = net(x)  # deals a third
    assert net.ready == 0
    for slot in range(3):
        data, theirs = net._data, slot_seed(net._store.seed, slot)
        seed = slot_seed(data.store.seed, slot)
        masks = {number: data._mask(seed, number) for number in model.plan.masked}
        hidden = {n: layer.hidden(mask_seed(theirs, n)) for n, layer in net._model.layers.items()}
        expected = ideal.run(model, model.plan.encode(x[slot : slot + 1]), masks, hidden)
        assert torch.equal(got[slot : slot + 1], model.plan.decode(expected))
