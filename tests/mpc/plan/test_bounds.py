"""Every opening of the bits that a value can have (`Lift`, `Arithmetic.cut`, products) is wide enough for what comes.

An opening of too few bits gives wrong answers now and then, with no other sign: so the parties' shares are added up as
they go in. Nets begin with a clamp, whose bound many values meet, and whose windows let some pass it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hummingbird
from hummingbird import convert
from hummingbird.bits import EXACT, BitWindow
from hummingbird.mpc.layers import averaging, comparing, layer
from hummingbird.mpc.protocols import lifted_product
from hummingbird.mpc.protocols.lifted_product import Operand
from hummingbird.mpc.session.session import Session
from hummingbird.simulation.simulate import ExactNet, Parties
from tests.support.covering import covering
from tests.support.operations import Case, Function, cases

CASES = cases()
# One for each way to an opening: what is lifted before layers, maxima, sums and products, inside of norms, attention,
# splines and comparisons, and beside constants. The other operations open what one of these does.
QUICK = ["conv2d", "max_pool", "square", "layer_norm", "attention", "log_softmax"]
WINDOWS = {"exact": EXACT, "undecided below 1/16": BitWindow(32, 12), "undecided below 1": BitWindow(32, 16)}


class Openings:
    """Notes of what is lifted, as long as the patches hold: the largest |z| of each call over its range, 2^(k-2)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._given: dict[int, list[tuple[Tensor, int, int]]] = defaultdict(list)
        original, multiply = layer.lift, lifted_product.product

        def noting(session: Session, share: Tensor, shift: int, k: int, ring: int = 64) -> Tensor:
            self._given[session.rank].append((share.clone(), shift, k))
            return original(session, share, shift, k, ring)

        def noting_both(session: Session, x: Operand, y: Operand, bits: int) -> Tensor:
            for share, shift, k in (x, y):
                if k < bits:
                    self._given[session.rank].append((share.clone(), shift, k))
            return multiply(session, x, y, bits)

        for module in (layer, comparing, averaging):
            monkeypatch.setattr(module, "lift", noting)
        monkeypatch.setattr(lifted_product, "product", noting_both)

    def reached(self) -> list[float]:
        """For every call in order, of all parties' shares."""
        out = []
        for calls in zip(*self._given.values(), strict=True):
            (shift, k), *rest = [(shift, k) for _, shift, k in calls]
            assert all(sizes == (shift, k) for sizes in rest)
            total = torch.stack([share for share, _, _ in calls]).sum(0)
            unused = 64 - k - shift
            signed = (total << unused) >> unused  # the shares are right in k + shift bits
            out.append(float(signed.double().abs().max()) / 2.0 ** (k - 2 + shift) if signed.numel() else 0.0)
        return out


def clamped(case: Case) -> tuple[nn.Module, Tensor]:
    """The net behind a clamp and a linear map that keeps its bound, and an input that meets it."""
    gain = torch.tensor(1 - 2.0**-18, dtype=torch.float32)
    net = nn.Sequential(nn.Hardtanh(-1.0, 1.0), Function(lambda x: x * gain), Function(lambda x: x * -gain), case.net)
    return net.eval(), 3 * case.x


@covering("name, protocol, parties, window", CASES, [("masked", 2), ("gmw", 3)], WINDOWS, quick=QUICK)
def test_values_fit_what_is_opened(
    monkeypatch: pytest.MonkeyPatch, name: str, protocol: str, parties: int, window: str
) -> None:
    for net, x in (clamped(CASES[name]), (CASES[name].net.eval(), CASES[name].x)):
        with monkeypatch.context() as patches:
            openings = Openings(patches)
            hummingbird.simulate(net, WINDOWS[window], protocol=protocol, parties=parties, mode="exact", seed=0)(x)
            assert max(openings.reached(), default=0.0) < 1.0, openings.reached()


AFTER = {
    "tanh": torch.tanh,
    "hardtanh": partial(F.hardtanh, min_val=-3.0, max_val=2.0),
    "silu": F.silu,
    "hardswish": F.hardswish,
    "softmax": partial(torch.softmax, dim=-1),
    "elu": F.elu,
    "log_softmax": partial(F.log_softmax, dim=-1),
    "hardsigmoid": F.hardsigmoid,
    "maximum": lambda x: torch.maximum(x, torch.tensor(-7.0)),
    "greater": lambda x: x * (x > -3.0),
    "relu6 of a multiple": lambda x: F.relu6(3 * x - 1),
}


class AfterCosine(nn.Module):
    """A function of cosines of parallel rows, which are 1, or of others."""

    def __init__(self, function: Callable[[Tensor], Tensor], parallel: bool) -> None:
        super().__init__()
        self.function, self.parallel = function, parallel

    def forward(self, x: Tensor) -> Tensor:
        return self.function(F.cosine_similarity(x, x * 0.5 if self.parallel else x.flip(2), dim=2))


@covering(
    "name, protocol, aim, parallel",
    AFTER,
    ["masked", "gmw"],
    ["latency", "throughput"],
    [True, False],
    quick=["tanh", "hardtanh", "softmax", "greater"],
)
def test_numbers_far_from_small_values_are_compared_rightly(name: str, protocol: str, aim: str, parallel: bool) -> None:
    """A cosine's shares have three integer bits: what compares it with -8, say, needs more, so they are lifted."""
    net, x = AfterCosine(AFTER[name], parallel).eval(), torch.randn(2, 4, 4, 4)
    private = convert.build(net, protocol=protocol, aim=aim)
    out = Parties(2, 1, x.device).run(ExactNet(private), x)
    assert float((out - net(x)).abs().max()) < 2.0**-10
