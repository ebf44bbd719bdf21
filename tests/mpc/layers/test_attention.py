"""Attention as torch has it: masks, hints, parts of torch's encoder, einsum's sizes of 1; what differs is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hummingbird
from hummingbird.bits import BitWindow
from hummingbird.convert import build
from hummingbird.errors import InputError, ModelError
from tests.support.covering import covering, every
from tests.support.operations import Function

torch.set_num_threads(1)
LATER = torch.ones(5, 5, dtype=torch.bool).triu(1)


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close(net: nn.Module, x: Any, mode: str = "exact") -> None:
    """The twin gives what torch gives, but for what a softmax errs by."""
    with torch.no_grad():
        wanted = net(*x) if isinstance(x, tuple) else net(x)
        twin = hummingbird.simulate(net, mode=mode, seed=0, example=x)
        got = twin(*x) if isinstance(x, tuple) else twin(x)
    for mine, theirs in zip(_flat(got), _flat(wanted), strict=True):
        assert mine.shape == theirs.shape and float((mine - theirs).abs().max()) < 2.0**-7 * float(theirs.abs().max())


def _flat(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [part for part in value if part is not None]


def masked(mask: Tensor) -> nn.Module:
    return Function(lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=mask)).eval()


MASKS = {
    "True is shown": ~LATER,
    "infinity": torch.zeros(5, 5).masked_fill(LATER, -math.inf),
    "the least float": torch.zeros(5, 5).masked_fill(LATER, torch.finfo(torch.float32).min),
    "all far below": torch.full((5, 5), -1e4).masked_fill(LATER, -2e4),
    "far below, and a little apart": torch.tensor([-5000.0, -4998, -5000, -6000, -7000]).expand(5, 5),
}


@pytest.mark.parametrize("mask", MASKS)
def test_a_mask_hides_what_torch_hides(mask: str) -> None:
    close(masked(MASKS[mask]), seeded(2, 5, 4))


@pytest.mark.parametrize(
    "hides", [False, -math.inf, torch.finfo(torch.float32).min], ids=["True is shown", "infinity", "the least float"]
)
def test_a_mask_that_hides_a_whole_row_is_refused(hides: Any) -> None:
    mask = torch.zeros(5, 5).masked_fill(LATER, hides) if hides is not False else ~LATER
    mask[2] = hides
    (problem,) = hummingbird.validate_model(masked(mask), example=seeded(2, 5, 4))
    assert "hides all keys of a query" in problem.what and problem.hint


def heads(**options: Any) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    return nn.MultiheadAttention(8, 2, batch_first=True, **options).eval()


class Attention(nn.Module):
    def __init__(self, **call: Any) -> None:
        super().__init__()
        self.heads, self.call = heads(), call

    def forward(self, x: Tensor) -> Any:
        return self.heads(x, x, x, **self.call)


@pytest.mark.parametrize("call", every(3, [{}, {"need_weights": False}, {"average_attn_weights": False}]), ids=str)
def test_the_results_of_attention_may_be_those_of_the_net(call: dict[str, Any]) -> None:
    close(Attention(**call).eval(), seeded(2, 5, 8))


@pytest.mark.slow  # with a batch: above
def test_weights_are_averaged_over_heads_without_a_batch_too() -> None:
    net, x = Attention().eval(), seeded(5, 8)
    with torch.no_grad():
        got = hummingbird.simulate(net, mode="exact", seed=0, example=x)(x)
        wanted = net(x)
    assert float((got[1] - wanted[1]).abs().max()) < 2.0**-7


@pytest.mark.parametrize("masks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_is_causal_is_believed_of_a_causal_mask_alone(masks: int) -> None:
    for mask in (LATER, torch.zeros(5, 5).masked_fill(LATER, -math.inf))[:masks]:
        close(Attention(attn_mask=mask, is_causal=True, need_weights=False).eval(), seeded(2, 5, 8))
    for mask in (LATER.flip(0) & LATER, LATER.float() * -1.5)[:masks]:
        net = Attention(attn_mask=mask, is_causal=True, need_weights=False).eval()
        (problem,) = hummingbird.validate_model(net, example=seeded(2, 5, 8))
        assert "not causal" in problem.what


def changed_norm(layer: nn.TransformerEncoderLayer) -> None:
    layer.norm1 = nn.Identity()  # type: ignore[assignment]


def changed_linear(layer: nn.TransformerEncoderLayer) -> None:
    layer.linear1 = nn.Sequential(nn.Linear(8, 16), nn.ReLU())  # type: ignore[assignment]


def changed_forward(layer: nn.TransformerEncoderLayer) -> None:
    layer.linear2.forward = lambda x: x[..., :8]  # type: ignore[method-assign]


CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a norm": (changed_norm, "Identity"),
    "a layer": (changed_linear, "Sequential"),
    "forward()": (changed_forward, "Linear in an encoder, or a forward"),
    "a hook on a layer": (lambda layer: layer.linear1.register_forward_hook(lambda m, x, y: y * 2), "a hook on Linear"),
    "a hook on dropout": (lambda layer: layer.dropout1.register_forward_hook(lambda m, x, y: y * 2), "hook on Dropout"),
    "a hook on the layer itself": (
        lambda layer: layer.register_forward_pre_hook(lambda m, x: (x[0] * 2,)),
        "a hook on TransformerEncoderLayer",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_changed_in_torchs_encoder_is_not_lost(change: str) -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    function, words = CHANGES[change]
    function(encoder.layers[1])
    (problem,) = hummingbird.validate_model(encoder)
    assert words in problem.what and problem.hint


class Einsum(nn.Module):
    def __init__(self, equation: str) -> None:
        super().__init__()
        self.equation = equation

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.einsum(self.equation, x, y)


@covering(
    "equation, shapes",
    ["bij,bij->bi", "bij,bij->bj", "bij,bij->bij", "bij,bij->b"],
    [[(5, 8), (1, 8)], [(1, 8), (5, 8)], [(5, 8), (5, 1)], [(5, 1), (1, 8)]],
    ids=str,
)
def test_einsum_repeats_what_has_size_1(equation: str, shapes: list[tuple[int, int]]) -> None:
    close(Einsum(equation).eval(), tuple(seeded(2, *shape, seed=i) for i, shape in enumerate(shapes)))


def test_the_twin_follows_a_softmax_over_hidden_places() -> None:
    net = Function(lambda x: (x @ x.transpose(1, 2)).masked_fill(LATER, -1e9).softmax(-1) @ x).eval()
    close(net, seeded(2, 5, 4), "fast")


@pytest.mark.parametrize("net", [nn.InstanceNorm1d(6), nn.InstanceNorm2d(6, affine=True)], ids=str)
def test_a_norm_of_one_image_is_no_norm_of_a_batch(net: nn.Module) -> None:
    rank = 2 if isinstance(net, nn.InstanceNorm1d) else 3
    private = build(net.eval())
    with pytest.raises(InputError, match="a norm of each channel"):
        private.costs((6, 4, 4)[:rank], 2)
    with pytest.raises(InputError, match="a norm of each channel"):
        build(Function(lambda x: F.instance_norm(x)).eval()).costs((4, 6), 2)


def test_torch_writes_nothing_when_an_example_has_its_one_batch(capfd: pytest.CaptureFixture[str]) -> None:
    mask = seeded(2, 1, 1)
    net = Function(lambda x: x + mask).eval()
    assert build(net, example=seeded(2, 3, 4)) is not None
    with pytest.raises(ModelError):
        build(Function(lambda x: x @ x).eval(), example=seeded(2, 3, 4))
    out, err = capfd.readouterr()
    assert not out and not err


class Hiding(nn.Module):
    """Attention with a mask of one kind."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.linear = kind, nn.Linear(8, 8)
        shown = torch.ones(6, 6).tril().bool()
        shown[4, 1] = False
        self.register_buffer("shown", shown)
        self.register_buffer("biased", torch.randn(6, 6) * 0.5 + torch.zeros(6, 6).masked_fill(~shown, -torch.inf))
        self.register_buffer("large", torch.zeros(6, 6).masked_fill(~shown, -1e4))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q = self.linear(x)
        if self.kind == "written out":
            return ((q @ x.transpose(1, 2)) / 3 + self.large).softmax(-1) @ x
        masks = {"bool": self.shown, "float": self.biased, "public": mask}
        if self.kind == "both":
            causal = F.scaled_dot_product_attention(q, x, x, is_causal=True)
            return causal + F.scaled_dot_product_attention(x, q, x, attn_mask=self.shown)
        return F.scaled_dot_product_attention(q, x, x, masks.get(self.kind), is_causal=self.kind == "causal")


@covering(
    "kind, bits, mode",
    ["causal", "bool", "float", "public", "written out", "both"],
    [None, BitWindow(21, 0), BitWindow(21, 6)],
    ["exact", "fast"],
    ids=str,
)
def test_masks_in_windows(kind: str, bits: BitWindow | None, mode: str) -> None:
    """Places that a mask hides leave the softmax: windows that hold the logits are wide enough."""
    torch.manual_seed(3)
    net, x = Hiding(kind).eval(), torch.randn(3, 6, 8)
    each = torch.ones(3, 6, 6).tril().bool()
    each[1, :, 2], each[1, 2, 0] = False, True
    given = (x, each) if kind == "public" else (x,)
    with torch.no_grad():
        twin = hummingbird.simulate(net, bits, mode=mode, seed=1, example=given if kind == "public" else None)
        # 2^-7 of a weight, of up to six, as a softmax errs; two such results in "both"
        assert float((twin(*given) - net(*given)).abs().max()) < 2.0**-7
        if kind == "public":
            each[2, 5, :5] = False
            assert float((twin(*given) - net(*given)).abs().max()) < 2.0**-7


def test_hidden_places_count_for_nothing() -> None:
    """However large they are: beside logits of 500 a mask of -2^12 would do, beside 5,000 it would not."""
    net = Hiding("bool").eval()
    with torch.no_grad():
        net.linear.weight.copy_(torch.eye(8) * 60)
        net.linear.bias.zero_()
    x = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(4)) * 4
    x[:, 5] *= 8
    with torch.no_grad():
        assert float((hummingbird.simulate(net, mode="exact", seed=1)(x) - net(x)).abs().max()) < 2.0**-4
