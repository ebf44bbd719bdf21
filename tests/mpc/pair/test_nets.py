"""Whole nets between two processes that make their own material: torch's results, from the kinds that there are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hummingbird
from hummingbird.bits import BitWindow
from hummingbird.mpc.correlations.request import Material, Request
from hummingbird.mpc.dealer.supplies import OnDemand
from hummingbird.mpc.pair.material import PairMaterial
from hummingbird.mpc.session.session import Session


class Attention(nn.Module):
    """Attention whose weights are ReLUs in place of a softmax, and an MLP; (B, T, 16) to the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).transpose(1, 3).unbind(2)  # each (B, heads, T, 8)
        mean = torch.relu(q @ k.transpose(-2, -1)) @ v * 0.03
        x = x + self.out(mean.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


NETS = {
    "pooling": lambda: nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)),
        *(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)),
    ),
    "smooth": lambda: nn.Sequential(nn.Flatten(), nn.Linear(768, 32), nn.GELU(), nn.Linear(32, 10)),
    "splines": lambda: nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.Hardswish(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(512, 10)), nn.ReLU6()
    ),
    "attention": Attention,
}


class PairDealer:
    """A session's dealer that makes each request's material when it is wanted."""

    slice_shape = None

    def __init__(self, session: Session) -> None:
        self.made, self.kinds = PairMaterial(session.channel), set[str]()

    def correlation(self, request: Request[Any]) -> Material:
        self.kinds.add(request.kind)
        return self.made.correlation(request)

    def reserve(self, requests: object, conversation: int = 0) -> OnDemand:
        return OnDemand(self.correlation)

    def bind(self, *secret: object) -> None: ...
    def admit(self, *facts: object) -> None: ...
    def stay(self) -> None: ...
    def close(self) -> None: ...


def run(session: Session, net: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, list[str]]:
    session.dealer = dealer = PairDealer(session)
    private = hummingbird.convert_model(net, BitWindow(20, 0), example=x)
    out = private(hummingbird.cryptensor(x if session.rank == 0 else None, src=0)).get_plain_text()
    return out, sorted(dealer.kinds)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_a_net_without_a_dealer(name: str) -> None:
    net, x = NETS[name]().eval(), torch.rand(4, 32, 16) - 0.5 if name == "attention" else torch.rand(4, 3, 16, 16) - 0.5
    (out, kinds), (same, _) = hummingbird.launch(run, net, x)
    with torch.no_grad():
        plain = net(x)
    # a unit is 2^-16; a layer's rounding errors, some units, are multiplied by weights below 1
    assert torch.equal(out, same) and float((out - plain).abs().max()) < 64 * 2**-16
    assert "and" in kinds and ("masked" in kinds or "masked_thresholds" in kinds)
    assert name != "attention" or "additive" in kinds
