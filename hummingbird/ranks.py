"""Ranks: the processes that torchrun has started for one job, which split the work of one process.

    torchrun --nproc_per_node=4 --master_port=29500 -m hummingbird find-bits ...

They are not parties: all of them read the same net and the same data. Every rank runs the whole program and makes every
decision itself, from the same numbers. Only batches are divided: rank i mod size runs batch i, undivided like a single
process, as the last bits of a convolution depend on the number of images. Results are then put in the order of batches
(`joined`), and sums are computed over all of them, in that order. So the results are the same with any number of ranks.
Only gradients are summed elsewhere (commands/training.py).

Small messages go through gloo and the CPU. Before each, ranks compare its subject; if they differ, the error shows
both. Every wait ends after `TIMEOUT`. A rank that fails writes the reason to torchrun's store, where the others read
it. Without torchrun, or outside of `job`, there is one rank, and all functions here cost nothing.

    with ranks.job():
        bits = hummingbird.Study(net, images).search("8/64")

torchrun's rendezvous is static or dynamic. Dynamic (`--standalone`, no `--master-port`, or `--rdzv-backend=c10d`):
torchrun keeps its state as a pickle in a store that listens on all interfaces without a password, and loads it
repeatedly. Anybody who writes to the store runs code as the user of torchrun, so ranks and parties are warned, and
services refuse it. Static (`--master-port`): torchrun keeps plain text in its store, and loads no pickle.

`python -m hummingbird run` starts the parties of one host with a store on loopback that holds no pickle either.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hummingbird import records
from hummingbird.errors import AgreementError, EnvironmentProblem, HummingbirdError, PeerError, TrustError
from hummingbird.rpc.security import loopback, split
from hummingbird.rpc.signals import Stop

TIMEOUT = 600.0  # seconds that a rank waits for the others
_GRACE = 10.0  # seconds for living ranks to say so, after a connection broke
_KILLED = "the system may have ended it, for memory or from outside: look at its host's log"


# Joining and leaving a job: a rank that leaves says why, and ranks that wait for it read the reason ------------------


class Job:
    """This process's place in a torchrun job of several ranks, and the store through which ranks say why they end.

    rank, size: the number of this rank, and of all ranks. store: of the job, by torchrun. timeout: seconds that a rank
    waits for another. here: two numbers: this process's rank on this host, and the number of ranks on this host.
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
        """Wait some seconds until rank `rank` has written to the store why it ends; return whether it has."""
        try:
            self._store.wait([f"ended/{rank}"], datetime.timedelta(seconds=_GRACE))
        except RuntimeError:
            return False
        return True

    def lost(self, otherwise: str) -> PeerError:
        """Find out why a connection to other ranks broke; return a PeerError that names the rank which has ended.

        Waits some seconds until the other ranks have written to the store that they run or why they ended. otherwise:
        the reason to give if all ranks still run.
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
    """Return a context in which this process is one of the ranks that torchrun has started; its block gets the `Job`.

    With a single rank the block gets None. In the block the ranks divide the work (`part`, `joined`), and SIGTERM
    raises PeerError with the name of the rank that failed. timeout: seconds to wait for another rank's message. Raises
    EnvironmentProblem for environment variables that are not torchrun's, PeerError for ranks that do not join within
    `TIMEOUT`.
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
    """Return the name of torch.distributed's backend: gloo, with NCCL for GPU tensors if each rank here has a GPU.

    size: the number of all ranks.
    """
    own = torch.cuda.is_available() and int(os.environ.get("LOCAL_WORLD_SIZE", size)) <= torch.cuda.device_count()
    return "cpu:gloo,cuda:nccl" if own else "gloo"


@contextlib.contextmanager
def _signals(joined: Job) -> Iterator[None]:
    """Return a context that handles SIGTERM and SIGINT in the main thread of a rank.

    SIGTERM, by which torchrun ends the remaining ranks, raises PeerError with the name of the rank that failed. Ctrl-C
    comes from the terminal and again from torchrun: the first SIGINT raises KeyboardInterrupt, the second is ignored,
    so that it does not disturb the clean-up. After an error in the block both signals are ignored. joined: this rank's
    job.
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
    """Return the number of this process among the ranks of torchrun's job, from 0; 0 outside of a job."""
    return _job.rank if _job else 0


def size() -> int:
    """Return how many ranks torchrun's job has; 1 outside of a job."""
    return _job.size if _job else 1


def first() -> bool:
    """Return whether this process is rank 0 of its job, which alone writes files; True outside of a job."""
    return rank() == 0


def part(count: int) -> range:
    """Return the numbers of the batches that this rank runs, as a range; all ranks share 0 to count - 1."""
    return range(rank(), count, size())


def device(name: str) -> str:
    """Return the torch device that this rank uses.

    name: "cpu" or "cuda", for example. For "cuda" it is the GPU whose number is this process's rank on this host; for
    any other name, the device of that name.
    """
    if _job is None or name != "cuda" or not torch.cuda.is_available():
        return name
    card = _job.here[0] % torch.cuda.device_count()
    torch.cuda.set_device(card)  # NCCL uses the current one
    return f"cuda:{card}"


# Messages between ranks ----------------------------------------------------------------------------------------------

_FACTS = records.mapping(records.text(1 << 30), 1 << 16, 1 << 16)
_SHOWN = 80  # characters of a value in an error


def joined(run: Callable[[int], Tensor], rows: Sequence[int], like: Tensor) -> Tensor:
    """Return torch.cat([run(0), run(1), ...]) at every rank, on the CPU; each rank computes only some of the pieces.

    run: computes the piece with this number. rows: how many rows each piece has, in order. like: (0, ...), an empty
    tensor with the shape and type of a row. The result is exact, as each number is computed by one rank, and all others
    add 0.
    """
    if current() is None:
        return torch.cat([run(number) for number in range(len(rows))])
    shape = (sum(rows), *like.shape[1:])
    found = torch.zeros(shape, dtype=like.dtype)
    parts = found.split([*rows])
    for number in part(len(rows)):
        parts[number].copy_(run(number))
    agree(lambda: {"the tensor": f"{like.dtype} {shape} in {len(rows)} parts"})
    with together():
        dist.all_reduce(found)
    return found


def mean(values: Tensor) -> Tensor:
    """Return the mean of the tensors that the ranks pass, on the tensor's device; all ranks get the same bits.

    values: this rank's tensor; all ranks pass equal shapes.
    """
    if current() is None:
        return values
    every = joined(lambda _: values.detach().double().cpu()[None], [1] * size(), values[None][:0].double().cpu())
    return every.mean(0).to(values.device, values.dtype)


def told(make: Callable[[], bytes]) -> bytes:
    """Call `make`, which returns bytes, at rank 0 only; return its bytes at all ranks."""
    if current() is None:
        return make()
    content = make() if first() else b""
    length = torch.tensor([len(content)])
    with together():
        dist.broadcast(length, 0)
        sent = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
        sent = sent if first() else torch.empty(int(length), dtype=torch.uint8)
        if len(sent):
            dist.broadcast(sent, 0)
    return sent.numpy().tobytes()


def agree(facts: Callable[[], Mapping[str, Any]]) -> None:
    """Check that all ranks have the same facts; if not, every rank raises AgreementError, which names what differs.

    facts: returns a dict, such as each option's name and value, which are compared as text. It is called only if there
    are several ranks.
    """
    if current() is None:
        return
    text = json.dumps({name: str(value) for name, value in facts().items()}, sort_keys=True).encode()
    digests = _gathered(torch.frombuffer(bytearray(sha256(text).digest()), dtype=torch.uint8))
    if all(torch.equal(digest, digests[0]) for digest in digests):
        return
    lengths = [int(length) for length in _gathered(torch.tensor([len(text)]))]
    padded = torch.frombuffer(bytearray(text.ljust(max(lengths))), dtype=torch.uint8)
    told = [records.read(found.numpy().tobytes(), _FACTS, name="facts", most=1 << 30) for found in _gathered(padded)]
    different = []
    for name in sorted({name for one in told for name in one}):
        values = [one.get(name, "nothing") for one in told]
        other = next((number for number, value in enumerate(values) if value != values[0]), None)
        if other is not None:
            shown = [value if len(value) <= _SHOWN else f"{value[:_SHOWN]}..." for value in (values[0], values[other])]
            different.append(f"{name}: rank 0 has {shown[0]}, rank {other} has {shown[1]}")
    hint = "start all ranks with the same options, files and versions"
    raise AgreementError(f"the ranks differ in {'; '.join(different)}", where="ranks", hint=hint)


def _gathered(tensor: Tensor) -> list[Tensor]:
    found = [torch.empty_like(tensor) for _ in range(size())]
    with together():
        dist.all_gather(found, tensor)
    return found


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Return a context for calls in which ranks wait for each other, such as a broadcast.

    If the connection breaks in it, it raises PeerError, which says which rank has ended, and why.
    """
    try:
        yield
    except RuntimeError as error:
        job = current()
        if job is None or not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        reason = str(error).partition("\n")[0]
        raise job.lost(f"the connection between the ranks broke: {reason}") from None


# torchrun's dynamic rendezvous ---------------------------------------------------------------------------------------

DYNAMIC = "torchrun's dynamic rendezvous runs code, as this user, for anybody who reaches this host's ports"
DYNAMIC_HINT = (
    "on one host, `python -m hummingbird run --parties 2 -- SCRIPT.py`; on several, torchrun with "
    "--rdzv-backend=static --master-addr=HOST --master-port=29500 behind a firewall"
)
_REACH = 5.0  # seconds for an answer of the store
_NO_NAME = "none"  # torchrun's default for --rdzv-id


def dynamic() -> bool:
    """Return whether torchrun started this process with a dynamic rendezvous (as with `--standalone`).

    Such a rendezvous runs code for anybody who reaches this host's ports. A static torchrun is known by the entry that
    it makes for each rank in the store of its processes. TORCH_ELASTIC_WORKER_IDENTICAL=1 suppresses these entries; it
    is then known by its run id, which is torchrun's default. Also False if the store does not answer.
    """
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    if name is None:
        return False
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":  # a static one always sets it
        return True
    if os.environ.get("TORCH_ELASTIC_WORKER_IDENTICAL") == "1":
        return name != _NO_NAME
    try:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        socket.create_connection((host, port), timeout=_REACH).close()  # torch's own attempt would print warnings
        wait = datetime.timedelta(seconds=_REACH)
        store = dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=wait)
        return not dist.PrefixStore(name, store).check(["torchelastic/role_info/0"])
    except (KeyError, ValueError, OSError, RuntimeError):
        return False  # joining the others there will raise an error with a reason


def warn_of_dynamic(stacklevel: int = 2) -> None:
    """Warn if torchrun uses a dynamic rendezvous (`dynamic`), through which strangers may run code on this host.

    Only the first process of each host warns. stacklevel: for `warnings.warn`.
    """
    if os.environ.get("LOCAL_RANK", "0") == "0" and dynamic():
        warnings.warn(f"{DYNAMIC}: {DYNAMIC_HINT}", stacklevel=stacklevel)


def refuse_dynamic(listen: str) -> None:
    """Raise TrustError if torchrun uses a dynamic rendezvous (`dynamic`), through which strangers may run code here.

    Nothing is raised if all ranks are on this host and clients can come only from this host. listen: the address for
    clients.
    """
    local = listen.startswith("unix:") or loopback(split(listen)[0])
    together = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
    if not (local and together) and dynamic():
        raise TrustError(DYNAMIC, where=f"serve, with clients at {listen}", hint=DYNAMIC_HINT)
