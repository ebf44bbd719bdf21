"""The comparison of a simulation in plain torch; kernels/simulation.py has the equations."""

from __future__ import annotations

import torch
from torch import Tensor

from hummingbird.kernels import simulation
from hummingbird.kernels.registry import implements
from hummingbird.kernels.simulation import FIRST, SECOND, STEP, WORD, Cut

_SCALE = 16  # ring.SCALE; hummingbird.ring imports the kernels


@implements(simulation.twin_relu, "reference")
def twin_relu(v: Tensor, key: int, cut: Cut, both: bool) -> tuple[Tensor, Tensor | None]:
    """Implement `kernels.simulation.twin_relu` in plain torch: simulate private ReLUs."""
    real = v if v.dtype == torch.float64 else v.float()
    turns, size = torch.round(real * 2.0 ** (_SCALE - cut.k)), 2.0 ** (cut.k - _SCALE)
    near = real - turns * size
    finite = near.isfinite()
    scaled = torch.where(finite, near, 0.0).double() * 2.0**_SCALE
    r = scaled.round().clamp(max=2.0**63 - 1024).long()  # the largest double below 2^63, for k = 64
    u = drawn(v.numel(), key, cut.m, cut.draws, v.device)
    place = (r + u - _signed(cut.minus)) & _signed(WORD >> 64 - cut.k)
    bit = (place >= 0) & (place <= cut.below - 1)  # negative for k = 64 only: unsigned, it is above 2^63
    over = r > (1 << cut.k - 1) - 1 - u
    if cut.q:
        whole = r + (u & (1 << cut.q) - 1) >> cut.q << cut.q
        turned = whole - (over.long() << cut.k if cut.k < 64 else 0)
        passed, lifted = (torch.where(finite, x.double() * 2.0**-_SCALE, near) for x in (whole, turned))
    else:
        passed, lifted = real - turns * (size if cut.wraps else 0.0), near - size * over
    y = torch.where(bit | ~finite, passed, 0.0).to(v.dtype)
    if not both or not cut.wraps:
        return y, v if both else None
    return y, lifted.to(v.dtype)


def drawn(count: int, key: int, m: int, draws: int, device: torch.device) -> Tensor:
    """Draw the random number u of each element, a sum of `draws` uniform numbers below 2^m, mod 2^64: int64 (count,).

    kernels/simulation.py says how the numbers follow from `key`.
    """
    bits = 16 if m <= 16 else 32
    u = torch.zeros(count, dtype=torch.int64, device=device)
    groups = torch.arange(-(-count * bits // 64), device=device)
    for number in range(draws):
        words = _mixed(groups * _signed(draws * STEP) + _signed(key + (number + 1) * STEP))
        part = words.view(torch.int16 if bits == 16 else torch.int32)[:count].long() & (1 << bits) - 1
        u += part >> bits - m if m <= bits else part << m - bits
    return u


def _mixed(x: Tensor) -> Tensor:
    for shift, factor in ((30, FIRST), (27, SECOND)):
        x = (x ^ _right(x, shift)) * _signed(factor)
    return x ^ _right(x, 31)


def _right(x: Tensor, shift: int) -> Tensor:
    """Shift int64 x right by `shift` bits as an unsigned number: zeros come in from the left, not the sign."""
    return x >> shift & (1 << 64 - shift) - 1


def _signed(x: int) -> int:
    """Return the int64 that equals x mod 2^64."""
    return (x + (1 << 63) & WORD) - (1 << 63)
