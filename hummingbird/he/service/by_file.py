"""Encrypted inference through files: any number of images in one file of requests, their answers in one file.

    encrypt_to(client, images, "request", "batches")     # the client: ciphertexts for the server, batches for itself
    evaluate_to(server, "request", "answer")             # the server, which has neither key nor images
    result = decrypt_from(client, "batches", "answer")   # the client again

A file of requests is one request after another (he/runtime/messages.py), each for at most `public.slots` images; a file
of answers has their answers in the same order. Their lengths follow from the net's description, so a file needs no
table of contents, and a file that was cut is refused. The folder of batches has a file for each request
(he/runtime/files.py), with the images in the clear.

One exchange is all that files are for, so the net has one turn, as in polynomial mode.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from hummingbird import disk
from hummingbird.errors import AgreementError, ConfigError, HummingbirdError, InputError
from hummingbird.he.runtime import messages
from hummingbird.he.runtime.client import Client
from hummingbird.he.runtime.client_spec import Public
from hummingbird.he.runtime.precision import LEAST, Precision
from hummingbird.he.runtime.server import Server

_BATCH = "{:06}.batch"
_PRIVATE_FOLDER = 0o700
_AGAIN = "was it copied completely? is it the file of this net?"


@dataclass(frozen=True)
class Decrypted:
    """The results of a net for all images, their number, and the precision of each batch, from `decrypt_from`."""

    outputs: Any
    images: int
    precision: list[Precision]


def check_turns(public: Public, where: str) -> None:
    """Raise ConfigError unless one exchange is enough for the net. where: the file that the net is from."""
    if len(public.turns) != 1:
        what = f"this net has {len(public.turns)} turns, and files carry one"
        raise ConfigError(what, where=where, hint="convert it in polynomial mode, or use he-server and he-client")


def encrypt_to(client: Client, images: Tensor, requests: Path, batches: Path) -> int:
    """Encrypt images to a file of requests for the server; return its size in bytes.

    images: float (n, *input_shape), n >= 1. requests: the file; a file of this name is replaced.
    batches: a folder, made with mode 0700 if missing, for the batches that `decrypt_from` needs: files of mode 0600
    that have the images in the clear. If this fails, no batch is left there.
    Raises InputError for images that the net does not take, for a folder that holds batches already, and for files that
    cannot be written; ConfigError for a net of several turns.
    """
    check_turns(client.public, "client")
    waiting = client.batches(images)  # all are checked before the first is encrypted
    with _written(batches):
        batches.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
        kept = _batches_in(batches)
    if kept:
        hint = "decrypt their answers, then remove the folder, or name another one"
        raise InputError(f"the folder has {len(kept)} batches already", where=str(batches), hint=hint)

    def pieces() -> Iterator[bytes]:
        for number, batch in enumerate(waiting):
            request = batch.request()
            batch.save(batches / _BATCH.format(number))
            yield request

    try:
        return _save(requests, pieces())
    except BaseException:  # batches without requests would be in the way of the next call
        for path in _batches_in(batches):
            path.unlink(missing_ok=True)
        raise


def evaluate_to(server: Server, requests: Path, answers: Path) -> int:
    """Compute the answers to a file of requests, and write them to a file; return the number of requests.

    Every request's head and length is checked before the first is computed. answers: a file of this name is replaced.
    Raises AgreementError for requests of another net or release, InputError for a file that holds anything else, and
    for files that cannot be read or written; ConfigError for a net of several turns.
    """
    check_turns(server.public, "server")
    kind = messages.REQUEST
    count = _count(requests, kind, server.public)
    found = zip(range(count), _messages(requests, kind, server.public), strict=False)

    def pieces() -> Iterator[bytes]:
        for number, request in found:
            with _at(requests, number, count):
                answer = server.answer(request)
            yield answer

    _save(answers, pieces())
    return count


def decrypt_from(client: Client, batches: Path, answers: Path) -> Decrypted:
    """Decrypt a file of answers; return the net's results for all images, in the structure that the net returns.

    batches: the folder that `encrypt_to` wrote with the requests. Raises AgreementError for the batches of another
    client, and for answers to other requests, of another net or release; InputError for anything else that does not
    fit, and for images whose results would not be precise enough; ConfigError for a net of several turns.
    """
    check_turns(client.public, "client")
    names = _batches_in(batches)
    if not names:
        hint = "name the folder that he-encrypt wrote beside the requests"
        raise InputError("there are no batches", where=str(batches), hint=hint)
    kind = messages.ANSWER
    count = _count(answers, kind, client.public)
    if count != len(names):
        what = f"{count} answers, and {batches} has {len(names)} batches"
        raise AgreementError(what, where=str(answers), hint="each request has its own answer: were files exchanged?")
    parts, precision, images = [], [], 0
    for number, (name, answer) in enumerate(zip(names, _messages(answers, kind, client.public), strict=True)):
        batch = client.resume(name)
        with _at(answers, number, count):
            batch.accept(answer)
            _check_noise(batch.precision)
        parts.append(batch.parts())
        precision.append(batch.precision)
        images += batch.images
    return Decrypted(client.public.joined(parts), images, precision)


def _check_noise(precision: Precision) -> None:
    """Raise InputError if the slots that hold no image came back as noise: the server's answer is wrong.

    A ciphertext of which one bit has changed decrypts to noise in all slots. A batch with fewer than two free slots
    cannot tell.
    """
    measured = precision.measured
    if measured is not None and float(measured.median()) < LEAST:
        what = f"it decrypts to noise: {float(measured.median()):.1f} bits of its free slots are right, not {LEAST}"
        raise InputError(what, where="answer", hint="the server is not honest, or computes wrongly")


# Files ----------------------------------------------------------------------------------------------------------------


def _size(kind: str, public: Public) -> int:
    """Return the bytes of a request or an answer, with its head."""
    return messages.HEAD_BYTES + public.turn_bytes(public.turns[0])[kind == messages.ANSWER]


def _count(path: Path, kind: str, public: Public) -> int:
    """Return the number of requests or answers in a file, once the head and the length of each are right.

    kind: `messages.REQUEST` or `messages.ANSWER`. public: the net's description.
    """
    size, net = _size(kind, public), messages.digest(public.to_json().encode())
    with _read(path), path.open("rb") as file:
        whole = os.fstat(file.fileno()).st_size
        count = -(-whole // size)
        if not count:
            raise InputError("the file is empty", where=str(path), hint=_AGAIN)
        for number in range(count):
            file.seek(number * size)
            head = file.read(messages.HEAD_BYTES)
            if len(head) < messages.HEAD_BYTES and whole > messages.HEAD_BYTES:
                raise InputError(f"{whole} bytes, and each message in it has {size}", where=str(path), hint=_AGAIN)
            with _at(path, number, count):
                messages.read_head(head, kind, public, net, min(size, whole - number * size))
    return count


def _messages(path: Path, kind: str, public: Public) -> Iterator[bytes]:
    """Yield the requests or answers in a file, one after another. kind, public: as for `_count`."""
    with _read(path), path.open("rb") as file:
        while message := file.read(_size(kind, public)):
            yield message


def _batches_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.batch"))


def _save(path: Path, pieces: Iterable[bytes]) -> int:
    with _written(path):
        return disk.save(path, pieces)


@contextmanager
def _at(path: Path, number: int, count: int) -> Iterator[None]:
    """Name the file, and the message's number if there are several, in the errors of a message."""
    try:
        yield
    except HummingbirdError as error:
        place = str(path) if count == 1 else f"{path}, {error.where} {number + 1} of {count}"
        raise type(error)(error.what, where=place, hint=error.hint) from None


@contextmanager
def _read(path: Path) -> Iterator[None]:
    with _named(path, "read", "is it the right name?"):
        yield


@contextmanager
def _written(path: Path) -> Iterator[None]:
    with _named(path, "write", "name a place in a folder that can be written, on a disk with room"):
        yield


@contextmanager
def _named(path: Path, verb: str, hint: str) -> Iterator[None]:
    """Turn errors of the operating system into InputErrors that name the file."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot {verb}: {error.strerror or error}", where=str(path), hint=hint) from None
