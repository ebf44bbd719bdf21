"""The service of CrypTen as shipped (`crypten`): 64-bit words throughout, and triples made during a request.

Source: B. Knott et al., "CrypTen", NeurIPS 2021; version 0.4.1, two parties, whose truncation sends nothing. Its
default provider draws all triples at every party from one seed: it needs no dealer and no store, but party 0 can read
everything.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from torch.utils.flop_counter import FlopCounterMode

from hummingbird.capacity.profile import Profile
from hummingbird.capacity.service import Host, Phase, Rounds, Send, Service, WorkStep
from hummingbird.cost import FREE, Cost, crypten_shipped_relu
from hummingbird.errors import ConfigError, ModelError, Problem
from hummingbird.graph import calls
from hummingbird.graph.interpreter import run_all
from hummingbird.mpc.plan.net import PrivateNet
from hummingbird.report import BANDWIDTH, RTT

KIND, PARTIES = "crypten", 2
_ROLES = ("party-0", "party-1")
_WORD = 8  # bytes
_FREE = frozenset("input output conv linear avg_pool adaptive_avg_pool add flatten".split())


def cost(private: PrivateNet, shape: Sequence[int]) -> Cost:
    """Compute the price of a batch through the net's layers in CrypTen as shipped: the rounds, and each party's sent
    bits.

    shape: of the batch. The opening of the result is not included. Raises ModelError for layers other than
    convolutions, linear layers, ReLUs, average pools and sums, naming all of them; ConfigError for private weights.
    """
    if private.facts["weights"] != "public":
        raise ConfigError("private weights", where="capacity.crypten", hint="a net of public weights")
    found = [
        Problem(step.name, f"no price of CrypTen's {step.op}", "use convolutions, linear layers, ReLUs, average pools")
        for step in private._graph
        if step.op not in _FREE | {"relu"}
    ]
    if found:
        raise ModelError(found)
    relus = [step.elements for step in private.costs(shape, PARTIES) if step.op == "relu"]
    return sum((crypten_shipped_relu(count, PARTIES) for count in relus), FREE)


def amounts(private: PrivateNet, shape: Sequence[int]) -> dict[str, float]:
    """Count each kind of work in a batch of `shape`, as CrypTen would run it; return the counts by name.

    The names are "products" (of linear layers), "compared" (values), "values" (of all layers), "layers", and "slices",
    which is 1.
    """
    planned = [step for step in private.costs(shape, PARTIES) if step.op in _FREE | {"relu"}]
    with FlopCounterMode(display=False) as flops:
        run_all(private._graph, *calls.on_meta(private._graph, tuple(shape)))
    return {
        "products": flops.get_total_flops() / 2,
        "compared": float(sum(step.elements for step in planned if step.op == "relu")),
        "values": float(sum(step.elements for step in planned)),
        "layers": float(len(planned)),
        "slices": 1.0,
    }


def digest(private: PrivateNet, shape: Sequence[int]) -> str:
    """Return the SHA-256 of all facts that determine a batch's work, by which a profile finds its measured seconds.

    They are the net's architecture, and the shape of the batch.
    """
    return hashlib.sha256(json.dumps([KIND, private.facts["architecture"], list(shape)]).encode()).hexdigest()


def crypten(private: PrivateNet, shape: Sequence[int], profile: Profile) -> Service:
    """Make the model (`Service`) of a service whose parties compute a net by CrypTen as shipped, without windows.

    Each request is a batch of `shape`. private: the converted net, whose weights are public. profile: the measured
    seconds. Multiplication triples are drawn before the computing; the result is opened to party 0. Raises ConfigError
    for a profile without rows "crypten" and for private weights, ModelError for layers without a price.

    >>> private = hummingbird.convert_model(net)
    >>> service = capacity.crypten(private, (1, 4), capacity.load_profile("profile.json"))
    >>> list(service.hosts), service.slots
    (['party-0', 'party-1'], 1)
    """
    shape = tuple(shape)
    priced, work, mark = cost(private, shape), amounts(private, shape), digest(private, shape)
    results = private.costs(shape, PARTIES)[-1].elements
    names = ("compute", "triples") if priced != FREE else ("compute",)
    seconds = {part: profile.seconds(KIND, part, work, mark) for part in names}
    steps = list[WorkStep]()
    for role in _ROLES:
        before: tuple[str, ...] = ()
        for part in reversed(names):
            steps.append(WorkStep(f"{part} {role}", profile.compute(role, seconds[part]), before))
            before = (steps[-1].name,)
    computed = tuple(f"compute {role}" for role in _ROLES)
    sends = [
        WorkStep(f"{one} to {other}", Send(one, other, priced.bits / 8), computed)
        for one, other in (_ROLES, reversed(_ROLES))
    ]
    steps += [*sends, WorkStep("rounds", Rounds(priced.rounds), tuple(step.name for step in sends))]
    steps.append(WorkStep("result", Send(_ROLES[1], _ROLES[0], _WORD * results), ("rounds",)))
    steps.append(WorkStep("opening", Rounds(1), ("result",)))
    host = Host(cores=profile.threads, up=BANDWIDTH, down=BANDWIDTH)
    return Service(
        name=f"crypten, triples within, batches of {shape}",
        hosts=dict.fromkeys(_ROLES, host),
        request=Phase(tuple(steps), seconds["compute"].factors),
        images=shape[0],
        rtt=RTT,
        notes=(profile.origin(*seconds.values()), "CrypTen's provider hides nothing from party 0"),
    )
