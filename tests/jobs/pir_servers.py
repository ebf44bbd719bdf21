"""pir-servers as processes that a test kills, forked from one that has loaded everything."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from hummingbird.__main__ import main
from hummingbird.errors import HummingbirdError
from hummingbird.pir.serving import journal
from hummingbird.rpc import client as rpc_client
from hummingbird.rpc.service import Tls
from tests.support.patience import HANG

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([__name__, "hummingbird.pir.serving.command"])


def serve(words: Sequence[str], grown: int) -> None:
    """Run the command. grown: bytes from which its journal is merged."""
    torch.set_num_threads(1)
    journal.GROWN, journal.KEPT = grown, grown // 4
    raise SystemExit(main(["pir-server", *words]))


class Pair:
    """Both servers, with sockets in a folder; options: of both, where PARTY stands for the number of each. tables: each
    has. tls, tokens: what a client of them needs. grown: bytes from which their journals are merged.
    """

    def __init__(
        self,
        sockets: Path,
        *options: str,
        tables: int = 1,
        grown: int = 1 << 30,
        tls: Tls | None = None,
        tokens: Sequence[str | None] = (None, None),
    ) -> None:
        self.addresses = [[f"unix:{sockets}/{party}-{table}.sock" for table in range(tables)] for party in (0, 1)]
        self._options, self._grown, self._tls, self._tokens = options, grown, tls, tokens
        self._processes: dict[int, BaseProcess] = {}
        for party in (0, 1):
            self.start(party)

    @property
    def last(self) -> list[str]:
        """The addresses that take updates."""
        return [addresses[-1] for addresses in self.addresses]

    def start(self, party: int) -> None:
        """Start a server; `wait` for it before it is asked."""
        words = ["--party", str(party), "--listen", *self.addresses[party], *self._options]
        words = [word.replace("PARTY", str(party)) for word in words]
        self._processes[party] = FORKS.Process(target=serve, args=(words, self._grown), daemon=True)
        self._processes[party].start()

    def wait(self) -> None:
        """Until both answer."""
        for party in (0, 1):
            for address in self.addresses[party]:
                deadline = time.monotonic() + HANG
                while True:
                    try:
                        rpc_client.connect(address, self._tls, 1.0, token=self._tokens[party]).close()
                        break
                    except HummingbirdError:
                        assert self._processes[party].is_alive() and time.monotonic() < deadline, address

    def kill(self, party: int) -> None:
        """SIGKILL, and its end."""
        self._processes[party].kill()
        self._processes[party].join(HANG)

    def terminate(self, party: int) -> int | None:
        """SIGTERM, and its exit code."""
        self._processes[party].terminate()
        self._processes[party].join(HANG)
        return self._processes[party].exitcode

    def ended(self, party: int) -> int | None:
        """The exit code of a server that ends by itself."""
        self._processes[party].join(HANG)
        return self._processes[party].exitcode

    def children(self, party: int) -> list[int]:
        """Its worker processes."""
        pid = self._processes[party].pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def close(self) -> None:
        for party in self._processes:
            self.kill(party)
