"""The nets of docs/nets.md: how each is made, with random weights, and what it is given. Nothing is downloaded.

Nets of images are in the smallest size that shows all their layers; transformers have the width and depth of the net
they are named after, and few tokens. Libraries that are not installed leave their nets out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

LAYER_SCALE = 0.1  # in place of the 1e-6 that blocks begin their training with, and that would hide what they compute


@dataclass(frozen=True)
class Entry:
    """A net of the table. side: of its images; 0 for random numbers of this `shape`. classes: their dimension."""

    library: str
    make: Callable[[], nn.Module]
    side: int = 0
    shape: tuple[int, ...] = ()
    keyword: str = ""
    classes: int = 1

    def example(self, images: Callable[[int], Tensor], batch: int) -> Any:
        """The arguments that the net is called with; images: gives a batch of images of a side."""
        if self.side:
            x = images(self.side)[:batch]
        else:
            x = torch.randn(batch, *self.shape, generator=torch.Generator().manual_seed(1))
        return {self.keyword: x} if self.keyword else x


def prepared(net: nn.Module) -> nn.Module:
    """The net in eval mode, with heads and layer scales that are not next to zero."""
    for layer in net.modules():
        if isinstance(layer, nn.Linear) and not bool(layer.weight.any()):
            nn.init.normal_(layer.weight, std=0.02)
    for name, value in net.named_parameters():
        last = name.rpartition(".")[2]
        if last in ("layer_scale", "layer_scale_parameter", "gamma", "lambda1") and float(value.abs().max()) <= 1e-4:
            nn.init.constant_(value, LAYER_SCALE)
    return net.eval()


def _torchvision(name: str, side: int = 64, **options: Any) -> Entry:
    def make() -> nn.Module:
        import torchvision

        return torchvision.models.get_model(name, weights=None, **options)

    return Entry("torchvision", make, side)


def _timm(name: str, side: int = 64, **options: Any) -> Entry:
    def make() -> nn.Module:
        import timm

        return timm.create_model(name, pretrained=False, **options)

    return Entry("timm", make, side)


def _transformers(config: str, net: str, entry: dict[str, Any], **options: Any) -> Entry:
    def make() -> nn.Module:
        import transformers

        return getattr(transformers, net)(getattr(transformers, config)(**options))

    return Entry("transformers", make, **entry)


class TextCnn(nn.Module):
    """Kim, "Convolutional neural networks for sentence classification", 2014, on word vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(128, 100, width) for width in (3, 4, 5))
        self.head = nn.Linear(300, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        found = [torch.nn.functional.adaptive_max_pool1d(torch.relu(conv(x)), 1).flatten(1) for conv in self.convs]
        return self.head(torch.cat(found, 1))


class Encoder(nn.Module):
    """torch's own transformer encoder over word vectors, and a head on their mean."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, activation="gelu")
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(128, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(1))


class Recurrent(nn.Module):
    """A recurrent layer over word vectors, and a head on its last state."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer, self.head = kind(64, 64, batch_first=True), nn.Linear(64, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


class UNet(nn.Module):
    """Ronneberger et al., "U-Net", 2015, three levels, with batch norms and padding.

    Of volumes with space=3: Cicek et al., "3D U-Net", 2016. inputs: channels of an input; widths: of the levels.
    """

    def __init__(self, inputs: int = 3, widths: tuple[int, int, int] = (16, 32, 64), space: int = 2) -> None:
        super().__init__()
        self.pool = (nn.MaxPool2d, nn.MaxPool3d)[space - 2](2)
        convolution, norm = ((nn.Conv2d, nn.BatchNorm2d), (nn.Conv3d, nn.BatchNorm3d))[space - 2]
        transposed = (nn.ConvTranspose2d, nn.ConvTranspose3d)[space - 2]

        def pair(inputs: int, outputs: int) -> nn.Sequential:
            first = [convolution(inputs, outputs, 3, padding=1), norm(outputs), nn.ReLU()]
            return nn.Sequential(*first, convolution(outputs, outputs, 3, padding=1), norm(outputs), nn.ReLU())

        a, b, c = widths
        self.down = nn.ModuleList([pair(inputs, a), pair(a, b), pair(b, c)])
        self.up = nn.ModuleList([transposed(c, b, 2, 2), transposed(b, a, 2, 2)])
        self.join = nn.ModuleList([pair(c, b), pair(b, a)])
        self.head = convolution(a, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for number, pair in enumerate(self.down):
            x = pair(x if number == 0 else self.pool(x))
            kept.append(x)
        for up, join, other in zip(self.up, self.join, kept[-2::-1], strict=True):
            x = join(torch.cat([up(x), other], 1))
        return self.head(x)


_WORDS = {"shape": (16, 128), "keyword": "inputs_embeds"}
_TINY = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 128, "intermediate_size": 512}
_VISION = {"side": 64, "keyword": "pixel_values"}
NETS: dict[str, Entry] = {
    **{
        name: _torchvision(name)
        for name in (
            "resnet18 resnet50 wide_resnet50_2 resnext50_32x4d densenet121 mobilenet_v2 mobilenet_v3_small"
            " efficientnet_b0 efficientnet_v2_s shufflenet_v2_x1_0 squeezenet1_1 mnasnet1_0 regnet_y_400mf"
            " convnext_tiny"
        ).split()
    },
    "googlenet": _torchvision("googlenet", init_weights=False),
    "vgg11_bn": _torchvision("vgg11_bn", 224),
    "vit_b_16": _torchvision("vit_b_16", image_size=64),
    "maxvit_t": _torchvision("maxvit_t", 224),
    "swin_t": _torchvision("swin_t"),
    "lraspp_mobilenet_v3_large": _torchvision("lraspp_mobilenet_v3_large", weights_backbone=None),
    "fcn_resnet50": _torchvision("fcn_resnet50", weights_backbone=None),
    "deeplabv3_mobilenet_v3_large": _torchvision("deeplabv3_mobilenet_v3_large", weights_backbone=None),
    "unet": Entry("torch", UNet, 32),
    "unet3d": Entry("torch", lambda: UNet(1, (8, 16, 32), 3), shape=(1, 32, 32, 32)),
    "vit_tiny_patch16": _timm("vit_tiny_patch16_224", img_size=64),
    "deit_tiny_patch16": _timm("deit_tiny_patch16_224", img_size=64),
    "convnext_atto": _timm("convnext_atto"),
    "mixer_s32": _timm("mixer_s32_224", img_size=64),
    "resmlp_12": _timm("resmlp_12_224", img_size=64),
    "poolformer_s12": _timm("poolformer_s12"),
    "repvgg_a0": _timm("repvgg_a0"),
    "ghostnet_100": _timm("ghostnet_100"),
    "bert_tiny": _transformers("BertConfig", "BertForSequenceClassification", _WORDS, **_TINY),
    "roberta_tiny": _transformers("RobertaConfig", "RobertaForSequenceClassification", _WORDS, **_TINY),
    "electra_tiny": _transformers(
        "ElectraConfig", "ElectraForSequenceClassification", _WORDS, embedding_size=128, **_TINY
    ),
    "albert_tiny": _transformers(
        "AlbertConfig", "AlbertForSequenceClassification", _WORDS, embedding_size=128, **_TINY
    ),
    "gpt2_tiny": _transformers(
        "GPT2Config",
        "GPT2LMHeadModel",
        _WORDS | {"classes": -1},
        n_embd=128,
        n_layer=2,
        n_head=2,
        n_positions=64,
        vocab_size=1000,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    ),
    "hf_vit": _transformers("ViTConfig", "ViTForImageClassification", _VISION, image_size=64, patch_size=16, **_TINY),
    "hf_resnet18": _transformers(
        "ResNetConfig",
        "ResNetForImageClassification",
        _VISION,
        depths=[2, 2, 2, 2],
        hidden_sizes=[64, 128, 256, 512],
        layer_type="basic",
        embedding_size=64,
    ),
    "hf_convnext": _transformers(
        "ConvNextConfig",
        "ConvNextForImageClassification",
        _VISION,
        depths=[2, 2, 2, 2],
        hidden_sizes=[40, 80, 160, 320],
    ),
    "text_cnn": Entry("torch", TextCnn, shape=(24, 128)),
    "transformer_encoder": Entry("torch", Encoder, shape=(16, 128)),
    "lstm": Entry("torch", lambda: Recurrent(nn.LSTM), shape=(8, 64)),
}
