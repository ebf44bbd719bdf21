"""A real run with given seeds, as torchrun starts it: `python -m tests.jobs.real_run`. Parties print what they sent."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import hummingbird
from hummingbird import ring
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.commands.party import run_party
from hummingbird.crypten.adapter import from_share, share_of
from hummingbird.mpc.dealer.client import LocalDealer
from hummingbird.mpc.session import launch
from hummingbird.prg import SEED_BYTES, derive
from hummingbird.simulation.simulate import dealer_seeds, input_shares
from tests.support.operations import norm
from tests.support.patience import HANG

SEED, CALLS = 11, 2
BITS = BitConfig(BitWindow(22, 0), {"2": BitWindow(18, 11), "6": BitWindow(19, 9)})


def make() -> tuple[nn.Module, Tensor]:
    """A net with several kinds of comparisons, and a batch."""
    torch.manual_seed(3)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 10),
        nn.LeakyReLU(0.1),
        nn.Linear(10, 5),
        nn.Hardswish(),
    )
    return norm(net), torch.randn(3, 3, 8, 8)


def watched(exchange: Callable[..., Any], state: Any) -> Callable[..., Any]:
    """`exchange` that hashes what this party sends."""

    def hashing(*tensors: Tensor) -> Any:
        for tensor in tensors:
            state.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            state.update(tensor.contiguous().numpy().tobytes())
        return exchange(*tensors)

    return hashing


def main() -> None:
    torch.set_num_threads(1)
    session, (net, x) = launch.init(timeout=HANG), make()
    exchange, rank, parties = session.channel.exchange, session.rank, session.parties
    result = {}
    for protocol in ("masked", "gmw"):
        secret, state = derive(bytes(SEED_BYTES), "simulate", SEED), hashlib.blake2b()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            session.dealer = LocalDealer(rank, parties, dealer_seeds(secret, parties))
        session.channel.exchange = exchange  # type: ignore[method-assign]
        private = hummingbird.convert_model(net, BITS, protocol=protocol, aim="latency")
        session.channel.exchange = watched(exchange, state)  # type: ignore[method-assign]
        shares = []
        for call in range(CALLS):
            share = input_shares(ring.encode(x), secret, call, parties)[rank]
            shares.append(share_of(private(from_share(share))).tolist())
        result[protocol] = {"sent": state.hexdigest(), "shares": shares}
    print(json.dumps(result))


if __name__ == "__main__":
    run_party(main)
