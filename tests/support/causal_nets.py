"""Small causal nets on word vectors, with attention written in the ways that nets are written."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PLACES, WIDTH, HEADS, WORDS = 16, 32, 4, 50


class Functional(nn.Module):
    """Attention by torch's function, as in models/gpt.py."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).transpose(1, 3).unbind(2)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class WrittenOut(nn.Module):
    """Attention by single operations, as in minGPT and nanoGPT."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("bias", torch.tril(torch.ones(PLACES, PLACES)).view(1, 1, PLACES, PLACES))

    def forward(self, x: Tensor) -> Tensor:
        size, length, width = x.size()
        parts = self.c_attn(x).split(WIDTH, dim=2)
        q, k, v = (part.view(size, length, HEADS, width // HEADS).transpose(1, 2) for part in parts)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = F.softmax(att.masked_fill(self.bias[:, :, :length, :length] == 0, float("-inf")), dim=-1)
        return self.c_proj((att @ v).transpose(1, 2).contiguous().view(size, length, width))


class Module(nn.Module):
    """Attention by torch's module, with a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.register_buffer("mask", torch.triu(torch.ones(PLACES, PLACES, dtype=torch.bool), 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, attn_mask=self.mask, need_weights=False)[0]


class Block(nn.Module):
    def __init__(self, attention: type[nn.Module]) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(WIDTH), attention(), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """Logits (1, N, words) from word vectors (1, N, width)."""

    def __init__(self, attention: type[nn.Module] = Functional, blocks: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(0.3 * torch.randn(PLACES, WIDTH))
        self.blocks = nn.Sequential(*(Block(attention) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(x + self.places[: x.shape[1]])))


class Encoder(Gpt):
    """The same with torch's encoder."""

    def __init__(self) -> None:
        super().__init__(blocks=0)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 2 * WIDTH, batch_first=True, norm_first=True, activation="gelu"
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(PLACES))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x + self.places, mask=self.mask, is_causal=True))


NETS: dict[str, Callable[[], nn.Module]] = {
    "functional": lambda: Gpt(Functional),
    "written out": lambda: Gpt(WrittenOut),
    "module": lambda: Gpt(Module),
    "encoder": Encoder,
}


def made(name: str = "functional", seed: int = 0) -> nn.Module:
    """Build the net of this name in `NETS`, with weights from a seed."""
    torch.manual_seed(seed)
    return NETS[name]().eval()
