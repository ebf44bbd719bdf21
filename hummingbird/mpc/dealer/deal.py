"""Dealing in advance: write the folders of a store, one per party and lane, from the list of a net's requests.

This does the work of an online dealer, but writes the corrections to the folders of their receivers. The seeds are
drawn here and kept nowhere else. Whoever holds two parties' folders can read everything that these parties compute from
them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from hummingbird import disk
from hummingbird.errors import InputError
from hummingbird.mpc.correlations.request import Request, corrections, received_by
from hummingbird.mpc.dealer.folder import (
    CHECKSUMS,
    CHUNK,
    CORRECTIONS,
    DEALER,
    LEDGER,
    SEED,
    Header,
    checksums_digest,
    chunk_checksum,
    hidden,
    kinds_of,
    lane_folder,
    places,
)
from hummingbird.prg import CIPHERS, new_seed
from hummingbird.slots import beginning, write_header


def deal(
    out: str | os.PathLike[str],
    *,
    setup: Sequence[Request[Any]],
    steps: Sequence[Sequence[Request[Any]]],
    shape: Sequence[int],
    slots: int,
    parties: int,
    facts: dict[str, str],
    lanes: int = 1,
    cipher: str = "aes-128-ctr",
    progress: Callable[[int], object] = lambda images: None,
) -> float:
    """Write a store into the folder `out`: out/party-P/lane-L for all parties and lanes; return the seconds of work.

    setup: the requests that a run makes once (`mpc.dry_run` finds these, and those of a slice).
    steps: the requests of each step of a slot. A slice is one step; a conversation is its steps, in order.
    shape: of the input of a slice, or of a conversation.
    slots: for how many slices, or conversations, each lane gets material; no two lanes share any.
    facts: what the net must be like, a text for each name (`store.material_facts`).
    cipher: the cipher that expands the seeds, one of `prg.CIPHERS`. Parties on any device can use both. With chacha20
        the parties' GPUs expand the seeds, and this host's GPU computes the corrections, if there are any.
    progress: called after every slot with its number of images, and with 0 after the setup, and after each step before
        a slot's last one.

    Raises InputError if the folder is not empty, and OSError with ENOSPC, before it writes anything, if the disk has no
    room. If it fails or is interrupted, it leaves nothing behind.
    """
    root = Path(out)
    if root.exists() and any(root.iterdir()):
        raise InputError("the folder is not empty", where=str(root), hint="each store gets a folder of its own")
    if missing := _missing(root, size_of(setup, steps, slots, parties, lanes)):
        raise OSError(errno.ENOSPC, missing, str(root))
    there = root.exists()
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        return _deal(root, setup, steps, shape, slots, parties, facts, lanes, cipher, progress)
    except BaseException:
        for folder in root.glob("party-*") if there else [root]:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def size_of(
    setup: Sequence[Request[Any]], steps: Sequence[Sequence[Request[Any]]], slots: int, parties: int, lanes: int
) -> int:
    """Return the size of a store's corrections in bytes, for all parties and lanes.

    setup, steps: the requests that a run makes once, and those of each step of a slot. slots: their number, for each
    lane.
    """

    def region(requests: Sequence[Request[Any]]) -> int:
        return sum(places(received_by(rank, parties, requests))[1] for rank in range(parties))

    kinds, order = kinds_of(steps)
    sizes = [region(requests) for requests in kinds]
    return lanes * (region(setup) + slots * sum(sizes[kind] for kind in order))


def _missing(root: Path, size: int) -> str:
    """Return a message if the disk of the folder `root` has no room for a store of `size` bytes, else ""."""
    folder = next(path for path in (root.absolute(), *root.absolute().parents) if path.exists())
    free = shutil.disk_usage(folder).free
    return "" if size <= free else f"the store takes {size / 1e6:,.1f} MB, and {free / 1e6:,.1f} MB are free"


def _deal(
    root: Path,
    setup: Sequence[Request[Any]],
    steps: Sequence[Sequence[Request[Any]]],
    shape: Sequence[int],
    slots: int,
    parties: int,
    facts: dict[str, str],
    lanes: int,
    cipher: str,
    progress: Callable[[int], object],
) -> float:
    """Write a store into the folder `root`, one folder for each lane and party; return the seconds of work.

    `deal` calls this function with its own arguments, once the disk is known to have room.
    setup, steps: the requests that a run makes once, and those of each step of a slot.
    shape: of the input of a slice, or of a conversation.
    slots: for how many slices, or conversations, each lane gets material.
    facts: what the net must be like, a text for each name.
    cipher: the cipher that expands the seeds, one of `prg.CIPHERS`.
    progress: as `deal` takes it.
    """
    folders = [[lane_folder(root, rank, lane) for rank in range(parties)] for lane in range(lanes)]
    seeds = [[new_seed(CIPHERS[cipher]) for _ in range(parties)] for _ in range(lanes)]
    for rank in range(parties):
        folders[0][rank].parent.mkdir(mode=0o700)
    for folder, seed in zip(chain(*folders), chain(*seeds), strict=True):  # an unfinished lane has no header
        folder.mkdir(mode=0o700)
        disk.create(folder / SEED, [seed], mode=disk.PRIVATE)
    kinds, order = kinds_of(steps)
    header = Header(
        "", 0, parties, 0, lanes, dict(facts), tuple(shape), slots, tuple(setup), kinds, order, 0.0, "", DEALER
    )
    return sum(
        _deal_lane(mine, theirs, replace(header, lane=lane, set_id=secrets.token_hex(16)), progress)
        for lane, (mine, theirs) in enumerate(zip(folders, seeds, strict=True))
    )


def _deal_lane(
    folders: Sequence[Path], seeds: Sequence[bytes], header: Header, progress: Callable[[int], object]
) -> float:
    """Write the material of one lane into its folders, one for each party; return the seconds of work.

    folders, seeds: of the parties, by rank.
    header: of the lane; its rank, seconds and checksums are filled in here.
    progress: as `deal` takes it.
    """
    started = time.perf_counter()
    device = "cuda" if len(seeds[0]) == CIPHERS["chacha20"] and torch.cuda.is_available() else "cpu"
    headers = [replace(header, rank=rank) for rank in range(header.parties)]
    with contextlib.ExitStack() as files:
        opened = [files.enter_context(disk.opened(folder / CORRECTIONS, mode=disk.PRIVATE)) for folder in folders]
        writers = [SetWriter(*of_party) for of_party in zip(opened, seeds, headers, strict=True)]
        for region in header.regions:
            for writer in writers:
                writer.begin(region)
            for turn, request in zip(header.turns(region), header.requests(region), strict=True):
                writers[turn.receiver].add(corrections(request, turn, seeds, device))
            for writer in writers:
                writer.end()
            progress(header.shape[0] if region and region % len(header.order) == 0 else 0)
        for file in opened:
            disk.flush(file)
    seconds = time.perf_counter() - started
    for folder, writer in zip(folders, writers, strict=True):
        writer.finish(folder, seconds)
    return seconds


class SetWriter:
    """Writer of the file of one party's corrections: a region for the setup, then one for each step of each slot.

    It divides each region into chunks of 8 MiB, and adds a checksum for each to the list `checksums`.
    file: the file, open for writing.
    seed: the party's, from which the checksums' keys follow.
    header: the party's, for this lane.
    """

    def __init__(self, file: BinaryIO, seed: bytes, header: Header) -> None:
        self._file, self._seed, self._header = file, seed, header
        self._buffer = torch.empty(CHUNK, dtype=torch.uint8)
        self._fill = 0
        self.checksums: list[bytes] = []

    def begin(self, region: int) -> None:
        """Begin a region of the file of corrections. region: its number (`Header.region`), 0 for the setup."""
        found, self._size = self._header.places_of(region)
        self._left, self._at = iter(found), 0

    def add(self, made: Sequence[Tensor]) -> None:
        """Write the corrections of the region's next request, one of those whose corrections go to this party.

        made: one tensor for each of the request's `folder.stored_fields`, in the form of a message.
        """
        for (start, _, _), tensor in zip(next(self._left), made, strict=True):
            self._append(torch.zeros(start - self._at, dtype=torch.uint8))
            self._append(tensor.cpu().contiguous().view(-1).view(torch.uint8))
            self._at = start + tensor.nbytes

    def end(self) -> None:
        """Fill the rest of the region with zeros, and write it to the file."""
        self._append(torch.zeros(self._size - self._at, dtype=torch.uint8))
        self._write()

    def finish(self, folder: Path, seconds: float) -> None:
        """Write the checksums, the ledger and the header; the corrections and the seed are on the disk already.

        seconds: of work on the lane.
        """
        checksums = b"".join(self.checksums)
        disk.create(folder / CHECKSUMS, [checksums], mode=disk.PRIVATE)
        disk.create(folder / LEDGER, [beginning(self._header.set_id)], mode=disk.PRIVATE)
        done = replace(self._header, seconds=seconds, checksums=checksums_digest(checksums))
        write_header(folder, done, self._seed)

    def _append(self, data: Tensor) -> None:
        done = 0
        while done < data.numel():
            count = min(CHUNK - self._fill, data.numel() - done)
            self._buffer[self._fill : self._fill + count] = data[done : done + count]
            self._fill, done = self._fill + count, done + count
            if self._fill == CHUNK:
                self._write()

    def _write(self) -> None:
        if self._fill:
            view: bytes | memoryview = self._buffer.numpy().data[: self._fill]
            if self._header.whole:
                view = hidden(self._seed, len(self.checksums), view)
            self.checksums.append(chunk_checksum(self._seed, len(self.checksums), [view]))
            self._file.write(view)
            self._fill = 0
