"""Clients, servers and batches as files, to be loaded by another process: safetensors, which hold tensors and no code.

    client's file    the net's description and the seed of the secret key
    server's file    the net's description and the server's programs, with the weights
    batch's file     what a client keeps of a batch while it waits for an answer: plain values, no randomness

All have mode 0600. A file's metadata is a JSON record: kind, format, release, and a seal, the BLAKE2b digest of the
record and of all tensors, by which a damaged file is refused. The seal of a batch has a key, which follows from the
client's: nobody else can write such a file. The seal of a server's file has none: whoever writes the file chooses the
programs, as with weights. The reader checks their form, and the kernels check every index.

No file has anything for single use. Every encryption draws its randomness from the operating system, and none is saved:
two processes that load the same client or the same batch encrypt under different masks.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from hummingbird import disk, records
from hummingbird.errors import AgreementError, InputError
from hummingbird.graph import step_json
from hummingbird.he.runtime.client_spec import Public
from hummingbird.he.runtime.messages import BATCH_BYTES, FORMAT, checked_head
from hummingbird.he.runtime.operations import Form, Gather, Linear, Operation, Pick, Product, WeightedSum
from hummingbird.he.runtime.program import Plan, Program
from hummingbird.he.runtime.rounds import MOST_STEPS
from hummingbird.he.scheme.ckks import KEY_BYTES
from hummingbird.he.scheme.masking import Mask
from hummingbird.prg import derive
from hummingbird.records import field
from hummingbird.version import VERSION

CLIENT, SERVER, BATCH = "he-client", "he-server", "he-batch"
_SEAL = 16  # bytes
_NAME = 8  # bytes of a client's name
_OWN = "hummingbird"  # the entry of a file's metadata
_AGAIN = "copy it again from where it was saved, or save it again"
_MOST_SIZE = 1 << 31
_OPERATIONS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Linear, WeightedSum, Product, Pick)}
_H = TypeVar("_H")

_SIZE = records.whole(0, _MOST_SIZE)
_OPERATION = records.row(records.one_of(tuple(_OPERATIONS)), records.mapping(records.anything(), 16))
_DESCRIPTION = records.text(4 << 20)


@dataclass(frozen=True, kw_only=True)
class ClientHead:
    """The record in a client's file; its tensor `key` is the seed of the secret key, uint8 (32,)."""

    kind: str = records.constant(CLIENT)
    format: int = records.constant(FORMAT)
    release: str = records.constant(VERSION)
    public: str = field(_DESCRIPTION)
    seal: str = field(records.text(2 * _SEAL), default="")


@dataclass(frozen=True, kw_only=True)
class ProgramText:
    """A `Program` as JSON: an operation is its class and its fields, with names in place of tensors."""

    received: tuple[int, ...] = field(records.row(_SIZE, _SIZE, _SIZE))
    operations: tuple[tuple[Any, ...], ...] = field(records.many(_OPERATION, MOST_STEPS))
    returns: tuple[int, ...] = field(records.many(_SIZE, MOST_STEPS))
    masks: tuple[tuple[int, ...], ...] = field(records.many(records.row(_SIZE, _SIZE), MOST_STEPS))


@dataclass(frozen=True, kw_only=True)
class ServerHead:
    """The record in a server's file: the net's description for clients, and the programs.

    The file's tensors are those of the programs' operations, such as weights; their names are numbers.
    """

    kind: str = records.constant(SERVER)
    format: int = records.constant(FORMAT)
    release: str = records.constant(VERSION)
    public: str = field(_DESCRIPTION)
    programs: tuple[ProgramText, ...] = field(records.many(records.record(ProgramText), MOST_STEPS))
    seal: str = field(records.text(2 * _SEAL), default="")


@dataclass(frozen=True, kw_only=True)
class BatchHead:
    """The record in a file that holds a client's batch while it waits for an answer.

    The file's tensors are `scales`, `small` and `squares` (the chosen scales, the images with small values, and the
    errors so far), and the values of steps.
    client: the name of the client whose batch it is. batch: the random number that names it. turn: the turn whose
    answer is due. images: how many. first: number of the first image, for errors.
    values: for each step whose value is kept a pair: its number, and how many tensors are in it if it is a tuple, else
    0.
    """

    kind: str = records.constant(BATCH)
    format: int = records.constant(FORMAT)
    release: str = records.constant(VERSION)
    client: str = field(records.digits(_NAME))
    batch: str = field(records.digits(BATCH_BYTES))
    turn: int = field(records.whole(0, MOST_STEPS))
    images: int = field(records.whole(1, _MOST_SIZE))
    first: int = field(records.whole())
    values: tuple[tuple[int, ...], ...] = field(records.many(records.row(_SIZE, _SIZE), MOST_STEPS))
    seal: str = field(records.text(2 * _SEAL), default="")


def client_name(key: bytes) -> str:
    """Return the name of the client with this seed of a key, 16 hexadecimal digits; it says nothing about the seed."""
    return derive(key, "client", size=_NAME).hex()


def write_client(path: Path, public: Public, key: bytes) -> None:
    """Write a client's file. key: the seed of its secret key. Raises InputError if there is a file of this name."""
    if path.exists():
        raise InputError("the file is there already", where=str(path), hint="it may hold the only copy of a key")
    _write(path, ClientHead(public=public.to_json()), {"key": torch.tensor(list(key), dtype=torch.uint8)})


def read_client(path: Path) -> tuple[Public, bytes]:
    """Read a client's file; return the net's description and the seed of the secret key.

    Raises InputError for a missing or damaged file, and AgreementError for another kind or release.
    """
    head, tensors = _read(path, CLIENT, ClientHead)
    _check_seal(path, head, tensors)
    key = tensors.get("key", torch.empty(0))
    if key.dtype != torch.uint8 or key.shape != (KEY_BYTES,):
        raise InputError("no key", where=str(path), hint=_AGAIN)
    return Public.from_json(head.public), bytes(key.tolist())


def write_server(path: Path, public: Public, programs: tuple[Program, ...]) -> None:
    """Write a server's file; it replaces a file of this name."""
    tensors: dict[str, Tensor] = {}

    def name(tensor: Tensor) -> str:
        tensors[str(len(tensors))] = tensor
        return str(len(tensors) - 1)

    texts = tuple(
        ProgramText(
            received=_form(program.received),
            operations=tuple((type(op).__name__, _fields(op, name)) for op in program.operations),
            returns=program.returns,
            masks=tuple((mask.lift, mask.flood) for mask in program.masks),
        )
        for program in programs
    )
    _write(path, ServerHead(public=public.to_json(), programs=texts), tensors)


def read_server(path: Path) -> Plan:
    """Read a server's file; return the plan, without the lines of its report.

    Raises InputError for a missing or damaged file, and AgreementError for another kind or release.
    """
    head, tensors = _read(path, SERVER, ServerHead)
    _check_seal(path, head, tensors)
    public = Public.from_json(head.public)
    try:
        programs = tuple(_program(text, tensors) for text in head.programs)
        for program, turn in zip(programs, public.turns, strict=True):
            _check_program(program, public, turn.sent, len(turn.returns), turn.zero)
    except step_json.MALFORMED as error:
        what = f"no programs of a server: {type(error).__name__}: {str(error)[:200]}"
        raise InputError(what, where=str(path), hint=_AGAIN) from None
    return Plan(public, (), programs, (), "")


def write_batch(path: Path, head: BatchHead, tensors: Mapping[str, Tensor], key: bytes) -> None:
    """Write a batch's file; it replaces a file of this name. key: the seed of the client's secret key."""
    _write(path, head, tensors, derive(key, "batch"))


def read_batch(path: Path, key: bytes) -> tuple[BatchHead, dict[str, Tensor]]:
    """Read a batch's file; return its record and its tensors by name.

    key: the seed of the client's secret key. Raises InputError for a missing or damaged file, and AgreementError for
    another kind or release, and for the batch of another client.
    """
    head, tensors = _read(path, BATCH, BatchHead)
    if head.client != client_name(key):
        what = f"the batch is of client {head.client}, this is client {client_name(key)}"
        raise AgreementError(what, where=str(path), hint="load the client's file with which the batch was encrypted")
    _check_seal(path, head, tensors, derive(key, "batch"))
    return head, tensors


# The container --------------------------------------------------------------------------------------------------------


def _write(path: Path, head: Any, tensors: Mapping[str, Tensor], key: bytes = b"") -> None:
    content = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    sealed = replace(head, seal=_seal(head, content, key))
    try:
        disk.save(path, [save(content, {_OWN: records.write(sealed)})], mode=disk.PRIVATE)
    except OSError as error:
        hint = "name a file in a folder that can be written, on a disk with room"
        raise InputError(f"cannot write: {error.strerror or error}", where=str(path), hint=hint) from None


def _read(path: Path, kind: str, head: type[_H]) -> tuple[_H, dict[str, Tensor]]:
    """Read a file's record, of the class `head`, and its tensors by name; return both.

    kind: the kind of file that is expected, such as "he-client".
    The digest in the record, which shows damage, is not checked here. Raises InputError for a missing or damaged file,
    and AgreementError for another kind or release.
    """
    try:
        with safe_open(path, "pt") as file:
            text = (file.metadata() or {}).get(_OWN, "{}")
            found = checked_head(text, kind, head, str(path))
            return found, {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - no mapping
    except OSError as error:
        what = f"cannot read: {error.strerror or 'there is no such file'}"
        raise InputError(what, where=str(path), hint="is it the right name?") from None
    except (SafetensorError, RuntimeError, *step_json.MALFORMED) as error:
        raise InputError(f"not a whole file: {str(error)[:200]}", where=str(path), hint=_AGAIN) from None


def _seal(head: Any, tensors: Mapping[str, Tensor], key: bytes) -> str:
    """Compute the digest of a file's record and tensors, as hexadecimal digits, by which readers notice changes to the
    file.

    key: a secret, so that only its owner can compute the digest; b"" for a digest that anybody can compute.
    """
    digest = hashlib.blake2b(records.write(replace(head, seal=""), sort_keys=True).encode(), key=key, digest_size=_SEAL)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _check_seal(path: Path, head: Any, tensors: Mapping[str, Tensor], key: bytes = b"") -> None:
    if not hmac.compare_digest(head.seal.encode(), _seal(head, tensors, key).encode()):
        raise InputError("the file has changed since it was saved", where=str(path), hint=_AGAIN)


# Programs -------------------------------------------------------------------------------------------------------------


def _form(form: Form) -> tuple[int, int, int]:
    return form.count, form.size, form.primes


def _fields(operation: Operation, name: Any) -> dict[str, Any]:
    """Return an operation's fields as a dictionary of JSON values, with names in place of tensors.

    name: a function that gets a tensor and returns its name.
    """
    values = {part.name: getattr(operation, part.name) for part in fields(operation)}
    if isinstance(operation, Linear):
        values["gather"] = tuple(getattr(operation.gather, part.name) for part in fields(Gather))
    return {key: step_json.plain(value, name) for key, value in values.items()}


def _program(text: ProgramText, tensors: Mapping[str, Tensor]) -> Program:
    def operation(kind: str, attributes: dict[str, Any]) -> Any:
        values = {key: step_json.read(value, tensors.__getitem__) for key, value in attributes.items()}
        if kind == Linear.__name__:
            values["gather"] = Gather(*values["gather"])
        return _OPERATIONS[kind](**values)

    operations = tuple(operation(*entry) for entry in text.operations)
    return Program(Form(*text.received), operations, text.returns, tuple(Mask(*mask) for mask in text.masks))


def _check_program(program: Program, public: Public, sent: int, returned: int, zero: bool) -> None:
    """Raise ValueError unless a program of the server fits the turn that it is for.

    public: the net's description for clients. sent: number of ciphertexts that the client sends in this turn.
    returned: number of values that the server returns. zero: whether answers are masked; then each has a `Mask`.
    """
    if _form(program.received) != (sent, 2, len(public.parameters.primes)):
        raise ValueError(f"a program that receives {program.received}")
    for number, operation in enumerate(program.operations):
        if not all(type(source) is int and 0 <= source <= number for source in operation.sources):
            raise ValueError(f"operation {number} reads registers {operation.sources}")
    if len(program.returns) != returned or not all(0 < index <= len(program.operations) for index in program.returns):
        raise ValueError(f"a program that returns registers {program.returns}")
    if len(program.masks) != (returned if zero else 0):
        raise ValueError(f"{len(program.masks)} masks")
    program.forms()
