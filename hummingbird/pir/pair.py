"""The two servers of a table as one client sees them: asked at the same time, and held to one table in one state.

After an update that has reached one server only, the client waits for the other, two seconds at most.
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
    """Both servers, in order, once they have told the same facts and state.

    servers, tls, timeout, tokens: as `Client` takes them. identified: whether answers must be signed by their servers;
    owned: whether rows must be signed by their owner. signs: whether each server signs. Raises what `Client` raises.
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
        """Both answers; sent at the same time. PeerError names every server that failed."""
        return ask(self.links, messages, method, "pir.Client")

    def unpacked(self, answers: Sequence[bytes], count: int) -> list[tuple[State, Tensor, bytes | None]]:
        """State, records and signature of both answers to `count` keys; PeerError for a malformed one."""
        parts = []
        for link, answer, signs in zip(self.links, answers, self.signs, strict=True):
            try:
                parts.append(unpack_answer(answer, count, self.facts, signs))
            except InputError as error:
                raise malformed(link, error) from None
        return parts

    def update(self, message: bytes) -> None:
        """Hand an update to both, whose new state is then `state`; AgreementError if they are of two states."""
        zero, one = updated(self.links, message, "pir.Client")
        self.check_states(zero.state, one.state)
        self.state = zero.state

    def renew(self) -> None:
        """Ask for the state again; AgreementError if the servers hold another table than before."""
        facts, self.state = self._agree()
        if facts != self.facts:
            hint = "make a new client for the new table"
            raise AgreementError(f"the table was {self.facts.text()}, it is {facts.text()}", where="pir", hint=hint)

    def settling(self) -> Retry:
        """The time in which two states can be an update on its way, for `wait`."""
        return Retry(self._settle, (_PAUSE, _PAUSE), passing=(AgreementError,))

    def wait(self, settling: Retry, zero: State, one: State) -> None:
        """Wait a little for an update to reach both; AgreementError when that time is over."""
        time.sleep(settling.failed(disagreement(self.links, "contents", zero, one)))

    def check_states(self, zero: State, one: State) -> None:
        """AgreementError unless the two are equal."""
        if zero != one:
            raise disagreement(self.links, "contents", zero, one)

    def close(self) -> None:
        """Disconnect; may be called twice. Servers in this process stay as they are."""
        disconnect(self.links)

    def _agree(self) -> tuple[Facts, State]:
        """The facts and the state that both servers name."""
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
    """The descriptions of both servers: of this release, in their order, of one table. AgreementError, PeerError."""
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
    """The descriptions that both servers answer to a message with."""
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
    """The descriptions of both servers after an update, which both have before party 0 makes it, and then party 1.

    So they differ for the time of one short message, however long the update takes to arrive. A server that holds it no
    more, for another one was offered meanwhile or it was started again, is sent it once more. Nothing is made where one
    of them does not take it. Of two updates for one version, of two programs that have the owner's key, party 0 makes
    one, and the other program stops there: at the same time each server could make another one.
    """
    described(links, [message, message], "Offer", where)
    digest = hashlib.sha256(message).digest()
    return [_description(link, link.begin(digest, "Switch")() or link.begin(message, "Update")()) for link in links]


def disagreement(links: Sequence[TableServer], what: str, *sides: Facts | State) -> AgreementError:
    """The error for servers that hold different `what`; it names both."""
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
    """The error for a server whose message is malformed, to be raised in place of the parser's."""
    return PeerError(error.what, where=link.name, hint=error.hint)
