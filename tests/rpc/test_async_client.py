"""The loop of a process: results, errors, interrupts, and what would wait for itself."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from hummingbird.errors import InputError
from hummingbird.rpc import async_client
from tests.support import python
from tests.support.patience import HANG


async def answer(value: int) -> int:
    await asyncio.sleep(0)
    return value


def test_results_and_errors_are_the_coroutine_s() -> None:
    async def fail() -> None:
        raise ValueError("no")

    assert [async_client.run(answer(number)) for number in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="no"):
        async_client.run(fail())


def test_a_loop_that_would_wait_for_itself_says_so() -> None:
    async def outer() -> int:
        return async_client.run(answer(1))

    with pytest.raises(InputError, match="on the event loop that must answer it"):
        async_client.run(outer())
    assert asyncio.run(outer()) == 1  # another loop may wait for this one


def test_large_data_holds_up_no_other_coroutine() -> None:
    """A computation that waits for another coroutine ends only where that one runs meanwhile."""
    seen = threading.Event()

    async def both() -> bool:
        waiting = asyncio.ensure_future(async_client.compute(1 << 30, seen.wait, HANG))
        await asyncio.sleep(0)
        seen.set()
        return await waiting

    assert async_client.run(both())


def test_who_is_interrupted_cancels_the_coroutine() -> None:
    program = """
import asyncio, os, signal, threading
from hummingbird.rpc import async_client

ended = threading.Event()

async def wait():
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        ended.set()
        raise

try:
    async_client.run(wait())
except KeyboardInterrupt:
    print(ended.wait(60))
"""
    done = python.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG)
    assert (done.stdout, done.stderr, done.returncode) == ("True\n", "", 0)


def test_a_forked_process_has_a_loop_of_its_own() -> None:
    program = """
import asyncio, os
from hummingbird.rpc import async_client

async_client.run(asyncio.sleep(0))
child = os.fork()
async_client.run(asyncio.sleep(0))
if child:
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = python.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG)
    assert (done.stdout, done.stderr, done.returncode) == ("0\n", "", 0)
