"""The twin of two parties without a dealer: the protocol bit for bit given low bits, and its law without."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hummingbird
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.errors import ConfigError, InputError
from hummingbird.hybrid import ideal
from hummingbird.hybrid.convert import make_plan
from hummingbird.simulation.cut import CutSimulator
from tests.support.hybrid_nets import NETS, Residual, exact, images

BITS = BitConfig(BitWindow(20, 9), input_range=1.0)  # a bound of 6 must be in it
SEED = bytes(range(16))


def twin_of(net: nn.Module, bits: BitConfig = BITS, seed: int | None = 0) -> CutSimulator:
    found = hummingbird.simulate(net, bits, seed=seed, cut=True)
    assert isinstance(found, CutSimulator)
    return found


@pytest.mark.parametrize("name", ["sums", "max pooling, no ReLU", "slopes", "groups and strides"])
def test_the_twin_is_the_protocol_bit_for_bit_given_the_low_bits(name: str) -> None:
    make, shape = NETS[name]
    torch.manual_seed(0)
    net, x = make().eval(), images(shape, 4)
    model = make_plan(net, shape, BITS)
    masks, hidden = ideal.drawn(model.plan, SEED, 4)
    shares = model.plan.decode(ideal.run(model, model.plan.encode(x), masks, hidden))
    low = ideal.low_bits(model.plan, lambda number, step: masks[number], ideal.encrypted(model, hidden))
    assert torch.equal(twin_of(net)(x, low), shares)
    assert not torch.equal(twin_of(net)(x), shares)  # it can fail: other low bits, another result


def test_drawn_low_bits_have_the_law_of_shares() -> None:
    """Means and deviations of 2,000 logits of one image, by masks and by the twin's own numbers, at 5 deviations."""
    torch.manual_seed(0)
    net, count = Residual().eval(), 2000
    x = images((2, 8, 8), 1).expand(count, -1, -1, -1)
    model = make_plan(net, (2, 8, 8), BITS)
    masks, hidden = ideal.drawn(model.plan, SEED, count)
    shares = model.plan.decode(ideal.run(model, model.plan.encode(x), masks, hidden)).double()
    drawn = twin_of(net)(x).double()
    spread = shares.std(0)
    assert (spread > 0).all()
    assert ((shares.mean(0) - drawn.mean(0)).abs() < 5 * spread * (2 / count) ** 0.5).all()
    assert ((drawn.std(0) / spread - 1).abs() < 5 / count**0.5).all()


def test_a_seed_repeats_and_weights_are_followed() -> None:
    torch.manual_seed(0)
    net, x = Residual().eval(), images((2, 8, 8))
    first = twin_of(net)(x)
    again = twin_of(net)
    assert torch.equal(again(x), first) and not torch.equal(again(x), first)
    again.restart(0)
    assert torch.equal(again(x), first)
    with torch.no_grad():
        net.fc.bias += 1.0
    again.restart(0)
    assert torch.allclose(again(x), first + 1.0, atol=1e-3)
    again.set_bits(BitConfig(BitWindow(20, 0), input_range=1.0))
    with torch.no_grad():
        assert torch.allclose(again(x), net(x), atol=0.05)


def test_errors_come_before_anything_runs() -> None:
    net = exact(NETS["linear"][0]())
    with pytest.raises(ConfigError, match="dealer"):
        hummingbird.simulate(net, BITS, protocol="gmw", cut=True)
    with pytest.raises(ConfigError, match="names"):
        twin_of(net, BitConfig(BitWindow(19, 9), {"relu": BitWindow(18, 9)}))
    with pytest.raises(InputError, match="beyond"):
        twin_of(net)(torch.full((1, 5), 1.5))
    twin = twin_of(net)
    with pytest.raises(ConfigError):
        twin.set_bits(BitConfig(BitWindow(19, 9), {"relu": BitWindow(18, 9)}))
    assert twin(images((5,))).shape == (3, 3)
