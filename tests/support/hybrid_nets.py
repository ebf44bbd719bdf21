"""Nets whose every value is a multiple of 2^-16, so that a plan with windows [20:0) computes them exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hummingbird.bits import BitConfig, BitWindow
from hummingbird.hybrid.convert import make_plan
from hummingbird.hybrid.plan import Model, signed
from hummingbird.prg import Stream, derive


def exact(net: nn.Module) -> nn.Module:
    """The net in eval mode, its weights -1/4, 0 or 1/4, its biases quarters; batch norms of scale 1/2 or 1."""
    for name, tensor in [*net.named_parameters(), *net.named_buffers()]:
        if not tensor.is_floating_point():
            continue
        words = Stream(derive(bytes(16), name)).words(*tensor.shape)
        values = signed(words, 2).clamp(min=-1) / 4
        if name.endswith("running_var"):
            values = torch.ones_like(values)
        elif name.endswith("bn.weight"):
            values = 0.5 + 0.5 * (values > 0)
        tensor.data = values.float()
    for module in net.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            module.eps = 0.0
    return net.eval()


def images(shape: tuple[int, ...], count: int = 3) -> Tensor:
    """Multiples of 1/8 from -1 to 1 - 1/8."""
    return (signed(Stream(bytes(16)).words(count, *shape), 4) / 8).float()


class Residual(nn.Module):
    """Two branches of layers, one of a layer and a value, and a sum that is read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.conv3, self.down = nn.Conv2d(4, 4, 3, stride=2, padding=1), nn.Conv2d(4, 4, 1, stride=2)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x).relu()
        x = (x + self.conv2(x)).relu()
        y = self.conv3(x) + self.down(x)
        out: Tensor = self.fc((y + y.relu()).relu().mean((2, 3)))
        return out


class Normed(nn.Module):
    """A batch norm behind a layer, and one that follows a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.first, self.bn = nn.Conv2d(2, 2, 3, bias=False), nn.BatchNorm2d(2), nn.BatchNorm2d(2)
        self.head = nn.Conv2d(2, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(self.conv(x)).relu()
        out: Tensor = self.head(self.bn(x + x).relu()).flatten(1)
        return out


class Several(nn.Module):
    """Results of layers of several units, and what a gate and the input have; "c" has a window of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.a, self.b = nn.Conv2d(1, 2, 3), nn.Linear(8, 3), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> dict[str, Any]:
        y = self.conv(x).relu()
        flat = y.flatten(1)
        return {"a": self.a(flat), "b": [self.b(flat).view(-1, 2, 2), 3, None], "y": y, "x": x}


# Windows of layers that compare larger numbers than the rest: x - 6.
WINDOWS = {"groups and strides": {"3": BitWindow(21, 0)}}


def several() -> Model:
    """The plan of `Several`."""
    return make_plan(exact(Several()), (1, 4, 4), BitConfig(BitWindow(20, 0), input_range=1.0))


def same(got: Any, x: Tensor) -> bool:
    """Whether results are those of `Several`."""
    wanted: Any = exact(Several())(x)
    pairs = (got["a"], wanted["a"]), (got["b"][0], wanted["b"][0]), (got["y"], wanted["y"]), (got["x"], x)
    return [*got] == [*wanted] and got["b"][1:] == [3, None] and all(torch.equal(a, b) for a, b in pairs)


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(5, 3)), (5,)),
    "linear behind linear": (lambda: nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)), (5,)),
    "pool behind a layer": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.AvgPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)),
        (1, 4, 4),
    ),
    "groups and strides": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 8, (3, 2), stride=(2, 1), padding=(1, 0), groups=2, bias=False),
            nn.ReLU(),
            nn.Conv2d(8, 4, 3, dilation=(1, 2), padding="same"),
            nn.ReLU6(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, 2),
        ),
        (4, 8, 5),
    ),
    "one dimension": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 3, 3, padding=1), nn.ReLU(), nn.AvgPool1d(2), nn.Conv1d(3, 2, 2), nn.Flatten()
        ),
        (2, 8),
    ),
    "volumes": (
        lambda: nn.Sequential(
            nn.Conv3d(2, 4, (2, 3, 2), stride=(1, 2, 1), padding=(1, 0, 1), groups=2),
            nn.ReLU(),
            nn.MaxPool3d((1, 2, 2), 1),
            nn.Conv3d(4, 2, 2, dilation=(2, 1, 1)),
            nn.AvgPool3d((2, 1, 2), 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(12, 3),
        ),
        (2, 4, 7, 5),
    ),
    "max pooling": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3)),
        (1, 6, 6),
    ),
    "max pooling, no ReLU": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.MaxPool2d(3, 2, 1, ceil_mode=True), nn.Conv2d(2, 2, 2), nn.Flatten()
        ),
        (1, 7, 6),
    ),
    "max pooling of images": (lambda: nn.Sequential(nn.MaxPool2d((1, 3)), nn.Conv2d(1, 2, 2)), (1, 3, 6)),
    "slopes": (
        lambda: nn.Sequential(
            nn.Linear(6, 8), nn.LeakyReLU(0.25), nn.Linear(8, 8), nn.Hardtanh(-0.5, 2.0), nn.Linear(8, 2)
        ),
        (6,),
    ),
    "padding": (
        lambda: nn.Sequential(nn.ZeroPad2d((1, 0, 0, 2)), nn.Conv2d(2, 2, 2), nn.ReLU(), nn.Flatten()),
        (2, 3, 3),
    ),
    "sums": (Residual, (2, 8, 8)),
    "norms": (Normed, (2, 4, 4)),
    "last a ReLU": (lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (4,)),
}
