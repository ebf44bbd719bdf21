"""Messages between ranks: results in the order of batches, means, bytes from rank 0, and agreement."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hummingbird import records
from hummingbird.errors import AgreementError
from hummingbird.ranks.job import current, first, part, size

_FACTS = records.mapping(records.text(1 << 30), 1 << 16, 1 << 16)
_SHOWN = 80  # characters of a value in an error


def joined(run: Callable[[int], Tensor], rows: Sequence[int], like: Tensor) -> Tensor:
    """Compute torch.cat of run(0), run(1), ... on the CPU: each rank runs some of them, and all ranks get the result.

    rows: how many rows each piece has. like: (0, ...), with the shape and type of a row. The result is exact, as each
    number is computed by one rank, and all others add 0.
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
    """Compute the mean of the ranks' tensors, which have equal shapes, on their device; all ranks get the same bits."""
    if current() is None:
        return values
    every = joined(lambda _: values.detach().double().cpu()[None], [1] * size(), values[None][:0].double().cpu())
    return every.mean(0).to(values.device, values.dtype)


def told(make: Callable[[], bytes]) -> bytes:
    """Call `make` at rank 0 only, and return its bytes at all ranks."""
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
    """Compare facts between all ranks; if they differ, all ranks raise AgreementError, which shows both values.

    facts: makes a dict of names and values, such as options.
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
    """A context in which ranks wait for each other: a broken connection raises PeerError, with the rank that ended."""
    try:
        yield
    except RuntimeError as error:
        job = current()
        if job is None or not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        reason = str(error).partition("\n")[0]
        raise job.lost(f"the connection between the ranks broke: {reason}") from None
