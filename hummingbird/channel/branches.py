"""Branches: computations of one process whose openings of one depth travel in one frame, and take one round.

A branch is a function that runs on a thread of its own, but only while the caller waits for it: from one exchange of
messages to the next. When all branches wait, `exchange` sends the tensors of all of them in one frame, gives each its
part of what comes back, and lets one after the other go on. So the order of all messages, and of all requests for
material, follows from the program alone.

    with Branches(channel) as branches:
        for name, layer in layers.items():
            branches.begin(name, lambda channel, layer=layer: layer(channel), done)
        while branches.at_work:
            branches.exchange()         # one round for all layers

The calling computation may itself be one of an `Interleave`: `exchange` passes its turn on.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any

from torch import Tensor

from hummingbird.channel import meter
from hummingbird.channel.channel import Channel
from hummingbird.kernels.devices import on_this_card

_GRACE = 2.0  # seconds granted to a layer that computes when a signal ends the run


class _Stopped(BaseException):
    """Raised in a branch to end it, when another one or the caller has failed."""


class Branch(Channel):
    """One branch, and the channel of its function: an exchange waits until all other branches have sent too.

    layer: the name of the layer that it computes. leads: whether the rounds that it shares count for this layer.
    done: called with the function's result.
    """

    def __init__(self, channel: Channel, layer: str, leads: bool, done: Callable[[Any], None]) -> None:
        super().__init__(channel.rank, channel.parties, {}, {}, channel.timeout)
        self.names = channel.names
        self.layer, self.leads, self.done = layer, leads, done
        self.sent: Sequence[Tensor] | None = None  # what it waits to exchange; None: it does not wait
        self.like: Sequence[Tensor] = ()  # tensors of the types and shapes that it expects from each other party
        self.result: Any = None
        self._error: BaseException | None = None
        self._waits: SimpleQueue[None] = SimpleQueue()
        self._answers: SimpleQueue[dict[int, list[Tensor]] | None] = SimpleQueue()

    # On the branch's thread

    def run(self, function: Callable[[Channel], Any]) -> None:
        """Call the function with this channel. Its error is raised where the caller waits for this branch."""
        try:
            with meter.within(self.layer):
                self.result = function(self)
        except BaseException as error:  # noqa: BLE001 - `wait` raises it
            self._error = error
        self.sent = None
        self._waits.put(None)

    def exchange(self, *tensors: Tensor) -> dict[int, list[Tensor]]:
        """Exchange tensors as `Channel.exchange` does, in one frame with those of all other branches."""
        return self._exchanged(tensors, tensors)

    def swap(self, peer: int, tensors: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
        """Swap tensors with the only other party as `Channel.swap` does, in one frame with those of all branches."""
        return self._exchanged(tensors, like)[peer]

    def _exchanged(self, tensors: Sequence[Tensor], like: Sequence[Tensor]) -> dict[int, list[Tensor]]:
        self.sent, self.like = tensors, like
        started = time.perf_counter()
        self._waits.put(None)
        received = self._answers.get()
        if received is None:
            raise _Stopped
        meter.away(time.perf_counter() - started)
        meter.count(bits=8 * len(self.others) * _bytes(tensors))
        return received

    # On the caller's

    def wait(self) -> None:
        """Wait until the function exchanges tensors, or ends. Raises its error."""
        self._waits.get()
        if self._error is not None:
            raise self._error

    def go_on(self, received: dict[int, list[Tensor]] | None) -> None:
        """Let the function go on with what it has received; None: end it."""
        self._answers.put(received)


class _Thread:
    """A thread that runs one branch after the other, with the GPU that is the caller's current one."""

    def __init__(self) -> None:
        self.work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=on_this_card(self._serve), name="hummingbird-branch", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while (work := self.work.get()) is not None:
            work()
            del work  # it holds the values that its layer reads

    def join(self) -> None:
        self._thread.join(_GRACE)


class Branches:
    """The branches on one channel. All of them, and their threads, end with the `with` block.

    channel: over which the frames of all branches travel.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._at_work: list[tuple[Branch, _Thread]] = []  # in the order in which they began
        self._idle: list[_Thread] = []

    def __enter__(self) -> Branches:
        return self

    def __exit__(self, *error: object) -> None:
        for branch, _ in self._at_work:
            branch.go_on(None)
        threads = [*(thread for _, thread in self._at_work), *self._idle]
        for thread in threads:
            thread.work.put(None)
        for thread in threads:
            # A thread that releases its last tensors while the interpreter shuts down would abort the process.
            thread.join()

    @property
    def at_work(self) -> bool:
        """Whether any branch waits for an exchange."""
        return bool(self._at_work)

    def begin(
        self, layer: str, function: Callable[[Channel], Any], done: Callable[[Any], None], leads: bool = False
    ) -> None:
        """Run a function as a branch, until it exchanges tensors or ends.

        layer: the name of the layer that it computes. function: takes the branch's channel, and returns a result.
        done: called with the result, here or by `exchange`. leads: whether shared rounds count for this layer.
        Raises the function's error.
        """
        branch, thread = Branch(self._channel, layer, leads, done), self._idle.pop() if self._idle else _Thread()
        self._at_work.append((branch, thread))
        thread.work.put(partial(contextvars.copy_context().run, branch.run, function))
        self._wait_for(branch, thread)

    def exchange(self) -> None:
        """Exchange the tensors of all branches in one frame; then let one after the other go on. Takes 1 round.

        The round and the frame's header count for the first branch that leads, or else for the first one. Raises the
        errors of `Channel.exchange` and of the functions.
        """
        waiting = list(self._at_work)
        leader = next((branch for branch, _ in waiting if branch.leads), waiting[0][0])
        sent = _widest_first([(branch, branch.sent or ()) for branch, _ in waiting])
        like = _widest_first([(branch, branch.like) for branch, _ in waiting])
        mine, theirs = ([x for _, _, x in each] for each in (sent, like))
        with meter.within(leader.layer):
            if all(branch.like is branch.sent for branch, _ in waiting):
                received = self._channel.exchange(*mine)
            else:
                (peer,) = self._channel.others
                received = {peer: self._channel.swap(peer, mine, theirs)}
            # Each branch counts the bits of its own tensors, and only the header is left here.
            meter.count(bits=-8 * len(self._channel.others) * _bytes(mine))
        parts = {id(branch): {peer: [*branch.like] for peer in received} for branch, _ in waiting}
        for peer, tensors in received.items():
            for (branch, place, _), x in zip(like, tensors, strict=True):
                parts[id(branch)][peer][place] = x
        del sent, like, mine, theirs, received
        for branch, thread in waiting:
            branch.go_on(parts.pop(id(branch)))
            self._wait_for(branch, thread)

    def _wait_for(self, branch: Branch, thread: _Thread) -> None:
        branch.wait()
        if branch.sent is None:
            self._at_work.remove((branch, thread))
            self._idle.append(thread)
            branch.done(branch.result)


def _widest_first(of_branches: list[tuple[Branch, Sequence[Tensor]]]) -> list[tuple[Branch, int, Tensor]]:
    """Return all branches' tensors, each with its branch and its place there, so that all are aligned in a frame."""
    found = [(branch, place, x) for branch, tensors in of_branches for place, x in enumerate(tensors)]
    return sorted(found, key=lambda each: -each[2].element_size())


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Return how many bytes tensors take in a frame."""
    return sum(x.numel() * x.element_size() for x in tensors)
