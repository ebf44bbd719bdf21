"""SG and CG against the paper's formulas written out plainly, its tables and figures, and a search of splits."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import re
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from hummingbird.capacity import paper, poisson, run
from hummingbird.capacity.limit import limits
from hummingbird.capacity.paper import Threads
from hummingbird.capacity.published import asplos23, parse
from hummingbird.errors import ConfigError
from scripts.papers import asplos_profile
from scripts.papers.asplos_section import offline, online, total
from scripts.train.data import read_text
from tests.support.covering import every

PROFILE = asplos23()
R18 = PROFILE.net("tinyimagenet/resnet18")


Setting = tuple[str, str, float, float, int, int, int, float]  # kind, net, Mb/s up and down, threads, GB


def settings() -> list[Setting]:
    """Thirty: each net as SG and CG, links, threads and stores in turn."""
    links = cycle([(500, 500), (835, 165), (198, 802), (90, 10), (2000, 7)])
    threads = cycle([(4, 1, 32), (1, 2, 1), (2, 13, 4), (8, 5, 64)])
    stores = cycle([16, 0, 8, 140, 41, 1000, 3])
    cases = [(kind, name) for name in PROFILE.nets for kind in ("sg", "cg")] * 3
    return [
        (kind, name, *link, *counts, store)
        for (kind, name), link, counts, store in zip(cases[:30], links, threads, stores, strict=False)
    ]


SERVER_VALUES = {  # SERVER_LINEAR_STORAGE of the artifact
    "cifar10/resnet18": 557066,
    "cifar10/resnet32": 303114,
    "cifar10/vgg16": 284682,
    "tinyimagenet/resnet18": 2228424,
    "tinyimagenet/resnet32": 1212616,
    "tinyimagenet/vgg16": 1114312,
}


def plainly(setting: Setting) -> tuple[float, float, int, int]:
    """T_off, T_on, bytes of a token and K, as the formulas of the paper's artifact read."""
    kind, name, up, down, client, he, server, store = setting
    u, d = up * 1e6 / 8, down * 1e6 / 8  # bytes per second
    net = PROFILE.nets[name]
    n = net.relus

    def gc(what: str, threads: int) -> float:
        return (PROFILE.lines[what].slope * n + PROFILE.lines[what].intercept) / threads

    off = net.keygen + net.key / u + net.encrypt + net.up / u + net.he[he - 1] + net.down / d + net.decrypt
    if kind == "sg":
        g = net.sg
        off += gc("garble_server", server) + g.offline_encode + g.garbled / d
        off += (g.base_ot + g.ot_setup) / u + g.ot_send / d
        on = g.input / u + g.encode + g.labels / d + g.linear + gc("eval_client", client) + g.prediction / d
        size = 8 * net.linear_values + 18248 * n
    else:
        g = net.cg
        off += gc("garble_client", client) + g.offline_encode + g.garbled / u + g.base_ot / d
        on = g.input / u + g.linear + g.encode + g.ot_setup / d + g.ot_send / u
        on += gc("eval_server", server) + g.prediction / d
        size = 8 * net.linear_values + 3590 * n
    return off, on, size, math.floor(store * 1e9 / size)


@pytest.mark.parametrize("setting", settings(), ids=str)
def test_thirty_settings_are_the_formulas(setting: Setting) -> None:
    kind, name, up, down, client, he, server, store = setting
    threads = Threads(client, he, server)
    at = paper.service(kind, PROFILE.net(name), threads, up=up * 1e6, down=down * 1e6, store=store * 1e9)
    off, on, size, tokens = plainly(setting)
    assert offline(at) == pytest.approx(off, abs=1e-6) and online(at) == pytest.approx(on, abs=1e-6)
    assert at.token_bytes == {"client": size} and at.most_tokens == tokens


def raw(constants: dict[str, Any], kind: str, name: str, link: tuple[float, float], he: int) -> tuple[float, float]:
    """T_off and T_on from the artifact's arrays, threads 4 and 32."""
    c = constants["networks"][f"{name}/{'server' if kind == 'sg' else 'client'}-garbler"]
    u, d = (rate * 1e6 / 8 for rate in link)
    dataset, _, model = name.partition("/")
    fits = constants["gc"]

    def s(key: str) -> float:
        return float(sum(c[key])) if isinstance(c[key], list) else c[key]

    def gc(what: str, threads: int) -> float:
        return (fits["fit_slope_s_per_relu"][what] * c["NUM_RELU"] + fits["fit_intercept_s"][what]) / threads

    off = s("off_client_compute_keygen") + s("off_client_write_key") / u + s("off_client_compute_he_encrypt")
    off += s("off_client_write_linear") / u + constants["he_lphe_s_by_threads"][dataset][model][he - 1]
    off += s("off_server_write_linear") / d + s("off_client_compute_he_decrypt")
    if kind == "sg":
        off += gc("garble_server", 32) + s("off_server_compute_encode") + s("off_server_write_garbled_c") / d
        off += (s("off_client_write_base_ot") + s("off_client_write_ext_ot_setup")) / u
        off += s("off_server_write_ext_ot_send") / d
        on = s("on_client_write_linear") / u + s("on_server_compute_encode") + s("on_server_write_relu") / d
        return off, on + s("on_server_compute_linear") + gc("eval_client", 4) + s("on_server_write_pred") / d
    off += gc("garble_client", 4) + s("off_client_compute_encode") + s("off_client_write_garbled_c") / u
    off += s("off_server_write_base_ot") / d
    n = len(c["on_client_write_ext_ot_send"])
    on = c["on_client_write_linear"][0] / u + sum(c["on_server_compute_linear"][:n])
    on += sum(c["on_client_compute_encode"][:n]) + sum(c["on_server_write_ext_ot_setup"][:n]) / d
    on += s("on_client_write_ext_ot_send") / u + gc("eval_server", 32)
    return off, on + c["on_server_compute_linear"][-1] + s("on_server_write_pred") / d


@pytest.mark.skipif(not os.environ.get("HUMMINGBIRD_DATA"), reason="HUMMINGBIRD_DATA has the published arrays")
def test_the_profile_is_that_of_the_published_arrays() -> None:
    constants = json.loads(read_text("characterization/constants.json"))
    for name, net in PROFILE.nets.items():
        for kind, link in (("sg", (500, 500)), ("cg", (835, 165))):
            at = paper.service(kind, net, Threads(4, len(net.he), 32), up=link[0] * 1e6, down=link[1] * 1e6)
            assert (offline(at), online(at)) == pytest.approx(raw(constants, kind, name, link, len(net.he)), abs=1e-6)
            c = constants["networks"][f"{name}/server-garbler"]
            kept = constants["storage_bytes_per_relu"]["evaluator" if kind == "sg" else "garbler"]
            assert at.token_bytes["client"] == 8 * c["CLIENT_LINEAR_STORAGE"] + c["NUM_RELU"] * kept
            assert net.server_values == c["SERVER_LINEAR_STORAGE"]


def test_figure_10_s_ends() -> None:
    """At 8 GB no token fits: a request makes its own."""
    at = paper.proposed(R18, 8e9)
    assert at.most_tokens == 0 and round(total(at)) == 1053
    assert round(total(paper.side_by_side(at, "cg", R18, 4))) == 3126
    assert paper.proposed(R18, 140e9).most_tokens == 17


@pytest.mark.parametrize(("name", "kind"), every(7, [*itertools.product(PROFILE.nets, paper.KINDS)]))
def test_the_best_split_is_what_a_search_finds(name: str, kind: str) -> None:
    net = PROFILE.net(name)

    def seconds(up: float) -> float:
        return total(paper.service(kind, net, up=up, down=1e9 - up))

    up, down = paper.best_split(paper.service(kind, net, up=5e8, down=5e8))
    assert up + down == pytest.approx(1e9)
    searched = min((share * 1e6 for share in range(1, 1000)), key=seconds)
    assert abs(searched - up) <= 1e6 and seconds(up) <= seconds(searched)


@pytest.mark.parametrize(("name", "kind"), every(5, [*itertools.product(PROFILE.nets, paper.KINDS)]))
def test_the_server_s_store_bounds_the_tokens(name: str, kind: str) -> None:
    """The side that evaluates keeps 18,248 bytes for each ReLU, the side that garbles 3,590."""
    net = PROFILE.net(name)
    own, other = {"sg": (18248, 3590), "cg": (3590, 18248)}[kind]
    sizes = {"client": 8 * net.linear_values + own * net.relus, "server": 8 * SERVER_VALUES[name] + other * net.relus}
    room = {"client": 7 * sizes["client"], "server": 3 * sizes["server"]}
    link = {"up": 5e8, "down": 5e8}
    free = paper.service(kind, net, store=room["client"], **link)
    bound = paper.service(kind, net, store=room["client"], server_store=room["server"], **link)
    assert (free.token_bytes, free.most_tokens) == ({"client": sizes["client"]}, 7)
    assert (bound.token_bytes, bound.most_tokens) == (sizes, 3)
    assert paper.service(kind, net, store=room["client"], server_store=room["server"] - 1, **link).most_tokens == 2
    assert paper.service(kind, net, store=room["client"] // 7, server_store=room["server"], **link).most_tokens == 1
    assert (bound.refill, bound.request) == (free.refill, free.request)


def test_what_the_client_saves_is_at_the_server() -> None:
    """Who garbles decides where the bytes are, not how many they are."""
    for net in PROFILE.nets.values():
        whole = {
            paper.token_bytes(kind, net, PROFILE) + paper.server_token_bytes(kind, net, PROFILE) for kind in paper.KINDS
        }
        assert len(whole) == 1


def test_energy_of_the_circuits() -> None:
    sg, cg = (paper.client_joules(kind, PROFILE) for kind in ("sg", "cg"))
    assert (sg, cg) == (1.25, 2.33) and cg / sg == pytest.approx(1.8, rel=0.036)


LINK = {"up": 835e6, "down": 165e6, "store": 16e9}


@pytest.mark.parametrize("kind", paper.KINDS)
def test_one_client_has_the_whole_server(kind: str) -> None:
    alone = paper.several(kind, R18, 1, **LINK)
    threads = Threads(4, len(R18.he), 32)
    assert alone == paper.service(kind, R18, threads, server_store=10e12, **LINK)


def test_clients_divide_cores_and_store() -> None:
    """Three threads of 32 for each of nine; their ends are those of a server with as many threads."""
    nine = paper.several("cg", R18, 9, **LINK)
    assert (offline(nine), online(nine)) == plainly(("cg", "tinyimagenet/resnet18", 835, 165, 4, 3, 3, 16))[:2]
    assert nine.hosts["server"].store == 10e12 / 9 and nine.most_tokens == 1
    size = nine.token_bytes["server"]
    assert paper.several("cg", R18, 9, **LINK, server_store=9 * size).most_tokens == 1
    assert paper.several("cg", R18, 9, **LINK, server_store=9 * size - 10).most_tokens == 0
    rates = [n * limits(paper.several("cg", R18, n, **LINK))[0].rate for n in (1, 2, 4, 8, 16, 32)]
    assert rates == sorted(rates) and rates[-1] < 32 * rates[0]


@pytest.mark.slow
def test_clients_are_replicas_without_a_choice() -> None:
    """A Poisson stream that is divided at random is one at each client: the latency is that of one client alone."""
    nine = paper.several("cg", R18, 9, **LINK)
    rate = 0.5 * limits(nine)[0].rate
    size = {"runs": 50, "requests": 9000, "engine": "recurrence"}
    shared = run(nine, None, poisson(9 * rate), replicas=9, choices=1, **size)
    alone = run(nine, None, poisson(rate), **size)
    assert shared.quantile(0.5).value == pytest.approx(alone.quantile(0.5).value, rel=0.05)
    assert shared.quantile(0.95).value == pytest.approx(alone.quantile(0.95).value, rel=0.05)
    other = run(nine, None, poisson(9 * rate), replicas=9, **size)  # which any client could serve
    assert other.quantile(0.95).value < 0.8 * alone.quantile(0.95).value


def test_clients_without_a_core() -> None:
    with pytest.raises(
        ConfigError, match=re.compile("33 clients of a server with 32 cores.*\nhint: at most 32", re.DOTALL)
    ):
        paper.several("cg", R18, 33, **LINK)
    with pytest.raises(ConfigError, match="0 clients"):
        paper.several("cg", R18, 0, **LINK)


def test_more_refills_take_longer_each() -> None:
    at = paper.side_by_side(paper.proposed(R18, 140e9), "cg", R18, 4)
    line = PROFILE.lines["garble_client"].at(R18.relus)
    longer = R18.he[0] - R18.he[-1] + line * (1 - 1 / 4)
    assert at.workers == 4 and offline(at) == pytest.approx(offline(paper.proposed(R18)) + longer)
    assert online(at) == online(paper.proposed(R18))


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "another service": ({"kind": "hg"}, "no service 'hg'.*\nhint: one of sg, cg"),
    "more HE threads than measured": ({"threads": Threads(4, 18, 32)}, "18 HE threads.*1 to 17.*\nhint: at most 17"),
    "no client thread": ({"threads": Threads(0, 1, 32)}, "threads.client"),
    "half a thread": ({"threads": Threads(4, 1, 0.5)}, "threads.gc"),  # type: ignore[arg-type]
    "no bandwidth": ({"up": 0}, "bits per second"),
    "a negative store": ({"store": -1}, "store"),
    "a negative store of the server": ({"server_store": -1}, "store"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_settings(case: str) -> None:
    changed, message = BAD[case]
    with pytest.raises(ConfigError, match=re.compile(message, re.DOTALL)):
        paper.service(**{"kind": "cg", "net": R18, "up": 5e8, "down": 5e8, **changed})


def test_unknown_nets_and_profiles() -> None:
    with pytest.raises(ConfigError, match="cifar10/resnet18, cifar10/resnet32"):
        PROFILE.net("resnet18")
    with pytest.raises(ConfigError, match="no such profile"):
        parse({"format": "hummingbird-asplos", "version": 2})


def test_few_relus_take_no_negative_time() -> None:
    """The fits' intercepts are below zero."""
    none = dataclasses.replace(R18, relus=0)
    at = paper.service("cg", none, up=5e8, down=5e8)
    assert min(at.step_seconds(step) for phase in at.phases().values() for step in phase.steps) >= 0


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("HUMMINGBIRD_DATA"), reason="HUMMINGBIRD_DATA has the published arrays")
def test_the_shipped_profile_is_what_its_program_writes(tmp_path: Path) -> None:
    assert asplos_profile.main(["--out", str(tmp_path / "made.json")]) == 0
    made, shipped = (json.loads(path.read_text()) for path in (tmp_path / "made.json", asplos_profile.OUT))
    for fitted in ("units", "error"):
        assert _numbers(made.pop(fitted)) == pytest.approx(_numbers(shipped.pop(fitted)), rel=1e-6)
    assert made == shipped


def _numbers(value: Any) -> list[float]:
    """All numbers below, in order."""
    return [n for item in value.values() for n in _numbers(item)] if isinstance(value, dict) else [value]
