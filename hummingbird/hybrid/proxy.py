"""The data's side as a proxy for users, who need no store and only add two shares.

    Public(opening)    -> the net as users know it: input and output, the range of images, the digest of the plan
    Slot(opening)      -> ticket (16 bytes), seed of the input's mask r (16 bytes), the proxy's share of the logits
    Key(opening)       -> the proxy's public key, for users who send encrypted images

A user sends the ticket and X - r to the model's side, and receives its share of the logits. With input "switched" the
seed is zeros, and the user sends an encryption of X, which the proxy decrypts under a mask (switched.py).

Neither the proxy nor the model's side sees the image or the logits, unless they collude: together they have both
shares.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable

import grpc

from hummingbird.errors import HummingbirdError, StoreError
from hummingbird.he import bfv
from hummingbird.hybrid import messages, report
from hummingbird.hybrid.client import Connection, by_a_sound_slot
from hummingbird.hybrid.data_side import Slot, mask_seed
from hummingbird.hybrid.message_stream import MessageStream
from hummingbird.hybrid.plan import SET, reduced
from hummingbird.hybrid.proxy_view import proxy_view
from hummingbird.hybrid.store import SlotError
from hummingbird.hybrid.switched import Image
from hummingbird.hybrid.users import INPUTS
from hummingbird.prg import SEED_BYTES, new_seed
from hummingbird.rpc.admission import Quota, caller_name
from hummingbird.rpc.service import WORKERS, Method
from hummingbird.table import Report

_US, _THEM = "the proxy", "the user"
_PAUSE = 2.0  # seconds to wait after preparing failed
MAX_USERS = WORKERS // 4
_LATE = 120.0  # seconds for which a user who did not come still counts against its name's quota
_log = logging.getLogger(__name__)


class Proxy:
    """The data's side as a service for users without a store: `serve(Proxy(connection, 16).handlers(), address)`.

    slots: number of slots to keep ready; a thread prepares them. If a user asks for a slot and never sends its image,
    the slot is lost, and the user's name may ask for fewer slots for a while.
    served: number of images so far, by kind of input.
    """

    def __init__(self, connection: Connection, slots: int) -> None:
        self._connection, self._side, self._slots = connection, connection.side, slots
        self._text = proxy_view(connection.plan, connection.digest)
        self._secret = bfv.Secret.new()
        self._public = self._secret.public().to_bytes()
        self._wanted, self._ended = threading.Event(), threading.Event()
        self._users = Quota(
            "users", "at work or waiting", MAX_USERS, MAX_USERS // 4, spare=False, where=_US, retry=_PAUSE
        )
        self.served: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._problem = ""
        self._thread = threading.Thread(target=self._keep_ready, name="hummingbird-prepare", daemon=True)
        self._thread.start()

    def handlers(self) -> dict[str, Method]:
        """Return the methods of the service, for `rpc.service.serve`."""
        return {"Public": self._describe, "Slot": self._slot, "Key": self._key}

    def close(self) -> None:
        """Stop preparing slots, and wait until a slot or set that is just being dealt is complete."""
        self._ended.set()
        self._wanted.set()
        self._thread.join()

    def report(self) -> Report:
        """Return a text table of the predicted and counted bytes between proxy and server for the images so far.

        The first messages of calls are not included.
        """
        return report.proxied(self._connection.plan, self._connection.online, self.served)

    def _count(self, kind: str) -> None:
        with self._lock:
            self.served[kind] += 1

    def _describe(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        messages.read_opening(data, "", _US, _THEM, messages.CallOpening)
        return self._text

    def _key(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        messages.read_opening(data, self._connection.digest, _US, _THEM, messages.CallOpening)
        return self._public

    def _slot(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        kind = messages.read_opening(data, self._connection.digest, _US, _THEM, messages.UserOpening).input
        name = caller_name(context)
        self._users.enter(name)
        try:
            secret = self._secret if kind == "switched" else None
            call = by_a_sound_slot(lambda: self._announced(name, secret))
        except BaseException:
            self._users.leave(name)
            raise
        plan, slot = self._connection.plan, call.slot
        seed = bytes(SEED_BYTES) if kind == "switched" else mask_seed(slot.seed, plan.input_number)
        return call.ticket + seed + messages.pack(slot.share, plan.output.ring).numpy().tobytes()

    def _announced(self, name: str | None, secret: bfv.Secret | None) -> _Call:
        """Take a slot for a user's image, tell the model's side about the user, and return the image's `_Call`.

        name: of the user; None if unknown. secret: the proxy's key, if the user sends encrypted images; None otherwise.
        """
        leave = lambda late: self._users.leave(name, late=late)  # noqa: E731
        try:
            call = _Call(self._connection, self._side.take(), leave, self._count, secret)
        except SlotError:
            raise
        except StoreError as error:
            what = f"{error.what}; {self._problem}" if self._problem else error.what
            raise StoreError(what, where=_US, hint="others are being prepared: try again later") from None
        finally:
            self._wanted.set()
        call.announced()
        return call

    def _keep_ready(self) -> None:
        plan = self._connection.plan
        least = SET if plan.in_sets and self._slots >= 2 * SET else 1  # a whole set is dealt while another one serves
        while not self._ended.is_set():
            self._wanted.clear()
            try:
                while (lacking := self._slots - self._connection.ready) >= least and not self._ended.is_set():
                    self._connection.prepare(plan.dealt(lacking)[0])
                self._problem = ""
            except HummingbirdError as error:
                self._problem = f"preparing failed: {error.what}"
                _log.warning("preparing failed: %s", error)
                self._ended.wait(_PAUSE)
                continue
            self._wanted.wait()


class _Call:
    """The proxy's part of one user's image: a thread that answers the model's side once the user has sent its image.

    connection: to the model's side. slot: the slot that the image uses. secret: the proxy's key, if the image comes
    encrypted; None otherwise.
    leave: a function that is called at the end, if the model's side has heard of the user. Its argument is the number
    of seconds for which the call still counts against the quota of the user's name.
    count: a function that is called after a completed image, with the kind of its input, "shares" or "switched".
    """

    def __init__(
        self,
        connection: Connection,
        slot: Slot,
        leave: Callable[[float], None],
        count: Callable[[str], None],
        secret: bfv.Secret | None,
    ) -> None:
        self._secret, self._kind, self._count = secret, INPUTS[secret is not None], count
        self.ticket = new_seed(messages.TICKET_BYTES)
        self._connection, self.slot, self._leave = connection, slot, leave
        self._told, self._error = threading.Event(), list[Exception]()
        threading.Thread(target=self._run, name="hummingbird-user", daemon=True).start()

    def announced(self) -> None:
        """Wait until the model's side knows the user's ticket. Raises the error of the call if it failed."""
        self._told.wait()  # ends, because every wait of a MessageStream has a limit
        if self._error:
            raise self._error[0]

    def _run(self) -> None:
        side, announced, late = self._connection.side, False, _LATE
        try:
            with self._connection.call("Online", self._connection.online) as link:
                side.open(link, self.slot, ticket=self.ticket.hex(), input=self._kind)
                link.receive("done", len(messages.DONE))
                announced = True
                self._told.set()
                if self._secret is not None:
                    self._mask(link, self._secret)
                side.answer(link, self.slot)
                link.receive("done", len(messages.DONE))
            self._count(self._kind)
            late = 0.0
        except Exception as error:
            self._error.append(error)
            if not isinstance(error, HummingbirdError):
                raise
            _log.warning("slot %d is burned: %s", self.slot.number, error.what)
        finally:
            self._told.set()
            if announced:
                self._leave(late)

    def _mask(self, link: MessageStream, secret: bfv.Secret) -> None:
        """Receive the image X as X - rho, encrypted, from the model's side; send back X - rho - r, not encrypted.

        rho is the model side's mask, and the slot's mask r is the proxy's share of the image. secret: the proxy's key.
        """
        step, image = self._connection.plan.input, Image(self._connection.plan.input)
        x = image.decrypt(secret, link.receive("switched", image.down).numpy().tobytes())
        masked = reduced(x - self._connection.side.input_mask(self.slot), step.ring)
        link.send("input", messages.pack(masked, step.ring))
