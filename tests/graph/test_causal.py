"""Chunks of causal nets equal the nets themselves; nets that mix places are refused by the step that does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hummingbird import graph
from hummingbird.errors import ModelError
from hummingbird.graph.calls import on_meta
from hummingbird.graph.causal import CausalNet, buckets, run_chunk
from hummingbird.mpc.plan.rewritten import Rewritten
from tests.support.causal_nets import NETS, PLACES, WIDTH, Functional, Gpt, made
from tests.support.covering import covering, every


def causal(net: nn.Module) -> CausalNet:
    steps = graph.trace(net.eval(), example=torch.zeros(1, PLACES, WIDTH))
    return CausalNet.of(Rewritten.of(steps, "masked").steps, PLACES, WIDTH)


@covering("name, hidden", NETS, [0, 2])
def test_word_after_word_equals_the_net_at_once(name: str, hidden: int) -> None:
    net = made(name)
    found, net = causal(net), net.double()
    words = torch.randn(1, PLACES - hidden, WIDTH, dtype=torch.float64)
    expected = net(torch.cat([words, torch.zeros(1, hidden, WIDTH)], 1))
    prompt, caches = 5, dict[int, Tensor]()
    x = torch.cat([torch.full((1, hidden, WIDTH), 7.0), words], 1)
    rows = [run_chunk(found.chunk(prompt, prompt), x[:, :prompt], torch.tensor([hidden, 0]), caches)]
    for start in range(prompt, PLACES):
        one = found.chunk(1, 8 if start < 8 else PLACES)
        rows.append(run_chunk(one, x[:, start : start + 1], torch.tensor([hidden, start]), caches))
    got = torch.cat(rows, 1)
    # The steps' weights are float32, with those of norms folded in: 2^-24 each, over some thousand terms.
    assert torch.allclose(got, expected[:, prompt - 1 - hidden : PLACES - hidden], rtol=0, atol=1e-4)


@covering("name, prompt", NETS, [1, 7, PLACES])
def test_the_check_passes_for_causal_nets(name: str, prompt: int) -> None:
    causal(made(name)).check(prompt)


def test_only_the_last_row_goes_through_what_follows_the_last_attention() -> None:
    steps = causal(made()).chunk(5, 5)
    values = graph.run_all(steps, *on_meta(steps, (1, 5, WIDTH)))
    sizes = {step.name: x.shape for step, x in zip(steps, values, strict=True) if isinstance(x, Tensor)}
    assert sizes["blocks.0.mlp.0"][1] == 5
    assert sizes["blocks.1.mlp.0"][1] == sizes["head"][1] == 1
    logits = next(size for name, size in sizes.items() if "blocks.1" in name and name.endswith("logits"))
    assert tuple(logits[-2:]) == (1, 5)  # one query, all keys


class MeanOfPlaces(Gpt):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + x.mean(1, keepdim=True))


class LastPlace(Gpt):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[:, -1]


class Sees(Functional):
    """Attention whose places see those of `mask`, and all without one."""

    mask: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, -1)).transpose(1, 3).unbind(2)
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v, self.mask).transpose(1, 2).flatten(2))


class OneLater(Sees):
    mask = torch.ones(PLACES, PLACES, dtype=torch.bool).tril(1)


class Reversed(Gpt):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flip(1))


class Convolution(Gpt):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.conv(x.transpose(1, 2)).transpose(1, 2))


@pytest.mark.parametrize(
    ("net", "name", "what"),
    every(
        2,
        [
            (MeanOfPlaces, "mean", "several places"),
            (LastPlace, "getitem", "several places"),
            (lambda: Gpt(Sees), "softmax", "later places"),
            (lambda: Gpt(OneLater), "softmax", "later places"),
            (Reversed, "flip", "several places"),
            (Convolution, "conv", "several places"),
        ],
    ),
)
def test_steps_that_mix_places_are_refused_by_name(net: type[nn.Module], name: str, what: str) -> None:
    with pytest.raises(ModelError) as refused:
        causal(net())
    assert any(name in problem.name and what in problem.what and problem.hint for problem in refused.value.problems)


def test_a_net_whose_places_are_alone_needs_no_cache() -> None:
    with pytest.raises(ModelError, match="no attention"):
        causal(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()))


def test_the_check_sees_what_the_rules_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    found = causal(made())
    monkeypatch.setattr("hummingbird.graph.ops.attention.HIDDEN", 0.0)  # masks that hide nothing
    with pytest.raises(ModelError, match="one after the other"):
        found.check(5)


def test_buckets() -> None:
    assert buckets(64, 256) == [128, 256]
    assert buckets(5, 16) == [16]
    assert buckets(10, 100) == [64, 100]
    assert buckets(32, 128) == [64, 128]
