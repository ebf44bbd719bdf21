"""A net's steps as its parties compute them: ReLUs behind max poolings (graph/rewrite.py), and norms
whose means are taken by the weights before them (graph/rewrite.py); columns of small weights that are kept
(mpc/plan/columns.py); and softmaxes that know which places are hidden (mpc/layers/hidden.py).

A pooling that passes a ReLU compares values of both signs. The ReLU's window holds |x| < 2^(k - 1), less (N - 1) 2^m,
and two such values differ by less than 2^k, less 2 (N - 1) 2^m: so k + 1 bits hold their difference, or k + 2 where the
pooling's own m is larger by more than one (m: the lowest bit that decides, `BitWindow.low`). Its window gets as many,
if it has fewer; then whatever is right with the ReLU first is right with the pooling first, and windows found for one
order serve the other. But a pooling with a q rounds: every level of its tree may add N / 2 units of 2^q to a maximum,
and values as near as that to the end of the ReLU's window may leave it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from hummingbird.bits import BitConfig, BitWindow
from hummingbird.graph import Step, centered, pools_first
from hummingbird.mpc.layers import hidden
from hummingbird.mpc.plan import columns
from hummingbird.mpc.protocols.registry import named


class Rewritten(NamedTuple):
    """Steps as the parties compute them; passed: the ReLUs that a max pooling, by name, now comes before."""

    steps: list[Step]
    passed: Mapping[str, Sequence[str]]

    @classmethod
    def of(cls, steps: Sequence[Step], protocol: str, private: BitConfig | None = None) -> Rewritten:
        """The steps for a protocol. "gmw" keeps the net's own: its pooling would have to rescale before it compares.

        private: what the net is converted with if its weights are private, else None.
        """
        steps = hidden.hidden_left_out(columns.kept(steps) if private is None else columns.marked(steps, private))
        if not named(protocol).takes_rounded_shares:
            return cls(steps, {})
        return cls(*pools_first(centered(steps)))

    def windows(self, config: BitConfig) -> BitConfig:
        """The windows for this order."""
        wider = {}
        for pool, relus in self.passed.items():
            window = config.window(pool)
            asked = [_room(config.window(relu), window) for relu in relus]
            if window.w:  # without bits it takes the first place, and compares nothing
                wider[pool] = replace(window, k=min(64, max(window.k, *asked)))
        return replace(config, layers={**config.layers, **wider})


def _room(relu: BitWindow, pool: BitWindow) -> int:
    """k of a pooling whose values are in the ReLU's window; 0 for a ReLU without bits, which bounds nothing."""
    return 0 if not relu.w else relu.k + (1 if pool.low <= relu.low + 1 else 2)
