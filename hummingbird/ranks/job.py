"""Joining and leaving the job of ranks: a rank that leaves says why, and ranks that wait for it read the reason."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

import torch
import torch.distributed as dist

from hummingbird import records
from hummingbird.errors import EnvironmentProblem, HummingbirdError, PeerError
from hummingbird.ranks.elastic import warn_of_dynamic
from hummingbird.rpc.signals import Stop

TIMEOUT = 600.0  # seconds that a rank waits for the others
_GRACE = 10.0  # seconds for living ranks to say so, after a connection broke
_KILLED = "the system may have ended it, for memory or from outside: look at its host's log"


class Job:
    """A process among the ranks of a torchrun job, with the store in which each rank writes why it ends.

    timeout: seconds that it waits for another rank. here: its rank on this host, and the number of ranks on this host.
    """

    def __init__(self, rank: int, size: int, store: dist.Store, timeout: float) -> None:
        self.rank, self.size, self.timeout, self._store = rank, size, timeout, store
        self.here = int(os.environ.get("LOCAL_RANK", rank)), int(os.environ.get("LOCAL_WORLD_SIZE", size))

    def say(self, error: BaseException | None) -> None:
        """Write to the store that this rank ends, and why. error: the reason; None: the rank's program is over."""
        what, hint = "its program was over", ""
        if isinstance(error, HummingbirdError):
            what, hint = str(error).partition("\nhint: ")[0], error.hint
        elif error is not None:
            what = "interrupted" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}"
        with contextlib.suppress(RuntimeError):  # the store's host may have ended
            self._store.set(f"ended/{self.rank}", json.dumps([what, hint]))

    def has_said(self, rank: int) -> bool:
        """Wait some seconds for another rank to write why it ends; return whether it has."""
        try:
            self._store.wait([f"ended/{rank}"], datetime.timedelta(seconds=_GRACE))
        except RuntimeError:
            return False
        return True

    def lost(self, otherwise: str) -> PeerError:
        """Make the error for a broken connection: it names the rank that has ended, and the reason.

        otherwise: the reason to give if all ranks still run.
        """
        silent, told = [rank for rank in range(self.size) if rank != self.rank], ("", "")
        deadline = time.monotonic() + _GRACE
        try:
            self._store.set(f"lives/{self.rank}", "")
            while silent and not told[0] and time.monotonic() < deadline:
                for rank in tuple(silent):
                    if self._store.check([f"lives/{rank}"]):
                        silent.remove(rank)
                    elif self._store.check([f"ended/{rank}"]):
                        what, hint = records.read(self._store.get(f"ended/{rank}"), _REASON, name="reason")
                        told = f"rank {rank} of {self.size} ended: {what}", hint
                time.sleep(0.02)
        except RuntimeError:
            silent, otherwise = [], f"{otherwise}, and so did torchrun's store"
        if not told[0] and silent:
            names = ", ".join(map(str, silent))
            told = f"rank {names} of {self.size} ended without a word, or was silent for {self.timeout:g} s", _KILLED
        what, hint = told if told[0] else (otherwise, "")
        return PeerError(what, where=f"rank {self.rank}", hint=hint)


_REASON = records.row(records.text(1 << 20), records.text(1 << 20))
_job: Job | None = None
_jobs = 0  # jobs of this process so far; each has its own names in the store


@contextlib.contextmanager
def job(timeout: float = TIMEOUT) -> Iterator[Job | None]:
    """Join the ranks that torchrun has started, in a block in which they divide the work; yield None for a single rank.

    timeout: seconds to wait for another rank's message. Raises EnvironmentProblem for environment variables that are
    not torchrun's, PeerError for ranks that do not join within `TIMEOUT`. In the block, SIGTERM raises PeerError with
    the name of the rank that failed.
    """
    global _job, _jobs
    rank, size = _environment()
    if size == 1:
        yield None
        return
    warn_of_dynamic(stacklevel=4)  # at the line that enters the block
    meeting, wait = datetime.timedelta(seconds=TIMEOUT), datetime.timedelta(seconds=timeout)
    try:
        shared, _, _ = next(iter(dist.rendezvous("env://", rank, size, timeout=meeting)))
        # With `--max-restarts` the store survives, with addresses of processes that have ended.
        store = dist.PrefixStore(f"ranks/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{_jobs}", shared)
        store.set(f"here/{rank}", "")
        store.wait([f"here/{other}" for other in range(size)], meeting)
        dist.init_process_group(_backend(size), store=store, rank=rank, world_size=size, timeout=wait)
    except (RuntimeError, ValueError, OSError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        hint = "start as many ranks as torchrun was told, with addresses that all can reach"
        what = f"the {size} ranks did not meet within {TIMEOUT:g} s: {reason}"
        raise PeerError(what, where=f"rank {rank}", hint=hint) from None
    _jobs += 1
    joined = _job = Job(rank, size, store, timeout)
    try:
        with _signals(joined):
            try:
                yield joined
                joined.say(None)
            except BaseException as error:
                joined.say(error)
                raise
    finally:
        _job = None
        dist.destroy_process_group()


def _environment() -> tuple[int, int]:
    names = [os.environ.get(name, other) for name, other in (("RANK", "0"), ("WORLD_SIZE", "1"))]
    if not all(name.isdecimal() for name in names) or not int(names[0]) < int(names[1]):
        what = f"RANK={names[0]} and WORLD_SIZE={names[1]} are no rank and number of ranks"
        raise EnvironmentProblem(what, hint="start the ranks with torchrun")
    return int(names[0]), int(names[1])


def _backend(size: int) -> str:
    """Choose torch.distributed's backends: gloo for messages; NCCL for gradients, if each rank has its own GPU.

    size: the number of ranks.
    """
    own = torch.cuda.is_available() and int(os.environ.get("LOCAL_WORLD_SIZE", size)) <= torch.cuda.device_count()
    return "cpu:gloo,cuda:nccl" if own else "gloo"


@contextlib.contextmanager
def _signals(joined: Job) -> Iterator[None]:
    """Handle signals in this block: SIGTERM, by which torchrun ends the remaining ranks, raises an error.

    Ctrl-C comes from the terminal and again from torchrun; the second one is ignored, so that it does not disturb the
    clean-up. A rank that ends by an error ignores both signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupted(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    stop = Stop(lambda: joined.lost("this rank was told to stop (SIGTERM)"), then=signal.SIG_IGN)
    signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    except BaseException:
        before = dict.fromkeys(before, signal.SIG_IGN)
        raise
    finally:
        stop.close()
        for number, handler in before.items():
            signal.signal(number, handler)


# Ranks and their shares of the work ----------------------------------------------------------------------------------


def current() -> Job | None:
    """Return the `Job` that this process has joined, in a block of `job` with several ranks; else None."""
    return _job


def rank() -> int:
    """Return the number of this rank, from 0; 0 outside of a job."""
    return _job.rank if _job else 0


def size() -> int:
    """Return the number of ranks in the job; 1 outside of a job."""
    return _job.size if _job else 1


def first() -> bool:
    """Whether this is rank 0, which alone writes files."""
    return rank() == 0


def part(count: int) -> range:
    """Return the numbers of the batches that this rank runs, out of `count`."""
    return range(rank(), count, size())


def device(name: str) -> str:
    """Return the device that this rank uses: for "cuda" the GPU whose number is its rank on this host; else `name`."""
    if _job is None or name != "cuda" or not torch.cuda.is_available():
        return name
    card = _job.here[0] % torch.cuda.device_count()
    torch.cuda.set_device(card)  # NCCL uses the current one
    return f"cuda:{card}"
