"""A service's certificates, read again when their files have changed: renewed ones need no restart.

gRPC asks before every handshake, and the metric of their end at every scrape. Files that cannot be used, half written
or of two pairs or expired, change nothing: what was read before stays in use, and a warning says why, once for each
state of the files. Connections that are open keep what they began with.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from functools import partial

import grpc

from hummingbird.errors import EnvironmentProblem
from hummingbird.rpc.trust import Pem, Tls

_log = logging.getLogger(__name__)
_Stamp = tuple[int, int, int]


class Certificates:
    """The files of `tls`, for all servers of a program. renewed: told when others than before are in use.

    EnvironmentProblem for files that cannot be used at first.
    """

    def __init__(self, tls: Tls, renewed: Callable[[], object] = lambda: None) -> None:
        self.tls, self._renewed = tls, renewed
        self._lock = threading.Lock()
        self._seen = self._refused = self._stamps()  # before reading: what changes meanwhile is read again
        self._pem = tls.read()

    def current(self) -> Pem:
        """The contents in use; the same object as before if nothing has changed."""
        with self._lock:
            if (stamps := self._stamps()) != self._seen:
                self._read(stamps)
            return self._pem

    def ends(self) -> dict[str, Callable[[], float]]:
        """When those in use end, Unix time in seconds, asked anew by each call; by what they are: "cert", "ca"."""
        return {name: partial(lambda name: self.current().expiry()[name], name) for name in self.current().expiry()}

    def credentials(self) -> grpc.ServerCredentials:
        """For one server of gRPC's; callers show a certificate where `tls` names their authority."""
        given = self.current()

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            """The configuration for a server that has another; gRPC calls this from one thread at a time."""
            nonlocal given
            if (pem := self.current()) is given:
                return None
            given = pem
            return _configuration(pem)

        return grpc.dynamic_ssl_server_credentials(_configuration(given), fetch, self.tls.mutual)

    def _read(self, stamps: list[_Stamp | None]) -> None:
        """Read the files, which may become usable without another change: a certificate may begin in a while."""
        try:
            pem = self.tls.read()
        except EnvironmentProblem as problem:
            if stamps != self._refused:
                _log.warning("the certificates of before stay in use: %s", problem)
            self._refused = stamps
            return
        self._seen = stamps
        if pem != self._pem:
            self._pem = pem
            self._renewed()

    def _stamps(self) -> list[_Stamp | None]:
        return [None if path is None else _stamp(path) for path in (self.tls.cert, self.tls.key, self.tls.ca)]


def _stamp(path: str | os.PathLike[str]) -> _Stamp | None:
    """Time, size and inode of a file, one of which changes with it; None for one that is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], pem.ca)
