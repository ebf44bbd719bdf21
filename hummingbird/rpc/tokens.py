"""Tokens: callers without certificates say who they are by 256 random bits, over TLS or on one host.

A service keeps a file of names and hashes, a caller a file of its token. A token has as many bits as a key, so that a
plain SHA-256 hides it; hashes are compared in constant time.

    # the service's file: a name and the SHA-256 of a token, in hexadecimal
    alice 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
import threading
from pathlib import Path

import grpc

from hummingbird.errors import EnvironmentProblem, InputError
from hummingbird.rpc.status import Unknown

TOKEN_BYTES = 32
NAME_LENGTH = 64
HEADER = "authorization"  # its value: "Bearer " and the token in hexadecimal
_MOST = 1 << 24  # characters of a file, for some 200,000 tokens
_HINT = "python -m hummingbird token makes one"


def new_token() -> str:
    """A fresh token, 64 hexadecimal digits."""
    from hummingbird.prg import new_seed  # it needs torch, which takes seconds to import: who reads tokens does not

    return new_seed(TOKEN_BYTES).hex()


def line_of(name: str, token: str) -> str:
    """The line of a service's file. InputError for a name that is none: 1 to 64 letters, digits and . _ @ -"""
    check_name(name)
    return f"{name} {_hash(token)}\n"


def check_name(name: str) -> None:
    """InputError unless `name` can stand in a service's file."""
    if not 0 < len(name) <= NAME_LENGTH or not all(s.isascii() and (s.isalnum() or s in "._@-") for s in name):
        raise InputError(f"not a name: {name[:80]!r}", hint="1 to 64 letters, digits and . _ @ -")


def read_token(path: Path) -> str:
    """A caller's token, of its file. EnvironmentProblem if others may read it, InputError if it holds no token."""
    text = _read(path, 0o077, "others may read it: chmod 600").strip()
    if len(text) != 2 * TOKEN_BYTES or not set(text) <= set("0123456789abcdef"):
        raise InputError(f"a token has {2 * TOKEN_BYTES} hexadecimal digits", where=str(path), hint=_HINT)
    return text


class Tokens:
    """The callers that a file names: `tokens.name_of(context)`.

    The file is read again when it has changed, so that a name that was removed is refused from then on; while it cannot
    be read, everyone is. EnvironmentProblem for a file that cannot be read at first, or that others may write;
    InputError for a line that is none.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._seen = self._stamp()
        self._names = _names(path)

    def name_of(self, context: grpc.ServicerContext) -> str:
        """The caller's name; `Unknown`, which is UNAUTHENTICATED on the wire, without a token of the file."""
        given = dict(context.invocation_metadata()).get(HEADER, "")
        scheme, _, token = str(given).partition(" ")
        if scheme != "Bearer" or not token:
            raise Unknown("this service wants a token", hint="name a file that holds yours (--token-file, token=)")
        found, wanted = None, _hash(token)
        for digest, name in self._current().items():  # all of them: the time says nothing
            if hmac.compare_digest(digest, wanted):
                found = name
        if found is None:
            raise Unknown("this service does not know the token", hint="was it removed, or is it another service's?")
        return found

    def _current(self) -> dict[str, str]:
        with self._lock:
            try:
                if (stamp := self._stamp()) != self._seen:
                    self._names, self._seen = _names(self._path), stamp
            except (EnvironmentProblem, InputError):
                raise Unknown("this service cannot read its tokens now", hint="its operator can mend them") from None
            return self._names

    def _stamp(self) -> tuple[int, int, int]:
        try:
            found = os.stat(self._path)
        except OSError as error:
            raise EnvironmentProblem(f"cannot read the tokens: {error.strerror}", where=str(self._path)) from None
        return found.st_mtime_ns, found.st_size, found.st_ino


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def _names(path: Path) -> dict[str, str]:
    """Names by hash."""
    names: dict[str, str] = {}
    for number, line in enumerate(_read(path, 0o022, "others may write it: chmod 600").splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{path}, line {number}"
        if len(words) != 2 or len(words[1]) != 64 or not set(words[1]) <= set("0123456789abcdef"):
            raise InputError("expected a name and the SHA-256 of a token", where=where, hint=_HINT)
        check_name(words[0])
        if words[1] in names:
            raise InputError("two names have the same token", where=where, hint=_HINT)
        names[words[1]] = words[0]
    if not names:
        raise InputError("the file holds no token", where=str(path), hint=_HINT)
    return names


def _read(path: Path, forbidden: int, problem: str) -> str:
    """A file's text. EnvironmentProblem if it has a forbidden bit of the mode, or cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & forbidden:
                raise EnvironmentProblem(f"the file has mode {mode:o}", where=str(path), hint=problem)
            text = file.read(_MOST + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise EnvironmentProblem(f"cannot read the file: {reason}", where=str(path)) from None
    if len(text) > _MOST:
        raise InputError(f"the file holds more than {_MOST} characters", where=str(path), hint=_HINT)
    return text
