"""Ports that are held from their choice on, so that nobody else is given them before their server listens."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

_LEAST, _MOST = 15_000, 32_768  # below those that systems give to connections
_ours: set[int] = set()
_file = -1


def free_port() -> int:
    """A port of loopback on which nobody listens, and which no other process that asks here is given while this one
    lives.

    A lock on a byte of one file holds it: a socket that is bound and closed again would hold nothing, and the system
    gives such a port to whoever asks next.
    """
    global _file
    if _file < 0:
        path = Path(tempfile.gettempdir()) / f"hummingbird-ports-{os.getuid()}"
        _file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    while True:
        port = random.SystemRandom().randrange(_LEAST, _MOST)
        if port in _ours:
            continue
        with contextlib.suppress(OSError):
            fcntl.lockf(_file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            socket.create_server(("127.0.0.1", port)).close()
            _ours.add(port)
            return port
