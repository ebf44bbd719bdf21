"""Connects the parties, or one lane of each: one TCP connection per ordered pair, on which the first party sends.

Either party of a pair may open it: each calls the other for the connection that it sends on, and a second later also
for the one that it receives on, if that is still missing. So it suffices that one of them can reach the other, through
a firewall or an address translation, on one port. The sender takes the first connection that is open, and says so on
it. handshake.py defines these messages; with TLS the certificate must also be for the name `party-RANK`.

The first lane of a party on each of its hosts listens on the party's port, and hands the other lanes of that host
their connections over Unix sockets (`links`). Lane 0 of a party listens, and its other lanes call it (`star`).
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hummingbird.channel.channel import Channel, named
from hummingbird.channel.handshake import GO, HELLO_BYTES, Hello, Steps, Taken, introduce, reach, take
from hummingbird.errors import PeerError
from hummingbird.rpc.security import joined, loopback
from hummingbird.rpc.signals import check

_HELLO = 5.0  # seconds for a new connection to prove that it is a party's, TLS handshake included
_REACH = 5.0  # seconds for an address to accept a connection
_HEAD_START = 1.0  # seconds after which a party also calls for the connections that it receives on
_AGAIN = 0.5  # seconds between two calls of one address
_PATIENCE = 15.0  # seconds of failed calls after which a party on another host is given up, unless it has called
_LOOK = 0.05  # seconds between two checks of what is due
_STRANGERS = 64  # most connections at a time that have not proved who they are
_DONE = b"."  # sent by a lane on its link when it has all connections

Link = tuple[bytes, socket.socket]  # another lane of this party: its token, and a Unix socket to it
Address = tuple[str, int]  # host and port


def connect(
    rank: int,
    addresses: Sequence[Address],
    server: socket.socket | None,
    token: bytes,
    timeout: float,
    tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
    lane: int | None = None,
    links: Mapping[int, Link] | None = None,
) -> Channel:
    """Connect all parties to each other; return this party's channel.

    For every ordered pair of parties there is a connection, on which the first party sends to the second. rank: of this
    party. addresses: (host, port) of every party, by rank. server: the listening socket at which other parties connect
    to this one; None for a lane that gets its connections from the first lane of its host. token: 16 secret bytes of
    this run and lane, which only the parties know. timeout: seconds. tls: contexts for the connecting and the accepting
    side; party i's certificate must then be for the name `party-i`. lane: the lane that connects here; None if parties
    have one lane. links: for other lanes of this party on this host, by number: the lane's token and a socket to it.
    `server` and the links are closed at the end. Raises PeerError if a party does not come or fails.
    """
    parties = range(len(addresses))
    names = [named(party, lane) for party in parties]
    joining = _Joining(rank, addresses, token, timeout, tls, names, [f"party-{party}" for party in parties])
    return joining.channel(server, links or {})


def star(
    lane: int,
    names: Sequence[str],
    address: Address,
    server: socket.socket | None,
    token: bytes,
    timeout: float,
    certificate: str,
    tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
) -> Channel:
    """Connect lane 0 of one party with each other lane of it; return this lane's channel, whose ranks are lanes.

    lane: this one. names: of all lanes, for errors. address: at which lane 0 listens. server: its listening socket;
    None at other lanes, which call lane 0. It is closed at the end. token: 16 secret bytes of this party's lanes.
    timeout: seconds. certificate: the name in the certificates of all lanes. tls: as for `connect`. Raises PeerError if
    a lane does not come or fails.
    """
    addresses = [address, *[None] * (len(names) - 1)]
    joining = _Joining(lane, addresses, token, timeout, tls, names, [certificate] * len(names))
    return joining.channel(server, {})


@dataclass
class _Dialing:
    """The repeated attempts of this party to open one connection, `call`.

    due: monotonic time of the next attempt. under_way: the attempt that is being made, or None. failing: monotonic time
    of the first failure in a row, or None.
    """

    call: Hello
    due: float
    attempts: int = 0
    failing: float | None = None
    under_way: _Step | None = None


@dataclass
class _Step:
    """A piece of work on one connection: connecting, or the handshake of an opened or accepted connection.

    steps: the work, a generator that yields the socket and event for which it waits (handshake.py). deadline: monotonic
    time. made: called with the generator's result. failed: called with its OSError. waits_on: the socket that is being
    watched; None if none is. stranger: whether the peer has called and not yet proved who it is.
    """

    steps: Steps[Any]
    deadline: float
    made: Callable[[Any], None]
    failed: Callable[[OSError], None]
    waits_on: socket.socket | None = None
    stranger: bool = False


class _Joining:
    """The state of one lane of a party while it connects: opens and accepts two connections with every other party.

    One is for each direction. addresses: by rank; None for those that listen nowhere, which call others, but not each
    other. names: of all parties, in errors. certificates: the names in their certificates. Other arguments: as for
    `connect`.
    """

    def __init__(
        self,
        rank: int,
        addresses: Sequence[Address | None],
        token: bytes,
        timeout: float,
        tls: tuple[ssl.SSLContext, ssl.SSLContext] | None,
        names: Sequence[str],
        certificates: Sequence[str],
    ) -> None:
        self._rank, self._addresses, self._token, self._timeout = rank, addresses, token, timeout
        self._names, self._certificates = names, certificates
        self._calling: ssl.SSLContext | None = tls[0] if tls else None
        self._called: ssl.SSLContext | None = tls[1] if tls else None
        if self._called:
            # A session ticket would stay unread at the sender of a one-way connection, and turn its end into a reset,
            # which may overtake the last frame.
            self._called.num_tickets = 0
        self._deadline = time.monotonic() + timeout
        self.outgoing: dict[int, socket.socket] = {}
        self.incoming: dict[int, socket.socket] = {}
        self._offered: list[tuple[int, socket.socket]] = []  # to receive on, if the sender chooses them
        listens, now = addresses[rank] is not None, time.monotonic()
        others = [peer for peer, where in enumerate(addresses) if peer != rank and (listens or where is not None)]
        called = [peer for peer in others if addresses[peer] is not None]
        self._dialing = [_Dialing(Hello(rank, peer, True), now) for peer in called]
        later = now + _HEAD_START if listens else now
        self._dialing += [_Dialing(Hello(rank, peer, False), later) for peer in called]
        self._others = others
        self._calls = self._hellos(token)
        self._elsewhere: dict[bytes, int] = {}  # hellos for other lanes of this party
        self._steps: list[_Step] = []
        self._fresh: list[_Step] = []  # those of `_steps` that have not begun
        self._selector = selectors.DefaultSelector()
        self._server: socket.socket | None = None
        self._accepts = False
        self._links: dict[int, socket.socket] = {}
        self._refused = ""

    def _hellos(self, token: bytes) -> dict[bytes, Hello]:
        calls = [Hello(peer, self._rank, sends) for peer in self._others for sends in (True, False)]
        return {call.hello(token): call for call in calls}

    def channel(self, server: socket.socket | None, links: Mapping[int, Link]) -> Channel:
        """Make all connections, and return the channel. server, links: as for `connect`."""
        try:
            self.serve(server, links)
            while not self.complete:
                self.step()
                if time.monotonic() > self._deadline:
                    raise self.late()
        except BaseException:
            self.close_all()
            raise
        finally:
            self.close()
        return Channel(self._rank, len(self._names), self.outgoing, self.incoming, self._timeout, self._names)

    @property
    def complete(self) -> bool:
        """Whether this lane has all its connections; at a host's first lane, whether the others have theirs, too."""
        mine = len(self.outgoing) == len(self.incoming) == len(self._others)
        return mine and (self._server is None or not self._links)

    def serve(self, server: socket.socket | None, links: Mapping[int, Link]) -> None:
        """Begin to accept connections at the socket `server`; None in a lane that gets its own from another lane.

        links: lane -> (token of that lane, socket to it). At the first lane of a host it has all other lanes of this
        party there, for which this one accepts connections too; at those it has the first one alone.
        """
        self._server, self._links = server, {lane: link for lane, (_, link) in links.items()}
        for lane, link in self._links.items():
            link.setblocking(False)
            self._selector.register(link, selectors.EVENT_READ, lambda lane=lane: self._heard(lane))
        if server is not None:
            server.setblocking(False)
            for lane, (token, _) in links.items():
                self._elsewhere |= dict.fromkeys(self._hellos(token), lane)

    def step(self) -> None:
        """Work on all connections once: start attempts to connect that are due, then handle events of the sockets.

        Waits for events for at most `_LOOK` seconds.
        """
        check()
        now = time.monotonic()
        for dialing in self._dialing:
            if dialing.under_way is None and now >= dialing.due:
                self._dial(dialing)
        self._accept_or_not()
        while self._fresh:
            self._go_on(self._fresh.pop(0))
        for key, _ in self._selector.select(_LOOK):
            if self._selector.get_map().get(key.fd) is key:  # an earlier event may have ended it
                key.data()
        now = time.monotonic()
        for step in [step for step in self._steps if now > step.deadline]:
            self._end(step)
            step.failed(TimeoutError("timed out"))

    # Connections in the making ----------------------------------------------------------------------------------------

    def _begin(
        self, steps: Steps[Any], seconds: float, made: Callable[[Any], None], failed: Callable[[OSError], None]
    ) -> _Step:
        step = _Step(steps, time.monotonic() + seconds, made, failed)
        self._steps.append(step)
        self._fresh.append(step)
        return step

    def _go_on(self, step: _Step) -> None:
        self._forget(step)
        try:
            connection, event = next(step.steps)
        except StopIteration as end:
            self._steps.remove(step)
            step.made(end.value)
        except OSError as error:
            self._steps.remove(step)
            step.failed(error)
        else:
            step.waits_on = connection
            self._selector.register(connection, event, lambda: self._go_on(step))

    def _forget(self, step: _Step) -> None:
        if step.waits_on is not None:
            self._selector.unregister(step.waits_on)
            step.waits_on = None

    def _end(self, step: _Step) -> None:
        self._forget(step)
        if step in self._fresh:
            self._fresh.remove(step)
        self._steps.remove(step)
        step.steps.close()

    # Calling ----------------------------------------------------------------------------------------------------------

    def _dial(self, dialing: _Dialing) -> None:
        address, attempt = self._addresses[dialing.call.called], dialing.attempts
        assert address is not None  # else it is not called
        dialing.attempts += 1

        def failed(error: OSError) -> None:
            now = time.monotonic()
            dialing.under_way, dialing.due = None, now + _AGAIN
            if isinstance(error, TimeoutError):  # no proof that nobody listens
                dialing.failing = None
                return
            dialing.failing = dialing.failing or now
            gone = now - dialing.failing >= (0.0 if loopback(address[0]) else _PATIENCE)
            if dialing.call.sends and gone:  # a party on this host is reachable or has ended
                raise self._lost(dialing.call.called, error)

        def reached(connection: socket.socket) -> None:
            name = self._certificates[dialing.call.called]
            steps = introduce(connection, dialing.call, self._token, self._calling, name)
            dialing.under_way = self._begin(steps, float("inf"), made, failed)

        def made(connection: socket.socket) -> None:
            self._dialing.remove(dialing)
            self._made(dialing.call, dialing.call.called, connection)

        dialing.under_way = self._begin(reach(*address, attempt), _REACH, reached, failed)

    # Being called -----------------------------------------------------------------------------------------------------

    def _accept_or_not(self) -> None:
        """Accept connections only while fewer than `_STRANGERS` accepted callers have not proved who they are yet."""
        if self._server is None:
            return
        accepts = sum(step.stranger for step in self._steps) < _STRANGERS
        if accepts and not self._accepts:
            self._selector.register(self._server, selectors.EVENT_READ, self._accept)
        elif self._accepts and not accepts:
            self._selector.unregister(self._server)
        self._accepts = accepts

    def _accept(self) -> None:
        assert self._server is not None
        with contextlib.suppress(OSError):  # the caller has disconnected already
            connection, caller = self._server.accept()
            self._take(connection, b"", str(caller[0]))

    def _take(self, connection: socket.socket, hello: bytes, caller: str) -> None:
        def refused(error: OSError) -> None:
            self._refused = f"the last connection refused was one from {caller}: {error}"

        def taken(found: Taken) -> None:
            if found.call is None:
                self._hand_over(found)
            else:
                self._made(found.call, found.call.caller, found.connection)

        steps = take(connection, hello, self._calls, self._elsewhere, self._token, self._called, self._certificates)
        step = self._begin(steps, _HELLO, taken, refused)
        step.stranger = True

    # The other lanes of this party ------------------------------------------------------------------------------------

    def _heard(self, lane: int) -> None:
        """Read what another lane of this party has sent to this lane.

        At a host's first lane this is the byte by which the other lane says that it has all its connections. At another
        lane it is a connection that the first one hands over, with the 16 bytes that name it. Raises PeerError if the
        other lane has ended.
        """
        link = self._links[lane]
        try:
            handles: list[int] = []
            if self._server is not None:
                data = link.recv(1)
            else:
                data, handles, _, _ = socket.recv_fds(link, HELLO_BYTES, 1)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        for handle in handles:
            self._take(socket.socket(fileno=handle), data, f"lane {lane}")
        if not handles:
            self._selector.unregister(link)
            link.close()
            del self._links[lane]
            if data != _DONE:
                what = f"{named(self._rank, lane)} ended while the parties met"
                raise PeerError(what, where=self._names[self._rank], hint="its own output says why")

    def _hand_over(self, found: Taken) -> None:
        """Hand an accepted connection to the lane of this party that it is for, unless that lane has all its own."""
        link = self._links.get(self._elsewhere[found.hello])
        with found.connection, contextlib.suppress(OSError):  # the link shows that a lane has ended
            if link is not None:
                socket.send_fds(link, [found.hello], [found.connection.fileno()])

    # Connections that are made ----------------------------------------------------------------------------------------

    def _made(self, call: Hello, peer: int, connection: socket.socket) -> None:
        """Keep a new connection with party `peer` after its handshake; close it if its direction has one already.

        The sender writes one byte on the first connection, which is then in use. The receiver keeps every such
        connection until that byte arrives on one of them (`_told`). call: who has opened it, and who sends on it.
        """
        mine = call.sends == (call.caller == self._rank)  # this party sends
        if not mine and peer not in self.incoming:
            self._offered.append((peer, connection))
            self._selector.register(connection, selectors.EVENT_READ, lambda: self._told(peer, connection))
            return
        if mine and peer not in self.outgoing:
            try:
                connection.sendall(GO)
            except OSError:
                connection.close()
                return self._redial(peer, True)
            self.outgoing[peer] = connection
            self._settle(peer, True)
            # The peer never sends on this connection: only its end can be read.
            self._selector.register(connection, selectors.EVENT_READ, lambda: self._left(peer, connection))
            return
        connection.close()

    def _told(self, peer: int, connection: socket.socket) -> None:
        """Handle the first byte, or the end, of a connection on which this party receives.

        By the byte the peer chooses this connection, and others in the same direction are closed. At its end, this
        party calls the peer again.
        """
        try:
            said = connection.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except OSError:
            said = b""
        self._selector.unregister(connection)
        self._offered.remove((peer, connection))
        if said == GO and peer not in self.incoming:
            self.incoming[peer] = connection
            self._settle(peer, False)
            for other in [offer for offer in self._offered if offer[0] == peer]:
                self._offered.remove(other)
                self._selector.unregister(other[1])
                other[1].close()
        else:
            connection.close()
            self._redial(peer, False)

    def _settle(self, peer: int, sends: bool) -> None:
        """Stop the attempts to open a connection to `peer` that now exists. sends: whether this party sends on it."""
        for dialing in [d for d in self._dialing if d.call.called == peer and d.call.sends == sends]:
            self._dialing.remove(dialing)
            if dialing.under_way is not None and dialing.under_way in self._steps:
                self._end(dialing.under_way)

    def _redial(self, peer: int, sends: bool) -> None:
        """Schedule a new attempt to open a lost connection to `peer`. sends: whether this party sends on it."""
        if self._addresses[peer] and not any(d.call == Hello(self._rank, peer, sends) for d in self._dialing):
            self._dialing.append(_Dialing(Hello(self._rank, peer, sends), time.monotonic() + _AGAIN))

    def _left(self, peer: int, connection: socket.socket) -> None:
        """Check a connection on which only this party sends: raise PeerError if the peer has closed it.

        The peer closes it if it has failed or was killed.
        """
        try:
            if connection.recv(1):
                return
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except OSError:
            pass
        raise self._closed(peer)

    # Ending -----------------------------------------------------------------------------------------------------------

    def _at(self, peer: int) -> str:
        where = self._addresses[peer]
        return joined(*where) if where is not None else "no address"

    def _closed(self, peer: int) -> PeerError:
        what = f"{self._names[peer]} closed the connection while the parties met"
        hint = "it ended, or refuses this party: its own output says why"
        return PeerError(what, where=self._names[self._rank], hint=hint)

    def _lost(self, peer: int, error: OSError) -> PeerError:
        if isinstance(error, ConnectionResetError):
            return self._closed(peer)
        mine, where = self._names[self._rank], self._addresses[peer]
        what = f"cannot connect to {self._names[peer]} at {self._at(peer)}: {error}"
        if where is not None and not loopback(where[0]) and self._addresses[self._rank] is not None:
            what += f"; nor has it connected to {mine} at {self._at(self._rank)}"
        hint = "did it end, or is there a firewall between the hosts? One of both addresses must be open to the other"
        return PeerError(what, where=mine, hint=hint)

    def late(self) -> PeerError:
        """Return the PeerError that names the parties, or lanes of this party, that are not connected yet."""
        missing = sorted(set(self._others) - (set(self.outgoing) & set(self.incoming)))
        mine, within = self._names[self._rank], f"did not connect within {self._timeout:g} s"
        if not missing:
            what = f"lanes {sorted(self._links)} of this party {within}"
            return PeerError(what, where=mine, hint="their own output says why")
        if None in self._addresses:
            what = f"{' and '.join(self._names[peer] for peer in missing)} {within}: lane 0 listens at {self._at(0)}"
            hint = self._refused or "did a lane end, or is there a firewall between the hosts of this party?"
            return PeerError(what, where=mine, hint=hint)
        places = " and ".join(f"{self._names[peer]} at {self._at(peer)}" for peer in missing)
        return PeerError(
            f"parties {missing} {within}: neither was {places} reached, "
            f"nor has it reached {mine} at {self._at(self._rank)}",
            where=mine,
            hint=self._refused or "did they end, or is there a firewall between the hosts? One direction is enough",
        )

    def close(self) -> None:
        """Close everything that was needed only for connecting: listening socket, links, unfinished connections."""
        for step in tuple(self._steps):
            self._end(step)
        for link in self._links.values():
            with contextlib.suppress(OSError):
                if self._server is None and self.complete:
                    link.sendall(_DONE)
            link.close()
        for _, connection in self._offered:
            connection.close()
        if self._server is not None:
            self._server.close()
        self._selector.close()

    def close_all(self) -> None:
        """Close the finished connections with all parties, which `close` leaves open; for use after an error."""
        for connection in (*self.outgoing.values(), *self.incoming.values()):
            connection.close()
