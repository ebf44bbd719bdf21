"""A session's folder at one of the two sides: its secrets, and a file for every slot, the material of one image.

    FOLDER/            mode 0700
      header.json      side, session, the plan to which it is bound (digest of net, windows and weights), and
                       at the model's side its client
      seed             16 bytes, mode 0600; this side derives the randomness of all slots from it
      material         this side's results of the set-up (base OTs, keys), a frame of tensors
      dealt, used      two ledgers (hummingbird/slots.py)
      slot-NUMBER      a slot that is ready, a frame of tensors

A slot's number determines the numbers of its OTs, tiles and masks, so it must never be dealt or answered twice. Each
side marks it in `dealt` before its first offline byte, and in `used` before its first online byte. A slot whose dealing
was interrupted is in `dealt` and has no file: it is burned, and a retry takes the next one. A slot's file is removed
once its mark in `used` is on the disk. The files of material and slots end with a Poly1305 tag, each under its own key
derived from the seed: damage is an error.
"""

from __future__ import annotations

import errno
import hmac
import mmap
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives.poly1305 import Poly1305
from torch import Tensor

from hummingbird import disk, records, slots
from hummingbird.errors import DiskError, HummingbirdError, StoreError
from hummingbird.prg import SEED_BYTES, derive
from hummingbird.records import field
from hummingbird.rpc.frame import pack_tensors, unpack_tensors
from hummingbird.slots import HEADER, SEED, Ledger
from hummingbird.version import VERSION

FORMAT, FORMAT_VERSION = "hummingbird two-party store", 2
MATERIAL, DEALT, USED, SLOT = "material", "dealt", "used", "slot-"
MAX_SLOTS = 1 << 20  # of a session; then its numbers are used up, and a new session is needed
_MAC = 16  # bytes
_MOST = 64 << 30  # bytes of a slot's file
_TENSORS = 1 << 20
_NEW = "remove the folder, and prepare again: a new session begins"


class SlotError(StoreError):
    """Raised if a slot cannot be used, because it is damaged or was never ready. Another slot may serve."""


@dataclass(frozen=True)
class Header:
    """The header file of a session's folder, at one of the two sides.

    side: "data" or "model". session: name of the session, 32 hexadecimal digits, the same at both sides. plan: digest
    to which the session is bound. owner: at the model's side the name of the client that began the session; empty
    without a name, and at the data's side.
    """

    side: str = field(records.one_of(("data", "model")))
    session: str = field(records.digits(16))
    plan: str = field(records.text(128))
    owner: str = field(records.text(1024), default="")
    format: str = records.constant(FORMAT)
    format_version: int = records.constant(FORMAT_VERSION)
    hummingbird_version: str = records.constant(VERSION)


class Store:
    """The folder of a session at one side, with its slots; locked for this process, safe for several threads.

    `create` makes a new one. Raises StoreError if the folder is damaged, full, in use, of another release, or used up.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.header, self.seed = _read_header(folder)
        self._lock = threading.Lock()
        self._dealt = Ledger(folder / DEALT, self.header.session, StoreError)
        try:
            self._used = Ledger(folder / USED, self.header.session, StoreError)
            try:
                self.material = self._read(folder / MATERIAL, "material", 0)
                self._ready = self._leftovers()
            except BaseException:
                self._used.close()
                raise
        except BaseException:
            self._dealt.close()
            raise

    @classmethod
    def create(cls, folder: Path, header: Header, seed: bytes, material: Sequence[Tensor]) -> Store:
        """Make a new session's folder, complete or not at all.

        seed: the seed from which all randomness of this side follows. material: this side's results of the set-up.
        Raises DiskError if the folder cannot be written, StoreError if it holds a session already.
        """
        if (folder / HEADER).exists():
            raise StoreError("there is a session already", where=str(folder), hint=_NEW)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in (f"{HEADER}.new", SEED, MATERIAL, DEALT, USED):
                (folder / name).unlink(missing_ok=True)  # of a session whose set-up was interrupted
            write = partial(disk.save, mode=disk.PRIVATE)
            write(folder / SEED, [seed])
            body = pack_tensors(material)
            write(folder / MATERIAL, [body, _mac(seed, "material", 0, body)])
            for name in (DEALT, USED):
                write(folder / name, [slots.beginning(header.session)])
            slots.write_header(folder, header, seed)
        except OSError as error:
            raise _unwritable(error, folder) from None
        return cls(folder)

    @property
    def ready(self) -> list[int]:
        """The numbers of the slots that are ready, in order."""
        with self._lock:
            return sorted(self._ready)

    @property
    def first(self) -> int:
        """The number of the first slot that is ready, or, without any, of the slot that will be dealt next.

        No slot before it will be used any more.
        """
        with self._lock:
            return min(self._ready, default=self._dealt.next)

    @property
    def bytes(self) -> int:
        """Number of bytes of all ready slots."""
        with self._lock:
            return sum(self._ready.values())

    def deal(self, slot: int | None = None) -> int:
        """Mark a slot as dealt, by default the next one; returns its number.

        The mark is on the disk when this returns. So the slot is never dealt twice, even after a crash.
        """
        with self._lock:
            number = self._dealt.next if slot is None else slot
            if not 0 <= number < MAX_SLOTS:
                raise StoreError(f"slot {number} of {MAX_SLOTS}: used up", where=str(self.folder), hint=_NEW)
            self._dealt.use(number)
            return number

    def keep(self, slot: int, tensors: Sequence[Tensor]) -> None:
        """Write the contents of a dealt slot, completely or not at all; then the slot is ready."""
        body = pack_tensors(tensors)
        try:
            size = disk.save(self._path(slot), [body, _mac(self.seed, SLOT, slot, body)], mode=disk.PRIVATE)
        except OSError as error:
            raise _unwritable(error, self.folder) from None
        with self._lock:
            self._ready[slot] = size

    def use(self, slot: int | None = None) -> tuple[int, list[Tensor]]:
        """Mark a slot as used, by default the first ready one; returns its number and contents, which are then removed.

        Raises SlotError if the slot is damaged or not ready, StoreError if no slot is ready.
        """
        with self._lock:
            if slot is None:
                slot = min(self._ready, default=None)
            if slot is None:
                raise StoreError("no slot is ready", where=str(self.folder), hint="prepare some first")
            if slot not in self._ready:
                what = f"slot {slot} is not ready: not dealt completely, or used"
                raise SlotError(what, where=str(self.folder), hint="the other side uses its next slot")
            del self._ready[slot]
            self._used.use(slot)
        path = self._path(slot)
        try:
            return slot, self._read(path, SLOT, slot)
        except StoreError as error:
            hint = "the slot is burned: the next one serves"
            raise SlotError(error.what, where=str(path), hint=hint) from None
        finally:
            path.unlink(missing_ok=True)

    def discard(self, slot: int) -> None:
        """Make slot number `slot` unusable at this side, because the other side does not have it."""
        with self._lock:
            if self._ready.pop(slot, None) is None:
                return
            self._used.use(slot)
        self._path(slot).unlink(missing_ok=True)

    def discard_before(self, first: int) -> None:
        """Make all slots before slot `first` unusable, because the other side will not use them."""
        for slot in self.ready:
            if slot < first:
                self.discard(slot)

    def close(self) -> None:
        """Release the lock on the folder."""
        self._dealt.close()
        self._used.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _path(self, slot: int) -> Path:
        return self.folder / f"{SLOT}{slot:07d}"

    def _leftovers(self) -> dict[int, int]:
        """Remove files of slots that are not ready, which a crash may have left; return the sizes of the ready slots.

        The sizes are in bytes, by number of the slot.
        """
        found = {}
        for path in self.folder.glob(f"{SLOT}*"):
            number = path.name.removeprefix(SLOT)
            if number.isdecimal() and self._used.next <= int(number) < self._dealt.next:
                found[int(number)] = path.stat().st_size
            else:
                path.unlink(missing_ok=True)
        return found

    def _read(self, path: Path, purpose: str, number: int) -> list[Tensor]:
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                # Copy-on-write: tensors share the mapped memory, even after the file is removed.
                data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)) if size else memoryview(b"")
        except OSError as error:
            raise StoreError(f"{path.name} cannot be read: {error.strerror}", where=str(path), hint=_NEW) from None
        body = data[: max(0, size - _MAC)]
        if not hmac.compare_digest(_mac(self.seed, purpose, number, body), bytes(data[len(body) :])):
            raise StoreError(f"{path.name} is damaged (wrong checksum)", where=str(path), hint=_NEW)
        return unpack_tensors(body, max_bytes=_MOST, max_tensors=_TENSORS)


def there_is(folder: Path) -> bool:
    """Return whether the folder holds a session."""
    return (folder / HEADER).is_file()


def owner_of(folder: Path) -> str:
    """Return the owner of the session in a folder, as in `Header`; empty if the header cannot be read."""
    try:
        return _read_header(folder)[0].owner
    except StoreError:
        return ""


def slots_of(folder: Path) -> list[int]:
    """List the sizes in bytes of the slot files in a session's folder. The session need not be open."""
    return [path.stat().st_size for path in folder.glob(f"{SLOT}*")]


def _mac(seed: bytes, purpose: str, number: int, data: bytes | memoryview) -> bytes:
    state = Poly1305(derive(seed, "store", purpose, number, size=32))
    state.update(data)
    return state.finalize()


def _unwritable(error: OSError, folder: Path) -> HummingbirdError:
    hint = "make room, and run again" if error.errno == errno.ENOSPC else "name a folder that can be written"
    return DiskError(f"the store cannot be written: {error.strerror}", where=str(folder), hint=hint)


def _read_header(folder: Path) -> tuple[Header, bytes]:
    if not there_is(folder):
        raise StoreError("there is no session here", where=str(folder), hint="prepare one first")
    return slots.read_header(folder, Header, (SEED_BYTES,), _NEW, _NEW, StoreError)
