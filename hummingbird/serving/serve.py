"""`hummingbird.serve`: one party of a service, in the session that this process is in."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from hummingbird.errors import HummingbirdError, UnavailableError
from hummingbird.mpc.plan.net import PrivateNet
from hummingbird.mpc.session.session import current
from hummingbird.ranks import refuse_dynamic
from hummingbird.rpc.admission import Limits
from hummingbird.rpc.programs import ServiceParts, run_service
from hummingbird.rpc.security import Tls
from hummingbird.rpc.server import ServiceConfig, ServiceProgram
from hummingbird.serving.dispatcher import unavailable
from hummingbird.serving.figures import Figures
from hummingbird.serving.message import MAX_BYTES
from hummingbird.serving.party import MAX_BATCH, MAX_WAIT, Methods, join


def serve(
    private: PrivateNet,
    shape: Sequence[int] | Sequence[Sequence[int]],
    listen: str,
    *,
    table: Tensor | None = None,
    max_batch: int = MAX_BATCH,
    max_wait: float = MAX_WAIT,
    tls: Tls | None = None,
) -> None:
    """Answer clients (`hummingbird.Client`) with a private net, as this party of the session, until SIGTERM or SIGINT.

        def party(session, net, addresses):
            hummingbird.serve(hummingbird.convert_model(net), (3, 32, 32), addresses[session.rank])

        hummingbird.launch(party, net.eval(), ["127.0.0.1:9100", "127.0.0.1:9101"])

    All parties of the session call this function, on their main threads, with the same net, shape and limits. If
    parties have several lanes, every lane calls it, and clients connect to lane 0. It returns at all parties once one
    of them gets the signal and the waiting requests are answered. The loss of a party or of the dealer ends it with an
    error; the command `python -m hummingbird serve` instead meets the others again, and has tokens, metrics and logs.

    shape: shape of one image; for a net with several inputs, one for each. listen: the address for clients, HOST:PORT
        or unix:PATH; clients on other hosts need `tls`.
    table: rows (rows, dim) that clients look up privately, at two parties: `private` is then a net of rows and weights,
        and `shape` is `LookedUp.shapes` (hummingbird/lookup.py).
    max_batch: most images of a batch, and of a request if these fit into 32 MiB. max_wait: seconds for which a request
        waits for others to share its batch; it does not wait while the parties are idle.

    Raises errors of `party.join` and `rpc.service.serve`, PeerError and DealerError; EnvironmentProblem without a
    session, TrustError for other hosts under torchrun's dynamic rendezvous (hummingbird/ranks.py).
    """
    session = current()
    refuse_dynamic(listen)
    config = ServiceConfig(listen=(listen,), tls=tls, limits=Limits(message=MAX_BYTES))

    def parts(program: ServiceProgram) -> ServiceParts:
        methods, figures = Methods(program.ready), Figures(program.metrics.registry)

        def run() -> None:
            how: dict[str, Any] = {"most": max_batch, "wait": max_wait, "tls": tls, "figures": figures}
            party = join(private, shape, session, table=table, restocked=methods.look, **how)
            try:
                methods.open(party)
                threading.Thread(target=_drain, args=(program, methods), daemon=True).start()
                party.run()
                methods.shut(UnavailableError("this service has stopped", hint="try again when it is back"))
            except HummingbirdError as error:
                methods.shut(unavailable(error))
                party.close(unavailable(error))
                raise

        return ServiceParts([methods.handlers()] if session.lane == 0 else [], run=run)

    run_service("serve", config, parts, second=False)


def _drain(program: ServiceProgram, methods: Methods) -> None:
    """Let the party end, on a thread, once the program is to end."""
    program.wait()
    methods.drain()
