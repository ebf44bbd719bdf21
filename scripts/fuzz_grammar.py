"""Every operation of the vocabulary as a phrase: KINDS[kind](draw) is a Python expression in {x}, with drawn arguments.

A kind is an operation of its own, whatever its spelling; the spelling (module, function, method, in-place form,
operator) is drawn too. A kind that the value at hand cannot take raises `Impossible`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

HIGHEST = 2.0**12  # what factors aim below, half the range that is promised
LOWEST = 2.0**-6  # and above: a net of zeros shows nothing
ELEMENTS, COMPARISONS = 70_000, 100_000  # of one operation: seconds, not minutes


class Impossible(Exception):
    """The operation does not take a value of this shape."""


class Draw:
    """Random choices for one operation on a value of this shape whose largest magnitude is `size`.

    same, parts: names of earlier values of this shape, and of those that differ along dimension 1 only.
    fresh: whether the value may be written in place. init: the lines for `__init__` drawn so far.
    """

    def __init__(self, rng: random.Random, shape: tuple[int, ...], size: float, number: int) -> None:
        self.rng, self.shape, self.size, self.number = rng, shape, max(size, 1e-6), number
        self.same: list[str] = []
        self.parts: list[str] = []
        self.fresh = False
        self.init: list[str] = []

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    def need(self, condition: bool) -> None:
        if not condition:
            raise Impossible

    def pick(self, *texts: str) -> str:
        return self.rng.choice(texts)

    def spelled(self, *texts: str, inplace: Sequence[str] = ()) -> str:
        """One of the spellings; those that write into the value only where that is not the net's input."""
        return self.rng.choice([*texts, *(inplace if self.fresh else ())])

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def module(self, text: str, gain: float | None = None, **more: float) -> str:
        """A call of a new submodule; with a gain, its tensors are drawn anew (`filled`)."""
        name = f"m{self.number}" if not self.init else f"m{self.number}_{len(self.init)}"
        if gain is not None:
            extra = "".join(f", {key}={value!r}" for key, value in more.items())
            text = f"filled({text}, {gain!r}, {self.rng.randrange(10**6)}{extra})"
        self.init.append(f"self.{name} = {text}")
        return f"self.{name}({{x}})"

    def constant(self, shape: Sequence[int], gain: float, kind: str = "Parameter", positive: bool = False) -> str:
        name = f"p{self.number}_{len(self.init)}"
        text = f"normal({tuple(shape)}, {gain!r}, {self.rng.randrange(10**6)})" + (".exp()" if positive else "")
        self.init.append(f"self.{name} = nn.{kind}({text})")
        return f"self.{name}"

    def log(self, low: float, high: float) -> float:
        low = min(low, high)
        return float(f"{math.exp(self.rng.uniform(math.log(low), math.log(high))):.3g}")

    def gain(self, fan: float, low: float = 1e-4, high: float = 1e2) -> float:
        """A magnitude of weights that keeps a sum of `fan` products between LOWEST and HIGHEST, if any does."""
        per = self.size * math.sqrt(fan) * 3
        return self.log(max(low, LOWEST / per), max(low, min(high, HIGHEST / per)))

    def factor(self) -> float:
        """A number to multiply with: often round, else of any magnitude from 1e-6 to 1e4."""
        if self.chance(0.25):
            c = self.rng.choice((0.5, 2.0, 3.0, -1.0, 0.125, 1 / 3, 1 / 255, 10.0, -0.1))
            if abs(c) * self.size < HIGHEST:
                return c
        return self.gain(1 / 9, 1e-6, 1e4) * self.rng.choice((1, -1))

    def spatial(self, at_least: int = 1) -> int:
        n = len(self.shape) - 2
        self.need(n in (1, 2) and min(self.shape[2:]) >= at_least)
        return n

    def compares(self, per_element: float) -> None:
        self.need(self.numel * per_element <= COMPARISONS)

    def dim(self) -> int:
        """A dimension, seldom the batch's."""
        self.need(len(self.shape) > 0)
        d = self.rng.randrange(len(self.shape)) if self.chance(0.1) else self.rng.randrange(1, max(2, len(self.shape)))
        self.need(d < len(self.shape))
        return d - len(self.shape) if self.chance(0.3) else d


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
    d.need(rank in (2, 3, 4))
    var = d.log(1e-8, 1e6)
    gain = min(1e2, max(1e-4, d.gain(1) * math.sqrt(var + 1e-5)))
    d.need(gain * d.size / math.sqrt(var + 1e-5) < 2 * HIGHEST)
    kind = 2 if rank == 4 else 1
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


def neg(d: Draw) -> str:
    return d.spelled("-{x}", "torch.neg({x})", "{x}.negative()", inplace=["{x}.neg_()"])


# Several values -----------------------------------------------------------------------------------------------------


def _other(d: Draw) -> str:
    return d.rng.choice(d.same) if d.same and d.chance(0.9) else "{x}"


def add(d: Draw) -> str:
    y = _other(d)
    return d.spelled(f"{{x}} + {y}", f"torch.add({{x}}, {y})", f"{y} + {{x}}", inplace=[f"{{x}}.add_({y})"])


def sub(d: Draw) -> str:
    y = _other(d)
    return d.spelled(f"{{x}} - {y}", f"torch.sub({y}, {{x}})", f"{{x}}.subtract({y})", inplace=[f"{{x}}.sub_({y})"])


def mul(d: Draw) -> str:
    y = d.rng.choice(d.same) if d.same else "({x} * 0.5)"
    if len(d.shape) > 2 and d.chance(0.3):
        y = f"{{x}}.mean({tuple(range(2, len(d.shape)))}, keepdim=True)"  # a factor per channel, as squeeze-excite
    return d.pick(f"{{x}} * {y}", f"torch.mul({{x}}, {y})", f"{y} * {{x}}", f"{{x}}.multiply({y})")


def square(d: Draw) -> str:
    d.need(d.size**2 < 2 * HIGHEST)
    return d.spelled("{x} * {x}", "{x} ** 2", "torch.square({x})", "{x}.pow(2)", inplace=["{x}.square_()"])


def cat(d: Draw) -> str:
    d.need(len(d.shape) >= 2)
    names = ["{x}", *d.rng.sample(d.parts, min(len(d.parts), 2)), "{x}"][: d.rng.randint(2, 3)]
    joined = ", ".join(names)
    return d.pick(f"torch.cat([{joined}], 1)", f"torch.concat(({joined}), dim=1)", f"torch.concatenate([{joined}], 1)")


def stack(d: Draw) -> str:
    d.need(len(d.shape) <= 3)
    return f"torch.stack([{{x}}, {_other(d)}], {d.rng.randint(1, max(1, len(d.shape)))})"


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
    slope = d.log(1e-4, max(1e-3, min(10.0, HIGHEST / d.size)))
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


def softmax(d: Draw) -> str:
    d.compares(40)
    dim = d.dim()
    d.need(d.shape[dim] <= 64)
    if d.chance(0.5):
        return d.module(f"nn.Softmax({dim})")
    return d.pick(f"{{x}}.softmax({dim})", f"F.softmax({{x}}, {dim})", f"torch.softmax({{x}}, dim={dim})")


def argmax(d: Draw) -> str:
    d.compares(4)
    dim, keep = d.dim(), d.chance(0.5)
    return d.pick(f"{{x}}.argmax({dim}, keepdim={keep})", f"torch.argmax({{x}}, dim={dim}, keepdim={keep})")


# Pools and reductions -----------------------------------------------------------------------------------------------


def _kernel(d: Draw, most: int) -> list[int]:
    """Of any size up to the whole map, large ones for large maps."""
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
    if n == 2 and d.chance(0.2):
        options += f", divisor_override={d.rng.randint(1, math.prod(kernel))}"
    return d.module(f"nn.AvgPool{n}d({options})") if d.chance(0.6) else f"F.avg_pool{n}d({{x}}, {options})"


def _adaptive(name: str, function: str, compares: float) -> Callable[[Draw], str]:
    def phrase(d: Draw) -> str:
        n = d.spatial()
        d.compares(compares)
        if d.chance(0.1):  # sizes that do not divide are to be refused
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


# Shapes -------------------------------------------------------------------------------------------------------------


def flatten(d: Draw) -> str:
    d.need(len(d.shape) >= 2)
    start = d.rng.randint(1, len(d.shape) - 1)
    end = d.rng.choice((-1, len(d.shape) - 1, d.rng.randint(start, len(d.shape) - 1)))
    return d.module(f"nn.Flatten({start}, {end})") if d.chance(0.5) else f"torch.flatten({{x}}, {start}, {end})"


def reshape(d: Draw) -> str:
    d.need(len(d.shape) >= 2)
    if len(d.shape) == 2:
        c = d.rng.choice([c for c in range(1, 7) if d.shape[1] % c == 0])
        return d.pick(f"{{x}}.reshape(-1, {c}, {d.shape[1] // c})", f"torch.reshape({{x}}, ({{x}}.shape[0], {c}, -1))")
    texts = ["{x}.reshape({x}.size(0), -1)", "{x}.contiguous().view({x}.shape[0], -1)"]
    rest = "-1" if len(d.shape) > 3 else "{x}.shape[0] // {x}.shape[0]"
    texts.append(f"{{x}}.reshape({{x}}.shape[0], {{x}}.shape[1] * {{x}}.shape[2], {rest})")
    if len(d.shape) == 3:
        h = d.rng.choice([h for h in range(1, 9) if d.shape[2] % h == 0])
        texts.append(f"{{x}}.reshape(-1, {d.shape[1]}, {h}, {d.shape[2] // h})")
    return d.pick(*texts)


def permute(d: Draw) -> str:
    d.need(len(d.shape) >= 3)
    order = (0, *d.rng.sample(range(1, len(d.shape)), len(d.shape) - 1))
    return d.pick(f"{{x}}.permute{order}", f"torch.permute({{x}}, {order})", f"{{x}}.permute({order})")


def transpose(d: Draw) -> str:
    d.need(len(d.shape) >= 3)
    a, b = d.rng.sample(range(1, len(d.shape)), 2)
    c = b - len(d.shape)
    texts = (f"{{x}}.transpose({a}, {b})", f"torch.swapaxes({{x}}, {a}, {b})", f"{{x}}.swapdims({a}, {c})")
    return d.pick(*texts)


def squeeze(d: Draw) -> str:
    d.need(len(d.shape) >= 3)
    dims = [i for i in range(1, len(d.shape)) if d.shape[i] == 1] or list(range(1, len(d.shape)))
    return d.pick(f"{{x}}.squeeze({d.rng.choice(dims)})", f"torch.squeeze({{x}}, {d.rng.choice(dims)})")


def unsqueeze(d: Draw) -> str:
    d.need(1 <= len(d.shape) <= 3)
    return d.pick(f"{{x}}.unsqueeze({d.rng.randint(1, len(d.shape))})", "torch.unsqueeze({x}, -1)")


def chunk(d: Draw) -> str:
    d.need(len(d.shape) >= 2 and d.shape[1] >= 2)
    return d.pick("{x}.chunk(2, 1)[0]", "torch.chunk({x}, 2, dim=1)[1]")


def split(d: Draw) -> str:
    d.need(len(d.shape) >= 2 and d.shape[1] >= 2)
    first = d.rng.randint(1, d.shape[1] - 1)
    sizes = f"[{first}, {d.shape[1] - first}]"
    texts = (f"{{x}}.split({sizes}, 1)[1]", f"torch.split({{x}}, {sizes}, dim=1)[0]", f"{{x}}.split({first}, 1)[0]")
    return d.pick(*texts)


def getitem(d: Draw) -> str:
    d.need(len(d.shape) >= 2)
    axis = d.rng.randint(1, len(d.shape) - 1)
    size = d.shape[axis]
    part = d.pick(f"{d.rng.randint(0, size - 1)}:", f"::{d.rng.randint(1, 2)}", f":{d.rng.randint(1, size)}", "-1")
    before = ", ".join([":"] * axis) if d.chance(0.7) or axis < len(d.shape) - 1 else "..."
    return f"{{x}}[{before}, {part}]"


def pad(d: Draw) -> str:
    d.need(len(d.shape) >= 2 and d.numel < ELEMENTS // 4)
    n = min(2, len(d.shape) - 1)
    pads = [d.rng.randint(0, 2) for _ in range(2 * n)]
    if len(d.shape) > 2 and d.chance(0.4):
        return d.module(f"nn.ZeroPad{len(d.shape) - 2}d({tuple(pads[: 2 * len(d.shape) - 4])})")
    return f"F.pad({{x}}, {tuple(pads)}, value={d.rng.choice((0.0, 0.0, 1.5, -100.0))!r})"


def identity(d: Draw) -> str:
    layers = ["Identity", "Dropout", "AlphaDropout", "FeatureAlphaDropout"]
    layers += {3: ["Dropout1d"], 4: ["Dropout2d", "Dropout3d"]}.get(len(d.shape), [])
    texts = ["{x}.contiguous()", "{x}.clone()", "{x}.detach()", "F.dropout({x}, 0.5, self.training)"]
    texts += [f"F.{d.pick('alpha_dropout', 'feature_alpha_dropout')}({{x}}, 0.5, training=self.training)"]
    return d.module(f"nn.{d.pick(*layers)}()") if d.chance(0.4) else d.pick(*texts)


_SILU, _SIGMOID = ("SiLU()", 40, "F.silu({x})"), ("Sigmoid()", 25, "torch.sigmoid({x})", "{x}.sigmoid()")
KINDS: dict[str, Callable[[Draw], str]] = {
    function.__name__: function
    for function in (conv, conv_transpose, linear, matmul, batch_norm, scale, scale_tensor, shift, neg, add, sub, mul,
                     square, cat, stack, relu, hardtanh, leaky_relu, prelu, gelu, softmax, argmax, max_pool, avg_pool,
                     flatten, reshape, permute, transpose, squeeze, unsqueeze, chunk, split, getitem, pad, identity)
} | {
    "sigmoid": _smooth(*_SIGMOID),
    "hardsigmoid": _smooth("Hardsigmoid()", 2, "F.hardsigmoid({x})"),
    "tanh": _smooth("Tanh()", 25, "torch.tanh({x})", "{x}.tanh()"),
    "silu": _smooth(*_SILU),
    "hardswish": _smooth("Hardswish()", 2, "F.hardswish({x})"),
    "adaptive_avg_pool": _adaptive("AdaptiveAvgPool", "adaptive_avg_pool", 0),
    "adaptive_max_pool": _adaptive("AdaptiveMaxPool", "adaptive_max_pool", 1),
    "mean": _reduction("mean"),
    "sum": _reduction("sum"),
}  # fmt: skip
