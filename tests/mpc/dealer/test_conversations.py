"""Stores of conversations: dealt step after step, read step after step, each conversation once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hummingbird.errors import DealerError
from hummingbird.mpc.dealer.deal import deal, size_of
from hummingbird.mpc.dealer.folder import CORRECTIONS, Corrections, places
from hummingbird.mpc.dealer.kept_store import KeptStore
from hummingbird.mpc.dealer.store import StoreDealer
from hummingbird.mpc.protocols import weight_mask
from hummingbird.mpc.protocols.beaver import SquarePair
from hummingbird.mpc.protocols.weight_mask import FixedMask, FixedTriple, FixedWeight
from hummingbird.mpc.session.conversation import Conversation
from hummingbird.mpc.session.session import Session, ZeroSharing
from tests.support import keeping
from tests.support.conversations import FACTS, SHAPE, STEPS, outputs, run_step, steps_of, wanted
from tests.support.parties import sessions, together


def dealt(out: Path, slots: int = 3, parties: int = 2, **options: Any) -> Path:
    given = {"setup": [], "steps": steps_of(parties), "shape": SHAPE, "facts": FACTS, **options}
    deal(out, slots=slots, parties=parties, **given)
    return out


def from_stores(out: Path, parties: int = 2) -> list[Session]:
    opened = sessions(parties)
    for session in opened:
        session.dealer = StoreDealer(out, rank=session.rank, parties=parties)
    return opened


def ledger_of(out: Path, rank: int = 0) -> list[int]:
    path = out / f"party-{rank}" / "lane-0" / "ledger"
    return [entry["used"] for entry in map(json.loads, path.read_text().splitlines()) if "used" in entry]


def closing(opened: list[Session]) -> None:
    for session in opened:
        session.dealer.close()
        session.channel.close()


@pytest.mark.parametrize("parties", [1, 2, 3])
@pytest.mark.parametrize("cipher", ["aes-128-ctr", "chacha20"])
def test_conversations_in_turns(tmp_path: Path, parties: int, cipher: str) -> None:
    """Two at the same time and one after them: all steps of all are right, and no mask is that of another one."""
    opened = from_stores(dealt(tmp_path, parties=parties, cipher=cipher), parties)

    def party(session: Session) -> tuple[list[list[Tensor]], list[Tensor]]:
        out, masks = [], []
        for pair in ((0, 1), (2,)):
            both = {number: Conversation(session, FACTS, steps_of(parties)) for number in pair}
            found: dict[int, list[Tensor]] = {number: [] for number in pair}
            for step in range(len(STEPS)):
                for number, conversation in both.items():
                    with conversation.step() as inner:
                        found[number].append(run_step(inner, step, number))
            masks += [rows.mask for each in both.values() for rows in each.caches.values()]
            out += [found[number] for number in pair]
        return out, masks

    try:
        parts = together([lambda s=session: party(s) for session in opened])
        for number in range(3):
            found = outputs([part[0][number] for part in parts])
            assert all(torch.equal(x, y) for x, y in zip(found, wanted(number), strict=True))
        for _, masks in parts:
            assert len(masks) == 6
            for at, mask in enumerate(masks):
                assert not any(bool((mask == other).any()) for other in masks[at + 1 :])
        assert all(ledger_of(tmp_path, rank) == [0, 1, 2] for rank in range(parties))
        with pytest.raises(DealerError, match="0 more slices|material for 0 more") as caught:
            Conversation(opened[0], FACTS, steps_of(parties))
        assert caught.value.hint
    finally:
        closing(opened)


def test_a_conversation_is_marked_before_anything_of_it_is_handed_out_and_is_over_with_its_process(
    tmp_path: Path,
) -> None:
    opened = from_stores(dealt(tmp_path, parties=1), 1)
    conversation = Conversation(opened[0], FACTS, steps_of(1))
    assert ledger_of(tmp_path) == []
    with conversation.step() as inner:
        assert ledger_of(tmp_path) == []
        run_step(inner, 0, 0)
        assert ledger_of(tmp_path) == [0]
    with conversation.step() as inner:
        run_step(inner, 1, 0)
    assert ledger_of(tmp_path) == [0], "once"
    closing(opened)
    again = from_stores(tmp_path, 1)
    assert again[0].dealer.next_slot == 1  # type: ignore[attr-defined]
    closing(again)


def test_a_step_is_read_and_checked_when_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a later step than the next one is read; a damaged step is found before any of it is used."""
    read, whole = [], Corrections.read

    def reading(self: Corrections, region: int) -> Any:
        read.append(region)
        return whole(self, region)

    dealt(tmp_path, parties=1, slots=1)
    path, sizes = tmp_path / "party-0" / "lane-0" / CORRECTIONS, [places(each)[1] for each in steps_of(1)]
    data = bytearray(path.read_bytes())
    assert len(data) == sum(sizes) == size_of([], steps_of(1), 1, 1, 1)
    data[sum(sizes[:3]) + 5] ^= 1  # the last step
    path.write_bytes(data)
    monkeypatch.setattr(Corrections, "read", reading)
    opened = from_stores(tmp_path, 1)
    conversation = Conversation(opened[0], FACTS, steps_of(1))
    for number in range(3):
        with conversation.step() as inner:
            found = run_step(inner, number, 0)
        assert torch.equal(outputs([[found]])[0], wanted(0)[number])
        assert set(read) <= set(range(1, number + 3))
    with pytest.raises(DealerError, match="damaged .wrong checksum"), conversation.step() as inner:
        run_step(inner, 3, 0)
    assert conversation.left == 0
    closing(opened)


def test_what_a_store_was_not_dealt_for_is_refused(tmp_path: Path) -> None:
    dealt(tmp_path / "talk", parties=1)
    (session,) = opened = from_stores(tmp_path / "talk", 1)
    steps = steps_of(1)
    for facts, given, what in (
        ({**FACTS, "conversation": "9 places"}, steps, "dealt for 8 places, this run takes 9 places"),
        ({**FACTS, "plan": "other"}, steps, "dealt for plan p, this net has other"),
        (FACTS, steps[:-1], "other requests than this conversation makes"),
        (FACTS, [*steps, steps[-1]], "other requests than this conversation makes"),
        (FACTS, [steps[0], *steps[:-1]], "other requests than this conversation makes"),
        (FACTS, None, "whose steps are not known"),
    ):
        with pytest.raises(DealerError, match=what) as caught:
            Conversation(session, facts, given)
        assert caught.value.hint and str(tmp_path) in str(caught.value)
    single = {name: text for name, text in FACTS.items() if name != "conversation"}
    with pytest.raises(DealerError, match="dealt for 8 places, this run takes slices of a batch"):
        session.dealer.admit(single, [SHAPE])
    with pytest.raises(DealerError, match="this store was dealt for conversations"):
        session.dealer.reserve(None)
    assert ledger_of(tmp_path / "talk") == [] and session.dealer.slots_left == 3  # type: ignore[attr-defined]
    closing(opened)
    dealt(tmp_path / "slices", parties=1, steps=[[SquarePair((3,))]], facts=single)
    (session,) = opened = from_stores(tmp_path / "slices", 1)
    with pytest.raises(DealerError, match="dealt for slices of a batch, this run takes 8 places"):
        Conversation(session, FACTS, steps)
    closing(opened)


def test_private_weights_within_a_conversation(tmp_path: Path) -> None:
    """The weights' mask is the session's, in every conversation; that of the rows is the conversation's."""
    triple = FixedTriple((2, 4), (4, 3), "matmul", {}, key=0)
    steps = [[*each, triple] for each in steps_of(2)]
    dealt(tmp_path, setup=[FixedMask((4, 3), 0)], steps=steps, slots=2)
    opened = sessions(2)
    torch.manual_seed(3)
    weight, x = torch.randint(-(2**20), 2**20, (4, 3)), torch.randint(-(2**20), 2**20, (2, 4))

    def party(session: Session) -> list[list[Tensor]]:
        session.dealer = StoreDealer(tmp_path, rank=session.rank, parties=2)
        session.zeros = ZeroSharing.of_zeros()
        private = FixedWeight(weight, 0)
        weight_mask.open_weights(session, [private])
        share, out = x if session.rank == 0 else torch.zeros_like(x), []
        for seed in range(2):
            conversation, found = Conversation(session, FACTS, steps), []
            for number in range(len(STEPS)):
                with conversation.step() as inner:
                    found.append(run_step(inner, number, seed))
                    found.append(private.product(inner, "matmul", share, {}))
            out.append(found)
        return out

    try:
        parts = together([lambda s=session: party(s) for session in opened])
        for seed in range(2):
            products = [
                sum(column[1:], column[0]) for column in zip(*(part[seed][1::2] for part in parts), strict=True)
            ]
            assert all(torch.equal(found, x @ weight) for found in products)
            found = outputs([part[seed][::2] for part in parts])
            assert all(torch.equal(one, other) for one, other in zip(found, wanted(seed), strict=True))
    finally:
        closing(opened)


def test_a_kept_store_of_conversations(tmp_path: Path) -> None:
    """One set after the other; a set is erased when its conversations are over, and not before."""
    options = {"steps": steps_of(2), "facts": FACTS, "shape": SHAPE, "slots": 2}
    keeping.dealt(tmp_path, 2, **options)
    pair = keeping.Parties(tmp_path)
    opened = [
        Session(rank, 2, channel, store)
        for rank, (channel, store) in enumerate(zip(pair.channels, pair.stores, strict=True))
    ]
    talks: list[list[Conversation]] = [[], []]

    def party(session: Session, seed: int) -> list[Tensor]:
        conversation = Conversation(session, FACTS, steps_of(2))
        talks[session.rank].append(conversation)
        out = []
        for number in range(len(STEPS) if seed != 1 else 2):
            with conversation.step() as inner:
                out.append(run_step(inner, number, seed))
        return out

    def names() -> list[str]:
        return sorted(path.name for path in tmp_path.glob("set-*"))

    for seed in range(4):
        parts = together([lambda s=session, n=seed: party(s, n) for session in opened])
        found = outputs(parts)
        assert all(torch.equal(x, y) for x, y in zip(found, wanted(seed), strict=False))
        assert names() == ["set-000001", "set-000002"], "the second conversation is not over"
    for rank in range(2):
        talks[rank][1].close()
    together([lambda s=store: s.sweep() for store in pair.stores])
    assert names() == []
    assert isinstance(pair.stores[0], KeptStore)
    pair.close()


def test_beginning_and_ending_a_conversation_sends_nothing(tmp_path: Path) -> None:
    """Two parties begin and end conversations from a store without a byte."""
    opened = from_stores(dealt(tmp_path))
    for session in opened:
        session.channel.close()  # nothing could be sent
        Conversation(session, FACTS, steps_of(2)).close()
        session.dealer.close()
    assert ledger_of(tmp_path) == []
