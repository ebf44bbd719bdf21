"""Random nets for two parties without a dealer, by `hummingbird.hybrid` and by torch: `tests.fuzz.nets --two-party`.

Chains of the phrases of tests/fuzz/grammar.py that `hybrid` converts, with sums, branches and now and then what it
refuses; either side garbles. Windows [k:m) have up to 19 bits, some an m of its own for every layer, some the least k
that holds all values, so that a bit that lacks shows. The answer is that of ideal parts (`hybrid.ideal`), under masks
that are drawn, and every `REALLY`-th net also runs between its two sides, in this process: bit for bit the same. The
bounds are those of tests/fuzz/cut.py.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass

import torch
from torch import Tensor

from hummingbird import graph
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.errors import ConfigError, HummingbirdError
from hummingbird.hybrid import ideal
from hummingbird.hybrid.convert import RANGE, TracedNet, convert_model
from hummingbird.hybrid.encrypted import mask_seed
from hummingbird.hybrid.net import HybridNet
from hummingbird.hybrid.numbering import slot_seed
from hummingbird.hybrid.plan import GARBLERS, Model
from hummingbird.prg import derive
from tests.fuzz.cut import Cut, Promise
from tests.fuzz.draw import Draw, Impossible
from tests.fuzz.grammar import KINDS as GRAMMAR
from tests.fuzz.make import Growing, Recipe
from tests.fuzz.run import Result, hinted, refusal

REALLY = 60  # one net in so many runs between two sides, too
TRIES = 8
SEED = bytes(16)
LEAST_K = 10  # of a window
_TORCH = 1e-5  # of the largest output: float64 against the float32 of folded norms


def branches(d: Draw) -> str:
    """A sum of two layers on one value, one of them perhaps behind a norm."""
    n, channels = d.spatial(), d.shape[1]
    out, stride, gain = d.rng.randint(1, 6), d.rng.randint(1, 2), d.gain(9 * channels)
    parts = [
        d.module(f"nn.Conv{n}d({channels}, {out}, {kernel}, stride={stride}, padding={kernel // 2})", gain)
        for kernel in (3, 1)
    ]
    if d.chance(0.5):
        parts[0] = d.module(f"nn.BatchNorm{n}d({out})", 1.0).replace("{x}", parts[0])
    return " + ".join(parts)


def broadcast(d: Draw) -> str:
    """A sum with a value of one number for each channel."""
    dims = tuple(range(2, 2 + d.spatial()))
    mean = f"{{x}}.mean({dims}, keepdim=True)"
    return d.pick(f"{{x}} + {mean}", f"{mean} + {{x}}")


# How often each kind is drawn; the last of them are refused.
WEIGHTS = {
    **{
        "conv": 7,
        "linear": 3,
        "batch_norm": 2,
        "branches": 2,
        "relu": 7,
        "hardtanh": 2,
        "leaky_relu": 2,
        "prelu": 1,
        "add": 4,
    },
    **{"max_pool": 3, "avg_pool": 2, "adaptive_avg_pool": 1, "mean": 1, "pad": 1, "identity": 0.5},
    **{"flatten": 2, "reshape": 1, "permute": 1, "transpose": 1, "squeeze": 0.5, "unsqueeze": 0.5},
    **{
        "broadcast": 0.3,
        "cat": 1,
        "scale": 1,
        "scale_tensor": 1,
        "shift": 1,
        "sub": 0.5,
        "neg": 0.5,
        "getitem": 0.2,
        "gelu": 0.1,
        "conv_transpose": 0.1,
    },
}
KINDS = GRAMMAR | {"branches": branches, "broadcast": broadcast}
_FIRST = ("conv", "conv", "branches", "linear", "batch_norm", "max_pool", "avg_pool")


@dataclass
class Windowed(Recipe):
    """A net with the window of all its layers. own: whether every ReLU has an m of its own. tight: k is the least."""

    window: BitWindow = BitWindow(21, 5)
    own: bool = False
    tight: bool = False
    garbler: str = GARBLERS[0]

    def bits(self, traced: TracedNet, k: int) -> BitConfig:
        """The windows of a net's layers, up to bit k."""
        default = BitWindow(k, self.window.m)
        if not self.own:
            return BitConfig(default)
        rng = random.Random(self.number)
        names = [step.name for step in traced.steps if step.op in ("relu", "leaky_relu", "prelu", "hardtanh")]
        return BitConfig(default, {name: BitWindow(k, rng.randint(4, 6)) for name in names})

    def planned(self, traced: TracedNet, x: Tensor) -> tuple[BitConfig, Model, Cut, Tensor, Tensor]:
        """Windows, the model, and the result that it bounds, with the bound; ConfigError as of `make_plan`."""
        for k in range(LEAST_K if self.tight else self.window.k, self.window.k + 1):
            config = self.bits(traced, k)
            try:
                model = traced.plan(config, self.garbler)
            except ConfigError:
                if k == self.window.k:
                    raise
                continue
            known = Cut(traced.steps, model, config)
            expected, bound = known.walk(x)
            if not known.outside:
                break
        return config, model, known, expected, bound


def recipe(number: int) -> Windowed:
    """Net number `number`, the same whenever and wherever it is made: mostly one that `hybrid` converts."""
    rng = random.Random(f"two parties {number}")
    for _ in range(TRIES):
        made = _drawn(rng, number)
        if rng.random() < 0.1 or _converts(made):
            break
    return made


def _drawn(rng: random.Random, number: int) -> Windowed:
    window = BitWindow(rng.randint(21, 23), rng.randint(4, 6))
    made = Windowed(number, protocol="two-party", window=window, own=rng.random() < 0.3, garbler=rng.choice(GARBLERS))
    growing = Growing(rng, made, highest=2.0 ** (window.k - 19), most=RANGE, scale=(-1, 0.3), kinds=KINDS)
    kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
    if rng.random() < 0.8:
        _one_of(growing, rng.sample(_FIRST, 3))
    for _ in range(rng.randint(1, 8)):
        if rng.random() < 0.1:
            growing.last = rng.choice(list(growing.values))
        _one_of(growing, rng.choices(kinds, weights, k=3))
    made.body.append(f"return {growing.last}")
    made.tight = rng.random() < 0.4
    return made


def _converts(made: Windowed) -> bool:
    """Whether no step is refused; whatever else there is to say is for `judge`."""
    net, x = made.build()
    try:
        TracedNet(net, tuple(x.shape[1:]))
    except HummingbirdError:
        return False
    except Exception:  # noqa: BLE001 - to be told
        return True
    return True


def _one_of(growing: Growing, kinds: list[str]) -> None:
    """One more operation, the first of these that fits."""
    for kind in kinds:
        try:
            return growing.grow(kind)
        except Impossible:
            continue


# Verdicts -------------------------------------------------------------------------------------------------------------


def judge(number: int) -> Result:
    """The verdict on net `number`."""
    made = recipe(number)
    result = Result(number, "raw", protocol=made.protocol, parties=2, weights=f"{made.garbler} garbles")
    result.kinds = made.kinds
    result.windows = f"{made.window}{', own m' if made.own else ''}{', least k' if made.tight else ''}"
    try:
        _judge(made, result)
    except Promise as error:
        result.verdict, result.reason = "wrong", str(error)
    except Exception as error:  # noqa: BLE001 - whatever a net provokes is its verdict
        result.verdict, result.reason = refusal(error)
        if result.verdict == "refused" and not hinted(error):
            result.verdict, result.reason = "raw", f"without a hint: {result.reason}"
    return result


def _judge(made: Windowed, result: Result) -> None:
    net, x = made.build()
    shape = tuple(x.shape[1:])
    traced = TracedNet(net, shape)
    config, model, known, expected, bound = made.planned(traced, x)
    with torch.no_grad():
        own, theirs = graph.run(traced.steps, x), copy.deepcopy(net).double()(x.double().clone())
    if known.outside:
        result.verdict, result.reason = "out of range", known.outside
        return
    got, bound = answer(model, x), bound + 2.0**-22 * expected.abs() + 1e-12
    result.verdict = "wrong"
    if got.shape != theirs.shape:
        result.reason = f"shape {tuple(got.shape)}, expected {tuple(theirs.shape)}"
        return
    error = (got - expected).abs()
    result.error, result.largest = float(error.max()), float(expected.abs().max())
    ratio = (error / bound).flatten()
    result.ratio, result.bound = float(ratio.max()), float(bound.flatten()[ratio.argmax()])
    if float((own.double() - theirs).abs().max()) > _TORCH * (1 + float(theirs.abs().max())):
        result.reason = "its steps differ from torch"
    elif made.number % REALLY == 0 and not same(convert_model(net, shape, config, made.garbler), x):
        result.reason = "two sides differ from their ideal parts"
    elif result.ratio <= 1:
        result.verdict = "right"


def answer(model: Model, x: Tensor) -> Tensor:
    """Logits of ideal parts, float32, with masks that are drawn."""
    masks, hidden = ideal.drawn(model.plan, derive(SEED, "masks"), len(x))
    return model.plan.decode(ideal.run(model, model.plan.encode(x), masks, hidden))


def same(net: HybridNet, x: Tensor) -> bool:
    """Whether both sides' logits of a new net equal those of ideal parts, with the masks of each image's slot."""
    return torch.equal(net(x), torch.cat([of_slot(net, x[slot : slot + 1], slot) for slot in range(len(x))]))


def of_slot(net: HybridNet, image: Tensor, slot: int) -> Tensor:
    """Logits of ideal parts with the masks of a slot, which both sides derive from their seeds."""
    data, model, theirs = net._data, net._parts, slot_seed(net._store.seed, slot)
    seed = slot_seed(data.store.seed, slot)
    masks = {number: data._mask(seed, number) for number in model.plan.masked}
    hidden = {number: layer.hidden(mask_seed(theirs, number)) for number, layer in net._model.weights.singly.items()}
    return model.plan.decode(ideal.run(model, model.plan.encode(image), masks, hidden))


def details(number: int) -> str:
    """Net `number` as code, its plan, the verdict, and both answers."""
    made, result = recipe(number), judge(number)
    net, x = made.build()
    lines = [made.source, f"# windows {result.windows}, {result.weights}", str(result)]
    try:
        traced = TracedNet(net, tuple(x.shape[1:]))
        config, model, _, expected, bound = made.planned(traced, x)
        lines += [
            str(config),
            str(model.plan),
            f"torch, weights as held: {expected}",
            f"bound: {bound}",
            f"{answer(model, x)}",
        ]
    except (HummingbirdError, Promise) as error:
        lines.append(f"{type(error).__name__}: {error}")
    return "\n".join(lines)
