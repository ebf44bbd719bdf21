"""A real net for a search: its comparing layers, the highest k of each, prices of windows, and windows it can run.

The net is built once and planned again for other windows, which takes milliseconds; no session is needed and nothing is
sent. Behind windows of no bits a plan has other scales and fewer valid bits (mpc/plan/rounding_plan.py): `accepts`
tells whether windows still fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from hummingbird import graph
from hummingbird.bits import EXACT, BitConfig, BitWindow
from hummingbird.cost import FREE, Cost
from hummingbird.errors import ConfigError, InputError
from hummingbird.graph.steps import refs
from hummingbird.mpc.plan.net import PrivateNet
from hummingbird.mpc.protocols.step_tables import TableChoice
from hummingbird.ring import SCALE
from hummingbird.simulation.layers import Windows, check_protocol, comparisons, traced
from hummingbird.window_search.answers import results
from hummingbird.window_search.objective import Prices
from hummingbird.window_search.problem import ComparingLayer


class SearchedNet:
    """A plain net for images of one shape, as a search needs it: its comparing layers, their limits and prices.

    image_shape: (C, H, W) without the batch. `results`: the name of each result, and its shape for one image.
    `fingerprint`: identifies the net and its weights.
    Raises ModelError for a net that cannot be converted, InputError for one without comparing layers or that does not
    take such images, ConfigError for an unknown protocol.

        searched = SearchedNet(net, (3, 32, 32))
        groups = group_layers(searched.layers(largest), "stage")
        search_bits(groups, evaluate, 8 / 64, accepts=searched.accepts, identity=searched.fingerprint)
    """

    def __init__(self, net: nn.Module, image_shape: Sequence[int], protocol: str = "masked") -> None:
        check_protocol(protocol, 2)
        self.image_shape, self.protocol = tuple(image_shape), protocol
        steps = traced(net)
        self._windows = Windows(steps, protocol)
        if not self._windows.names:
            hint = "a net without ReLU or another comparing layer needs no windows"
            raise InputError("no comparing layers", where="net", hint=hint)
        self.fingerprint = graph.fingerprint(steps)
        plan = self._windows.plan(BitConfig(EXACT))
        costs = PrivateNet(plan, self._windows.steps, {}, "").costs((1, *self.image_shape), 2)
        self.results = results(self._windows.steps, self.image_shape)
        self._outputs = {planned.name: planned.elements for planned in costs}
        self._limits = {
            step.name: comparison.valid - (max(plan[ref.index].scale for ref in refs(step.inputs)) - SCALE)
            for step, comparison in comparisons(plan)
        }
        self._costs: dict[tuple[BitWindow, int, int], dict[str, Cost]] = {}

    @property
    def names(self) -> list[str]:
        """Qualified names of the comparing layers, in the order of execution."""
        return self._windows.names

    def layers(self, largest: Mapping[str, int]) -> list[ComparingLayer]:
        """Return the net's comparing layers in the form that a search takes, with their limits.

        largest: for each layer's name the largest |x| that it compares, in ring units. Raises InputError if its names
        are not exactly those of the comparing layers.
        """
        if set(largest) != set(self.names):
            wrong = sorted(set(largest) ^ set(self.names))
            hint = f"one for each of {', '.join(self.names)}"
            raise InputError(f"magnitudes and layers differ in {', '.join(wrong)}", where="largest", hint=hint)
        return [ComparingLayer(name, self._outputs[name], largest[name], self._limits[name]) for name in self.names]

    def accepts(self, config: BitConfig) -> bool:
        """Return whether the net can be converted with these windows."""
        try:
            self._windows.plan(config)
        except ConfigError:
            return False
        return True

    def prices(self, parties: int) -> Prices:
        """Return a function that prices this net's layers, for `online_bytes` and `predicted_seconds`.

        The function takes a layer, its window and the number of images in a batch, and returns the layer's `Cost`.
        Which layers count the rounds that they share with others is found for a net with this window everywhere. So if
        layers that share rounds have different windows, the sum of their rounds may be too small.
        """

        def price(layer: ComparingLayer, window: BitWindow, images: int) -> Cost:
            if window.w == 0:
                return FREE
            key = window, images, parties
            if key not in self._costs:
                self._costs[key] = self._priced(*key)
            return self._costs[key][layer.name]

        return price

    def in_all(self, config: BitConfig, parties: int) -> dict[str, int]:
        """Return, for each step by name, the bits that all parties and the dealer send together for one image.

        Tables are cut for the fewest bytes (the aim "throughput").
        """
        costs = PrivateNet(self._windows.plan(config, TableChoice.of("throughput")), self._windows.steps, {}, "").costs(
            (1, *self.image_shape), parties
        )
        return {planned.name: parties * planned.cost.bits + planned.cost.offline_bits for planned in costs}

    def _priced(self, window: BitWindow, images: int, parties: int) -> dict[str, Cost]:
        """Return the price of every comparing layer, by name, if all of them have the same window.

        images: how many images the priced batch has. All else, such as the scales of shares, is planned as for exact
        comparisons.
        """
        plan = self._windows.plan(BitConfig(EXACT))
        config = self._windows.order.windows(BitConfig(window))
        for step, comparison in comparisons(plan):
            comparison.window = config.window(step.name)
        costs = PrivateNet(plan, self._windows.steps, {}, "").costs((images, *self.image_shape), parties)
        return {planned.name: planned.cost for planned in costs if planned.name in self.names}
