"""Party 0's scheduler: which requests all parties run next, and which they drop.

A request is complete when every party holds it with the same number of images, from the same client. Complete requests
are queued, fairly between clients: a client with many waiting images does not delay the others by all of them. They run
at once on an idle lane; otherwise as soon as `most` images wait or the first has waited `wait` seconds, on the lane
that asks first. A lane has material for a limited number of images, its *room*: it leaves requests that do not fit to
other lanes, and a request that fits no lane is dropped, at once or after it has waited for a keeper to deal more. A
request that only some parties hold delays no other, and is dropped once its client has had the time to send it to all.

In a service that generates text each request is a step of a conversation, and a batch of its own. A step runs only if
it is the next one of its conversation, so that no step runs twice, and on the lane that has run the steps before it
(`Conversations`). Conversations that are idle for long are ended.

Where a service has several models, the requests of a batch are all for one of them. Party 0 also says at which point
between two batches all parties compare their lists of models, and when one of them may be forgotten: it has left the
lists, and no request for it waits any more (models.py).

A drop and another party's claim of the same request may cross on the network. A dropped request therefore stays
dropped: a later claim gets the same decision again, and never completes a request that some party has already refused.
The last 2^18 drops are remembered, many more than there can be while a claim is on its way.
"""

from __future__ import annotations

import enum
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from hummingbird.errors import AccessError, HummingbirdError, NotFoundError, OverloadError, PeerError
from hummingbird.serving.message import END, ID_BYTES, step_id, step_of

_KEPT = 600.0  # seconds for which a drop is remembered: as long as a request's deadline may be ahead
_MOST_KEPT = 1 << 18  # drops
_LOOK = 0.01  # seconds after which a lane reports its room anew while a request waits for material


class Action(enum.IntEnum):
    """The decision on a request: to run it, or the reason for which it is dropped."""

    RUN = 0
    MISSING = 1  # party `detail` did not receive it in time
    LATE = 2  # its deadline passed while it waited
    UNLIKE = 3  # party `detail` received it with another number of images, or from another client
    LOW = 4  # too little material; detail: milliseconds after which to try again, which the store knows
    GIVEN_UP = 5  # its client has disconnected
    END = 6  # a conversation ends: by its client's request, or since it was idle
    UNKNOWN = 7  # of no conversation: it was never begun, or it has ended
    ORDER = 8  # another step of its conversation is the next: step `detail`
    STRANGER = 9  # of another client's conversation
    CROWDED = 10  # too many conversations, in all or of this client; detail: how many it may have
    CHANGE = 11  # of no request: all parties compare their lists of models
    UNLOAD = 12  # of no request: the model whose description has the digest `id` is forgotten


class Decision(NamedTuple):
    """The decision of party 0 on one request, as all parties get it.

    id: of the request. action: to run it, or why it is dropped. detail: a number that explains the action, such as a
    party's rank (`Action`).
    """

    id: bytes
    action: Action
    detail: int = 0


class Claim(NamedTuple):
    """A party's report to party 0 on a request that it holds.

    images: how many it has. owner: a digest of its client. left: seconds to its deadline. model: the net that it is for
    (`ServiceDescription.word`).
    """

    images: int
    owner: int
    left: float
    model: int


class Rules(NamedTuple):
    """How requests for one model are batched.

    most: most images of a batch. alone: whether each batch is one request, for nets that compute images together.
    sending: for a number of images, returns the seconds within which a client must have sent such a request to all
    parties.
    """

    most: int
    alone: bool
    sending: Callable[[int], float]


@dataclass(eq=False, repr=False)
class _Talk:
    owner: int
    lane: int
    next: int = 0  # the step that may run next
    used: float = 0.0  # when its last step ended, or began
    running: bool = True


class Conversations:
    """The open conversations of a service that generates text, at party 0, whose `Scheduler` calls every method.

    steps: how many steps a conversation has. most, each: how many conversations may be open, in all and of one client.
    patience: seconds without a step after which a conversation is ended. `id` is that of a request (`message.step_of`).
    """

    def __init__(self, steps: int, most: int, each: int, patience: float) -> None:
        self._steps, self._most, self._each, self._patience = steps, most, each, patience
        self._open: dict[bytes, _Talk] = {}

    def refusal(self, id: bytes, owner: int) -> Decision | None:
        """Return the decision by which a step is dropped that may not run now; None if it may.

        owner: a digest of the request's client.
        """
        name, step = step_of(id)
        talk = self._open.get(name)
        if talk is not None and talk.owner != owner:
            return Decision(id, Action.STRANGER)
        if talk is None and step:
            return Decision(id, Action.UNKNOWN)
        if talk is not None and step not in (talk.next, END):
            return Decision(id, Action.ORDER, talk.next)
        own = sum(other.owner == owner for other in self._open.values())
        if talk is None and (len(self._open) >= self._most or own >= self._each):
            return Decision(id, Action.CROWDED, self._each)
        return None

    def needs(self, id: bytes) -> int:
        """Return for how many conversations a step needs material: the first one for 1, the others for none."""
        return int(step_of(id)[1] == 0)

    def on(self, id: bytes, lane: int) -> bool:
        """Return whether a step can run on a lane: the first one on any, the others where the first one has run."""
        talk = self._open.get(step_of(id)[0])
        return talk is None or talk.lane == lane

    def run(self, id: bytes, owner: int, lane: int) -> Action:
        """Note that a lane is to run a step, which `refusal` allows; return what the parties do with it."""
        name, step = step_of(id)
        if step == END:
            del self._open[name]
            return Action.END
        talk = self._open.setdefault(name, _Talk(owner, lane))
        talk.next, talk.used, talk.running = step + 1, time.monotonic(), True
        if talk.next == self._steps:
            del self._open[name]  # all parties forget it after its last step
        return Action.RUN

    def ready(self, lane: int, now: float) -> None:
        """Note that a lane has computed its steps so far. now: monotonic time."""
        for talk in self._open.values():
            if talk.running and talk.lane == lane:
                talk.used, talk.running = now, False

    def idle(self, lane: int, now: float) -> list[Decision]:
        """End the conversations of a lane that have been idle for too long; return the decisions that say so."""
        late = [name for name, talk in self._open.items() if talk.lane == lane and now > talk.used + self._patience]
        for name in late:
            del self._open[name]
        return [Decision(step_id(name, END), Action.END) for name in late]


@dataclass(eq=False, repr=False)
class _Held:
    images: int
    owner: int
    model: int
    ends: float
    whole_by: float  # when all parties must hold it
    holders: set[int] = field(default_factory=set)
    unlike: int | None = None  # a party that holds something else
    complete: float = 0.0  # when it became complete
    turn: int = 0  # its virtual finish time in the fair queue, in images

    @property
    def until(self) -> float:
        """The monotonic time at which this request is dropped if it has not run before."""
        return self.ends if self.complete else min(self.ends, self.whole_by)


class Scheduler:
    """Decides, at party 0, which requests all parties run next, and which they drop.

    parties: their number. rules: returns the `Rules` of a model (`Claim.model`). wait: seconds for which a request
    waits for others to share its batch. lanes: of each party. patience: seconds for which a request waits for material,
    where `deal --keep` fills the stores again. talks: the conversations of a service that generates text; None for a
    service of images. Every method may be called from any thread, `next` by one thread for each lane.
    """

    def __init__(
        self,
        parties: int,
        rules: Callable[[int], Rules],
        wait: float,
        lanes: int = 1,
        patience: float = 0.0,
        talks: Conversations | None = None,
    ) -> None:
        self._parties, self._rules, self._wait = parties, rules, wait
        self._patience, self._talks = patience, talks
        self._changed = threading.Condition()
        self._held: dict[bytes, _Held] = {}
        self._dropped: dict[bytes, tuple[float, Decision]] = {}  # and when, the oldest first
        self._ready: deque[bytes] = deque()
        self._rooms = dict.fromkeys(range(lanes), math.inf)
        self._said = dict.fromkeys(self._rooms, -math.inf)  # the time at which each lane last reported its room
        self._idle = set(self._rooms)
        self._waiting: set[int] = set()  # lanes that wait in `next`
        self._awake: set[int] = set()  # lanes whose wait is to end
        self._turn = 0  # `turn` of the request that ran last
        self._changing = False  # whether the parties are to compare their models
        self._leaving: dict[int, bytes] = {}  # models that are to be forgotten, with the digests of their descriptions

    def hold(self, rank: int, id: bytes, claim: Claim) -> None:
        """Note that party `rank` holds the request `id`; once all parties hold it, it may run.

        claim: what the party says of the request. It must be equal at all parties, but for the seconds.
        """
        now = time.monotonic()
        with self._changed:
            whole_by = now + self._rules(claim.model).sending(claim.images)
            first = _Held(claim.images, claim.owner, claim.model, now + claim.left, whole_by)
            held = self._held.setdefault(id, first)
            held.ends = min(held.ends, now + claim.left)
            if (held.images, held.owner, held.model) != (claim.images, claim.owner, claim.model):
                held.unlike = rank
            held.holders.add(rank)
            if held.unlike is None and len(held.holders) == self._parties and not held.complete:
                held.complete = now
                self._line_up(id, held)
            self._changed.notify_all()

    def give_up(self, id: bytes) -> None:
        """Mark the request `id` as one to drop: its client has left one of the parties, and lacks its answer."""
        with self._changed:
            held = self._held.get(id)
            if held is not None:
                held.ends = 0.0
            self._changed.notify_all()

    def change(self) -> None:
        """Let all parties compare their lists of models, between two batches."""
        with self._changed:
            self._changing = True
            self._changed.notify_all()

    def retire(self, model: int, digest: bytes) -> None:
        """Let all parties forget a model as soon as no request for it waits; party 0 holds no further one from now on.

        digest: of its description.
        """
        with self._changed:
            self._leaving[model] = digest
            self._changed.notify_all()

    def wake(self) -> None:
        """Make `next` return soon, once for every lane: a call that waits now, or else the lane's following call."""
        with self._changed:
            self._awake = set(self._rooms)
            self._changed.notify_all()

    @property
    def empty(self) -> bool:
        """Whether there is no request, at any party, on which this scheduler has not decided."""
        with self._changed:
            return not self._held

    def next(self, idle: float, lane: int = 0, room: float = math.inf) -> list[Decision]:
        """Return the next decisions for a lane, a list: requests to drop, then the requests to run as one batch.

        The list is empty if nothing was to be decided for `idle` seconds, after `wake`, or if the lane is to report its
        material again. idle: 0 while the lane is still computing. lane: its number. room: how many images it has
        material for; each call reports this.
        """
        ends = time.monotonic() + idle
        with self._changed:
            self._rooms[lane], self._said[lane] = room, time.monotonic()
            if self._talks is not None:
                self._talks.ready(lane, self._said[lane])
            while True:
                now = time.monotonic()
                out, fitting = self._drops(now), self._fitting(lane)
                out += [] if self._talks is None else self._talks.idle(lane, now)
                if fitting and self._due(now, lane, fitting, idle > 0):
                    out += self._batch(lane, fitting)
                out += self._news()
                if out or now >= ends or lane in self._awake or self._outdated(lane, now):
                    self._awake.discard(lane)
                    return out
                if not fitting:
                    self._idle.add(lane)
                self._waiting.add(lane)
                self._changed.wait(max(0.0, min(ends, self._alarm(lane, fitting)) - now))
                self._waiting.discard(lane)

    def _news(self) -> list[Decision]:
        """Return the decisions on models: to compare the parties' lists, and which ones no request needs any more."""
        out = [Decision(bytes(ID_BYTES), Action.CHANGE)] if self._changing else []
        needed = {held.model for held in self._held.values()} if self._leaving else set()
        self._changing = False
        return out + [Decision(self._leaving.pop(model), Action.UNLOAD) for model in self._leaving.keys() - needed]

    def _outdated(self, lane: int, now: float) -> bool:
        """Return whether a lane is to report its material again, because it may have more than in its last report.

        So it is if some request waits because no lane has enough material: once if the request came after the lane's
        last report, and again each `_LOOK` seconds if `deal --keep` fills the stores. now: monotonic time.
        """
        said, lacking = self._said[lane], self._lacking()
        return any(held.complete > said for held in lacking) or bool(lacking and now >= said + self._next_look)

    def _lacking(self) -> list[_Held]:
        """Return what is known of the requests that all parties hold but no lane has enough material for, as a list."""
        largest = max(self._rooms.values())
        return [self._held[id] for id in self._ready if self._needs(id) > largest]

    @property
    def _next_look(self) -> float:
        return _LOOK if self._patience else math.inf

    def _line_up(self, id: bytes, held: _Held) -> None:
        """Put a request that all parties hold into the queue, at its fair place.

        id: of the request. held: what is known of it. Ahead of it are its client's earlier requests, and of each other
        client at most as many images as its own client has up to this request (fair queueing: Golestani, "A
        self-clocked fair queueing scheme", INFOCOM 1994). So no client with many images delays the others.
        """
        waiting = [self._held[other] for other in self._ready]
        own = (other.turn for other in waiting if other.owner == held.owner)
        held.turn = max(own, default=self._turn) + held.images
        self._ready.insert(sum(other.turn <= held.turn for other in waiting), id)

    def _needs(self, id: bytes) -> int:
        """Return for how many images a request needs material: of a conversation, only the first step needs some."""
        return self._held[id].images if self._talks is None else self._talks.needs(id)

    def _fitting(self, lane: int) -> list[bytes]:
        return [id for id in self._ready if self._fits(id, lane)]

    def _fits(self, id: bytes, lane: int) -> bool:
        return self._needs(id) <= self._rooms[lane] and (self._talks is None or self._talks.on(id, lane))

    def _due(self, now: float, lane: int, fitting: list[bytes], free: bool) -> bool:
        first = self._held[fitting[0]]
        if not free and any(self._fits(fitting[0], other) for other in self._waiting):
            return False  # an idle lane takes it, now or when it is due
        rules, held = self._rules(first.model), [self._held[id] for id in fitting]
        images = sum(each.images for each in held if each.model == first.model)
        return lane in self._idle or rules.alone or images >= rules.most or now >= first.complete + self._wait

    def _batch(self, lane: int, fitting: list[bytes]) -> list[Decision]:
        """Take requests for one batch from the head of the queue; return the decisions to run them.

        lane: the lane that is to compute the batch. fitting: ids of the requests that this lane has material for, in
        order.
        """
        out: list[Decision] = []
        images, room, model = 0, self._rooms[lane], self._held[fitting[0]].model
        rules = self._rules(model)
        for id in [id for id in fitting if self._held[id].model == model]:
            if out and (rules.alone or images + self._held[id].images > min(rules.most, room)):
                break
            self._rooms[lane] -= self._needs(id)
            self._ready.remove(id)
            held = self._held.pop(id)
            images, self._turn = images + held.images, held.turn
            action = Action.RUN if self._talks is None else self._talks.run(id, held.owner, lane)
            out.append(Decision(id, action))
        self._idle.discard(lane)
        return out

    def _drops(self, now: float) -> list[Decision]:
        self._forget(now)
        out = []
        for id, held in list(self._held.items()):
            if id in self._dropped:
                out.append(self._dropped[id][1])
            elif held.unlike is not None:
                out.append(Decision(id, Action.UNLIKE, held.unlike))
            elif held.ends == 0.0:
                out.append(Decision(id, Action.GIVEN_UP))
            elif now >= held.until:
                missing = sorted(set(range(self._parties)) - held.holders)
                out.append(Decision(id, Action.MISSING, missing[0]) if missing else Decision(id, Action.LATE))
            elif held.complete and self._talks is not None and (refusal := self._talks.refusal(id, held.owner)):
                out.append(refusal)
            elif held.complete and self._lacks_material(id, held, now):
                out.append(Decision(id, Action.LOW))
        for decision in out:
            held = self._held.pop(decision.id)
            self._dropped.setdefault(decision.id, (now, decision))
            if held.complete:
                self._ready.remove(decision.id)
        self._forget(now)
        return out

    def _lacks_material(self, id: bytes, held: _Held, now: float) -> bool:
        """Return whether a request must be dropped because no lane has enough material for it.

        This is so if every lane has reported its material after the request had waited `patience` seconds, and no
        report has enough. id: of the request. held: what is known of it. now: monotonic time.
        """
        told = held.complete + self._patience <= min(now, min(self._said.values()))
        return told and self._needs(id) > max(self._rooms.values())

    def _forget(self, now: float) -> None:
        while self._dropped:
            id = next(iter(self._dropped))
            if now < self._dropped[id][0] + _KEPT and len(self._dropped) <= _MOST_KEPT:
                break
            del self._dropped[id]

    def _alarm(self, lane: int, fitting: list[bytes]) -> float:
        """Return the monotonic time at which `next` must decide for a lane, even if nothing arrives before.

        lane: its number. fitting: ids of the requests that the lane has material for, in order.
        """
        due = [self._held[fitting[0]].complete + self._wait] if fitting else []
        due += [self._said[lane] + self._next_look] if self._lacking() else []
        return min([*due, *(held.until for held in self._held.values())], default=time.monotonic() + 3600)


def error_of(action: Action, detail: int) -> HummingbirdError:
    """Return the error that the client of a dropped request gets.

    action: why it was dropped. detail: the number in the decision, such as the rank of a party that lacks the request.
    """
    if action == Action.MISSING:
        hint = "send every party its part at once; are all their addresses right, and is the link to each fast enough?"
        return PeerError(f"party {detail} never got its part of this request", where="request", hint=hint)
    if action == Action.LATE:
        hint = "the parties are busy, or the timeout is too short"
        return OverloadError("its deadline passed while it waited", where="request", hint=hint)
    if action == Action.UNLIKE:
        what = f"party {detail} got another number of images under this id, or from another client, or for another net"
        hint = "does every party know this client under one name? Draw a fresh id for every request"
        return PeerError(what, where="request", hint=hint)
    if action == Action.LOW:
        hint = "the parties' operators deal another store"
        what = "too little material is left for this request"
        return OverloadError(what, where="request", hint=hint, retry_after=detail / 1e3)
    if action == Action.UNKNOWN:
        hint = "begin another one, with the text so far as its prompt"
        what = "there is no such conversation: it has ended, or never begun"
        return NotFoundError(what, where="conversation", hint=hint)
    if action == Action.ORDER:
        hint = "one step after the other; a step that has run answers only to the bytes that it has run with"
        return PeerError(f"step {detail} of this conversation is the next", where="conversation", hint=hint)
    if action == Action.STRANGER:
        hint = "conversations have 96 random bits as their name: draw fresh ones for each"
        return AccessError("this conversation belongs to another client", where="conversation", hint=hint)
    if action == Action.CROWDED:
        what = f"too many conversations are open, of which a client may have {detail}"
        return OverloadError(what, where="conversation", hint="close those that are over")
    return PeerError("its client has left one of the parties", where="request", hint="ask again, with a fresh id")
