"""The address at which a party takes connections from other parties, and the address that it tells them.

By default both are the address of the interface that leads to MASTER_ADDR, with a free port. A party behind a firewall
or an address translation names its port, and the address for others: `init(peer_listen=..., peer_address=...)`.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from hummingbird.channel.handshake import listen
from hummingbird.errors import ConfigError, EnvironmentProblem, InputError
from hummingbird.mpc.session.lanes import LanePosition
from hummingbird.rpc.security import joined, loopback, split

_ALL = ("0.0.0.0", "::")  # all addresses of the host
_HINT = "HOST:PORT or [IPV6]:PORT"

Address = tuple[str, int]


@dataclass(frozen=True)
class Listener:
    """The address at which a party listens for other parties, and the address that it tells them.

    listen: host and port; None: the address of the interface that leads to MASTER_ADDR, and a free port.
    address: host and port that other parties are told; None: the same as `listen`.
    """

    listen: Address | None = None
    address: Address | None = None

    @classmethod
    def of(cls, peer_listen: object, peer_address: object) -> Listener:
        """Make the listener that the arguments `peer_listen` and `peer_address` of `init` describe, and return it.

        Raises ConfigError if one is no address, and for a `peer_address` without `peer_listen`.
        """
        if peer_address is not None and peer_listen is None:
            what = f"peer_address={peer_address!r} without peer_listen"
            hint = f"peer_listen={_HINT} is the port of this host that the address leads to"
            raise ConfigError(what, where="init", hint=hint)
        return cls(_address("peer_listen", peer_listen), _address("peer_address", peer_address))

    def open_star(self, place: LanePosition) -> tuple[socket.socket, str]:
        """Open the socket at which lane 0 takes connections of its party's other lanes; return it and its address.

        It listens on loopback if all of them are on this host; else at the host of `listen`, or the address of the
        interface that leads to MASTER_ADDR, at a free port. Raises EnvironmentProblem if the latter is a loopback
        address.
        """
        host = "127.0.0.1"
        if place.spread:
            named = self.listen is not None and self.listen[0] not in _ALL
            host = self.listen[0] if named and self.listen else own_address(place.world)
        server = listen(host)
        return server, joined(host, server.getsockname()[1])

    def open(self, world: int) -> tuple[socket.socket, str]:
        """Open the socket at which this party listens; return it, and the address for other parties as text.

        world: number of processes of all parties.
        Raises EnvironmentProblem if the party cannot listen there.
        """
        if self.listen is None:
            host = own_address(world)
            server = listen(host)
            return server, joined(host, server.getsockname()[1])
        host, port = self.listen
        told = self.address or (host if host not in _ALL else own_address(world), port)
        try:
            return listen(host, port), joined(*told)
        except OSError as error:
            raise EnvironmentProblem(
                f"cannot listen at {joined(host, port)}: {error.strerror or error}",
                where="peer_listen",
                hint="HOST is an address of this host, or 0.0.0.0 or [::] for all of them; is another process at PORT?",
            ) from None


def _address(name: str, value: object) -> Address | None:
    if value is None:
        return None
    try:
        if not isinstance(value, str):
            raise InputError("not text")
        return split(value)
    except InputError:
        raise ConfigError(f"{name}={value!r} is no address", where="init", hint=_HINT) from None


def several_hosts(world: int) -> bool:
    """Return whether some of the run's `world` processes are on other hosts, by torchrun's variables."""
    return os.environ.get("LOCAL_WORLD_SIZE", str(world)) != str(world)


def own_address(world: int) -> str:
    """Return the address of this host's interface that leads to MASTER_ADDR.

    world: number of processes of all parties.
    Raises EnvironmentProblem if it is a loopback address and some processes are on other hosts.
    """
    master = os.environ.get("MASTER_ADDR", "127.0.0.1")
    family, kind, _, _, address = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # UDP: sends nothing, only chooses a route
        own = str(probe.getsockname()[0])
    if loopback(own) and several_hosts(world):
        raise EnvironmentProblem(
            f"MASTER_ADDR={master} is loopback on this host, so that parties on others cannot connect to it",
            hint="give an address of the network's interface (some hosts map their own name to 127.0.1.1), or the one "
            "by which others reach this party, peer_address=, --peer-address",
        )
    return own
