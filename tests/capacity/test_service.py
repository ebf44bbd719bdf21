"""Services as data: seconds of steps and phases, K, machines set, JSON there and back, and everything refused."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from hummingbird.capacity import (
    Compute,
    Host,
    Hosts,
    Phase,
    Prices,
    Rounds,
    Send,
    Service,
    WorkStep,
    chain,
    from_text,
    to_text,
)
from hummingbird.capacity.events import Machine
from hummingbird.errors import ConfigError, InputError


def service(**changes: Any) -> Service:
    """A client that stores tokens of 3 GB, a server without a limit on its link."""
    hosts = {"client": Host(cores=4, store=16e9, up=1e8, down=4e8), "server": Host(cores=32, store=64e9)}
    request = Phase(
        (
            WorkStep("both", Rounds(3), ("up", "evaluate")),
            WorkStep("up", Send("client", "server", 5e6)),
            WorkStep("evaluate", Compute("server", 64.0, 16)),
        ),
        factors=(0.5, 1.5),
    )
    refill = chain(("garble", Compute("client", 8.0, 8)), ("tables", Send("server", "client", 1e9)))
    fields = {"refill": refill, "token_bytes": {"client": 3 * 10**9, "server": 10**9}, "rtt": 0.02}
    return Service("two", hosts, request, **{**fields, **changes})


def test_seconds_of_steps_and_of_the_longest_path() -> None:
    one = service()
    assert [step.name for step in one.request.steps] == ["up", "evaluate", "both"]
    assert [one.step_seconds(step) for step in one.request.steps] == pytest.approx([0.4, 4.0, 0.03])
    assert one.seconds(one.request) == pytest.approx(4.03)
    assert one.seconds(one.request, 0.05) == pytest.approx(0.43)  # the link is the longer one now
    assert one.refill is not None and one.seconds(one.refill) == pytest.approx(8 / 4 + 8e9 / 4e8)


def test_tokens_are_the_least_over_the_hosts() -> None:
    assert service().most_tokens == 5
    assert service(token_bytes={"client": 10**9, "server": 10**10}).most_tokens == 6
    assert service(token_bytes={"client": 17 * 10**9}).most_tokens == 0  # made on demand
    assert service(token_bytes={}, refill=None).most_tokens == 0


def test_other_machines_and_another_link() -> None:
    one = service().at(Hosts(cores=2, store=9e9, bandwidth=1e6, up=2e6, rtt=0.5, prices=Prices(core_hour=1.0)))
    assert one.hosts["client"] == Host(2, 9e9, 2e6, 1e6, Prices(1.0)) and one.rtt == 0.5
    assert one.hosts["server"] == Host(2, 9e9, math.inf, math.inf, Prices(1.0))  # its link stays without a limit
    assert service().at(Hosts()) == service()


def test_json_there_and_back() -> None:
    for one in (
        service(),
        service(session=chain(("key", Rounds(1)))),
        service(refill=None, token_bytes={}, slots=2, notes=("a", "b")),
    ):
        assert from_text(to_text(one), "file") == one


Change = Callable[[dict[str, Any]], object]
BAD: dict[str, tuple[Change, str]] = {
    "a newer version": (lambda d: d.update(version=2), "version 2"),
    "an unknown field": (lambda d: d.update(colour=1), "unknown field 'colour'"),
    "a field of a host": (lambda d: d["hosts"]["client"].update(gpus=1), "unknown field 'gpus'"),
    "a field of a step": (lambda d: d["request"]["steps"][0].update(colour=1), "unknown field 'colour'"),
    "no request": (lambda d: d.pop("request"), "no field 'request'"),
    "work on an unknown host": (
        lambda d: d["refill"]["steps"][0]["compute"].update(host="moon"),
        "unknown host moon",
    ),
    "a link to an unknown host": (lambda d: d["refill"]["steps"][1]["send"].update(target="moon"), "unknown host moon"),
    "a token on an unknown host": (lambda d: d.update(token_bytes={"moon": 1}), "unknown host moon"),
    "a cycle": (lambda d: d["request"]["steps"][0].update(after=["both"]), "a cycle"),
    "after nothing": (lambda d: d["request"]["steps"][0].update(after=["tea"]), "waits for tea"),
    "one name twice": (lambda d: d["request"]["steps"][0].update(name="both"), "two steps named both"),
    "notes of numbers": (lambda d: d.update(notes=[1]), "notes[0] is 1, not a text"),
    "two works": (lambda d: d["request"]["steps"][0].update(rounds=2), "a step with send, rounds"),
    "no work": (lambda d: d["request"]["steps"][0].pop("send"), "a step with no work"),
    "negative bytes": (lambda d: d["request"]["steps"][0]["send"].update(bytes=-1), "-1 is no number of bytes"),
    "a link of no bits": (lambda d: d["hosts"]["client"].update(up=0), "0 is no number of bits per second"),
    "no cores": (lambda d: d["hosts"]["client"].update(cores=0), "0 cores"),
    "cores in halves": (lambda d: d["hosts"]["client"].update(cores=1.5), "1.5 cores"),
    "true cores": (lambda d: d["hosts"]["client"].update(cores=True), "True cores"),
    "a word for a number": (lambda d: d.update(rtt="2ms"), "'2ms' is no number"),
    "a store of less than nothing": (lambda d: d["hosts"]["client"].update(store=-1), "-1 is no number of bytes"),
    "a request of too many tokens": (lambda d: d.update(request_tokens=6), "6 tokens, but the stores hold 5"),
    "a refill of too many tokens": (lambda d: d.update(refill_tokens=6), "6 tokens, but the stores hold 5"),
    "tokens without a refill": (lambda d: d.pop("refill"), "without a refill"),
    "a refill without tokens": (lambda d: d.pop("token_bytes"), "without a refill"),
    "a token in halves": (lambda d: d["token_bytes"].update(client=1.5), "1.5 bytes of a token"),
    "steps that are no list": (
        lambda d: d["request"].update(steps={}),
        "request.steps is an object of 0 fields, not a list",
    ),
    "a host that is a number": (lambda d: d["hosts"].update(client=3), "not an object"),
    "a factor of nothing": (lambda d: d["request"].update(factors=[0]), "0 is no number"),
    "no host in a step": (lambda d: d["refill"]["steps"][0]["compute"].pop("host"), "compute has no field 'host'"),
    "a price below nothing": (lambda d: d["hosts"]["client"]["prices"].update(gb_sent=-1), "-1 is no number of money"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_services_are_refused(case: str) -> None:
    change, says = BAD[case]
    data = json.loads(to_text(service()))
    change(data)
    with pytest.raises(InputError) as refused:
        from_text(json.dumps(data), "my.json")
    assert says in refused.value.what and refused.value.where.startswith("my.json")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": "x"}', "NaN", "[" * 10**5])
def test_texts_that_are_no_service(text: str) -> None:
    with pytest.raises(InputError, match=r"my\.json"):
        from_text(text, "my.json")


def test_python_says_the_same() -> None:
    with pytest.raises(ConfigError, match="sends to itself"):
        Send("client", "client", 1)
    with pytest.raises(ConfigError, match="is no number of bytes"):
        service().at(Hosts(store=math.nan))
    with pytest.raises(ConfigError, match="stores hold 5"):
        dataclasses.replace(service(), request_tokens=6)


def test_steps_of_one_phase_share_their_links_and_cores() -> None:
    """A dealer sends both parties 1 MB up a link of 8 Mb/s: 2 s, whatever the parties' links carry."""
    hosts = {"dealer": Host(cores=2, up=8e6, down=8e6), "a": Host(up=8e6, down=80e6), "b": Host(up=8e6, down=16e6)}
    to_a, to_b = WorkStep("a", Send("dealer", "a", 1e6)), WorkStep("b", Send("dealer", "b", 1e6))
    one = Service("dealt", hosts, Phase((to_a, to_b)))
    assert one.seconds(one.request) == pytest.approx(2.0)
    # Half of the link each until the smaller one has come after 1 s; then the other has all of it.
    uneven = Phase((to_a, WorkStep("b", Send("dealer", "b", 5e5)), WorkStep("then", Compute("a", 0.25), ("b",))))
    assert one.seconds(uneven) == pytest.approx(1.5)
    # A link down of 2 Mb/s bounds one of them: it takes 4 s, and the other has three quarters of the dealer's.
    slow = dataclasses.replace(one, hosts=hosts | {"b": Host(down=2e6)})
    assert slow.seconds(slow.request) == pytest.approx(4.0)
    # Three core-seconds on two cores, one thread each: two at once at full speed, three at two thirds.
    cores = Phase(tuple(WorkStep(str(n), Compute("dealer", 1.0)) for n in range(3)))
    assert one.seconds(cores) == pytest.approx(1.5)
    assert one.seconds(Phase(cores.steps[:2]), 3.0) == pytest.approx(3.0)
    assert one.seconds(Phase(())) == 0.0


@pytest.mark.parametrize("seed", range(20))
def test_a_phase_alone_takes_what_the_event_engine_says(seed: int) -> None:
    """Random graphs of steps: sends and computing that share hosts, rounds that share nothing."""
    draw = random.Random(seed)
    hosts = {name: Host(draw.randint(1, 3), up=draw.uniform(1e6, 9e6), down=draw.uniform(1e6, 9e6)) for name in "abc"}
    steps = list[WorkStep]()
    for number in range(draw.randint(1, 9)):
        source, target = draw.sample("abc", 2)
        computing = Compute(source, draw.random(), draw.randint(1, 4))
        sending = Send(source, target, 1e6 * draw.random())
        after = draw.sample(steps, draw.randint(0, min(2, len(steps))))
        steps.append(WorkStep(str(number), draw.choice((computing, sending, Rounds(3))), tuple(s.name for s in after)))
    one, factor = Service("random", hosts, Phase(tuple(steps)), rtt=0.1), draw.uniform(0.5, 2)
    ended = list[float]()
    machine = Machine(one)
    machine.run(one.request, factor, 1, lambda: ended.append(machine.now))
    while not ended:
        machine.advance()
    assert one.seconds(one.request, factor) == pytest.approx(ended[0], rel=1e-9)
