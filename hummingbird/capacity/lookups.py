"""The service of private lookups (`pir`): one pass of both servers over the table answers a batch of inferences.

Bytes and work of an inference are those of `pir.price`, without headers; a pass reads the table once for all of its
inferences. A batch begins when it is full of keys, or when its first query has waited as long as the server lets it
(pir/serving/service.py). The client's own work is left out, and its link has no limit; the servers' links have one.
"""

from __future__ import annotations

from collections.abc import Sequence

from hummingbird.capacity.profile import Profile
from hummingbird.capacity.service import Host, Phase, Rounds, Send, Service, WorkStep, check_count
from hummingbird.pir.batching.batch_code import BatchCode
from hummingbird.pir.batching.cost_model import Price, price
from hummingbird.pir.serving.service import MAX_BATCH, MAX_WAIT
from hummingbird.report import BANDWIDTH, RTT

CLIENT, SERVERS = "client", ("server-0", "server-1")
KIND = "pir"
_ONCE = ("bucket", "held")  # kinds of work of a pass that do not depend on the number of its inferences


def amounts(cost: Price, inferences: int) -> dict[str, float]:
    """Count each kind of work that one inference's lookups make; return the counts by name.

    cost: the price of one inference's lookups. inferences: how many inferences one pass over the table answers; work
    that a pass does only once is divided by this number.
    """
    shares = {name: amount / inferences if name in _ONCE else amount for name, amount in cost.work.items()}
    return {**shares, "passes": cost.messages / inferences}


def pir(
    codes: Sequence[BatchCode],
    record_bytes: int,
    profile: Profile,
    *,
    max_batch: int = MAX_BATCH,
    max_wait: float = MAX_WAIT,
) -> Service:
    """Make the model (`Service`) of a service of private lookups in the tables of a batching plan.

    Each request has all lookups of one inference. codes: the plan's batch codes (`Plan.codes`). record_bytes: bytes
    that are stored and sent for one row, together with its companions. profile: the measured seconds. max_batch: number
    of keys at which a batch is full. max_wait: seconds after which a batch that is not full begins. Raises ConfigError
    for a profile without rows "pir".

    >>> plan = pir.Plan(pir.BatchCode.cuckoo(rows=1000, wanted=8))
    >>> service = capacity.pir(plan.codes, 64, capacity.load_profile("profile.json"))
    >>> list(service.phases()), service.batch
    (['transit', 'request'], 16)
    """
    check_count(record_bytes, "record_bytes", 1, "bytes of a record")
    check_count(max_batch, "max_batch", 1, "keys")
    cost = price(codes, record_bytes)
    alone = profile.seconds(KIND, "answer", amounts(cost, 1))
    batch = max(1, max_batch // max(code.keys for code in codes))
    full = profile.seconds(KIND, "answer", amounts(cost, batch))  # for each inference: fixed / batch + each
    each = (batch * full.mean - alone.mean) / (batch - 1) if batch > 1 else 0.0
    server = Host(cores=profile.threads, up=BANDWIDTH, down=BANDWIDTH)
    rows = " and ".join(f"{code.rows:,}" for code in codes)
    return Service(
        name=f"pir, {cost.keys} key(s) to tables of {rows} records of {record_bytes} B",
        hosts={CLIENT: Host(), **dict.fromkeys(SERVERS, server)},
        request=Phase(
            tuple(WorkStep(f"answer {name}", profile.compute(name, alone)) for name in SERVERS), alone.factors
        ),
        transit=_transit(cost),
        batch=batch,
        hold=max_wait,
        each=max(0.0, each),
        rtt=RTT,
        notes=(profile.origin(alone), f"a pass takes up to {batch} requests, which wait {1e3 * max_wait:g} ms at most"),
    )


def _transit(cost: Price) -> Phase:
    """Return the transit phase, a request's way there and back: keys go up to both servers, then records come down.

    cost: the price of one inference's lookups, which has the bytes up and down.
    """
    up = [WorkStep(f"keys to {name}", Send(CLIENT, name, cost.up / 2)) for name in SERVERS]
    there = WorkStep("there", Rounds(1), tuple(step.name for step in up))
    down = [WorkStep(f"records from {name}", Send(name, CLIENT, cost.down / 2), ("there",)) for name in SERVERS]
    return Phase((*up, there, *down, WorkStep("back", Rounds(1), tuple(step.name for step in down))))
