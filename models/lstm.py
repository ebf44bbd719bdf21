"""A word-level language model: tied embedding and output matrix, LSTM layers, an adaptive softmax.

The net of PyTorch's word_language_model example, by which Lam et al. (ASPLOS 2024, section 5) measure private embedding
lookup on a language model. One table of a row per word is both the embedding and the output matrix (Press and Wolf,
EACL 2017). Words are numbered by falling frequency; the softmax is over the frequent words and one class for each group
of rarer words, then within the group (Grave et al., ICML 2017):

    p(w | h) = softmax_head(w)                          w < cutoffs[0]
    p(w | h) = softmax_head(group g) * softmax_g(w)     cutoffs[g - 1] <= w < cutoffs[g]

so that a training step costs a fraction of the full matrix, while the probabilities still add up to one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

State = tuple[Tensor, Tensor]


class WordLSTM(nn.Module):
    """A language model that reads words int64 (T, B), time first, and gives hidden states (T, B, dim).

    `log_probability` turns hidden states to the probabilities of next words. words: how many words the table has.
    cutoffs: the numbers of the words at which groups of rarer words begin; those beyond the last word are left out.

        net = WordLSTM(33278)
        hidden, state = net(words[:-1])
        loss = -net.log_probability(hidden.flatten(0, 1), words[1:].flatten()).mean()
    """

    def __init__(
        self,
        words: int,
        dim: int = 192,
        layers: int = 2,
        dropout: float = 0.2,
        cutoffs: Sequence[int] = (1000, 4000, 12000),
    ) -> None:
        super().__init__()
        if dim < 1 or words < 2 or [0, *cutoffs] != sorted({0, *cutoffs}):
            raise ValueError(
                f"{words} words in {dim} dimensions with cutoffs {tuple(cutoffs)}\nhint: cutoffs rise from 1"
            )
        self.ends = (*(end for end in cutoffs if end < words), words)  # of the head and of every group
        self.words = nn.Embedding(words, dim)
        self.lstm = nn.LSTM(dim, dim, layers, dropout=dropout)
        self.dropout = nn.Dropout(dropout)
        self.groups = nn.Parameter(torch.zeros(len(self.ends) - 1, dim))
        self.bias = nn.Parameter(torch.zeros(words + len(self.ends) - 1))  # of the words, then of the groups
        nn.init.uniform_(self.words.weight, -0.1, 0.1)

    def forward(
        self, words: Tensor, state: State | None = None, lookup: Callable[[Tensor], Tensor] | None = None
    ) -> tuple[Tensor, State]:
        """Compute the hidden states (T, B, dim) after each word, and the state from which to go on.

        state: as an earlier call returned it; None: zeros. lookup: gives the embeddings (T, B, dim) of words in place
        of the net's own table, such as a private lookup.
        """
        vectors = (self.words if lookup is None else lookup)(words)
        hidden, state = self.lstm(self.dropout(vectors), state)
        return self.dropout(hidden), state

    def log_probability(self, hidden: Tensor, words: Tensor) -> Tensor:
        """Compute the natural logarithm of the probability of the next words: int64 (N,) to float32 (N,).

        hidden: the hidden states (N, dim) after which these words come.
        """
        count, table, first = self.ends[-1], self.words.weight, self.ends[0]
        group = torch.bucketize(words, torch.tensor(self.ends[:-1], device=words.device), right=True)  # 0: the head
        bias = torch.cat([self.bias[:first], self.bias[count:]])
        head = F.linear(hidden, torch.cat([table[:first], self.groups]), bias)
        place = torch.where(group == 0, words, first + group - 1)
        found = -F.cross_entropy(head.float(), place, reduction="none")
        for number, (start, end) in enumerate(pairwise(self.ends), 1):
            chosen = (group == number).nonzero().flatten()
            scores = F.linear(hidden[chosen], table[start:end], self.bias[start:end]).float()
            within = -F.cross_entropy(scores, words[chosen] - start, reduction="none")
            found = found.index_add(0, chosen, within)
        return found
