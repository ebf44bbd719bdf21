"""The output of `plan show`: hosts, every step with its seconds, tokens, and the largest rate."""

from __future__ import annotations

import math
from typing import Any

from hummingbird.capacity.limit import limits, mean_seconds
from hummingbird.capacity.quantities import shown_bytes, shown_rate, shown_seconds
from hummingbird.capacity.service import Compute, Send, Service, WorkStep
from hummingbird.table import text_table


def figures(service: Service) -> dict[str, Any]:
    """Return all figures of the model of a service as a dict, flat but for the steps."""
    bounds = limits(service)
    return {
        "service": service.name,
        "offline_seconds": mean_seconds(service, service.refill) if service.refill else 0.0,
        "online_seconds": mean_seconds(service, service.request),
        "session_seconds": mean_seconds(service, service.session) if service.session else 0.0,
        "tokens": service.most_tokens,
        "tokens_per_refill": service.refill_tokens,
        "tokens_per_request": service.request_tokens,
        "images_per_request": service.images,
        "requests_per_batch": service.batch,
        "transit_seconds": service.transit_seconds(),
        **{f"{role}_bytes_per_token": size for role, size in service.token_bytes.items()},
        "limit_requests_per_second": bounds[0].rate,
        "limit_images_per_second": bounds[0].rate * service.images,
        "limit_cause": bounds[0].cause,
        "limits": [{"requests_per_second": bound.rate, "cause": bound.cause} for bound in bounds],
        "steps": [
            {"phase": name, "step": step.name, **_work(step), "seconds": service.step_seconds(step)}
            for name, phase in service.phases().items()
            for step in phase.steps
        ],
        "notes": list(service.notes),
    }


def _work(step: WorkStep) -> dict[str, Any]:
    work = step.work
    if isinstance(work, Compute):
        return {"host": work.host, "core_seconds": work.core_seconds, "width": work.width}
    if isinstance(work, Send):
        return {"source": work.source, "target": work.target, "bytes": work.bytes}
    return {"rounds": work.rounds}


def tables(service: Service) -> str:
    """Return the figures of the model of a service as tables and sentences, for people."""
    found = figures(service)
    parts = [service.name, _hosts(service), _steps(service)]
    if service.refill is not None:
        stored = ", ".join(f"{shown_bytes(size)} at {role}" for role, size in service.token_bytes.items())
        images = service.most_tokens // service.request_tokens * service.images
        parts.append(
            f"a refill takes {shown_seconds(found['offline_seconds'])} and makes {service.refill_tokens} token(s) of "
            f"{stored}\nthe stores hold {service.most_tokens:,}: {images:,} images"
            + ("" if service.most_tokens else "; tokens are made on demand")
        )
    best = limits(service)
    online = f"a request takes {shown_seconds(found['online_seconds'])} online, alone, for {service.images} image(s)"
    if service.batch > 1:
        online += f"\nup to {service.batch} are served as one, each further in {shown_seconds(service.each)}; "
        online += f"the first waits {shown_seconds(service.hold)} at most"
    if service.transit is not None:
        online += f"\non its way there and back it is another {shown_seconds(service.transit_seconds())}"
    rate = f"at most {shown_rate(best[0].rate)}: {best[0].rate * service.images * 3600:,.0f} images/h"
    others = "".join(f"\n  then {shown_rate(bound.rate)}: {bound.cause}" for bound in best[1:4])
    parts.append(f"{online}\n{rate}, set by {best[0].cause}{others}")
    return "\n\n".join([*parts, *service.notes])


def _hosts(service: Service) -> str:
    def link(rate: float) -> str:
        return "-" if rate == math.inf else f"{rate / 1e6:,.4g}"

    rows = [
        (role, str(host.cores), shown_bytes(host.store) if host.store else "-", link(host.up), link(host.down))
        for role, host in service.hosts.items()
    ]
    table = text_table(("host", "cores", "store", "up Mb/s", "down Mb/s"), rows)
    return f"{table}\nround trip {shown_seconds(service.rtt)}"


def _steps(service: Service) -> str:
    rows = []
    for name, phase in service.phases().items():
        for step in phase.steps:
            work = step.work
            if isinstance(work, Compute):
                where, amount = work.host, f"{work.core_seconds:.4g} core-s on {work.width}"
            elif isinstance(work, Send):
                where, amount = f"{work.source} > {work.target}", shown_bytes(work.bytes)
            else:
                where, amount = "", f"{work.rounds:g} rounds"
            rows.append((name, step.name, where, amount, shown_seconds(service.step_seconds(step))))
        total = shown_seconds(mean_seconds(service, phase))
        rows.append((name, "longest path, mean", "", "", total))
    return text_table(("phase", "step", "where", "work", "alone"), rows, left=3)
