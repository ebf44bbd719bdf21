"""One random net, by torch in float64 and by all parties' own code in one process, and the verdict on the difference.

right: every element is within 1 % of the largest output, or within the bound of tests/fuzz/bounds.py. refused: an
error of the package before anything runs. out of range: torch's own values leave the range that is promised. wrong:
anything else that returns. raw: an exception that is not the package's, or a refusal after the parties have begun.
"""

from __future__ import annotations

import copy
import re
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hummingbird import convert, graph
from hummingbird.bits import BitConfig, BitWindow, Rows
from hummingbird.channel import interleave
from hummingbird.errors import ConfigError, HummingbirdError, InputError, ModelError
from hummingbird.graph import Ref, Step
from hummingbird.graph.ops.public import HIDDEN
from hummingbird.mpc.layers.layer import FLOOR
from hummingbird.mpc.layers.linear import WeightOwner
from hummingbird.mpc.plan import builders
from hummingbird.mpc.plan.net import PrivateNet
from hummingbird.mpc.plan.rewritten import Rewritten
from hummingbird.mpc.plan.rounding_plan import Planner
from hummingbird.mpc.protocols.step_tables import TableChoice
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared
from hummingbird.simulation.simulate import Parties
from tests.fuzz.bounds import walk
from tests.fuzz.make import Recipe, recipe
from tests.support.dealers import OwningDealer

# docs/limits.md: the magnitude below which every value of a net must stay. Exact windows; with other windows the
# headroom of the recipe takes its place.
RANGE = 2.0**FLOOR
TOLERANCE = 0.01  # of the largest output
SECONDS = 60  # for one net: a wait without an end is an error, too
REFUSALS = (ModelError, InputError, ConfigError)
VERDICTS = ("right", "refused", "out of range", "wrong", "raw")

Tamper = Callable[[PrivateNet], None]


@dataclass
class Result:
    """The verdict on a net; `reason`: of a refusal or an exception, without numbers and names.

    error, largest: the largest |private - torch| and |torch|. ratio, bound: the largest error / bound of an element,
    and that element's bound.
    """

    number: int
    verdict: str
    reason: str = ""
    error: float = 0.0
    ratio: float = 0.0
    bound: float = 0.0
    largest: float = 0.0
    protocol: str = ""
    parties: int = 0
    weights: str = ""
    windows: str = "exact"
    kinds: list[str] = field(default_factory=list)


@dataclass
class Truth:
    """Torch's results: the net's steps, every step's value and bound on its error, and the net's own output."""

    steps: list[Step]
    values: list[Any]
    errors: list[Any]
    output: Tensor

    @property
    def largest_inside(self) -> float:
        found = [
            _largest(step, v)
            for step, value in zip(self.steps, self.values, strict=True)
            for v in (value if isinstance(value, tuple) else (value,))
            if isinstance(v, Tensor) and v.numel() and v.dtype != torch.bool  # a public mask
        ]
        return max(found)


def _largest(step: Step, value: Tensor) -> float:
    """The largest magnitude of what a mask of attention does not hide."""
    constant = step.attrs.get("value")
    masks = step.op == "add" and isinstance(constant, Tensor) and bool((constant <= HIDDEN).any())
    shown = value[value > HIDDEN / 2] if masks or step.op == "causal" else value
    return float(shown.abs().max())


def truth(net: nn.Module, x: Tensor, parties: int, public: bool = False, example: Tensor | None = None) -> Truth:
    """Everything in float64; raises what tracing raises. public: whether weights are, which are then held to more.

    example: with which the net is traced, if it needs one.
    """
    steps = graph.trace(net, example=example)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # what torch makes of integers, after argmax
    try:
        with torch.no_grad():
            output = copy.deepcopy(net).double()(x.double().clone())
            return Truth(steps, *walk(steps, x, parties, public), output.double())
    finally:
        torch.set_default_dtype(before)


def private_output(made: Recipe, net: nn.Module, x: Tensor, known: Truth, tamper: Tamper | None = None) -> Tensor:
    """The opened result; raises what private inference raises. tamper: changes the converted net before it runs."""
    example = x if made.example else None
    windows = _windows(made, known)
    private = convert.build(net, windows, made.weights, made.protocol, example=example, aim=made.aim)
    private.images_per_slice = made.slices
    private.costs(tuple(x.shape), made.parties)
    if tamper is not None:
        tamper(private)
    return _run(made, private, x)


def _run(made: Recipe, private: PrivateNet, x: Tensor) -> Tensor:
    owner = made.weights if isinstance(made.weights, int) else None

    def run() -> Tensor:
        with torch.no_grad():
            net: Any = _Party(private, owner)
            parties = Parties(made.parties, made.number, x.device)
            if private.owned_weights:
                for session in parties._sessions:
                    session.dealer = OwningDealer(session.rank, parties.secret)
            return parties.run(net, x.clone())

    return _in_time(run)


def _in_time(run: Callable[[], Tensor]) -> Tensor:
    """Run on a thread of its own, and return or raise what `run` does; TimeoutError after SECONDS."""
    done: Future[Tensor] = Future()

    def work() -> None:
        try:
            done.set_result(run())
        except BaseException as error:  # noqa: BLE001 - raised again by `result`
            done.set_exception(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(SECONDS)
    if not done.done():
        raise TimeoutError(f"no result after {SECONDS:g} s")
    return done.result()


class _Party(nn.Module):
    """A party's net: the weights of another party are zeros here, and are shared before the batch."""

    def __init__(self, net: PrivateNet, owner: int | None) -> None:
        super().__init__()
        self.net, self.owner = net, owner

    def forward(self, session: Session, x: Shared) -> Shared:
        if self.owner is not None and session.rank != self.owner:
            for weight in (*self.net.fixed_weights, *self.net.owned_weights):
                weight.code = torch.zeros_like(weight.code)
        # Interleaved by itself: the parties are so in Parties.run.
        interleave.Interleave().run([lambda: self.net.set_up(session)])
        return self.net.forward(session, x)


def _windows(made: Recipe, known: Truth) -> BitConfig:
    """The narrowest window that holds whatever is compared: differences of two values, distances to knots below 16.

    And the ranges of functions that need one: of the function's values, widened by their errors and a sixteenth.
    """
    rows = {}
    for step in known.steps:
        if step.op == "function" and not builders.compares(step):
            (source,) = (ref.index for ref in step.inputs)
            value, error = known.values[source], float(known.errors[source].max()) + 2.0**-12
            least, most = float(value.min()) - error, float(value.max()) + error
            below = (most - least) / 16 if float(value.min()) < 0 else 0.0  # a range that begins at 0 stays there
            rows[step.name] = Rows(least - below, most + (most - least) / 16)
    if made.headroom is None:
        return BitConfig(rows=rows)
    bits = (int(2 * known.largest_inside) + 16).bit_length()  # 2 largest + 16 < 2^bits
    return BitConfig(BitWindow(min(64, 17 + bits + made.headroom), 0), rows=rows)


def judge(number: int, tamper: Tamper | None = None) -> Result:
    """Make net `number`, compute it twice, and compare."""
    return judged(recipe(number), tamper)


def judged(made: Recipe, tamper: Tamper | None = None, example: bool = False) -> Result:
    """Compute a net twice, and compare. example: whether the net is traced with its input for torch's results, too."""
    protocol = made.protocol if made.aim == "latency" else f"{made.protocol}, {made.aim}"
    result = Result(made.number, "raw", kinds=made.kinds, protocol=protocol, parties=made.parties)
    result.weights = "public" if made.weights == "public" else "private"
    result.windows = "exact" if made.headroom is None else "windows"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, on shapes that are odd on purpose
        try:
            net, x = made.build()
            public = made.weights == "public" and made.headroom is None
            known = truth(net, x, made.parties, public, x if example else None)
            if known.largest_inside >= RANGE:
                result.verdict = "out of range"
                return result
            got = private_output(made, net, x, known, tamper)
            _compare(result, got.double(), known)
        except Exception as error:  # noqa: BLE001 - whatever a net provokes is its verdict
            result.verdict, result.reason = refusal(error)
    return result


def _compare(result: Result, got: Tensor, known: Truth) -> None:
    bound = known.errors[-1].double() + 2.0**-22 * known.output.abs()  # float32 of what is opened
    if got.shape != known.output.shape:
        result.verdict, result.reason = "wrong", f"shape {tuple(got.shape)}, expected {tuple(known.output.shape)}"
        return
    error = (got - known.output).abs()
    result.error, result.largest = float(error.max()), float(known.output.abs().max())
    ratio = (error / bound.clamp(min=1e-300)).flatten()  # an argmax without rivals has no error to allow
    result.ratio, result.bound = float(ratio.max()), float(bound.flatten()[ratio.argmax()])
    within = bool((error <= bound).all()) or result.error <= TOLERANCE * result.largest
    result.verdict = "right" if within else "wrong"


def refusal(error: Exception) -> tuple[str, str]:
    """Verdict and kind of an exception: a refusal counts as one only before the first layer has begun."""
    begun = any(f.name == "_run" and f.filename.endswith("net.py") for f in traceback.extract_tb(error.__traceback__))
    if isinstance(error, ModelError):
        text = error.problems[0].what
    elif isinstance(error, HummingbirdError):
        text = error.what
    else:
        text = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    text = re.sub(r"\(at .*?\)|`.*?`|'.*?'", "..", text)
    text = re.sub(r"[-+]?\d[\d.e+-]*", "n", text)
    text = re.sub(r"\((n,? ?)*\)|\[(n,? ?)*\]", "(n)", text)
    if isinstance(error, REFUSALS) and not begun:
        return "refused", text
    return "raw", f"{'after the start: ' if begun and isinstance(error, HummingbirdError) else ''}{text}"


def hinted(error: Exception) -> bool:
    """Whether a refusal says what to do, for each of its problems."""
    found = error.problems if isinstance(error, ModelError) else [error]
    return all(getattr(problem, "hint", "") for problem in found)


# One net in detail ----------------------------------------------------------------------------------------------------


def _cut(steps: Sequence[Step], index: int) -> list[Step]:
    """The net that ends at step `index`."""
    return [*steps[: index + 1], Step("output", "output", (Ref(index),))]


def details(number: int) -> str:
    """Net `number` as code, the verdict, and the error of every step as if the net ended there."""
    return shown(recipe(number), judge(number))


def shown(made: Recipe, result: Result, example: bool = False) -> str:
    """A net as code, its verdict, and the error of every step as if the net ended there. example: as for `judged`."""
    net, x = made.build()
    lines = [made.source, f"# protocol {made.protocol}, {made.parties} parties, weights {made.weights}", str(result)]
    try:
        known = truth(net, x, made.parties, example=x if example else None)
        lines.append(f"torch:   {_some(known.output)}")
        lines.append(f"private: {_some(private_output(made, net, x, known))}")
    except Exception as error:  # noqa: BLE001 - shown, as the verdict above
        return "\n".join([*lines, f"{type(error).__name__}: {error}"])
    for index, (step, value) in enumerate(zip(known.steps, known.values, strict=True)):
        if isinstance(value, Tensor) and step.op not in ("input", "output"):
            error = _error_of(made, known, index, x)
            lines.append(f"{step}: largest {float(value.abs().max()):.4g}, {error}")
    return "\n".join(lines)


def _some(x: Tensor) -> str:
    return f"{tuple(x.shape)} {[float(f'{v:.5g}') for v in x.flatten()[:8].tolist()]}"


def _error_of(made: Recipe, known: Truth, index: int, x: Tensor) -> str:
    steps, owner = _cut(known.steps, index), convert.owner_of(made.weights)
    config = _windows(made, known)
    try:
        order = Rewritten.of(steps, made.protocol, None if owner is None else config, config.rows)
        owned = None if owner is None else WeightOwner(owner)
        build = builders.builder(made.protocol, order.windows(config), owned, TableChoice.of(made.aim))
        plan = Planner(build, made.protocol).plan(order.steps)
        facts = {"weights": "public" if owner is None else f"private to party {owner}"}
        private = PrivateNet(plan, [builders.bare(step) for step in order.steps], facts, "")
        error = (_run(made, private, x).double() - known.values[index]).abs().max()
    except HummingbirdError as problem:
        return f"refused: {problem.what}"
    return f"error {float(error):.4g}, bound {float(known.errors[index].max()):.4g}"
