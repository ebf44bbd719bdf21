"""Predicted bytes are those that both sides count, for every message; the published counts; the report."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from hummingbird import cost, hybrid
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.errors import ConfigError
from hummingbird.he.bfv import noise
from hummingbird.hybrid import prices, report
from hummingbird.hybrid.encrypted import Weights, layers
from hummingbird.hybrid.gc.relu import Circuit
from hummingbird.hybrid.numbering import Numbering
from hummingbird.hybrid.plan import GARBLERS
from hummingbird.kernels.cot import BLOCK
from hummingbird.kernels.garble import TILE
from hummingbird.ot import cot
from tests.hybrid.test_arithmetic import small
from tests.support.hybrid_nets import NETS, exact, images

BITS = BitConfig(BitWindow(19, 9), input_range=1.0)


def without_openings(counted: Mapping[str, int]) -> dict[str, int]:
    """Openings are text that names a slot's number."""
    return {name: count for name, count in counted.items() if name != "opening"}


@pytest.mark.parametrize("garbler", GARBLERS)
@pytest.mark.parametrize("name", ["max pooling", "sums", "linear"])
def test_every_message_has_its_predicted_size(name: str, garbler: str) -> None:
    make, shape = NETS[name]
    net = hybrid.convert_model(exact(make()), shape, BITS, garbler)
    before = net.report()
    net.prepare(2)
    net(images(shape, 2))
    slot, once = prices.offline(net.plan), prices.call()
    names = slot | once
    assert without_openings(net.offline) == {name: 2 * slot.get(name, 0) + once.get(name, 0) for name in names}
    assert without_openings(net.online) == {name: 2 * count for name, count in prices.online(net.plan).items()}
    after = net.report()
    assert after.startswith(before) and "bytes measured" in after
    counted = report.after(net.plan, net.offline, [2], net.online, 2).splitlines()
    layers = [line.split() for line in counted[2:] if not line.startswith("other  ")]
    assert layers and all(line[-1] == line[-2] for line in layers)


@pytest.mark.parametrize("garbler", GARBLERS)
def test_a_relu_of_ten_bits_costs_what_the_design_says(garbler: str) -> None:
    """1,600 ReLUs: 342 bytes of tables and 38.75 of OTs offline, 161.25 online; or 355.5, 40 and 162.5."""
    tables, transfers, online = (342.0, 38.75, 161.25) if garbler == "data" else (355.5, 40.0, 162.5)
    assert Circuit("relu", 10, 20, garbler).table_bytes(1600) == 1600 * tables
    assert cost.cot_message(16000, garbler == "data") == 1600 * transfers
    assert sum(cost.garbled_online(1600, 10, 20, garbler)) == 1600 * online


def test_impala_costs_what_its_tables_say() -> None:
    """Table 4 for 10 bits, and Table 6: 360 of 364 MB for CIFAR-10, 23.1 MB for MNIST."""
    assert cost.impala(1, 0, 10) == (1280, 800)
    assert cost.impala(0, 1, 10) == (4160, 2720)
    assert sum(cost.impala(173_056, 0, 10)) == 359_956_480
    assert round(sum(cost.impala(2660, 2560, 10)) / 1e6, 1) == 23.1


def test_a_report_shows_windows_as_they_were_given() -> None:
    make, shape = NETS["max pooling"]
    net = hybrid.convert_model(exact(make()), shape, BITS)
    rows = [line.split() for line in net.report().splitlines()]
    found = {row[0]: row for row in rows if row}
    assert found["1"][1:3] == ["relu", "[19:9)"]
    distances = [float(found[name][-1]) for name in ("0", "4", "total")]
    assert min(distances) == distances[2] > 30
    assert torch.isfinite(torch.tensor(distances)).all()


@pytest.mark.parametrize("name", ["max pooling", "sums"])
def test_no_transfer_and_no_tile_serves_two_gates_or_two_slots(name: str) -> None:
    """Results would stay right; two labels under one number show the garbler's offset. A slot's transfers are made in
    whole blocks, all of which are its own.
    """
    make, shape = NETS[name]
    numbering = Numbering(hybrid.convert_model(exact(make()), shape, BITS).plan)
    transfers, taken, tiles_taken = set[int](), set[int](), set[int]()
    for slot in range(5):
        made = range(numbering.first_ot(slot), numbering.first_ot(slot) + cot.numbers(numbering.bits))
        assert made.start % BLOCK == 0 and transfers.isdisjoint(made)
        transfers.update(made)
        for place in numbering.places:
            bits = range(made.start + place.bit, made.start + place.bit + place.bits)
            first = numbering.first_tile(slot) + place.tile
            own = range(first, first + -(-place.gate.count // TILE))
            assert taken.isdisjoint(bits) and tiles_taken.isdisjoint(own) and set(bits) <= set(made)
            taken.update(bits)
            tiles_taken.update(own)


def test_weights_that_the_replies_to_an_image_would_not_hide_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The distances of all layers count together, as the report has them."""
    made = small()
    found = layers(made.plan)
    each = [
        noise.distance(layer.layout.norms(made.parameters[number].weight), layer.step.ring, layer.step.count)
        for number, layer in found.items()
    ]
    assert len(each) == 2
    monkeypatch.setattr(noise, "MOST_DISTANCE", sum(each))
    Weights(made.plan, made.parameters)
    monkeypatch.setattr(noise, "MOST_DISTANCE", max(each))
    with pytest.raises(ConfigError, match="hide the weights"):
        Weights(made.plan, made.parameters)
