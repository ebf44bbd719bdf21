"""Products with weights that one of two parties keeps: exact at every width, at their price, one message one way."""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hummingbird
from hummingbird import ring
from hummingbird.bits import BitWindow
from hummingbird.channel import meter
from hummingbird.channel.branches import Branches
from hummingbird.convert import build
from hummingbird.cost import Cost, packed
from hummingbird.errors import ConfigError, DealerError, InputError
from hummingbird.mpc.dealer.client import LocalDealer
from hummingbird.mpc.layers.linear import WeightOwner, weight_of
from hummingbird.mpc.protocols.owned import OwnedProduct, OwnedWeight, hold, product_price
from hummingbird.mpc.protocols.registry import from_json
from hummingbird.mpc.session.session import Session
from tests.mpc.pair.test_owned import CASES
from tests.support.dealers import OwningDealer
from tests.support.pairs import low
from tests.support.parties import channels, init_alone, share, together


def sessions() -> list[Session]:
    secret = os.urandom(16)
    return [Session(rank, 2, c, OwningDealer(rank, secret)) for rank, c in enumerate(channels(2))]


def weights(owner: int, code: Tensor) -> list[OwnedWeight]:
    """Both parties' modules: the other party has zeros."""
    return [OwnedWeight(code.clone() if rank == owner else torch.zeros_like(code), owner, 28) for rank in range(2)]


@pytest.mark.parametrize("owner", [0, 1])
@pytest.mark.parametrize("bits", [64, 40, 32, 9])
def test_every_product_is_right_at_its_price(bits: int, owner: int) -> None:
    """Weights of the largest size, and inputs mod 2^64; the other party receives nothing but a frame's header."""
    both = sessions()
    for op, size0, size1, options in CASES:
        x, code = torch.randint(-(2**62), 2**62, size0), torch.randint(-(2**27), 2**27, size1)
        code.view(-1)[0] = -(2**27)
        modules = weights(owner, code)

        for each, module in zip(both, modules, strict=True):
            hold(each, [module])
        with meter.meter() as counted:
            found = together(
                [
                    lambda s=s, m=m, part=part, op=op, how=options: m.product(s, op, part, how, bits=bits)
                    for s, m, part in zip(both, modules, share(x, 2), strict=True)
                ]
            )
        assert torch.equal(low(sum(found), bits), low(ring.bilinear(op, x, code, 64, **options), bits))
        prices = [product_price(x.numel(), 2, bits, rank == owner) for rank in range(2)]
        assert Cost(counted.total.rounds, counted.total.bits_sent) == prices[0] + prices[1]
        assert prices[owner].bits == 8 * 20 and prices[1 - owner].bits == 8 * (20 + packed(bits * x.numel()))


def test_the_message_is_uniform_and_new_for_each_product() -> None:
    both, sent = sessions(), []
    modules = weights(0, torch.ones(1, 1, dtype=torch.int64))
    both[1].channel.swap = lambda peer, tensors, like: sent.append(tensors[0]) or []  # type: ignore[method-assign]
    for rank in range(2):
        hold(both[rank], [modules[rank]])
    for _ in range(2):
        modules[1].product(both[1], "matmul", torch.zeros(4096, 1, dtype=torch.int64), {}, bits=40)
    assert not torch.equal(*sent) and all(abs(float(m.double().mean()) - 127.5) < 5 * 74 / 20480**0.5 for m in sent)


def test_branches_carry_a_swap_beside_an_exchange() -> None:
    """Three branches: words one way, an exchange, octets the other way; in one frame and one round."""
    links = channels(2)

    def run(rank: int) -> list[Any]:
        channel, found = links[rank], list[Any]([None] * 3)
        words, octets = torch.full((3,), 7 + rank), torch.full((5,), 9 + rank, dtype=torch.uint8)
        nothing = lambda like: ([], [like])  # noqa: E731
        jobs = [
            lambda c: c.swap(1 - rank, *(([words], []) if rank == 0 else nothing(words))),
            lambda c: c.exchange(octets)[1 - rank],
            lambda c: c.swap(1 - rank, *(([octets], []) if rank == 1 else nothing(octets))),
        ]
        with Branches(channel) as branches:
            for at, job in enumerate(jobs):
                branches.begin(f"layer {at}", job, lambda value, at=at: found.__setitem__(at, value))
            while branches.at_work:
                branches.exchange()
        return found

    with meter.meter() as counted:
        first, second = together([lambda rank=rank: run(rank) for rank in range(2)])
    assert first[0] == [] and second[0][0].tolist() == [7] * 3
    assert first[1][0].tolist() == [10] * 5 and second[1][0].tolist() == [9] * 5
    assert first[2][0].tolist() == [10] * 5 and second[2] == []
    rows = {name: row.bits_sent for name, row in counted.rows.items()}
    assert (counted.total.rounds, rows) == (2, {"layer 0": 2 * 160 + 192, "layer 1": 80, "layer 2": 40})


def test_a_dealer_does_not_deal_them() -> None:
    """Not by the name of the kind, nor in a session: the net says what to do before anything runs."""
    params = OwnedProduct((2, 3), (3, 4), "matmul", {}, owner=0, weight=8, key=0).to_json()
    with pytest.raises(DealerError, match="unknown kind"):
        from_json(params)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dealer = LocalDealer(0, 2, [os.urandom(16)] * 2)
    with pytest.raises(ConfigError, match="converted with the aim 'pair', in a session with dealer in this process"):
        hold(Session(0, 2, channels(2)[0], dealer), weights(0, torch.ones(1, 1)))


@pytest.mark.parametrize("params", [{"owner": 2}, {"weight": 0}, {"weight": 65}, {"key": -1}, {"bits": 0}], ids=str)
def test_malformed_requests(params: dict[str, int]) -> None:
    with pytest.raises(DealerError, match="malformed request for 'owned'"):
        OwnedProduct((2, 3), (3, 4), "matmul", {}, **{"owner": 0, "weight": 8, "key": 0, **params})


def test_weights_have_a_bound_that_their_owner_checks() -> None:
    code = torch.tensor([1 << 40])
    weight_of(code - 1, WeightOwner(0, pair=True), 20)
    weight_of(code, WeightOwner(0, known=False, pair=True), 20)
    with pytest.raises(InputError, match="a private weight leaves the range"):
        weight_of(code, WeightOwner(0, pair=True), 20)


def test_a_session_of_one_party() -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.PReLU(3), nn.Flatten(), nn.Linear(12, 2)).eval().requires_grad_(False)
    x = torch.rand(2, 2, 4, 4)
    init_alone()
    try:
        out = hummingbird.convert_model(net, BitWindow(20, 0), weights=0, aim="pair")(hummingbird.cryptensor(x, src=0))
        assert float((out.get_plain_text() - net(x)).abs().max()) < 2**-10
    finally:
        hummingbird.uninit()


def test_every_weight_of_a_net_is_kept_by_its_owner() -> None:
    """The first of two calls of a layer has finer weights; with other aims masked weights are opened."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm, self.slope = nn.Linear(4, 4), nn.LayerNorm(4), nn.PReLU(1)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.slope(self.layer(torch.relu(self.layer(x)))))

    net = Twice().eval()
    kept, opened = (build(net, weights=1, parties=2, aim=aim) for aim in ("pair", "latency"))
    assert (len(kept.owned_weights), kept.fixed_weights) == (len(opened.fixed_weights), [])
    assert opened.owned_weights == [] and len(opened.fixed_weights) == 4
