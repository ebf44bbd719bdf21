"""One port for all lanes of a party: lane 0 has a Unix socket to each of the others.

Lane 0 makes a folder of mode 0700 with a listening socket, and writes its path into its card (meeting.py). After the
meeting each lane connects and sends its number. Lane 0 answers with the port of a store on the host's loopback, which
it serves for the lanes' process group; no other host can reach this store. Over the same sockets lane 0 then hands
each lane the parties' connections that belong to it (channel/connect.py).
"""

from __future__ import annotations

import datetime
import shutil
import socket
import struct
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial

import torch.distributed as dist

from hummingbird.channel.connect import serve_store
from hummingbird.errors import EnvironmentProblem, PeerError
from hummingbird.mpc.session.lanes import LanePosition
from hummingbird.mpc.session.meeting import call_store
from hummingbird.rpc.security import check_own_folder
from hummingbird.rpc.signals import check

_WORD = struct.Struct("!I")
_LOOK = 0.5  # seconds between two checks of the deadline
_HOST = "127.0.0.1"


@dataclass
class SharedPort:
    """The sockets between this lane and the other lanes of its party, which are on one host.

    place: this lane.
    path: the Unix socket at which lane 0 listens; "" at other lanes.
    links: a socket for each connected lane, by lane; lanes but 0 have only the one to lane 0.
    """

    place: LanePosition
    path: str = ""  # where lane 0 listens; "" at other lanes
    _folder: str = ""
    _server: socket.socket | None = None
    links: dict[int, socket.socket] = field(default_factory=dict)  # by lane; at lanes but 0 only lane 0's

    @classmethod
    def open(cls, place: LanePosition) -> SharedPort:
        """Make this lane's `SharedPort`. At lane 0 of several, it listens for the other lanes of this party.

        Raises EnvironmentProblem if it cannot listen.
        """
        if place.lane or place.lanes == 1:
            return cls(place)
        folder = tempfile.mkdtemp(prefix="hummingbird-lanes-")  # mode 0700
        try:
            path, server = listen(folder, "lanes")
        except EnvironmentProblem:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return cls(place, path, folder, server)

    def join(self, path: str, deadline: float, timeout: float) -> dist.Store:
        """Connect lane 0 with all other lanes of this party; return a torch store that these lanes share.

        path: of lane 0's socket.
        deadline: a value of time.monotonic.
        timeout: seconds for an answer of the store.
        Raises PeerError or OSError if a lane does not connect, and TrustError if another user owns the folder.
        """
        wait = datetime.timedelta(seconds=timeout)
        if self._server is not None:
            store = serve_store(_HOST, 0, wait)
            self._gather(self._server, store.port, deadline)
            return store
        check_own_folder(path, self.place.name)
        link = self.links[0] = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.settimeout(max(0.0, deadline - time.monotonic()))
        link.connect(path)
        link.sendall(_WORD.pack(self.place.lane))
        port = _word(link)
        return call_store(deadline, partial(dist.TCPStore, _HOST, port, is_master=False, timeout=wait), port=port)

    def _gather(self, server: socket.socket, port: int, deadline: float) -> None:
        server.settimeout(_LOOK)
        while missing := sorted(set(range(1, self.place.lanes)) - set(self.links)):
            check()
            try:
                link, _ = server.accept()
            except TimeoutError:
                if time.monotonic() > deadline:
                    names = " and ".join(self.place.name_of(self.place.rank + lane) for lane in missing)
                    what = f"{names} did not join within the timeout"
                    raise PeerError(what, where=self.place.name, hint="their own output says why") from None
                continue
            link.settimeout(max(0.0, deadline - time.monotonic()))
            lane = _word(link)
            if lane not in missing:
                raise ConnectionError(f"a process joins as lane {lane} of this party")
            link.sendall(_WORD.pack(port))
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
