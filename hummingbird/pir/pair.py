"""The two servers of a table as one client sees them: asked at the same time; they must have the same table and state.

If an update has reached only one server, the client waits for the other, at most two seconds.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence

from torch import Tensor

from hummingbird.errors import AgreementError, InputError, PeerError
from hummingbird.pir.messages import TableDescription, unpack_answer
from hummingbird.pir.table import Facts, State
from hummingbird.pir.table_server import TableServer, ask, connected, disconnect
from hummingbird.rpc.client import Retry
from hummingbird.rpc.service import Tls
from hummingbird.version import VERSION

_SETTLE = 2.0  # seconds for an update to reach both servers
_PAUSE = 0.05


class Pair:
    """A client's connections to both servers of a table, which must report equal facts and equal states of it.

    servers, tls, timeout, tokens: as in `Client`. identified: whether servers must sign their answers. owned: whether
    the table's owner must have signed its rows. `facts` and `state` are those of the table; `signs` says for each
    server whether it signs its answers. Raises the errors of `Client`.
    """

    def __init__(
        self,
        servers: Sequence[str | TableServer],
        tls: Tls | None,
        timeout: float,
        *,
        tokens: Sequence[str] | None = None,
        identified: bool,
        owned: bool,
    ) -> None:
        self.links = connected(servers, tls, timeout, "pir.Client(servers)", tokens)
        self._identified, self._owned, self._settle = identified, owned, min(_SETTLE, timeout)
        self.signs = (False, False)
        try:
            self.facts, self.state = self._agree()
        except BaseException:
            self.close()
            raise

    def ask(self, messages: Sequence[bytes], method: str = "Answer") -> list[bytes]:
        """Send one message to each server at the same time; returns the answers of party 0 and party 1.

        messages: for party 0 and party 1. method: the call of the servers (`TableServer.begin`). Raises PeerError,
        naming every server that failed.
        """
        return ask(self.links, messages, method, "pir.Client")

    def unpacked(self, answers: Sequence[bytes], count: int) -> list[tuple[State, Tensor, bytes | None]]:
        """Unpack both servers' answers; return for each a tuple of three: the state of the table, the records, and the
        signature.

        answers: of party 0 and party 1. count: number of keys that each answers. A signature is None if the server
        signs no answers. Raises PeerError if an answer is malformed.
        """
        parts = []
        for link, answer, signs in zip(self.links, answers, self.signs, strict=True):
            try:
                parts.append(unpack_answer(answer, count, self.facts, signs))
            except InputError as error:
                raise malformed(link, error) from None
        return parts

    def update(self, message: bytes) -> None:
        """Send an update that the owner has signed to both servers, and set `state` to the state that they report
        afterwards.

        Raises AgreementError if the two servers report different states.
        """
        zero, one = updated(self.links, message, "pir.Client")
        self.check_states(zero.state, one.state)
        self.state = zero.state

    def renew(self) -> None:
        """Ask both servers again for the state of their table, and set `state` to it.

        Raises AgreementError if the servers now have another table, with other facts, than before.
        """
        facts, self.state = self._agree()
        if facts != self.facts:
            hint = "make a new client for the new table"
            raise AgreementError(f"the table was {self.facts.text()}, it is {facts.text()}", where="pir", hint=hint)

    def settling(self) -> Retry:
        """Return a new time limit, to pass to `wait`: the time for which the two servers' states may differ because
        of an update.
        """
        return Retry(self._settle, (_PAUSE, _PAUSE), passing=(AgreementError,))

    def wait(self, settling: Retry, zero: State, one: State) -> None:
        """Wait a short time after both servers have reported different states, because an update may have reached only
        one.

        settling: the time limit, from `Pair.settling`; once it is over, AgreementError is raised. zero, one: the states
        that party 0 and party 1 have reported.
        """
        time.sleep(settling.failed(disagreement(self.links, "contents", zero, one)))

    def check_states(self, zero: State, one: State) -> None:
        """Raise AgreementError unless both states are equal. zero, one: the states that party 0 and party 1 have
        reported.
        """
        if zero != one:
            raise disagreement(self.links, "contents", zero, one)

    def close(self) -> None:
        """Disconnect; may be called twice. Servers in this process stay as they are."""
        disconnect(self.links)

    def _agree(self) -> tuple[Facts, State]:
        """Ask both servers for the facts and the state of their table, until the states are equal; return facts and
        state.

        Raises AgreementError if the states still differ after two seconds (or `timeout`, if that is less), if the facts
        differ, or if a server does not sign answers, or the owner has not signed rows, although this is demanded.
        """
        settling = self.settling()
        while True:
            zero, one = descriptions(self.links, "pir.Client")
            for link, description in zip(self.links, (zero, one), strict=True):
                if self._identified and not description.signs:
                    raise AgreementError("answers are not signed", where=link.name, hint="start it with --identity")
            self._check_facts(zero.facts)
            if zero.state == one.state:
                self.signs = zero.signs, one.signs
                return zero.facts, zero.state
            self.wait(settling, zero.state, one.state)

    def _check_facts(self, facts: Facts) -> None:
        if self._owned and not facts.table_id:
            hint = "serve what Owner.sign makes, or leave out the owner"
            raise AgreementError("the table's rows are not signed", where=self.links[0].name, hint=hint)


def descriptions(links: Sequence[TableServer], where: str) -> list[TableDescription]:
    """Ask both servers for their descriptions (party, release, table); returns them.

    where: location in errors. Raises AgreementError unless both are of this release, are parties 0 and 1 in this order,
    and hold tables with the same facts; PeerError for a server that does not answer.
    """
    found = described(links, [b"", b""], "Describe", where)
    for party, (link, description) in enumerate(zip(links, found, strict=True)):
        if description.party != party:
            hint = "name the servers in order; each runs with its own --party"
            raise AgreementError(f"party {description.party} answers as party {party}", where=link.name, hint=hint)
        if description.release != VERSION:
            what = f"the server runs release {description.release}, the client {VERSION}"
            raise AgreementError(what, where=link.name, hint="install the same release everywhere")
    zero, one = found
    if zero.facts != one.facts:
        raise disagreement(links, "tables", zero.facts, one.facts)
    return found


def described(
    links: Sequence[TableServer], messages: Sequence[bytes], method: str, where: str
) -> list[TableDescription]:
    """Send one message to each server, which answers it with a description of itself; return both descriptions.

    links: the connections to both servers. messages: for party 0 and party 1. method: the call of the servers, such as
    "Describe" or "Offer" (`TableServer.begin`). where: location in errors. Raises PeerError, naming every server that
    failed.
    """
    found = []
    for link, answer in zip(links, ask(links, messages, method, where), strict=True):
        found.append(_description(link, answer))
    return found


def _description(link: TableServer, answer: bytes) -> TableDescription:
    try:
        return TableDescription.unpack(answer)
    except InputError as error:
        raise malformed(link, error) from None


def updated(links: Sequence[TableServer], message: bytes, where: str) -> list[TableDescription]:
    """Update both servers' tables: first both receive the update, then party 0 changes its table, then party 1.

    So the tables differ only for the time of one short message, however long the update takes to arrive.
    links: the connections to both servers. message: the update, signed by the owner. where: location in errors.
    Returns the descriptions of both servers after the update.
    If a server refuses the update when it receives it, neither table changes. A server may no longer hold the update
    when it is told to apply it: another one was offered, or the server was started again. Then the update is sent
    again.
    If two programs with the owner's key send different updates for one version, party 0 applies one of them, and the
    other program stops there. This is why party 0 comes first: otherwise each party could apply a different update.
    """
    described(links, [message, message], "Offer", where)
    digest = hashlib.sha256(message).digest()
    return [_description(link, link.begin(digest, "Switch")() or link.begin(message, "Update")()) for link in links]


def disagreement(links: Sequence[TableServer], what: str, *sides: Facts | State) -> AgreementError:
    """Return the AgreementError for two servers whose tables differ; its text names both servers.

    what: a word for what differs, such as "contents". sides: the facts, or the states, of party 0's and party 1's
    table.
    """
    texts = [
        side.text() if isinstance(side, Facts) else f"version {side.version}, digest {side.digest.hex()[:8]}"
        for side in sides
    ]
    text = "; ".join(f"{link.name}: {said}" for link, said in zip(links, texts, strict=True))
    hint = "give both the same file; python -m hummingbird pir-owner update brings the one behind up to the other"
    if isinstance(sides[0], State) and len({side.version for side in sides if isinstance(side, State)}) == 1:
        hint = "give both the same file, and one of them a copy of the other's journal, while both are stopped"
    return AgreementError(f"the servers hold different {what}: {text}", where="pir.Client", hint=hint)


def malformed(link: TableServer, error: InputError) -> PeerError:
    """Make the PeerError for a server that sent a malformed message.

    link: the connection to the server. error: what the function that read the message has raised.
    """
    return PeerError(error.what, where=link.name, hint=error.hint)
