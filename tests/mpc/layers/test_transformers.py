"""Transformers and modern convolutional nets, as their libraries write them: private results are torch's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hummingbird
from hummingbird.convert import build
from tests.jobs import transformers as own
from tests.support.covering import every
from tests.support.data import data_folder
from tests.support.parties import succeed

torchvision = pytest.importorskip("torchvision")
torch.set_num_threads(1)


def vit() -> tuple[nn.Module, Any]:
    sizes = {"image_size": 16, "patch_size": 8, "num_layers": 1, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 32}
    return torchvision.models.VisionTransformer(num_classes=5, **sizes), torch.randn(2, 3, 16, 16)


def convnext() -> tuple[nn.Module, Any]:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    blocks = [CNBlockConfig(8, 16, 1), CNBlockConfig(16, None, 2)]
    return ConvNeXt(blocks, num_classes=7, layer_scale=0.5), torch.randn(2, 3, 16, 16)


def encoder() -> tuple[nn.Module, Any]:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True, activation="gelu")
    return nn.TransformerEncoder(layer, 2, nn.LayerNorm(16), enable_nested_tensor=False), torch.randn(2, 5, 16)


def bert() -> tuple[nn.Module, Any]:
    transformers = pytest.importorskip("transformers", reason="Hugging Face's transformers are not installed")
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=100, num_labels=3
    )
    return transformers.BertForSequenceClassification(config), {"inputs_embeds": torch.randn(2, 6, 16)}


def timm_net(name: str, side: int, **options: Any) -> Callable[[], tuple[nn.Module, Any]]:
    def make() -> tuple[nn.Module, Any]:
        timm = pytest.importorskip("timm", reason="timm is not installed")
        return timm.create_model(name, num_classes=5, **options), torch.randn(2, 3, side, side)

    return make


NETS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "torchvision ViT": vit,
    "torchvision ConvNeXt": convnext,
    "torch's encoder": encoder,
    "BERT": bert,
    "the repository's ViT": lambda: own.nets()["vit"],
    "the repository's BERT": lambda: own.nets()["bert"],
    "timm ViT": timm_net("vit_tiny_patch16_224", 32, img_size=32, depth=1, embed_dim=16, num_heads=2),
    "timm ConvNeXt": timm_net("convnext_atto", 32, depths=(1, 1, 1, 1), dims=(8, 8, 8, 8)),
}


def named(name: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    net, x = NETS[name]()
    for value in net.parameters():  # heads begin with zeros, and layer scales next to them
        if float(value.detach().abs().max()) < 1e-3:
            nn.init.normal_(value, std=0.3)
    return net.eval(), x


def logits(net: nn.Module, x: Any) -> Tensor:
    with torch.no_grad():
        result = net(**x) if isinstance(x, dict) else net(x)
    found: Tensor = result if isinstance(result, Tensor) else result["logits"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", every(8, list(NETS)))
def test_a_net_gives_in_private_what_torch_gives(name: str) -> None:
    net, x = named(name)
    wanted = logits(net, x)
    assert float(wanted.abs().max()) > 2.0**-8 and float((wanted[0] - wanted[1]).abs().max()) > 0
    got = logits(hummingbird.simulate(net, mode="exact", example=x), x)
    # Weights of a softmax err by 2^-7 of themselves, and mix values that are much alike in nets without training.
    assert float((got - wanted).abs().max()) <= 2.0**-7 * float(wanted.abs().max())
    assert torch.equal(got.argmax(1), wanted.argmax(1))


@pytest.mark.slow  # of numbers, masks and batches: tests/mpc/plan/test_public_inputs.py is shorter
@pytest.mark.parametrize("words", ["input_ids", "inputs_embeds"])
def test_bert_takes_other_words_masks_and_batches_than_the_examples(words: str) -> None:
    net, _ = named("BERT")

    def given(batch: int) -> dict[str, Tensor]:
        embeds = {"inputs_embeds": torch.randn(batch, 6, 16), "input_ids": torch.randint(0, 100, (batch, 6))}
        mask = torch.ones(batch, 6, dtype=torch.long)
        mask[0, batch:] = 0
        return {words: embeds[words], "attention_mask": mask}

    twin = hummingbird.simulate(net, mode="exact", example=given(2))
    for x in (given(1), given(3)):
        wanted = logits(net, x)
        assert float((logits(twin, x) - wanted).abs().max()) <= 2.0**-7 * float(wanted.abs().max())


@pytest.mark.parametrize(
    "name",
    every(5, ["torchvision ViT", "timm ViT", "the repository's ViT", "torch's encoder", "torchvision ConvNeXt"]),
)
def test_images_of_a_transformer_are_computed_one_by_one(name: str) -> None:
    net, x = named(name)
    private = build(net, example=x)
    assert private.rowwise(x.shape)
    one, two = (sum(step.cost.bits for step in private.costs((n, *x.shape[1:]), 2)) for n in (1, 2))
    assert one < two < 2 * one  # frames have headers


@pytest.mark.slow
def test_two_parties_give_what_torch_gives_and_foresee_every_bit() -> None:
    found = json.loads(succeed(["-m", "tests.jobs.transformers"], 2)[0].out)
    for name, (net, x) in own.nets().items():
        for case in (case for case in found if case.split(",")[0] == name):
            wanted, got = logits(net, x), torch.tensor(found[case])
            assert float((got - wanted).abs().max()) <= 2.0**-7 * float(wanted.abs().max()), case


@pytest.mark.slow
@pytest.mark.parametrize(("name", "layers"), every(3, [("bert", 1), ("bert", 2), ("vit", 2)]))
def test_norms_in_a_range_take_three_messages_and_no_lift_before(name: str, layers: int) -> None:
    net, x = own.nets(layers)[name]
    costs = {bits is not None: build(net, bits, example=x).costs(x.shape, 2) for bits in (None, own.rows(net, x))}
    norms = {told: [step.cost for step in steps if step.op == "norm"] for told, steps in costs.items()}
    assert {cost.rounds for cost in norms[True]} == {3} and min(cost.rounds for cost in norms[False]) > 10
    before, after = (sum(step.cost.rounds for step in costs[told]) for told in (False, True))
    assert before - after > 10 * len(norms[True])
    assert 3 * sum(cost.bits for cost in norms[True]) < sum(cost.bits for cost in norms[False])


TRAINED = {
    "cifar10": ["models:get_model", "vit", "10", "--weights", "checkpoints/vit-cifar10.pt"],
    "wikitext-2": ["models.bert:bert_tiny", "--weights", "checkpoints/wikitext2-bert.pt"],
}
INPUTS = {
    "cifar10": ["scripts.train.data:load", "cifar10", "test"],
    "wikitext-2": ["scripts.train.text_data:vectors", "checkpoints/wikitext2-bert.pt", "count=4"],
}


@pytest.mark.slow  # nets without training are answered above, and two parties at the command in test_infer.py
@pytest.mark.parametrize("data", TRAINED)
def test_trained_transformers_answer_two_parties_as_they_answer_torch(data: str, tmp_path: Path) -> None:
    folder, place = data_folder(data), tmp_path / "found.json"
    words = [
        "--model",
        *TRAINED[data],
        "--data",
        *INPUTS[data],
        f"data={folder}",
        "--samples",
        "4",
        "--json",
        str(place),
    ]
    succeed(["-m", "hummingbird", "infer", *words], 2)
    found = json.loads(place.read_text())
    assert found["images"] == 4 and found["agreement_percent"] == 100 and found["bits_predicted_equal_bits_sent"]
    assert found["largest_logit_error"] <= 2.0**-7 * found["largest_logit"]
