"""Constants outside of layers with private weights, at two parties: `python -m tests.jobs.private_constants OWNER ...`.

Party 0 prints one line of JSON: the error of each owner's net, and the bound for it.
"""

from __future__ import annotations

import json
import sys

import torch
from torch import Tensor, nn

import hummingbird
from hummingbird.commands.party import run_party
from hummingbird.mpc.session import launch
from hummingbird.mpc.session import session as sessions
from tests.jobs.programs import _remains, answered
from tests.support.patience import HANG


class Constants(nn.Module):
    """As transformers and ConvNeXt have them: a token, places, scales for each channel and for all, (x - m) / s."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.places = nn.Parameter(torch.randn(1, 1, 7)), nn.Parameter(torch.randn(1, 6, 7))
        self.scale, self.gain = nn.Parameter(torch.rand(7) + 0.5), nn.Parameter(torch.tensor(1.25))
        self.register_buffer("mean", torch.randn(7))
        self.register_buffer("std", torch.rand(1, 7) + 0.5)
        self.fc = nn.Linear(7, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = (x - self.mean) / self.std
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.places - torch.relu(self.fc(x) * self.scale + self.mean) * self.gain * 0.5


SHAPES = {(1, 1, 7), (1, 6, 7), (7,), (1, 7), (7, 7)}
FACTORS = 7 + 7 + 1 + 49  # of them: std, scale, gain, the layer


def of(owner: int) -> dict[str, float]:
    session = sessions.current()

    def make(rank: int) -> nn.Module:
        torch.manual_seed(10 + rank)
        return Constants().eval()

    net = make(session.rank)
    assert _remains(SHAPES, []), "the search itself must find the caller's net"
    sent: list[list[Tensor]] = []
    exchange = session.channel.exchange

    def watched(*tensors: Tensor) -> dict[int, list[Tensor]]:
        sent.append([tensor.clone() for tensor in tensors])
        return exchange(*tensors)

    session.channel.exchange = watched  # type: ignore[method-assign]
    example = torch.zeros(2, 5, 7)
    with hummingbird.meter() as m:
        private = hummingbird.convert_model(net, weights=owner, example=example)
    session.channel.exchange = exchange  # type: ignore[method-assign]
    assert m.rows["weights"].bits_sent == m.rows["weights"].bits_predicted == private.setup_cost(2).bits
    del net, example
    assert not (found := _remains(SHAPES, [])), f"party {session.rank} still holds {found}"
    # All that is sent: summands of masked factors. Uniform words, none below 2^40 in 64 with chance 1 - 2^-17.
    assert sum(tensor.numel() for tensor in sent[0]) == FACTORS and len(sent) == 1
    assert all(bool((tensor.abs() >= 2**40).all()) for tensor in sent[0])
    for name, share in private.named_buffers():
        assert bool((share.abs() >= 2**40).all()), f"{name} at party {session.rank} is no share: {share.view(-1)[:3]}"
    x = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(5))
    out = answered(private, x)
    if session.rank:
        return {}
    with torch.no_grad():
        expected = make(owner)(x)
    # Factors below 4 with 20 bits, values below 16 rounded to 2^-16 in five places, 7 products of weights 1.
    return {"error": float((out - expected).abs().max()), "bound": (5 * 4 * 8 + 7 * 16) * 2.0**-16}


def main() -> None:
    torch.set_num_threads(1)
    session = launch.init(timeout=HANG)
    found = [of(int(owner)) for owner in sys.argv[1:]]
    if session.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    run_party(main)
