"""Tables as servers hold them: records as bytes, their files, and the facts that both servers must share.

A record is a row's bytes as torch stores them; in a signed table the proof follows (`integrity`). Files are
two-dimensional .npy, and .safetensors. Both are mapped into memory, so a table may be larger than the free memory. The
safetensors header is read here: eight bytes of length, then JSON with names, types, shapes and offsets.

`Source.save` writes a prepared file: the records in the layout that the kernels read (kernels/lookups.py), and the
digests of all leaves. A server maps it and can answer at once, whatever the size; servers on one host share its pages.
"""

from __future__ import annotations

import json
import math
import os
import tokenize
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hummingbird import records
from hummingbird.errors import HummingbirdError, InputError
from hummingbird.kernels import lookups as kernel
from hummingbird.kernels.keywords import SEGMENTS
from hummingbird.kernels.lookups import LEAF_ROWS, MOST_ROWS, leaves_of, sliced_bytes
from hummingbird.pir.prepared import ALIGNED, DIGEST, OWN, PIECE, SlicedRecords, digest_of, save_prepared
from hummingbird.records import field

PROOF_BYTES = 8 + 64  # of a signed record: version, signature
MAX_RECORD = 1 << 20
_HEADER_LIMIT = 16 << 20
_NPY = b"\x93NUMPY"
_CHECKED = 4 << 20  # while a server answers beside it
# Errors that parsers raise for damaged bytes, including numpy's, which runs Python's tokenizer.
_DAMAGED = (
    *(ValueError, TypeError, KeyError, AttributeError, EOFError, OverflowError, MemoryError, RecursionError),
    *(SyntaxError, tokenize.TokenError),
)
_SAFE = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
}
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in _SAFE.values()}
_NUMPY = {name: dtype for name, dtype in DTYPES.items() if name != "bfloat16"}  # which numpy lacks


@dataclass(frozen=True)
class Facts:
    """The facts of a served table that updates do not change; both servers must have equal ones.

    rows: number of records. dim: number of values in a record. dtype: torch's name of the values' type, such as
    "float32". table_id: 32 hexadecimal digits for a table of signed records, else "".
    parts: how many rows a record holds, each with its own signature if records are signed. This is 1, or more for a
    table of a plan (pir/batching), whose records hold a row and its companions; `dim` counts the values of them all.
    keywords: 32 hexadecimal digits, the seed of the public hash, for a table by keyword (pir/keywords.py); its records
    begin with a tag, which `dim` counts, too. Else "".
    """

    rows: int = field(records.whole(1, MOST_ROWS))
    dim: int = field(records.whole(1, MAX_RECORD))
    dtype: str = field(records.one_of([*DTYPES]))
    table_id: str = field(records.text(32), missing=True, default="")
    parts: int = field(records.whole(1, MAX_RECORD), missing=True, default=1)
    keywords: str = field(records.text(32), missing=True, default="")

    def __post_init__(self) -> None:
        numbers = all(type(n) is int and n > 0 for n in (self.rows, self.dim, self.parts))
        numbers = numbers and not self.dim % self.parts
        ids = all(isinstance(text, str) and (not text or _is_hex(text)) for text in (self.table_id, self.keywords))
        whole = not self.keywords or (numbers and self.parts == 1 and not self.rows % SEGMENTS)
        if not numbers or self.dtype not in DTYPES or not ids or not whole:
            raise InputError(
                f"invalid facts of a table: {self.rows!r} rows of {self.dim!r}, {self.dtype!r}",
                where="pir.Facts",
                hint=f"at least one row and column, types: {', '.join(DTYPES)}",
            )
        if self.rows > MOST_ROWS or self.record_bytes > MAX_RECORD:
            hint = f"at most 2^40 rows and {MAX_RECORD} bytes in a record"
            raise InputError(f"{self.rows} rows of {self.dim} {self.dtype} are too large", where="pir.Facts", hint=hint)

    @property
    def row_bytes(self) -> int:
        """Size in bytes of a record without the owner's signatures."""
        return DTYPES[self.dtype].itemsize * self.dim

    @property
    def record_bytes(self) -> int:
        """Size in bytes of a record, which a server stores and sends for one row."""
        return self.row_bytes + (self.parts * PROOF_BYTES if self.table_id else 0)

    @property
    def domain(self) -> int:
        """Number of records among which one key selects: all, or those of a segment of a table by keyword."""
        return self.rows // SEGMENTS if self.keywords else self.rows

    @property
    def word_bits(self) -> int:
        """Number of bits of one value of the table.

        With the decoder `sum`, servers add records as words of this size.
        """
        return 8 * DTYPES[self.dtype].itemsize

    def text(self) -> str:
        """Return a text about the table for errors, such as `1,000 rows of 64 float32`."""
        extra = f" ({self.parts} rows in one)" if self.parts > 1 else ""
        extra += " signed" if self.table_id else ""
        extra += " by keyword" if self.keywords else ""
        return f"{self.rows:,} rows of {self.dim} {self.dtype}{extra}"


def _is_hex(text: str) -> bool:
    try:
        return len(bytes.fromhex(text)) == 16
    except ValueError:
        return False


@dataclass(frozen=True)
class State:
    """The state of a table, which every update changes.

    version: the number of updates so far. digest: of the table as it was loaded, and of all updates since.
    """

    version: int = field(records.whole())
    digest: bytes = field(records.hexadecimal(DIGEST))

    def after(self, digest: bytes) -> State:
        """Return the state that follows this one by an update. digest: SHA-256 of the update's message."""
        return State(self.version + 1, digest_of(self.digest, digest))


@dataclass(frozen=True)
class Source:
    """A table to serve, in memory or as a mapped file.

    facts: its facts. version: number of updates that it has had. records: uint8 (rows, record_bytes), an array, or the
    records of a prepared file. digests: of the leaves, as a prepared file has them, while its records are unchanged;
    None: to be computed. used: number of keywords of a table by keyword. history: the digest of the state that the
    servers had after these updates (`State`), for the owner of a table by keyword; b"": not known. local: whether the
    owner has changed it without the servers since.

    >>> source = pir.Source.of(table)
    >>> source.save("table.safetensors")
    >>> pir.Source.open("table.safetensors").facts == source.facts
    True
    """

    facts: Facts
    version: int
    records: np.ndarray | SlicedRecords
    digests: tuple[bytes, ...] | None = None
    used: int = 0
    history: bytes = b""
    local: bool = False

    @classmethod
    def of(cls, weight: Tensor | nn.Module) -> Source:
        """Make a Source of a tensor (rows, dim), an nn.Embedding or an nn.EmbeddingBag.

        It shares the memory of a contiguous weight on the CPU; other weights are copied. Raises InputError for anything
        else.
        """
        weight = weight.weight if isinstance(weight, (nn.Embedding, nn.EmbeddingBag)) else weight
        if not isinstance(weight, Tensor) or weight.dim() != 2 or weight.is_meta or weight.layout != torch.strided:
            hint = "give an nn.Embedding, an nn.EmbeddingBag or a dense tensor (rows, dim) that has data"
            raise InputError("this is no table", where="pir.Source.of", hint=hint)
        weight = weight.detach().cpu().contiguous()
        rows, dim = weight.shape
        facts = Facts(rows, dim, str(weight.dtype).removeprefix("torch."))
        return cls(facts, 0, weight.view(torch.uint8).reshape(facts.rows, facts.row_bytes).numpy())

    @classmethod
    def open(cls, path: str | os.PathLike[str], tensor: str | None = None) -> Source:
        """Open the table in a .npy or .safetensors file, which is mapped into memory; returns its Source.

        tensor: the table's name, if the file holds several. Raises InputError for a file that cannot be read or is no
        table.
        """
        path = Path(path)
        try:
            if path.suffix == ".npy":
                return _open_npy(path)
            if path.suffix == ".safetensors":
                return _open_safetensors(path, tensor)
        except HummingbirdError:
            raise
        except OSError as error:
            raise InputError(f"cannot read the table: {error.strerror or error}", where=str(path)) from None
        except _DAMAGED as error:
            raise InputError(f"not a table: {error}", where=str(path), hint="was it copied completely?") from None
        raise InputError("unknown kind of file", where=str(path), hint="tables are .npy or .safetensors files")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a prepared file, .safetensors, with records, digests, facts and version, completely or not at all.

        An existing file is replaced at the end, so a table can be saved to the file that it is mapped from. A record
        takes a multiple of 8 bytes. Raises InputError if the disk is full, or the file cannot be written.
        """
        domain, facts = self.facts.domain, self.facts
        tables = (
            kernel.Table.prepare(torch.from_numpy(np.ascontiguousarray(rows)))
            for first in range(0, facts.rows, domain)
            for _, rows in self.parts(first, first + domain)
        )
        own = {"version": self.version, "used": self.used, "history": self.history.hex(), "local": self.local}
        save_tables(Path(path), facts, tables, own)

    def mapped(self, first: int, last: int) -> kernel.Table | None:
        """Return records `first` to `last` - 1 of an unchanged prepared file as `SlicedRecords.table`, else None."""
        if self.digests is None or not isinstance(self.records, SlicedRecords):
            return None
        return self.records.table(first, last)

    def verify(self, ended: Callable[[], bool] = lambda: False) -> None:
        """Compare the records of a prepared file with its digests. ended: returns True to stop early.

        Raises InputError, naming the first rows that differ: the file is damaged. Nothing to do for other tables.
        """
        if self.digests is None or not isinstance(self.records, SlicedRecords):
            return
        for _ in replace(self, records=self.records.again()).parts(0, self.facts.rows, _CHECKED):
            if ended():
                return

    def parts(self, first: int, last: int, size: int = PIECE) -> Iterator[tuple[int, np.ndarray]]:
        """Yield rows `first` to `last` - 1 in pieces, as pairs: the number of a piece's first row, and the records of
        its rows.

        size: bytes of a piece, about. The records are uint8 (n, record_bytes); n is a multiple of 1024, the rows of a
        leaf, except in the last piece.
        """
        step = max(1, size // self.facts.record_bytes // LEAF_ROWS) * LEAF_ROWS
        for start in range(first, last, step):
            yield start, self.records[start : min(last, start + step)]


def save_tables(path: Path, facts: Facts, tables: Iterable[kernel.Table], own: dict[str, Any]) -> None:
    """Write a prepared file of a table's parts, as `prepared.save_prepared`.

    facts: of the table. tables: the parts in order. own: the other fields of its `Source`, for JSON.
    """
    text = json.dumps(own | records.plain(facts))
    save_prepared(path, (facts.rows, facts.record_bytes), facts.domain, text, tables)


def first_state(facts: Facts, version: int, digests: list[bytes]) -> State:
    """Compute the state (version and digest) of a table as it was loaded.

    version: that of its `Source`. digests: of all leaves of the table, which are blocks of 1024 rows, in order
    (`leaf_digests`).
    """
    # Without an empty "keywords", so that other tables keep the digests that they had before there was this field.
    words = {name: value for name, value in asdict(facts).items() if value or name != "keywords"}
    return State(version, digest_of(json.dumps(words, sort_keys=True).encode(), b"".join(digests)))


def _open_npy(path: Path) -> Source:
    with open(path, "rb") as file:
        if file.read(len(_NPY)) != _NPY:  # numpy would look for an archive, or for pickled objects
            raise ValueError("it does not begin as an array does")
    array: Any = np.load(path, mmap_mode="c", allow_pickle=False)  # "c": torch takes writable memory only
    name = array.dtype.name
    if array.ndim != 2 or name not in _NUMPY or not array.dtype.isnative or not array.flags.c_contiguous:
        what = f"an array of {array.dtype} with shape {array.shape}"
        hint = f"two dimensions, C order, this machine's byte order, types: {', '.join(_NUMPY)}"
        raise InputError(f"{what} is no table", where=str(path), hint=hint)
    rows, dim = array.shape
    facts = Facts(rows, dim, name)
    return Source(facts, 0, array.view(np.uint8).reshape(facts.rows, facts.row_bytes))


@dataclass(frozen=True)
class TensorEntry:
    """The entry for one tensor in the header of a safetensors file.

    dtype: its type, by the file format's name. shape: its shape. data_offsets: where its bytes begin and end.
    """

    dtype: str = field(records.text(16))
    shape: tuple[int, ...] = field(records.many(records.whole(), 64))
    data_offsets: tuple[int, int] = field(records.row(records.whole(), records.whole()))


_ENTRIES = records.mapping(records.anything(), 1 << 20, 1 << 16)
_TEXTS = records.mapping(records.text(_HEADER_LIMIT), 1 << 16, 1 << 16)
_COUNT = records.whole(0, (1 << 62) - 1)


def _open_safetensors(path: Path, tensor: str | None) -> Source:
    total, how = path.stat().st_size, dict[str, Any](where=str(path), hint="was it copied completely?")
    with open(path, "rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > min(_HEADER_LIMIT, total - 8):
            raise ValueError("its header is cut off")
        header = records.read(file.read(length), _ENTRIES, name="header", most=_HEADER_LIMIT, **how)
    metadata = records.of(header.pop("__metadata__", {}), _TEXTS, name="metadata", **how)
    if OWN in metadata and "sliced" in header and tensor in (None, "records"):
        return _open_prepared(path, records.read(metadata[OWN], _ENTRIES, name="metadata", **how), header, 8 + length)
    if tensor is None and len(header) != 1:
        hint = f"name one of: {', '.join(sorted(header))[:300]}"
        raise InputError(f"the file holds {len(header)} tensors", where=str(path), hint=hint)
    name = next(iter(header)) if tensor is None else tensor
    if name not in header:
        hint = f"it holds: {', '.join(sorted(header))[:300]}"
        raise InputError(f"no tensor {name!r} in the file", where=str(path), hint=hint)
    entry = records.of(header[name], TensorEntry, name="header", **how)
    dtype, shape, (begin, end) = entry.dtype, entry.shape, entry.data_offsets
    if dtype not in _SAFE or len(shape) != 2 or not all(shape):
        hint = f"two dimensions, types: {', '.join(_SAFE)}"
        what = f"tensor {name[:80]!r} of {str(dtype)[:20]} with shape {str([*shape])[:80]} is no table"
        raise InputError(what, where=str(path), hint=hint)
    size = math.prod(shape) * _SAFE[dtype].itemsize
    if end - begin != size or 8 + length + end > total:
        raise ValueError(f"tensor {name[:80]!r} is cut off, or its offsets do not fit its shape")
    version = 0
    if OWN in metadata and name == "records":
        fields = records.read(metadata[OWN], _ENTRIES, name="metadata", **how)
        version = records.of(fields.pop("version", None), _COUNT, name="version", **how)
        facts = records.of(fields, Facts, name="facts", **how)
        if shape != (facts.rows, facts.record_bytes):
            raise ValueError("its metadata does not fit its records")
        if facts.keywords:
            raise InputError("a table by keyword of another release", where=str(path), hint="make it again")
    else:
        facts = Facts(shape[0], shape[1], str(_SAFE[dtype]).removeprefix("torch."))
    mapped = np.memmap(path, np.uint8, "c", offset=8 + length + begin, shape=(facts.rows, facts.record_bytes))
    return Source(facts, version, mapped)


def _open_prepared(path: Path, fields: dict[str, Any], header: dict[str, Any], start: int) -> Source:
    """Open a prepared file. fields: its metadata. header: entries of its tensors. start: where their bytes begin."""
    how = dict[str, Any](where=str(path), hint="was it copied completely, and written by this release?")
    version, used = (records.of(fields.pop(name, None), _COUNT, name=name, **how) for name in ("version", "used"))
    history = records.of(fields.pop("history", None), records.text(2 * DIGEST), name="history", **how)
    local = records.of(fields.pop("local", None), records.flag(), name="local", **how)
    facts = records.of(fields, Facts, name="facts", **how)
    if history and not _is_hex(history):
        raise ValueError("its history is no digest")
    sliced, stored = (records.of(header.get(name), TensorEntry, name=name, **how) for name in ("sliced", "digests"))
    size = facts.rows // facts.domain * sliced_bytes(facts.domain, facts.record_bytes)
    leaves = leaves_of(facts.rows)
    shapes = (sliced.shape, stored.shape) == ((size,), (leaves, DIGEST))
    fit = sliced.data_offsets == (0, size) and stored.data_offsets == (size, size + leaves * DIGEST)
    if not shapes or not fit or start + size + leaves * DIGEST != path.stat().st_size or start % ALIGNED:
        raise ValueError("it is cut off, or its metadata does not fit its records")
    octets = np.fromfile(path, np.uint8, leaves * DIGEST, offset=start + size).tobytes()
    digests = tuple(octets[at : at + DIGEST] for at in range(0, len(octets), DIGEST))
    mapped = SlicedRecords(path, start, (facts.rows, facts.record_bytes), facts.domain, digests)
    return Source(facts, version, mapped, digests, used, bytes.fromhex(history), local)
