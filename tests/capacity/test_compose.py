"""Nets of the user's own as SG and CG: layers, bytes and seconds composed of them, beside the measured nets."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hummingbird.capacity import paper
from hummingbird.capacity.compose import composed, describe, lphe
from hummingbird.capacity.published import asplos23
from hummingbird.errors import ModelError
from scripts.papers.asplos_profile import errors, torch_net
from tests.support.covering import every

PROFILE = asplos23()


class Two(nn.Module):
    """Two convolutions of one input, then a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.thin = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 1)
        self.norm, self.relu, self.fc = nn.BatchNorm2d(8), nn.ReLU(), nn.Linear(8 * 16 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.flatten(self.relu(self.norm(self.wide(x)) + self.thin(x)), 1))


def test_layers_of_a_net() -> None:
    layers, relus, results = describe(Two(), (3, 16, 16))
    wide, thin, fc = layers
    assert relus == 8 * 256 and results == 10
    assert (wide.source, wide.inputs, wide.outputs, wide.area) == (thin.source, 768, 2048, 9)
    assert [layer.multiplications for layer in layers] == [2048 * 27, 2048 * 3, 2048 * 10]
    assert (fc.pixels, fc.channels, fc.inputs) == (1, 10, 2048)


def test_bytes_and_seconds_follow_from_layers() -> None:
    units = PROFILE.units
    net = composed(Two(), (3, 16, 16))
    assert net.linear_values == 768 + 2048 + 2048 + 10  # the input is kept once
    assert net.up == (9 + 1) * units.ciphertext_bytes  # and sent once, for the wider kernel
    assert net.down == 3 * units.ciphertext_bytes
    assert net.sg.input == 9 * (768 + 2048) + 2 * 41 and net.cg.input == 9 * 768 + 41
    assert net.he[0] == pytest.approx(sum(map(units.evaluation, describe(Two(), (3, 16, 16))[0]))) and len(net.he) == 3
    at = paper.service("cg", net, paper.Threads(he=3), up=1e8, down=1e8, store=1e9)
    assert at.most_tokens == 10**9 // (8 * net.linear_values + 3590 * 2048)


def test_groups_and_strides() -> None:
    (layer,), _, _ = describe(nn.Conv2d(64, 64, 3, stride=2, padding=1, groups=64), (64, 32, 32))
    assert layer.multiplications == 64 * 16 * 16 * 9
    assert PROFILE.units.up(layer) == 72 and PROFILE.units.down(layer) == 8  # the reply is at the input's resolution
    assert PROFILE.units.products(layer) == 72


def test_layers_go_to_the_first_free_thread_in_order() -> None:
    assert [lphe([1, 5, 1, 1, 5], threads) for threads in (1, 2, 3)] == [13, 8, 6]


@pytest.mark.parametrize("name", every(3, [*PROFILE.nets]))
def test_bytes_of_the_measured_nets(name: str) -> None:
    """To the few bytes that their arrays are off a ReLU's, and but for shortcuts, which the authors left out."""
    net, shape = torch_net(name)
    made, measured = composed(net, shape), PROFILE.net(name)
    assert made.relus == measured.relus
    for field in ("garbled", "ot_setup", "ot_send"):
        for kind in paper.KINDS:
            assert getattr(getattr(made, kind), field) == getattr(getattr(measured, kind), field)
    for kind in paper.KINDS:
        assert paper.token_bytes(kind, made, PROFILE) == pytest.approx(
            paper.token_bytes(kind, measured, PROFILE), rel=2e-3
        )
    assert made.server_values == measured.server_values
    assert made.sg.labels == pytest.approx(measured.sg.labels, rel=1e-6)
    assert made.up == pytest.approx(measured.up, rel=3e-3)  # one array has a small last ciphertext


@pytest.mark.slow
def test_the_stated_error_is_that_of_the_measured_nets() -> None:
    found = errors(PROFILE)
    for name, stated in PROFILE.error.items():
        assert found[name] == pytest.approx(stated, rel=1e-3)
    ours = [found[name] for name in found if name != "cifar10/vgg16"]  # whose table of threads lacks a layer
    assert max(error["refill"] for error in ours) < 0.07 and max(error["request"] for error in ours) < 0.04


def test_layers_without_a_measured_price() -> None:
    with pytest.raises(ModelError, match="no measured price for max_pool") as caught:
        composed(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Sigmoid(), nn.MaxPool2d(2)), (3, 16, 16))
    assert [problem.name for problem in caught.value.problems] == ["1", "2"]
