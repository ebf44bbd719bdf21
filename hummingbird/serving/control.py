"""Messages between the parties beside the protocol: which requests each party holds, and party 0's list of the next.

Each party sends claims, its words on requests that it holds, to party 0 at any time, over a second channel
(`mpc.session.rendezvous.beside`, with the session's proof and certificates), and an empty one every few seconds.
Party 0 sends its list to all others over the session's channel, between two batches: a header of two words, the count
and whether this is the last list, then a row of four words for each request.
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

_HOLD, _GIVE_UP, _ALIVE, _END, _CHANGE = range(5)
_CLAIM_WORDS = 7
_NOTHING = [_ALIVE, 0, 0, 0, 0, 0, 0]
_CLAIMS = 8  # rows of a message: claims of one moment go together, and empty rows fill the message
_MOST_ROWS = 1 << 20
_ID = struct.Struct("<qq")


class Teller:
    """Tells party 0 which requests this party holds; every party but party 0 has one.

    channel: the parties' channel for such reports, beside that of the session. every: seconds between two empty
    messages, by which party 0 sees that this party lives. failed: called with the error that ends the reports. A thread
    that has a report sends it, unless another thread is sending, which then sends this report too: no thread has to be
    woken.
    """

    def __init__(self, channel: Channel, every: float, failed: Callable[[HummingbirdError], None]) -> None:
        self._channel, self._every, self._failed = channel, every, failed
        self._rows: deque[list[int]] = deque()
        self._sending, self._closed = threading.Lock(), threading.Event()
        threading.Thread(target=self._beat, name="hummingbird-teller", daemon=True).start()

    def hold(self, rank: int, id: bytes, claim: Claim) -> None:
        """Report to party 0 that this party holds a request.

        rank: this party's, which party 0 knows. id: of the request. claim: its number of images, its client, its net,
        and the seconds to its deadline.
        """
        self._tell([_HOLD, *_ID.unpack(id), claim.images, claim.owner, claim.model, int(1e3 * claim.left)])

    def give_up(self, id: bytes) -> None:
        """Report to party 0 that the client of a request has disconnected from this party. id: of the request."""
        self._tell([_GIVE_UP, *_ID.unpack(id), 0, 0, 0, 0])

    def end(self) -> None:
        """Report to party 0 that this party is to end once its waiting requests are answered."""
        self._tell([_END, 0, 0, 0, 0, 0, 0])

    def change(self) -> None:
        """Report to party 0 that this party has other models than before, so that all parties compare theirs."""
        self._tell([_CHANGE, 0, 0, 0, 0, 0, 0])

    def close(self) -> None:
        """Send no further reports from this party."""
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
                self._sending.release()  # the loop's condition sees a row added before this by a thread that has gone

    def _send(self) -> None:
        """Send party 0 one message with reports that wait to be sent, up to eight; do nothing if none waits."""
        rows = [self._rows.popleft() for _ in range(min(_CLAIMS, len(self._rows)))]
        if rows:
            rows += [_NOTHING] * (_CLAIMS - len(rows))
            self._channel.send(0, torch.tensor(rows, dtype=torch.int64))


class PeerReader:
    """Reads, at party 0, the reports that one other party's `Teller` sends, on a thread of its own.

    channel: the parties' channel for such reports, beside that of the session. peer: the other party's rank. order: the
    scheduler that gets the reports. end: called when that party is to end. failed: called with the error that ends the
    thread.
    """

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

    def _heard(self, kind: int, low: int, high: int, images: int, owner: int, model: int, left: int) -> None:
        id = _ID.pack(low, high)
        if kind == _HOLD:
            self._order.hold(self._peer, id, Claim(images, owner, left / 1e3, model))
        elif kind == _GIVE_UP:
            self._order.give_up(id)
        elif kind == _END:
            self._end()
        elif kind == _CHANGE:
            self._order.change()


def send_list(channel: Channel, decisions: Sequence[Decision], last: bool) -> None:
    """Send party 0's list of its next decisions on requests to all other parties, and let other computations run.

    channel: of the session. last: whether this is the last list, after which the service ends.
    """
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
    """Receive from party 0 the list of its next decisions on requests; return it, and whether it is the last one.

    channel: of the session. Raises AgreementError for a malformed list, and errors of `Channel`.
    """
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
