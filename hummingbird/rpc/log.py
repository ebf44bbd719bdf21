"""A service's log: one line of JSON for each call and each change of its state; never a value, never an error's text.

{"time": "2026-01-31T12:00:00.123Z", "service": "he-server", "event": "call", "method": "Turn", "client": "alice",
 "outcome": "OK", "ms": 41.2, "in": 1048592, "out": 262144}

A service adds fields of its own to its calls (`rpc.admission.note`).
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import threading
import time
from typing import TextIO

from hummingbird.errors import EnvironmentProblem
from hummingbird.rpc.admission import Record

_NAME = 80  # characters of a caller's name
_STRANGERS = 10  # lines in a second for callers who are not known: they must not fill the disk


class Log:
    """Lines into a file, made for this user alone and appended to; `-` is standard error.

    EnvironmentProblem for a file that cannot be written at first. Later a full disk costs lines, no answers: `lost`
    counts them.
    """

    def __init__(self, service: str, path: str) -> None:
        self._service, self._lock = service, threading.Lock()
        self._file: TextIO | None = None
        self._second, self._strangers = 0, 0
        self.lost = 0
        if path == "-":
            return
        try:
            self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "a")
        except OSError as error:
            hint = "name a file that can be written"
            raise EnvironmentProblem(f"cannot write the log: {error.strerror}", where=path, hint=hint) from None

    def call(self, record: Record) -> None:
        """A call that has ended. Of callers who are not known, the first ten in a second."""
        if record.outcome == "UNAUTHENTICATED" and not self._room_for_stranger():
            return
        client = None if record.client is None else record.client[:_NAME]
        what = {"method": record.method, "client": client, "outcome": record.outcome}
        sizes = {"in": record.received, "out": record.sent}
        self.event("call", **what, ms=round(1e3 * record.seconds, 3), **sizes, **record.notes)

    def _room_for_stranger(self) -> bool:
        now = int(time.monotonic())
        with self._lock:
            self._strangers = self._strangers + 1 if now == self._second else 1
            self._second = now
            return self._strangers <= _STRANGERS

    def event(self, event: str, **fields: object) -> None:
        """A line of these fields."""
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = json.dumps({"time": now, "service": self._service, "event": event, **fields}) + "\n"
        file = sys.stderr if self._file is None else self._file
        with self._lock:
            try:
                file.write(line)
                file.flush()
            except (OSError, ValueError):  # ValueError: closed
                self.lost += 1

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._file is not None:
            with self._lock:
                self._file.close()
