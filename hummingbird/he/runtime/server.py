"""The server of encrypted inference, as pure computation: it has the weights and no key (client.py shows the loop).

A server keeps nothing between turns: a turn sends everything that it reads. So a turn is one streaming call, any server
of the same net can answer it, and its memory is freed with the `ServerRound`.

A server sees ciphertexts, whose number follows from the plan. The client trusts it to follow the plan: a server that
answers with other values learns something from the client's reaction, such as whether and how it continues.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.he.runtime import files, messages
from hummingbird.he.runtime.client_spec import Public
from hummingbird.he.runtime.memory import predicted
from hummingbird.he.runtime.operations import Linear, switched, times
from hummingbird.he.runtime.program import Plan, Program, moved
from hummingbird.he.runtime.rounds import Download, Return, Upload, check_body
from hummingbird.he.scheme import packing
from hummingbird.he.scheme.ckks import expand
from hummingbird.he.scheme.masking import masked
from hummingbird.kernels.devices import find_device
from hummingbird.prg import SEED_BYTES

_MASKED = 16  # ciphertexts masked at a time: the randomness of each is as large as the ciphertext


class Server:
    """The server role: it has the net's weights and programs, and no key. One object serves any number of clients.

    It never changes, so several threads may use it. device: of weights and ciphertexts, "cpu" or "cuda"; messages do
    not depend on it. memory: predicted bytes of the largest turn on that device. Raises InputError for a missing
    device.

    >>> plan = he.make_plan(net, (4,))
    >>> server = he.Server(plan)
    >>> server.memory < 1e9
    True
    >>> batch = he.Client(plan.public).begin(images)
    >>> batch.accept(server.answer(batch.request()))  # bytes both ways
    """

    def __init__(self, plan: Plan, device: str = "cpu") -> None:
        self.public, self.device = plan.public, find_device(device, "he.Server(device)")
        self.memory = predicted(plan).server
        self._programs = moved(plan.programs, self.device)
        self._digest = messages.digest(plan.public.to_json().encode())

    def save(self, path: str | Path) -> None:
        """Write the description of the net and the server's programs, with the weights, to a file of mode 0600.

        A file of this name is replaced. Raises InputError if the file cannot be written.
        """
        files.write_server(Path(path), self.public, self._programs)

    @staticmethod
    def load(path: str | Path, device: str = "cpu") -> Server:
        """Return the server that `save` has written to a file; it answers clients of the same net.

        device: of weights and ciphertexts. Raises InputError for a missing or damaged file and for a missing device,
        AgreementError for a file of another kind or release.
        """
        return Server(files.read_server(Path(path)), device)

    def answer(self, request: bytes) -> bytes:
        """Compute the answer to one turn of a batch.

        request: the bytes from the client's `ClientBatch.request`. Request and answer have the sizes that the report
        states for the turn (`Public.turn_bytes`), and 256 bytes more each. Nothing is kept, so one request may be
        answered again.
        Raises AgreementError for a request of another net or release, InputError for anything else that is no request.
        """
        head = messages.read_head(request, messages.REQUEST, self.public, self._digest)
        turn = self.turn(head.turn)
        for sent in messages.uploads(self.public, head.turn, request, self.device):
            turn.receive(sent)
        packed = (piece for back in turn.downloads() for piece in messages.pack_download(self.public, back))
        return replace(head, kind=messages.ANSWER).pack(packed)

    def turn(self, number: int) -> ServerRound:
        """Begin turn `number` of one client; return the `ServerRound` that takes its messages and answers."""
        return ServerRound(self.public, number, self._programs[number], self.device)


class ServerRound:
    """One turn of one client at the server: it receives ciphertexts, computes on them, and generates the answer."""

    def __init__(self, public: Public, number: int, program: Program, device: torch.device) -> None:
        self.public, self.number, self.device, self._program = public, number, device, program
        self._turn, self._ring = public.turns[number], public.parameters.ring
        self._waiting = self._turn.up()
        self._next = next(self._waiting, None)
        self._received: Tensor | None = None
        self._zero: Tensor | None = None

    def receive(self, sent: Upload) -> None:
        """Store the next slice of ciphertexts from the client, with the parts that follow from the slice's seed.

        Raises InputError for a slice out of order, or of a wrong shape.
        """
        if self._next is None or (sent.turn, sent.first) != (self.number, self._next[0]):
            place = f"slice {sent.first} of turn {sent.turn}"
            raise InputError(f"{place} was not expected", where="upload", hint="slices come in order, once each")
        start, stop = self._next
        shape = (stop - start, len(self._ring.primes), self._ring.degree)
        check_body(sent.body, shape, "upload")
        if not isinstance(sent.seed, bytes) or len(sent.seed) != SEED_BYTES:
            raise InputError("a seed has 16 bytes", where="upload", hint="one for each slice")
        if self._received is None:
            self._received = torch.empty(self._turn.sent, 2, *shape[1:], dtype=torch.int32, device=self.device)
        self._received[start:stop, 0] = sent.body
        self._received[start:stop, 1] = expand(self._ring, sent.seed, stop - start, self.device)
        self._next = next(self._waiting, None)

    def downloads(self) -> Iterator[Download]:
        """Compute the answer on demand, and generate its slices.

        Raises InputError unless the whole turn was received.
        """
        if self._next is not None or self._received is None:
            raise InputError("slices are missing", where=f"turn {self.number}", hint="receive all of the turn first")
        registers, self._received = {0: self._received}, None
        self._zero = registers[0][-1].clone() if self._turn.zero else None
        expected = self._turn.down()
        for number in range(len(self._program.operations)):
            for tile in self._run(number, registers):
                done = 0
                while done < len(tile):
                    first, stop, _ = next(expected)
                    yield Download(self.number, first, tile[done : done + stop - first])
                    done += stop - first
                del tile

    def _run(self, number: int, registers: dict[int, Tensor]) -> Iterator[Tensor]:
        """Run one operation; yield the tiles of its result that are sent back, int32 (n, components, primes, N).

        number: of the operation. registers: the ciphertexts of each register, by number. The result is added to it if a
        later operation reads it; registers that no later operation reads are deleted.
        """
        program, operation = self._program, self._program.operations[number]
        made = number + 1
        back = self._turn.returns[program.returns.index(made)] if made in program.returns else None
        ring = self._ring.take(min(registers[source].shape[2] for source in operation.sources))
        apart = self._apart()
        whole: Tensor | None = None
        if isinstance(operation, Linear):
            step = back.tile if back is not None else program.tile(number, self._ring.degree)
            if not program.streams(number):
                size = registers[operation.source].shape[1:]
                grid = operation.rows, operation.places
                whole = torch.empty(*grid, *size, dtype=torch.int32, device=self.device)
            for start in range(0, operation.places, step):
                stop = min(start + step, operation.places)
                if whole is not None:
                    operation.tile(ring, registers, start, stop, apart, whole[:, start:stop])
                elif back is not None:
                    tile = operation.tile(ring, registers, start, stop, apart)
                    yield self._sent(tile, back)
            whole = whole.flatten(0, 1) if whole is not None else None
        else:
            whole = operation.run(ring, registers, apart)
        for source in set(operation.sources):
            if program.last_use(source) == number:
                del registers[source]
        if whole is None:
            return
        if program.last_use(made) >= 0:
            registers[made] = whole
        if back is not None:
            table = whole.unflatten(0, (back.rows, back.places))
            for start in range(0, back.places, back.tile):
                yield self._sent(table[:, start : start + back.tile], back)

    def _sent(self, tile: Tensor, back: Return) -> Tensor:
        flat, form = tile.reshape(-1, *tile.shape[2:]), self.public.form
        if self._zero is not None:
            mask = self._program.masks[self._turn.returns.index(back)]
            pieces = (times(self._ring, piece, 1 << mask.lift) for piece in flat.split(_MASKED))
            flat = torch.cat([masked(self._ring, piece, self._zero, mask.flood, form) for piece in pieces])
        return switched(self._ring, flat, back.primes, form)

    def _apart(self) -> int:
        """Return how far apart the coefficients are to which the server adds a constant; those between them stay as
        they are.

        A constant is added where the polynomial that encodes the value 1 has a 1.
        """
        return 1 if self.public.form == "ntt" else packing.constant_step(self.public.packing, self._ring.degree)
