"""A conversation costs what its decoder says, at every length of the cache, and its material can be dealt ahead."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hummingbird
from hummingbird import convert, ring
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.channel import meter
from hummingbird.cost import FREE
from hummingbird.errors import DealerError
from hummingbird.mpc.dealer.deal import deal
from hummingbird.mpc.dealer.store import StoreDealer, material_facts
from hummingbird.mpc.plan.decoder import PrivateDecoder
from hummingbird.mpc.session.session import Session, ZeroSharing
from hummingbird.mpc.session.sharing import Shared
from models.gpt import Gpt
from tests.support.covering import every
from tests.support.parties import sessions, share, together

PLACES, PROMPT, WIDTH, WORDS = 66, 62, 16, 30  # so two words have a cache of 64 places, and two one of 66


def net() -> Gpt:
    torch.manual_seed(0)
    return Gpt(WORDS, PLACES, WIDTH, heads=2, layers=1).eval()


def private(plain: Gpt, **options: Any) -> PrivateDecoder:
    made = convert.convert_decoder(plain, torch.zeros(1, PLACES, WIDTH), prompt=PROMPT, **options)
    assert made.lengths == (PROMPT, 64, PLACES)
    return made


@contextmanager
def opened(dealers: Sequence[Any] = ()) -> Iterator[list[Session]]:
    """Two parties with these dealers, or with the stand-in; their shares of zero are all zero."""
    both = sessions(2)
    for session in both:
        session.zeros = ZeroSharing.of_zeros()
    for session, dealer in zip(both if dealers else (), dealers, strict=True):
        session.dealer = dealer
    try:
        yield both
    finally:
        for session in both:
            session.channel.close()


def conversations(both: list[Session], decoders: list[PrivateDecoder]) -> list[Any]:
    return together([lambda s=s, d=d: d.conversation(s) for s, d in zip(both, decoders, strict=True)])


def check(talks: list[Any], decoder: PrivateDecoder, plain: Gpt) -> None:
    """Talk to the end: the logits are the net's, and every step's rounds and bits are those of `costs`."""
    x = plain.words(torch.randint(0, WORDS, (1, PLACES))).detach()
    with torch.no_grad():
        expected = plain(x)[:, PROMPT - 1 :]
    shares = share(ring.encode(x), 2)
    for number in range(1 + PLACES - PROMPT):
        first, end = PROMPT + number - 1 if number else 0, PROMPT + number
        given = [Shared(part[:, first:end]) for part in shares]
        with meter.meter() as counted:
            out = together([lambda t=t, x=x: t.read(x) for t, x in zip(talks, given, strict=True)])
        said, total = sum((step.cost for step in decoder.costs(number, 2)), FREE), counted.total
        assert said.rounds > 0 and said.bits > 0 and said.offline_bits > 0
        assert (total.rounds, total.bits_sent) == (2 * said.rounds, 2 * said.bits)
        assert total.offline_bits == 2 * said.offline_bits
        got: Tensor = ring.decode(out[0].share + out[1].share, out[0].scale)
        assert float((got - expected[:, number : number + 1]).abs().max()) < 2.0**-5 * float(expected.abs().max())


@pytest.mark.parametrize("protocol", every(2, ["masked", "gmw"]))
def test_every_step_costs_what_the_decoder_says(protocol: str) -> None:
    plain = net()
    made = private(plain, protocol=protocol)
    with opened() as both:
        check(conversations(both, [made, copy.deepcopy(made)]), made, plain)


@pytest.mark.slow
def test_a_block_of_known_ranges_takes_eleven_rounds() -> None:
    """3 for each of two norms, 1 for logits, exponentials and GELU, 2 for the mean: no value is lifted for itself."""
    torch.manual_seed(0)
    plain = Gpt(WORDS, PLACES, 128, heads=2, layers=2).eval()
    found = hummingbird.find_rows(plain, plain.words(torch.randint(0, WORDS, (20, PLACES))).detach())
    rows = {name: replace(x, error=0.006) if "gelu" in name else x for name, x in found.items()}
    bits = BitConfig(BitWindow(20, 14)).with_rows(rows)
    made = convert.convert_decoder(plain, torch.zeros(1, PLACES, 128), prompt=PROMPT, bits=bits)
    assert sum(step.cost.rounds for step in made.costs(1, 2)) == 2 * 11 + 3
    with opened() as both:
        check(conversations(both, [made, copy.deepcopy(made)]), made, plain)


@pytest.mark.slow
def test_with_a_dealer_that_streams(running: Any) -> None:
    plain = net()
    made = private(plain)
    with opened(running.all(2)) as both:
        check(conversations(both, [made, copy.deepcopy(made)]), made, plain)


@pytest.mark.slow
def test_private_weights(running: Any) -> None:
    plain = net()
    made = private(plain, weights=0)
    with opened(running.all(2)) as both:
        decoders = [made, copy.deepcopy(made)]
        with meter.meter() as counted:
            together([lambda s=s, d=d: d.set_up(s) for s, d in zip(both, decoders, strict=True)])
        said = made.setup_cost(2)
        row = counted.rows["weights"]
        assert (row.rounds, row.bits_sent) == (2 * said.rounds, 2 * said.bits)
        check(conversations(both, decoders), made, plain)


@pytest.mark.slow
@pytest.mark.parametrize("weights", every(2, ["public", 0]))
def test_a_conversation_from_a_store(tmp_path: Path, weights: str | int) -> None:
    plain = net()
    made = private(plain, weights=weights)
    plan, order = made.dry_run(2)
    kinds = made.requests(2)
    what = {"setup": plan.setup, "steps": [kinds[kind] for kind in order], "facts": material_facts(made.facts)}
    deal(tmp_path, **what, shape=made.shape(0), slots=1, parties=2)
    stores = [StoreDealer(tmp_path, rank=rank, parties=2) for rank in range(2)]
    decoders = [made, copy.deepcopy(made)]
    with opened(stores) as both:
        check(conversations(both, decoders), made, plain)
        with pytest.raises(DealerError, match="0 more"):
            made.conversation(both[0])
        for store in stores:
            store.close()
