"""Naming the server that lied, from one server's statement and the owner's copy of the table (integrity.py)."""

from __future__ import annotations

import torch

from hummingbird.errors import AgreementError, InputError
from hummingbird.pir.integrity import Statement, answer_signed, public_key
from hummingbird.pir.messages import unpack_answer, unpack_query
from hummingbird.pir.serving.server import Server


def audit(reference: Server, statement: Statement, identity: bytes | None = None) -> int:
    """The party that lied, told from one server's statement and an own copy of the table; run by the table's owner.

    reference: a server in this process over that copy, of the statement's party and in the same state. identity: that
    server's public key, to make sure that it made the statement. Assumes that the two answers together were wrong: so
    if this one is right, the other party lied. The auditor must not see the other party's statement on the same query,
    nor work with that server: the two keys together tell the row. Costs one answer.

    InputError for a statement that is malformed or not the server's; AgreementError for a table in another state.
    """
    if statement.party != reference.party:
        raise InputError(
            f"a statement of party {statement.party}, a reference of party {reference.party}", where="audit"
        )
    decoder, keys = unpack_query(statement.query, reference.facts, statement.party)
    state, records, signature = unpack_answer(statement.answer, len(keys), reference.facts, statement.signed)
    if identity is not None:
        key = public_key(identity, "audit(identity)")
        if not answer_signed(key, statement.party, statement.query, state, records, signature):
            raise InputError("the server with this key did not make this statement", where="audit(identity)")
    own_state, own = reference.answer(keys, decoder)
    if state != own_state:
        hint = "load the table as it was then, and the updates up to that version"
        what = f"the statement is about version {state.version}, the reference is at version {own_state.version}"
        raise AgreementError(what, where="audit", hint=hint)
    return 1 - statement.party if torch.equal(records, own) else statement.party
