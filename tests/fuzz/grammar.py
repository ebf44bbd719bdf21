"""Every operation of the vocabulary as a phrase: KINDS[kind](draw) is a Python expression in {x}, with drawn arguments.
Others are in tests/fuzz/layers.py and tests/fuzz/mixing.py.

A kind is an operation of its own, whatever its spelling; the spelling (module, function, method, in-place form,
operator) is drawn too. A kind that the value at hand cannot take raises `Impossible`.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz.draw import ELEMENTS, Draw
from tests.fuzz.layers import LAYERS
from tests.fuzz.mixing import MIXING


def neg(d: Draw) -> str:
    return d.spelled("-{x}", "torch.neg({x})", "{x}.negative()", inplace=["{x}.neg_()"])


def _other(d: Draw) -> str:
    return d.rng.choice(d.same) if d.same and d.chance(0.9) else "{x}"


def add(d: Draw) -> str:
    y = _other(d)
    if d.chance(0.1) and d.size * 5 < d.highest:
        y = f"{{x}} * {d.rng.choice((0.25, 0.5, 2.0, 4.0))}"
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
    d.need(d.size**2 < 2 * d.highest)
    return d.spelled("{x} * {x}", "{x} ** 2", "torch.square({x})", "{x}.pow(2)", inplace=["{x}.square_()"])


def cat(d: Draw) -> str:
    d.need(len(d.shape) >= 2)
    names = ["{x}", *d.rng.sample(d.parts, min(len(d.parts), 2)), "{x}"][: d.rng.randint(2, 3)]
    if d.chance(0.2) and d.size * 4 < d.highest:
        names[-1] = f"{{x}} * {d.rng.choice((0.25, 0.5, 2.0, 4.0))}"
    joined = ", ".join(names)
    return d.pick(f"torch.cat([{joined}], 1)", f"torch.concat(({joined}), dim=1)", f"torch.concatenate([{joined}], 1)")


def stack(d: Draw) -> str:
    d.need(len(d.shape) <= 4)
    return f"torch.stack([{{x}}, {_other(d)}], {d.rng.randint(1, max(1, len(d.shape)))})"


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
    d.need(1 <= len(d.shape) <= 4)
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
    n = min(3, len(d.shape) - 1)
    pads = [d.rng.randint(0, 2) for _ in range(2 * n)]
    if len(d.shape) > 2 and d.chance(0.4):
        return d.module(f"nn.ZeroPad{len(d.shape) - 2}d({tuple(pads[: 2 * len(d.shape) - 4])})")
    return f"F.pad({{x}}, {tuple(pads)}, value={d.rng.choice((0.0, 0.0, 1.5, -100.0))!r})"


def magnitude(d: Draw) -> str:
    d.compares(1)
    return d.spelled("{x}.abs()", "torch.abs({x})", "abs({x})", inplace=["{x}.abs_()"])


def _extreme(name: str) -> Callable[[Draw], str]:
    def kind(d: Draw) -> str:
        d.compares(1)
        bound = f"{d.rng.choice((0.25, -0.5, 1.0)) * min(d.size, 100.0):.3g}"
        side = "min" if name == "maximum" else "max"
        y = _other(d)
        texts = (f"torch.{name}({{x}}, {y})", f"{y}.{name}({{x}})", f"torch.{name[:3]}({y}, {{x}})")
        return d.pick(*texts, f"{{x}}.clamp({side}={bound})", f"torch.clamp({{x}}, {side}={bound})")

    return kind


def where(d: Draw) -> str:
    d.compares(2)
    sign, y = d.pick("<", "<=", ">", ">="), _other(d)
    test = f"{{x}} {sign} {d.rng.choice((0.0, 0.5, -0.25)) * min(d.size, 100.0):.3g}"
    if d.chance(0.4):
        test = f"{{x}} {sign} {y}.flip({len(d.shape) - 1})" if d.shape else test
    if d.chance(0.3):
        return f"({test}).float() * {{x}}"
    if d.chance(0.2):
        return f"torch.where({test}, {{x}}, {{x}} * {d.rng.choice((0.25, 0.125, 0.1))})"
    return d.pick(
        f"torch.where({test}, {{x}}, {y})", f"torch.where({test}, 0.5, {{x}})", f"{{x}}.masked_fill({test}, 2.0)"
    )


def resize(d: Draw) -> str:
    many = len(d.shape) - 2
    d.need(many in (1, 2, 3) and d.numel < ELEMENTS // 3**many)
    smooth = (["linear"], ["bilinear", "bilinear", "bicubic"], ["trilinear", "trilinear"])[many - 1]
    mode = d.pick("nearest", "nearest-exact", *smooth)
    how = f"scale_factor={d.rng.choice((2, 2.0, 4, 1.5, 0.5))}" if d.chance(0.5) else None
    how = how or f"size={tuple(d.rng.randint(1, 2 * n + 1) for n in d.shape[2:])}"
    corners = f", align_corners={d.chance(0.5)}" if "linear" in mode or mode == "bicubic" else ""
    if d.chance(0.5):
        return d.module(f"nn.Upsample({how}, mode={mode!r}{corners})")
    return f"F.interpolate({{x}}, {how}, mode={mode!r}{corners})"


def rearrange(d: Draw) -> str:
    d.need(len(d.shape) >= 2)
    axis = d.rng.randint(1, len(d.shape) - 1)
    texts = [f"{{x}}.flip({axis})", f"torch.flip({{x}}, [{axis}])", f"{{x}}.roll({d.rng.randint(-3, 3)}, {axis})"]
    if len(d.shape) == 4:
        c, h, w = d.shape[1:]
        texts += ["F.pixel_shuffle({x}, 2)"] * (c % 4 == 0) + ["F.pixel_unshuffle({x}, 2)"] * (h % 2 == w % 2 == 0)
        texts += [f"F.channel_shuffle({{x}}, {c})"]
    return d.pick(*texts)


def edge_pad(d: Draw) -> str:
    d.need(len(d.shape) in (3, 4, 5) and d.numel < ELEMENTS // 4 and min(d.shape[2:]) > 2)
    pads = tuple(d.rng.randint(0, 2) for _ in range(2 * len(d.shape) - 4))
    return f"F.pad({{x}}, {pads}, mode={d.pick('reflect', 'replicate', 'circular')!r})"


def constant(d: Draw) -> str:
    d.need(len(d.shape) >= 2)
    shape = (d.shape[1], *[1] * (len(d.shape) - 2))
    p = d.constant(shape, d.gain(1 / 9, 1e-4, 1e3))
    return d.pick(
        f"{{x}} * {p}",
        f"{p} * {{x}}",
        f"torch.mul({{x}}, {p})",
        f"torch.cat([{p}.expand({{x}}.size(0), *{d.shape[1:]}), {{x}}], 1)",
    )


def identity(d: Draw) -> str:
    layers = ["Identity", "Dropout", "AlphaDropout", "FeatureAlphaDropout"]
    layers += {3: ["Dropout1d"], 4: ["Dropout2d", "Dropout3d"], 5: ["Dropout3d"]}.get(len(d.shape), [])
    texts = ["{x}.contiguous()", "{x}.clone()", "{x}.detach()", "F.dropout({x}, 0.5, self.training)"]
    texts += [f"F.{d.pick('alpha_dropout', 'feature_alpha_dropout')}({{x}}, 0.5, training=self.training)"]
    return d.module(f"nn.{d.pick(*layers)}()") if d.chance(0.4) else d.pick(*texts)


KINDS: dict[str, Callable[[Draw], str]] = (
    LAYERS
    | MIXING
    | {
        "neg": neg,
        "add": add,
        "sub": sub,
        "mul": mul,
        "square": square,
        "cat": cat,
        "stack": stack,
        "flatten": flatten,
        "reshape": reshape,
        "permute": permute,
        "transpose": transpose,
        "squeeze": squeeze,
        "unsqueeze": unsqueeze,
        "chunk": chunk,
        "split": split,
        "getitem": getitem,
        "pad": pad,
        "identity": identity,
        "abs": magnitude,
        "maximum": _extreme("maximum"),
        "minimum": _extreme("minimum"),
        "where": where,
        "resize": resize,
        "rearrange": rearrange,
        "edge_pad": edge_pad,
        "constant": constant,
    }
)
