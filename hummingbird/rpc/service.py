"""A gRPC server without generated code: a method takes bytes and answers with bytes or with a stream of bytes, or takes
a stream and answers with a stream.

client.py calls such methods, security.py says who may listen and call where, admission.py admits calls, status.py
translates errors, and server.py runs the servers of a program, with health, metrics and an orderly end.
"""

from __future__ import annotations

import inspect
import os
import queue
import socket
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from typing import Any, NamedTuple

import grpc

from hummingbird.errors import EnvironmentProblem, InputError, TrustError
from hummingbird.rpc import CHUNK
from hummingbird.rpc.admission import BRIEF, Admission, Call
from hummingbird.rpc.security import Certificates, Tls, check_address

WORKERS = 32  # services derive their own limits on running and waiting work from this
_SPARE = 64  # threads beyond the calls at work, for refusals
_IDLE = 10.0  # seconds after which a thread without work ends
STREAM = 8 * CHUNK  # most bytes in the queues of an exchange, and ahead of a streamed answer's reader
_HEALTH = "grpc.health.v1.Health"
PREFIX = "/hummingbird/"  # of the names of methods
_AGE_MS = 3_600_000  # of a connection, after which its caller must show its certificate again
KEEPALIVE = [("grpc.keepalive_time_ms", 20_000), ("grpc.keepalive_timeout_ms", 10_000)]

Method = Callable[[bytes, grpc.ServicerContext], "bytes | Iterator[bytes]"]


class Exchange(NamedTuple):
    """A method of a service in which both sides send several messages.

    function: a generator function of an iterator over the caller's messages, and gRPC's context; it yields the
    service's messages. A message of either side has at most `CHUNK` bytes. held: most bytes of messages that the method
    keeps in memory.
    """

    function: Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]
    held: int = STREAM


class Brief(NamedTuple):
    """A method of a service that computes nothing and holds no memory, so that even a full service answers it.

    function: takes a message and gRPC's context, and returns the answer. Calls of such methods have a limit of their
    own.
    """

    function: Callable[[bytes, grpc.ServicerContext], bytes]


def message_options(largest: int) -> list[tuple[str, int]]:
    """Return gRPC's options, a list of (name, value), that limit messages to `largest` bytes, for both sides."""
    return [("grpc.max_send_message_length", largest), ("grpc.max_receive_message_length", largest)]


def serve(
    handlers: Mapping[str, Method | Exchange | Brief],
    address: str,
    tls: Tls | Certificates | None = None,
    *,
    gate: Admission | None = None,
    health: tuple[Admission, Mapping[str, Method]] | None = None,
) -> grpc.Server:
    """Start a gRPC server of methods, and return it. Keep the result: a server that is garbage collected stops.

    handlers: the methods, by name. A method is a function that takes a message and gRPC's context and returns the
    answer; or a generator function with the same arguments, which yields several messages; or an `Exchange`, or a
    `Brief`.
    address: HOST:PORT or unix:PATH; a unix socket is for this user only. tls: None for plain text. If it names an
    authority, callers without a certificate of this authority are refused, else callers without a token. Its files are
    read again when they have changed (security.py). gate: the admission of callers. health: the admission of gRPC's
    health service, and its methods.
    Raises InputError and TrustError (see `check_address`), EnvironmentProblem (bad certificates, address in use).

        server = serve({"Echo": lambda request, context: request}, "unix:/run/user/1000/echo.sock")
    """
    gate = Admission() if gate is None else gate
    credentials = _credentials(address, tls, gate)
    if address.startswith("unix:"):
        _claim(address[5:])
    calls = gate.limits.requests + BRIEF + (health[0].limits.requests if health else 0) + _SPARE
    server = grpc.server(
        _Pool(),
        options=[
            ("grpc.so_reuseport", 0),  # otherwise two servers could share a port, and split a session's calls
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
            ("grpc.server_handshake_timeout_ms", 20_000),
            ("grpc.max_allowed_incoming_connections", gate.limits.connections),
            ("grpc.max_connection_age_ms", _AGE_MS),  # running calls continue; further ones need a new connection
            *KEEPALIVE,
            *message_options(gate.limits.message),
        ],
        maximum_concurrent_rpcs=calls,
    )
    methods: dict[str, Method | Exchange | Brief] = {"Ping": Brief(lambda request, context: b""), **handlers}
    services = {PREFIX.strip("/"): (gate, methods), **({} if health is None else {_HEALTH: health})}
    for service, (admission, offered) in services.items():
        made = {name: _handler(name, function, admission) for name, function in offered.items()}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, made),))
    mask = os.umask(0o077)  # whoever can open a unix socket can call the service
    try:
        if credentials is None:
            server.add_insecure_port(address)
        else:
            server.add_secure_port(address, credentials)
    except RuntimeError as error:
        hint = "is another process using it, and does the address belong to this host?"
        raise EnvironmentProblem(f"cannot listen: {error}", where=address, hint=hint) from None
    finally:
        os.umask(mask)
    server.start()
    return server


class _Pool(Executor):
    """A pool of threads on which a gRPC server runs methods, one thread for each call at work.

    The threads are daemons, unlike those of ThreadPoolExecutor: a method that never ends does not keep the program
    alive. A new call goes to the thread that became free last, so that surplus threads end after a busy hour.
    """

    def __init__(self) -> None:
        self._free: list[queue.SimpleQueue[Callable[[], None]]] = []  # a queue for each thread without work
        self._lock = threading.Lock()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run fn(*args, **kwargs) on a thread of this pool, a free or a new one; return the future of its result."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - passed to the caller, as Executor requires
                future.set_exception(error)

        with self._lock:
            work = self._free.pop() if self._free else None
        if work is None:
            work = queue.SimpleQueue()
            threading.Thread(target=self._serve, args=(work,), name="hummingbird-service", daemon=True).start()
        work.put(run)
        return future

    def _serve(self, work: queue.SimpleQueue[Callable[[], None]]) -> None:
        while True:
            try:
                run = work.get(timeout=_IDLE)
            except queue.Empty:
                with self._lock:
                    if work not in self._free:
                        continue  # a call has just taken it
                    self._free.remove(work)
                    return
            run()
            with self._lock:
                self._free.append(work)


def _credentials(address: str, given: Tls | Certificates | None, gate: Admission) -> grpc.ServerCredentials | None:
    tls = given.tls if isinstance(given, Certificates) else given
    check_address(address, tls)
    if tls is None:
        return None
    if tls.cert is None:
        raise TrustError("a service needs a certificate and its key", where=address, hint="Tls(cert=..., key=...)")
    if not tls.mutual and gate.tokens is None:
        hint = "name the authority of their certificates (ca), or a file of tokens"
        raise TrustError("callers must show a certificate or a token", where=address, hint=hint)
    return (given if isinstance(given, Certificates) else Certificates(tls)).credentials()


def _claim(path: str) -> None:
    """Make the path of a unix socket free: remove a socket that a killed server has left.

    Raises EnvironmentProblem if a server still uses it. gRPC itself would replace the socket in both cases.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISSOCK(mode):
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)
                return
            except OSError:
                pass  # cannot tell: leave it alone
    raise EnvironmentProblem("cannot listen: the path is in use", where=f"unix:{path}", hint="choose another path")


def _handler(name: str, function: Method | Exchange | Brief, gate: Admission) -> grpc.RpcMethodHandler:
    """Return the gRPC handler of a method. name: of the method. function: the method. gate: admits its calls.

    To gRPC every method reads a stream of requests, even where callers send one message. So a call passes the admission
    before its request is read: for a request of one message gRPC would occupy a thread until the message has arrived.
    Callers see no difference.
    """
    exchange = isinstance(function, Exchange)
    run: Any = function.function if isinstance(function, (Exchange, Brief)) else function
    if not exchange and not inspect.isgeneratorfunction(run):
        return grpc.stream_unary_rpc_method_handler(_single(name, run, gate, isinstance(function, Brief)))

    def answer(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        with gate.call(name, context) as call:
            gate.hold(call, function.held if isinstance(function, Exchange) else STREAM)
            request: Any = _pieces(name, call, requests) if exchange else _message(name, call, requests, gate)
            for message in run(request, context):
                call.sent += len(message)
                with call.for_caller():
                    yield message

    return grpc.stream_stream_rpc_method_handler(answer)


def _single(
    name: str, run: Callable[[bytes, grpc.ServicerContext], bytes], gate: Admission, brief: bool
) -> Callable[[Iterator[bytes], grpc.ServicerContext], bytes]:
    """Return the function that gRPC calls for a method with one answer; it takes the requests and gRPC's context.

    name: of the method. run: computes the answer from the message and the context. gate: admits the calls. brief:
    whether the method is a `Brief`. gRPC sends the answer, together with the status, after the function has returned.
    """

    def answer(requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        with gate.call(name, context, brief) as call:
            message = run(_message(name, call, requests, gate), context)
            gate.hold(call, len(message))
            call.sent += len(message)
            return message

    return answer


def _pieces(name: str, call: Call, requests: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the messages that the caller of an `Exchange` sends. Raises InputError for one above `CHUNK` bytes.

    name: of the method, for the error. requests: the messages as gRPC gives them.
    """
    for request in call.read(requests):
        if len(request) > CHUNK:
            raise InputError(f"a message of {len(request)} bytes", where=name, hint=f"at most {CHUNK} at a time")
        yield request


def _message(name: str, call: Call, requests: Iterator[bytes], gate: Admission) -> bytes:
    """Wait for the single message that a caller sends, count its bytes, and return it.

    name: of the method, for the error. requests: the caller's messages. gate: counts the bytes. Raises InputError if
    there is no message.
    """
    with call.for_caller():
        message = next(call.read(requests), None)
    if message is None:
        raise InputError("a call without a message", where=name, hint="this method takes one")
    gate.hold(call, len(message))
    return message
