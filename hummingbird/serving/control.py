"""Messages of the parties beside the protocol: which requests each holds, and party 0's list of what happens next.

Claims go to party 0 at any time, over a channel of their own (`mpc.rendezvous.beside`: the proof and the certificates
of the session's), and one every few seconds though there is nothing to say. The list goes to all others over the
session's channel, between two batches: a header of two words, count and whether it is the last, then a row of four
words for each request.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence

import torch

from hummingbird import cost
from hummingbird.channel import interleave, meter
from hummingbird.channel.channel import Channel
from hummingbird.errors import AgreementError, HummingbirdError
from hummingbird.serving.scheduler import Action, Claim, Decision, Scheduler

_HOLD, _GIVE_UP, _ALIVE, _END = 0, 1, 2, 3
_CLAIM_WORDS = 6
_NOTHING = [_ALIVE, 0, 0, 0, 0, 0]
_CLAIMS = 8  # of a message: those of one moment go together, and rows that say nothing fill it up
_MOST_ROWS = 1 << 20
_ID = struct.Struct("<qq")


class Teller:
    """Tells party 0 what this party holds; for the others. failed: called with the error that ends it.

    Whoever has something to tell sends it, and what others bring meanwhile: no thread has to wake for it.
    """

    def __init__(self, channel: Channel, every: float, failed: Callable[[HummingbirdError], None]) -> None:
        self._channel, self._every, self._failed = channel, every, failed
        self._rows: deque[list[int]] = deque()
        self._sending, self._closed = threading.Lock(), threading.Event()
        threading.Thread(target=self._beat, name="hummingbird-teller", daemon=True).start()

    def hold(self, id: bytes, claim: Claim) -> None:
        """This party holds a request."""
        self._tell([_HOLD, *_ID.unpack(id), claim.images, claim.owner, int(1e3 * claim.left)])

    def give_up(self, id: bytes) -> None:
        """The client of a request has left this party."""
        self._tell([_GIVE_UP, *_ID.unpack(id), 0, 0, 0])

    def end(self) -> None:
        """This party was told to end once what waits is answered."""
        self._tell([_END, 0, 0, 0, 0, 0])

    def close(self) -> None:
        """Stop telling."""
        self._closed.set()

    def _beat(self) -> None:
        while not self._closed.wait(self._every):
            self._tell(_NOTHING)

    def _tell(self, row: list[int]) -> None:
        self._rows.append(row)
        while self._rows and not self._closed.is_set() and self._sending.acquire(blocking=False):
            try:
                self._send()
            except HummingbirdError as error:
                self.close()
                self._failed(error)
            finally:
                self._sending.release()  # a row that came before this, and whose thread has left, is seen above

    def _send(self) -> None:
        """Send one message of what is to be told, if anything is."""
        rows = [self._rows.popleft() for _ in range(min(_CLAIMS, len(self._rows)))]
        if rows:
            rows += [_NOTHING] * (_CLAIMS - len(rows))
            self._channel.send(0, torch.tensor(rows, dtype=torch.int64))


class PeerReader:
    """Hears, at party 0, what one other party holds. failed: called with the error that ends it."""

    def __init__(
        self,
        channel: Channel,
        peer: int,
        order: Scheduler,
        end: Callable[[], None],
        failed: Callable[[HummingbirdError], None],
    ) -> None:
        self._channel, self._peer, self._order, self._end, self._failed = channel, peer, order, end, failed
        self._thread = threading.Thread(target=self._run, name=f"hummingbird-listener-{peer}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        like = [torch.zeros(_CLAIMS, _CLAIM_WORDS, dtype=torch.int64)]
        try:
            while True:
                for row in self._channel.receive(self._peer, like)[0].tolist():
                    self._heard(*row)
        except HummingbirdError as error:
            self._failed(error)

    def _heard(self, kind: int, low: int, high: int, images: int, owner: int, left: int) -> None:
        id = _ID.pack(low, high)
        if kind == _HOLD:
            self._order.hold(self._peer, id, Claim(images, owner, left / 1e3))
        elif kind == _GIVE_UP:
            self._order.give_up(id)
        elif kind == _END:
            self._end()


def send_list(channel: Channel, decisions: Sequence[Decision], last: bool) -> None:
    """Party 0's list to all others; last: nothing comes after it. Other computations take their turns meanwhile."""
    with meter.layer("order", "list", cost.ordering(channel.parties, len(decisions), True)):
        header = torch.tensor([len(decisions), int(last)], dtype=torch.int64)
        words = [[*_ID.unpack(d.id), int(d.action), d.detail] for d in decisions]
        for peer in channel.others:
            channel.send(peer, header)
            if decisions:
                channel.send(peer, torch.tensor(words, dtype=torch.int64))
        channel.count_round()
        interleave.pass_on()


def receive_list(channel: Channel) -> tuple[list[Decision], bool]:
    """Party 0's list, and whether it is the last. AgreementError for a malformed one, and what `Channel` raises."""
    with meter.layer("order", "list", cost.ordering(channel.parties, 0, False)):
        interleave.pass_on()
        count, last = channel.receive(0, [torch.zeros(2, dtype=torch.int64)])[0].tolist()
        if not 0 <= count <= _MOST_ROWS:
            raise AgreementError(f"party 0 names {count} requests", where=channel.name)
        rows = torch.zeros(count, cost.ORDER_WORDS, dtype=torch.int64)
        words = channel.receive(0, [rows])[0].tolist() if count else []
        channel.count_round()
    try:
        return [Decision(_ID.pack(low, high), Action(action), detail) for low, high, action, detail in words], bool(
            last
        )
    except ValueError as error:
        raise AgreementError(f"party 0 sent a malformed list: {error}", where=channel.name) from None
