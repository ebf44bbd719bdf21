"""Pruning while a net trains: how many weights are zero after each step, and that they stay so."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hummingbird.commands.pruning import Pruning
from hummingbird.commands.training import Dataset, Recipe, Training
from hummingbird.errors import InputError

FACTS = Dataset((1, 4, 4), 2, (0.0,), (1.0,), shift=0, flip=False)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 10, 3), nn.BatchNorm2d(10), nn.ReLU(), nn.Flatten(), nn.Linear(40, 2))


def zeros(weight: torch.Tensor) -> int:
    return int((weight == 0).sum())


def test_zeros_rise_by_a_cubic_over_the_first_half_of_all_steps() -> None:
    pruning = Pruning(net(), 0.8, 8)
    parts = [pruning.zeros(step) for step in range(1, 9)]
    assert parts == pytest.approx([0.8 * (1 - 0.75**3), 0.8 * (1 - 0.5**3), 0.8 * (1 - 0.25**3), *[0.8] * 5])


def test_the_smallest_weights_become_zero_and_stay_zero() -> None:
    torch.manual_seed(0)
    model = net()
    with torch.no_grad():
        model[4].weight.copy_(torch.arange(1.0, 81.0).view(2, 40))
    sgd = torch.optim.SGD(model.parameters(), 1.0, momentum=0.9)
    pruning = Pruning(model, 0.5, 2)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    pruning.step(sgd, 1)
    assert model[4].weight.flatten().tolist() == [0.0] * 40 + [float(n) for n in range(41, 81)]
    assert zeros(model[0].weight) == 45 and zeros(model[1].weight) == 0 and zeros(model[4].bias) == 0
    before = model[4].weight == 0
    model[4].weight.grad = torch.ones_like(model[4].weight)
    pruning.step(sgd, 2)
    assert bool((model[4].weight[before] == 0).all()) and model[4].weight[~before].tolist() == list(range(40, 80))


def test_a_training_leaves_one_weight_of_ten() -> None:
    """Also if it is stopped in between, with the very weights of one that was not."""
    torch.manual_seed(0)
    images, labels = torch.randn(64, 1, 4, 4), torch.randint(2, (64,))
    first, second = net(), net()
    second.load_state_dict(first.state_dict())
    recipe = Recipe(4, batch=16, sparsity=0.9)
    whole = Training(first, images, labels, FACTS, recipe)
    for _ in range(4):
        whole.run_epoch()
    stopped = Training(second, images, labels, FACTS, recipe)
    stopped.run_epoch()
    goes_on = Training(net(), images, labels, FACTS, recipe)
    goes_on.restore(stopped.state())
    for _ in range(3):
        goes_on.run_epoch()
    assert zeros(first[0].weight) == 81 and zeros(first[4].weight) == 72
    assert all(
        a.equal(b) for a, b in zip(first.state_dict().values(), goes_on.model.state_dict().values(), strict=True)
    )


def test_recipes_that_cannot_be() -> None:
    for sparsity in (-0.1, 1.0, float("nan")):
        with pytest.raises(InputError, match="a sparsity of"):
            Recipe(1, sparsity=sparsity)
    with pytest.raises(InputError, match="pruning and a mean of weights"):
        Recipe(1, sparsity=0.5, average=True)
