"""Random nets on encrypted images in polynomial mode, and by torch in float64: `tests.fuzz.nets --encrypted`.

Chains of the phrases of tests/fuzz/grammar.py that a polynomial has, on inputs of ranges from 2^-20 to 2^40, with
values that cancel, constants behind them, images that are small beside the others, and now and then what is refused.
Half of the nets are planned for their range, half by samples. An image that is refused by its number is left out, and
the others must be answered. An answer is right within 4 times what the mode promises: 2^-6 of an image's typical value,
2^-4 if the image is of ordinary size, and, if it has one output, twice the error that was predicted.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hummingbird import graph
from hummingbird.errors import HummingbirdError, InputError
from hummingbird.he.compile.bounds import MARGIN
from hummingbird.he.compile.convert import make_plan
from hummingbird.he.runtime.model import HEModel
from hummingbird.he.runtime.precision import LEAST, ORDINARY
from tests.fuzz.draw import Draw, Impossible
from tests.fuzz.grammar import KINDS as GRAMMAR
from tests.fuzz.make import Growing, Recipe
from tests.fuzz.run import Result, hinted, refusal

RANGE = 2.0**40  # of inputs
SIZE = 48  # values of an image
SLACK = 4.0  # deviations
_HIGHEST = 2.0**96  # of values
_TORCH = 2.0**-20  # of the largest output: weights and inputs are float32


def cancels(d: Draw) -> str:
    """Values that cancel, and what is left: a constant, a little of the value, or a term far smaller."""
    c, little = d.log(1e-6, 1e3), d.rng.choice((2.0**-4, 2.0**-10, 2.0**-20, 1e-9))
    texts = [f"({{x}} + {c!r}) - {{x}}", f"{{x}} * {1 + little!r} - {{x}}", f"({{x}} - {{x}}.flip(1)) + {c!r}"]
    texts += [f"{{x}}.sum(1, keepdim=True) - {{x}}.sum(1, keepdim=True) + {little!r} * {{x}}"]
    if d.size**2 < d.highest:
        texts += [f"({{x}} + {c!r}) ** 2 - {{x}} * {{x}}", "{x} * {x} - {x} * {x}.flip(1)"]
    if len(d.shape) == 2:
        w = d.constant((3, d.shape[1]), 1.0)
        texts += [f"F.linear({{x}}, {w} - {w}.mean(1, keepdim=True), {d.constant((3,), c)})"]
    d.need(len(d.shape) >= 2)
    return d.pick(*texts)


def power(d: Draw) -> str:
    n = d.rng.randint(2, 5)
    d.need(d.size**n < d.highest)
    return f"{{x}} ** {n}"


# How often each kind is drawn; the last line is the client's, or refused.
WEIGHTS = {
    **{"conv": 3, "linear": 5, "matmul": 1, "batch_norm": 1, "conv_transpose": 0.5, "scale": 2, "scale_tensor": 1},
    **{"shift": 2, "constant": 1, "add": 2, "sub": 2, "mul": 1, "square": 1.5, "power": 0.3, "neg": 0.5, "cancels": 2},
    **{"avg_pool": 1, "adaptive_avg_pool": 0.5, "mean": 1, "sum": 1, "pad": 1, "identity": 0.3, "flatten": 1},
    **{"reshape": 0.5, "permute": 0.5, "transpose": 0.5, "squeeze": 0.3, "unsqueeze": 0.3, "cat": 0.5, "stack": 0.5},
    **{"chunk": 0.5, "split": 0.5, "getitem": 1, "rearrange": 0.7, "apart": 0.5},
    **{"relu": 0.2, "abs": 0.1, "sigmoid": 0.2, "softmax": 0.2, "argmax": 0.1, "max_pool": 0.1},
}
_FIRST = ("conv", "linear", "linear", "cancels", "batch_norm")
KINDS: dict[str, Callable[[Draw], str]] = GRAMMAR | {"cancels": cancels, "power": power}


@dataclass
class Encrypted(Recipe):
    """A net, and what its plan is made from. small: factors of the images. samples: whether samples make it."""

    small: tuple[float, ...] = ()
    samples: bool = False

    def images(self, x: Tensor) -> Tensor:
        """The batch: the input's images in turn, times the factors."""
        factors = torch.tensor(self.small)
        return x.repeat(len(factors), *[1] * (x.dim() - 1))[: len(factors)] * factors.view(-1, *[1] * (x.dim() - 1))


def recipe(number: int) -> Encrypted:
    """Net number `number`, the same whenever and wherever it is made."""
    rng = random.Random(f"encrypted {number}")
    made = Encrypted(number, protocol="polynomial", samples=rng.random() < 0.5)
    while True:
        growing = Growing(rng, made, highest=_HIGHEST, most=RANGE, scale=(-6, 12), kinds=KINDS)
        if growing.values["x"][0].numel() <= SIZE:
            break
    kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
    if rng.random() < 0.9:
        _one_of(growing, rng.sample(_FIRST, len(_FIRST)))
    for _ in range(rng.randint(1, 6)):
        if rng.random() < 0.15:
            growing.last = rng.choice(list(growing.values))
        _one_of(growing, rng.choices(kinds, weights, k=3))
    made.body.append(f"return {growing.last}")
    ordinary = [1.0, -0.7, 0.5]
    made.small = tuple(rng.sample([*ordinary, *(10 ** rng.uniform(-9, 0) for _ in range(2)), 0.0], rng.randint(2, 5)))
    return made


def _one_of(growing: Growing, kinds: list[str]) -> None:
    """One more operation, the first of these that fits."""
    for kind in kinds:
        try:
            return growing.grow(kind)
        except Impossible:
            continue


def judge(number: int) -> Result:
    """The verdict on net `number`."""
    made = recipe(number)
    result = Result(number, "raw", protocol=made.protocol, parties=1, weights="samples" if made.samples else "range")
    result.kinds = made.kinds
    try:
        _judge(made, result)
    except Exception as error:  # noqa: BLE001 - whatever a net provokes is its verdict
        result.verdict, result.reason = refusal(error)
        if result.verdict == "refused" and not hinted(error):
            result.verdict, result.reason = "raw", f"without a hint: {result.reason}"
    return result


def converted(made: Encrypted) -> tuple[HEModel, nn.Module, Tensor, Tensor | None]:
    """The model, the net, the images that it is asked for, and the samples of its plan."""
    net, x = made.build()
    images = made.images(x)
    most = max(float(images.abs().max()), 2.0**-30)
    samples = torch.cat([x, 0.8 * x]).clamp(-most, most) if made.samples else None
    plan = make_plan(net, tuple(x.shape[1:]), "polynomial", input_range=most, samples=samples)
    return HEModel(plan), net, images, samples


def answered(model: HEModel, images: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs, and the numbers of the images that were not refused; InputError where none is left."""
    left = torch.arange(len(images))
    while True:
        try:
            return model(images[left]), left
        except InputError as error:
            named = re.search(r"images? ((\d+(, )?)+)", error.what)
            if named is None:
                raise
            refused = {int(n) for n in named[1].split(", ") if n}
            kept = torch.tensor([i not in refused for i in range(len(left))])
            if not bool(kept.any()):
                raise
            left = left[kept]


def _judge(made: Encrypted, result: Result) -> None:
    model, net, images, samples = converted(made)
    result.windows = f"degree {model.public.parameters.degree}"
    with torch.no_grad():
        expected = copy.deepcopy(net).double()(images.double().clone())
        coarse = net(images.clone())  # the client's steps are float32, too
    if samples is not None and _outside(model, images, samples):
        result.verdict = "out of range"
        return
    got, left = answered(model, images)
    expected, coarse = expected[left], coarse[left]
    result.verdict = "wrong"
    if got.shape != expected.shape:
        result.reason = f"shape {tuple(got.shape)}, expected {tuple(expected.shape)}"
        return
    if not expected.is_floating_point():  # places
        result.verdict = "right"
        return
    outputs = expected[0].numel()
    error, size, own = (_size(t) for t in (got.double() - expected, expected, coarse.double() - expected))
    small = small_of(model, images[left])
    chance = torch.where((outputs == 1) & ~small, 2 * model.plan.lines[-1].error, 0.0)
    promised = torch.where(small, 2.0**-LEAST, 2.0**-ORDINARY) * size
    allowed = SLACK * torch.maximum(promised, chance) + SLACK * own + _TORCH * size
    ratio = error / allowed.clamp(min=1e-300)
    result.error, result.largest, result.ratio = float(error.max()), float(size.max()), float(ratio.max())
    result.bound = float(allowed[ratio.argmax()])
    if result.ratio <= 1:
        result.verdict = "right"


def _size(x: Tensor) -> Tensor:
    """The root mean square of every image's values."""
    return x.reshape(len(x), -1).square().mean(1).sqrt()


def small_of(model: HEModel, images: Tensor) -> Tensor:
    """The images that are small, as the client has it."""
    batch = model.client.begin(images)
    for _ in batch.uploads(0):
        pass
    return batch._small


def _outside(model: HEModel, images: Tensor, samples: Tensor) -> bool:
    """Whether a value leaves what a plan by these samples has room for."""
    asked, seen = (graph.run_all(model.plan.steps, x.double()) for x in (images, samples))
    pairs = [(a, b) for a, b in zip(asked, seen, strict=True) if isinstance(a, Tensor) and a.is_floating_point()]
    return any(float(a.abs().max()) > MARGIN * float(b.abs().max()) for a, b in pairs[1:])


def details(number: int) -> str:
    """Net `number` as code, the verdict, the plan, and both answers."""
    made, result = recipe(number), judge(number)
    lines = [made.source, f"# images times {made.small}", str(result)]
    try:
        model, net, images, _ = converted(made)
        got, left = answered(model, images)
        with torch.no_grad():
            expected = copy.deepcopy(net).double()(images[left].double())
        lines += [model.report(), f"images {left.tolist()}", f"torch: {expected}", f"answer: {got}"]
    except HummingbirdError as error:
        lines.append(f"{type(error).__name__}: {error}")
    return "\n".join(lines)
