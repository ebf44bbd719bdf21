"""Both sides' protocol against its ideal parts: the same numbers, bit for bit, given the masks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hummingbird.hybrid import ideal
from hummingbird.hybrid.convert import make_plan
from hummingbird.hybrid.encrypted import mask_seed
from hummingbird.hybrid.net import HybridNet
from hummingbird.hybrid.numbering import slot_seed
from hummingbird.hybrid.plan import Model
from models import trained
from scripts.data import load
from tests.hybrid.test_arithmetic import images, small
from tests.support.data import data_folder
from tests.support.paths import ROOT

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
        assert torch.equal(got[slot : slot + 1], expected(net, model, x[slot : slot + 1], slot))


def expected(net: HybridNet, model: Model, image: Tensor, slot: int) -> Tensor:
    """Logits of ideal parts with the masks of a slot, which both sides derive from their seeds."""
    data, theirs = net._data, slot_seed(net._store.seed, slot)
    seed = slot_seed(data.store.seed, slot)
    masks = {number: data._mask(seed, number) for number in model.plan.masked}
    hidden = {n: layer.hidden(mask_seed(theirs, n)) for n, layer in net._model.layers.items()}
    return model.plan.decode(ideal.run(model, model.plan.encode(image), masks, hidden))


@pytest.mark.slow
def test_100_images_by_the_shipped_resnet_equal_the_twin() -> None:
    """Each bit for bit, with the masks of its slot; and the answers are those of the net in the clear."""
    pictures, labels = (part[:100] for part in load("cifar10", "test", data_folder("cifar10")))
    plain = trained("resnet18", 10, str(ROOT / "checkpoints" / "resnet18-cifar10.pt"))
    model = make_plan(plain, (3, 32, 32), ROOT / "checkpoints" / "resnet18-cifar10-cut-9.bits.json")
    net, right = HybridNet(model, DIGEST), 0
    for slot, image in enumerate(pictures):
        got = net(image[None])
        assert torch.equal(got, expected(net, model, image[None], slot)), slot
        right += int(got.argmax(1) == labels[slot])
    assert right >= 85  # 93.4 % of 10,000 are right; fewer than 85 of 100 would be chance of 1e-3
