"""Small nets, one per operation the converter knows, each with an input and the error that fixed point allows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hummingbird.bits import EXACT
from hummingbird.mpc.functions.tabulated import Tabulated
from hummingbird.mpc.protocols.registry import named

UNIT = 2.0**-16
# Of a smooth activation under exact windows: its table's bound for four parties (mpc/functions/tabulated.py), more
# than the 2^-14 of a spline. Beside it, bends of splines times values round by two units each, at most 9 in all.
SMOOTH = 9 * UNIT + max(
    Tabulated(text, named("masked")(EXACT)).look_up(16).error(4)
    for text in ("sigmoid(x)", "tanh(x)", "silu(x)", "gelu(x)", "gelu_tanh(x)")
)


class Case(NamedTuple):
    """A net, its input, and the largest difference to torch that rounding can make."""

    net: nn.Module
    x: Tensor
    bound: float


class Function(nn.Module):
    """A function of the input, as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Reused(nn.Module):
    """One ReLU called twice, one weight used by two layers, and a residual branch."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.a(x))
        return self.relu(self.b(y) - 0.1) + x


class Shuffle(nn.Module):
    """Chunks, reshapes and concatenation as in ShuffleNet."""

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.size()
        a, b = x.chunk(2, dim=1)
        y = torch.cat([b, F.relu(a)], dim=1).view(batch, 2, channels // 2, height, width)
        return torch.transpose(y, 1, 2).contiguous().view(batch, -1, height, width)


def swapped(x: Tensor) -> Tensor:
    """The first channel moved to the end."""
    a, b = x.split([1, 3], 1)
    return torch.cat([b, a], 1)


class SelfAttention(nn.Module):
    """Four heads on 3 rows of 8."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return out


class Gate(nn.Module):
    """Squeeze and excitation: a product of two private values, broadcast."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.fc(self.pool(x)))


def linear_bound(net: nn.Module, x: Tensor) -> float:
    """Rounding the input and the weights by half a unit each, the bias likewise, and one truncation."""
    rounded = 0.0
    layer = next(m for m in net.modules() if hasattr(m, "weight"))
    weight, bias = layer.weight.data.clone(), layer.bias
    with torch.no_grad():
        zero = net(torch.zeros_like(x))
        layer.weight.copy_(torch.full_like(weight, UNIT / 2))
        rounded += float((net(x.abs()) - zero).abs().max())
        layer.weight.copy_(weight.abs())
        rounded += float((net(torch.full_like(x, UNIT / 2)) - zero).abs().max())
        layer.weight.copy_(weight)
    return rounded + 2 * UNIT + (0 if bias is None else UNIT)


def norm(module: nn.Module) -> nn.Module:
    """A batch norm with statistics that are not the initial ones."""
    with torch.no_grad():
        for m in module.modules():
            if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)):
                m.running_mean.uniform_(-0.5, 0.5)
                m.running_var.uniform_(0.5, 2.0)
                m.weight.uniform_(0.5, 1.5)
                m.bias.uniform_(-0.5, 0.5)
    return module.eval()


def _rearranged(image: Tensor) -> dict[str, Case]:
    """Resizing and moving pixels. Weights of sizes that are no powers of two err by 2^-11 of the largest value."""
    exact = {
        "nearest": Function(lambda x: F.interpolate(x, size=(5, 12))),
        "bilinear by 2": nn.Upsample(scale_factor=2, mode="bilinear"),
        "pixel shuffle": nn.Sequential(nn.PixelShuffle(2), nn.PixelUnshuffle(4), nn.ChannelShuffle(2)),
        "flip, roll": Function(lambda x: x.flip(3).roll((1, -2), (1, 2))),
        "reflect": nn.ReflectionPad2d((1, 2, 0, 3)),
        "circular": Function(lambda x: F.pad(F.pad(x, (2, 1, 0, 1), "circular"), (0, 1, 2, 0), "replicate")),
        "expand": Function(lambda x: x[:, :1].expand(-1, 4, -1, -1) + x),
    }
    near = {
        "bilinear, corners": Function(lambda x: F.interpolate(x, size=(13, 5), mode="bilinear", align_corners=True)),
        "bicubic": Function(lambda x: F.interpolate(x, size=(13, 5), mode="bicubic")),
    }
    found = {name: Case(net, image, 5 * UNIT) for name, net in exact.items()}
    return found | {name: Case(net, image, 5 * 2.0**-10) for name, net in near.items()}


def _of_volumes(volume: Tensor) -> dict[str, Case]:
    """Layers of three spatial dimensions; their bounds are those of two. volume: (2, 4, 5, 6, 4)."""
    linear = {
        "conv3d": nn.Conv3d(4, 6, 3, stride=(1, 2, 1), padding=(1, 0, 2)),
        "conv3d groups": nn.Conv3d(4, 8, (3, 2, 1), dilation=(2, 1, 1), groups=2, padding="same"),
        "conv_transpose3d": nn.ConvTranspose3d(4, 6, 2, stride=2, groups=2, output_padding=(1, 0, 1)),
    }
    found = {name: Case(net, volume, linear_bound(net, volume)) for name, net in linear.items()}
    net = nn.Conv3d(4, 6, 2)
    folded = norm(nn.Sequential(net, nn.BatchNorm3d(6)))
    found["batch norm of volumes"] = Case(folded, volume, 2.2 * linear_bound(net, volume))
    exact = {
        "max_pool3d": nn.MaxPool3d(3, stride=2, padding=1, ceil_mode=True),
        "adaptive_max_pool3d": nn.AdaptiveMaxPool3d((2, 4, 3)),
        "trilinear by 2": nn.Upsample(scale_factor=2, mode="trilinear"),
        "nearest of volumes": nn.Upsample((4, 9, 4)),
        "pad of volumes": nn.Sequential(nn.ZeroPad3d((1, 0, 2, 1, 0, 1)), nn.ReplicationPad3d((0, 1, 1, 0, 2, 0))),
    }
    found |= {name: Case(net, volume, 5 * UNIT) for name, net in exact.items()}
    near = {
        "avg_pool3d": nn.AvgPool3d((2, 3, 2), stride=2, padding=(0, 1, 1), count_include_pad=False),
        "adaptive_avg_pool3d": nn.AdaptiveAvgPool3d((3, 4, 3)),  # divides no side
    }
    found |= {name: Case(net, volume, 27 * 5 / 2 * UNIT + 3 * UNIT) for name, net in near.items()}
    # A weight errs by half a unit of 2^-9, 2^-9 and 2^-8, and so does the other of two: 2^-7 of the largest value.
    corners = nn.Upsample((7, 6, 9), mode="trilinear", align_corners=True)
    found["trilinear, corners"] = Case(corners, volume, 5 * 2.0**-7)
    return found


def _selected(image: Tensor) -> dict[str, Case]:
    """Maxima, magnitudes, and choices: values that are compared differ by more than rounding."""
    other = torch.linspace(-2, 2, 8)
    nets: dict[str, Callable[[Tensor], Tensor]] = {
        "abs": lambda x: x.abs(),
        "maximum": lambda x: torch.maximum(x, x.flip(1)[:, :1]),
        "minimum of a constant": lambda x: torch.minimum(other, x),
        "clamp of one side": lambda x: x.clamp(min=-0.25).clamp_max(1.5),
        "where": lambda x: torch.where(x > x.roll(1, 3) + 2.0**-12, x, 0.5),
        "masked_fill": lambda x: x.masked_fill(x <= -0.5, 1.0).masked_fill(other > 1, -3.0),
        "comparison as a number": lambda x: (0.25 >= x).float(),
        "constants that broadcast": lambda x: (x - other) / torch.tensor([0.5, 0.25, 1.0, 2.0]).view(4, 1, 1),
        "constant joined": lambda x: torch.cat([x, other.expand(3, 1, 8, 8)], 1),
    }
    return {name: Case(Function(function), image, 12 * UNIT) for name, function in nets.items()}


def cases() -> dict[str, Case]:
    """Every operation by name; the same at every party (seeded)."""
    torch.manual_seed(1)
    image, row, signal = torch.randn(3, 4, 8, 8), torch.randn(5, 6), torch.randn(2, 4, 12)
    out: dict[str, Case] = {}
    linear = {
        "conv2d": (nn.Conv2d(4, 6, 3, padding=1), image),
        "conv2d stride": (nn.Conv2d(4, 6, 3, stride=2, padding=(2, 0)), image),
        "conv2d dilation, no bias": (nn.Conv2d(4, 6, 3, dilation=2, bias=False), image),
        "conv2d groups": (nn.Conv2d(4, 8, 3, groups=2), image),
        "conv2d depthwise": (nn.Conv2d(4, 8, 3, groups=4, stride=2), image),
        "conv2d same": (nn.Conv2d(4, 6, 3, padding="same"), image),
        "conv1d": (nn.Conv1d(4, 3, 5, stride=2, padding=1, dilation=2), signal),
        "conv_transpose2d": (nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1), image),
        "conv_transpose2d groups": (nn.ConvTranspose2d(4, 6, 3, stride=2, dilation=2, groups=2), image),
        "conv_transpose1d": (nn.ConvTranspose1d(4, 3, 4, stride=3), signal),
        "linear": (nn.Linear(6, 9), row),
        "linear on rows": (nn.Linear(12, 3), signal),
    }
    for name, (net, x) in linear.items():
        out[name] = Case(net, x, linear_bound(net, x))
    # A folded batch norm scales the rounding by at most 1.5 / sqrt(0.5) < 2.2.
    net = nn.Conv2d(4, 6, 3)
    out["batch norm, folded"] = Case(norm(nn.Sequential(net, nn.BatchNorm2d(6))), image, 2.2 * linear_bound(net, image))
    # |scale| < 2.2, |x| < 5: half a unit of each, the shift's, and a truncation.
    out["batch norm, alone"] = Case(norm(nn.BatchNorm2d(4)), image, (2.2 + 5) / 2 * UNIT + 2 * UNIT)
    out["batch norm, rows"] = Case(norm(nn.BatchNorm1d(6)), row, (2.2 + 5) / 2 * UNIT + 2 * UNIT)
    exact = {
        "relu": (nn.ReLU(), image),
        "relu6": (nn.ReLU6(), 4 * image),
        "hardtanh": (nn.Hardtanh(-0.5, 1.25), image),
        "clamp": (Function(lambda x: x.clamp(-1.0, 0.5)), image),
        "max_pool": (nn.MaxPool2d(2), image),
        "max_pool padded": (nn.MaxPool2d(3, stride=2, padding=1), image - 3),
        "max_pool ceil": (nn.MaxPool2d(3, stride=2, ceil_mode=True), image),
        "max_pool dilated": (nn.MaxPool2d(3, stride=1, padding=1, dilation=2), image - 3),
        "max_pool1d": (nn.MaxPool1d(3), signal),
        "adaptive_max_pool": (nn.AdaptiveMaxPool2d(2), image),
        "identity, dropout": (nn.Sequential(nn.Identity(), nn.Dropout(0.5), nn.ReLU()), image),
        "flatten": (nn.Flatten(), image),
        "permute": (Function(lambda x: x.permute(0, 2, 3, 1).reshape(x.size(0), -1)), image),
        "shuffle": (Shuffle(), image),
        "chunk, getitem": (Function(lambda x: x.chunk(2, 1)[1][:, :1]), image),
        "split": (Function(swapped), image),
        "cat": (Function(lambda x: torch.cat([x, F.relu(x)], 1)), image),
        "stack": (Function(lambda x: torch.stack([x, -x], 1)), image),
        "pad": (nn.ZeroPad2d((1, 0, 2, 1)), image),
        "pad with a value": (Function(lambda x: F.pad(x, (1, 1), value=0.75)), image),
        "add, sub, neg": (Function(lambda x: (x + x) - F.relu(x) + 0.5 - (1.0 - x)), image),
        "squeeze": (Function(lambda x: x.unsqueeze(1).squeeze(1)), image),
        "sum": (Function(lambda x: x.sum((2, 3))), image),
    }
    for name, (net, x) in exact.items():
        # Rounding of the input (at most 64 of them summed up, in "sum") and of constants.
        out[name] = Case(net, x, (33 if name == "sum" else 3) * UNIT)
    steps, other = torch.linspace(-1.0, 1.0, 4).view(4, 1, 1), torch.linspace(-2, 2, 8)
    near = {
        "avg_pool": (nn.AvgPool2d(2), image),
        "avg_pool 3": (nn.AvgPool2d(3, stride=2, padding=1), image),
        "avg_pool without padding": (nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False), image),
        "avg_pool1d": (nn.AvgPool1d(3, stride=2), signal),
        "adaptive_avg_pool": (nn.AdaptiveAvgPool2d((2, 4)), image),
        "mean": (Function(lambda x: x.mean([2, 3])), image),
        "mul and add constants": (Function(lambda x: torch.addcmul(steps, steps, x)), image),
        "mul by a number": (Function(lambda x: 0.3 * x / 2.0), image),
        "leaky_relu": (nn.LeakyReLU(0.2), image),
        "hardsigmoid": (nn.Hardsigmoid(), 3 * image),
    }
    for name, (net, x) in near.items():
        # An encoded factor (half a unit) times a sum of up to 9 (64) values below 5, the input's rounding, two
        # truncations.
        assert float(x.abs().max()) < 15
        out[name] = Case(net, x, (64 if name == "mean" else 9) * 5 / 2 * UNIT + 3 * UNIT)
    # Every result errs by 2^-13 of itself, and the rounding of values by 2^-15 over their deviation, above 1/4; then
    # factors below 2.2 (mpc/layers/norms.py).
    for name, net, x in (
        ("layer_norm", norm(nn.LayerNorm(8)), image),
        ("group_norm", norm(nn.GroupNorm(2, 4, eps=1e-12)), image),
        ("instance_norm", nn.InstanceNorm1d(4), signal),
        ("rms_norm", Function(lambda x: F.rms_norm(x, (8,))), image),
    ):
        out[name] = Case(net, x, 2.2 * (2.0**-13 * 8 + 2.0**-13) + 8 * UNIT)
    # Roots err by 2^-13 of themselves, below 20, and by the values' rounding; the others are below 3, and divided
    # by roots above 1/4 of values rounded by 2^-16, of which one row has 8. Squares below 64 err by 8 times 8 of these.
    for name, function, error in (
        ("norm", lambda x: x.norm(dim=(1, 3), keepdim=True), 2.0**-13 * 20 + 8 * UNIT),
        ("norm of p=1", lambda x: x.norm(1, -1), 24 * UNIT),
        ("std", lambda x: x.std(-1), 2.0**-13 * 3 + 8 * UNIT),
        ("var", lambda x: x.var((2, 3), correction=0), 64 * UNIT),
        ("normalize", lambda x: F.normalize(x, dim=(1, 3)), 2.0**-13 + 8 * UNIT),
        ("normalize, bounded", lambda x: F.normalize(x, eps=2.0), 2.0**-13 + 8 * UNIT),
        ("standardize", lambda x: (x - x.mean(-1, True)) / x.std(-1, keepdim=True), 2.0**-13 * 3 + 24 * UNIT),
        ("cosine", lambda x: F.cosine_similarity(x, other, -1), 2.0**-12 + 24 * UNIT),
        ("distance", lambda x: F.pairwise_distance(x, x.flip(1)[:, :1]), 2.0**-13 * 20 + 8 * UNIT),
    ):
        out[name] = Case(Function(function), image, error)
    # Sums of 8 products of values below 5, each rounded; 144 for the sum over places.
    out["matmul"] = Case(Function(lambda x: x @ F.relu(x).transpose(-2, -1)), image, 8 * 10 * UNIT)
    out["einsum"] = Case(Function(lambda x: torch.einsum("bchw,bdhw->bdc", x, F.relu(x))), image, 64 * 10 * UNIT)
    # Weights of a softmax err by 2^-7 of themselves, and mix values below 2.
    rows = torch.randn(2, 3, 8)
    out["attention"] = Case(SelfAttention(), rows, 2.0**-6)
    causal = Function(lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True))
    out["attention, causal"] = Case(causal, rows, 2.0**-6 * 3)
    prelu = nn.PReLU(4)
    prelu.weight.data = torch.tensor([0.1, -0.3, 0.25, 1.5])
    out["prelu"] = Case(prelu, image, 9 * UNIT)
    # A product errs by half a unit times each factor (below 15), plus truncations.
    out["mul"] = Case(Function(lambda x: x * F.relu(x)), image, 15 * UNIT)
    out["square"] = Case(Function(lambda x: x**2), image, 15 * UNIT)
    # Slopes below 1.5 times what 3 parties round to 12 bits, and a sixth of 16 bits.
    out["hardswish"] = Case(nn.Hardswish(), 3 * image, (36 + 6) * UNIT)
    for name, net in {"sigmoid": nn.Sigmoid(), "tanh": nn.Tanh(), "silu": nn.SiLU(), "gelu": nn.GELU()}.items():
        out[name] = Case(net, 3 * image, SMOOTH)
    # exp and 1/x err by 2^-9 of themselves each, and rounding adds less than their square.
    out["softmax"] = Case(nn.Softmax(dim=1), row, 9 * 2**-12)
    out["log_softmax"] = Case(Function(lambda x: F.log_softmax(x, 2)), image, 2**-8 + 2**-11 + 9 * UNIT)
    ties = torch.tensor([[3.0, 1.0, 3.0], [-2.0, -2.0, -2.0], [0.0, UNIT, 0.0], [-5.0, -4.0, -3.0]])
    out["argmax"] = Case(Function(lambda x: x.argmax(1)), ties, 0.0)
    out["argmax of rows"] = Case(Function(lambda x: x.argmax(dim=-1, keepdim=True)), row, 0.0)
    out["argmax behind a layer"] = Case(Function(lambda x: F.relu(x).argmax(0)), row, 0.0)
    reused = Reused()
    gain = float(reused.a.weight.detach().abs().sum(1).max())  # what the second layer makes of the first one's error
    out["reused modules, shared weights"] = Case(reused, row, (1 + gain) * linear_bound(reused.a, 2 * row))
    out |= _rearranged(image) | _selected(image) | _of_volumes(torch.randn(2, 4, 5, 6, 4))
    out["squeeze and excitation"] = Case(Gate(), image, 5 * (SMOOTH + 60 * 5 * UNIT))
    return out
