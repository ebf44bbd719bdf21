"""A party of a service: `hummingbird.serve`, in the session of this process, and the reconnect loop of the command.

Reconnect loop: a party keeps answering clients while sessions with the other parties come and go. When a party or the
dealer dies, the session ends for all others. They refuse the waiting requests, keep listening, and meet again as soon
as all parties are running (mpc/session/meeting.py). The new session has fresh seeds, fresh material and a new name of
the service, so that no request of one session runs in the next; private weights are shared anew. A party waits for the
others without a time limit, even if one of them has another net, other windows or another release. Any other failure
ends the party's process, which a launcher may start again.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from hummingbird.errors import AgreementError, DealerError, HummingbirdError, PeerError, UnavailableError
from hummingbird.mpc.plan.decoder import PrivateDecoder
from hummingbird.mpc.plan.net import PrivateNet
from hummingbird.mpc.session import launch
from hummingbird.mpc.session.session import current, is_initialized
from hummingbird.ranks import refuse_dynamic
from hummingbird.rpc.admission import Limits
from hummingbird.rpc.programs import ServiceParts, run_service
from hummingbird.rpc.security import Tls
from hummingbird.rpc.server import ServiceConfig, ServiceProgram
from hummingbird.rpc.signals import Flag, check, ends_waits
from hummingbird.serving.dispatcher import Counts, unavailable
from hummingbird.serving.message import MAX_BYTES
from hummingbird.serving.party import MAX_BATCH, MAX_WAIT, Lane, Methods, Party, figures_of, join

# Reconnect loop ------------------------------------------------------------------------------------------------------

_PAUSES = (0.5, 15.0)  # seconds before the next meeting: after a session, and at most after failures to begin one
_LOOK = 0.1  # seconds between two checks whether the party is to end


class ReconnectLoop:
    """The loop of a serving process's main thread: it serves in one session of the parties after another.

    So a party that is lost may come back, and clients find the service again. methods: the methods that clients call.
    begin: joins a session, converts the net, and returns this process's `Party` or `Lane`. told: a flag that a signal
    handler sets when this party is to end. begun: called in every session, as soon as it takes requests of clients.
    interrupted: called with the reason, as text, why a session has ended, or could not begin.
    """

    def __init__(
        self,
        methods: Methods,
        begin: Callable[[], Party | Lane],
        told: Flag,
        begun: Callable[[], object],
        interrupted: Callable[[str], object] = lambda reason: None,
    ) -> None:
        self._methods, self._begin, self._told = methods, begin, told
        self._begun, self._interrupted = begun, interrupted
        self.count, self.counts = 0, Counts()  # number of sessions; batches of all of them

    def run(self) -> None:
        """Serve in sessions until this party is told to end and its waiting requests are answered.

        After the failure of another party or of the dealer it meets the others again. Raises any other error.
        """
        over = Flag()
        usher = threading.Thread(target=self._usher, args=(over,), name="hummingbird-usher", daemon=True)
        usher.start()
        try:
            with ends_waits(self._told):
                self._go_on()
        finally:
            over.set()
            usher.join()

    def _usher(self, over: Flag) -> None:
        """Wait, on a thread, until this party is told to end; then let it answer its queued requests and end.

        If it waits for other parties instead of serving, the session that is being made is aborted. over: a flag, set
        when `run` ends, which ends this thread too.
        """
        while not over.wait(_LOOK):
            if not self._told.is_set():
                continue
            if self._methods.drain():
                return
            if is_initialized():
                current().channel.abort(f"{launch.name()} was told to stop")

    def _go_on(self) -> None:
        pause = _PAUSES[0]
        while not self._told.is_set():
            count = self.count
            try:
                self._live()
            except HummingbirdError as error:
                if self._told.is_set():
                    return
                if not isinstance(error, (PeerError, DealerError, AgreementError)):
                    raise
                reason = str(error).splitlines()[0]
                _say(f"interrupted: {reason}; meeting the others again")
                self._interrupted(reason)
            pause = _PAUSES[0] if self.count > count else min(2 * pause, _PAUSES[1])
            self._told.wait(pause)

    def _live(self) -> None:
        """Serve in one session, from joining it to leaving it; afterwards clients' calls are refused.

        Returns if a party, this one or another, was told to end. Raises the error if the session failed. `run` then
        begins the next session, for which the parties wait until all are back.
        """
        party = None
        try:
            party = self._begin()
            check()
            self._methods.open(party)
            self.count += 1
            self._begun()
            party.run()
        except HummingbirdError as error:
            self._methods.shut(unavailable(error))
            launch.abort(error)
            raise
        else:
            self._methods.shut(UnavailableError("a party is leaving this service", hint="try again in a few seconds"))
            launch.uninit()
        finally:
            if party is not None:
                self.counts += party.counts


def _say(text: str) -> None:
    """Write a line about this party to stderr, in one call, as several parties may share a terminal."""
    sys.stderr.write(f"[{launch.name()}] {text}\n")
    sys.stderr.flush()


# One session ---------------------------------------------------------------------------------------------------------


def serve(
    private: PrivateNet | PrivateDecoder,
    shape: Sequence[int] | Sequence[Sequence[int]] | None,
    listen: str,
    *,
    table: Tensor | None = None,
    group: int = 0,
    max_batch: int = MAX_BATCH,
    max_wait: float = MAX_WAIT,
    tls: Tls | None = None,
) -> None:
    """Answer clients (`hummingbird.Client`) with a private net, as this party of the session, until SIGTERM or SIGINT.

    All parties of the session call this function, on their main threads, with the same net, shape and limits. If
    parties have several lanes, every lane calls it, and clients connect to lane 0. It returns at all parties once one
    of them gets the signal and the waiting requests are answered. The loss of a party or of the dealer ends it with an
    error; the command `python -m hummingbird serve` instead meets the others again, and has tokens, metrics and logs.

    private: of `convert_model`; or of `convert_decoder`, for clients that generate text (`Client.conversation`).
    shape: shape of one image; for a net with several inputs, one for each; None for a decoder. listen: the address for
        clients, HOST:PORT or unix:PATH; clients on other hosts need `tls`.
    table: rows (rows, dim) that clients look up privately, at two parties: `private` is then a net of rows and weights,
        and `shape` is `LookedUp.shapes` (hummingbird/lookup.py).
    group: the number of this group of parties, where several groups serve the same net; clients' errors name it.
    max_batch: most images of a batch, and of a request if these fit into 32 MiB. max_wait: seconds for which a request
        waits for others to share its batch; it does not wait while the parties are idle.

    Raises errors of `party.join` and `rpc.service.serve`, PeerError and DealerError; EnvironmentProblem without a
    session, TrustError for other hosts under torchrun's dynamic rendezvous (hummingbird/ranks.py).

    >>> import os, signal, threading
    >>> from pathlib import Path
    >>> def party(session, net, addresses):
    ...     Path(f"party-{session.rank}.pid").write_text(str(os.getpid()))
    ...     hummingbird.serve(hummingbird.convert_model(net), (4,), addresses[session.rank])
    >>> addresses = ["unix:party-0.sock", "unix:party-1.sock"]
    >>> service = threading.Thread(target=hummingbird.launch, args=(party, net, addresses))
    >>> service.start()
    >>> with hummingbird.Client(addresses, timeout=120) as client:  # waits until the parties are there
    ...     print(client(images).shape)
    torch.Size([20, 3])
    >>> os.kill(int(Path("party-0.pid").read_text()), signal.SIGTERM)  # ends the service, at both parties
    >>> service.join()
    """
    session = current()
    refuse_dynamic(listen)
    config = ServiceConfig(listen=(listen,), tls=tls, limits=Limits(message=MAX_BYTES))

    def parts(program: ServiceProgram) -> ServiceParts:
        methods, figures = Methods(program.ready), figures_of(program)

        def run() -> None:
            how: dict[str, Any] = {"most": max_batch, "wait": max_wait, "tls": tls, "figures": figures}
            party = join(private, shape, session, table=table, group=group, restocked=methods.look, **how)
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
    """Wait, on a thread, until the program is told to end; then let the party answer its queued requests and end."""
    program.wait()
    methods.drain()
