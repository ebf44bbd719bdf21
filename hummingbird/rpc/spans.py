"""Spans: the pieces of a request's way through several processes, for OpenTelemetry. They hold no values and no shapes.

    at a client      ask > request, one for each attempt
    at each party      > Ask > queue, batch
    at a party       material
    at its dealer      > Correct

Nothing is recorded before `enable`, which imports OpenTelemetry's API (the extra `trace`). Where spans go is up to the
application, or to OpenTelemetry's launcher; by default nowhere. A call that is made within a span carries the ids of
the trace and of the span in the header `traceparent` (W3C Trace Context), and nothing else of the trace. A service adds
spans to traces that its callers have begun, and begins none.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import grpc

from hummingbird.errors import needs
from hummingbird.version import VERSION

HEADER = "traceparent"  # a version, the ids of trace and span, and whether it is recorded: 55 characters
_PREFIX = "hummingbird."  # of the names of spans and of their attributes
_api: Any = None  # OpenTelemetry's module `trace`; None: nothing is recorded
_tracer: Any = None
_carrier: Any = None  # writes and reads the header


def enable(provider: Any = None) -> None:
    """Record spans in this process from now on, as the option --trace does.

    provider: a TracerProvider of OpenTelemetry; None: that of the process. Raises EnvironmentProblem without the API.
    """
    global _api, _tracer, _carrier
    with needs("trace", "--trace"):
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    _api, _carrier = trace, TraceContextTextMapPropagator()
    _tracer = trace.get_tracer("hummingbird", VERSION, provider)


def disable() -> None:
    """Record no further spans in this process."""
    global _api, _tracer, _carrier
    _api = _tracer = _carrier = None


class Span:
    """One piece of a request's way, from now until `end`. Its methods do nothing where nothing is recorded.

    own: OpenTelemetry's span; None: nothing is recorded.
    """

    def __init__(self, own: Any = None) -> None:
        self._own = own

    @contextmanager
    def current(self) -> Iterator[None]:
        """Return a context in which calls carry this span's ids, and further spans are parts of this one."""
        if self._own is None or _api is None:
            yield
        else:
            with _api.use_span(self._own, record_exception=False, set_status_on_exception=False):
                yield

    def part(self, name: str, began: float, ended: float) -> None:
        """Add a part of this span that is over. began, ended: monotonic times, seconds."""
        if self._own is not None and _tracer is not None:
            epoch = time.time_ns() - time.monotonic_ns()
            first, last = (epoch + int(1e9 * moment) for moment in (began, ended))
            parent = _api.set_span_in_context(self._own)
            _tracer.start_span(_PREFIX + name, parent, start_time=first).end(last)

    def end(self, outcome: str = "OK", **fields: Any) -> None:
        """End this span. outcome: "OK", or what it failed with, without details. fields: attributes; never private."""
        if self._own is not None and _api is not None:
            for key, value in {"outcome": outcome, **fields}.items():
                self._own.set_attribute(_PREFIX + key, value)
            if outcome != "OK":
                self._own.set_status(_api.StatusCode.ERROR)
            self._own.end()


_NOTHING = Span()
_served: WeakKeyDictionary[grpc.ServicerContext, Span] = WeakKeyDictionary()


def begin(name: str, *, calls: bool = False, alone: bool = False) -> Span:
    """Begin a span, as a part of the current one if there is one.

    calls: whether it waits for another process. alone: whether it begins a trace of its own in any case.
    """
    if _tracer is None:
        return _NOTHING
    kind = _api.SpanKind.CLIENT if calls else _api.SpanKind.INTERNAL
    return Span(_tracer.start_span(_PREFIX + name, _nowhere() if alone else None, kind=kind))


def _nowhere() -> Any:
    """Return OpenTelemetry's context without a span."""
    return _api.set_span_in_context(_api.INVALID_SPAN)


@contextmanager
def span(name: str, *, calls: bool = False, **fields: Any) -> Iterator[None]:
    """Return a context that is a span, and the current one. An error ends it with the name of its class.

    calls: whether it waits for another process. fields: attributes.
    """
    own, outcome = begin(name, calls=calls), "OK"
    try:
        with own.current():
            yield
    except BaseException as error:
        outcome = type(error).__name__
        raise
    finally:
        own.end(outcome, **fields)


def header() -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call that is made now: the ids of the current span, or nothing."""
    if _tracer is None:
        return ()
    written: dict[str, str] = {}
    _carrier.inject(written)
    return ((HEADER, written[HEADER]),) if HEADER in written else ()


def served(method: str, context: grpc.ServicerContext) -> Span:
    """Begin the span of a call that a service works on, as a part of its caller's; nothing if the caller sent no ids.

    method: the method's name. context: gRPC's, of the call.
    """
    if _tracer is None:
        return _NOTHING
    sent = {name: value for name, value in context.invocation_metadata() if name == HEADER and isinstance(value, str)}
    parent = _carrier.extract(sent, _nowhere())
    if not _api.get_current_span(parent).get_span_context().is_valid:
        return _NOTHING
    found = _served[context] = Span(_tracer.start_span(_PREFIX + method, parent, kind=_api.SpanKind.SERVER))
    return found


def of(context: grpc.ServicerContext) -> Span:
    """Return the span of a call that a service works on; `served` has begun it. context: gRPC's, of the call."""
    return _NOTHING if _tracer is None else _served.get(context, _NOTHING)
