"""Traces: a request through a client and two parties under one id, material and its dealer, what no span holds."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import grpc
import pytest
import torch
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from hummingbird.bits import BitWindow
from hummingbird.convert import build
from hummingbird.errors import InputError, OverloadError, PeerError
from hummingbird.mpc.dealer.client import DealerClient
from hummingbird.mpc.protocols.beaver import SquarePair
from hummingbird.rpc import client as rpc_client
from hummingbird.rpc import service, spans
from hummingbird.serving.client import Client
from hummingbird.serving.dispatcher import LocalDispatcher
from hummingbird.serving.lane_server import LaneServer
from hummingbird.serving.models import Models, ServedModel
from hummingbird.serving.party import Methods, Party
from hummingbird.serving.plan import describe
from hummingbird.serving.worker import Worker
from tests.support.dealers import Running
from tests.support.parties import channels, sessions, together
from tests.support.patience import HANG
from tests.support.serving_nets import doubled


@pytest.fixture
def recorded() -> Iterator[InMemorySpanExporter]:
    """All spans that this process records, of client and parties together."""
    found, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(found))
    spans.enable(provider)
    yield found
    spans.disable()


def run(party: Party) -> None:
    with suppress(PeerError):  # it may see first that the other one has closed
        party.run()


@contextmanager
def serving(net: torch.nn.Module) -> Iterator[list[str]]:
    """Two parties of this process that serve a net; their addresses."""
    both, private, control = sessions(2), build(net, BitWindow(30, 0)), channels(2)
    described = describe(private, (4,), 8, both[0], "ab" * 16)

    def join(rank: int) -> Party:
        model = ServedModel(build(net, BitWindow(30, 0)), described)
        models = Models(both[rank], "ab" * 16, fixed=model)
        worker = Worker(models, both[rank])
        dispatcher = LocalDispatcher(models.offer, both[rank], control[rank], wait=0.001, beat=worker.beat)
        return Party(worker, dispatcher, LaneServer(dispatcher, described, both[rank]))

    parties = together([partial(join, rank) for rank in range(2)])
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        addresses = [f"unix:{folder}/{rank}" for rank in range(2)]
        for party, address in zip(parties, addresses, strict=True):
            methods = Methods()
            methods.open(party)
            server = service.serve(methods.handlers(), address)
            stack.callback(lambda server=server: server.stop(0).wait(HANG))
        running = threading.Thread(target=together, args=([partial(run, party) for party in parties],))
        running.start()
        yield addresses
        parties[0].end()
        running.join(HANG)


def named(found: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [each for each in found.get_finished_spans() if each.name == f"hummingbird.{name}"]


def parents(found: Sequence[ReadableSpan]) -> set[int]:
    return {each.parent.span_id for each in found if each.parent is not None}


def ids(found: Sequence[ReadableSpan]) -> set[int]:
    return {each.context.span_id for each in found if each.context is not None}


CLOCKS = 10**7  # nanoseconds, between two readings of the same moment by two clocks
SAID = {"outcome", "group", "request", "queued_ms", "computed_ms"}  # of a request's spans


def test_a_request_has_one_id_at_the_client_and_at_both_parties(recorded: InMemorySpanExporter) -> None:
    net, x = doubled(), torch.rand(3, 4)
    with serving(net) as addresses, Client(addresses, timeout=HANG) as client:
        assert (client(x) - net(x)).abs().max() < 1e-3
    way = {name: named(recorded, name) for name in ("ask", "request", "Ask", "queue", "batch")}
    assert {name: len(each) for name, each in way.items()} == dict(ask=1, request=1, Ask=2, queue=2, batch=2)
    assert len({span.context.trace_id for each in way.values() for span in each if span.context is not None}) == 1
    assert parents(way["request"]) == ids(way["ask"]) and parents(way["Ask"]) == ids(way["request"])
    assert parents(way["queue"]) == parents(way["batch"]) == ids(way["Ask"])
    for asked, queued, batch in zip(way["Ask"], way["queue"], way["batch"], strict=True):
        moments = [
            asked.start_time,
            queued.start_time,
            queued.end_time,
            batch.start_time,
            batch.end_time,
            asked.end_time,
        ]
        known = [moment for moment in moments if moment]
        assert len(known) == 6 and all(a < b + CLOCKS for a, b in zip(known, known[1:], strict=False))
    assert len({each.attributes["hummingbird.request"] for each in way["Ask"] if each.attributes}) == 1
    said = [key for each in recorded.get_finished_spans() for key in each.attributes or {}]
    assert {key.removeprefix("hummingbird.") for key in said} == SAID
    assert not [event for each in recorded.get_finished_spans() for event in each.events]


def test_a_span_tells_of_a_failure_by_the_name_of_its_class_alone(recorded: InMemorySpanExporter) -> None:
    with pytest.raises(InputError), spans.span("ask"):
        raise InputError(f"{torch.rand(3)} of shape (3,)", where="layer 7", hint="4096")
    (span,) = recorded.get_finished_spans()
    assert dict(span.attributes or {}) == {"hummingbird.outcome": "InputError"}
    assert not span.events and not span.status.is_ok and span.status.description is None


# Calls of any service -------------------------------------------------------------------------------------------------


def refuse(message: bytes, context: grpc.ServicerContext) -> bytes:
    raise OverloadError("64 calls of shape (3, 3)")


@pytest.fixture
def channel() -> Iterator[grpc.Channel]:
    with tempfile.TemporaryDirectory() as folder:
        server = service.serve({"Echo": lambda message, context: message, "Refuse": refuse}, f"unix:{folder}/s")
        with rpc_client.connect(f"unix:{folder}/s") as found:
            yield found
        server.stop(0).wait(HANG)


def test_a_service_begins_no_trace(recorded: InMemorySpanExporter, channel: grpc.Channel) -> None:
    assert rpc_client.call(channel, "Echo", b"x", timeout=HANG) == b"x"
    assert not recorded.get_finished_spans()
    with spans.span("outer"):
        assert rpc_client.call(channel, "Echo", b"x", timeout=HANG) == b"x"
        with pytest.raises(grpc.RpcError):
            rpc_client.call(channel, "Refuse", b"x", timeout=HANG)
    (refused,) = named(recorded, "Refuse")
    assert len(named(recorded, "Echo")) == 1
    assert dict(refused.attributes or {}) == {"hummingbird.outcome": "RESOURCE_EXHAUSTED"} and not refused.events


GOOD = f"00-{'ab' * 16}-{'cd' * 8}-01"


@pytest.mark.parametrize(
    ("sent", "taken"),
    [
        (GOOD, True),
        ("", False),
        ("x" * 4096, False),
        (GOOD[:-1], False),
        (f"00-{'0' * 32}-{'cd' * 8}-01", False),
        (f"ff-{'ab' * 16}-{'cd' * 8}-01", False),
    ],
)
def test_a_header_that_is_none_is_left_alone(
    sent: str, taken: bool, recorded: InMemorySpanExporter, channel: grpc.Channel
) -> None:
    metadata = [("traceparent", sent), ("tracestate", "a=b"), ("traceparent-bin", b"\0")]
    assert channel.unary_unary(service.PREFIX + "Echo")(b"x", timeout=HANG, metadata=metadata) == b"x"
    found = recorded.get_finished_spans()
    assert len(found) == taken
    assert all(each.context is not None and not each.context.trace_state for each in found)


def test_material_and_its_dealer_are_one_trace(recorded: InMemorySpanExporter, running: Running) -> None:
    request = SquarePair((4,))

    def ask(client: DealerClient) -> None:
        with spans.span("ask"):
            client.correlation(request)

    together([partial(ask, client) for client in running.all(2)])
    made, dealt = named(recorded, "material"), named(recorded, "Correct")
    assert len(made) == 2 and len(dealt) == 1 and parents(dealt) < ids(made) and not parents(made)
    assert {key for each in (*made, *dealt) for key in each.attributes or {}} == {"hummingbird.outcome"}


# Off ------------------------------------------------------------------------------------------------------------------


def test_nothing_is_recorded_and_nothing_is_sent_by_default(channel: grpc.Channel) -> None:
    found, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(found))
    with trace.use_span(provider.get_tracer("application").start_span("own")), spans.span("ask"):
        assert spans.header() == ()
        metadata = [("traceparent", GOOD)]
        assert channel.unary_unary(service.PREFIX + "Echo")(b"x", timeout=HANG, metadata=metadata) == b"x"
    spans.begin("ask").end()
    assert not found.get_finished_spans()
