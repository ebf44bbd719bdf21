"""Norms, products of two private values, attention and integers as phrases: MIXING[kind](draw) is a Python expression
in {x} (tests/fuzz/grammar.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tests.fuzz.draw import Draw

_ROWS = 2.0**26  # what the squares of a row stay below: a norm's range is 2^30
_COMPARED = 100  # comparisons that a norm makes for a row


def _norm_of(d: Draw, length: int) -> None:
    """Say that rows have this many values: their squares must be in range, and their statistics affordable."""
    d.need(2 <= length and d.numel // length * _COMPARED <= 30_000)
    d.need(length * d.size**2 < _ROWS)


def norm_last(d: Draw) -> str:
    d.need(len(d.shape) >= 2)
    dims = d.rng.randint(1, min(2, len(d.shape) - 1))
    sizes = d.shape[-dims:]
    _norm_of(d, math.prod(sizes))
    eps = d.rng.choice((1e-5, 1e-5, 1e-3, 1.0))
    if d.chance(0.3):
        return d.module(f"nn.RMSNorm({sizes}, eps={eps})", d.gain(1 / 9, 1e-3, 10.0))
    if d.chance(0.4):
        weight = d.constant(sizes, 1.0) if d.chance(0.5) else "None"
        return f"F.layer_norm({{x}}, {sizes}, {weight}, None, {eps})"
    affine = f"elementwise_affine={d.chance(0.8)}, bias={d.chance(0.5)}"
    return d.module(f"nn.LayerNorm({sizes}, eps={eps}, {affine})", d.gain(1 / 9, 1e-3, 10.0))


def norm_channels(d: Draw) -> str:
    d.need(len(d.shape) in (2, 3, 4, 5))
    channels, places = d.shape[1], math.prod(d.shape[2:])
    groups = d.rng.choice([g for g in range(1, channels + 1) if channels % g == 0])
    d.need(d.shape[0] * channels // groups * places > 1)  # torch asks for more than one value of a channel
    if len(d.shape) > 2 and d.chance(0.4):
        _norm_of(d, places)
        kind = f"nn.InstanceNorm{len(d.shape) - 2}d({channels}, affine={d.chance(0.5)})"
        return d.module(kind, 1.0) if d.chance(0.7) else "F.instance_norm({x})"
    _norm_of(d, channels // groups * places)
    if d.chance(0.3):
        return f"F.group_norm({{x}}, {groups}, None, {d.constant((channels,), 1.0)})"
    return d.module(f"nn.GroupNorm({groups}, {channels}, affine={d.chance(0.8)})", d.gain(1 / 9, 1e-3, 10.0))


def statistic(d: Draw) -> str:
    """Norms, deviations and cosines of rows along one dimension, or two."""
    d.need(len(d.shape) >= 2)
    dims = sorted(d.rng.sample(range(1, len(d.shape)), d.rng.randint(1, min(2, len(d.shape) - 1))))
    _norm_of(d, math.prod(d.shape[dim] for dim in dims))
    dim = tuple(dims) if len(dims) > 1 else d.rng.choice((dims[0], dims[0] - len(d.shape)))
    keep, correction = d.chance(0.5), d.rng.randint(0, 1)
    y = d.rng.choice(d.same) if d.same else "({x} * 0.5)"
    less = f"({{x}} - {{x}}.mean({dim}, keepdim=True))"
    texts = [f"{{x}}.norm(dim={dim}, keepdim={keep})", f"{{x}}.std({dim}, correction={correction}, keepdim={keep})"]
    texts += [f"F.normalize({{x}}, dim={dim}, eps={d.rng.choice((1e-12, 1e-3, 0.5))})"]
    texts += [f"{{x}} / {{x}}.norm(dim={dim}, keepdim=True)", f"{less} / ({{x}}.std({dim}, keepdim=True) + 1e-7)"]
    texts += [f"{{x}}.var({dim}, keepdim={keep})"] if d.size**2 < d.highest else []
    if len(dims) == 1:
        texts += [f"F.cosine_similarity({{x}}, {y}, {dim})"]
    return d.pick(*texts)


def _small(d: Draw) -> None:
    d.need(d.numel <= 4000 and d.shape[-1] * d.shape[-2] * d.size**2 < d.highest)


def product(d: Draw) -> str:
    """Products of two values as matrices."""
    d.need(len(d.shape) >= 3)
    _small(d)
    y = d.rng.choice(d.same) if d.same else "({x} * 0.5)"
    rank = len(d.shape)
    texts = [f"{{x}} @ {y}.transpose(-1, -2)", f"torch.matmul({{x}}.transpose(-2, -1), {y})"]
    texts += [f"{{x}} @ {y}[:, :1].transpose(-1, -2)"]
    if rank == 3:
        texts += [f"torch.bmm({{x}}, {y}.permute(0, 2, 1))"]
        texts += [f"torch.baddbmm({{x}} @ {{x}}.transpose(1, 2), {{x}}, {y}.transpose(1, 2), beta=0.5, alpha=2)"]
    return d.pick(*texts)


def einsum(d: Draw) -> str:
    d.need(len(d.shape) >= 2)
    y = d.rng.choice(d.same) if d.same else "({x} * 0.5)"
    if len(d.shape) == 2:
        equation = d.pick("bi,bi->b", "bi,bj->bij", "bi,bj->bj", "bi,bi->bi", "bi,ci->bc")
        d.need(d.shape[1] * d.size**2 < d.highest and d.numel <= 200)
    else:
        _small(d)
        equations = {3: ("bij,bkj->bik", "bij,bil->bjl", "bij,bij->bi", "bij,bij->jb", "bij,bkl->bl"), 4: (
            "bchw,bdhw->bcd", "bchw,bchv->bcwv", "bchw,bchw->bhw", "bchw,bcij->bij", "bchw,bcvw->bcvh"
        )}  # fmt: skip
        d.need(len(d.shape) in equations)
        equation = d.pick(*equations[len(d.shape)])
    return f"torch.einsum('{equation}', {{x}}, {y})"


def attention(d: Draw) -> str:
    """Queries from the value, keys and values from an earlier one."""
    d.need(len(d.shape) in (3, 4) and d.shape[-2] <= 12)
    _small(d)
    d.compares(60 * d.shape[-2] / d.shape[-1])
    length = d.shape[-2]
    y = d.rng.choice(d.same) if d.same else "{x}"
    if len(d.shape) == 3 and d.chance(0.5):
        heads = d.rng.choice([h for h in (1, 2, 3) if d.shape[-1] % h == 0])
        gain = min(1.0, d.gain(d.shape[-1]))
        made = d.module(f"nn.MultiheadAttention({d.shape[-1]}, {heads}, bias={d.chance(0.5)}, batch_first=True)", gain)
        mask = f", attn_mask=torch.ones({length}, {length}, dtype=torch.bool).triu(1)" if d.chance(0.3) else ""
        return made.replace("({x})", f"({{x}}, {y}, {d.pick('{x}', y)}{mask})[0]")
    mask = f"torch.ones({length}, {length}).tril().bool()"
    infinite = f"torch.zeros({length}, {length}).masked_fill(~{mask}, -torch.inf)"
    option = d.pick("", "", ", is_causal=True", f", attn_mask={mask}", f", attn_mask={infinite}", ", scale=0.1")
    return f"F.scaled_dot_product_attention({{x}}, {y}, {d.pick('{x}', y)}{option})"


def encoder(d: Draw) -> str:
    d.need(len(d.shape) == 3 and d.shape[-1] % 2 == 0 and d.shape[-2] <= 12 and d.numel <= 600)
    d.need(d.shape[-1] * d.size**2 < _ROWS / 64 and d.size < 100)
    options = f"batch_first=True, norm_first={d.chance(0.5)}, activation={d.pick('relu', 'gelu')!r}"
    return d.module(f"nn.TransformerEncoderLayer({d.shape[-1]}, 2, 6, {options})", 0.3)


def integers(d: Draw) -> str:
    """Comparisons as torch's integers."""
    d.compares(4)
    test = f"({{x}} {d.pick('<', '<=', '>', '>=')} {d.rng.choice((0.0, 1e-6, 0.5, -0.25)) * min(d.size, 100.0):.3g})"
    y = d.rng.choice(d.same) if d.same else "{x}"
    return d.pick(f"{test} * 3", f"torch.where({test}, 3, -1)", f"{test}.long() * {y}", f"1 - {test}.int()",
                  f"({test} * 2).masked_fill({{x}} > 0.5, 7)")  # fmt: skip


def apart(d: Draw) -> str:
    """A dimension as two, or as the values along it."""
    d.need(len(d.shape) >= 2)
    axis = d.rng.randint(1, len(d.shape) - 1)
    size = d.shape[axis]
    factor = d.rng.choice([f for f in range(1, size + 1) if size % f == 0])
    texts = [f"{{x}}.unflatten({axis}, ({factor}, -1))", f"{{x}}.unbind({axis})[{d.rng.randrange(size)}]"]
    return d.pick(*(texts if len(d.shape) < 4 else texts[1:]))


MIXING: dict[str, Callable[[Draw], str]] = {
    "norm_last": norm_last,
    "norm_channels": norm_channels,
    "statistic": statistic,
    "product": product,
    "einsum": einsum,
    "attention": attention,
    "encoder": encoder,
    "integers": integers,
    "apart": apart,
}
