"""A small conversation for tests: in every step, new rows of two caches, and a product with each."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from hummingbird.mpc.correlations.request import Request
from hummingbird.mpc.plan.dry_run import Zeros, silent
from hummingbird.mpc.protocols import cached_rows
from hummingbird.mpc.protocols.cached_rows import cached
from hummingbird.mpc.protocols.lifted_product import Operand
from hummingbird.mpc.session.conversation import Conversation
from hummingbird.mpc.session.session import Session

PLACES, LENGTH, HEADS = 8, 4, 2
WIDE, BITS, LIFTED = 40, 36, 12
STEPS = [(3, 4), (1, 4), (1, 8), (1, 8)]  # new rows, and places that take part
SHAPE = (1, PLACES, LENGTH)
FACTS = {
    "architecture": "a",
    "bits": "b",
    "plan": "p",
    "aim": "latency",
    "protocol": "gmw",
    "weights": "public",
    "conversation": f"{PLACES} places",
}


def values(number: int, seed: int) -> dict[str, Tensor]:
    """Return what step `number` of conversation `seed` computes with: new keys and values, a query and weights."""
    count, places = STEPS[number]
    draw = torch.Generator().manual_seed(1000 * seed + number)

    def numbers(bits: int, *size: int) -> Tensor:
        return torch.randint(-(2**bits), 2**bits, size, generator=draw)

    return {
        "keys": numbers(30, HEADS, count, LENGTH),
        "query": numbers(30, HEADS, 1, LENGTH),
        "values": numbers(30, HEADS, count, LENGTH),
        "weights": numbers(LIFTED - 2, HEADS, 1, places),
    }


def part(x: Tensor, rank: int, parties: int, seed: int) -> Tensor:
    """Party `rank`'s share of x, as all parties of a test can compute it."""
    draw = torch.Generator().manual_seed(seed)
    parts = [torch.randint(-(2**63), 2**63 - 1, x.shape, generator=draw) for _ in range(parties - 1)]
    return parts[rank - 1] if rank else x - sum(parts, torch.zeros_like(x))


def run_step(session: Session, number: int, seed: int) -> Tensor:
    """Run step `number` of conversation `seed`: two rounds. Returns this party's share of what `wanted` has."""
    mine = {name: part(x, session.rank, session.parties, seed) for name, x in values(number, seed).items()}
    places, out = STEPS[number][1], []
    for key, (left, rows, k) in enumerate([("query", "keys", BITS), ("weights", "values", LIFTED)]):
        cache = cached(session, (HEADS, PLACES, LENGTH), key, WIDE)
        new = Operand(mine[rows], 0, WIDE)
        operand = Operand(mine[left], 0, k)
        found, _ = cached_rows.product(session, operand, cache, BITS, turned=not key, places=places, new=new)
        out.append(found.flatten())
    return torch.cat(out)


def outputs(parts: list[list[Tensor]]) -> list[Tensor]:
    """Return what the parties' shares of each step's results stand for."""
    return [sum(column[1:], column[0]) & (1 << BITS) - 1 for column in zip(*parts, strict=True)]


def wanted(seed: int) -> list[Tensor]:
    """The results of all steps of conversation `seed`, mod 2^BITS: products with all rows so far."""
    out = []
    for number, (_, places) in enumerate(STEPS):
        given = [values(at, seed) for at in range(number + 1)]
        keys, rows = (torch.cat([each[name] for each in given], -2) for name in ("keys", "values"))
        logits = given[-1]["query"] @ keys.mT
        logits = torch.nn.functional.pad(logits, (0, places - logits.shape[-1]))
        means = given[-1]["weights"][..., : rows.shape[-2]] @ rows
        out.append(torch.cat([logits.flatten(), means.flatten()]) & (1 << BITS) - 1)
    return out


@functools.lru_cache
def steps_of(parties: int) -> list[list[Request[object]]]:
    """The requests of each step."""
    session = silent(parties, 0, Zeros((1,)))
    conversation, found = Conversation(session, FACTS, None), []
    for number in range(len(STEPS)):
        with conversation.step() as inner:
            run_step(inner, number, 0)
            found.append(inner.requests)
    return found
