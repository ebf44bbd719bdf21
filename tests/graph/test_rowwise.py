"""Nets that mix the images of a batch are found, whatever their shapes; those that do not are known to be rowwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hummingbird.errors import InputError
from hummingbird.graph import run, trace
from hummingbird.graph.rowwise import rowwise
from tests.support.operations import Function, SelfAttention, cases

CASES = cases()


class Attend(nn.Module):
    """Attention over dimension 0: the batch, unless `batch_first`."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=batch_first)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attention(x, x, x)[0]
        return out


class TokenBefore(nn.Module):
    """A row that is the same for every image, and then the image's own."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.linspace(-1.0, 1.0, 4).view(1, 1, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.token.expand(x.size(0), -1, -1), x], 1)


def windows(x: Tensor) -> Tensor:
    """Pairs of rows as images of their own, as Swin has windows, and back."""
    parts = x.view(x.size(0), 2, 2, x.size(2)).reshape(-1, 2, x.size(2))
    mixed = F.softmax(parts @ parts.transpose(1, 2), -1) @ parts
    return mixed.reshape(x.size(0), 4, x.size(2))


SQUARE = (4, 4)  # as many images as features
CUBE = (4, 4, 4)
MIXED: dict[str, tuple[Callable[[Tensor], Tensor] | nn.Module, tuple[int, ...]]] = {
    "x x": (lambda x: x @ x, SQUARE),
    "x x^T": (lambda x: x @ x.transpose(0, 1), SQUARE),
    "x^T x": (lambda x: x.transpose(0, 1) @ x, SQUARE),
    "x (x^T x)": (lambda x: x @ (x.transpose(0, 1) @ x), (4, 6)),
    "softmax over the batch": (lambda x: F.softmax(x, 0), SQUARE),
    "softmax behind a transpose": (lambda x: F.softmax(x.transpose(0, 1), 1).transpose(0, 1), SQUARE),
    "swapped axes": (lambda x: x.transpose(0, 1), SQUARE),
    "swapped axes, and a layer": (lambda x: F.relu(x.permute(1, 0, 2)) + x, CUBE),
    "outer difference": (lambda x: (x.unsqueeze(1) - x.unsqueeze(0)).sum(1), SQUARE),
    "sum over the batch": (lambda x: x - x.sum(0, keepdim=True), SQUARE),
    "mean over all": (lambda x: x * x.mean(), SQUARE),
    "einsum over the batch": (lambda x: x + torch.einsum("bi,bj->ij", x, x), SQUARE),
    "einsum of two batches": (lambda x: torch.einsum("ai,bi->ab", x, x), SQUARE),
    "einsum that swaps": (lambda x: torch.einsum("bij,bjk->ibk", x, x), CUBE),
    "products over the batch": (lambda x: (x.permute(1, 0, 2) @ x.permute(1, 2, 0)).permute(1, 0, 2), CUBE),
    "norm over the batch": (lambda x: F.layer_norm(x.transpose(0, 1), (4,)).transpose(0, 1), SQUARE),
    "norm over everything": (lambda x: F.layer_norm(x, (4, 4)), SQUARE),
    "attention over the batch": (Attend(False), CUBE),
    "flattened batch": (lambda x: x.flatten(0, 1).unsqueeze(0) * torch.ones(1), (3, 5)),
    "a linear layer on the batch": (nn.Sequential(Function(lambda x: x.transpose(0, 1)), nn.Linear(4, 4)), SQUARE),
    "the first image alone": (lambda x: torch.cat([x[:1] * 2.0, x[1:]]), SQUARE),
    "the first five": (lambda x: x[:5], (6, 4)),
    "the first one everywhere": (lambda x: x + x[0], SQUARE),
    "images in another order": (lambda x: torch.cat([x[2:], x[:2]]), SQUARE),
    "groups across images": (lambda x: F.softmax(x.reshape(-1, 12), 1).reshape(-1, 4), (6, 4)),
    "fixed rows": (lambda x: F.softmax(x.reshape(6, -1), 1).reshape(x.size(0), -1), (6, 12)),
    "rolled": (lambda x: x.roll(1, 0), SQUARE),
    "rolled behind a transpose": (lambda x: x.transpose(0, 1).roll((1, 2), (0, -1)).transpose(0, 1), SQUARE),
    "turned over": (lambda x: x.flip(0) + x, SQUARE),
    "turned over, from the end": (lambda x: x.flip(1, -3), CUBE),
    "the larger of two images": (lambda x: torch.maximum(x, x.transpose(0, 1)), SQUARE),
    "the larger of it and the first": (lambda x: torch.maximum(x, x[:1]), SQUARE),
    "a least value for each image": (lambda x: torch.minimum(torch.linspace(-1, 1, 4).view(4, 1), x), SQUARE),
    "compared across images": (lambda x: torch.where(x > x.transpose(0, 1), x, 0.5), SQUARE),
    "compared with the largest's place": (lambda x: torch.where(x > x.flip(0), x, 0.5), SQUARE),
    "a mask over images": (lambda x: x.masked_fill(torch.tensor([[True], [False], [False], [True]]), 0.5), SQUARE),
    "circular over images": (lambda x: F.pad(x.transpose(0, 2), (1, 0), "circular").transpose(0, 2)[:-1], CUBE),
    "images between images": (
        lambda x: F.interpolate(x.permute(1, 2, 0), scale_factor=2, mode="linear").permute(2, 0, 1),
        CUBE,
    ),
    "images as channels of pixels": (lambda x: F.pixel_shuffle(x, 2).reshape(-1, 4), CUBE),
    "images as channels": (lambda x: F.channel_shuffle(x.transpose(0, 1), 2).transpose(0, 1), CUBE),
    "as many copies as images": (lambda x: x.unsqueeze(1).expand(-1, x.size(0), -1).sum(1), SQUARE),
    "copies in a row": (lambda x: x[:1].expand(x.size(0), -1) + x, SQUARE),
    "a size that is the batch's": (lambda x: F.interpolate(x, size=x.size(0)), CUBE),
    "joined to a constant of its size": (lambda x: torch.cat([x, torch.linspace(-1, 1, 4).view(4, 1)], 1), SQUARE),
    "zeros below": (lambda x: F.pad(x, (0, 0, 1, 0))[:-1], SQUARE),
}
MIXED["a factor for each place"] = (
    nn.Sequential(
        Function(lambda x: x.transpose(0, 1)), nn.BatchNorm1d(4).eval(), Function(lambda x: x.transpose(0, 1))
    ),
    CUBE,
)
APART: dict[str, tuple[Callable[[Tensor], Tensor] | nn.Module, tuple[int, ...]]] = {
    "x x^T of each": (lambda x: x @ x.transpose(1, 2), CUBE),
    "windows": (windows, (3, 4, 4)),
    "there and back": (lambda x: F.relu(x.transpose(0, 1)).transpose(0, 1), SQUARE),
    "tokens first": (lambda x: F.softmax(x.transpose(0, 1), 0).transpose(0, 1), CUBE),
    "attention": (Attend(True), CUBE),
    "attention of rows": (SelfAttention(), (2, 3, 8)),
    "einsum": (lambda x: torch.einsum("bij,bkj->bik", x, x), CUBE),
    "the first token": (lambda x: x[:, 0], CUBE),
    "norm": (nn.LayerNorm(4), CUBE),
    "rolled within": (lambda x: x.transpose(0, 1).roll(1, 0).transpose(0, 1), CUBE),
    "turned over within": (lambda x: x.flip(1, -1), CUBE),
    "the larger within": (lambda x: torch.maximum(x, x.transpose(1, 2)), CUBE),
    "a least value for each row": (lambda x: torch.minimum(torch.linspace(-1, 1, 4).view(4, 1), x), CUBE),
    "compared within": (lambda x: torch.where(x > x.mean(1, keepdim=True), x, x.flip(2)), CUBE),
    "a mask within": (lambda x: x.masked_fill(torch.tensor([True, False, False, True]), 0.5), SQUARE),
    "circular within": (lambda x: F.pad(x, (1, 2), "circular"), CUBE),
    "pixels": (lambda x: F.pixel_unshuffle(F.pixel_shuffle(F.interpolate(x, (6, 5)), 2), 2), (2, 4, 2, 2)),
    "pixels of five dimensions": (lambda x: F.pixel_shuffle(x, 2), (3, 2, 4, 2, 2)),
    "channels": (lambda x: F.channel_shuffle(x, 2), CUBE),
    "copies": (lambda x: x[:, :1].expand(-1, 5, -1) + x.unsqueeze(0).expand(2, -1, -1, -1).sum(0)[:, :1], CUBE),
    "a token before": (TokenBefore(), CUBE),
    "flattened": (lambda x: F.relu(x.flatten(0, 1)).reshape(x.size(0), -1), CUBE),
}


def net_of(what: Callable[[Tensor], Tensor] | nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return (what if isinstance(what, nn.Module) else Function(what)).eval()


@pytest.mark.parametrize("name", MIXED)
def test_a_net_that_mixes_images_is_not_rowwise(name: str) -> None:
    what, shape = MIXED[name]
    steps = trace(net_of(what))
    x = torch.randn(shape)
    whole, halves = run(steps, x), None
    try:
        halves = torch.cat([run(steps, x[:1]), run(steps, x[1:])])
    except (InputError, RuntimeError, IndexError, ValueError):
        pass
    # Slices would indeed give something else, or nothing.
    assert halves is None or halves.shape != whole.shape or not torch.allclose(halves, whole, atol=1e-6)
    assert not rowwise(steps, shape)


@pytest.mark.parametrize("name", APART)
def test_a_net_that_keeps_images_apart_is_rowwise(name: str) -> None:
    what, shape = APART[name]
    steps = trace(net_of(what))
    x = torch.randn(shape)
    assert torch.allclose(torch.cat([run(steps, x[:1]), run(steps, x[1:])]), run(steps, x), atol=1e-6)
    assert rowwise(steps, shape)


MIXING = ("argmax behind a layer", "constant joined")  # along the batch, and a constant for each of three images


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_every_operation_of_images_is_rowwise(step: int) -> None:
    for name in [*[*CASES][::step], *MIXING]:
        assert rowwise(trace(CASES[name].net.eval()), tuple(CASES[name].x.shape)) == (name not in MIXING), name
