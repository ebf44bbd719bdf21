"""The largest rate: each kind of bound by hand, and the one that holds."""

from __future__ import annotations

import dataclasses

import pytest

from hummingbird.capacity import Compute, Host, Phase, Send, Service, WorkStep, chain
from hummingbird.capacity.limit import limits

HOSTS = {"dealer": Host(cores=2, up=1e6, down=1e6), "party": Host(cores=8, store=1000, up=1e6, down=1e6)}


def service() -> Service:
    """Requests of 2 core-seconds on 2 cores at a time, refills of 1 s and of 8,000 bits."""
    return Service(
        "limits",
        HOSTS,
        request=Phase((WorkStep("compute", Compute("party", 2.0, 2)),), factors=(0.5, 1.5)),
        refill=chain(("deal", Compute("dealer", 1.0)), ("send", Send("dealer", "party", 1000))),
        token_bytes={"party": 10},
        refill_tokens=4,
        request_tokens=2,
        slots=3,
        workers=2,
    )


def test_every_bound() -> None:
    rates = {limit.cause: limit.rate for limit in limits(service())}
    assert rates == pytest.approx(
        {
            "3 requests at a time": 3.0,
            "2 refills at a time": 2 / (0.5 * 1.008),
            "cores of party": 4.0,
            "cores of dealer": 4.0,
            "the link up from dealer": 1e6 / 4000,
            "the link down to party": 1e6 / 4000,
        }
    )
    assert limits(service())[0].cause == "3 requests at a time"


def test_made_on_demand() -> None:
    """Without a store each request makes its refill, a whole one, in its slot."""
    hosts = {**HOSTS, "party": dataclasses.replace(HOSTS["party"], store=0)}
    first = limits(dataclasses.replace(service(), hosts=hosts, slots=5))[0]
    assert first.rate == pytest.approx(2 / 1.0) and first.cause == "cores of dealer"
    slow = limits(dataclasses.replace(service(), hosts=hosts, slots=1))[0]
    assert slow.rate == pytest.approx(1 / (1 + 1.008)) and "on demand" in slow.cause


def test_a_small_store_holds_fewer_refills() -> None:
    hosts = {**HOSTS, "party": dataclasses.replace(HOSTS["party"], store=70)}
    rates = {limit.cause: limit.rate for limit in limits(dataclasses.replace(service(), hosts=hosts))}
    assert rates["1 refill at a time"] == pytest.approx(1 / (0.5 * 1.008))
