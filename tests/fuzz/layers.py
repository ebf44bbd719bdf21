"""Layers as phrases: LAYERS[kind](draw) is a Python expression in {x} (tests/fuzz/grammar.py)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tests.fuzz.draw import ELEMENTS, Draw, Impossible


def _text(values: Sequence[int]) -> str:
    return str(tuple(values)) if len(set(values)) > 1 or len(values) > 2 else str(values[0])


# Linear -------------------------------------------------------------------------------------------------------------


def conv(d: Draw) -> str:
    n, channels = d.spatial(), d.shape[1]
    groups = d.rng.choice([g for g in range(1, channels + 1) if channels % g == 0])
    out = groups * d.rng.randint(1, max(1, 4 // groups))
    dilation = d.rng.choice((1, 1, 2))
    same = d.chance(0.2)
    kernel = [d.rng.randint(1, max(1, min(3, (s - 1) // dilation + 1))) for s in d.shape[2:]]
    stride = 1 if same else d.rng.choice((1, 1, 2))
    padding = "'same'" if same else str(d.rng.choice((0, 0, 1)))
    d.need(d.numel * out // channels <= ELEMENTS)
    gain = d.gain(channels // groups * math.prod(kernel))
    options = f"stride={stride}, padding={padding}, dilation={dilation}, groups={groups}"
    if d.chance(0.3):
        w = d.constant((out, channels // groups, *kernel), gain)
        b = d.constant((out,), gain) if d.chance(0.5) else "None"
        return f"F.conv{n}d({{x}}, {w}, {b}, {options})"
    return d.module(f"nn.Conv{n}d({channels}, {out}, {tuple(kernel)}, {options}, bias={d.chance(0.6)})", gain)


def conv_transpose(d: Draw) -> str:
    n, channels = d.spatial(), d.shape[1]
    groups = d.rng.choice([g for g in range(1, channels + 1) if channels % g == 0])
    out, kernel, stride = groups * d.rng.randint(1, max(1, 3 // groups)), d.rng.randint(1, 3), d.rng.randint(1, 2)
    padding, extra = d.rng.randint(0, kernel // 2), d.rng.randint(0, stride - 1)
    d.need(d.numel * out // channels * stride**n <= ELEMENTS)
    gain = d.gain(channels // groups * kernel**n)
    options = f"stride={stride}, padding={padding}, output_padding={extra}, groups={groups}"
    if d.chance(0.3):
        w = d.constant((channels, out // groups, *[kernel] * n), gain)
        return f"F.conv_transpose{n}d({{x}}, {w}, None, {options})"
    return d.module(f"nn.ConvTranspose{n}d({channels}, {out}, {kernel}, {options}, bias={d.chance(0.6)})", gain)


def linear(d: Draw) -> str:
    d.need(len(d.shape) >= 2 and d.shape[-1] <= 1024)
    inside, out = d.shape[-1], d.rng.randint(1, 6)
    gain = d.gain(inside)
    if d.chance(0.3):
        return f"F.linear({{x}}, {d.constant((out, inside), gain)}, {d.constant((out,), gain)})"
    return d.module(f"nn.Linear({inside}, {out}, bias={d.chance(0.7)})", gain)


def matmul(d: Draw) -> str:
    d.need(len(d.shape) >= 2 and d.shape[-1] <= 1024)
    w = d.constant((d.shape[-1], d.rng.randint(1, 6)), d.gain(d.shape[-1]))
    texts = [f"{{x}} @ {w}", f"torch.matmul({{x}}, {w})", f"{{x}}.matmul({w})"]
    return d.pick(*texts, *([f"torch.mm({{x}}, {w})"] if len(d.shape) == 2 else []))


def batch_norm(d: Draw) -> str:
    rank, channels = len(d.shape), d.shape[1] if len(d.shape) > 1 else 0
    d.need(rank in (2, 3, 4, 5))
    var = d.log(1e-8, 1e6)
    gain = min(1e2, max(1e-4, d.gain(1) * math.sqrt(var + 1e-5)))
    d.need(gain * d.size / math.sqrt(var + 1e-5) < 2 * d.highest)
    kind = max(1, rank - 2)
    if d.chance(0.2):
        mean, variance = d.constant((channels,), d.size / 4, "Buffer"), d.constant((channels,), 0.5, "Buffer", True)
        return f"F.batch_norm({{x}}, {mean}, {variance}, None, None)"
    name = "SyncBatchNorm" if d.chance(0.1) else f"BatchNorm{kind}d"
    return d.module(f"nn.{name}({channels})", gain, var=var, mean=min(d.size, 3 * math.sqrt(var)))


def scale(d: Draw) -> str:
    c = d.factor()
    if d.chance(0.4):
        c = 1 / c
        if not 1e-4 <= abs(c) <= 1e6:
            raise Impossible
        texts = (f"{{x}} / {c!r}", f"torch.div({{x}}, {c!r})", f"{{x}}.true_divide({c!r})")
        return d.spelled(*texts, inplace=[f"{{x}}.div_({c!r})", f"operator.itruediv({{x}}, {c!r})"])
    texts = (f"{{x}} * {c!r}", f"{c!r} * {{x}}", f"torch.mul({{x}}, {c!r})", f"{{x}}.multiply({c!r})")
    return d.spelled(*texts, inplace=[f"{{x}}.mul_({c!r})", f"operator.imul({{x}}, {c!r})"])


def scale_tensor(d: Draw) -> str:
    """A product with a constant tensor: one element, a factor per channel, or one for everything."""
    shape = d.rng.choice([(1,), (d.shape[1] if len(d.shape) == 2 else 1,), (1,) * len(d.shape)])
    return f"{{x}} * {d.constant(shape, abs(d.factor()), 'Buffer')}"


def shift(d: Draw) -> str:
    c = d.log(1e-6, 1e3) * d.rng.choice((1, -1))
    if d.chance(0.3):
        name = d.constant((d.shape[-1],) if d.shape else (), abs(c), "Buffer")
        return d.pick(f"{{x}} + {name}", f"{name} - {{x}}", f"{{x}} - {name}")
    texts = (f"{{x}} + {c!r}", f"{c!r} - {{x}}", f"{{x}} - {c!r}", f"torch.rsub({{x}}, {c!r})")
    return d.spelled(*texts, inplace=[f"{{x}}.add_({c!r})", f"{{x}}.sub_({c!r})", f"operator.iadd({{x}}, {c!r})"])


# Activations --------------------------------------------------------------------------------------------------------


def relu(d: Draw) -> str:
    d.compares(1)
    texts = ["F.relu({x})", "torch.relu({x})", "{x}.relu()", "{x}.clamp(min=0)", "torch.clamp_min({x}, 0)"]
    if d.chance(0.4):
        return d.module("nn.ReLU(inplace=True)" if d.fresh and d.chance(0.3) else "nn.ReLU()")
    return d.spelled(*texts, inplace=["{x}.relu_()", "F.relu({x}, inplace=True)"])


def hardtanh(d: Draw) -> str:
    d.compares(2)
    low = round(d.rng.uniform(-1, 1) * d.size, 4)
    high = round(low + d.rng.uniform(0.1, 1) * d.size + 1e-3, 4)
    if d.chance(0.3):
        return d.pick(d.module("nn.ReLU6()"), "F.relu6({x})")
    bounds = f"{low!r}, {high!r}"
    texts = (f"F.hardtanh({{x}}, {bounds})", f"{{x}}.clamp({bounds})", f"torch.clip({{x}}, {bounds})")
    if d.chance(0.3):
        return d.module(f"nn.Hardtanh({bounds})")
    return d.spelled(*texts, inplace=[f"{{x}}.clamp_({bounds})"])


def leaky_relu(d: Draw) -> str:
    d.compares(1)
    slope = d.log(1e-4, max(1e-3, min(10.0, d.highest / d.size)))
    return d.module(f"nn.LeakyReLU({slope!r})") if d.chance(0.5) else f"F.leaky_relu({{x}}, {slope!r})"


def prelu(d: Draw) -> str:
    d.compares(1)
    count = d.rng.choice((1, d.shape[1])) if len(d.shape) > 1 else 1
    gain = d.gain(1)
    if d.chance(0.3):
        return f"F.prelu({{x}}, {d.constant((count,), gain)})"
    return d.module(f"nn.PReLU({count})", gain)


def _smooth(module: str, per_element: float, *texts: str) -> Callable[[Draw], str]:
    def phrase(d: Draw) -> str:
        d.compares(per_element)
        return d.module(f"nn.{module}") if d.chance(0.5) else d.pick(*texts)

    return phrase


def gelu(d: Draw) -> str:
    d.compares(30)
    kind = d.pick("none", "tanh")
    return d.module(f"nn.GELU('{kind}')") if d.chance(0.5) else f"F.gelu({{x}}, approximate='{kind}')"


def function(d: Draw) -> str:
    """A smooth function with two tails, or a composition of such."""
    d.compares(40)
    c = d.rng.choice((0.5, 1.25, 1.702, 2.0))
    module = d.pick("Softplus()", "Mish()", "LogSigmoid()", "Tanhshrink()", f"ELU({c})", f"CELU({c})", "SELU()")
    return d.pick(
        d.module(f"nn.{module}"),
        "torch.erf({x})",
        f"{{x}} * torch.sigmoid({c} * {{x}})",
        "{x} * torch.tanh(F.softplus({x}))",
        f"F.softplus({{x}}, {c})",
        f"torch.exp(-{c} * {{x}} * {{x}})",
    )


def in_range(d: Draw) -> str:
    """A function of values whose range must be known, a composition of such, or a division."""
    d.compares(60)
    d.need(d.size <= 6)
    c = d.rng.choice((0.5, 1.0, 2.0))
    return d.pick(
        f"torch.log({{x}} * {{x}} + {c})",
        f"1 / ({{x}} ** 2 + {c})",
        f"{{x}} / ({{x}}.abs() + {c})",
        "torch.sin({x})",
        "{x}.cos()",
        f"torch.sqrt({{x}}.square() + {c})",
        f"({{x}}.abs() + {c}) ** 1.5",
        f"torch.atan({{x}}) * {c}",
    )


def wide(d: Draw) -> str:
    """A power or a logarithm of positive values in a wide range, which octaves may serve."""
    d.compares(80)
    d.need(d.size <= 6)
    a, c = d.rng.choice((1.0, 2.0, 3.0)), d.rng.choice((1.0, 2.0))  # steeper ones do not keep an error of 2^-12
    return d.pick(
        f"torch.log({a} * F.relu({{x}}) + {c})",
        f"{c} / ({a} * {{x}}.abs() + {c})",
        f"torch.rsqrt({a} * F.relu({{x}}) + {c})",
        f"torch.sqrt({a} * {{x}}.abs() + {c})",
        f"torch.log1p({a} * {{x}}.abs())",
    )


def softmax(d: Draw) -> str:
    d.compares(40)
    dim = d.dim()
    d.need(d.shape[dim] <= 64)
    if d.chance(0.5):
        return d.module(f"nn.Softmax({dim})")
    return d.pick(f"{{x}}.softmax({dim})", f"F.softmax({{x}}, {dim})", f"torch.softmax({{x}}, dim={dim})")


def log_softmax(d: Draw) -> str:
    d.compares(50)
    dim = d.dim()
    d.need(d.shape[dim] <= 64)
    if d.chance(0.5):
        return d.module(f"nn.LogSoftmax({dim})")
    return d.pick(f"{{x}}.log_softmax({dim})", f"F.log_softmax({{x}}, {dim})", f"torch.log_softmax({{x}}, dim={dim})")


def argmax(d: Draw) -> str:
    d.compares(4)
    dim, keep = d.dim(), d.chance(0.5)
    return d.pick(f"{{x}}.argmax({dim}, keepdim={keep})", f"torch.argmax({{x}}, dim={dim}, keepdim={keep})")


# Pools and reductions -----------------------------------------------------------------------------------------------


def _kernel(d: Draw, most: int) -> list[int]:
    """Draw a kernel of any size up to the whole map, large ones for large maps."""
    if d.chance(0.3):
        return [d.rng.randint(1, min(3, s)) for s in d.shape[2:]]
    return [d.rng.choice([k for k in {2, 3, 7, 16, 56, 112, s // 2, s} if 1 <= k <= min(most, s)] or [1])
            for s in d.shape[2:]]  # fmt: skip


def max_pool(d: Draw) -> str:
    n = d.spatial()
    kernel = _kernel(d, 8)
    dilation = 1 if max(kernel) > 3 or min(s - 2 * (k - 1) for s, k in zip(d.shape[2:], kernel, strict=True)) < 1 else 2
    dilation = dilation if d.chance(0.2) else 1
    stride, padding = [d.rng.randint(1, k) for k in kernel], [d.rng.randint(0, k // 2) for k in kernel]
    if d.numel > 5000:
        stride = kernel
    d.compares(max(kernel) / min(stride))
    options = f"{tuple(kernel)}, {tuple(stride)}, {tuple(padding)}, {dilation}, ceil_mode={d.chance(0.3)}"
    return d.module(f"nn.MaxPool{n}d({options})") if d.chance(0.6) else f"F.max_pool{n}d({{x}}, {options})"


def avg_pool(d: Draw) -> str:
    n = d.spatial()
    kernel = _kernel(d, 256)
    padding = [d.rng.choice((0, 0, d.rng.randint(0, k // 2))) for k in kernel]
    stride = [k if d.numel > 5000 else d.rng.randint(max(1, k // 2), k) for k in kernel]
    options = f"{tuple(kernel)}, {tuple(stride)}, {tuple(padding)}, ceil_mode={d.chance(0.3)}, "
    options += f"count_include_pad={d.chance(0.5)}"
    if n > 1 and d.chance(0.2):
        options += f", divisor_override={d.rng.randint(1, math.prod(kernel))}"
    return d.module(f"nn.AvgPool{n}d({options})") if d.chance(0.6) else f"F.avg_pool{n}d({{x}}, {options})"


def _adaptive(name: str, function: str, compares: float) -> Callable[[Draw], str]:
    def phrase(d: Draw) -> str:
        n = d.spatial()
        d.compares(compares)
        if d.chance(0.5):  # sizes that need not divide
            sizes = [d.rng.randint(1, s) for s in d.shape[2:]]
        else:
            sizes = [d.rng.choice([o for o in (1, 2, s // 2, s) if o and s % o == 0]) for s in d.shape[2:]]
        text = _text(sizes)
        return d.module(f"nn.{name}{n}d({text})") if d.chance(0.6) else f"F.{function}{n}d({{x}}, {text})"

    return phrase


def _reduction(name: str) -> Callable[[Draw], str]:
    def phrase(d: Draw) -> str:
        d.need(len(d.shape) >= 1)
        if d.chance(0.05):
            return d.pick(f"{{x}}.{name}()", f"torch.{name}({{x}})")
        axes = range(1, len(d.shape)) if len(d.shape) > 1 else range(1)
        dims = sorted(d.rng.sample(axes, d.rng.randint(1, len(axes))))
        keep = d.chance(0.5)
        text = str(dims[0]) if len(dims) == 1 and d.chance(0.5) else str(tuple(dims))
        return d.pick(f"{{x}}.{name}({text}, keepdim={keep})", f"torch.{name}({{x}}, dim={text}, keepdim={keep})")

    return phrase


LAYERS: dict[str, Callable[[Draw], str]] = {
    "conv": conv,
    "conv_transpose": conv_transpose,
    "linear": linear,
    "matmul": matmul,
    "batch_norm": batch_norm,
    "scale": scale,
    "scale_tensor": scale_tensor,
    "shift": shift,
    "relu": relu,
    "hardtanh": hardtanh,
    "leaky_relu": leaky_relu,
    "prelu": prelu,
    "gelu": gelu,
    "sigmoid": _smooth("Sigmoid()", 25, "torch.sigmoid({x})", "{x}.sigmoid()"),
    "hardsigmoid": _smooth("Hardsigmoid()", 2, "F.hardsigmoid({x})"),
    "tanh": _smooth("Tanh()", 25, "torch.tanh({x})", "{x}.tanh()"),
    "silu": _smooth("SiLU()", 40, "F.silu({x})"),
    "hardswish": _smooth("Hardswish()", 2, "F.hardswish({x})"),
    "function": function,
    "in_range": in_range,
    "wide": wide,
    "softmax": softmax,
    "log_softmax": log_softmax,
    "argmax": argmax,
    "max_pool": max_pool,
    "avg_pool": avg_pool,
    "adaptive_avg_pool": _adaptive("AdaptiveAvgPool", "adaptive_avg_pool", 0),
    "adaptive_max_pool": _adaptive("AdaptiveMaxPool", "adaptive_max_pool", 1),
    "mean": _reduction("mean"),
    "sum": _reduction("sum"),
}
