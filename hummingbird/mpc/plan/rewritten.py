"""Rewrites a net's steps to those that the parties compute.

There are four rewrites: max poolings move before ReLUs, and the weights before a norm subtract its mean
(graph/rewrite.py); small columns of weights keep their precision (mpc/plan/columns.py); masks move into the softmaxes
(mpc/layers/hidden.py).

A pooling that moves before a ReLU compares values of both signs. The ReLU's window holds |x| < 2^(k - 1) - (N - 1) 2^m,
so two such values differ by less than 2^k - 2 (N - 1) 2^m. k + 1 bits hold their difference, or k + 2 bits if the
pooling's own m is larger by more than one (m: the lowest bit that decides, `BitWindow.low`). The pooling's window is
widened to as many bits. Then every net that is right with the ReLU first is right with the pooling first, and windows
found for one order are valid for the other. There is one exception: a pooling with a q rounds, so that every level of
its tree may add N / 2 units of 2^q to a maximum. Values this close to the bound of the ReLU's window may leave it.
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
    """The steps of a net after all rewrites for private inference.

    passed: for each max pooling, by name, the ReLUs before which it has moved.
    """

    steps: list[Step]
    passed: Mapping[str, Sequence[str]]

    @classmethod
    def of(cls, steps: Sequence[Step], protocol: str, private: BitConfig | None = None) -> Rewritten:
        """Rewrite the steps for a protocol. "gmw" keeps poolings and norms: a moved pooling would need a rescaling.

        private: the configuration of the conversion if weights are private, else None.
        """
        steps = hidden.hidden_left_out(columns.kept(steps) if private is None else columns.marked(steps, private))
        if not named(protocol).takes_rounded_shares:
            return cls(steps, {})
        return cls(*pools_first(centered(steps)))

    def windows(self, config: BitConfig) -> BitConfig:
        """Widen the windows of the poolings that were moved before ReLUs, as the new order needs.

        Returns the configuration with these windows.
        """
        wider = {}
        for pool, relus in self.passed.items():
            window = config.window(pool)
            asked = [_room(config.window(relu), window) for relu in relus]
            if window.w:  # a pooling without bits compares nothing: it takes the first element
                wider[pool] = replace(window, k=min(64, max(window.k, *asked)))
        return replace(config, layers={**config.layers, **wider})


def _room(relu: BitWindow, pool: BitWindow) -> int:
    """Return the upper bound k of the window that a max pooling needs when it reads the values of a ReLU's input.

    relu, pool: the windows of the ReLU and of the pooling. Returns 0 for a ReLU whose window has no bits: its values
        have no bound.
    """
    return 0 if not relu.w else relu.k + (1 if pool.low <= relu.low + 1 else 2)
