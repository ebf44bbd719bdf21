"""An object store on loopback, moto's, that counts requests and bytes, and can fail in the ways that tests need."""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

import pytest

USER, WORD = "tester", "secret"


class ObjectServer:
    """moto's server in this process, on a free port of loopback.

    counts: requests by kind, as "PUT sets". sent: bytes of the objects that it has sent. ignores: whether it drops
    If-None-Match, as old object stores do. away: whether every request fails. loses: called with kind and number of
    each request; true: it is carried out, and answered with an error, so that the client repeats it.
    """

    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self._lock = threading.Lock()
        self._turn = threading.Lock()  # moto looks for an object, and then makes it: two claims at once would both win
        self.counts: Counter[str] = Counter()
        self.sent, self.ignores, self.away = 0, False, False
        self.loses: Callable[[str, int], bool] = lambda kind, number: False
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which obstore finds this server."""
        where = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._server.server_port}", "AWS_ALLOW_HTTP": "true"}
        return where | {"AWS_ACCESS_KEY_ID": USER, "AWS_SECRET_ACCESS_KEY": WORD, "AWS_REGION": "us-east-1"}

    def begin(self, *buckets: str) -> None:
        """Begin a test: empty buckets, counts from 0, and no faults."""
        self.add(*buckets)
        self.counts.clear()
        self.ignores, self.loses, self.sent = False, lambda kind, number: False, 0

    def add(self, *buckets: str) -> None:
        """Make empty buckets, in the place of old ones of these names."""
        from moto.s3.models import s3_backends

        backend = s3_backends["123456789012"]["aws"]
        for bucket in buckets:
            backend.buckets.pop(bucket, None)
            s3_backends.bucket_accounts.pop(bucket, None)
            backend.create_bucket(bucket, "us-east-1")

    def fill(self, *urls: str) -> None:
        """Make objects of one byte at these URLs, without a request."""
        from moto.s3.models import s3_backends

        for url in urls:
            bucket, _, key = url.removeprefix("s3://").partition("/")
            s3_backends["123456789012"]["aws"].put_object(bucket, key, b"1")

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        method, path, query = environ["REQUEST_METHOD"], environ["PATH_INFO"], environ["QUERY_STRING"]
        kind = "DELETE" if method == "POST" and "delete" in query else "LIST" if "list-type" in query else method
        kind += "".join(f" {word}" for word in re.findall(r"/party-\d+/(sets|claims|nets)/", path + unquote(query)))
        with self._lock:
            self.counts[kind] += 1
            lost = self.loses(kind, self.counts[kind])
        if self.ignores:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if lost:
            with self._turn:
                b"".join(self._app(environ, lambda *_: None))
        if lost or self.away:
            start("503 Service Unavailable", [("Content-Length", "0")])
            return [b""]
        with self._turn:
            data = b"".join(self._app(environ, start))
        with self._lock:
            self.sent += len(data) if kind == "GET sets" else 0
        return [data]

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def served() -> Iterator[ObjectServer]:
    """A server, found by obstore through this process's environment; skips the test where packages are missing."""
    pytest.importorskip("obstore", reason="the extra `bucket` is not installed")
    pytest.importorskip("moto.server", reason="moto[server] is not installed")
    server = ObjectServer()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        patch.setenv("NO_PROXY", "127.0.0.1")
        try:
            yield server
        finally:
            server.close()
