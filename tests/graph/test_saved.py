"""A net as data: traced to the same steps, and the same outputs, for nets of the whole vocabulary."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import hummingbird
from hummingbird import graph
from hummingbird.errors import HummingbirdError, InputError
from hummingbird.graph import OPS, SavedNet, Step
from hummingbird.graph.properties import rounded
from hummingbird.graph.schema import KINDS, OPERATIONS
from hummingbird.graph.steps import Ref
from tests.fuzz.make import recipe
from tests.support.covering import every
from tests.support.operations import cases

# Divisions, products with constant matrices, choices, norms, attention: steps of another form.
ROUNDED = {"scale", "scale_tensor", "matmul", "where"}
ROUNDED |= {"statistic", "norm_last", "norm_channels", "attention", "encoder", "product", "apart", "in_range", "raw"}
ROUNDED |= {"function", "wide"}
# Where rows are nearly constant, these magnify what float32 rounds.
NORMS = {"statistic", "norm_last", "norm_channels", "encoder", "raw"}


CHUNKS = {"seen", "rows_at", "cached_matmul"}  # steps of a causal net's chunks, which follow from the saved net


def test_every_operation_can_be_saved() -> None:
    assert OPERATIONS.keys() >= (OPS.keys() | {"batch_norm"}) - {"custom", "elementwise"} - CHUNKS
    named = {
        kind for _, attrs in OPERATIONS.values() for word in attrs.split() for kind in word.split("=")[1].split("|")
    }
    assert named == KINDS.keys()


def compare(number: int) -> bool:
    """Whether net `number` can be traced; then the saved net is the same."""
    made = recipe(number)
    net, x = made.build()
    net.requires_grad_(False)  # torch multiplies with weights that have gradients in another order
    try:
        steps = graph.unfolded(net)
    except HummingbirdError:
        return False
    if rounded(steps):  # torch rounds there: no private form takes it
        return False
    saved = SavedNet(steps)
    assert graph.fingerprint(graph.trace(net)) == graph.fingerprint(graph.trace(saved)), number
    with torch.no_grad():
        before, after = net(x.clone()), saved(x.clone())
    if ROUNDED & set(made.kinds):
        error = 1e-2 if NORMS & set(made.kinds) else 1e-4
        assert float((before - after).abs().max()) <= error * max(1.0, float(before.abs().max())), number
    else:
        assert torch.equal(before, after), number
    return True


@pytest.mark.parametrize("first", [0, pytest.param(12, marks=pytest.mark.slow)])
def test_random_nets_compute_the_same(first: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        numbers = range(first, 1000 if first else 12)
        assert sum(map(compare, numbers)) > len(numbers) // 2


CASES = cases()


@pytest.mark.parametrize("name", every(12, [*CASES]))
def test_nets_of_one_operation_are_read_from_a_file_and_compute_the_same(name: str, tmp_path) -> None:
    net, x, _ = CASES[name]
    hummingbird.save(net.eval(), tmp_path / "saved", weights="public", example=x)
    plain = hummingbird.load_net(tmp_path / "saved")
    assert graph.fingerprint(graph.trace(net, example=x)) == graph.fingerprint(graph.trace(plain)), name
    with torch.no_grad():
        assert torch.allclose(net(x.clone()), plain(x.clone()), atol=1e-5), name


RESIZE = {"mode": "nearest", "align_corners": None, "recompute": None, "scale": (2.0,)}
SIZES = RESIZE | {"scale": None}
NO_CALL = ("tuple", (), (("tuple", (), ()), ("dict", (), ())))
TAKES_ONE = ("tuple", (), (("tuple", (), (("tensor",),)), ("dict", (), ())))
WRONG: list[tuple[Step, str]] = [
    (Step("s", "roll", (Ref(0),), {"shifts": (1, 2), "dims": (1,)}), "a shift for each"),
    (Step("s", "flip", (Ref(0),), {"dims": (1.0,)}), "dims of flip must be ints"),
    (Step("s", "resize", (Ref(0),), SIZES), "sizes or factors"),
    (Step("s", "resize", (Ref(0), 4), RESIZE), "sizes or factors"),
    (Step("s", "resize", (Ref(0), Ref(0)), SIZES), "expected size"),
    (Step("s", "resize", (Ref(0),), RESIZE | {"scale": (2.0,) * 4}), "one to three spatial dimensions"),
    (Step("s", "resize", (Ref(0),), RESIZE | {"scale": (0.0,)}), "scale of resize must be numbers or none"),
    (Step("s", "resize", (Ref(0),), RESIZE | {"scale": (float("nan"),)}), "scale of resize must be numbers or none"),
    (Step("s", "resize", (Ref(0),), RESIZE | {"mode": "area"}), "mode of resize must be resizing"),
    (Step("s", "edge_pad", (Ref(0),), {"pads": (1, 0, 1), "mode": "reflect"}), "pads come in pairs"),
    (Step("s", "edge_pad", (Ref(0),), {"pads": (1, 0), "mode": "constant"}), "mode of edge_pad must be edges"),
    (Step("s", "pixel_shuffle", (Ref(0),), {"factor": 0}), "factor of pixel_shuffle must be positive"),
    (Step("s", "maximum", (Ref(0),), {}), "another value or a constant"),
    (Step("s", "maximum", (Ref(0), Ref(0)), {"value": 1.0}), "another value or a constant"),
    (Step("s", "greater", (Ref(0),), {"value": 1.0, "turned": 0, "strict": True}), "turned of greater must be bool"),
    (Step("s", "public", (), {"title": "ids", "shape": (None, -1), "dtype": "int64"}), "shape of public must be shape"),
    (Step("s", "public_constant", (), {"numbers": (1, 2), "shape": (3,), "dtype": "int64"}), "2 numbers for the shape"),
    (Step("s", "public_constant", (), {"numbers": (0.5,), "shape": (1,), "dtype": "int64"}), "must be exact"),
    (Step("s", "public_call", (), {"function": "os.system", "call": NO_CALL}), "function of public_call must be func"),
    (Step("s", "public_call", (), {"function": "torch.ones", "call": ("type", "int64")}), "must be call"),
    (Step("s", "public_call", (), {"function": "torch.ones", "call": TAKES_ONE}), "a call of 1 values with 0"),
    (Step("s", "public_call", (Ref(0),), {"function": "torch.ones", "call": TAKES_ONE}), "expected public"),
    (Step("s", "embedding", (Ref(0), Ref(0)), {"weight": torch.ones(2, 2)}), "expected public"),
]


@pytest.mark.parametrize(("step", "what"), WRONG, ids=[f"{step.op}-{what}" for step, what in WRONG])
def test_steps_that_no_net_has_are_refused(step: Step, what: str) -> None:
    with pytest.raises(InputError, match=what) as caught:
        SavedNet([Step("x", "input"), step, Step("output", "output", (Ref(1),))])
    assert caught.value.where == "s"


class Several(nn.Module):
    """Two inputs and nested results, a product of two values, and norms on statistics of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.head = nn.LayerNorm(8), nn.Linear(8, 3)
        self.maps = nn.Sequential(nn.Conv2d(3, 4, 1), nn.GroupNorm(2, 4), nn.BatchNorm2d(4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, object]:
        w = self.rows(x)
        z = self.head((w @ w.transpose(1, 2)).softmax(-1) @ w).mean(1)
        return {"a": z, "b": (self.maps(y).mean((2, 3)), z * 2)}


def test_several_inputs_and_results(tmp_path) -> None:
    torch.manual_seed(0)
    net, example = Several().eval(), (torch.randn(2, 5, 8), torch.randn(2, 3, 4, 4))
    hummingbird.save(net, tmp_path / "saved", example=example, weights=1)
    plain = hummingbird.load_net(tmp_path / "saved")
    assert hummingbird.load(tmp_path / "saved").facts == hummingbird.convert_model(net, None, 1, example=example).facts
    with torch.no_grad():
        before, after = net(*example), plain(*example)
        assert isinstance(after["b"], tuple) and torch.allclose(before["b"][0], after["b"][0], atol=1e-5)
        twins = [hummingbird.simulate(net, example=example, seed=1), hummingbird.simulate(plain, seed=1)]
        one, other = (twin(*example) for twin in twins)
        assert torch.equal(one["a"], other["a"]) and torch.equal(one["b"][1], other["b"][1])
    assert torch.allclose(twins[1](*example)["a"], before["a"], atol=0.01), "with gradients: the calls one by one"


class Words(nn.Module):
    """Rows of a table by public numbers, hidden by a mask and by places, and a private vector."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4)
        self.register_buffer("places", torch.arange(6)[None])

    def forward(self, ids: torch.Tensor, x: torch.Tensor, shown: torch.Tensor, twice: bool) -> torch.Tensor:
        mask = (ids != 0) & shown.to(torch.bool) & (self.places[:, : ids.shape[1]] < 5)
        y = self.table(ids).masked_fill(~mask[..., None], 0.0) + x[:, None]
        return y.sum(1) * 2 if twice else y.sum(1)


@pytest.mark.parametrize("fixed", [False, True])
def test_public_inputs(fixed: bool, tmp_path) -> None:
    torch.manual_seed(0)
    net, ids, x = Words().eval(), torch.randint(0, 9, (2, 6)), torch.randn(2, 4)
    shown = torch.tensor([[1, 1, 0, 1, 1, 1]])
    if fixed:  # its values are asked for
        net = type("Asking", (Words,), {"forward": asking})().eval()
    example = {"ids": ids, "x": x, "shown": shown, "twice": True}
    hummingbird.save(net, tmp_path / "saved", example=example, weights=1)
    plain = hummingbird.load_net(tmp_path / "saved")
    assert hummingbird.load(tmp_path / "saved").facts == hummingbird.convert_model(net, None, 1, example=example).facts
    other = example if fixed else example | {"ids": ids.flip(0).flip(1), "shown": shown.flip(1)}
    with torch.no_grad():
        wanted = net(**other)
        assert torch.allclose(plain(**other), wanted, atol=1e-5)
        assert torch.allclose(hummingbird.simulate(plain)(**other), wanted, atol=1e-3)
    assert torch.allclose(hummingbird.simulate(plain)(**other), wanted, atol=1e-3), "with gradients"
    if fixed:
        with pytest.raises(InputError, match="the same public arguments"):
            plain(**(example | {"shown": shown.flip(1)}))


def asking(self: Words, ids: torch.Tensor, x: torch.Tensor, shown: torch.Tensor, twice: bool) -> torch.Tensor:
    """Words that asks for a value of its mask."""
    return Words.forward(self, ids, x, shown, twice) if shown[0, 0] else x


def test_an_example_that_cannot_be_written_is_told_before_anything_is(tmp_path) -> None:
    net, x = Words().eval(), torch.randn(2, 4)
    example = {"ids": torch.randint(0, 9, (2, 6)), "x": x, "shown": torch.ones(1, 6, dtype=torch.uint8), "twice": False}
    with pytest.raises(InputError, match="tensors that cannot be written") as caught:
        hummingbird.save(net, tmp_path / "saved", example=example)
    assert "whole numbers or truth values" in caught.value.hint and not list(tmp_path.iterdir())
