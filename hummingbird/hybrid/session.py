"""The set-up of a session: the OTs' base, once, and a folder at either side that is bound to the plan.

The garbler is the sender of all OTs, under its offset of labels R. A session's name is drawn by the model's side, which
serves it to the client alone that began it, where clients have names.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from hummingbird.cost import COT_SET_UP
from hummingbird.errors import AccessError, AgreementError
from hummingbird.hybrid import messages
from hummingbird.hybrid.gc import cot
from hummingbird.hybrid.message_stream import MessageStream
from hummingbird.hybrid.store import Header, Store
from hummingbird.prg import new_seed

_OURS = ("the data's side", "the model's side")


def set_up_data(link: MessageStream, garbler: str, plan: str, folder: Path) -> Store:
    """The data's side of a new session with a plan of this digest. Errors of `Store.create` and of
    `MessageStream.receive`.
    """
    link.send("opening", messages.CallOpening(plan=plan).pack())
    session = messages.read_opening(link.receive_text("opening"), plan, *_OURS, messages.SessionOpening).session
    material = _transfers(link, garbler == "data")
    link.receive("done", len(messages.DONE))
    return Store.create(folder, Header("data", session, plan), new_seed(), material)


def set_up_model(link: MessageStream, garbler: str, plan: str, folder: Path, owner: str = "") -> Store:
    """The model's side; `folder` is that of all sessions. owner: the client's name, of its certificate or token."""
    messages.read_opening(link.receive_text("opening"), plan, _OURS[1], _OURS[0], messages.CallOpening)
    session = new_seed(messages.SESSION_BYTES).hex()
    link.send("opening", messages.SessionOpening(plan=plan, session=session).pack())
    material = _transfers(link, garbler == "model")
    store = Store.create(folder / session, Header("model", session, plan, owner), new_seed(), material)
    link.send("done", messages.DONE)
    return store


def _transfers(link: MessageStream, garbles: bool) -> list[Tensor]:
    """This side's secrets for all OTs: of a garbler delta and leaves, of an evaluator leaves."""
    if garbles:
        start = cot.SetUp()
        link.send("base OTs", start.message)
        sender = start.finish(link.receive("base OTs", COT_SET_UP[1]).numpy().tobytes())
        return [sender.delta, sender.leaves]
    receiver, reply = cot.accept(link.receive("base OTs", COT_SET_UP[0]).numpy().tobytes())
    link.send("base OTs", reply)
    return [receiver.leaves]


def sender_of(store: Store) -> cot.Sender:
    """The garbler's side of the OTs."""
    return cot.Sender(*store.material)


def receiver_of(store: Store) -> cot.Receiver:
    """The evaluator's side of the OTs."""
    return cot.Receiver(*store.material)


def check_bound(store: Store, side: str, plan: str) -> None:
    """AgreementError unless the store is this side's, of this plan; StoreError has its own place."""
    found = store.header
    if found.side != side:
        what = f"this is a store of the {found.side}'s side, here the {side}'s side is needed"
        raise AgreementError(what, where=str(store.folder), hint="name another folder")
    if found.plan != plan:
        what = f"the store is of plan {found.plan[:12]}, the net has plan {plan[:12]}: another net, windows or weights"
        raise AgreementError(what, where=str(store.folder), hint="prepare again in another folder")


def check_owner(store: Store, owner: str) -> None:
    """AccessError unless a session of the model's side is this client's; a nameless one has nameless sessions only."""
    if store.header.owner != owner:
        hint = "show the certificate or token that prepared it, or prepare again in another folder"
        raise AccessError("this session belongs to another client", where="the server's store", hint=hint)
