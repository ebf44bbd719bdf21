"""BERT: blocks of attention over word vectors, and which of some words stands in the middle of the text.

Devlin et al., "BERT" (NAACL 2019), layer norms after what is added; BERT-tiny is the smallest size of Turc et al.,
"Well-Read Students Learn Better" (2019). forward() takes word vectors: who has the text looks its words up in the
table, alone or by a private lookup.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """A transformer's block, (B, T, width) to the same shape: attention of all vectors, then an MLP on each.

    The results of both are added to what they read.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm1 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.gelu = nn.GELU()
        self.fc2 = nn.Linear(4 * width, width)
        self.norm2 = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).transpose(1, 3).unbind(2)  # each (B, heads, T, d)
        weights = torch.softmax((q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1), dim=-1)
        x = self.norm1(x + self.out((weights @ v).transpose(1, 2).flatten(2)))
        return self.norm2(x + self.fc2(self.gelu(self.fc1(x))))


class Bert(nn.Module):
    """A net that reads word vectors (B, length, width), and gives logits (B, choices) for the word in the middle.

    words: number of rows in the table of word vectors.

        net = bert_tiny()
        logits = net(net.words(numbers))                        # numbers: int64 (B, 32); float (B, 64)
    """

    def __init__(self, words: int, choices: int, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        if min(words, choices, length, layers, heads) < 1 or width % heads:
            raise ValueError(
                f"{heads} heads of width {width}\nhint: every size is 1 or more, and heads divide the width"
            )
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.fc = nn.Linear(width, choices)
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, vectors: Tensor) -> Tensor:
        return self.fc(self.read(vectors)[:, len(self.places) // 2])

    def read(self, vectors: Tensor) -> Tensor:
        """Compute a vector for each word from all words of its text: (B, length, width) to the same shape."""
        return self.blocks(self.norm(vectors + self.places))


def bert_tiny() -> Bert:
    """Build BERT-tiny, which guesses the middle one of 32 words among 64 choices (scripts/train/text_data.py).

    It has 409 k parameters, and a table of 512 k.
    """
    return Bert(words=4002, choices=64, length=32, width=128, heads=2, layers=2)


def bert_base(length: int = 128, choices: int = 2) -> Bert:
    """Build BERT-base, 85 M parameters and a table of 23 M, untrained: for its prices, not for its results."""
    return Bert(words=30522, choices=choices, length=length, width=768, heads=12, layers=12)
