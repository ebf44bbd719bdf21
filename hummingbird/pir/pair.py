"""The two servers of a table as one client sees them: asked at the same time, and held to one table in one state.

After an update that has reached one server only, the client waits for the other, two seconds at most.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from torch import Tensor

from hummingbird.errors import AgreementError, ConfigError, HummingbirdError, InputError, PeerError, TrustError
from hummingbird.pir.link import Link, Remote
from hummingbird.pir.messages import Description, unpack_answer
from hummingbird.pir.table import Facts, State
from hummingbird.version import VERSION
from hummingbird.wire.service import Tls

_SETTLE = 2.0  # seconds for an update to reach both servers
_PAUSE = 0.05


class Pair:
    """Both servers, in order, once they have told the same facts and state.

    servers, tls, timeout: as `Client` takes them. identified: whether answers must be signed by their servers; owned:
    whether rows must be signed by their owner. signs: whether each server signs. Raises what `Client` raises.
    """

    def __init__(
        self, servers: Sequence[str | Link], tls: Tls | None, timeout: float, *, identified: bool, owned: bool
    ) -> None:
        both = isinstance(servers, Sequence) and not isinstance(servers, str) and len(servers) == 2
        if not both or not all(isinstance(server, str) or hasattr(server, "begin") for server in servers):
            what = f"expected two servers, got {servers!r}"
            hint = "the addresses of parties 0 and 1, or pir.local_servers(table)"
            raise ConfigError(what, where="pir.Client(servers)", hint=hint)
        if servers[0] == servers[1]:
            hint = "give two servers of operators that do not collude"
            raise TrustError(
                "one server would get both keys, and read the index", where="pir.Client(servers)", hint=hint
            )
        self._identified, self._owned, self._settle = identified, owned, min(_SETTLE, timeout)
        self.links: list[Link] = []
        self.signs = (False, False)
        deadline = time.monotonic() + timeout
        try:
            for party, server in enumerate(servers):
                left = max(0.1, deadline - time.monotonic())
                remote = isinstance(server, str)
                self.links.append(Remote(f"server {party}", server, tls, left) if remote else server)  # type: ignore
            self.facts, self.state = self._agree()
        except BaseException:
            self.close()
            raise

    def ask(self, messages: Sequence[bytes], method: str = "Answer") -> list[bytes]:
        """Both answers; sent at the same time. PeerError names every server that failed."""
        waiting = [link.begin(message, method) for link, message in zip(self.links, messages, strict=True)]
        answers: list[bytes] = []
        errors: list[HummingbirdError] = []
        for finish in waiting:
            try:
                answers.append(finish())
            except HummingbirdError as error:
                errors.append(error)
        if len(errors) == 2:
            what = "; ".join(f"{link.name}: {error.what}" for link, error in zip(self.links, errors, strict=True))
            raise PeerError(f"neither server answers: {what}", where="pir.Client", hint=errors[0].hint)
        if errors:
            raise errors[0]
        return answers

    def unpacked(self, answers: Sequence[bytes], count: int) -> list[tuple[State, Tensor, bytes | None]]:
        """State, records and signature of both answers to `count` keys; PeerError for a malformed one."""
        parts = []
        for link, answer, signs in zip(self.links, answers, self.signs, strict=True):
            try:
                parts.append(unpack_answer(answer, count, self.facts, signs and not self.facts.shares))
            except InputError as error:
                raise malformed(link, error) from None
        return parts

    def update(self, message: bytes) -> None:
        """Hand an update to both, whose new state is then `state`; AgreementError if they are of two states."""
        zero, one = self._described([message, message], "Update")
        self.check_states(zero.state, one.state)
        self.state = zero.state

    def renew(self) -> None:
        """Ask for the state again; AgreementError if the servers hold another table than before."""
        facts, self.state = self._agree()
        if facts != self.facts:
            hint = "make a new client for the new table"
            raise AgreementError(f"the table was {self.facts.text()}, it is {facts.text()}", where="pir", hint=hint)

    def deadline(self) -> float:
        """When two states can no longer be an update on its way, for `wait`."""
        return time.monotonic() + self._settle

    def wait(self, deadline: float, zero: State, one: State) -> None:
        """Wait a little for an update to reach both; AgreementError after the deadline."""
        if time.monotonic() > deadline:
            raise self._disagree("contents", zero, one)
        time.sleep(_PAUSE)

    def check_states(self, zero: State, one: State) -> None:
        """AgreementError unless the two are equal."""
        if zero != one:
            raise self._disagree("contents", zero, one)

    def close(self) -> None:
        """Disconnect; may be called twice. Servers in this process stay as they are."""
        for link in self.links:
            if isinstance(link, Remote):
                link.close()

    def _agree(self) -> tuple[Facts, State]:
        """The facts and the state that both servers name."""
        deadline = self.deadline()
        while True:
            zero, one = self._described([b"", b""], "Describe")
            for party, (link, description) in enumerate(zip(self.links, (zero, one), strict=True)):
                self._check_description(party, link, description)
            if zero.facts != one.facts:
                raise self._disagree("tables", zero.facts, one.facts)
            self._check_facts(zero.facts)
            if zero.state == one.state:
                self.signs = zero.signs, one.signs
                return zero.facts, zero.state
            self.wait(deadline, zero.state, one.state)

    def _check_description(self, party: int, link: Link, description: Description) -> None:
        if description.party != party:
            hint = "name the servers in order; each runs with its own --party"
            raise AgreementError(f"party {description.party} answers as party {party}", where=link.name, hint=hint)
        if description.release != VERSION:
            what = f"the server runs release {description.release}, the client {VERSION}"
            raise AgreementError(what, where=link.name, hint="install the same release everywhere")
        if self._identified and not description.signs:
            raise AgreementError("answers are not signed", where=link.name, hint="start it with --identity")

    def _check_facts(self, facts: Facts) -> None:
        if self._identified and facts.shares:
            hint = "leave out the identities, or ask for rows of the plain table"
            raise AgreementError("answers for shares are not signed", where=self.links[0].name, hint=hint)
        if self._owned and not facts.table_id:
            hint = "serve what Owner.sign makes, or leave out the owner"
            raise AgreementError("the table's rows are not signed", where=self.links[0].name, hint=hint)

    def _described(self, messages: Sequence[bytes], method: str) -> list[Description]:
        described = []
        for link, answer in zip(self.links, self.ask(messages, method), strict=True):
            try:
                described.append(Description.unpack(answer))
            except InputError as error:
                raise malformed(link, error) from None
        return described

    def _disagree(self, what: str, *sides: Facts | State) -> AgreementError:
        texts = [
            side.text() if isinstance(side, Facts) else f"version {side.version}, digest {side.digest.hex()[:8]}"
            for side in sides
        ]
        text = "; ".join(f"{link.name}: {said}" for link, said in zip(self.links, texts, strict=True))
        hint = "give both the same file; python -m hummingbird pir-owner update brings the one behind up to the other"
        return AgreementError(f"the servers hold different {what}: {text}", where="pir.Client", hint=hint)


def malformed(link: Link, error: InputError) -> PeerError:
    """The error for a server whose message is malformed, to be raised in place of the parser's."""
    return PeerError(error.what, where=link.name, hint=error.hint)
