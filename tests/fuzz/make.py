"""Random nets as Python code, each from its number alone: what `tests.fuzz.nets` gives to private inference.

The first len(PAIRS) numbers cover every ordered pair of kinds (tests/fuzz/grammar.py) that torch can compute, each
once at least: net n holds pair n somewhere in a chain of 2 to 8 operations. The chain is grown by running it, so that
shapes fit and magnitudes stay in the range that is promised. One net in BRANCHED has a second chain, which begins
at a value of the first one; the ends of both are joined.
"""

from __future__ import annotations

import copy
import operator
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.fuzz.draw import ELEMENTS, HIGHEST, Draw, Impossible
from tests.fuzz.grammar import KINDS
from tests.fuzz.raw import MOST, first_layer, raw, spread, standardising

PAIRS = [(a, b) for a in KINDS for b in KINDS]
RAW = 6  # a net in so many begins with columns as they were measured (tests/fuzz/raw.py)
BRANCHED = 4
SPREAD = 1009  # a prime that does not divide len(PAIRS): numbers in a row are pairs of all kinds
TRIES = 60  # inputs and beginnings tried for a pair


def normal(shape: tuple[int, ...], gain: float, seed: int) -> Tensor:
    """Normal numbers of this deviation."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * gain


def filled(module: nn.Module, gain: float, seed: int, var: float = 1.0, mean: float = 1.0) -> nn.Module:
    """The module with normal tensors of deviation `gain`; a norm's running statistics are about `mean` and `var`."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if name == "running_var":
                tensor.normal_(generator=generator).exp_().mul_(var)
            elif tensor.is_floating_point():
                tensor.normal_(generator=generator).mul_(mean if name == "running_mean" else gain)
    return module


def by_hand(cell: nn.RNNCellBase, x: Tensor) -> Tensor:
    """The states h of a recurrent cell that goes through x, (batch, time, features)."""
    state, found = None, []
    for time in range(x.shape[1]):
        state = cell(x[:, time], state)
        found.append(state[0] if isinstance(cell, nn.LSTMCell) else state)
    return torch.stack(found, 1)


def on_packed(layer: nn.RNNBase, x: Tensor, lengths: list[int]) -> Tensor:
    """The states of a recurrent layer on sequences of these lengths, padded as x is, (batch, time, features)."""
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    return pad_packed_sequence(layer(packed)[0], batch_first=True, total_length=x.shape[1])[0]


@dataclass
class Recipe:
    """A net's code, its input, and the setting that computes it privately."""

    number: int
    kinds: list[str] = field(default_factory=list)
    init: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    input: str = ""
    protocol: str = "masked"
    aim: str = "latency"
    parties: int = 2
    weights: str | int = "public"
    headroom: int | None = None  # None: exact windows; else bits kept above the largest magnitude
    example: bool = False  # whether it is traced on its input
    slices: int | None = None  # images at a time, where images are computed by themselves

    @property
    def source(self) -> str:
        """Python code that defines `Net` and `x`."""
        init = "\n        ".join(["super().__init__()", *self.init])
        body = "\n        ".join(self.body)
        return (
            f"class Net(nn.Module):\n    def __init__(self):\n        {init}\n\n"
            f"    def forward(self, x):\n        {body}\n\n\nx = {self.input}\n"
        )

    def build(self) -> tuple[nn.Module, Tensor]:
        """The net, in eval mode, and its input, float32."""
        names = _names()
        exec(self.source, names)
        return names["Net"]().eval(), names["x"]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Kinds that follow each other."""
        return list(zip(self.kinds, self.kinds[1:], strict=False))


def _names() -> dict[str, Any]:
    given = {"filled": filled, "normal": normal, "raw": raw, "standardising": standardising, "spread": spread}
    given |= {"by_hand": by_hand, "on_packed": on_packed}
    return {"torch": torch, "nn": nn, "F": F, "operator": operator} | given


class Growing:
    """A net under construction, and the values of all its variables for its input.

    highest: half of what every magnitude stays below. most: of the input's, as its clamp. scale: of its deviation, a
    power of ten between these two. kinds: phrases by name.
    """

    def __init__(
        self,
        rng: random.Random,
        recipe: Recipe,
        large: bool = False,
        highest: float = HIGHEST,
        most: float = HIGHEST,
        scale: tuple[float, float] = (-2, 3),
        kinds: Mapping[str, Callable[[Draw], str]] = KINDS,
    ) -> None:
        self.rng, self.recipe, self.highest, self._kinds = rng, recipe, highest, kinds
        self.root = nn.Module()
        self.root.training = False
        rank = 4 if large else rng.choice((2, 3, 4, 4, 5))
        side = (56, 112, 224, 256, 128) if large else (3, 4, 5, 6) if rank == 5 else (4, 5, 6, 8, 9, 12)
        height = rng.choice(side)
        space = [height, height if rng.random() < 0.7 else rng.choice(side), rng.choice(side)][: rank - 2]
        if large and rng.random() < 0.15:
            rank, space = 3, [rng.choice((256, 1024, 4096))]
        shape = (1 if large else rng.choice((1, 2, 3)), 1 if large else rng.choice((1, 2, 3, 4, 6)), *space)
        if rank == 2:
            shape = (shape[0], rng.choice((4, 6, 8, 12)))
        magnitude = float(f"{10 ** rng.uniform(*scale):.3g}")
        recipe.input = f"normal({shape}, {magnitude!r}, {rng.randrange(10**6)}).clamp(-{most}, {most})"
        if rng.random() < 0.2:  # equal values and zeros
            recipe.input += ".round()"
        if rng.random() < 0.2:  # a mean that does not vanish in a large pool
            recipe.input += ".abs()"
        self.values: dict[str, Tensor] = {"x": eval(recipe.input, _names())}
        self.last = "x"

    def measure(self, rng: random.Random) -> None:
        """Columns as they were measured in place of the input, and a first layer that standardises them."""
        shape, seed = tuple(self.values["x"].shape), rng.randrange(10**6)
        self.recipe.input = f"raw({shape}, {seed})"
        self.values["x"] = eval(self.recipe.input, _names())
        self.highest = (MOST + 1) / 2
        init, text = first_layer(rng, shape, seed)
        d = Draw(rng, shape, MOST, 0)
        d.init += init
        if not self._accept("raw", d, text):
            raise Impossible

    def grow(self, kind: str) -> None:
        """Append an operation; Impossible if the value does not take it, or leaves the range whatever is drawn."""
        for _ in range(6):
            value = self.values[self.last]
            d = Draw(self.rng, tuple(value.shape), float(value.abs().max()), len(self.recipe.kinds), self.highest)
            d.fresh = self.last != "x"
            earlier = [name for name in self.values if name != self.last and self.values[name].is_floating_point()]
            d.same = [name for name in earlier if self.values[name].shape == value.shape]
            d.parts = [name for name in earlier if self._joins(self.values[name], value)]
            if self._accept(kind, d, self._kinds[kind](d)):
                return
        raise Impossible

    def append(self, kind: str, text: str) -> None:
        """Append a line that is no random operation; Impossible if torch does not take it."""
        if not self._accept(kind, Draw(self.rng, (), 0.0, len(self.recipe.kinds)), text):
            raise Impossible

    @staticmethod
    def _joins(a: Tensor, b: Tensor) -> bool:
        return a.dim() == b.dim() > 1 and a.shape[:1] + a.shape[2:] == b.shape[:1] + b.shape[2:]

    def _accept(self, kind: str, d: Draw, phrase: str) -> bool:
        values = copy.deepcopy(self.values)  # a phrase may write in place; views stay views of the copies
        text = phrase.replace("{x}", self.last)
        names = _names() | {"self": self.root}
        try:
            for line in d.init:
                exec(line, names)
                self.root.eval()
            with torch.no_grad():
                out = eval(text, names, values)
        except (RuntimeError, TypeError, ValueError, IndexError):
            return False  # torch itself does not take it
        if not isinstance(out, Tensor) or not 0 < out.numel() <= ELEMENTS:
            return False
        if not all(bool((v.abs() < 2 * self.highest).all()) for v in (*values.values(), out)):
            return False
        name = f"x{len(self.recipe.kinds) + 1}"
        self.values, self.last = values | {name: out}, name
        self.recipe.init += d.init
        self.recipe.body.append(f"{name} = {text}")
        self.recipe.kinds.append(kind)
        return True


def recipe(number: int) -> Recipe:
    """Net number `number`, the same whenever and wherever it is made."""
    rng, apart = random.Random(number), random.Random(f"apart {number}")
    measured = apart if number % RAW == RAW - 1 else None
    pair = PAIRS[number * SPREAD % len(PAIRS)] if number < len(PAIRS) else None
    for attempt in range(TRIES):
        made = Recipe(number)
        try:
            growing = _chain(rng, made, pair if attempt < TRIES - 1 else None, measured)
        except Impossible:
            continue
        if len(made.kinds) >= 2 or attempt == TRIES - 1:
            if number % BRANCHED == 1:
                _branch(growing, random.Random(f"branch {number}"))
            break
    made.body.append(f"return x{len(made.kinds)}" if made.kinds else "return x")
    made.protocol = rng.choice(("masked", "masked", "gmw"))
    if made.protocol == "masked":
        place = random.Random(f"aim {number}").random()
        others = "rounds" if place > 0.8 else "link:0.001:1e9" if place > 0.7 else "latency"
        made.aim = "throughput" if place < 0.4 else others
    made.parties = rng.choice((2, 2, 2, 3))
    made.weights = rng.randrange(made.parties) if rng.random() < 0.35 else "public"
    made.headroom = rng.choice((1, 2, 4)) if rng.random() < 0.1 else None
    if "attention" in made.kinds and apart.random() < 0.5:  # masks in windows
        made.headroom = apart.choice((1, 2, 4))
    made.example, made.slices = rng.random() < 0.3, 1 if rng.random() < 0.3 else None
    return made


def _chain(
    rng: random.Random, made: Recipe, pair: tuple[str, str] | None, measured: random.Random | None = None
) -> Growing:
    """Random operations, with the pair among them; what is random is skipped where it does not fit. measured: draws
    columns as they were measured, and the layer that reads them.
    """
    length = rng.randint(2, 8)
    growing = Growing(rng, made, large=rng.random() < 0.12 and measured is None)
    if measured is not None:
        growing.measure(measured)
    before = rng.randint(0, length - 2)
    kinds = list(KINDS)
    for _ in range(before):
        _random(growing, kinds)
    for kind in pair or ():
        growing.grow(kind)
    for _ in range(length - 2 - before if pair else length - before):
        _random(growing, kinds)
    return growing


def _branch(growing: Growing, rng: random.Random) -> None:
    """A second chain of 1 to 4 operations from a value of the first one, and both ends side by side; or nothing."""
    made, end, growing.rng = growing.recipe, growing.last, rng
    before = len(made.init), len(made.body), len(made.kinds)
    starts = [name for name, v in growing.values.items() if name not in ("x", end) and v.is_floating_point()]
    try:
        if not starts:
            return
        growing.append("branch", rng.choice(starts))
        for _ in range(rng.randint(1, 4)):
            _random(growing, list(KINDS))
        growing.append("join", f"torch.cat([{{x}}.flatten(1), {end}.flatten(1)], 1)")
    except Impossible:
        for lines, length in zip((made.init, made.body, made.kinds), before, strict=True):
            del lines[length:]


def _random(growing: Growing, kinds: list[str]) -> None:
    """One more operation, of three that are tried; argmax, which would end the chain, only in its pairs."""
    for kind in growing.rng.sample(kinds, 3):
        if kind != "argmax":
            try:
                return growing.grow(kind)
            except Impossible:
                continue
