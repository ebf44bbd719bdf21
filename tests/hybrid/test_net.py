"""Both sides' protocol against its ideal parts: the same numbers, bit for bit, given the masks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hummingbird.hybrid.convert import make_plan
from hummingbird.hybrid.net import HybridNet
from models import trained
from scripts.train.data import load
from tests.fuzz.hybrid import of_slot
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
        assert torch.equal(got[slot : slot + 1], of_slot(net, x[slot : slot + 1], slot))


@pytest.mark.slow
def test_100_images_by_the_shipped_resnet_equal_the_twin() -> None:
    """Each bit for bit, with the masks of its slot; and the answers are those of the net in the clear."""
    pictures, labels = (part[:100] for part in load("cifar10", "test", data_folder("cifar10")))
    plain = trained("resnet18", 10, str(ROOT / "checkpoints" / "resnet18-cifar10.pt"))
    model = make_plan(plain, (3, 32, 32), ROOT / "checkpoints" / "resnet18-cifar10-cut-9.bits.json")
    net, right = HybridNet(model, DIGEST), 0
    for slot, image in enumerate(pictures):
        got = net(image[None])
        assert torch.equal(got, of_slot(net, image[None], slot)), slot
        right += int(got.argmax(1) == labels[slot])
    assert right >= 85  # 93.4 % of 10,000 are right; fewer than 85 of 100 would be chance of 1e-3
