"""Small nets that between them use every operation of hummingbird.he, and how far from torch their outputs may be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hummingbird import he

# The prediction is a root mean square over a full batch's range of values, measured on other images than the test's:
# twice for a batch that reaches further, twice for the few outputs of a small net.
TOO_LARGE = 4.0
TOO_SMALL = 1 / 8.0


class Fn(nn.Module):
    """forward() as a function of self and x."""

    def __init__(self, function: Callable[..., Any], **modules: Any) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def conv(*args: Any, **kwargs: Any) -> nn.Conv2d:
    return nn.Conv2d(*args, **kwargs)


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape))


Case = tuple[Callable[[], nn.Module], tuple[int, ...]]

# What both modes can do.
LINEAR: dict[str, Case] = {
    "conv stride padding dilation groups": (
        lambda: nn.Sequential(
            conv(2, 4, 3, stride=2, padding=1, groups=2), conv(4, 4, 2, dilation=2, groups=4), nn.Flatten()
        ),
        (2, 9, 8),
    ),
    "conv padded same, even kernel": (lambda: nn.Sequential(conv(1, 2, 2, padding="same")), (1, 4, 5)),
    "conv1d": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 3, padding=2, dilation=2, groups=2), nn.AvgPool1d(2), nn.Flatten(), nn.Linear(12, 3)
        ),
        (2, 6),
    ),
    "conv3d": (
        lambda: nn.Sequential(
            nn.Conv3d(2, 2, (2, 1, 2), stride=(1, 1, 2), padding=(1, 0, 0), groups=2),
            nn.ConvTranspose3d(2, 1, 2, 2),
            nn.AvgPool3d(2, 2, 1, count_include_pad=False),
        ),
        (2, 2, 2, 4),
    ),
    "transposed conv and a pool": (
        lambda: nn.Sequential(
            nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1), nn.AvgPool2d(3, 2, 1)
        ),
        (2, 4, 4),
    ),
    "linear over the last dimension": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3, bias=False)), (2, 3, 4)),
    "batch norm, folded and alone": (
        lambda: nn.Sequential(nn.BatchNorm2d(2), conv(2, 2, 2, bias=False), nn.BatchNorm2d(2), nn.Flatten()),
        (2, 3, 3),
    ),
    "adaptive pool, uneven": (
        lambda: nn.Sequential(conv(1, 2, 3), nn.AdaptiveAvgPool2d((2, 3)), nn.Flatten(), nn.Linear(12, 2)),
        (1, 7, 7),
    ),
    "pool that counts no padding": (
        lambda: nn.Sequential(
            conv(1, 2, 2), nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), conv(2, 1, 1)
        ),
        (1, 6, 6),
    ),
    "sum of two layers, mean, difference that broadcasts": (
        lambda: Fn(
            lambda s, x: (s.a(x) + s.b(x)) - s.b(x).mean((2, 3), keepdim=True),
            a=conv(2, 3, 3, padding=1),
            b=conv(2, 3, 1),
        ),
        (2, 4, 4),
    ),
    "global mean": (lambda: Fn(lambda s, x: s.l(s.c(x).mean((2, 3))), c=conv(1, 3, 2), l=nn.Linear(3, 2)), (1, 4, 4)),
    "chunk, slice, cat": (
        lambda: Fn(
            lambda s, x: torch.cat([s.a(x).chunk(2, 1)[0], s.b(x)[:, 1:3, ::2]], 2),
            a=conv(2, 4, 3, padding=1),
            b=conv(2, 3, 3, padding=1),
        ),
        (2, 5, 5),
    ),
    "stack, sum, permute, reshape by size": (
        lambda: Fn(
            lambda s, x: torch.stack([s.a(x), s.b(x)], 1).sum(1).permute(0, 2, 3, 1).reshape(x.size(0), -1),
            a=conv(1, 2, 2),
            b=conv(1, 2, 2),
        ),
        (1, 3, 3),
    ),
    "parameters added and multiplied": (
        lambda: Fn(
            lambda s, x: (s.c(x) * s.m + s.p) * 2.5 - 1.0,
            c=conv(1, 2, 3),
            m=parameter(2, 1, 1),
            p=parameter(1, 2, 3, 3),
        ),
        (1, 5, 5),
    ),
    "padded with a number": (
        lambda: Fn(lambda s, x: s.c(F.pad(s.d(x), (1, 0, 2, 1), value=0.7)), c=conv(2, 2, 3), d=conv(1, 2, 2)),
        (1, 4, 4),
    ),
    "signs and numbers": (lambda: Fn(lambda s, x: 3 - (-s.c(x)) * 0.3, c=conv(1, 2, 2)), (1, 3, 3)),
    "squeeze, dropout": (
        lambda: Fn(
            lambda s, x: s.l(s.d(s.c(x).squeeze(-1).squeeze(-1).unsqueeze(1).transpose(1, 2).flatten(1))),
            c=conv(1, 4, 3),
            d=nn.Dropout(),
            l=nn.Linear(4, 2),
        ),
        (1, 3, 3),
    ),
    "softmax last": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(9, 3), nn.Softmax(1)), (1, 3, 3)),
}
PRODUCTS: dict[str, Case] = {
    "square": (lambda: Fn(lambda s, x: s.l((s.c(x) ** 2).flatten(1)), c=conv(1, 2, 3), l=nn.Linear(18, 3)), (1, 5, 5)),
    "polynomial activation": (
        lambda: Fn(
            lambda s, x: s.l(s.p(s.c(x)).flatten(1)),
            c=conv(1, 2, 3),
            p=Fn(lambda s, y: 0.25 * y * y + 0.5 * y + 0.1),
            l=nn.Linear(18, 3),
        ),
        (1, 5, 5),
    ),
    "product of two layers": (
        lambda: Fn(lambda s, x: s.c(x) * s.d(x) + s.c(x), c=conv(1, 2, 2), d=conv(1, 2, 2)),
        (1, 3, 3),
    ),
    "product with the input": (lambda: Fn(lambda s, x: s.c(x) * x - x * x, c=conv(1, 1, 1)), (1, 3, 3)),
}
# What needs the client.
AIDED: dict[str, Case] = {
    "relu, max pool, softmax": (
        lambda: nn.Sequential(
            conv(1, 2, 2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            conv(2, 3, 1),
            nn.ReLU6(),
            nn.Flatten(),
            nn.Linear(12, 3),
            nn.Softmax(1),
        ),
        (1, 5, 5),
    ),
    "residual with a layer in the branch": (
        lambda: Fn(
            lambda s, x: s.c(F.relu(s.a(F.relu(s.a0(x))) + s.b(x))),
            a0=conv(2, 3, 3, padding=1),
            a=conv(3, 3, 1),
            b=conv(2, 3, 1),
            c=conv(3, 2, 2),
        ),
        (2, 4, 4),
    ),
    "smooth activations": (
        lambda: nn.Sequential(
            nn.Linear(4, 4),
            nn.GELU(),
            nn.Linear(4, 4),
            nn.Hardswish(),
            nn.Linear(4, 4),
            nn.Sigmoid(),
            nn.Linear(4, 4),
            nn.Tanh(),
            nn.Linear(4, 3),
            nn.LeakyReLU(0.1),
        ),  # fmt: skip
        (4,),
    ),
    "prelu": (lambda: nn.Sequential(conv(1, 2, 2), nn.PReLU(2), conv(2, 2, 1), nn.PReLU()), (1, 3, 3)),
    "square by the client": PRODUCTS["square"],
}


def made(case: Case, seed: int = 0) -> tuple[nn.Module, tuple[int, ...]]:
    """The net in eval mode, with norms that have statistics, and its input's shape."""
    torch.manual_seed(seed)
    net, shape = case[0](), case[1]
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return net.eval(), shape


def images(count: int, shape: tuple[int, ...], bound: float = 4.0) -> Tensor:
    return torch.randn(count, *shape).clamp(-bound, bound)


def errors(model: he.HEModel, net: nn.Module, x: Tensor) -> tuple[float, float]:
    """Measured and predicted, root mean squares; the net in float64."""
    with torch.no_grad():
        expected = net.double()(x.double())
        net.float()
    got = model(x)
    assert got.shape == expected.shape and got.dtype == torch.float32
    return float((got.double() - expected).square().mean().sqrt()), model.plan.lines[-1].error
