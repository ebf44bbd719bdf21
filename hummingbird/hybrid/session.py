"""The set-up of a session: base OTs, and a folder at each side that is bound to the plan.

The garbler is the sender of all OTs, with its offset of labels R. The model's side draws the session's name. If clients
have names, a session can be used only by the client that began it.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from hummingbird.cost import COT_SET_UP
from hummingbird.errors import AccessError, AgreementError
from hummingbird.hybrid import messages
from hummingbird.hybrid.message_stream import MessageStream
from hummingbird.hybrid.store import Header, Store
from hummingbird.ot import cot
from hummingbird.prg import new_seed

_OURS = ("the data's side", "the model's side")


def set_up_data(link: MessageStream, garbler: str, plan: str, folder: Path) -> Store:
    """Set up a new session at the data's side; returns its store.

    garbler: the side that garbles, "data" or "model". plan: digest of the model's description. folder: where the store
    is made. Raises the errors of `Store.create` and `MessageStream.receive`.
    """
    link.send("opening", messages.CallOpening(plan=plan).pack())
    session = messages.read_opening(link.receive_text("opening"), plan, *_OURS, messages.SessionOpening).session
    material = _transfers(link, garbler == "data")
    link.receive("done", len(messages.DONE))
    return Store.create(folder, Header("data", session, plan), new_seed(), material)


def set_up_model(link: MessageStream, garbler: str, plan: str, folder: Path, owner: str = "") -> Store:
    """Set up a new session at the model's side; returns its store.

    garbler: the side that garbles, "data" or "model". plan: digest of the model's description. folder: where the stores
    of all sessions are. owner: name of the client, from its certificate or token; empty without a name.
    """
    messages.read_opening(link.receive_text("opening"), plan, _OURS[1], _OURS[0], messages.CallOpening)
    session = new_seed(messages.SESSION_BYTES).hex()
    link.send("opening", messages.SessionOpening(plan=plan, session=session).pack())
    material = _transfers(link, garbler == "model")
    store = Store.create(folder / session, Header("model", session, plan, owner), new_seed(), material)
    link.send("done", messages.DONE)
    return store


def _transfers(link: MessageStream, garbles: bool) -> list[Tensor]:
    """Set up oblivious transfers with the other side; returns the secrets of this side that its store keeps.

    For the garbler these are delta and leaves (ot/cot.py), for the evaluator leaves. garbles: whether this side is the
    garbler.
    """
    if garbles:
        start = cot.SetUp()
        link.send("base OTs", start.message)
        sender = start.finish(link.receive("base OTs", COT_SET_UP[1]).numpy().tobytes())
        return [sender.delta, sender.leaves]
    receiver, reply = cot.accept(link.receive("base OTs", COT_SET_UP[0]).numpy().tobytes())
    link.send("base OTs", reply)
    return [receiver.leaves]


def sender_of(store: Store) -> cot.Sender:
    """Return the sender of the session's oblivious transfers, for the garbler, from the secrets in the store."""
    return cot.Sender(*store.material)


def receiver_of(store: Store) -> cot.Receiver:
    """Return the receiver of the session's oblivious transfers, for the evaluator, from the secrets in the store."""
    return cot.Receiver(*store.material)


def check_bound(store: Store, side: str, plan: str) -> None:
    """Raise AgreementError unless the store belongs to this side and to the plan with this digest."""
    found = store.header
    if found.side != side:
        what = f"this is a store of the {found.side}'s side, here the {side}'s side is needed"
        raise AgreementError(what, where=str(store.folder), hint="name another folder")
    if found.plan != plan:
        what = f"the store is of plan {found.plan[:12]}, the net has plan {plan[:12]}: another net, windows or weights"
        raise AgreementError(what, where=str(store.folder), hint="prepare again in another folder")


def check_owner(store: Store, owner: str) -> None:
    """Raise AccessError unless this client owns the session.

    Clients without a name share the sessions that have no owner.
    """
    if store.header.owner != owner:
        hint = "use the certificate or token that prepared it, or prepare again in another folder"
        raise AccessError("this session belongs to another client", where="the server's store", hint=hint)
