"""Magnitudes: what each layer compares, against the same values taken from the plain net."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hummingbird.bits import BitConfig, BitWindow
from hummingbird.errors import ConfigError, InputError, ModelError
from hummingbird.simulation.observe import magnitudes

X = 4 * torch.randn(30, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def units(value: Tensor | float) -> int:
    """Ring units, rounded up."""
    return math.ceil(float(value) * 2**16)


def of(layer: nn.Module, x: Tensor = X, bits: Any = None, **options: Any) -> int:
    return magnitudes(nn.Sequential(layer).eval(), x, bits, **options)["0"]


def spread(x: Tensor) -> Tensor:
    """The largest difference within an image."""
    return (x.flatten(1).amax(1) - x.flatten(1).amin(1)).max()


@pytest.mark.parametrize("protocol", ["masked", "gmw"])
def test_layers_are_measured_at_what_they_compare(protocol: str) -> None:
    cases: list[tuple[nn.Module, Tensor]] = [
        (nn.ReLU(), X),
        (nn.LeakyReLU(0.1), X),
        (nn.PReLU(3), X),
        (nn.Hardtanh(-1.5, 2.0), torch.stack([X + 1.5, X - 2.0])),
        (nn.ReLU6(), torch.stack([X, X - 6.0])),
        (nn.Hardswish(), torch.stack([X + 3.0, X - 3.0])),
        (nn.Hardsigmoid(), torch.stack([X + 3.0, X - 3.0])),
    ]
    for layer, compared in cases:
        assert of(layer, protocol=protocol) == units(compared.abs().max()), type(layer).__name__
    smooth = of(nn.Tanh(), protocol=protocol)
    if protocol == "masked":  # a table is looked up with x
        assert smooth == units(X.abs().max())
    else:  # knots from -6 to 6
        assert units(X.abs().max() + 5.5) <= smooth <= units(X.abs().max() + 6.0)


def test_a_max_pooling_is_bounded_by_the_spread_and_measured_where_chance_counts() -> None:
    bound = of(nn.MaxPool2d(2))
    assert bound == units(spread(X)) < units(X.max() - X.min())
    pairs = torch.stack([X[..., ::2] - X[..., 1::2], X[..., 1::2] - X[..., ::2]])
    rows = X.unfold(3, 2, 2).amax(4)
    pairs = max(pairs.abs().max(), (rows[:, :, ::2] - rows[:, :, 1::2]).abs().max())
    # m = 1 forgets a difference of 2^-15 at most: the tree is run, and what it compares is all but torch's.
    measured = of(nn.MaxPool2d(2), X, BitWindow(24, 1))
    assert abs(measured - units(pairs)) <= 2 * 2 + 1 and measured <= bound


def test_a_nets_layers_in_batches_and_with_windows() -> None:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    seen: dict[str, int] = {}

    def watch(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, given: Any, result: Any) -> None:
            seen[name] = units(given[0].abs().max())

        return hook

    handles = [net[number].register_forward_hook(watch(str(number))) for number in (1, 3)]
    with torch.no_grad():
        net[3](net[2](net[0](X)))  # the first ReLU left out
        without_first = seen.pop("3")
        net(X)
    for handle in handles:
        handle.remove()
    told: list[tuple[int, int]] = []
    found = magnitudes(net, X, batch=7, progress=lambda done, of: told.append((done, of)))
    # Convolutions of other batch sizes may add in another order: float32, sums of some 40 terms below 10. Weights are
    # rounded there, by half a unit each.
    assert found == pytest.approx(seen, abs=40 * 10 * 2**-24 * 2**16 + 1 + 40 * 10 / 2) and list(found) == ["1", "3"]
    assert told == [(7, 30), (14, 30), (21, 30), (28, 30), (30, 30)]
    dropped = magnitudes(net, X, BitConfig(layers={"1": BitWindow(0, 0)}))
    assert dropped["1"] == 0 and dropped["3"] == pytest.approx(without_first, abs=30)
    assert dropped["3"] != found["3"]


def test_windows_and_seeds_count() -> None:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU())
    narrow = [magnitudes(net, X, BitWindow(19, 17), seed=seed) for seed in (1, 1, 2)]
    assert narrow[0] == narrow[1] != narrow[2]
    assert narrow[0]["1"] == magnitudes(net, X)["1"]  # what comes before a window is the same
    assert net.training and all(parameter.grad is None for parameter in net.parameters())


def test_batch_norms_are_those_of_eval_mode() -> None:
    net = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU())
    with torch.no_grad():
        net(X)
        expected = units(net.eval()(X).max()), units(net[0](X).abs().max())
    assert magnitudes(net.train(), X)["1"] == pytest.approx(expected[1], rel=1e-5)
    assert int(net[0].num_batches_tracked) == 1


@pytest.mark.parametrize("bad", [X[:0], X.long(), X / 0, torch.full((2, 3, 8, 8), float("nan")), None])
def test_images_that_cannot_be_are_refused(bad: Any) -> None:
    with pytest.raises(InputError) as caught:
        magnitudes(nn.Sequential(nn.ReLU()), bad)
    assert caught.value.where == "images" and caught.value.hint


def test_values_that_are_not_finite_name_the_layer() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    with torch.no_grad():
        net[0].weight.fill_(1e8)
    with pytest.raises(InputError, match="not finite") as caught:
        magnitudes(net, 1e32 * X)
    assert caught.value.where == "1" and caught.value.hint


def test_nets_and_windows_are_refused_as_by_simulate() -> None:
    with pytest.raises(ModelError, match="LocalResponseNorm"):
        magnitudes(nn.Sequential(nn.LocalResponseNorm(2), nn.ReLU()), X)
    for options in ({"bits": BitConfig(layers={"nonsense": BitWindow(8, 0)})}, {"protocol": "bgw"}, {"parties": 1}):
        with pytest.raises(ConfigError):
            magnitudes(nn.Sequential(nn.ReLU()), X, **options)  # type: ignore[arg-type]
