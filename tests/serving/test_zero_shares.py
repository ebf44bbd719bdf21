"""Fresh shares of zero: they add up to nothing, each is uniform, and no party's is known to fewer than all others."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from hummingbird.channel.channel import Channel
from hummingbird.serving.message import joined, pack_answer
from hummingbird.serving.worker import Worker, ZeroShares
from tests.serving.test_message import SERVICE
from tests.support.parties import channels, together
from tests.support.serving import biases


@pytest.mark.parametrize("parties", [2, 3, 4])
def test_they_add_up_to_zero_and_are_uniform(parties: int) -> None:
    opened = channels(parties)
    zeros = together([lambda c=c: ZeroShares(c) for c in opened])
    for _ in range(2):
        shares = [zero.share(20_000, 2) for zero in zeros]
        assert not torch.stack(shares).sum(0).any()
        assert all(biases(share.reshape(-1), 64) < 6 for share in shares)
    # Whoever has all parties' seeds but two has no share of theirs: their common seed hides both.
    for one in range(parties):
        for other in range(one):
            rest = [shares[rank] for rank in range(parties) if rank not in (one, other)]
            known = torch.stack([*rest, torch.zeros_like(shares[0])]).sum(0)
            assert biases((shares[one] + known).reshape(-1), 64) < 6
    for channel in opened:
        channel.close()


def test_every_pair_of_parties_has_a_seed_of_its_own() -> None:
    opened = channels(4)
    zeros = together([lambda c=c: ZeroShares(c) for c in opened])
    words = {}
    for rank, zero in enumerate(zeros):
        peers = [peer for peer in range(4) if peer != rank]
        for peer, (sign, stream) in zip(peers, zero._streams, strict=True):
            assert sign == (1 if rank < peer else -1)
            words[rank, peer] = stream.words(4)
    for rank, peer in words:
        assert torch.equal(words[rank, peer], words[peer, rank])
    assert len({tuple(value.tolist()) for value in words.values()}) == 6
    for channel in opened:
        channel.close()


def test_every_answer_of_a_batch_gets_one() -> None:
    """Two parties' answers, of shares that are zeros: each is uniform, and together they say so."""
    opened, bits = channels(2), SERVICE.result_bits
    nothing = torch.zeros(1000, *SERVICE.result, dtype=torch.int64)

    def answers(channel: Channel) -> list[bytes]:
        worker, found = Worker.__new__(Worker), list[tuple[bytes, bytes]]()
        worker._zeros, worker._lane, model = ZeroShares(channel), 0, SimpleNamespace(service=SERVICE)
        worker._dispatcher = SimpleNamespace(finish=lambda lane, answers, images, padding: found.extend(answers))
        for _ in range(2):
            worker._answer(model, [b"one", b"other"], [600, 400], 0, nothing)  # type: ignore[arg-type]
        assert [id for id, _ in found] == [b"one", b"other"] * 2
        return [answer for _, answer in found]

    both = together([lambda c=c: answers(c) for c in opened])
    for images, *pair in zip([600, 400] * 2, *both, strict=True):
        assert not joined(pair, images, SERVICE).any()
        own = joined([pair[0], pack_answer(nothing[:images], bits)], images, SERVICE)
        assert biases(own.reshape(-1), bits) < 6
    assert len({answer[8:] for found in both for answer in found}) == 8
    for channel in opened:
        channel.close()
