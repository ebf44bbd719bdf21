"""Public inputs at two parties: `python -m tests.jobs.public_inputs COUNT`. Party 0 prints one line of JSON.

COUNT: of the nets, up to 4.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import hummingbird
from hummingbird.errors import AgreementError
from hummingbird.mpc.session import launch
from hummingbird.mpc.session import session as sessions
from tests.jobs.programs import unequal
from tests.support.patience import HANG


class Words(nn.Module):
    """Rows of a table by public numbers, a norm, attention with a public mask, and a private vector for each image."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm, self.head = nn.Embedding(20, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, ids: Tensor, mask: Tensor, x: Tensor) -> Tensor:
        y = self.norm(self.table(ids) + x[:, None])
        mixed = F.scaled_dot_product_attention(y, y, y, attn_mask=mask[:, None].bool())
        return self.head((mixed * mask[..., None]).sum(1))


class Rows(nn.Module):
    """A net of public numbers alone, whose images are computed one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.table(ids).relu().mean(1))


class Sequences(nn.Module):
    """A GRU in both directions on sequences of public lengths, four steps of two private numbers at most."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.GRU(2, 4, batch_first=True, bidirectional=True), nn.Linear(8, 3)

    def forward(self, mask: Tensor, x: Tensor) -> Tensor:
        lengths = mask.sum(1).clamp(1, 4)
        packed = pack_padded_sequence(x.view(-1, 4, 2), lengths, batch_first=True, enforce_sorted=False)
        out, last = self.layer(packed)
        padded, _ = pad_packed_sequence(out, batch_first=True, total_length=4)
        return self.head(padded.sum(1) + last.transpose(0, 1).flatten(1))


TAKES = {Words: slice(3), Rows: slice(1), Sequences: slice(1, 3)}


def numbers(seed: int, batch: int) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    mask = (torch.rand(batch, 6, generator=draw) > 0.3).long()
    mask[:, 0] = 1
    return torch.randint(0, 20, (batch, 6), generator=draw), mask, torch.randn(batch, 8, generator=draw)


def compare(kind: type[nn.Module], owner: Any, batches: list[int]) -> list[float]:
    """The largest differences to torch, with weights that the other party does not have."""
    rank = sessions.current().rank

    def make(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return kind().eval()

    right = make(3)
    net = right if owner in ("public", rank) else make(4)
    takes = TAKES[kind]
    example = numbers(0, 2)[takes]
    private = hummingbird.convert_model(net, weights=owner, example=example)
    private.images_per_slice = 2
    found = []
    for seed, batch in enumerate(batches):
        given = numbers(seed + 5, batch)[takes]
        shared = [hummingbird.cryptensor(x, src=0) if x.is_floating_point() else x for x in given]
        with hummingbird.meter() as m:
            out = private(*shared).get_plain_text()
        assert not (bad := unequal(m)), bad
        with torch.no_grad():
            found.append(float((out - right(*given)).abs().max()))
    return found


def disagree() -> str:
    """The message at this party when the parties bring other numbers."""
    torch.manual_seed(0)
    private = hummingbird.convert_model(Rows().eval(), example=numbers(0, 2)[:1])
    ids = numbers(sessions.current().rank, 2)[0]
    try:
        private(ids)
    except AgreementError as error:
        return str(error)
    raise AssertionError("the parties have computed with different numbers")


def main() -> None:
    session = launch.init(timeout=HANG)
    pairs: list[tuple[type[nn.Module], Any]] = [(Words, 1), (Rows, 0), (Sequences, 1), (Words, "public")]
    errors = {f"{kind.__name__} {owner}": compare(kind, owner, [1, 3]) for kind, owner in pairs[: int(sys.argv[1])]}
    told = disagree()
    assert "disagree on ids" in told and "party 0 has" in told and "party 1 has" in told, told
    if session.rank == 0:
        print(json.dumps(errors), flush=True)


if __name__ == "__main__":
    main()
