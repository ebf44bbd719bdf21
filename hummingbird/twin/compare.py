"""The law on whole tensors: ReLU as fast as memory allows, with the gradient of the kept sign.

Values pass through in pieces that stay in the processor's cache and below the size from which torch starts threads;
numbers for a piece come from one call of the generator, four to a 64-bit word where m <= 16.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hummingbird.twin.law import UNIT, Law

PIECE = 1 << 15  # elements: torch's grain size, and 0.5 MB of scratch


class Compare:
    """relu(v) and v itself, as a protocol computes them.

    seed: None takes torch's own generator. clamp: values are moved to the nearest one that is surely inside the
    window, in training.
    """

    def __init__(self, seed: int | None, clamp: bool) -> None:
        self.seed, self.clamp = seed, clamp
        self.training = False
        self._generators: dict[torch.device, torch.Generator] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Compare:
        return self  # the layers of a copied twin hold it too; every forward sets its mode

    def generator(self, device: torch.device) -> torch.Generator | None:
        """This twin's generator on a device."""
        if self.seed is None:
            return None
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self.seed)
        return self._generators[device]

    def relu(self, v: Tensor, law: Law) -> Tensor:
        """bit z, of v's type and memory format; real v of any shape."""
        v = self._clamped(v, law)
        far = leaves(v, law)
        if not law.draws and not far:
            return F.relu(v)
        out: Tensor = _ReLU.apply(v, law, self.generator(v.device), far)
        return out

    def both(self, v: Tensor, law: Law, u: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """bit z and z; u: as drawn before (gmw: shares moved by a public constant keep their low bits)."""
        v = self._clamped(v, law)
        far = leaves(v, law)
        if not law.draws and not far:
            return F.relu(v), v
        with torch.no_grad():
            u = self.draw(v, law) if u is None else u.clone()  # in float32, as the law has it
            bit, moved = law.anywhere(v.float(), u) if far else (law.inside(v.float(), u), None)
            bit = bit.to(v.dtype)
        z = v if moved is None else v + moved.to(v.dtype)
        return z * bit, z

    def draw(self, v: Tensor, law: Law) -> Tensor:
        """u for every element of v."""
        u = torch.empty(v.numel(), dtype=torch.float32, device=v.device)
        words = torch.empty(law.words(v.numel()), dtype=torch.int64, device=v.device)
        return law.draw(u, words, self.generator(v.device)).view(v.shape)

    def _clamped(self, v: Tensor, law: Law) -> Tensor:
        if not (self.clamp and self.training):
            return v
        low, high = law.range
        return v.clamp(_inner(low, v.dtype), _inner(high - UNIT, v.dtype))


def _inner(bound: float, dtype: torch.dtype) -> float:
    """The number of that type next to the bound, towards zero."""
    near = torch.tensor(bound, dtype=dtype)
    if abs(float(near)) > abs(bound):
        near = torch.nextafter(near, torch.zeros_like(near))
    return float(near)


def leaves(v: Tensor, law: Law) -> bool:
    """Whether a value may leave the window."""
    low, high = law.range
    if high == float("inf") or not v.numel():
        return False
    least, most = torch.aminmax(_in_memory_order(v.detach())[0])
    return not (float(least) >= low and float(most) < high)


def _in_memory_order(v: Tensor) -> tuple[Tensor, bool]:
    """The same elements, contiguous: channels_last is read in its own order (True)."""
    if v.dim() == 4 and not v.is_contiguous() and v.is_contiguous(memory_format=torch.channels_last):
        return v.permute(0, 2, 3, 1), True
    return v.contiguous(), False


class _ReLU(torch.autograd.Function):
    """bit z with one pass over memory; the gradient goes where the value went."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, law: Law, generator: torch.Generator | None, far: bool) -> Tensor:
        ordered, swapped = _in_memory_order(v)
        flat = ordered.view(-1)
        count, out = flat.numel(), torch.empty_like(flat)
        kept = torch.empty(count, dtype=torch.bool, device=v.device) if ctx.needs_input_grad[0] else None
        piece = PIECE if torch.get_num_threads() > 1 else 4 * PIECE  # more per call where there are no threads to start
        size = min(piece, count) if v.device.type == "cpu" else count
        words = torch.empty(law.words(size), dtype=torch.int64, device=v.device)
        scratch, real = torch.empty(2, max(1, size), dtype=torch.float32, device=v.device)
        for start in range(0, count, max(1, size)):
            part, result = flat[start : start + size], out[start : start + size]
            number = part.numel()
            single = part if v.dtype == torch.float32 else real[:number].copy_(part)
            u = law.draw(scratch[:number], words, generator)
            # Bits are 0. and 1.: torch multiplies floats by bools several times more slowly.
            bit, moved = law.anywhere(single, u) if far else (law.inside(single, u), None)
            if kept is not None:
                kept[start : start + size] = bit
            if moved is not None:
                part = moved.to(v.dtype).add_(part)
            torch.mul(part, bit.to(v.dtype), out=result)

        def shaped(x: Tensor) -> Tensor:
            x = x.view(ordered.shape)
            return x.permute(0, 3, 1, 2) if swapped else x

        if kept is not None:
            ctx.save_for_backward(shaped(kept))
        return shaped(out)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (kept,) = ctx.saved_tensors
        return gradient * kept, None, None, None
