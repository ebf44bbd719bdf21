"""Simulation of two-party inference without a dealer (hummingbird/hybrid): its integers, with random low bits.

Every layer computes on integers, as the two sides do on shares, with the same rounded weights. The only randomness is
in the low bits of the data side's shares, which are cut off: the caller supplies them, or shares are drawn, which needs
no weights. Cuts are not independent: a value that is read twice has one share.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from hummingbird import graph
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.hybrid.convert import TracedNet, check_windows
from hummingbird.hybrid.ideal import Plain, low_bits
from hummingbird.hybrid.plan import Plan, Step

SLICE = 16  # images at a time: the values of a ResNet-18's layers then stay in a CPU's caches, 1.6 times as fast as 64


class CutSimulator(nn.Module):
    """A module that computes a net with windows as the two sides of `hybrid` do, in one process.

    It runs on the CPU, without gradients, always as in eval mode. The net is planned at the first images, and again
    after a change of a weight, the windows or the images' shape. Raises ModelError for a net that cannot be traced,
    ConfigError for windows of layers that it lacks; forward() also raises the errors of `hybrid.convert_model`.
    """

    def __init__(self, net: nn.Module, config: BitConfig, seed: int | None) -> None:
        super().__init__()
        self.net, self.training = net, False
        self._generator = None if seed is None else seeded(seed)
        self._traced: TracedNet | None = None
        self._traced_of: list[Any] = []
        self.set_bits(config)

    def extra_repr(self) -> str:
        return "plaintext twin of hummingbird.hybrid"

    def set_bits(self, bits: BitConfig | BitWindow | str | PathLike[str] | None) -> None:
        """Change the windows. Raises ConfigError for windows of layers that the net lacks; then the old ones stay."""
        config = BitConfig.of(bits)
        check_windows(graph.trace(self.net), config)
        self._bits = config
        self._plain: Plain | None = None

    def restart(self, seed: int) -> None:
        """Set the seed and begin anew: later calls draw the random numbers of a new simulation with this seed."""
        self._generator = seeded(seed)

    def planned(self, shape: tuple[int, ...]) -> Plain:
        """Return the net on plain integers (`Plain`), planned for images of this shape with the current weights and
        windows.

        shape: of one image, (C, H, W). The plan is made again only if the shape, a weight or the windows have changed.
        """
        state = [shape, *((id(t), t._version) for t in (*self.net.parameters(), *self.net.buffers()))]
        if self._traced is None or state != self._traced_of:
            self._traced, self._traced_of, self._plain = TracedNet(self.net, shape), state, None
        if self._plain is None:
            self._plain = Plain(self._traced.plan(self._bits))
        return self._plain

    def forward(self, x: Tensor, low: Mapping[int, Tensor] | None = None) -> Any:
        """Run the net on real images; return its result, float32.

        low: the low bits that each cut drops from the data side's share: for the number of each step that cuts, int64
        (B, *shape). None: random ones. Raises InputError for images beyond the windows' `input_range`.
        """
        plain = self.planned(tuple(x.shape[1:]))
        images = plain.plan.encode(x.detach().float().cpu())
        if low is None:
            values = torch.cat(
                [plain(part, uniform_low(plain.plan, len(part), self._generator)) for part in images.split(SLICE)]
            )
        else:
            values = plain(images, low)
        return plain.plan.results(plain.plan.decode(values).to(x.device))


def seeded(seed: int) -> torch.Generator:
    """Make a random generator for low bits; it need not be secret, as a simulation hides nothing."""
    return torch.Generator().manual_seed(seed)


def uniform_low(plan: Plan, images: int, generator: torch.Generator | None) -> dict[int, Tensor]:
    """Draw for each step that cuts low bits off the bits that it drops from the data side's share, by the step's
    number.

    They are the low bits of uniform shares: int64 (images, *shape). images: how many. generator: of the random numbers;
    None: torch's own.
    """

    def share(number: int, step: Step) -> Tensor:
        found = torch.empty(images, *step.shape, dtype=torch.int64)
        return found.random_(0, 1 << step.ring, generator=generator)

    return low_bits(plan, share, lambda number, step, r: share(number, step))
