"""An iterator that a thread reads a few items ahead of its consumer, so that transport and computation overlap.

The consumer sets how many items may wait, which bounds memory, and how long it waits for one, which a gRPC stream
alone does not offer. An error of the iterator is raised in the consumer, and the thread ends with its owner.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from hummingbird.kernels.devices import on_this_card

Item = TypeVar("Item")
_POLL = 0.2  # seconds between two checks whether the reader has closed


class Prefetch(Generic[Item]):
    """A thread that reads items from an iterator in advance, and keeps them until its owner calls `next`.

    As a context manager it is closed at the end of its block. items: the iterator. depth: how many items may wait to be
    taken. cancel: a function, called by `close`, that ends the iterator even while it waits for its next item.

        with Prefetch(stream, 4, stream.cancel) as items:
            while (item := items.next(60.0)) is not None: ...
    """

    def __init__(self, items: Iterator[Item], depth: int, cancel: Callable[[], object] = lambda: None) -> None:
        self._items, self._cancel = items, cancel
        self._queue: queue.Queue[tuple[Item | None, BaseException | None]] = queue.Queue(depth)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=on_this_card(self._run), name="hummingbird-prefetch", daemon=True)
        self._thread.start()

    def next(self, timeout: float | None = None) -> Item | None:
        """Return the next item, None after the last one.

        Raises TimeoutError after `timeout` seconds without an item (None: no limit). If the iterator has raised an
        error, the items before it are returned first, then the error is raised.
        """
        try:
            item, error = self._queue.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError from None
        if error is not None:
            raise error
        return item

    def __iter__(self) -> Iterator[Item]:
        while (item := self.next()) is not None:
            yield item

    def close(self) -> None:
        """Stop this thread: it reads no further items, and ends after the item that it is reading. Calls `cancel`."""
        self._closed.set()
        self._cancel()

    def __enter__(self) -> Prefetch[Item]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._thread.join()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait((None, None))  # for another thread that reads

    def _run(self) -> None:
        try:
            for item in self._items:
                if not self._put(item, None):
                    return
            self._put(None, None)
        except BaseException as error:  # raised by `next` in the reader
            self._put(None, error)

    def _put(self, item: Item | None, error: BaseException | None) -> bool:
        while not self._closed.is_set():
            try:
                self._queue.put((item, error), timeout=_POLL)
                return True
            except queue.Full:
                continue
        return False
