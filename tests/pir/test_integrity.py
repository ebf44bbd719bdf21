"""A server that lies is detected and named, and nobody else can be."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from hummingbird.errors import AgreementError, InputError
from hummingbird.pir import Client, IntegrityError, Owner, PrivateEmbedding, Server, Source, audit, local_servers
from hummingbird.pir.integrity import _UPDATE, Identity, Statement
from hummingbird.pir.messages import pack_answer, pack_update, unpack_answer, unpack_query, unpack_update
from hummingbird.pir.table import PROOF_BYTES, State

ROWS, DIM = 1100, 4
OWNER = Owner()
PLAIN = Source.of(torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(0)))
SIGNED = OWNER.sign(PLAIN)
INDICES = torch.tensor([0, 7, 1099, 7])


class Liar:
    """Party `party`, which adds `noise` to its answer's first record. The lie, if it can sign, is signed."""

    def __init__(
        self, server: Server, noise: np.ndarray | None = None, at: int = 0, identity: bytes | None = None
    ) -> None:
        self.server, self.name = server, server.name
        self.noise = torch.zeros(server.facts.record_bytes, dtype=torch.uint8)
        self.noise[at] = 1
        if noise is not None:
            self.noise = torch.from_numpy(noise.copy())
        self.identity = None if identity is None else Identity(identity)

    def begin(self, query, method):
        if method != "Answer":
            return self.server.begin(query, method)
        return lambda: self.lie(query)

    def lie(self, query: bytes) -> bytes:
        count = len(unpack_query(query, self.server.facts, self.server.party)[1])
        state, records, _ = unpack_answer(self.server.handle(query), count, self.server.facts, self.server.signs)
        records[0] ^= self.noise
        signature = self.identity.sign(self.server.party, query, state, records) if self.identity else None
        return pack_answer(state, records, signature)


def pair(*, liar: int | None = None, source: Source = SIGNED, **lie) -> tuple[list, list[Server]]:
    """Links for a client, one of which may lie, and the owner's own servers."""
    servers = list(local_servers(source, owner=OWNER.public))
    links: list = list(servers)
    if liar is not None:
        links[liar] = Liar(servers[liar], **lie)
    return links, list(local_servers(source, owner=OWNER.public))


@pytest.mark.parametrize("decoder", ["xor", "sum"])
def test_signed_rows_are_the_same_rows(decoder):
    weight = torch.from_numpy(PLAIN.records.copy()).view(torch.float32)
    embedding = nn.Embedding.from_pretrained(weight)
    links, _ = pair()
    private = PrivateEmbedding.from_torch(embedding, links, owner=OWNER.public, decoder=decoder)
    assert torch.equal(private(INDICES), weight[INDICES])
    assert private.client.facts.record_bytes == 4 * DIM + PROOF_BYTES


@pytest.mark.parametrize("liar", [0, 1])
@pytest.mark.parametrize("at", [0, 4 * DIM, 4 * DIM + 20], ids=["row", "version", "signature"])
def test_a_lying_server_is_detected_and_named(liar, at):
    links, own = pair(liar=liar, at=at)
    with pytest.raises(IntegrityError, match="server 0.* or server 1.* lied") as caught:
        Client(links, owner=OWNER.public).rows(INDICES)
    assert "1099" not in str(caught.value)
    for party in (0, 1):  # whichever server's statement the owner gets: one is enough
        assert audit(own[party], caught.value.statements[party]) == liar


def test_an_honest_pair_passes_and_without_the_option_a_lie_does_too():
    links, _ = pair()
    Client(links, owner=OWNER.public).rows(INDICES)
    links, _ = pair(liar=1, source=PLAIN)
    wrong = Client(links).rows(INDICES)
    assert not torch.equal(wrong, torch.from_numpy(PLAIN.records.copy()).view(torch.float32)[INDICES])
    with pytest.raises(AgreementError, match="rows are not signed"):
        Client(links, owner=OWNER.public)


def test_what_a_server_could_put_in_place_of_a_row():
    """Signed rows of other numbers, tables, versions and owners: it knows the row, which is the worst case."""
    records = SIGNED.records
    elsewhere = OWNER.sign(PLAIN).records  # the same rows in another table of the same owner
    later = OWNER.sign(replace(PLAIN, version=1), bytes.fromhex(SIGNED.facts.table_id)).records
    other_owner = Owner().sign(PLAIN, bytes.fromhex(SIGNED.facts.table_id)).records
    for forged in (records[8], elsewhere[7], later[7], other_owner[7]):
        links, _ = pair(liar=0, noise=records[7] ^ forged)
        with pytest.raises(IntegrityError):
            Client(links, owner=OWNER.public).rows(torch.tensor([7]))
    again = OWNER.sign(PLAIN, bytes.fromhex(SIGNED.facts.table_id)).records[7]
    links, _ = pair(liar=0, noise=records[7] ^ again)  # the owner's very row: nothing to detect
    Client(links, owner=OWNER.public).rows(torch.tensor([7]))


def test_updates_carry_signed_rows_and_what_staleness_is_left():
    links, own = pair()
    client = Client(links, owner=OWNER.public)
    rows = torch.randn(2, DIM)
    update = OWNER.update(client.facts, client.state, torch.tensor([7, 9]), rows)
    client.update(update)
    assert torch.equal(client.rows(torch.tensor([9, 7])), rows[[1, 0]])
    # A server that guesses the row can return what was signed before; one that guesses wrong is noticed (docstring).
    old, new = SIGNED.records[7], unpack_update(update, client.facts)[2][0].numpy()
    client.links[0] = Liar(links[0], noise=old ^ new)
    assert torch.equal(client.rows(torch.tensor([7])).view(torch.uint8), torch.from_numpy(old[: 4 * DIM])[None])
    with pytest.raises(IntegrityError) as caught:
        client.rows(torch.tensor([9]))
    with pytest.raises(AgreementError, match="is about version 1, the reference is at version 0"):
        audit(own[0], caught.value.statements[0])
    own[0].update(update)
    assert audit(own[0], caught.value.statements[0]) == 0
    unsigned = Owner(OWNER.key).update(replace(client.facts, table_id=""), client.state, torch.tensor([1]), rows[:1])
    with pytest.raises(InputError):
        links[1].update(unsigned)
    # Nor is an update taken whose rows no client would: of another number, or of a version to come.
    state, place = client.state, torch.tensor([1])
    later = OWNER.update(client.facts, replace(state, version=state.version + 1), place, rows[:1])
    for record in (torch.from_numpy(SIGNED.records[2:3].copy()), unpack_update(later, client.facts)[2]):
        signature = OWNER._private.sign(_UPDATE + pack_update(state, place, record))
        with pytest.raises(InputError, match="not signed by this table's owner"):
            links[1].update(pack_update(state, place, record, signature))


def test_statements_are_signed_by_their_server():
    secrets = [os.urandom(32), os.urandom(32)]
    public = [Identity(secret).public for secret in secrets]
    servers = [Server(SIGNED, party, identity=secret) for party, secret in enumerate(secrets)]
    options = {"owner": OWNER.public, "identities": public}
    Client(servers, **options).rows(INDICES)
    with pytest.raises(IntegrityError, match="not signed by this server") as caught:  # named at once
        Client(servers, owner=OWNER.public, identities=[public[0], public[0]]).rows(INDICES)
    assert caught.value.where == "server 1 (in this process)"
    with pytest.raises(AgreementError, match="answers are not signed"):
        Client(local_servers(SIGNED), **options)
    liars = [servers[0], Liar(servers[1], identity=secrets[1])]
    with pytest.raises(IntegrityError, match="lied") as caught:
        Client(liars, **options).rows(INDICES)
    own = local_servers(SIGNED)
    zero, one = caught.value.statements
    assert audit(own[0], zero, public[0]) == 1 and audit(own[1], one, public[1]) == 1
    # A client cannot make a server a liar: changed answers, changed queries, another server's signature.
    changed = bytearray(zero.answer)
    changed[-100] ^= 1
    state, records, signature = unpack_answer(zero.answer, len(INDICES), SIGNED.facts, True)
    others = State(state.version + 1, state.digest), State(state.version, bytes(16))
    forged = [
        replace(zero, answer=bytes(changed)),
        *(replace(zero, answer=pack_answer(other, records, signature)) for other in others),
        replace(zero, query=_another_query(own)),
        replace(one, party=0, query=zero.query),
        Statement(0, zero.query, own[0].handle(zero.query), False),
    ]
    for statement in forged:
        with pytest.raises(InputError, match="did not make this statement"):
            audit(own[0], statement, public[0])
    with pytest.raises(InputError, match="a statement of party 1, a reference of party 0"):
        audit(own[0], one)


def _another_query(servers) -> bytes:
    seen = []

    class Seen:
        name = "seen"

        def begin(self, query, method):
            seen.append(query)
            return servers[0].begin(query, method)

    Client((Seen(), servers[1])).rows(INDICES)
    return seen[-1]


def test_one_statement_tells_nothing_of_the_row():
    """It holds one key and what follows from that key and the table; both keys together have the row."""
    links, own = pair(liar=0)
    seen = []
    for index in (3, 1000):
        with pytest.raises(IntegrityError) as caught:
            Client(links, owner=OWNER.public).rows(torch.tensor([index]))
        seen.append(caught.value.statements)
    sizes = [[(len(s.query), len(s.answer)) for s in statements] for statements in seen]
    assert sizes[0] == sizes[1]
    assert audit(own[0], replace(seen[0][0])) == 0


def test_keys_of_wrong_size():
    for bad in (b"", b"x" * 31, "text"):
        with pytest.raises(InputError, match="32 bytes"):
            Owner(bad)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="32 bytes"):
            Client(local_servers(PLAIN), owner=bad)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="32 bytes"):
            Server(PLAIN, 0, owner=bad)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="only a plain table"):
        OWNER.sign(SIGNED)
