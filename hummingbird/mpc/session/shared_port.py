"""One port for all lanes of a party on a host: their first one has a Unix socket to each of the others.

The first lane makes a folder of mode 0700 with a listening socket, and writes its path into its card (meeting.py).
After the meeting each other lane of the host connects and sends its number. Over these sockets the first lane then
hands each lane the parties' connections that belong to it (channel/connect.py).
"""

from __future__ import annotations

import shutil
import socket
import struct
import tempfile
import time
from dataclasses import dataclass, field

from hummingbird.errors import EnvironmentProblem, PeerError
from hummingbird.mpc.session.lanes import LanePosition
from hummingbird.rpc.security import check_own_folder
from hummingbird.rpc.signals import check

_WORD = struct.Struct("!I")
_LOOK = 0.5  # seconds between two checks of the deadline


@dataclass
class SharedPort:
    """The sockets between this lane and the other lanes of its party on this host.

    place: this lane.
    path: the Unix socket at which the first of these lanes listens; "" at the others.
    links: a socket for each connected lane, by lane; all but the first lane have only the one to the first.
    """

    place: LanePosition
    path: str = ""
    _folder: str = ""
    _server: socket.socket | None = None
    links: dict[int, socket.socket] = field(default_factory=dict)

    @classmethod
    def open(cls, place: LanePosition) -> SharedPort:
        """Make this lane's `SharedPort`. At the first of several lanes on this host, it listens for the others.

        Raises EnvironmentProblem if it cannot listen.
        """
        if place.lane != place.first or len(place.here) == 1:
            return cls(place)
        folder = tempfile.mkdtemp(prefix="hummingbird-lanes-")  # mode 0700
        try:
            path, server = listen(folder, "lanes")
        except EnvironmentProblem:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return cls(place, path, folder, server)

    def join(self, path: str, deadline: float) -> None:
        """Connect the first lane of this party on this host with the others, and stop listening for them.

        path: of the first lane's socket.
        deadline: a value of time.monotonic.
        Raises PeerError or OSError if a lane does not connect, and TrustError if another user owns the folder.
        """
        if self._server is not None:
            self._gather(self._server, deadline)
            self.shut()
        elif len(self.place.here) > 1:
            check_own_folder(path, self.place.name)
            link = self.links[self.place.first] = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            link.settimeout(max(0.0, deadline - time.monotonic()))
            link.connect(path)
            link.sendall(_WORD.pack(self.place.lane))

    def _gather(self, server: socket.socket, deadline: float) -> None:
        server.settimeout(_LOOK)
        while missing := sorted(set(self.place.here[1:]) - set(self.links)):
            check()
            try:
                link, _ = server.accept()
            except TimeoutError:
                if time.monotonic() > deadline:
                    start = self.place.party * self.place.lanes
                    names = " and ".join(self.place.name_of(start + lane) for lane in missing)
                    what = f"{names} did not join within the timeout"
                    raise PeerError(what, where=self.place.name, hint="their own output says why") from None
                continue
            link.settimeout(max(0.0, deadline - time.monotonic()))
            lane = _word(link)
            if lane not in missing:
                raise ConnectionError(f"a process joins as lane {lane} of this party")
            self.links[lane] = link

    def shut(self) -> None:
        """Stop listening for other lanes, and remove the folder of the socket; connections stay open."""
        if self._server is not None:
            self._server.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None:
        """Stop listening, and close all sockets between this party's lanes."""
        self.shut()
        for link in self.links.values():
            link.close()


def _word(link: socket.socket) -> int:
    data = b""
    while len(data) < _WORD.size:
        piece = link.recv(_WORD.size - len(data))
        if not piece:
            raise ConnectionResetError("another lane of this party has ended")
        data += piece
    return int(_WORD.unpack(data)[0])


def listen(folder: str, name: str) -> tuple[str, socket.socket]:
    """Listen at a new Unix socket `folder`/`name`. Returns the socket's path and the socket.

    folder: one that `tempfile.mkdtemp` has made.
    Raises EnvironmentProblem if no socket can be opened there.
    """
    path, server = f"{folder}/{name}", socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        server.bind(path)
        server.listen()
    except OSError as error:
        server.close()
        hint = "TMPDIR names a folder for such things: is it there, and its path short?"
        raise EnvironmentProblem(f"cannot listen at {path}: {error.strerror or error}", hint=hint) from None
    return path, server
