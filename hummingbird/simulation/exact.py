"""Private inference of all parties in one process: their own code on their own shares, from given seeds.

Every party runs the private net on a thread of its own, one at a time (channel/interleave.py): whoever waits for an
opening lets the next one compute. What is global to a process, the session and CrypTen's parts, changes hands with
the turn. The dealer is the stand-in that knows all seeds, the input is shared from a seed: with the same seeds,
parties on a network send the same messages bit for bit, with a net converted for latency. Other aims decide the same,
and may have splines in place of tables for smooth functions, as exact as these (mpc/plan/smooth_choice.py).
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from hummingbird import ring
from hummingbird.channel import interleave, meter
from hummingbird.channel.channel import Channel
from hummingbird.crypten.adapter import MPCTensor, from_share, scale_of, share_of
from hummingbird.mpc.dealer.local import LocalDealer
from hummingbird.mpc.plan.net import PrivateNet
from hummingbird.mpc.session import launch
from hummingbird.mpc.session import session as sessions
from hummingbird.prg import CIPHERS, SEED_BYTES, Stream, derive, new_seed


class _Seat(Channel):
    """A party's channel to the other threads: what is sent lies in the receiver's letter box."""

    def __init__(self, rank: int, parties: int, pass_on: Callable[[_Seat], None]) -> None:
        super().__init__(rank, parties, {}, {}, 0.0)
        self.boxes: dict[int, deque[list[Tensor] | str]] = {peer: deque() for peer in self.others}
        self.seats: Sequence[_Seat] = ()
        self._pass_on = pass_on

    def _take(self, peer: int) -> list[Tensor] | str:
        while not self.boxes[peer]:
            self._pass_on(self)
        return self.boxes[peer].popleft()

    def send(self, peer: int, *tensors: Tensor) -> None:
        # A copy: the sender goes on to add what it receives to its own.
        self.seats[peer].boxes[self.rank].append([tensor.clone() for tensor in tensors])

    def receive(self, peer: int, like: Sequence[Tensor]) -> list[Tensor]:
        received = self._take(peer)
        assert isinstance(received, list)
        return received

    def exchange(self, *tensors: Tensor) -> dict[int, list[Tensor]]:
        for peer in self.others:
            self.send(peer, *tensors)
        interleave.pass_on()  # to this party's other slice, as on a network
        return {peer: self.receive(peer, tensors) for peer in self.others}

    def exchange_text(self, text: str) -> dict[int, str]:
        for peer in self.others:
            self.seats[peer].boxes[self.rank].append(text)
        return {peer: str(self._take(peer)) for peer in self.others}


class ExactNet(nn.Module):
    """A private net as a function of one tensor that holds all its inputs, to one that holds all its results.

    public: the public inputs, which all parties have.
    """

    def __init__(self, net: PrivateNet, public: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self.net, self.public = net, list(public)

    def forward(self, x: MPCTensor) -> MPCTensor:
        self.net.set_up()
        return self.net.forward(x, public=self.public)


class Parties:
    """N parties on a device, and their randomness: dealer's seeds and the input's shares, from `seed` or fresh."""

    def __init__(self, parties: int, seed: int | None, device: torch.device) -> None:
        size = CIPHERS["aes-128-ctr" if device.type == "cpu" else "chacha20"]
        self.secret = new_seed(size) if seed is None else derive(bytes(SEED_BYTES), "simulate", seed, size=size)
        self.device, self.calls = device, 0
        seats = [_Seat(rank, parties, self._wait) for rank in range(parties)]
        for seat in seats:
            seat.seats = seats
        seeds = dealer_seeds(self.secret, parties)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the stand-in says that it protects nothing: nothing is to be protected
            self._sessions = [
                sessions.Session(rank, parties, seat, LocalDealer(rank, parties, seeds, device), device)
                for rank, seat in enumerate(seats)
            ]
        self._present = [contextlib.ExitStack() for _ in seats]
        self._turns = interleave.Interleave()

    def run(self, net: nn.Module, x: Tensor) -> Tensor:
        """The opened result as reals, float32, from a real batch on this device; InputError as `cryptensor` has it."""
        shares = input_shares(ring.encode(x, where="simulate"), self.secret, self.calls, len(self._sessions))
        self.calls += 1
        kept = {id(tensor): tensor for tensor in net.buffers()}  # all parties have the same public weights
        nets = [copy.deepcopy(net, dict(kept)) for _ in shares]

        def party(rank: int) -> tuple[Tensor, int]:
            self._enter(rank)
            try:
                out = nets[rank](from_share(shares[rank]))
                return share_of(out), scale_of(out)
            finally:
                self._present[rank].close()

        self._turns = interleave.Interleave()
        with meter.paused():
            outputs = self._turns.run([lambda rank=rank: party(rank) for rank in range(len(shares))])  # type: ignore[misc]
        opened = sum((share for share, _ in outputs[1:]), outputs[0][0].clone())
        return ring.decode(opened, outputs[0][1])

    def _enter(self, rank: int) -> None:
        self._present[rank].enter_context(launch.stand_in(self._sessions[rank]))

    def _wait(self, seat: _Seat) -> None:
        self._present[seat.rank].close()
        self._turns.pass_on_as(seat.rank)
        self._enter(seat.rank)


def dealer_seeds(secret: bytes, parties: int) -> list[bytes]:
    """The seeds that the dealer gives to the parties."""
    return [derive(secret, "dealer", rank) for rank in range(parties)]


def input_shares(x: Tensor, secret: bytes, call: int, parties: int) -> list[Tensor]:
    """Shares of ring elements for call number `call`, by rank; uniform but for party 0's."""
    drawn = [Stream(derive(secret, "input", call, rank), x.device).words(*x.shape) for rank in range(1, parties)]
    return [x - sum(drawn, torch.zeros_like(x)), *drawn]
