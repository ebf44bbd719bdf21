"""Private lookups that feed a private net: indices to logits, and neither server learns an index, a row or a logit.

The two parties of a session are the two servers of a table (`pir`). Two keys leave at party b shares of s = +-1 and of
s * row (`pir.Server.shares`), and one Beaver product (Beaver 1991) makes them shares of the row:

    s * (s * row) = row          (s * weight) * (s * row) = weight * row

In the second form the client, who knows s, hands out fresh shares of s * weight: weights of a bag cost nothing more.
Sums over bags are local, the net is any that `convert_model` converts, and each party hands its share of the result to
the client, who adds them (`pir.Client.collect`).

TRUST: the two parties must not collude, nor the dealer with either. Public: the table, the net unless its weights are
private, the bags (how many positions each has: a position that is not needed is filled with a lookup of a padding row
or with weight 0), how many questions a client asks at a time, and when.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from hummingbird import cost
from hummingbird.cost import Cost
from hummingbird.errors import ConfigError, HummingbirdError, InputError, PeerError
from hummingbird.mpc import session as sessions
from hummingbird.mpc import sharing
from hummingbird.mpc._crypten import MPCTensor, from_share, scale_of, share_of
from hummingbird.mpc.layer import Rescale, Spec
from hummingbird.mpc.products import Multiply
from hummingbird.pir.messages import TICKET_BYTES
from hummingbird.pir.secret_shared.pending_shares import Shares, name
from hummingbird.pir.serving.server import Server
from hummingbird.ring import SCALE
from hummingbird.wire import meter

BEAT = 1.0  # seconds without a deposit until party 0 tells so: silence would end the session
PATIENCE = 5.0  # seconds for a deposit to reach party 1 as well
_log = logging.getLogger(__name__)
_ANNOUNCED = 1 + TICKET_BYTES  # whether there is one, and its ticket


@dataclass(frozen=True)
class Asked:
    """A client's questions: the ticket for their answer, and a private tensor (questions, bags * dim), scale 2^16.

    The sums of a question's bags stand side by side.
    """

    ticket: bytes
    x: MPCTensor


class Lookups:
    """One party's part: takes what clients deposit at its server, the same at both parties, and returns results.

    server: of a `Source.for_shares`, with this party's rank. bags: positions of each bag of a question, for all clients
        the same; (1, 63): one row, and the sum of 63. weighted: whether clients give weights (`Client.deposit`).
    patience: seconds for a deposit to reach both servers.
    Called once per session, by both parties: compares all this with the other party, 1 round. Raises AgreementError,
    ConfigError for a session of other than two parties or on a table not made for shares.

        server = Server(Source.of(table).for_shares(), session.rank)
        service = Service(server, f"127.0.0.1:{7000 + session.rank}")
        Lookups(server, bags=(20,)).serve(hummingbird.convert_model(net))
    """

    def __init__(
        self, server: Server, bags: Sequence[int], *, weighted: bool = False, patience: float = PATIENCE
    ) -> None:
        self._session = session = sessions.current()
        where = "Lookups"
        if session.parties != 2 or session.rank != server.party or not server.facts.shares:
            what = f"party {session.rank} of {session.parties} with server {server.party} of {server.facts.text()}"
            hint = "two parties, each with the server of its rank, of a Source.for_shares()"
            raise ConfigError(what, where=where, hint=hint)
        self.bags = tuple(bags)
        if not self.bags or not all(type(size) is int and size > 0 for size in self.bags):
            raise ConfigError(f"bags of {self.bags} positions", where=where, hint="at least one bag, each of 1 or more")
        if not 0 < patience < session.channel.timeout:
            hint = "less than the session's timeout"
            raise ConfigError(f"a patience of {patience:g} s", where=where, hint=hint)
        self.server, self.weighted, self._patience = server, weighted, patience
        self._stop = threading.Event()
        self.ended = False  # both parties know that one of them was told to stop
        state = server.state
        facts = {"table": server.facts.text(), "contents": f"version {state.version}, digest {state.digest.hex()}"}
        session.agree("lookups", {**facts, "bags": str(self.bags), "weighted": str(weighted)})

    @property
    def positions(self) -> int:
        """Lookups of one question."""
        return sum(self.bags)

    def costs(self, questions: int) -> dict[str, Cost]:
        """The cost of `next` for a deposit of this many questions, by the names that the meter shows."""
        count, dim = questions * self.positions, self.server.facts.dim
        factors, rows, sums = (
            Spec(shape, SCALE) for shape in ((count, 1), (count, dim), (questions, len(self.bags) * dim))
        )
        out = {"lookup.ticket": self._ticket_cost(), "lookup.rows": Multiply().cost([factors, rows], 2)}
        if self.weighted:
            out["lookup.rescale"] = Rescale().cost([sums._replace(scale=2 * SCALE)], 2)
        return out

    def _ticket_cost(self) -> Cost:
        first = cost.to_one(2, _ANNOUNCED, self._session.rank == 0)
        return first + cost.opening(2, 8 * 3)

    def next(self, wait: float = BEAT) -> Asked | None:
        """The oldest questions that wait, at both parties; None if there were none for `wait` seconds, or no good ones.

        Party 0 names the ticket, which is no secret between the servers. A deposit that does not reach both of them
        within `patience`, or is not of whole questions, is dropped; its client is told why, and so is the log.
        Costs `costs`: 3 rounds, with weights 4; 64 bits for each number of a row and, with weights, of a sum.
        """
        ticket, shares = self._meet(min(wait, self._session.channel.timeout / 2))
        if shares is None:
            return None
        dim, device = self.server.facts.dim, self._session.device
        costs = self.costs(len(shares.factors) // self.positions)
        factors = from_share(shares.factors.to(device)[:, None], SCALE if self.weighted else 0)
        rows = from_share(shares.rows.to(device), SCALE)
        with meter.layer("lookup.rows", "mul", costs["lookup.rows"], elements=shares.rows.numel()):
            product = Multiply()(factors, rows)
        parts = share_of(product).view(-1, self.positions, dim).split(self.bags, 1)
        x = from_share(torch.cat([part.sum(1) for part in parts], 1), scale_of(product))
        if self.weighted:  # |weight * row|, summed, must stay below 2^30: 62 bits in the ring
            with meter.layer("lookup.rescale", "rescale", costs["lookup.rescale"], elements=share_of(x).numel()):
                x = Rescale()(x)
        return Asked(ticket, x)

    def answer(self, asked: Asked, result: MPCTensor) -> None:
        """Hand this party's share of a result to the client, who reads it at scale 2^16.

        The share is made fresh by a shared zero: the client learns the result, and nothing of how it came about. Sends
        nothing to the other party, but for a result with more bits of fraction: 64 bits and one round to cut them.
        """
        if scale_of(result) != SCALE:
            price = Rescale().cost([Spec(tuple(result.size()), scale_of(result))], 2)
            with meter.layer("lookup.result", "rescale", price, elements=share_of(result).numel()):
                result = Rescale()(result)
        share = share_of(result)
        fresh = sharing.share_secret(self._session, share, tuple(share.shape), self._session.rank)
        self.server.publish(asked.ticket, fresh.cpu())

    def serve(self, net: Callable[[MPCTensor], MPCTensor], deposits: int | None = None) -> None:
        """Answer by `net`, until `stop` at either party, or this many deposits have been answered.

        An error of the net, or of the other party, is told to the client and raised.
        """
        while not self.ended and deposits != 0:
            asked = self.next()
            if asked is None:
                continue
            try:
                self.answer(asked, net(asked.x))
            except BaseException:
                gone = PeerError("this server's session has failed", hint="its own output says why")
                self.server.publish(asked.ticket, gone)
                raise
            deposits = None if deposits is None else deposits - 1

    def stop(self) -> None:
        """Let `serve` end at both parties, after what it is at; from any thread, or from a signal's handler."""
        self._stop.set()

    # The same deposit at both parties ---------------------------------------------------------------------------------

    def _meet(self, wait: float) -> tuple[bytes, Shares | None]:
        """A ticket, and the shares that both parties have under it."""
        channel, server, rank = self._session.channel, self.server, self._session.rank
        with meter.layer("lookup.ticket", "agree", self._ticket_cost()):
            if rank == 0:
                started = time.perf_counter()
                ticket = None if self._stop.is_set() else server.oldest(wait)
                meter.count(waited=time.perf_counter() - started)
                channel.send(1, torch.frombuffer(bytearray(_announce(ticket)), dtype=torch.uint8))
            else:
                data = channel.receive(0, [torch.empty(_ANNOUNCED, dtype=torch.uint8)])[0].numpy().tobytes()
                ticket = data[1:] if data[0] else None
            channel.count_round()
            mine = None if ticket is None else self._take(ticket)
            count, weighted = (len(mine.factors), mine.weighted) if mine else (0, False)
            said = [count, int(weighted), int(self._stop.is_set())]
            theirs = channel.exchange(torch.tensor(said, dtype=torch.int64))[1 - rank][0].tolist()
        self.ended = bool(said[2] or theirs[2])
        if ticket is None:
            return b"", None
        problem = self._problem(said[:2], theirs[:2])
        if problem is None:
            return ticket, mine
        _log.warning("deposit %s is dropped: %s", name(ticket), problem.what)
        server.publish(ticket, problem)
        return ticket, None

    def _take(self, ticket: bytes) -> Shares | None:
        """The shares at this party; None if they do not come in time."""
        started = time.perf_counter()
        try:
            return self.server.take(ticket, self._patience)
        except PeerError:
            return None
        finally:
            meter.count(waited=time.perf_counter() - started)

    def _problem(self, mine: list[int], theirs: list[int]) -> HummingbirdError | None:
        """Why a deposit cannot be used: lookups and weightedness at this party and at the other."""
        if not mine[0] or not theirs[0]:
            missing = self._session.rank if not mine[0] else 1 - self._session.rank
            what = f"server {missing} has not received this deposit within {self._patience:g} s"
            return PeerError(what, where="Lookups", hint="deposit again, at both servers")
        if mine != theirs:
            return InputError("the two servers have received different deposits", where="Lookups")
        if mine[0] % self.positions or bool(mine[1]) != self.weighted:
            weights = "with weights" if self.weighted else "without weights"
            what = f"a question is {self.positions} lookups {weights}, in bags of {self.bags}"
            return InputError(what, where="Lookups", hint="deposit whole questions, padding included")
        return None


def _announce(ticket: bytes | None) -> bytes:
    return bytes(_ANNOUNCED) if ticket is None else b"\1" + ticket
