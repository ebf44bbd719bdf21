"""The contract of every service: what callers and operators may rely on, whichever program it is.

Each service runs as its program (tests/support/contract.py), once behind certificates and once behind tokens, for all
clauses; for the last ones, in which it ends, once more. A service that comes to the package joins `CASES`. All services
have one server (hummingbird/rpc): in the quick tier garbage goes to each, the other clauses to those that differ most.
"""

from __future__ import annotations

import ast
import random
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from hummingbird.errors import AccessError, NotFoundError, OverloadError, PeerError, UnavailableError
from hummingbird.rpc import client as rpc_client
from hummingbird.rpc import service, telemetry
from hummingbird.rpc.security import Tls, new_token
from hummingbird.rpc.status import explain
from hummingbird.rpc.telemetry import LIVE, READY
from tests.support.contract import (
    CASES,
    EACH,
    NAMED,
    REQUESTS,
    Held,
    ServiceCase,
    Started,
    World,
    bomb,
)
from tests.support.dealers import shown
from tests.support.mutations import mutated
from tests.support.patience import HANG, until
from tests.test_floors import FILES, last_name, nodes, parsed

Code = grpc.StatusCode


def of(wanted: Callable[[ServiceCase], object], *quick: str) -> pytest.MarkDecorator:
    """For all services that are wanted; those that are not named are slow."""
    slow = pytest.mark.slow
    cases = [pytest.param(case, marks=() if str(case) in quick else slow) for case in CASES if wanted(case)]
    return pytest.mark.parametrize("case", cases, indirect=True, ids=str, scope="module")


every = of(lambda case: True, "he-server", "dealer", "deal")  # streams and tokens; certificates alone; no methods
pages = of(lambda case: True, "he-server")
called = of(lambda case: case.methods, "he-server", "dealer")
each_called = of(lambda case: case.methods, "he-server", "pir-server", "gc-server", "gc-proxy", "serve", "dealer")
with_tokens = of(lambda case: case.tokens, "he-server", "pir-server")


def programs(source: str) -> list[str]:
    """The names by which a module runs services, as they are written."""
    if "run_service(" not in source:  # which saves most of the parsing
        return []
    calls = [node for node in nodes(parsed(source)) if isinstance(node, ast.Call)]
    return [ast.unparse(call.args[0]) for call in calls if last_name(call.func).endswith("run_service")]


def test_every_program_that_serves_is_here() -> None:
    found = [name for path in FILES for name in programs(path.read_text())]
    assert sorted(found) == sorted("_NAME" if case.name == "dealer" else repr(case.name) for case in CASES)
    assert programs("run_service('x', config, parts)\nprograms.run_service(NAME, config, parts)") == ["'x'", "NAME"]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.fixture(scope="module")
def case(request: pytest.FixtureRequest) -> ServiceCase:
    return request.param


@pytest.fixture(scope="module")
def certified(case: ServiceCase, world: World) -> Iterator[Started]:
    """The service behind certificates."""
    with Started(case, world, tls=True) as started:
        yield started.hold().go()


@pytest.fixture(scope="module")
def tokened(case: ServiceCase, world: World) -> Iterator[Started]:
    """The service at a Unix socket, behind tokens where it knows them."""
    with Started(case, world, tls=False) as started:
        yield started.hold().go()


def refusal(call: Callable[[], object]) -> grpc.RpcError:
    """The error that a call ends with."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value


def told(error: grpc.RpcError) -> PeerError:
    """The same in words."""
    return explain(error, "it")


def asked(channel: grpc.Channel, method: str, *messages: bytes) -> bytes:
    """All that a method says to these messages."""
    return b"".join(rpc_client.exchange(channel, method, iter(messages), timeout=HANG))


# TLS ------------------------------------------------------------------------------------------------------------------


def pinged(address: str, ca: Path, shown: Tls | None = None) -> str:
    """The status of a call with this certificate, which is shown as it is, also an expired one."""
    cert, key = (
        (None, None) if shown is None else (Path(str(shown.cert)).read_bytes(), Path(str(shown.key)).read_bytes())
    )
    with grpc.secure_channel(address, grpc.ssl_channel_credentials(ca.read_bytes(), key, cert)) as channel:
        try:
            rpc_client.call(channel, "Ping", b"", timeout=HANG)
        except grpc.RpcError as error:
            return error.code().name
    return "OK"


@called
def test_a_caller_shows_a_certificate_of_the_authority(certified: Started, world: World) -> None:
    (address, *_), ours, theirs = certified.addresses, world.ours, world.theirs
    certified.answered(certified.callers[0])
    assert pinged(address, ours.path, ours.issue("alice")) == "OK"
    for wrong in (None, theirs.issue("alice"), ours.issue("late", hours=-1)):
        assert pinged(address, ours.path, wrong) == "UNAVAILABLE"
    stranger = theirs.issue("alice")
    for wrong in (None, Tls(ca=ours.path), Tls(stranger.cert, stranger.key, ours.path)):  # the first in plain text
        with pytest.raises(PeerError, match="connection is refused") as caught:
            rpc_client.connect(address, wrong, HANG)
        assert caught.value.where == address and "another authority" in caught.value.hint
    with pytest.raises(PeerError, match="TLS failed.*CERTIFICATE_VERIFY_FAILED"):  # who trusts another authority
        rpc_client.connect(address, stranger, HANG)
    with pytest.raises(PeerError, match="TLS failed.*Hostname"):
        rpc_client.connect(address.replace("localhost", "127.0.0.1"), certified.callers[0].tls, HANG)
    names = {line["client"] for line in certified.calls() if line["method"] == certified.case.method}
    assert names == {certified.callers[0].name}
    certified.answered(certified.callers[0])


@called
def test_certificates_are_renewed_under_it(certified: Started) -> None:
    cert, ca = (f'hummingbird_certificate_expiry_timestamp_seconds{{file="{file}"}}' for file in ("cert", "ca"))
    (address, *_), (caller, *_) = certified.addresses, certified.callers
    assert caller.tls is not None
    port = int(address.rpartition(":")[2])
    before = shown(port, caller.tls)
    assert all(0 < certified.figures()[expiry] - time.time() <= 3600 for expiry in (cert, ca))
    with certified.channel(caller) as channel:
        certified.live[0].put(certified.certificate(0, hours=48))
        assert 47 * 3600 < certified.figures()[cert] - time.time() <= 48 * 3600
        after = shown(port, caller.tls)
        assert after != before and after == shown(port, caller.tls)
        certified.answered(caller, channel)  # the connection of before
    certified.answered(caller)
    Path(str(certified.live[0].tls.key)).write_text("nonsense")  # those of before stay in use
    assert shown(port, caller.tls) == after and certified.figures()[cert] > time.time()
    certified.live[0].put(certified.certificate(0))
    assert shown(port, caller.tls) not in (before, after)
    assert [event["event"] for event in certified.events()].count("certificates renewed") == 2


@called
def test_an_expired_certificate_is_an_error_at_once(case: ServiceCase, world: World) -> None:
    with Started(case, world, tls=True, hours=-1) as started:
        assert started.ended() == 1 and "error: the certificate expired 20" in started.said()
        assert started.page("/livez")[0] == 0


# Tokens ---------------------------------------------------------------------------------------------------------------


@with_tokens
def test_a_caller_shows_a_token_whichever_method_it_calls(tokened: Started) -> None:
    alice, bob, *_ = tokened.callers
    assert alice.token is not None and bob.token is not None
    absent, wrong = [None], [new_token(), alice.token[:-1], alice.token + "0", alice.token.upper(), "x"]
    with grpc.insecure_channel(tokened.addresses[0]) as plain:
        for tokens, words in ((absent, "wants a token"), (wrong, "does not know the token")):
            for token in tokens:
                with ExitStack() as ends:
                    channel = plain if token is None else grpc.intercept_channel(plain, rpc_client._Token(token))
                    for method in ("Ping", *tokened.case.methods):
                        held = Held(channel, method)  # refused before it has sent anything
                        ends.callback(held.cancel)
                        error = held.refusal()
                        assert error.code() == Code.UNAUTHENTICATED and words in str(error.details()), method
                        assert isinstance(told(error), AccessError)
    found = tokened.figures()
    for method in ("Ping", *tokened.case.methods):
        assert found[f'hummingbird_requests_total{{method="{method}",outcome="UNAUTHENTICATED"}}'] == 1 + len(wrong)
    for caller in (alice, bob):
        tokened.answered(caller)
    lines = [line for line in tokened.calls() if line["method"] == tokened.case.method]
    assert [line["client"] for line in lines if line["outcome"] == "OK"] == [alice.name, bob.name]
    assert all(line["client"] is None for line in lines if line["outcome"] != "OK")
    assert not [token for caller in tokened.callers if (token := caller.token or "") in tokened.logs[0].read_text()]


@with_tokens
def test_a_name_that_is_removed_is_refused_on_an_open_connection_too(tokened: Started) -> None:
    alice, bob, *_ = tokened.callers
    text = tokened.tokens.read_text()
    with tokened.channel(alice) as channel:
        tokened.answered(alice, channel)
        tokened.tokens.write_text(text.replace("alice", "# alice"))
        error = refusal(lambda: rpc_client.call(channel, "Ping", b"", timeout=HANG))
        assert error.code() == Code.UNAUTHENTICATED
        tokened.answered(bob)
        tokened.tokens.write_text(text)
        tokened.answered(alice, channel)


# Limits and fairness --------------------------------------------------------------------------------------------------


def refused(channel: grpc.Channel, method: str, words: str) -> None:
    """A call for which there is no room: said at once, with a time to retry."""
    held = Held(channel, method)
    error = held.refusal()
    assert error.code() == Code.RESOURCE_EXHAUSTED and words in str(error.details())
    full = told(error)
    assert isinstance(full, OverloadError) and full.retry_after > 0


@called
def test_calls_at_work_are_bounded_for_each_name_and_in_all_and_others_are_served(certified: Started) -> None:
    case, (alice, _, carol, dave) = certified.case, certified.callers
    others = [method for method in case.methods if method not in case.brief]
    with ExitStack() as ends:
        hers, his, third, fourth = (ends.enter_context(certified.channel(who)) for who in certified.callers)

        def hold(channel: grpc.Channel, count: int) -> None:
            for _ in range(count):
                ends.callback(Held(channel, case.method).cancel)

        hold(hers, EACH)
        certified.at_work(EACH)
        for method in others:
            refused(hers, method, f"{EACH} calls of yours are at work, the most")
        hold(his, NAMED)
        certified.at_work(EACH + NAMED)
        refused(his, case.method, f"{NAMED} calls of yours are at work, the most")
        for who in (carol, dave):
            certified.answered(who)
        hold(third, 1)
        certified.at_work(REQUESTS - 1)
        refused(third, case.method, "the room that is left is for callers with few")
        hold(fourth, 1)
        certified.at_work(REQUESTS)
        refused(fourth, case.method, f"{REQUESTS} calls are at work, the most")
        for method in ("Ping", *case.brief):  # a full service tells who asks what it is
            rpc_client.call(fourth, method, b"", timeout=HANG)
        assert (certified.health(), certified.page("/readyz")[0]) == ("SERVING", 200)
    certified.at_work(0)
    certified.answered(alice)


@called
def test_a_message_above_the_limit_is_no_matter_of_time(tokened: Started) -> None:
    case, (caller, *_) = tokened.case, tokened.callers
    with tokened.channel(caller) as channel:
        for method in (case.method, *case.streams):
            error = refusal(lambda method=method: asked(channel, method, bytes(case.largest + 1)))
            assert error.code() == Code.RESOURCE_EXHAUSTED and "larger than max" in str(error.details())
            assert not isinstance(told(error), OverloadError)
        for method in case.streams:  # whose messages are small
            error = refusal(lambda method=method: asked(channel, method, bytes(service.CHUNK + 1)))
            assert f"a message of {service.CHUNK + 1} bytes" in str(error.details())
    tokened.answered(caller)


@called
def test_who_sends_half_a_request_is_cut_off_and_others_go_on(tokened: Started) -> None:
    case, (alice, bob, *_) = tokened.case, tokened.callers
    methods = [method for method in case.methods if method not in case.brief][:EACH]
    with tokened.channel(alice) as channel:
        calls = [Held(channel, method) for method in methods]
        tokened.at_work(len(calls))
        tokened.answered(bob)
        tokened.hasty(True)
        for method, call in zip(methods, calls, strict=True):
            error = call.refusal()
            assert error.code() == (Code.FAILED_PRECONDITION if method in case.streams else Code.CANCELLED), method
        tokened.hasty(False)
        tokened.at_work(0)
        tokened.answered(alice, channel)


@called
def test_a_call_ends_at_its_callers_deadline(tokened: Started) -> None:
    case, (caller, *_) = tokened.case, tokened.callers
    with tokened.channel(caller) as channel:
        for method in case.methods:
            call = Held(channel, method, timeout=0.2)
            assert call.refusal().code() == Code.DEADLINE_EXCEEDED, method
        tokened.at_work(0)
        tokened.answered(caller, channel)


# Health and metrics ---------------------------------------------------------------------------------------------------


@called
def test_health_needs_no_name(tokened: Started) -> None:
    address = tokened.addresses[0]
    assert {telemetry.ask(address, name=name) for name in ("", "hummingbird", READY, LIVE)} == {"SERVING"}
    with pytest.raises(NotFoundError):
        telemetry.ask(address, name="other")


@pages
def test_pages_say_what_it_is(tokened: Started) -> None:
    assert (tokened.page("/livez"), tokened.page("/readyz")) == ((200, "alive\n"), (200, "ready\n"))
    for path in ("/", "/metrics/", "/anything", "/livez/ping"):
        assert tokened.page(path)[0] == 404, path
    assert tokened.page("/readyz?verbose") == (200, "ready\n")
    assert tokened.page("/metrics?name[]=hummingbird_ready")[1].endswith("hummingbird_ready 1.0\n")
    found = tokened.figures()
    assert found["hummingbird_ready"] == 1 and found["process_open_fds"] > 0


@called
def test_a_call_is_counted_and_logged(tokened: Started) -> None:
    (caller, *_), method = tokened.callers, tokened.case.method
    outcome = f'{{method="{method}",outcome="OK"}}'
    before, lines = tokened.figures(), len(tokened.calls())
    tokened.answered(caller)
    tokened.wait(lambda: tokened.figures()["hummingbird_requests_in_flight"] == 0, "the call to end")
    after = tokened.figures()

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    assert grown(f"hummingbird_requests_total{outcome}") == 1
    assert grown(f'hummingbird_request_duration_seconds_count{{method="{method}"}}') == 1
    (line,) = (line for line in tokened.calls()[lines:] if line["method"] == method)
    assert line["service"] == tokened.case.name and line["outcome"] == "OK" and line["ms"] > 0
    assert line["client"] == (caller.name if tokened.case.tokens else None)
    for way, octets in (("in", line["in"]), ("out", line["out"])):
        assert grown(f'hummingbird_message_bytes_total{{direction="{way}"}}') >= octets > 0
    assert tokened.logs[0].stat().st_mode & 0o777 == 0o600


# Garbage --------------------------------------------------------------------------------------------------------------

CLEAN = {
    *(Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION, Code.NOT_FOUND, Code.PERMISSION_DENIED),
    *(Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE),
}
COUNT = 12  # messages of each kind


def clean(channel: grpc.Channel, method: str, *messages: bytes) -> bool:
    """Whether garbage is refused, in the service's own words, which tell nothing of it. Some may be a request by
    chance, or be for a method that reads none.
    """
    try:
        asked(channel, method, *messages)
    except grpc.RpcError as error:
        assert error.code() in CLEAN, (method, error)
        assert "hummingbird-refused" in dict(error.trailing_metadata() or ()), (method, error)
        assert not any(len(data) >= 8 and data[:8].hex() in str(error.details()) for data in messages)
        return True
    return False


@each_called
def test_garbage_is_refused_in_words_and_it_goes_on(tokened: Started) -> None:
    case, (caller, *_) = tokened.case, tokened.callers
    generator, good = random.Random(random.random()), tokened.message(caller, seconds=2.0)
    fired = tokened.folder / "loaded"
    with tokened.channel(caller) as channel:
        for method in case.methods:
            garbage = [generator.randbytes(generator.randrange(300)) for _ in range(COUNT)]
            garbage += [mutated(generator, [good]) for _ in range(COUNT)]
            garbage += [bomb(fired), b"", bytes(service.CHUNK)]
            for data in garbage:
                clean(channel, method, data)
            assert method in case.brief or clean(channel, method)  # without a message
        for size in (0, 1, *(generator.randrange(len(good)) for _ in range(COUNT))):
            assert clean(channel, case.method, good[:size])
        for more in (b"x", bytes(16), good):
            assert clean(channel, case.method, good + more)
        for path in ("/hummingbird/Nothing", f"/nobody/{case.method}", "/"):
            error = refusal(lambda path=path: channel.unary_unary(path)(good, timeout=HANG))
            assert error.code() == Code.UNIMPLEMENTED and "no service of this kind" in told(error).what
        tokened.answered(caller, channel)
    for _ in range(COUNT):  # which does not even speak HTTP/2
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(tokened.addresses[0].removeprefix("unix:"))
            raw.sendall(generator.randbytes(1 + generator.randrange(500)))
    tokened.answered(caller)
    assert not fired.exists()
    faults = {name: n for name, n in tokened.figures().items() if re.search('_requests_total.*"INTERNAL"', name)}
    assert faults and not any(faults.values()), faults
    assert tokened.events() and "Traceback" not in tokened.said()


# The end --------------------------------------------------------------------------------------------------------------


@every
def test_it_is_ready_when_it_serves_and_no_longer_when_it_is_told_to_end(case: ServiceCase, world: World) -> None:
    """Calls under way are answered, new ones are refused, and it ends well."""
    with Started(case, world, tls=False) as started:
        started.hold()
        assert (started.page("/livez")[0], started.page("/readyz")[0]) == (200, 503)
        found = started.figures()
        methods = {name.partition('method="')[2].partition('"')[0] for name in found if "_requests_total{" in name}
        assert methods == set(case.methods) and found["hummingbird_ready"] == 0  # from zero, before the first calls
        if case.methods:
            assert (started.health(), started.health(LIVE)) == ("NOT_SERVING", "SERVING")
        started.go()
        with ExitStack() as ends:
            if case.methods:
                under_way(started, ends)
            else:
                started.terminate()
            assert started.ended() == 0, started.said()
        assert [event["event"] for event in started.events() if event["event"] != "call"] == [
            *(["listening"] if case.methods else []),
            *("ready", "not ready", "draining", "stopped"),
        ]
        assert {event["service"] for event in started.events()} == {case.name}
        assert started.events()[-1]["in_time"] and "Traceback" not in started.said()
        assert started.page("/metrics")[0] == 0
        assert not Path(started.folder / "s0").exists()
        for rank in range(1, case.processes):
            started.terminate(rank)
            assert started.ended(rank) == 0, started.said()


def under_way(started: Started, ends: ExitStack) -> None:
    """Tell a service to end while a call is under way, which is then answered."""
    case, (caller, other, *_) = started.case, started.callers
    channels = [ends.enter_context(started.channel(caller, rank)) for rank in range(case.processes)]
    others = ends.enter_context(started.channel(other))
    parts, (late, *_) = (case.request(channels, who.name, HANG) for who in (caller, other))
    calls = [Held(channel, case.method) for channel in channels]
    if len(parts) > 1:  # a party has what it needs, and waits for another one
        calls[0].send(parts[0])
        started.wait(lambda: started.figures()["hummingbird_serving_waiting_requests"] == 1, "a request to wait")
    else:
        started.at_work(1)
    started.terminate()
    until(lambda: started.page("/readyz")[0] == 503, "it to be told")
    assert (started.health(), started.health(LIVE), started.page("/livez")[0]) == ("NOT_SERVING", "SERVING", 200)
    assert started.figures()["hummingbird_ready"] == 0
    for method in case.methods if len(parts) == 1 else (case.method,):  # a party that ends still says what it serves
        error = refusal(lambda method=method: asked(others, method, late))
        assert error.code() == Code.UNAVAILABLE and isinstance(told(error), UnavailableError)
        assert "is stopping" in str(error.details())
    if len(parts) == 1:
        with pytest.raises(UnavailableError, match="is stopping"):
            rpc_client.connect(started.addresses[0], token=other.token, timeout=0.5)
    assert started.processes[0].poll() is None
    for call, part in zip(calls[len(parts) > 1 :], parts[len(parts) > 1 :], strict=True):
        call.send(part)
    assert [bool(call.answer()) for call in calls] == [True] * len(calls)
