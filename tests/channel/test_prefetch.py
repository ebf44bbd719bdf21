"""Items made ahead of their reader: order, the bound on their number, errors, waiting, an end with the owner."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from hummingbird.channel.prefetch import Prefetch
from tests.support.patience import HANG


def test_items_come_in_order_then_the_error() -> None:
    def numbers() -> Iterator[int]:
        yield from range(5)
        raise KeyError("done")

    with Prefetch(numbers(), 2) as items:
        assert [items.next(HANG) for _ in range(5)] == list(range(5))
        with pytest.raises(KeyError):
            items.next(HANG)


def test_a_loop_reads_all_items_and_raises_the_error() -> None:
    def numbers() -> Iterator[int]:
        yield from range(5)
        raise KeyError("done")

    seen = []
    with Prefetch(numbers(), 2) as items, pytest.raises(KeyError):
        for item in items:
            seen.append(item)
    assert seen == list(range(5))


def test_a_reader_waits_as_long_as_it_says() -> None:
    block = threading.Event()
    with Prefetch((block.wait(HANG) for _ in range(3)), 2, block.set) as items:
        with pytest.raises(TimeoutError):
            items.next(0.05)


def test_nothing_follows_the_last_item() -> None:
    with Prefetch(iter([1]), 2) as items:
        assert (items.next(HANG), items.next(HANG)) == (1, None)


def test_no_more_are_made_than_may_wait() -> None:
    made: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    with Prefetch(numbers(), 3) as items:
        time.sleep(0.3)
        assert len(made) <= 4  # three wait, one is in the thread's hands
        assert items.next(HANG) == 0
    assert len(made) <= 5 and not items._thread.is_alive()
