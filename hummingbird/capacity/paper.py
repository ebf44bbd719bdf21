"""The two services that Garimella et al. (ASPLOS 2023) compare, server garbling (SG) and client garbling (CG).

A client has an image and a server a net. In advance (a refill, T_off) the server computes the linear layers on
encrypted masks, and one side garbles the ReLUs and sends the circuits to the other side; for an image (a request, T_on)
labels are sent and circuits evaluated. Steps follow one another, so that T_off and T_on are sums:

    gc(x, t) = (slope_x ReLUs + intercept_x) / t                     seconds of t threads; x: the side and its task
    T_off    = keygen + key/u + encrypt + up/u + HE + down/d + decrypt + GC
    SG: GC   = gc(server garbles) + encode + circuits/d + (base OTs + OT set-up)/u + OTs/d
        T_on = input/u + encode + labels/d + linear + gc(client evaluates) + prediction/d
    CG: GC   = gc(client garbles) + encode + circuits/u + base OTs/d
        T_on = input/u + linear + encode + OT set-up/d + OTs/u + gc(server evaluates) + prediction/d
    token    = 8 linear values + ReLUs (18,248 SG, 3,590 CG) bytes, at the client; at the server 3,590 and 18,248

HE is read from a table by threads (LPHE: layers in parallel); u and d are bytes per second of the client's link.

    net = asplos23().net("tinyimagenet/resnet18")
    at = service("cg", net, Threads(client=4, he=17, gc=32), up=835e6, down=165e6, store=16e9)
    at.seconds(at.refill), at.seconds(at.request), at.most_tokens
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import NamedTuple

from hummingbird.capacity.published import Net, PublishedProfile, asplos23
from hummingbird.capacity.service import Compute, Host, Phase, Send, Service, Work, WorkStep, chain, check_count
from hummingbird.errors import ConfigError

KINDS = {"sg": "evaluator", "cg": "garbler"}  # the client's side of the circuits
_OTHER = {"evaluator": "garbler", "garbler": "evaluator"}
VALUE_BYTES = 8
# Names of steps by category.
HE = ("homomorphic evaluation", "encryption", "decryption")
GC = ("garbling", "evaluation", "encoding")
WIRE = ("key", "ciphertexts", "replies", "circuits", "OT set-up", "OTs", "base OTs", "input", "labels", "prediction")
BANDWIDTH = 1e9  # bits per second of the paper's link, both directions together
CORES, SERVER_STORE = 32, 10e12  # of the paper's server: cores, bytes


class Threads(NamedTuple):
    """Numbers of threads in a service of Garimella et al.

    client: all threads of the client. he: the server's threads for homomorphic evaluation. gc: the server's threads for
    garbled circuits.
    """

    client: int = 4
    he: int = 1
    gc: int = 32


ONE = Threads()  # the paper's machines, with one thread for homomorphic evaluation


def service(
    kind: str,
    net: Net,
    threads: Threads = ONE,
    *,
    up: float,
    down: float,
    store: float = 0,
    server_store: float | None = None,
    profile: PublishedProfile | None = None,
) -> Service:
    """Make the model (`Service`) of the service that Garimella et al. describe: one client, one server, garbled ReLUs.

    It runs one refill, the work in advance, and one request at a time. kind: "sg" if the server garbles, "cg" if the
    client garbles. net: has the seconds and bytes of the steps. threads: of client and server. up, down: bits per
    second of the client's link. store: bytes that the client can store. server_store: bytes that the server can store
    for this client; None: any number, and the model has no token at the server. profile: measurements of garbling, by
    default `asplos23`.
    Raises ConfigError for another kind, fewer than one thread, more threads for homomorphic evaluation than the net's
    table has, and no bandwidth.
    """
    profile = profile or asplos23()
    if kind not in KINDS:
        raise ConfigError(f"no service {kind!r}", where="service", hint=f"one of {', '.join(KINDS)}")
    for name, count in threads._asdict().items():
        check_count(count, f"threads.{name}", 1, "threads")
    if threads.he > len(net.he):
        hint = f"at most {len(net.he)}: with more no layer is left to give them"
        raise ConfigError(
            f"{threads.he} HE threads, but {net.name} was measured with 1 to {len(net.he)}", where="threads", hint=hint
        )
    refill, request = _phases(kind, net, threads, profile)
    server, tokens = Host(cores=max(threads.he, threads.gc)), {"client": token_bytes(kind, net, profile)}
    if server_store is not None:
        server = dataclasses.replace(server, store=server_store)
        tokens["server"] = server_token_bytes(kind, net, profile)
    return Service(
        name=f"{profile.name}/{kind} {net.name}",
        hosts={
            "client": Host(cores=threads.client, store=store, up=up, down=down),
            "server": server,
        },
        refill=refill,
        request=request,
        token_bytes=tokens,
    )


def several(
    kind: str,
    net: Net,
    clients: int,
    *,
    up: float,
    down: float,
    store: float,
    cores: int = CORES,
    server_store: float = SERVER_STORE,
    profile: PublishedProfile | None = None,
) -> Service:
    """Make the model of the part of a server that one of several clients gets, with this client's own machine.

    The server's cores and its store are divided equally, so that clients do not wait for each other: each has `cores //
    clients` threads for homomorphic evaluation (at most one for each layer) and as many for circuits. All clients
    together are so many replicas, each of which gets its own client's requests: `run(..., replicas=clients, choices=1)`
    gives each request to a random client, and the largest rate of all is `clients` times that of `limits`.
    kind, net, profile: as for `service`. clients: how many. up, down: bits per second of each client's link. store:
    bytes that each client can store. cores, server_store: cores and bytes of the server.
    Raises ConfigError for fewer than one client, and for more clients than cores, besides the errors of `service`.
    """
    check_count(clients, "clients", 1, "clients")
    if clients > cores:
        hint = f"at most {cores}, or a server with more cores"
        raise ConfigError(f"{clients} clients of a server with {cores} cores", where="clients", hint=hint)
    own = cores // clients
    threads = Threads(client=ONE.client, he=min(own, len(net.he)), gc=own)
    share = server_store / clients
    return service(kind, net, threads, up=up, down=down, store=store, server_store=share, profile=profile)


def token_bytes(kind: str, net: Net, profile: PublishedProfile) -> int:
    """Return the bytes that the client stores for one token, the material of one request.

    kind: "sg" if the server garbles, "cg" if the client garbles. profile: has the bytes for each ReLU.
    """
    return VALUE_BYTES * net.linear_values + profile.bytes_per_relu[KINDS[kind]] * net.relus


def server_token_bytes(kind: str, net: Net, profile: PublishedProfile) -> int:
    """Return the bytes that the server stores for one token.

    kind: "sg" if the server garbles, "cg" if the client garbles, and the server keeps the circuits. profile: has the
    bytes for each ReLU.
    """
    return VALUE_BYTES * net.server_values + profile.bytes_per_relu[_OTHER[KINDS[kind]]] * net.relus


def client_joules(kind: str, profile: PublishedProfile) -> float:
    """Return the joules of the client's processor for the circuits of the paper's unit of ReLUs.

    kind: "sg": the client evaluates them; "cg": it garbles them. profile: has the measured energy. The paper measured
    no energy of encryption and of the link.
    """
    return profile.joules["eval_client" if kind == "sg" else "garble_client"]


def _phases(kind: str, net: Net, threads: Threads, profile: PublishedProfile) -> tuple[Phase, Phase]:
    """Make the two phases of a service of Garimella et al.: first the refill (work in advance), then the request.

    kind: "sg" if the server garbles, "cg" if the client garbles. net: has the seconds and bytes of the steps. profile:
    has the seconds of garbled circuits, by number of ReLUs.
    """
    garbler, evaluator = ("server", "client") if kind == "sg" else ("client", "server")
    width = {"client": threads.client, "server": threads.gc}
    of = net.sg if kind == "sg" else net.cg

    def circuits(verb: str, host: str) -> Work:
        return Compute(host, profile.lines[f"{verb}_{host}"].at(net.relus), width[host])

    def up(count: float) -> Work:
        return Send("client", "server", count)

    def down(count: float) -> Work:
        return Send("server", "client", count)

    linear = (
        ("key generation", Compute("client", net.keygen)),
        ("key", up(net.key)),
        ("encryption", Compute("client", net.encrypt)),
        ("ciphertexts", up(net.up)),
        ("homomorphic evaluation", Compute("server", net.he[threads.he - 1] * threads.he, threads.he)),
        ("replies", down(net.down)),
        ("decryption", Compute("client", net.decrypt)),
        ("garbling", circuits("garble", garbler)),
        ("encoding", Compute(garbler, of.offline_encode)),
    )
    ends = ("evaluation", circuits("eval", evaluator)), ("prediction", down(of.prediction))
    share, clear = ("input", up(of.input)), ("linear layers", Compute("server", of.linear))
    encoding = "encoding", Compute(garbler, of.encode)
    if kind == "sg":
        transfers = ("OT set-up", up(of.base_ot + of.ot_setup)), ("OTs", down(of.ot_send))
        refill = chain(*linear, ("circuits", down(of.garbled)), *transfers)
        return refill, chain(share, encoding, ("labels", down(of.labels)), clear, *ends)
    refill = chain(*linear, ("circuits", up(of.garbled)), ("base OTs", down(of.base_ot)))
    return refill, chain(share, clear, encoding, ("OT set-up", down(of.ot_setup)), ("OTs", up(of.ot_send)), *ends)


def baseline(net: Net, store: float = 0, gc: int = 32) -> Service:
    """Make the model of the service that Garimella et al. call their baseline: the server garbles.

    The server evaluates ciphertexts on one thread. Half of the link's bandwidth is for each direction. net: has the
    seconds and bytes of the steps. store: bytes that the client can store. gc: number of the server's threads for
    garbled circuits.
    """
    return service("sg", net, Threads(4, 1, gc), up=BANDWIDTH / 2, down=BANDWIDTH / 2, store=store)


def proposed(net: Net, store: float = 0) -> Service:
    """Make the model of the service that Garimella et al. propose: the client garbles.

    The server evaluates the ciphertexts of all layers in parallel. More of the link's bandwidth is for the way up, by
    which the circuits go. net: has the seconds and bytes of the steps. store: bytes that the client can store.
    """
    return service("cg", net, Threads(4, len(net.he), 32), up=835e6, down=165e6, store=store)


def side_by_side(at: Service, kind: str, net: Net, workers: int) -> Service:
    """Return a copy of the service `at` that runs several refills at a time, each on one core of client and server.

    kind: "sg" or "cg", and net: those with which `service` made `at`. workers: how many refills run at a time.
    Garimella et al. call this RLP, and give each refill all of the link, which is too optimistic for more than a few
    refills; the event engine shares the link.
    """
    client = at.hosts["client"]
    alone = service(kind, net, Threads(1, 1, 1), up=client.up, down=client.down)
    return dataclasses.replace(at, refill=alone.refill, workers=workers)


def faster(at: Service, times: Mapping[str, float]) -> Service:
    """Return a copy of the service `at` in which some steps take fewer core-seconds, or send fewer bytes.

    times: maps the name of each of these steps to the factor by which its core-seconds or bytes are divided.
    """

    def step(one: WorkStep) -> WorkStep:
        work, factor = one.work, times.get(one.name, 1.0)
        if isinstance(work, Compute):
            work = dataclasses.replace(work, core_seconds=work.core_seconds / factor)
        elif isinstance(work, Send):
            work = dataclasses.replace(work, bytes=work.bytes / factor)
        return dataclasses.replace(one, work=work)

    phases = {
        name: dataclasses.replace(phase, steps=tuple(map(step, phase.steps))) for name, phase in at.phases().items()
    }
    return dataclasses.replace(at, **phases)  # type: ignore[arg-type]


def sent(at: Service) -> tuple[float, float]:
    """Return how many bytes the client's link carries up, and how many down, in one refill and one request together.

    at: the model of the service. A refill is the work in advance for one request.
    """
    works = [step.work for phase in at.phases().values() for step in phase.steps]
    sends = [work for work in works if isinstance(work, Send)]
    return sum(s.bytes for s in sends if s.source == "client"), sum(s.bytes for s in sends if s.target == "client")


def best_split(at: Service, bandwidth: float = BANDWIDTH) -> tuple[float, float]:
    """Return how to divide the bandwidth of the client's link best: bits per second up, and bits per second down.

    With this division a refill and a request of the service `at` together spend the fewest seconds on the link.
    bandwidth: bits per second of both directions together. Let U bits go up and D bits down. If b of the bandwidth B is
    for the way up, the seconds are U/b + D/(B - b). They are least at b = B sqrt U / (sqrt U + sqrt D), where their
    derivative by b is 0. Garimella et al. call this WSA.
    """
    up, down = map(math.sqrt, sent(at))
    return bandwidth * up / (up + down), bandwidth * down / (up + down)
