"""GPT: blocks of causal attention over word vectors, and the logits of the word that comes next, at every place.

Radford et al., "Language Models are Unsupervised Multitask Learners" (2019): layer norms before attention and MLP, one
table for reading words and for scoring the next one. forward() takes word vectors: who has the text looks its words up
in the table. Each place reads the places up to it, so a text can be read in parts.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.pieces import BYTES, LONGEST


class Block(nn.Module):
    """A transformer's block, (B, T, width) to the same shape: attention to earlier vectors, then an MLP on each.

    The results of both are added to what was there before the norms that they read.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.gelu = nn.GELU()
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).transpose(1, 3).unbind(2)
        read = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # each is (B, heads, T, d)
        x = x + self.out(read.transpose(1, 2).flatten(2))
        return x + self.fc2(self.gelu(self.fc1(self.norm2(x))))


class Gpt(nn.Module):
    """A net that reads word vectors (B, T, width), and gives logits (B, T, words) of the word after each place.

    words: number of rows in the table of word vectors. places: the most words of a text. pieces: uint8 (words - 256,
    16), the texts of the words for `models.pieces.Pieces.of_table`; None: the net has none.

        net = gpt_small()
        pieces = Pieces.of_table(net.pieces)
        numbers = torch.tensor([pieces.numbers(" the war")])
        logits = net(net.words(numbers))                        # float (1, T, 4096)
    """

    pieces: Tensor | None

    def __init__(
        self, words: int, places: int, width: int, heads: int, layers: int, pieces: Tensor | None = None
    ) -> None:
        super().__init__()
        if min(words, places, layers, heads) < 1 or width % heads:
            raise ValueError(
                f"{heads} heads of width {width}\nhint: every size is 1 or more, and heads divide the width"
            )
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(places, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.register_buffer("pieces", pieces)
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, vectors: Tensor) -> Tensor:
        return F.linear(self.norm(self.blocks(vectors + self.places[: vectors.shape[1]])), self.words.weight)


def gpt_small() -> Gpt:
    """Build the GPT of checkpoints/wikitext2-gpt.pt: 256 places, 4,096 pieces of words of WikiText-2, 2.6 M parameters.

    Its pieces come with its weights; without them they are zeros.
    """
    pieces = torch.zeros(4096 - BYTES, LONGEST, dtype=torch.uint8)
    return Gpt(words=4096, places=256, width=192, heads=6, layers=4, pieces=pieces)


def gpt2(places: int = 1024) -> Gpt:
    """Build GPT-2 small, 85 M parameters and a table of 39 M, untrained: for its prices, not for its results."""
    return Gpt(words=50257, places=places, width=768, heads=12, layers=12)
