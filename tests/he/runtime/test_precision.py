"""An image's precision is its own: outliers beside it cost it nothing, and what is predicted is what is measured."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from hummingbird import he
from hummingbird.errors import InputError, ModelError
from hummingbird.he.runtime.precision import Precision, Shadow, named, summary
from models import get_model, load_checkpoint
from tests.support.he_cases import PRODUCTS, conv, images, made
from tests.support.paths import ROOT


def relative(model: he.HEModel, net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """For every image, the error of its outputs over their size."""
    with torch.no_grad():
        expected = net.double()(x.double()).flatten(1)
        net.float()
    return (model(x).double().flatten(1) - expected).norm(dim=1) / expected.norm(dim=1)


@pytest.mark.parametrize("factor", [1e4, 1e6, 1e-3])
def test_an_outlier_costs_the_others_nothing(factor: float) -> None:
    """Both layers keep 2^-12 of a typical value, each kind of error for itself: 2^-9 in all, for every image."""
    checkpoint = ROOT / "checkpoints/cryptonets-relu.pt"
    net = load_checkpoint(str(checkpoint), get_model("cryptonets", 10, activation="relu")).eval()
    model = he.convert_model(net, (1, 28, 28))
    torch.manual_seed(0)
    x = torch.rand(12, 1, 28, 28) * 3 - 0.4
    x[-1] *= factor
    assert float(relative(model, net, x).max()) < 2.0**-9
    assert model.last is not None
    (precision,) = model.last.precision
    assert float(precision.predicted.min()) > 9


def test_an_outlier_in_a_net_with_two_packings_and_a_residual() -> None:
    torch.manual_seed(1)
    net = nn.Sequential(conv(1, 2, 3), nn.ReLU(), conv(2, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)).eval()
    x = images(9, (1, 5, 5))
    x[4] *= 3e5
    for packing in ("coefficients", "complex"):
        assert float(relative(he.convert_model(net, (1, 5, 5), packing=packing), net, x).max()) < 2.0**-8


def test_an_image_that_would_lose_its_own_values_is_refused_by_number() -> None:
    """A pixel of 1e7 leaves the rest errors as large as they are, and ReLU6 cuts off what the pixel itself makes."""
    torch.manual_seed(2)
    net = nn.Sequential(conv(1, 2, 3), nn.ReLU6(), nn.Flatten(), nn.Linear(72, 3)).eval()
    model = he.convert_model(net, (1, 8, 8))
    x = images(6, (1, 8, 8))
    good = model(x)
    x[3, 0, 0, 0] = 1e7
    with pytest.raises(InputError, match="image 3: less than 6 bits") as caught:
        model(x)
    assert "outliers" in caught.value.hint and caught.value.where == "1"
    keep = [0, 1, 2, 4, 5]
    assert torch.allclose(model(x[keep]), good[keep], atol=1e-2)
    more = images(2048 + 5, (1, 8, 8))
    more[2050, 0, 0, 0] = 1e7
    with pytest.raises(InputError, match="image 2050"):
        model(more)


def test_values_that_are_not_finite_are_refused_by_number() -> None:
    model = he.convert_model(nn.Linear(4, 2), (4,))
    x = images(5, (4,))
    x[1, 2], x[3, 0] = math.nan, math.inf
    with pytest.raises(InputError, match="NaN or infinity: images 1, 3"):
        model(x)
    x = images(5, (4,))
    x[2] = 1e30
    with pytest.raises(InputError, match="leave the modulus.*: image 2"):
        model(x)


@pytest.mark.parametrize("mode", ["client-aided", "polynomial"])
@pytest.mark.parametrize("name", ["layer", "square"])
def test_predicted_precision_is_measured(mode: str, name: str) -> None:
    """In free slots and against torch: within a factor of two, the client's prediction being one for all values."""
    torch.manual_seed(3)
    net, shape = made(PRODUCTS["square"]) if name == "square" else (nn.Linear(30, 20, bias=False).eval(), (30,))
    model = he.convert_model(net, shape, mode)
    x = images(200, shape)
    true = -torch.log2(relative(model, net, x)).median()
    assert model.last is not None
    (precision,) = model.last.precision
    assert precision.measured is not None
    assert abs(float(precision.predicted.median() - true)) < 1.5
    if name == "layer":  # a square has other errors where there is no image
        assert abs(float(precision.predicted.median() - precision.measured.median())) < 0.5
    assert "precision, bits of an image's typical values: predicted" in model.report()


def test_a_full_batch_has_no_slot_to_measure_in() -> None:
    model = he.convert_model(nn.Linear(3, 2), (3,))
    model(images(2048, (3,)))
    assert "measured not known, as no slots are free" in model.report()


def test_errors_that_make_a_value_no_number_are_refused_by_number() -> None:
    shadow, value = Shadow(torch.tensor([0, 1]), 10), torch.ones(2, 3)
    shadow.add(5, value, torch.tensor([2.0**-20, math.nan]))
    with pytest.raises(InputError, match="image 11: less than 6 bits"):
        shadow.check(5, value, "here")


def test_words() -> None:
    assert named(torch.tensor([2]), 10) == "image 12"
    assert named(torch.arange(20), 1) == "images 1, 2, 3, 4, 5, 6, 7, 8 and 12 more"
    assert "(image 0)" in summary([Precision(2, 2), Precision(1, 4)])


# ---- polynomial mode: the plan's scales are everybody's


class Squares(nn.Module):
    """A layer on the squares of its inputs, which the client computes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4, bias=False)
        with torch.no_grad():
            self.layer.weight.copy_(torch.eye(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x * x)
        return out


@pytest.mark.parametrize("bound", [2.0**-20, 1.0, 65535.0, 2.0**40])
def test_values_of_any_size_are_encrypted_at_a_scale_that_holds_them(bound: float) -> None:
    """A message is an int32: at scale 1 squares of 65,535 were cast to -2^31."""
    model, x = he.convert_model(Squares().eval(), (4,), "polynomial", input_range=bound), torch.full((2, 4), bound)
    x[1] /= 2
    told = he.Public.from_json(model.public.to_json())
    assert told.turns[0].scale == model.public.turns[0].scale
    assert float(relative(model, Squares(), x).max()) < 2.0**-9


def test_values_that_no_message_holds_are_refused_by_number() -> None:
    """By a server's plan that is wrong: a client does not cast them."""
    model, x = he.convert_model(Squares().eval(), (4,), "polynomial"), torch.ones(3, 4)
    (turn,) = model.public.turns
    client = he.Client(replace(model.public, turns=(replace(turn, scale=28),)))
    x[1] = 4.0
    with pytest.raises(InputError, match="values up to 16, more than the plan was made for: image 1"):
        next(client.begin(x).uploads(0))


def difference(bias: float) -> nn.Module:
    layer = nn.Linear(2, 1).eval()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, -1.0]]))
        layer.bias.fill_(bias)
    return layer


def test_a_bias_behind_values_that_cancel_is_refused_by_number() -> None:
    net, x = difference(1e-3), torch.tensor([[7e4, -7e4], [5e4, 5e4], [-1e5, 3.0], [8e4, 8e4]])
    model = he.convert_model(net, (2,), "polynomial", input_range=1e5)
    with pytest.raises(InputError, match="images 1, 3: less than 2 bits") as caught:
        model(x)
    assert "cancel" in caught.value.hint and "client-aided" in caught.value.hint
    assert float(relative(model, net, x[[0, 2]]).max()) < 2.0**-9


def test_a_plan_by_samples_that_cancel_is_finer_or_refused() -> None:
    """Inputs are held as fine as the bias asks for; where 2^30 units have no room for both, nothing is converted."""
    x = torch.rand(20, 1).expand(20, 2) * 8
    net = difference(0.01)
    model = he.convert_model(net, (2,), "polynomial", input_range=8.0, samples=x)
    assert float(relative(model, net, x).max()) < 2.0**-6
    with pytest.raises(ModelError, match="less than 6 bits of its values would be right: they cancel") as caught:
        he.convert_model(difference(1e-6), (2,), "polynomial", input_range=8.0, samples=x)
    assert caught.value.problems[0].hint


def test_small_images_beside_a_huge_one_are_refused_by_number() -> None:
    torch.manual_seed(5)
    net, x = nn.Linear(4, 3).eval(), images(5, (4,))
    x[2] *= 1e5
    model = he.convert_model(net, (4,), "polynomial", input_range=float(x.abs().max()))
    with pytest.raises(InputError, match="images 0, 1, 3, 4: less than 6 bits") as caught:
        model(x)
    assert "input_range" in caught.value.hint
    assert float(relative(model, net, x[2:3]).max()) < 2.0**-9
    assert float(relative(he.convert_model(net, (4,), "polynomial"), net, x[[0, 1, 3, 4]]).max()) < 2.0**-6


def test_places_of_noise_are_refused_by_number() -> None:
    """An argmax shows nothing of its values' errors: these are judged before it."""
    torch.manual_seed(6)

    class Place(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 5, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).argmax(1)

    net, x = Place().eval(), images(3, (4,))
    x[1] *= 1e-6
    model = he.convert_model(net, (4,), "polynomial")
    with pytest.raises(InputError, match="image 1: less than 6 bits"):
        model(x)
    assert torch.equal(model(x[[0, 2]]), net(x[[0, 2]]))


def test_few_outputs_near_zero_are_no_noise() -> None:
    """One score of an ordinary image may be near zero: of 4,000, one in a thousand is below four errors."""
    torch.manual_seed(7)
    net = nn.Linear(30, 1, bias=False).eval()
    model, x = he.convert_model(net, (30,), "polynomial"), images(300, (30,))
    with torch.no_grad():
        scores = net(x)[:, 0].abs()
    x = x[scores > 2.0**-9 * scores.square().mean().sqrt()]
    assert float((model(x) - net(x)).detach().abs().max()) < 2.0**-8 * float(scores.max())
