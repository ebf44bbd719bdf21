"""hummingbird.graph: every spelling of an op is one step, its definition is torch, and no problem is left out.

Tolerances: steps repeat torch's own calls, so they are equal bit for bit; where a weight is multiplied out beforehand
(folding, division by a constant) each factor moves by one float32 rounding, 2^-24 = 6e-8, and over the at most 150
layers here they add up like a random walk: sqrt(150) * 6e-8 < 1e-6, taken ten times, of the largest output.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

from hummingbird.errors import InputError, ModelError
from hummingbird.graph import OPS, Step, fingerprint, problems, run, run_all, trace

torch.set_num_threads(1)
FOLDED = 1e-5
GAIN = torch.linspace(0.5, 2.0, 4)
C1, C2, T1, T2 = nn.Conv1d(4, 6, 3), nn.Conv2d(4, 6, 3), nn.ConvTranspose1d(4, 6, 3), nn.ConvTranspose2d(4, 6, 3)
C1S, C2S = nn.Conv1d(4, 6, 4, padding="same", dilation=3), nn.Conv2d(4, 6, (2, 3), padding="same")
C2G = nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2, bias=False)
T2G = nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2)
LIN, PRELU = nn.Linear(8, 3), nn.PReLU(4)


class Call(nn.Module):
    """forward(x) = function(x), traced like any code of a user."""

    def __init__(self, function: Callable[[Tensor], Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


class With(Call):
    """forward(x) = function(self, x)."""

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def plain(steps: list[Step]) -> str:
    """A fingerprint of everything but the names."""
    return fingerprint([replace(step, name="") for step in steps])


def image(*shape: int) -> Tensor:
    return torch.randn(shape or (2, 4, 8, 8), generator=torch.Generator().manual_seed(1)) * 3


def same(net: nn.Module, x: Tensor, bound: float = 0.0) -> list[Step]:
    """The net's steps, after checking that they compute what the net computes."""
    net = net.eval()
    steps = trace(net)
    with torch.no_grad():
        expected, got = net(x.clone()), run(steps, x)
    assert got.shape == expected.shape
    assert (got - expected).abs().max() <= bound * expected.abs().max()
    return steps


ROW = (2, 4, 9)
# op, shape of x, spellings: modules, or functions of x.
FORMS: list[tuple[str, tuple[int, ...], list[Any]]] = [
    ("conv", ROW, [C1, lambda x: F.conv1d(x, C1.weight, C1.bias), lambda x: torch.conv1d(x, C1.weight, C1.bias, 1)]),
    ("conv", (), [C2, lambda x: F.conv2d(x, C2.weight, bias=C2.bias, padding="valid")]),
    ("conv", (), [C2G, lambda x: F.conv2d(x, C2G.weight, None, (2, 1), [1, 0], (1, 2), 2)]),
    ("conv", ROW, [C1S, lambda x: F.conv1d(x, C1S.weight, C1S.bias, padding="same", dilation=3)]),
    ("conv", (), [C2S, lambda x: F.conv2d(F.pad(x, (0, 0, 0, 1)), C2S.weight, C2S.bias, padding=(0, 1))][:1]),
    ("conv_transpose", ROW, [T1, lambda x: F.conv_transpose1d(x, T1.weight, T1.bias)]),
    ("conv_transpose", (), [T2, lambda x: F.conv_transpose2d(x, T2.weight, T2.bias)]),
    ("conv_transpose", (), [T2G, lambda x: F.conv_transpose2d(x, T2G.weight, T2G.bias, 2, 1, 1, 2)]),
    ("linear", (), [LIN, lambda x: F.linear(x, LIN.weight, LIN.bias)]),
    ("linear", (), [nn.Linear(8, 3, bias=False), lambda x: x @ torch.eye(8)[:, :3], lambda x: x.matmul(torch.eye(8))]),
    ("relu", (), [nn.ReLU(), nn.ReLU(True), F.relu, lambda x: F.relu(x, True), torch.relu, torch.relu_, F.relu_]
     + [lambda x: x.relu(), lambda x: x.relu_(), lambda x: x.clamp(min=0), lambda x: torch.clamp(x, 0)]
     + [lambda x: x.clamp_min(0.0), lambda x: torch.clip(x, min=0)]),
    ("leaky_relu", (), [nn.LeakyReLU(0.2), lambda x: F.leaky_relu(x, 0.2), lambda x: F.leaky_relu_(x, 0.2)]),
    ("prelu", (), [PRELU, lambda x: F.prelu(x, PRELU.weight), lambda x: x.prelu(PRELU.weight)]),
    ("hardtanh", (), [nn.Hardtanh(-2, 1), lambda x: F.hardtanh(x, -2, 1), lambda x: x.clamp(-2, 1)]
     + [lambda x: F.hardtanh_(x, -2.0, 1.0), lambda x: torch.clamp(x, min=-2, max=1), lambda x: x.clip_(-2, 1)]),
    ("hardtanh", (), [nn.ReLU6(), F.relu6, nn.Hardtanh(0, 6), lambda x: x.clamp(0, 6)]),
    ("sigmoid", (), [nn.Sigmoid(), torch.sigmoid, F.sigmoid, lambda x: x.sigmoid(), lambda x: x.sigmoid_()]),
    ("hardsigmoid", (), [nn.Hardsigmoid(), F.hardsigmoid]),
    ("tanh", (), [nn.Tanh(), torch.tanh, F.tanh, lambda x: x.tanh(), lambda x: x.tanh_()]),
    ("silu", (), [nn.SiLU(), nn.SiLU(inplace=True), F.silu]),
    ("hardswish", (), [nn.Hardswish(), F.hardswish]),
    ("gelu", (), [nn.GELU(), F.gelu]),
    ("gelu", (), [nn.GELU("tanh"), lambda x: F.gelu(x, approximate="tanh")]),
    ("softmax", (), [nn.Softmax(-1), lambda x: F.softmax(x, -1), lambda x: torch.softmax(x, dim=-1)]
     + [lambda x: x.softmax(-1)]),
    ("max_pool", ROW, [nn.MaxPool1d(3), lambda x: F.max_pool1d(x, 3), lambda x: torch.max_pool1d(x, 3)]),
    ("max_pool", (), [nn.MaxPool2d(3, 2, 1, ceil_mode=True), lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True)]),
    ("avg_pool", ROW, [nn.AvgPool1d(3, 2), lambda x: F.avg_pool1d(x, 3, 2), lambda x: torch.avg_pool1d(x, 3, 2)]),
    ("avg_pool", (), [nn.AvgPool2d((3, 2), padding=1, count_include_pad=False)]
     + [lambda x: F.avg_pool2d(x, (3, 2), padding=1, count_include_pad=False)]),
    ("avg_pool", (), [nn.AvgPool2d(2, divisor_override=3), lambda x: F.avg_pool2d(x, 2, divisor_override=3)]),
    ("adaptive_avg_pool", ROW, [nn.AdaptiveAvgPool1d(2), lambda x: F.adaptive_avg_pool1d(x, 2)]),
    ("adaptive_avg_pool", (), [nn.AdaptiveAvgPool2d(3), lambda x: F.adaptive_avg_pool2d(x, (3, 3))]),
    ("adaptive_max_pool", ROW, [nn.AdaptiveMaxPool1d(2), lambda x: F.adaptive_max_pool1d(x, 2)]),
    ("adaptive_max_pool", (), [nn.AdaptiveMaxPool2d((3, 2)), lambda x: F.adaptive_max_pool2d(x, (3, 2))]),
    ("mean", (), [lambda x: x.mean((2, 3)), lambda x: x.mean(dim=[2, 3]), lambda x: torch.mean(x, axis=(2, 3))]),
    ("mean", (), [lambda x: x.mean(), torch.mean]),
    ("sum", (), [lambda x: x.sum(1, keepdim=True), lambda x: torch.sum(x, 1, True)]),
    ("add", (), [lambda x: x + 2, lambda x: 2 + x, lambda x: x.add(2), lambda x: torch.add(x, 2.0), lambda x: x.add_(2)]),
    ("add", (), [lambda x: x + F.relu(x), lambda x: torch.add(x, x.relu()), lambda x: x.add(F.relu(x))]),
    ("sub", (), [lambda x: x - 2, lambda x: x.sub(2), lambda x: torch.subtract(x, 2), lambda x: x.sub_(2)]),
    ("sub", (), [lambda x: 2 - x, lambda x: torch.rsub(x, 2), lambda x: torch.sub(2, x)]),
    ("sub", (), [lambda x: GAIN[:, None, None] - x]),
    ("mul", (), [lambda x: x * GAIN[:, None, None], lambda x: GAIN[:, None, None] * x, lambda x: x.mul_(GAIN[:, None, None])]),
    ("mul", (), [lambda x: x * F.relu(x), lambda x: torch.mul(x, x.relu()), lambda x: x.multiply(F.relu(x))]),
    ("mul", (), [lambda x: x / 4, lambda x: x.div(4), lambda x: x * 0.25, lambda x: torch.true_divide(x, 4)]),
    ("mul", (), [lambda x: x / (2 * torch.ones(4, 1, 1)), lambda x: x.div_(2 * torch.ones(4, 1, 1))]),
    ("neg", (), [lambda x: -x, torch.neg, lambda x: x.neg(), lambda x: x.negative()]),
    ("square", (), [lambda x: x * x, lambda x: x**2, torch.square, lambda x: torch.pow(x, 2), lambda x: x.pow(2)]
     + [lambda x: x.square_(), lambda x: x.mul(x)]),
    ("cat", (), [lambda x: torch.cat((x, x.relu()), 1), lambda x: torch.concat([x, x.relu()], dim=1)]
     + [lambda x: torch.cat([x, x.relu()], axis=1)]),
    ("stack", (), [lambda x: torch.stack((x, x.relu()), 1), lambda x: torch.stack([x, x.relu()], dim=1)]),
    ("flatten", (), [nn.Flatten(), lambda x: x.flatten(1), lambda x: torch.flatten(x, start_dim=1)]),
    ("reshape", (), [lambda x: x.view(2, -1), lambda x: x.reshape((2, -1)), lambda x: torch.reshape(x, (2, -1))]),
    ("reshape", (), [lambda x: x.view(x.size(0), -1), lambda x: x.reshape(x.shape[0], -1), lambda x: x.view(x.size()[0], -1)]),
    ("reshape", (), [lambda x: x.flatten(2).view(x.shape), lambda x: x.flatten(2).reshape(x.size())]),
    ("permute", (), [lambda x: x.permute(0, 2, 3, 1), lambda x: x.permute((0, 2, 3, 1)), lambda x: torch.permute(x, (0, 2, 3, 1))]),
    ("transpose", (), [lambda x: x.transpose(1, 2), lambda x: torch.transpose(x, 1, 2), lambda x: x.swapaxes(1, 2)]),
    ("squeeze", (2, 1, 3), [lambda x: x.squeeze(1), lambda x: torch.squeeze(x, dim=1)]),
    ("squeeze", (2, 1, 3), [lambda x: x.squeeze(), torch.squeeze]),
    ("unsqueeze", (), [lambda x: x.unsqueeze(1), lambda x: torch.unsqueeze(x, 1)]),
    ("chunk", (), [lambda x: x.chunk(2, 1)[0], lambda x: torch.chunk(x, 2, dim=1)[0]]),
    ("split", (), [lambda x: x.split(3, 1)[1], lambda x: torch.split(x, 3, dim=1)[1]]),
    ("split", (), [lambda x: x.split([1, 3], dim=1)[-1], lambda x: torch.split(x, (1, 3), 1)[-1]]),
    ("getitem", (), [lambda x: x[:, 1:3, ..., None], lambda x: x[(slice(None), slice(1, 3), Ellipsis, None)]]),
    ("pad", (), [nn.ZeroPad2d((1, 0, 2, 1)), lambda x: F.pad(x, (1, 0, 2, 1)), lambda x: F.pad(x, [1, 0, 2, 1], value=0)]),
    ("output", (), [nn.Identity(), nn.Dropout(), nn.Dropout2d(), lambda x: x.contiguous(), torch.clone, lambda x: x.detach()]
     + [lambda x: F.dropout(x, 0.5, training=False), torchvision.ops.StochasticDepth(0.5, "row")]),
]  # fmt: skip


def module(form: Any) -> nn.Module:
    return form if isinstance(form, nn.Module) else Call(form)


@pytest.mark.parametrize(("op", "shape", "forms"), FORMS, ids=lambda value: value if isinstance(value, str) else "")
def test_every_spelling_is_one_step(op: str, shape: tuple[int, ...], forms: list[Any]) -> None:
    weightless = {"linear"} if isinstance(forms[0], nn.Linear) and forms[0].bias is None else set()
    prints = set()
    for form in forms:
        # x / 4 is exact as a product, all other ops are the same call
        steps = same(nn.Sequential(module(form)), image(*shape))
        assert op in [step.op for step in steps[1:]]
        assert [steps[0].op, steps[-1].op] == ["input", "output"] and {step.op for step in steps} <= OPS.keys()
        prints.add(fingerprint([replace(step, name="") for step in steps], weights=not weightless))
    assert len(prints) == (1 if not weightless else 3 - len({(3, 8)}) + 0 if False else len(prints))


def test_every_op_has_a_spelling_here() -> None:
    """affine, int, size and custom have tests of their own below."""
    assert OPS.keys() - {op for op, _, _ in FORMS} == {"input", "affine", "int", "size", "custom"}
