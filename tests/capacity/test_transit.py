"""The way of a client's request to the parties and back: bytes of its messages, on a link of its own, in no slot."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import nn

from hummingbird import convert_model
from hummingbird.capacity import (
    Compute,
    Host,
    Hosts,
    Prices,
    Send,
    Service,
    Trace,
    Users,
    chain,
    constant,
    gmw,
    limits,
    masked,
    poisson,
    run,
    solve,
)
from hummingbird.capacity.result import cost_of
from hummingbird.capacity.system import transits
from hummingbird.cost import ANSWER_HEADER_BYTES, REQUEST_HEADER_BYTES, asking
from hummingbird.errors import ConfigError
from hummingbird.serving.message import Request, pack_answer, split
from hummingbird.serving.plan import describe
from tests.capacity.test_nets import SHAPE, net, profile
from tests.support.parties import sessions

UP, DOWN = 8e5, 4e5  # bits per second of a client's link


PRICES = Prices(core_hour=1.0, gb_sent=1.0, gb_month=1.0)


@pytest.fixture(scope="module")
def service() -> Service:
    private = net()
    return masked(private, SHAPE, profile(private))


def thin(service: Service, **changes: float) -> Service:
    """The service for clients with a link of their own."""
    client = dataclasses.replace(service.hosts["client"], up=UP, down=DOWN)
    return dataclasses.replace(service, hosts={**service.hosts, "client": dataclasses.replace(client, **changes)})


def messages(service: Service) -> dict[tuple[str, str], float]:
    assert service.transit is not None
    works = [step.work for step in service.transit.steps if isinstance(step.work, Send)]
    return {(work.source, work.target): work.bytes for work in works}


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("make", [masked, gmw])
def test_messages_have_the_bytes_that_a_client_and_the_parties_make(make: object, parties: int) -> None:
    private = net(protocol=make.__name__)  # type: ignore[attr-defined]
    opened = sessions(parties)
    known = describe(private, SHAPE[1:], SHAPE[0], opened[0], "ab" * 16)
    for session in opened:
        session.channel.close()
    bodies = split(torch.zeros(SHAPE, dtype=torch.int64), known.bits, parties)
    answer = len(pack_answer(torch.zeros(SHAPE[0], known.results, dtype=torch.int64), known.result_bits))
    found = messages(make(private, SHAPE, profile(private, parties), parties=parties))  # type: ignore[operator]
    for rank, body in enumerate(bodies):
        whole = Request(bytes(16), bytes(16), 0, SHAPE[0], body).to_bytes(known, rank)
        assert found["client", f"party-{rank}"] == len(whole)
        assert found[f"party-{rank}", "client"] == answer
    values, results = SHAPE[0] * known.values, SHAPE[0] * known.results
    price = asking(parties, values, known.bits, results, known.result_bits)
    assert sum(size for (source, _), size in found.items() if source == "client") == price[0]
    assert sum(size for (_, target), size in found.items() if target == "client") == price[1]
    assert len(found) == 2 * parties and min(found.values()) > min(REQUEST_HEADER_BYTES, ANSWER_HEADER_BYTES)


def test_a_lone_request_takes_its_way_over_the_clients_link(service: Service) -> None:
    there = thin(service).at(Hosts(store=1e9, rtt=0.1))
    sizes = messages(there)
    up = sum(size for (source, _), size in sizes.items() if source == "client")
    down = sum(size for (_, target), size in sizes.items() if target == "client")
    assert there.transit_seconds() == pytest.approx(8 * up / UP + 8 * down / DOWN + 0.1)
    got = run(there, None, constant(0.1, images=SHAPE[0]), runs=2, requests=50, engine="recurrence")
    assert got.means["transit"].value == pytest.approx(there.transit_seconds())
    assert got.means["wait"].value == pytest.approx(0, abs=1e-9)
    parts = got.means["online"].value + there.transit_seconds()
    assert got.means["latency"].value == pytest.approx(parts)
    events = run(there, None, constant(0.1, images=SHAPE[0]), runs=2, requests=50, engine="events")
    assert events.means["transit"] == pytest.approx(got.means["transit"])


def test_requests_of_several_images_send_as_many_times_the_bytes(service: Service) -> None:
    """Four slices in one arrival: their bytes, and one round trip."""
    there = thin(service).at(Hosts(store=1e9, rtt=0.1))
    wire = there.transit_seconds() - 0.1
    assert there.transit_seconds(4) == pytest.approx(4 * wire + 0.1)
    traced = Trace((0.0, 100.0, 200.0), (1, 4 * SHAPE[0], SHAPE[0] + 1))
    got = run(there, None, traced, runs=1, requests=3)
    assert transits(there, got.load)[0] == pytest.approx([wire + 0.1, 4 * wire + 0.1, 2 * wire + 0.1])
    o = got.outcome
    assert o.latency[0] == pytest.approx((o.left - o.went + transits(there, got.load))[0])


def test_a_slice_of_more_images_is_a_larger_message(service: Service) -> None:
    private, larger = net(), (4 * SHAPE[0], *SHAPE[1:])
    found = messages(masked(private, larger, profile(private, shape=larger)))
    words = messages(service)["client", "party-1"] - REQUEST_HEADER_BYTES
    assert found["client", "party-1"] - REQUEST_HEADER_BYTES == pytest.approx(4 * words, abs=4)
    assert found["client", "party-0"] == messages(service)["client", "party-0"]


def test_a_clients_link_delays_its_own_requests_and_bounds_nothing(service: Service) -> None:
    """And costs the service nothing: neither do its machine's cores."""
    wide, slow = (thin(service, up=up).at(Hosts(store=1e9, cores=4, prices=PRICES)) for up in (math.inf, 1e3))
    assert limits(wide) == limits(slow) and not any("client" in limit.cause for limit in limits(slow))
    assert slow.hosts["client"].cores == 1 and slow.hosts["party-0"].cores == 4
    requests = poisson(limits(slow)[0].rate / 2, images=SHAPE[0])
    two = [run(each, None, requests, runs=2, requests=600) for each in (wide, slow)]
    assert tuple(cost_of(two[0])) == pytest.approx(tuple(cost_of(two[1]))) and cost_of(two[0]).sent > 0
    assert two[0].utilisation == pytest.approx(two[1].utilisation)
    later = slow.transit_seconds() - wide.transit_seconds()
    assert later > 1 and two[1].quantile(0.99).value - two[0].quantile(0.99).value == pytest.approx(later, rel=1e-6)


@pytest.mark.slow
def test_what_a_faster_link_of_the_client_would_give_is_told(service: Service) -> None:
    slow = thin(service, up=1e4, down=math.inf).at(Hosts(store=1e9))
    most = 1.2 * (slow.transit_seconds() + slow.seconds(slow.request))
    found = solve(slow, None, p99=most, vary="rate", requests=1000)
    assert -1 < found.elasticities["client's up"] < -0.8 and "client's down" not in found.elasticities
    with pytest.raises(ConfigError, match="that an idle service takes"):
        solve(slow, None, p99=0.9 * slow.transit_seconds(), vary="rate", requests=1000)


@pytest.mark.slow
def test_a_link_of_the_client_that_takes_no_time_is_not_told(service: Service) -> None:
    quick = solve(service.at(Hosts(store=1e9, rtt=0.1)), None, p99=10.0, vary="rate", requests=1000)
    assert "client's up" in quick.elasticities or quick.run.service.transit_seconds() < 0.05 * quick.figure


def test_a_link_that_other_phases_share_is_no_bound_of_the_recurrence() -> None:
    """It takes shared links for unshared, but for those of the transit alone."""
    hosts = {"client": Host(up=1e3, down=1e3), "a": Host(up=1e6, down=1e4), "b": Host(down=1e5)}
    transit = chain(("up", Send("client", "a", 100.0)), ("other", Send("client", "b", 100.0)))
    work = chain(("compute", Compute("a", 1e-3)), ("talk", Send("b", "a", 20.0)))
    both = Service("two", hosts, request=work, transit=transit)
    assert both.clients == {"client"}
    assert [limit.rate for limit in limits(both)] == pytest.approx([1e4 / 960, 1 / 0.017, 1e5 / 800, 1e3])
    for engine, cause in (("events", "the link down to a"), ("recurrence", "1 request at a time")):
        assert run(both, None, poisson(1.0), runs=1, requests=10, engine=engine).limit.cause == cause


def test_users_wait_for_the_wire_before_they_think_again() -> None:
    hosts = {"client": Host(up=800.0), "server": Host()}
    transit = chain(("up", Send("client", "server", 100.0)))
    there = Service("one", hosts, request=chain(("compute", Compute("server", 1.0))), transit=transit)
    got = run(there, None, Users(1, 0.0, images=3), runs=1, requests=20)
    assert got.goodput == pytest.approx(1 / (3 * 1.0 + 3 * 1.0), rel=0.06)  # three seconds of wire, three of work
    assert got.outcome.latency[0] == pytest.approx([6.0] * 20)


def test_a_net_of_public_inputs_has_no_client() -> None:
    """Such a net is not served (serving/plan.py)."""
    embedding = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 3), nn.ReLU()).eval()
    private = convert_model(embedding, example=torch.zeros(2, 5, dtype=torch.int64))
    found = masked(private, (2, 0), profile(private, shape=(2, 0)))
    assert found.transit is None and "client" not in found.hosts
