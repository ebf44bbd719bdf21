"""The comparison of a net of text in private with plain torch: what counts as agreeing and as explained."""

from __future__ import annotations

import pytest
import torch

from hummingbird.bits import BitConfig
from models.bert import Bert
from models.gpt import Gpt
from scripts.bench.text import answered, compared, converse, logits, measure, written


def test_a_difference_is_explained_by_a_gap_within_both_errors() -> None:
    plain = torch.tensor([[[3.0, 2.9, 0.0], [3.0, 2.0, 0.0], [1.0, 0.0, 0.0]]])
    found = plain + torch.tensor([[[-0.1, 0.1, 0.0], [0.0, 0.0, 0.1], [0.0, 0.0, 0.0]]])
    following = torch.tensor([[0, 1, 2]])
    row = compared(plain, found, following)
    assert row["pieces"] == 3 and row["unexplained"] == 0
    assert row["agreeing_percent"] == pytest.approx(100 * 2 / 3)
    assert row["largest_gap_of_others"] == pytest.approx(0.1) and row["largest_logit_error"] == pytest.approx(0.1)
    swapped = compared(plain, plain[..., [1, 0, 2]] * torch.tensor([1.0, 1.0, 1.0]), following)
    assert swapped["agreeing_percent"] == 0 and swapped["unexplained"] == 0  # errors of 1 explain gaps of 1
    assert compared(plain, plain, following)["perplexity_change_percent"] == 0


@pytest.mark.slow
def test_the_twin_of_a_gpt_agrees() -> None:
    torch.manual_seed(0)
    net = Gpt(words=30, places=6, width=8, heads=2, layers=1).eval()
    row = measure(net, torch.randint(30, (2, 7)), "exact")
    assert row["pieces"] == 12 and row["unexplained"] == 0 and abs(row["perplexity_change_percent"]) < 0.5
    assert row["largest_logit_error"] <= 2.0**-7 * row["largest_logit"]


def test_a_hidden_word_is_counted_by_its_answer() -> None:
    plain, answers = torch.tensor([[3.0, 2.9], [0.0, 1.0], [1.0, 0.0]]), torch.tensor([0, 1, 1])
    row = answered(plain, plain + torch.tensor([[-0.1, 0.1], [0.0, 0.0], [0.0, 0.0]]), answers)
    assert row["hidden_words"] == 3 and row["unexplained"] == 0 and row["within_twice_the_error"] == 1
    assert row["accuracy_plain_percent"] == pytest.approx(200 / 3) and row["accuracy_percent"] == pytest.approx(100 / 3)


@pytest.mark.slow
@pytest.mark.parametrize("twin", ["fast", "exact"])
def test_the_twins_of_a_bert_agree(twin: str) -> None:
    torch.manual_seed(0)
    net = Bert(words=5, choices=4, length=6, width=8, heads=2, layers=1).eval()
    plain, found = logits(net, torch.randn(3, 6, 8), twin, 2)
    row = answered(plain, found, plain.argmax(1))
    assert row["hidden_words"] == 3 and row["unexplained"] == 0 and row["accuracy_plain_percent"] == 100
    assert 0 < row["largest_logit_error"] <= 2.0**-7 * row["largest_logit"]


@pytest.mark.slow
def test_two_parties_write_what_plain_torch_writes() -> None:
    torch.manual_seed(0)
    net = Gpt(words=30, places=8, width=8, heads=2, layers=1).eval()
    prompts = torch.randint(30, (2, 3))
    numbers, logits = written(net, prompts, 4)
    assert numbers.shape == (2, 7) and torch.equal(numbers[:, :3], prompts) and logits.shape == (2, 4, 30)
    row = converse(net, BitConfig(), prompts, 4)
    assert row["pieces"] == 8 and row["unexplained"] == 0
    assert row["largest_logit_error"] <= 2.0**-5 * row["largest_logit"]
    assert row["prompt_megabytes"] > row["word_megabytes"] > 0 and row["word_offline_megabytes"] > 0
    assert row["word_seconds"] > 0 and row["word_rounds"] > 0
