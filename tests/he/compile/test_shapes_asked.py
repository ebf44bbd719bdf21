"""Nets whose forward() asks for shapes: input_shape is the example that they are traced with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hummingbird import he
from hummingbird.errors import ModelError
from hummingbird.graph import trace
from tests.he.compile.test_vocabulary import checked


class Net(nn.Module):
    def __init__(self, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.first, self.second, self.rnn = nn.Linear(4, 3), nn.Linear(3, 3), nn.GRU(3, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def padded(net: Any, x: Tensor) -> Tensor:
    _, _, height, width = x.shape
    if height % 2 or width % 2:
        x = F.pad(x, (0, width % 2, 0, height % 2))
    return F.gelu(net.second(net.first(x)))


def summed(net: Any, x: Tensor) -> Tensor:
    out = net.first(x[:, 0])
    for place in range(1, x.shape[1]):
        out = out + net.first(x[:, place])
    return net.second(out)


NETS: dict[str, tuple[Callable[[Any, Tensor], Tensor], tuple[int, ...]]] = {
    "a branch": (lambda s, x: s.second(s.first(x).relu()) if x.shape[1] == 4 else x, (4,)),
    "padding": (padded, (2, 3, 3)),
    "a loop": (summed, (3, 4)),
    "an unrolled layer": (lambda s, x: s.rnn(s.first(x))[0], (3, 4)),
}


@pytest.mark.parametrize("name, mode", [*((name, "client-aided") for name in NETS), ("a loop", "polynomial")])
def test_results_are_those_of_torch(name: str, mode: str) -> None:
    function, shape = NETS[name]
    net = Net(function).eval()
    with pytest.raises(ModelError):
        trace(net, elementwise=True)  # without the shape
    checked(net, shape, mode)


def test_what_an_image_does_not_tell_is_refused() -> None:
    def rows(net: Any, x: Tensor) -> Tensor:
        return torch.cat([net.first(x[row : row + 1]) * (row + 1) for row in range(x.shape[0])])

    with pytest.raises(ModelError, match="depends on how many images there are"):
        he.convert_model(Net(rows).eval(), (4,))

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.fc(x) + y

    with pytest.raises(ModelError, match="a second input of the net"):
        he.convert_model(Two(), (4,))

    def other(net: Any, x: Tensor) -> Tensor:
        return x.det() if x.shape[1] == 4 else x

    with pytest.raises(ModelError, match="det is not in the vocabulary"):  # and no word on shapes
        he.convert_model(Net(other).eval(), (4, 4))
