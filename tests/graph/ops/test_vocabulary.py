"""hummingbird.graph: every spelling of an op is one step, and its definition is torch.

Tolerances: steps repeat torch's own calls, so they are equal bit for bit. Folding moves each weight by one float32
rounding, 2^-24 = 6e-8; over at most 150 layers these add up like a random walk to sqrt(150) * 6e-8 < 1e-6 of the
largest output, taken ten times.
"""

from __future__ import annotations

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
torch.manual_seed(0)
FOLDED = 1e-5
GAIN = torch.linspace(0.5, 2.0, 4)
C1, C2, T1, T2 = nn.Conv1d(4, 6, 3), nn.Conv2d(4, 6, 3), nn.ConvTranspose1d(4, 6, 3), nn.ConvTranspose2d(4, 6, 3)
C1S, C2S = nn.Conv1d(4, 6, 4, padding="same", dilation=3), nn.Conv2d(4, 6, (2, 3), padding="same")
C2G = nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2, bias=False)
T2G = nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2)
C3 = nn.Conv3d(4, 6, (2, 3, 3), stride=(2, 1, 1), padding=(0, 1, 2), dilation=(2, 1, 1), groups=2)
C3S, T3 = nn.Conv3d(4, 6, (2, 3, 4), padding="same"), nn.ConvTranspose3d(4, 6, 3, 2, output_padding=(0, 1, 0), groups=2)
LIN, PRELU = nn.Linear(8, 3), nn.PReLU(4)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(1)


class Call(nn.Module):
    """forward(x) = function(x), or function(x, part): traced like any code of a user."""

    def __init__(self, function: Callable[..., Any], part: nn.Module | None = None) -> None:
        super().__init__()
        self.function, self.part = function, part

    def forward(self, x: Tensor) -> Any:
        return self.function(x) if self.part is None else self.function(x, self.part)


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


ROW, VOLUME = (2, 4, 9), (2, 4, 5, 6, 7)
# op, shape of x, spellings: modules, or functions of x.
FORMS: list[tuple[str, tuple[int, ...], list[Any]]] = [
    ("conv", ROW, [C1, lambda x, m: F.conv1d(x, m.weight, m.bias), lambda x, m: torch.conv1d(x, m.weight, m.bias, 1)]),
    ("conv", (), [C2, lambda x, m: F.conv2d(x, m.weight, bias=m.bias, padding="valid")]),
    ("conv", (), [C2G, lambda x, m: F.conv2d(x, m.weight, None, (2, 1), [1, 0], (1, 2), 2)]),
    ("conv", ROW, [C1S, lambda x, m: F.conv1d(x, m.weight, m.bias, padding="same", dilation=3)]),
    ("conv", (), [C2S, lambda x, m: F.conv2d(x, m.weight, m.bias, padding="same")]),
    ("conv", VOLUME, [C3, lambda x, m: F.conv3d(x, m.weight, m.bias, (2, 1, 1), (0, 1, 2), (2, 1, 1), 2)]),
    ("conv", VOLUME, [C3S, lambda x, m: torch.conv3d(x, m.weight, m.bias, padding="same")]),
    ("conv_transpose", VOLUME, [T3, lambda x, m: F.conv_transpose3d(x, m.weight, m.bias, 2, 0, (0, 1, 0), 2)]),
    ("conv_transpose", ROW, [T1, lambda x, m: F.conv_transpose1d(x, m.weight, m.bias)]),
    ("conv_transpose", (), [T2, lambda x, m: F.conv_transpose2d(x, m.weight, m.bias)]),
    ("conv_transpose", (), [T2G, lambda x, m: F.conv_transpose2d(x, m.weight, m.bias, 2, 1, 1, 2)]),
    ("linear", (), [LIN, lambda x, m: F.linear(x, m.weight, m.bias)]),
    ("linear", (), [nn.Linear(8, 3, bias=False), lambda x, m: F.linear(x, m.weight), lambda x, m: x @ m.weight.t()]
     + [lambda x, m: x.matmul(m.weight.T), lambda x, m: torch.matmul(x, m.weight.transpose(0, 1))]),
    ("relu", (), [nn.ReLU(), nn.ReLU(True), F.relu, lambda x: F.relu(x, True), torch.relu, torch.relu_, F.relu_]
     + [lambda x: x.relu(), lambda x: x.relu_(), lambda x: x.clamp(min=0), lambda x: torch.clamp(x, 0)]
     + [lambda x: x.clamp_min(0.0), lambda x: torch.clip(x, min=0)]),
    ("leaky_relu", (), [nn.LeakyReLU(0.2), lambda x: F.leaky_relu(x, 0.2), lambda x: F.leaky_relu_(x, 0.2)]),
    ("prelu", (), [PRELU, lambda x, m: F.prelu(x, m.weight), lambda x, m: x.prelu(m.weight)]),
    ("hardtanh", (), [nn.Hardtanh(-2, 1), lambda x: F.hardtanh(x, -2, 1), lambda x: x.clamp(-2, 1)]
     + [lambda x: F.hardtanh_(x, -2.0, 1.0), lambda x: torch.clamp(x, min=-2, max=1), lambda x: x.clip_(-2, 1)]),
    ("hardtanh", (), [lambda x: x.argmax(1).clamp(0.5, 2.25), lambda x: torch.clip(x.argmax(1), 0.5, 2.25)]),
    ("hardtanh", (), [nn.ReLU6(), F.relu6, nn.Hardtanh(0, 6), lambda x: x.clamp(0, 6)]),
    ("sigmoid", (), [nn.Sigmoid(), torch.sigmoid, F.sigmoid, lambda x: x.sigmoid(), lambda x: x.sigmoid_()]),
    ("hardsigmoid", (), [nn.Hardsigmoid(), F.hardsigmoid]),
    ("tanh", (), [nn.Tanh(), torch.tanh, F.tanh, lambda x: x.tanh(), lambda x: x.tanh_()]),
    ("silu", (), [nn.SiLU(), nn.SiLU(inplace=True), F.silu]),
    ("hardswish", (), [nn.Hardswish(), F.hardswish]),
    ("gelu", (), [nn.GELU(), F.gelu]),
    ("gelu", (), [nn.GELU("tanh"), lambda x: F.gelu(x, approximate="tanh")]),
    ("argmax", (), [lambda x: x.argmax(-1), lambda x: torch.argmax(x, dim=-1), lambda x: x.argmax(axis=-1)]),
    ("softmax", (), [nn.Softmax(-1), lambda x: F.softmax(x, -1), lambda x: torch.softmax(x, dim=-1)]
     + [lambda x: x.softmax(-1)]),
    ("log_softmax", (), [nn.LogSoftmax(-1), lambda x: F.log_softmax(x, -1), lambda x: torch.log_softmax(x, dim=-1)]
     + [lambda x: x.log_softmax(-1)]),
    ("max_pool", ROW, [nn.MaxPool1d(3), lambda x: F.max_pool1d(x, 3), lambda x: torch.max_pool1d(x, 3)]),
    ("max_pool", (), [nn.MaxPool2d(3, 2, 1, ceil_mode=True), lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True)]),
    ("max_pool", VOLUME, [nn.MaxPool3d(3, 2, 1, ceil_mode=True), lambda x: F.max_pool3d(x, 3, 2, 1, ceil_mode=True)]),
    ("avg_pool", VOLUME, [nn.AvgPool3d((3, 2, 1), padding=(1, 0, 0), count_include_pad=False)]
     + [lambda x: F.avg_pool3d(x, (3, 2, 1), padding=(1, 0, 0), count_include_pad=False)]),
    ("avg_pool", VOLUME, [nn.AvgPool3d(2, divisor_override=3), lambda x: F.avg_pool3d(x, 2, divisor_override=3)]),
    ("avg_pool", ROW, [nn.AvgPool1d(3, 2), lambda x: F.avg_pool1d(x, 3, 2), lambda x: torch.avg_pool1d(x, 3, 2)]),
    ("avg_pool", (), [nn.AvgPool2d((3, 2), padding=1, count_include_pad=False)]
     + [lambda x: F.avg_pool2d(x, (3, 2), padding=1, count_include_pad=False)]),
    ("avg_pool", (), [nn.AvgPool2d(2, divisor_override=3), lambda x: F.avg_pool2d(x, 2, divisor_override=3)]),
    ("adaptive_avg_pool", ROW, [nn.AdaptiveAvgPool1d(2), lambda x: F.adaptive_avg_pool1d(x, 2)]),
    ("adaptive_avg_pool", (), [nn.AdaptiveAvgPool2d(3), lambda x: F.adaptive_avg_pool2d(x, (3, 3))]),
    ("adaptive_max_pool", ROW, [nn.AdaptiveMaxPool1d(2), lambda x: F.adaptive_max_pool1d(x, 2)]),
    ("adaptive_max_pool", (), [nn.AdaptiveMaxPool2d((3, 2)), lambda x: F.adaptive_max_pool2d(x, (3, 2))]),
    ("adaptive_avg_pool", VOLUME, [nn.AdaptiveAvgPool3d((2, 4, 3)), lambda x: F.adaptive_avg_pool3d(x, (2, 4, 3))]),
    ("adaptive_max_pool", VOLUME, [nn.AdaptiveMaxPool3d((2, 4, 3)), lambda x: F.adaptive_max_pool3d(x, (2, 4, 3))]),
    ("mean", (), [lambda x: x.mean((2, 3)), lambda x: x.mean(dim=[2, 3]), lambda x: torch.mean(x, axis=(2, 3))]),
    ("mean", (), [lambda x: x.mean(), torch.mean]),
    ("sum", (), [lambda x: x.sum(1, keepdim=True), lambda x: torch.sum(x, 1, True)]),
    ("add", (), [lambda x: x + 2, lambda x: 2 + x, lambda x: x.add(2), lambda x: torch.add(x, 2.0)]
     + [lambda x: x.add_(2)]),
    ("add", (), [lambda x: x + F.relu(x), lambda x: torch.add(x, x.relu()), lambda x: x.add(F.relu(x))]),
    ("sub", (), [lambda x: x - 2, lambda x: x.sub(2), lambda x: torch.subtract(x, 2), lambda x: x.sub_(2)]),
    ("sub", (), [lambda x: 2 - x, lambda x: torch.rsub(x, 2), lambda x: torch.sub(2, x)]),
    ("sub", (), [lambda x: GAIN[:, None, None] - x]),
    ("mul", (), [lambda x: x * GAIN[:, None, None], lambda x: GAIN[:, None, None] * x]
     + [lambda x: x.mul_(GAIN[:, None, None]), lambda x: torch.mul(GAIN[:, None, None], other=x)]),
    ("mul", (), [lambda x: x * F.relu(x), lambda x: torch.mul(x, x.relu()), lambda x: x.multiply(F.relu(x))]),
    ("mul", (), [lambda x: x / 4, lambda x: x.div(4), lambda x: x * 0.25, lambda x: torch.true_divide(x, 4)]),
    ("mul", (), [lambda x: x / (2 * torch.ones(4, 1, 1)), lambda x: x.div_(2 * torch.ones(4, 1, 1))]),
    ("neg", (), [lambda x: -x, torch.neg, lambda x: x.neg(), lambda x: x.negative()]),
    ("square", (), [lambda x: x * x, lambda x: x**2, torch.square, lambda x: torch.pow(x, 2), lambda x: x.pow(2)]
     + [lambda x: x.square_(), lambda x: x.mul(x)]),
    ("cat", (), [lambda x: torch.cat((x, x.relu()), 1), lambda x: torch.concat([x, x.relu()], dim=1)]
     + [lambda x: torch.cat([x, x.relu()], axis=1)]),
    ("expand", (2, 1, 9), [lambda x: x.expand(-1, 3, 9), lambda x: x.expand((-1, 3, 9))]
     + [lambda x: x.expand(size=[-1, 3, 9])]),
    ("expand", (2, 1, 9), [lambda x: x.expand((2, 3, -1))]),
    ("abs", (), [lambda x: x.abs(), torch.abs, lambda x: abs(x), lambda x: x.clone().abs_()]),
    ("maximum", (), [lambda x: x.clamp(min=0.5), lambda x: torch.clamp_min(x, 0.5)]),
    ("minimum", (), [lambda x: x.clamp(max=0.5), lambda x: x.clamp_max(0.5)]),
    ("minimum", (), [lambda x: x.argmax(1).clamp(max=0.5), lambda x: x.argmax(1).clamp_max(0.5)]),
    ("resize", (), [nn.Upsample(scale_factor=2), lambda x: F.interpolate(x, scale_factor=2)]),
    ("resize", (), [lambda x: F.interpolate(x, (5, 7), mode="bilinear")]),
    ("resize", VOLUME, [nn.Upsample((5, 7, 4), mode="trilinear", align_corners=True)]
     + [lambda x: F.interpolate(x, (5, 7, 4), mode="trilinear", align_corners=True)]),
    ("pixel_shuffle", (), [nn.PixelShuffle(2), lambda x: F.pixel_shuffle(x, 2)]),
    ("pixel_unshuffle", (), [nn.PixelUnshuffle(2), lambda x: F.pixel_unshuffle(x, 2)]),
    ("channel_shuffle", (), [nn.ChannelShuffle(2), lambda x: F.channel_shuffle(x, 2)]),
    ("flip", (), [lambda x: x.flip(1, 3), lambda x: torch.flip(x, [1, 3]), lambda x: x.flip((1, 3))]),
    ("roll", (), [lambda x: x.roll(1, 2), lambda x: torch.roll(x, 1, dims=2)]),
    ("edge_pad", (), [nn.ReflectionPad2d(1), lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect")]),
    ("edge_pad", VOLUME, [nn.ReplicationPad3d(2), lambda x: F.pad(x, (2,) * 6, mode="replicate")]),
    ("stack", (), [lambda x: torch.stack((x, x.relu()), 1), lambda x: torch.stack([x, x.relu()], dim=1)]),
    ("flatten", (), [nn.Flatten(), lambda x: x.flatten(1), lambda x: torch.flatten(x, start_dim=1)]),
    ("reshape", (), [lambda x: x.view(2, -1), lambda x: x.reshape((2, -1)), lambda x: torch.reshape(x, (2, -1))]),
    ("reshape", (), [lambda x: x.view(x.size(0), -1), lambda x: x.reshape(x.shape[0], -1),
             lambda x: x.view(x.size()[0], -1)]),
    ("reshape", (), [lambda x: x.flatten(2).view(x.shape), lambda x: x.flatten(2).reshape(x.size())]),
    ("permute", (), [lambda x: x.permute(0, 2, 3, 1), lambda x: x.permute((0, 2, 3, 1))]
     + [lambda x: torch.permute(x, (0, 2, 3, 1)), lambda x: x.permute(dims=(0, 2, 3, 1))]),
    ("transpose", (), [lambda x: x.transpose(1, 2), lambda x: torch.transpose(x, 1, 2), lambda x: x.swapaxes(1, 2)]),
    ("squeeze", (2, 1, 3), [lambda x: x.squeeze(1), lambda x: torch.squeeze(x, dim=1)]),
    ("squeeze", (2, 1, 3), [lambda x: x.squeeze(), torch.squeeze]),
    ("unsqueeze", (), [lambda x: x.unsqueeze(1), lambda x: torch.unsqueeze(x, 1)]),
    ("chunk", (), [lambda x: x.chunk(2, 1)[0], lambda x: torch.chunk(x, 2, dim=1)[0]]),
    ("split", (), [lambda x: x.split(3, 1)[1], lambda x: torch.split(x, 3, dim=1)[1]]),
    ("split", (), [lambda x: x.split([1, 3], dim=1)[-1], lambda x: torch.split(x, (1, 3), 1)[-1]]),
    ("getitem", (), [lambda x: x[:, 1:3, ..., None], lambda x: x[(slice(None), slice(1, 3), Ellipsis, None)]]),
    ("pad", (), [nn.ZeroPad2d((1, 0, 2, 1)), lambda x: F.pad(x, (1, 0, 2, 1))]
     + [lambda x: F.pad(x, [1, 0, 2, 1], value=0)]),
    ("pad", VOLUME, [nn.ConstantPad3d((1, 0, 2, 1, 0, 3), 0.5), lambda x: F.pad(x, (1, 0, 2, 1, 0, 3), value=0.5)]),
    ("output", (), [nn.Identity(), nn.Dropout(), nn.Dropout2d(), lambda x: x.contiguous(), torch.clone]
     + [lambda x: x.detach()]
     + [lambda x: F.dropout(x, 0.5, training=False), torchvision.ops.StochasticDepth(0.5, "row")]),
]  # fmt: skip


@pytest.mark.parametrize(("op", "shape", "forms"), FORMS, ids=lambda value: value if isinstance(value, str) else "")
def test_every_spelling_is_one_step(op: str, shape: tuple[int, ...], forms: list[Any]) -> None:
    prints = set()
    for form in forms:
        takes_part = getattr(getattr(form, "__code__", None), "co_argcount", 1) == 2
        net = form if isinstance(form, nn.Module) else Call(form, forms[0] if takes_part else None)
        # x / 4 = x * 0.25 exactly, all others are torch's own call. Where torch pads a convolution itself it may sum
        # in another order: by a few units of float32.
        steps = same(nn.Sequential(net), image(*shape), 2.0**-22 if op == "conv" else 0.0)
        assert op in [step.op for step in steps[1:]]
        assert [steps[0].op, steps[-1].op] == ["input", "output"] and {step.op for step in steps} <= OPS.keys()
        prints.add(plain(steps))
    assert len(prints) == 1


def test_every_op_has_a_spelling_here() -> None:
    """affine, int, size and custom have tests below, elementwise in tests/he/compile/test_elementwise.py, pack in
    test_example.py, function in test_functions.py, constant and greater in tests/support/operations.py, norms and
    products in tests/mpc, statistics of rows in test_moments.py, embedding and what is public in test_public.py, shown
    in test_recurrent_forms.py, the steps of a causal net's chunks in tests/graph/test_causal.py.
    """
    apart = "input affine int size custom elementwise pack constant greater causal einsum matmul norm moment normalize "
    apart += "cosine function shown root_scale scale_last unbind unflatten public public_constant public_call "
    apart += "share_public embedding seen rows_at cached_matmul"
    assert OPS.keys() - {op for op, _, _ in FORMS} == set(apart.split())


# Names, memory, reuse -----------------------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.conv, self.bn, self.relu = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(x)
        y = self.relu(self.bn(self.conv(y)))
        y += x
        return F.relu(y)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(Residual(), Residual())
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.layer1(self.relu(x))) + self.layer1[0](x)


def warm(net: nn.Module, *x: Tensor) -> nn.Module:
    """Give the batch norms of `net` random scales and the statistics of `x`, so that folding is not trivial."""
    torch.manual_seed(2)
    norms = [layer.train() for layer in net.eval().modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.momentum = 1.0
        if norm.affine:
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.normal_(norm.bias, 0.0, 0.3)
    with torch.no_grad():
        net(*x)
    return net.eval()


def ops(net: nn.Module) -> Counter[str]:
    return Counter(step.op for step in trace(net))


def test_names_are_qualified_and_unique() -> None:
    names = [step.name for step in trace(Twice())]
    assert len(set(names)) == len(names)
    assert names[0] == "x" and names[-1] == "output"
    for name in ("relu", "relu#1", "layer1.0.relu", "layer1.0.relu#3", "layer1.1.relu#1", "layer1.1.iadd_1", "add"):
        assert name in names, names


def test_function_name_never_takes_the_name_of_a_module() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.relu, self.relu_1, self.x, self.output = nn.ReLU(), nn.ReLU(), nn.ReLU(), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.output(self.x(self.relu_1(F.relu(self.relu(x)) - 1)))

    names = [step.name for step in trace(Net())]
    assert len(set(names)) == len(names) and {"relu", "relu_1", "x", "output"} <= set(names[1:-1])


def test_reused_layers_share_one_copy_of_their_weights() -> None:
    conv = nn.Conv2d(4, 4, 3, padding=1)
    tied = nn.Conv2d(4, 4, 3, padding=1)
    tied.weight = conv.weight
    weights = [step.attrs["weight"] for step in same(nn.Sequential(conv, tied, conv), image()) if step.op == "conv"]
    assert weights[0] is weights[1] is weights[2]
    assert weights[0].data_ptr() != conv.weight.data_ptr() and not weights[0].requires_grad


WRITES: dict[str, Callable[[Tensor], Tensor]] = {
    "iadd changes the other name": lambda x: _write(x, lambda y: y.__iadd__(F.relu(y))),
    "relu_ whose result is dropped": lambda x: (F.relu_(z := x * 1), z + x)[1],
    "in place on the input, read again": lambda x: (x.mul_(3), x + x.relu())[1],
    "clone protects": lambda x: F.relu(y := x.clone(), inplace=True) + y + x,
    "detach does not": lambda x: F.relu_(x.detach()) + x,
    "keyword and position": lambda x: F.leaky_relu(x, 0.1, True) + F.relu(x, inplace=True) + x,
    "chain": lambda x: (y := x - 1).add_(1).mul_(y) + y,
    "view, base unused": lambda x: F.relu_((x * 2).view(2, -1)),
    "size arithmetic is not memory": lambda x: x.view(_twice(x.size(0)) // 2, -1),
}


def _write(x: Tensor, write: Callable[[Tensor], Tensor]) -> Tensor:
    y = x - 0.5
    z = write(y)
    return y * z + x


def _twice(n: int) -> int:
    n *= 2
    return n


@pytest.mark.parametrize("function", WRITES.values(), ids=WRITES.keys())
def test_calls_in_place_change_every_name_of_the_tensor(function: Callable[[Tensor], Tensor]) -> None:
    same(Call(function), image())


@pytest.mark.parametrize("inplace", [False, True])
def test_residual_branch_with_a_relu_in_place(inplace: bool) -> None:
    net = warm(Residual(inplace), image())
    steps = same(net, image(), FOLDED)
    assert [step.op for step in steps].count("affine") == 0
    first_relu = next(index for index, step in enumerate(steps) if step.name == "relu")
    added = next(step for step in steps if step.op == "add")
    assert (added.inputs[1].index == first_relu) is inplace


def test_write_into_a_view_that_is_read_later_is_refused() -> None:
    with pytest.raises(ModelError, match="shares as a view"):
        trace(Call(lambda x: F.relu_(x.view(2, -1)).sum() + x))
    with pytest.raises(ModelError, match="into a parameter or buffer"):
        trace(Call(lambda x, m: x + m.weight.mul_(2), PRELU))


def test_assertions_and_unused_layers_are_left_out() -> None:
    def forward(x: Tensor, unused: nn.Module) -> Tensor:
        torch._assert(x.dim() == 4, "four dimensions")
        unused(x).exp()
        return x.relu()

    assert [step.op for step in trace(Call(forward, nn.LayerNorm(8)))] == ["input", "relu", "output"]


# Batch norm ---------------------------------------------------------------------------------------------------------


FOLDS: dict[str, tuple[nn.Module, tuple[int, ...], int]] = {  # net, shape, steps "affine" left
    "conv1d": (nn.Sequential(nn.Conv1d(4, 6, 3, bias=False), nn.BatchNorm1d(6)), ROW, 0),
    "conv2d, groups": (nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.BatchNorm2d(6)), (2, 4, 8, 8), 0),
    "norm without weights": (nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6, affine=False)), (2, 4, 8, 8), 0),
    "transposed": (nn.Sequential(nn.ConvTranspose1d(4, 6, 3), nn.BatchNorm1d(6)), ROW, 0),
    "transposed, groups": (
        nn.Sequential(nn.ConvTranspose2d(4, 6, 3, groups=2, bias=False), nn.BatchNorm2d(6)),
        (2, 4, 8, 8),
        0,
    ),
    "volumes": (nn.Sequential(nn.Conv3d(4, 6, 3, groups=2), nn.BatchNorm3d(6)), (2, 4, 5, 4, 3), 0),
    "linear": (nn.Sequential(nn.Linear(4, 6), nn.Dropout(), nn.BatchNorm1d(6)), (32, 4), 0),
    "linear after flatten": (nn.Sequential(nn.Flatten(), nn.Linear(36, 6), nn.BatchNorm1d(6)), (32, 4, 9), 0),
    "rows": (nn.Sequential(nn.Linear(9, 6), nn.BatchNorm1d(4)), ROW, 1),
    "square rows": (nn.Sequential(nn.Conv1d(4, 4, 3, padding=1), nn.Linear(9, 4), nn.BatchNorm1d(4)), ROW, 1),
    "two in a row": (nn.Sequential(nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6), nn.BatchNorm1d(6)), ROW, 0),
    "after a ReLU": (nn.Sequential(nn.Conv1d(4, 6, 3), nn.ReLU(), nn.BatchNorm1d(6)), ROW, 1),
    "first": (nn.Sequential(nn.BatchNorm2d(4), nn.ReLU()), (2, 4, 8, 8), 1),
    "read twice": (nn.Sequential(nn.Conv1d(4, 4, 3), Call(lambda x, norm: norm(x) + x, nn.BatchNorm1d(4))), ROW, 1),
    "conv reused": (nn.Sequential(conv := nn.Conv1d(4, 4, 3), nn.BatchNorm1d(4), conv, nn.BatchNorm1d(4)), ROW, 2),
    "norm reused": (nn.Sequential(nn.Conv1d(4, 4, 3), norm := nn.BatchNorm1d(4), nn.Conv1d(4, 4, 3), norm), ROW, 2),
}


@pytest.mark.parametrize(("net", "shape", "affine"), FOLDS.values(), ids=FOLDS.keys())
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, FOLDED), (torch.float64, 1e-14)])
def test_batch_norm_is_folded_or_affine(
    net: nn.Module, shape: tuple[int, ...], affine: int, dtype: torch.dtype, bound: float
) -> None:
    x = image(*shape).to(dtype)
    # float64: a few dozen roundings of 2^-53 each, under 1e-14 of the largest output
    steps = same(warm(net.to(dtype), x), x, bound)
    assert [step.op for step in steps].count("affine") == affine
    assert not {"batch_norm"} & {step.op for step in steps}


def test_functional_batch_norm_is_folded_too() -> None:
    def forward(x: Tensor, m: nn.Module) -> Tensor:
        y = F.conv2d(x, m[0].weight, m[0].bias)
        return F.batch_norm(y, m[1].running_mean, m[1].running_var, m[1].weight, m[1].bias, eps=m[1].eps)

    parts = warm(nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)), image())
    assert plain(trace(Call(forward, parts))) == plain(trace(parts))


def test_linear_folded_for_rows_refuses_larger_inputs() -> None:
    """Over (batch, 4, 4) this norm works on dim 1, not on the features: the folded net must say so, not be wrong."""
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    steps = trace(net)
    assert steps[0].attrs == {"rank": 2}
    with pytest.raises(InputError, match="rank 2"):
        run(steps, image(2, 4, 4))


def test_an_error_in_a_folded_weight_is_seen() -> None:
    net = warm(nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)), image())
    steps = trace(net)
    steps[1].attrs["bias"][0] += 1e-3
    with torch.no_grad():
        expected = net(image())
        assert (run(steps, image()) - expected).abs().max() > FOLDED * expected.abs().max()


# Shapes and custom layers -------------------------------------------------------------------------------------------


def test_arithmetic_on_sizes() -> None:
    def shuffle(x: Tensor) -> Tensor:
        n, c, h, w = x.size()
        x = x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)
        return x.reshape(x.shape[0], 2 * h, -1) + x.flatten(1).reshape(-1, (h + w) - h * 1 + 8, x.shape[2:][0] * 2)

    counts = Counter(step.op for step in same(Call(shuffle), image()))
    assert counts["int"] >= 4 and counts["size"] >= 4


def test_meta_device_gives_every_shape_without_memory() -> None:
    with torch.device("meta"):
        steps = trace(torchvision.models.resnet18(weights=None))
    values = run_all(steps, torch.empty(7, 3, 224, 224, device="meta"))
    shapes = {step.name: tuple(value.shape) for step, value in zip(steps, values, strict=True)}
    assert shapes["layer4.1.relu#1"] == (7, 512, 7, 7) and shapes["output"] == (7, 1000)
    fingerprint(steps, weights=False)
    with pytest.raises(InputError, match="meta"):
        fingerprint(steps)


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x * self.gain if x.sum() > 0 else y


def test_custom_modules_are_kept_whole() -> None:
    net = Call(lambda x, odd: odd(x.relu(), x), Odd())
    assert [problem.name for problem in problems(net)] == ["part"]
    steps = trace(net, custom=[Odd])
    kept = steps[2].attrs["module"]
    assert steps[2].op == "custom" and isinstance(kept, Odd) and kept is not net.part and not kept.training
    assert torch.equal(run(steps, image()), net(image()))
    before = fingerprint(steps)
    nn.init.constant_(net.part.gain, 3.0)
    assert fingerprint(steps) == before != fingerprint(trace(net, custom=[Odd]))


def test_squeeze_excitation_and_the_other_blocks_of_torchvision() -> None:
    ops = torchvision.ops
    net = nn.Sequential(ops.Conv2dNormActivation(4, 8), ops.SqueezeExcitation(8, 2), ops.StochasticDepth(0.9, "row"))
    same(warm(net, image()), image(), FOLDED)
