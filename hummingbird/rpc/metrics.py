"""Figures of a service for Prometheus, over HTTP; they hold no values and no texts of errors.

    hummingbird_requests_total{method,outcome}                 ended calls; outcome: gRPC's status
    hummingbird_request_duration_seconds{method}               histogram, from the first byte to the last
    hummingbird_requests_in_flight                             calls at work
    hummingbird_message_bytes_total{direction}                 bytes of messages, "in" and "out"
    hummingbird_ready                                          1 while the health service says SERVING
    hummingbird_certificate_expiry_timestamp_seconds{file}     expiry of the certificate in use, Unix time

A service adds its own figures to `registry`. Anyone who reaches the address can read them; it is on loopback unless a
host is named. Two more pages are for probes: /livez, whether the program lives, and /readyz, whether it serves.

A program imports this module, and the modules of a service's own figures, only if it has the option --metrics: they
need prometheus-client, which the extra `serve` brings.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from functools import lru_cache
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import MetricsHandler

from hummingbird.errors import EnvironmentProblem
from hummingbird.rpc.admission import Record
from hummingbird.rpc.security import Certificates, split

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)  # of histograms
_WATCHED = ("INTERNAL", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED")  # outcomes of deploy/alerts.yaml
_PATIENCE = 10.0  # seconds for one scrape


class Metrics:
    """The numbers that a service offers to Prometheus: its calls by outcome, their durations, and their bytes.

    Further numbers are the calls at work, the readiness, and when certificates expire. certificates: the service's;
    None without TLS. in_flight: returns the number of calls at work; called whenever Prometheus asks.
    """

    def __init__(self, certificates: Certificates | None = None, in_flight: Callable[[], float] = lambda: 0) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "hummingbird_requests", "Calls that have ended.", ["method", "outcome"], registry=self.registry
        )
        self._seconds = Histogram(
            "hummingbird_request_duration_seconds",
            "Seconds from a call's beginning to its end.",
            ["method"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._bytes = Counter("hummingbird_message_bytes", "Bytes of messages.", ["direction"], registry=self.registry)
        at_work = Gauge("hummingbird_requests_in_flight", "Calls at work.", registry=self.registry)
        at_work.set_function(in_flight)
        self.ready = Gauge("hummingbird_ready", "1 while the health service says SERVING.", registry=self.registry)
        name, text = "hummingbird_certificate_expiry_timestamp_seconds", "When a certificate ends, Unix time."
        expiry = Gauge(name, text, ["file"], registry=self.registry)
        for file, end in ({} if certificates is None else certificates.ends()).items():
            expiry.labels(file).set_function(end)

        self._of = lru_cache(maxsize=None)(self._figures)

    def offer(self, methods: Iterable[str]) -> None:
        """Create the counters of these methods' failures, with the value 0, before the first failure.

        methods: their names. Prometheus' `increase` needs a value before the first event, or an alert would miss that
        event.
        """
        for method in methods:
            for outcome in _WATCHED:
                self._requests.labels(method, outcome)

    def _figures(self, method: str, outcome: str) -> tuple[Counter, Histogram, Counter, Counter]:
        """Return four Prometheus objects for a method: calls with this outcome, seconds, bytes received, bytes sent.

        They are the counters to increase for one call. `_of` caches the result.
        """
        labelled = self._requests.labels(method, outcome), self._seconds.labels(method)
        return *labelled, self._bytes.labels("in"), self._bytes.labels("out")

    def count(self, record: Record) -> None:
        """Add a call that has ended to the numbers for Prometheus: its outcome, duration and bytes."""
        requests, seconds, received, sent = self._of(record.method, record.outcome)
        requests.inc()
        seconds.observe(record.seconds)
        received.inc(record.received)
        sent.inc(record.sent)


class Page:
    """A web server that answers Prometheus at http://ADDRESS/metrics, in threads, until `close`.

    registry: the numbers to show. address: HOST:PORT, or PORT for this host alone. ready: returns whether the program
    serves, for /readyz. Raises EnvironmentProblem for an address in use.
    """

    def __init__(self, registry: CollectorRegistry, address: str, ready: Callable[[], bool]) -> None:
        host, port = split(address if ":" in address else f"127.0.0.1:{address}")
        own = {"registry": registry, "timeout": _PATIENCE, "ready": staticmethod(ready)}
        handler = type("Handler", (_Handler,), own)
        kind = type("Server", (_Server,), {"address_family": socket.AF_INET6 if ":" in host else socket.AF_INET})
        try:
            self._server = kind((host, port), handler)
        except OSError as error:
            what = f"cannot offer metrics: {error.strerror or error}"
            raise EnvironmentProblem(what, where=f"--metrics {address}", hint="choose another port") from None
        threading.Thread(target=self._server.serve_forever, name="hummingbird-metrics", daemon=True).start()

    def close(self) -> None:
        """Stop this web server; may be called twice."""
        self._server.shutdown()
        self._server.server_close()


class _Handler(MetricsHandler):
    """Answers the requests of one connection to `Page`: /metrics, and /livez and /readyz for probes (200 OK or 503)."""

    ready: Callable[[], bool]

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/metrics":
            super().do_GET()
        elif path == "/livez":
            self._say(HTTPStatus.OK, "alive")
        elif path == "/readyz" and self.ready():
            self._say(HTTPStatus.OK, "ready")
        elif path == "/readyz":
            self._say(HTTPStatus.SERVICE_UNAVAILABLE, "not ready")
        else:
            self._say(HTTPStatus.NOT_FOUND, "there are /metrics, /livez and /readyz")

    def _say(self, status: HTTPStatus, text: str) -> None:
        body = f"{text}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing if a request for the figures fails: a scraper that disconnects is no error of the program."""
