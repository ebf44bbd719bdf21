"""`simulate(net, bits)`: compute in plaintext what `convert_model(net, bits)` computes in private.

There are no shares, no network and no session. The net itself runs, with its live modules and parameters; only the
comparing layers are replaced, by the law of their comparison (protocols/law.py), under the same names. So windows can
be tried on a whole validation set, and a net can be trained with them: Maeng and Suh, "HummingBird", 2023, sections 4
and 5.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from hummingbird import convert, graph, inputs, ring
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.channel import interleave, meter
from hummingbird.channel.channel import Channel
from hummingbird.crypten import run as crypten_run
from hummingbird.errors import ConfigError
from hummingbird.graph import calls, pools_first
from hummingbird.graph.example import is_private
from hummingbird.graph.example_shapes import fingerprints
from hummingbird.graph.live import live
from hummingbird.graph.programs import from_object
from hummingbird.mpc.dealer.client import LocalDealer
from hummingbird.mpc.plan import builders
from hummingbird.mpc.plan.net import PrivateNet
from hummingbird.mpc.plan.ranges import check_ranges
from hummingbird.mpc.plan.steps import PlanStep
from hummingbird.mpc.protocols.registry import named
from hummingbird.mpc.protocols.step_tables import TableChoice
from hummingbird.mpc.session.session import Session, ZeroSharing
from hummingbird.mpc.session.sharing import Shared
from hummingbird.prg import CIPHERS, SEED_BYTES, Stream, derive, new_seed
from hummingbird.simulation.compare import Compare
from hummingbird.simulation.cut import CutSimulator
from hummingbird.simulation.folded import FoldedNet, weight_scales
from hummingbird.simulation.layers import Twin, Windows, check_protocol, comparisons, on_live, states, twins

# Private inference of all parties in one process: their own code on their own shares, from given seeds.
#
# Every party runs the private net on a thread of its own, one at a time (channel/interleave.py): whoever waits for an
# opening lets the next one compute. What is global to a process, CrypTen's parts, changes hands with the turn. The
# dealer is the stand-in that knows all seeds, the input is shared from a seed: with the same seeds, parties on a
# network send the same messages bit for bit, with a net converted for the same aim. Other aims decide the same, and may
# have splines in place of tables for smooth functions, as exact as these (mpc/plan/builders.py). Only a ReLU between an
# input and an output, of a value outside its window, may be wrong in another way with aim "rounds" (masked.py).


class _Seat(Channel):
    """The channel of one simulated party to the others, in the same process: a message goes to the receiver's queue.

    pass_on: lets the other parties run while this one waits for a message.
    """

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

    def swap(self, peer: int, tensors: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
        self.send(peer, *tensors)
        interleave.pass_on()
        return self.receive(peer, like)

    def exchange_text(self, text: str) -> dict[int, str]:
        for peer in self.others:
            self.seats[peer].boxes[self.rank].append(text)
        return {peer: str(self._take(peer)) for peer in self.others}


class ExactNet(nn.Module):
    """A private net as a module whose forward() takes a session and one shared tensor with all private inputs.

    It returns one shared tensor with all results. public: the public inputs, which all parties have.
    """

    def __init__(self, net: PrivateNet, public: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self.net, self.public = net, list(public)

    def forward(self, session: Session, x: Shared) -> Shared:
        self.net.set_up(session)
        return self.net.forward(session, x, public=self.public)


class Parties:
    """All parties of a private inference in this process: each runs the private net on shares, in a thread of its own.

    `ExactSimulator` uses it. parties: how many. seed: the dealer's seeds and the input's shares follow from it; None:
    they are drawn at random. device: of the shares.
    """

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
                Session(
                    rank,
                    parties,
                    seat,
                    LocalDealer(rank, parties, seeds, device),
                    device,
                    zeros=ZeroSharing.of_zeros(),
                )
                for rank, seat in enumerate(seats)
            ]
        self._present = [contextlib.ExitStack() for _ in seats]
        self._turns = interleave.Interleave()

    def run(self, net: nn.Module, x: Tensor) -> Tensor:
        """Run the private net on a batch, on the device of these parties; return the opened result, float32.

        net: what `convert_model` returns. x: float (images, ...).
        Raises InputError for values that are not finite, or beyond the fixed-point range.
        """
        shares = input_shares(ring.encode(x, where="simulate"), self.secret, self.calls, len(self._sessions))
        self.calls += 1
        kept = {id(tensor): tensor for tensor in net.buffers()}  # all parties have the same public weights
        nets = [copy.deepcopy(net, dict(kept)) for _ in shares]

        def party(rank: int) -> Shared:
            self._enter(rank)
            try:
                out: Shared = nets[rank](self._sessions[rank], Shared(shares[rank]))
                return out
            finally:
                self._present[rank].close()

        self._turns = interleave.Interleave()
        with meter.paused():
            outputs = self._turns.run([lambda rank=rank: party(rank) for rank in range(len(shares))])  # type: ignore[misc]
        opened = sum((out.share for out in outputs[1:]), outputs[0].share.clone())
        return ring.decode(opened, outputs[0].scale)

    def _enter(self, rank: int) -> None:
        self._present[rank].enter_context(crypten_run.lent(self._sessions[rank]))

    def _wait(self, seat: _Seat) -> None:
        self._present[seat.rank].close()
        self._turns.pass_on_as(seat.rank)
        self._enter(seat.rank)


def dealer_seeds(secret: bytes, parties: int) -> list[bytes]:
    """Derive the seeds that the dealer sends to the parties, by rank."""
    return [derive(secret, "dealer", rank) for rank in range(parties)]


def input_shares(x: Tensor, secret: bytes, call: int, parties: int) -> list[Tensor]:
    """Return every party's share of x, by rank: all shares but party 0's are uniform, and their sum is x.

    x: int64 ring elements, of any shape. secret: bytes, and call: the number of the call; the uniform shares are
    derived from both.
    """
    drawn = [Stream(derive(secret, "input", call, rank), x.device).words(*x.shape) for rank in range(1, parties)]
    return [x - sum(drawn, torch.zeros_like(x)), *drawn]


# ---------------------------------------------------------------------------------------------------------------------

MODES = ("fast", "exact")


def simulate(
    net: nn.Module,
    bits: BitConfig | BitWindow | str | PathLike[str] | None = None,
    protocol: str = "masked",
    parties: int = 2,
    mode: str = "fast",
    seed: int | None = None,
    clamp: bool = False,
    cut: bool = False,
    example: Any = None,
    aim: str = "latency",
) -> nn.Module:
    """Make a module on plain tensors that computes what private inference of `net` with these windows computes.

    The module begins in eval mode, like private inference, and does not change the net: batch norms keep their
    statistics. Its `train()` and `eval()` set its own mode and the net's.

    bits: the windows, or their file; None: exact comparisons. protocol: "masked" or "gmw". parties: 2 or more.
    mode: "fast" runs the net in its own floating point, about as fast as the net, on any device, in training too: its
        parameters are the net's, and gradients pass where values passed. Comparisons follow the protocol. Without
        gradients, in eval mode and float32, inputs and constants are rounded as in private inference; the rounding of
        values between layers to 2^-16 is not modelled. "exact" runs the code of all parties in this process: the
        integers of private inference, without gradients, always as in eval mode.
    seed: for repeatable random numbers; None: from torch's generator ("fast"), or fresh ("exact").
    clamp: in training mode, clamp compared values to the window, with gradient zero outside: values beyond +-2^(k-17)
        would pass with a wrong sign. Eval mode does not clamp, as private inference does not.
    cut: simulate `hummingbird.hybrid`, two parties without a dealer, in its integers (simulation/cut.py); leave
        protocol, parties, mode and clamp at their defaults, as they are for inference with a dealer.
    example: a batch of the net's inputs, for a net with several inputs or flags; the module then takes the net's
        arguments, and returns forward()'s result.
    aim: as for `convert_model`; "pair" simulates the forms of two parties without a dealer, such as splines.

    Raises what `convert_model` raises for the net, its bits and its protocol, and ConfigError for the other arguments.
    Warns as `convert_model` does, of batch norms and dropout in training mode, and once of inputs beyond the bits'
    `input_range`.

    >>> twin = hummingbird.simulate(net, BitWindow(20, 12))
    >>> bool((twin(images).argmax(1) == net(images).argmax(1)).all())
    True
    """
    given = protocol, parties, mode, clamp, aim
    if cut and (given != ("masked", 2, "fast", False, "latency") or example is not None):
        hint = "leave out protocol, parties, mode, clamp, example and aim"
        raise ConfigError("cut=True with options of inference with a dealer", where="simulate", hint=hint)
    net = from_object(net) or net
    check_protocol(protocol, parties)
    if mode not in MODES:
        raise ConfigError(f"unknown mode {mode!r}", where="simulate", hint=f"one of {', '.join(MODES)}")
    if seed is not None and (type(seed) is not int or not 0 <= seed < 2**63):
        raise ConfigError(f"seed={seed!r}", where="simulate", hint="None, or an integer from 0 to 2^63 - 1")
    if mode == "exact" and clamp:
        raise ConfigError("clamp with mode='exact'", where="simulate", hint="clamping is for training: mode='fast'")
    config = BitConfig.of(bits)
    if cut:
        _tell_mode(net)
        return CutSimulator(net, config, seed)
    private = convert.build(net, config, protocol=protocol, parties=parties, example=example, aim=aim)
    _tell_mode(net)
    if mode == "exact":
        return ExactSimulator(net, config, protocol, parties, seed, example, aim)
    twin = FastSimulator(net, private.plan, protocol, parties, Compare(seed, clamp), example, aim)
    twin.inputs = InputRange(config.input_range)
    return twin


def _tell_mode(net: nn.Module) -> None:
    """Warn of layers in training mode that compute differently in eval mode."""
    kinds = (_NormBase, _DropoutNd)
    if found := [name or "net" for name, layer in net.named_modules() if isinstance(layer, kinds) and layer.training]:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        what = f"{found[0]}{more} in training mode: the twin begins in eval mode, as private inference is"
        warnings.warn(f"{what}; call net.eval() first, or twin.train() to train", stacklevel=3)


@contextmanager
def _in_eval(net: nn.Module) -> Iterator[None]:
    """Put the net into eval mode inside a `with` block; afterwards every layer has its own mode again."""
    layers = [layer for layer in net.modules() if layer.training]
    for layer in layers:
        layer.training = False
    try:
        yield
    finally:
        for layer in layers:
            layer.training = True


class InputRange:
    """Warns, once, of inputs beyond the range for which windows were found.

    most: the largest |x| in the inputs with which they were found; None: it is not known, and there is no warning.
    """

    def __init__(self, most: float | None) -> None:
        self.most, self.warned = most, False

    def see(self, x: Tensor) -> None:
        """Warn if a value of the inputs x is beyond the range for which windows were found, unless that was said
        before.

        The bound is rounded to x's type, so that in half precision too x may reach it.
        """
        if self.most is None or self.warned or not x.numel():
            return
        least, most = torch.aminmax(x.detach())
        seen = torch.maximum(-least, most)
        if not bool(seen <= torch.tensor(self.most, dtype=x.dtype, device=x.device)):
            self.warned = True
            what = f"inputs reach |x| = {float(seen):g}, beyond {self.most:g}, the range that the windows were made for"
            warnings.warn(f"{what}: values may leave their windows", stacklevel=2)


class FastSimulator(nn.Module):
    """A net as a module whose comparing layers decide as the protocol does; the net is a child module, `net`.

    The parameters are the net's own. In eval mode the module computes as if every layer of the net were in eval mode;
    in training mode each layer has its own mode. plan: the plan of the net's private form. compare: simulates
    comparisons.
    """

    def __init__(
        self,
        net: nn.Module,
        plan: Sequence[PlanStep],
        protocol: str,
        parties: int,
        compare: Compare,
        example: Any = None,
        aim: str = "latency",
    ) -> None:
        super().__init__()
        self.net = net
        self.training = False
        self._protocol, self._parties, self._compare = protocol, parties, compare
        self._example, self._aim = example, TableChoice.of(aim)
        self._calls = live(net, tuple(builders.CUSTOM), example)
        self._windows: Windows | None = None
        self._folded: FoldedNet | None = None
        self._folded_of: list[Any] = []
        self._layers = self._twins(plan)
        self.inputs = InputRange(None)

    def _twins(self, plan: Sequence[PlanStep]) -> dict[str, Twin]:
        """Make simulated layers for all comparing layers and norms of a plan; return them by name.

        Three more things are stored: the number of fraction bits of the plan's weights, the rows by which inputs of
        recurrent layers are clamped, and the same layers in a form that fits the plain net's own modules (`on_live`).
        """
        self._scales, self._rows = weight_scales(plan), states(plan)
        self._names = [step.name for step, _ in comparisons(plan)]
        steps = {call.step.name: call.step for call in self._calls.calls if call.step is not None}
        found = twins(plan, steps, self._parties, self._compare)
        exchanged = named(self._protocol).takes_rounded_shares
        passed = pools_first(self._calls.steps)[1] if exchanged else {}
        self._live = on_live(found, plan, passed)
        return found

    def extra_repr(self) -> str:
        twin = f"plaintext twin: protocol {self._protocol}, {self._parties} parties"
        return f"{twin}, {len(self._layers)} layers with a window"

    def set_bits(self, bits: BitConfig | BitWindow | str | PathLike[str] | None) -> None:
        """Change the windows; after the first call this takes milliseconds, so that a search can try many.

        Raises ConfigError for windows that do not fit the net, or are another net's; the old windows then stay.
        """
        config = BitConfig.of(bits)
        config.check_names(self.comparing_layers)
        custom = tuple(builders.CUSTOM)
        steps = partial(graph.trace, self.net, custom=custom, example=self._example)
        prints = lambda: fingerprints(self.net, steps(), self._example, custom=custom)  # noqa: E731
        config.check_use(prints, self._protocol, self._parties)
        if self._windows is None or not self._windows.order.fits(config):
            self._windows = Windows(steps(), self._protocol, config.rows)
        check_ranges(config, self._windows.steps)
        self._layers = self._twins(self._windows.plan(config, self._aim))
        self.inputs = InputRange(config.input_range)

    @property
    def comparing_layers(self) -> list[str]:
        """Names of the layers with a window, in the order in which parties compute them."""
        return self._names

    def passes(self, image: Tensor) -> Callable[[int], None]:
        """Return a function that a rank calls with a batch's number before it runs this batch.

        Ranks divide the batches among them. The function makes the module draw for the batch the random numbers that a
        single process would draw. image: any one image, (1, ...).
        """
        return self._compare.passes(lambda: self(image))

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Run the net on its own arguments, real tensors, with simulated comparisons; return forward()'s result."""
        given = calls.inputs(self._calls.steps, inputs, named, is_private)
        x = given.packed()
        self.inputs.see(x)
        self._compare.training = self.training
        if self.training:
            return self._calls.result(self._calls.run(self.net, given, self._live))
        if torch.is_grad_enabled() or not self._single(x):
            with _in_eval(self.net):
                return self._calls.result(self._calls.run(self.net, given, self._live))
        folded = self._as_converted()
        return folded.result(folded.finish(folded.start(x, *given.public), self._layers), x.shape)

    def _single(self, x: Tensor) -> bool:
        """Return whether the input and the net compute in float32, as the folded net does.

        That is: the input, parameters and buffers are float32 where they are floating point, and autocast is off.
        """
        floats = (t for t in (x, *self.net.parameters(), *self.net.buffers()) if t.is_floating_point())
        return not torch.is_autocast_enabled(x.device.type) and all(t.dtype == torch.float32 for t in floats)

    def _as_converted(self) -> FoldedNet:
        """Return the net with folded batch norms and with constants rounded as in private inference.

        It is made once, and again after a change of a weight.
        """
        tensors = (*self.net.parameters(), *self.net.buffers())
        state = [self._scales, self._rows, *((id(t), t._version, t.device) for t in tensors)]
        if self._folded is None or state != self._folded_of:
            self._folded = FoldedNet(self.net, self._protocol, self._example, self._scales, self._rows)
            self._folded_of = state
        return self._folded


class ExactSimulator(nn.Module):
    """Module that runs all parties of a private inference in this process, on their integers.

    Every call converts the net again, as it may have changed.
    """

    def __init__(
        self,
        net: nn.Module,
        config: BitConfig,
        protocol: str,
        parties: int,
        seed: int | None,
        example: Any = None,
        aim: str = "latency",
    ) -> None:
        super().__init__()
        self.net, self._example, self._aim = net, example, aim
        self.training = False
        self.inputs = InputRange(config.input_range)
        self._bits, self._protocol = config.windows, protocol
        self._parties, self._seed = parties, seed
        self._running: dict[torch.device, Parties] = {}

    def extra_repr(self) -> str:
        return f"all parties in this process: protocol {self._protocol}, {self._parties} parties"

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Run the net on its own arguments, real tensors with |x| <= 2^20; return its results, float32.

        Raises InputError for other values, and for shapes that the net cannot take.
        """
        steps = graph.trace(self.net, custom=tuple(builders.CUSTOM), example=self._example)
        given = calls.inputs(steps, arguments, named, is_private)
        for leaf in given.private:
            inputs.encoded(leaf, "simulate")
        x = given.packed()
        self.inputs.see(x)
        if x.device not in self._running:
            self._running[x.device] = Parties(self._parties, self._seed, x.device)
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # `simulate` gave them when it converted the net
                known = {"protocol": self._protocol, "example": self._example, "aim": self._aim}
                private = convert.build(self.net, self._bits, **known)
            try:
                out = self._running[x.device].run(ExactNet(private, given.public), x)
                return calls.unpacked(steps, out, calls.shapes_for(steps, x.shape), lambda part: part)
            except BaseException:  # parties that were stopped at different places cannot go on together
                del self._running[x.device]
                raise
