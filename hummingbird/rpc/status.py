"""Errors on the wire: the gRPC status of each error, and the error that a caller raises for a status.

An error of this package that a method raises travels as the status details, word for word; of any other error only the
type, since its text may hold private data. A refusal by a service is marked in the metadata: without the mark, the same
status comes from gRPC itself and means a lost connection.
"""

from __future__ import annotations

import logging
import traceback

import grpc

from hummingbird.errors import (
    AccessError,
    ConfigError,
    DiskError,
    HummingbirdError,
    InputError,
    NotFoundError,
    OverloadError,
    PeerError,
    TrustError,
    UnavailableError,
)

Code = grpc.StatusCode
# The first class that an error is an instance of decides; errors of no class here are FAILED_PRECONDITION.
CODES: list[tuple[type[HummingbirdError], grpc.StatusCode]] = [
    (InputError, Code.INVALID_ARGUMENT),
    (ConfigError, Code.INVALID_ARGUMENT),
    (TrustError, Code.PERMISSION_DENIED),
    (AccessError, Code.PERMISSION_DENIED),
    (OverloadError, Code.RESOURCE_EXHAUSTED),
    (DiskError, Code.RESOURCE_EXHAUSTED),
    (UnavailableError, Code.UNAVAILABLE),
    (NotFoundError, Code.NOT_FOUND),
]
DETAILS = 600  # characters of an error on the wire: gRPC's headers hold 8 KiB, an escaped character up to 12 bytes
_REFUSED = "hummingbird-refused"  # metadata that marks a refusal by the service
_RETRY = "grpc-retry-pushback-ms"  # gRPC's own name for the time after which to retry
_log = logging.getLogger(__name__)


class Unknown(AccessError):
    """Raised for a caller without a token or with a wrong one: UNAUTHENTICATED on the wire."""


def code_of(error: BaseException) -> grpc.StatusCode:
    """Return the gRPC status that a call gets when its method has raised `error`."""
    if isinstance(error, Unknown):
        return Code.UNAUTHENTICATED
    if not isinstance(error, HummingbirdError):
        return Code.INTERNAL
    return next((code for kind, code in CODES if isinstance(error, kind)), Code.FAILED_PRECONDITION)


def refuse(error: Exception, context: grpc.ServicerContext) -> Exception:
    """End a call with an error's text and gRPC status, by gRPC's abort(), which raises.

    error: what has gone wrong. context: gRPC's, of the call. Never returns; its type lets callers write `raise
    refuse(...)`, so that type checkers see that the call ends.
    """
    metadata = [*(context.trailing_metadata() or ()), (_REFUSED, "1")]
    if isinstance(error, (OverloadError, UnavailableError)) and error.retry_after is not None:
        metadata.append((_RETRY, str(int(1000 * error.retry_after))))
    context.set_trailing_metadata(tuple(metadata))
    if isinstance(error, HummingbirdError):
        context.abort(code_of(error), str(error)[:DETAILS])
    if context.is_active():
        last = traceback.extract_tb(error.__traceback__)[-1:]
        place = "".join(f" at {frame.filename}:{frame.lineno}" for frame in last)
        _log.error("a method failed: %s%s", type(error).__name__, place)  # not its text, which may hold data
    context.abort(Code.INTERNAL, f"the service failed: {type(error).__name__}")
    return error


def explain(error: grpc.RpcError, where: str) -> PeerError:
    """Return the error of this package that says why a call has failed.

    error: gRPC's. where: the service, for the error's text. If the service refused the call, the error has the
    service's own words; else it says what became of the connection. Returns OverloadError, UnavailableError,
    AccessError or NotFoundError for the gRPC statuses that mean these, else PeerError.
    """
    code, details = error.code(), str(error.details())
    metadata = dict(error.trailing_metadata() or ())
    what, _, hint = details.partition("\nhint: ")
    if _REFUSED in metadata:
        told = metadata.get(_RETRY, "")
        retry = int(told) / 1e3 if told.isdecimal() else None
        if code == Code.RESOURCE_EXHAUSTED:
            return OverloadError(what, where=where, hint=hint, retry_after=1 if retry is None else retry)
        if code == Code.UNAVAILABLE:
            return UnavailableError(what, where=where, hint=hint, retry_after=retry)
        kinds: dict[grpc.StatusCode, type[PeerError]] = {
            Code.UNAUTHENTICATED: AccessError,
            Code.PERMISSION_DENIED: AccessError,
            Code.NOT_FOUND: NotFoundError,
        }
        return kinds.get(code, PeerError)(what, where=where, hint=hint)
    if code == Code.DEADLINE_EXCEEDED:
        return PeerError(
            "no answer in time", where=where, hint="is it overloaded or stopped? A larger timeout may help"
        )
    if code == Code.UNAVAILABLE:
        hint = "did it end, or was it killed? Its own output may say why"
        return UnavailableError(f"the connection is lost: {details}", where=where, hint=hint)
    if code == Code.CANCELLED:  # by the service: this side explains no call that it has cancelled itself
        hint = "it stops, or its messages were left unread, or unsent, for too long"
        return UnavailableError("the service has cancelled the call", where=where, hint=hint)
    if code == Code.UNIMPLEMENTED:
        hint = "is it the address of another program, or of another release?"
        return PeerError("the program that answers there is no service of this kind", where=where, hint=hint)
    if code == Code.RESOURCE_EXHAUSTED and "larger than max" not in details:  # a later attempt cannot help there
        return OverloadError(f"{code.name}: {what}", where=where, hint=hint)
    return PeerError(f"{code.name}: {what}", where=where, hint=hint)
