"""CrypTen's communicator over our channel: every wait has a limit, nothing is pickled, every bit is counted.

It has all functions of CrypTen's class. Tensors travel as frames of known type and shape, objects as JSON text. A
wrong rank, or an object that would need pickle, is refused before anything is sent.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hummingbird import cost, records
from hummingbird.channel import meter
from hummingbird.channel.channel import MAX_TEXT, Channel
from hummingbird.errors import AgreementError, EnvironmentProblem, InputError

_DEEPEST = 256  # levels of nested lists and dictionaries


def _plain(x: Any) -> Tensor:
    x = x.data if not isinstance(x, Tensor) else x
    return x.tensor() if type(x).__name__ == "CUDALongTensor" else x


def _to_json(obj: Any) -> str:
    """Return the JSON text by which an object travels to another party.

    obj: a torch.Size, or numbers, strings, None, and lists and dictionaries of these. Raises InputError for an object
    that would not be equal after reading, and for a text of more than `MAX_TEXT` bytes.
    """
    obj = list(obj) if isinstance(obj, torch.Size) else obj
    try:
        text = json.dumps(obj)
        same = records.read(text, records.anything(), name="object", most=len(text), deepest=_DEEPEST) == obj
    except (TypeError, ValueError, InputError):
        same = False
    if not same:
        raise InputError(
            f"an object of type {type(obj).__name__} cannot travel: it would take pickle, which runs what it is sent",
            where="crypten.communicator",
            hint="send numbers, text, lists and dictionaries with text for keys; tensors by broadcast, send and recv",
        )
    if len(text.encode()) > MAX_TEXT:
        raise InputError(
            f"an object of {len(text.encode())} bytes is too long", hint=f"at most {MAX_TEXT} bytes travel"
        )
    return text


class _Done:
    """The handle that CrypTen gets for a transfer which is complete already: its `wait` returns at once."""

    def wait(self) -> None:
        return None


class _Receipt:
    """The handle that CrypTen gets for a tensor which another party sends: its `wait` receives the tensor.

    receive: receives the message, and returns its tensor. into: the tensor that gets its values. Until `wait` is
    called, this party can send other messages.
    """

    def __init__(self, receive: Callable[[], Tensor], into: Tensor) -> None:
        self._receive, self._into = receive, into

    def wait(self) -> None:
        self._into.copy_(self._receive())


class PartyCommunicator:
    """The object by which CrypTen's functions communicate, in place of CrypTen's own: it sends over a `Channel`.

    It has the methods of CrypTen's communicator. A collective operation, such as `broadcast`, takes one round.
    """

    instance: PartyCommunicator | None = None

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._name = f"party {channel.rank}"

    @classmethod
    def is_initialized(cls) -> bool:
        return cls.instance is not None

    @classmethod
    def get(cls) -> PartyCommunicator | None:
        return cls.instance

    @classmethod
    def initialize(cls, *args: Any, **kwargs: Any) -> None:
        raise EnvironmentProblem("CrypTen is started by hummingbird.init(), not by crypten.init()")

    @classmethod
    def shutdown(cls) -> None:
        raise EnvironmentProblem("CrypTen is ended by hummingbird.uninit(), not by crypten.uninit()")

    def get_rank(self) -> int:
        return self.channel.rank

    def get_world_size(self) -> int:
        return self.channel.parties

    def get_name(self) -> str:
        return self._name

    def set_name(self, name: str) -> None:
        self._name = name

    def get_distributed_backend(self) -> str:
        return "hummingbird"

    def get_ttp_rank(self) -> int:
        raise EnvironmentProblem(
            "no party is a trusted third party", hint="the dealer is hummingbird's: init(dealer=...)"
        )

    def _no_statistics(self) -> Any:
        raise EnvironmentProblem(
            "CrypTen's statistics are not kept: they count elements, not bytes",
            where="crypten.communicator",
            hint="with hummingbird.meter() as m: ...; print(m.table())",
        )

    print_communication_stats = get_communication_stats = reset_communication_stats = _no_statistics

    def _party(self, rank: Any, name: str, other: bool = False) -> int:
        """Return `rank` if it is a party's number; else raise InputError, before anything is sent.

        name: of the argument that `rank` was given for, for the error. other: whether this party's own rank is refused,
        too.
        """
        if not isinstance(rank, int) or not 0 <= rank < self.channel.parties or (other and rank == self.channel.rank):
            whom = f"no {'other ' if other else ''}party of {self.channel.parties}"
            raise InputError(f"{name}={rank} names {whom}", where=f"party {self.channel.rank}", hint="ranks begin at 0")
        return rank

    def _combine(self, tensors: list[Tensor], received: list[list[Tensor]], op: Any) -> list[Tensor]:
        out = [t.clone() for t in tensors]
        for theirs in received:
            for mine, other in zip(out, theirs, strict=True):
                if op == torch.distributed.ReduceOp.BXOR:
                    mine.bitwise_xor_(other)
                else:
                    mine.add_(other)
        return out

    def _supported(self, op: Any) -> None:
        if op not in (torch.distributed.ReduceOp.SUM, torch.distributed.ReduceOp.BXOR):
            raise EnvironmentProblem(
                f"reduction {op} is not supported", where="crypten.communicator", hint="SUM and BXOR are; or all_gather"
            )

    def _opening(
        self, tensors: list[Tensor], cost_of: Callable[[int], cost.Cost]
    ) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the meter counts a message as an opening, in a row named "opening".

        It is for openings that the user's program asks for outside of all layers. If a layer is at work, that layer's
        row counts the opening, and the context does nothing.
        tensors: what this party sends. cost_of: returns the price of an opening from its number of bytes.
        """
        if meter.current_layer():
            return contextlib.nullcontext()
        return meter.layer("opening", "open", cost_of(sum(t.numel() * t.element_size() for t in tensors)))

    def all_reduce(self, input: Any, op: Any = torch.distributed.ReduceOp.SUM, batched: bool = False) -> Any:
        self._supported(op)
        tensors = [_plain(t) for t in (input if batched else [input])]
        with self._opening(tensors, lambda size: cost.opening(self.channel.parties, size)):
            out = self._combine(tensors, list(self.channel.exchange(*tensors).values()), op)
        return out if batched else out[0]

    def reduce(self, input: Any, dst: int, op: Any = torch.distributed.ReduceOp.SUM, batched: bool = False) -> Any:
        self._supported(op)
        self._party(dst, "dst")
        tensors = [_plain(t) for t in (input if batched else [input])]
        with self._opening(tensors, lambda size: cost.to_one(self.channel.parties, size, self.channel.rank != dst)):
            gathered = self._gather(tensors, dst)
        if gathered is None:
            return None
        out = self._combine(tensors, gathered, op)
        return out if batched else out[0]

    def _gather(self, tensors: list[Tensor], dst: int) -> list[list[Tensor]] | None:
        if self.channel.rank == dst:
            received = [self.channel.receive(peer, tensors) for peer in self.channel.others]
            self.channel.count_round()
            return received
        self.channel.send(dst, *tensors)
        self.channel.count_round()
        return None

    def gather(self, tensor: Any, dst: int) -> list[Any]:
        self._party(dst, "dst")
        tensor = _plain(tensor)
        received = self._gather([tensor], dst)
        if received is None:
            return [None]
        parts = [part[0] for part in received]
        return parts[:dst] + [tensor.clone()] + parts[dst:]

    def all_gather(self, tensor: Any) -> list[Tensor]:
        tensor = _plain(tensor)
        received = self.channel.exchange(tensor)
        return [received[rank][0] if rank in received else tensor.clone() for rank in range(self.channel.parties)]

    def scatter(self, scatter_list: Any, src: int, size: Any = None, device: Any = None) -> Tensor:
        """Send each party its own tensor of the list that party `src` has; return the tensor for this party.

        scatter_list: at party `src`, one tensor for each party, by rank. The other parties pass a list of tensors of
        the same shapes, or `size`.
        size: at the other parties, the shape of the tensor that they get; it is then int64, on `device`.
        """
        rank = self.channel.rank
        if self._party(src, "src") == rank or size is None:
            if not isinstance(scatter_list, (list, tuple)) or len(scatter_list) != self.channel.parties:
                hint = "one tensor for each party, or size= at those that receive"
                raise InputError(f"party {rank} gives no list for {self.channel.parties}", where="scatter", hint=hint)
            mine = _plain(scatter_list[rank]).clone()
        else:
            mine = torch.empty(size, dtype=torch.long, device=device)
        if rank == src:
            for peer in self.channel.others:
                self.channel.send(peer, _plain(scatter_list[peer]))
        else:
            mine = self.channel.receive(src, [mine])[0]
        self.channel.count_round()
        return mine

    def broadcast(self, input: Any, src: int, group: Any = None, batched: bool = False) -> Any:
        """Send the values of party `src` to all parties; return `input`, which then holds these values at every party.

        input: a tensor, or a list of tensors if `batched`. At the other parties it has the same shapes, and is
        overwritten in place. group: ignored. Raises InputError for an expanded tensor at a receiver, and if `src` is no
        party.
        """
        self._party(src, "src")
        tensors = [_plain(t) for t in (input if batched else [input])]
        if self.channel.rank == src:
            for peer in self.channel.others:
                self.channel.send(peer, *tensors)
        else:
            if any(0 in t.stride() and t.numel() > 1 for t in tensors):
                raise InputError("an expanded tensor cannot take other values", where="broadcast", hint="x.clone()")
            for mine, theirs in zip(tensors, self.channel.receive(src, tensors), strict=True):
                mine.copy_(theirs)
        self.channel.count_round()
        return input

    def send(self, tensor: Any, dst: int) -> None:
        self.channel.send(self._party(dst, "dst", other=True), _plain(tensor))

    def recv(self, tensor: Any, src: int | None = None) -> Tensor:
        return self.channel.receive(self._party(src, "src", other=True), [_plain(tensor)])[0]

    def isend(self, tensor: Any, dst: int) -> _Done:
        self.send(tensor, dst)
        return _Done()

    def irecv(self, tensor: Any, src: int | None = None) -> _Receipt:
        self._party(src, "src", other=True)
        return _Receipt(lambda: self.recv(tensor, src), _plain(tensor))

    def barrier(self) -> None:
        self.channel.exchange_text("barrier")

    def send_obj(self, obj: Any, dst: int, group: Any = None) -> None:
        """Send an object to party `dst`, as JSON text of at most 1 MiB. group: ignored.

        obj: a torch.Size, or numbers, strings, None, and lists and dictionaries of these. Raises InputError for others.
        """
        data = torch.frombuffer(bytearray(_to_json(obj).encode()), dtype=torch.uint8)
        self.send(torch.tensor(data.numel()), dst)
        self.send(data, dst)

    def recv_obj(self, src: int, group: Any = None) -> Any:
        """Receive the object that party `src` sends by `send_obj`, and return it. group: ignored."""
        size = int(self.recv(torch.tensor(0), src))
        if not 0 < size <= MAX_TEXT:
            raise AgreementError(f"party {src} announces an object of {size} bytes", where=f"party {self.channel.rank}")
        return _from_json(self.recv(torch.empty(size, dtype=torch.uint8), src).numpy().tobytes(), src)

    def broadcast_obj(self, obj: Any, src: int, group: Any = None) -> Any:
        """Send party `src`'s object to all parties, as JSON text of at most 1 MiB; return the object at every party.

        obj: ignored at the other parties. group: ignored.
        """
        text = _to_json(obj) if self._party(src, "src") == self.channel.rank else "null"
        received = self.channel.exchange_text(text)
        return obj if self.channel.rank == src else _from_json(received[src].encode(), src)


def _from_json(data: bytes, src: int) -> Any:
    how: Any = {"where": "crypten.communicator", "error": AgreementError}
    return records.read(data, records.anything(), name=f"object of party {src}", deepest=_DEEPEST, **how)
