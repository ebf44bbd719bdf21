"""A small net as a service: what the tests of the service and of its programs share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from hummingbird.he.service.server import Service
from hummingbird.rpc import service

SHAPE = (1, 6, 6)


def small_net() -> nn.Module:
    """Two turns: 36 and 32 values go up, 32 and 5 come back."""
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5)
    return nn.Sequential(*layers).eval()


def square_net() -> nn.Module:
    """One turn: 36 values and a zero go up, 5 come back; the client adds an image's mean to its softmax."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.linear = nn.Conv2d(1, 4, 3, stride=2), nn.Linear(16, 5)

        def forward(self, x: Tensor) -> Tensor:
            logits = self.linear(self.conv(x).square().flatten(1))
            return torch.softmax(logits, 1) + x.mean((1, 2, 3))[:, None]

    torch.manual_seed(0)
    return Net().eval()


FILE_NETS = {"client-aided": small_net, "polynomial": square_net}


@contextmanager
def served(made: Service, tls: service.Tls | None = None) -> Iterator[str]:
    """The address of a service in this process."""
    with tempfile.TemporaryDirectory() as folder:  # pytest's own may be too long for a socket's path
        running = service.serve(made.handlers(), f"unix:{folder}/s", tls)
        try:
            yield f"unix:{folder}/s"
        finally:
            running.stop(0).wait()


def images(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(seed))


def close(outputs: Tensor, net: nn.Module, x: Tensor) -> bool:
    """Whether outputs are the net's: errors of 2^-12 of a value's size are what the planner allows, in both layers."""
    with torch.inference_mode():
        expected = net(x)
    return bool((outputs - expected).abs().max() < 2**-9 * expected.abs().max())
