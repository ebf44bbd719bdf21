"""Client and server of encrypted inference, as pure computation: who moves the slices is up to the caller.

    server = Server(plan)                          # the net's weights; no key, ever
    client = Client(server.public)                 # draws a key
    batch = client.begin(images)                   # at most public.slots images
    for number in range(len(server.public.turns)):
        turn = server.turn(number)
        for sent in batch.uploads(number):         # encrypted slice by slice, as the loop asks
            turn.receive(sent)
        for back in turn.downloads():              # computed tile by tile, as the loop asks
            batch.receive(back)
    logits = batch.result()                        # float32 (images, *output)

A server keeps nothing from one turn to the next: all that a turn reads is sent in it. So a turn is one streaming call,
any server of the same net can answer it, and what it holds is freed with the `ServerTurn`.

What a server sees is ciphertexts, as many as the plan says. It is trusted to compute what the plan says: one that
answers with something else learns from whether the client goes on, and so from the next turn, if not what it sent.

Every slice carries its place in the turn's stream (he/client_spec.py). Slices come in order, and one that does not is
an InputError, as is a tensor of another shape or type; that residues are below their primes is for whoever read them
from bytes to see to (kernels.ciphertexts.unpack).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.graph import OPS, Step
from hummingbird.he import packing
from hummingbird.he.ckks import Coins, SecretKey, expand
from hummingbird.he.client_spec import Public, client_steps
from hummingbird.he.layers import Linear, switched, times
from hummingbird.he.masking import masked
from hummingbird.he.memory import predicted
from hummingbird.he.plan import Plan, Program
from hummingbird.he.precision import Precision, Shadow, named
from hummingbird.he.rounds import Return, Turn
from hummingbird.prg import SEED_BYTES

_MASKED = 16  # ciphertexts masked at a time: the randomness of one is as large as it is


@dataclass(frozen=True, eq=False)
class Upload:
    """Ciphertexts first .. first + n - 1 of a turn's stream: `seed` makes the components c1, `body` is c0.

    seed: 16 bytes, fresh for every slice. body: int32 (n, L, N), coefficients, or transformed where public.form is
    "ntt".
    """

    turn: int
    first: int
    seed: bytes
    body: Tensor


@dataclass(frozen=True, eq=False)
class Download:
    """Ciphertexts first .. first + n - 1 of a turn's stream back: `body` is int32 (n, size, primes, N)."""

    turn: int
    first: int
    body: Tensor


class Client:
    """Holds the secret key, and works by `public` alone."""

    def __init__(self, public: Public) -> None:
        self.public = public
        self._key = SecretKey(public.parameters)

    def batches(self, images: Tensor) -> list[Batch]:
        """Start on any number of images, float (n, *input_shape), n >= 1, in batches of `slots`, as `begin` does."""
        shape = self.public.input_shape
        if not isinstance(images, Tensor) or tuple(images.shape[1:]) != shape or not images.dim() or not len(images):
            got = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
            what = f"images are {got}, this net takes (n, {', '.join(map(str, shape))})"
            raise InputError(what, where="images", hint="n is 1 or more")
        slots = self.public.slots
        if images.layout != torch.strided:  # it cannot be split
            return [self.begin(images)]
        return [self.begin(part, number * slots) for number, part in enumerate(images.split(slots))]

    def begin(self, images: Tensor, first: int = 0) -> Batch:
        """Start on images, float (1 .. slots, *input_shape). first: the number of the first one, for errors.

        InputError for another shape or type, for NaN and infinity, and for values beyond the plan's input_range.
        """
        public, where = self.public, "images"
        if not isinstance(images, Tensor) or not images.is_floating_point():
            got = images.dtype if isinstance(images, Tensor) else type(images).__name__
            raise InputError(f"images are {got}", where=where, hint="give a float tensor")
        if images.device.type != "cpu" or images.layout != torch.strided:
            what = f"images are {str(images.layout).removeprefix('torch.')} on device {images.device}"
            raise InputError(what, where=where, hint="give images.to_dense().cpu(): encryption runs there")
        if tuple(images.shape[1:]) != public.input_shape or not 1 <= len(images) <= public.slots:
            what = f"images are {tuple(images.shape)}, this net takes (1 to {public.slots}, *{public.input_shape})"
            raise InputError(what, where=where, hint="the first dimension is the batch")
        low, high = (float(end) for end in images.detach().aminmax())
        most, bound = max(-low, high), public.input_range
        if not math.isfinite(most):
            wrong = named((~images.isfinite()).flatten(1).any(1).nonzero()[:, 0], first)
            raise InputError(f"images hold NaN or infinity: {wrong}", where=where, hint="look at how they were loaded")
        if bound is not None and most > bound:
            wrong = named((images.abs() > bound).flatten(1).any(1).nonzero()[:, 0], first)
            what = f"images reach {most:.4g}, the plan was made for |input| <= {bound:.4g}: {wrong}"
            hint = "normalize them as in training, or convert with a larger input_range: sums could leave the modulus"
            raise InputError(what, where=where, hint=hint)
        return Batch(public, self._key, images.detach(), first)


class Batch:
    """One batch at the client: the plain values it knows, turn by turn.

    Values are kept as (values of an image, images), the order in which they are encrypted, and seen by the net's steps
    as (images, *shape). One is dropped when nothing later reads it.

    images: how many. precision: of the values that have come back so far, image by image.
    """

    def __init__(self, public: Public, key: SecretKey, images: Tensor, first: int) -> None:
        self.public, self._key, self.images, self._first = public, key, len(images), first
        self.precision = Precision(len(images), public.slots)
        self._shadow: Shadow | None = None
        self._steps = client_steps(public)
        self._values: dict[int, Any] = self._steps.start(images.float())
        self._turn, self._arrived = 0, 0  # the turn that is next; where the tensor that is coming back began
        self._waiting: Iterator[tuple[int, int, Return]] = iter(())
        self._order: dict[int, Tensor] = {}
        self._scales = torch.zeros(len(images), dtype=torch.int64)

    def uploads(self, number: int) -> Iterator[Upload]:
        """The slices of turn `number`, encrypted as they are asked for; the turn before must be complete."""
        self._expect(number)
        public, turn = self.public, self.public.turns[number]
        self._steps.run(self._values, self._compute, turn.steps)
        self._turn = number + 1
        for send in turn.sends:
            self._check_errors(send.value)
        flat = [self._flat(self._values[send.value]) for send in turn.sends]
        self._scales = self._input_scales(turn, flat)
        outliers = (self._scales < turn.usual).nonzero()[:, 0]
        self._shadow = Shadow(outliers, self._first) if len(outliers) else None
        for start, stop in turn.up():
            message = self._messages(turn, flat, start, stop)
            seed, body = self._key.encrypt(message, Coins(self._key.ring, stop - start), public.form)
            yield Upload(number, start, seed, body)
        del flat
        self._steps.drop(self._values, len(public.steps) + number)
        self._waiting = turn.down()
        self._arrived = 0

    def receive(self, back: Download) -> None:
        """Decrypt a slice; they come in order."""
        expected = next(self._waiting, None)
        if expected is None or (back.turn, back.first) != (self._turn - 1, expected[0]):
            place = f"slice {back.first} of turn {back.turn}"
            raise InputError(f"{place} was not expected", where="download", hint="slices come in order, once each")
        first, stop, tensor = expected
        shape = (stop - first, tensor.size, tensor.primes, self.public.parameters.degree)
        _check_body(back.body, shape, "download")
        turn = self.public.turns[back.turn]
        values = packing.decode(self._key.decrypt(back.body, self.public.form), self.public.packing)
        if tensor.value not in self._order:
            self._order[tensor.value] = tensor.order()
            self._values[tensor.value] = torch.empty(tensor.count, self.images)
            self._arrived = first
        at = first - self._arrived
        where = self._order[tensor.value][at : at + stop - first]
        units = torch.full((self.images,), float(tensor.unit), dtype=torch.float64)
        if turn.scale is None:
            units = torch.ldexp(units, -self._scales)
        self._values[tensor.value][where] = (values[:, : self.images] * units).float()
        is_last = at + stop - first == tensor.count
        self.precision.add(tensor, values, is_last)
        if is_last:
            del self._order[tensor.value]
            grid = self._values[tensor.value].view(tensor.rows, tensor.places, self.images)
            seen = grid.permute(2, 1, 0) if tensor.last else grid.permute(2, 0, 1)
            self._values[tensor.value] = seen.reshape(-1, *tensor.shape)  # a view
            if self._shadow is not None:
                self._shadow.add(tensor.value, self._values[tensor.value], tensor.noise * units.abs())

    def result(self) -> Tensor:
        """The net's outputs (images, *output), float32 unless they are indices, after the last turn."""
        self._expect(len(self.public.turns))
        self._steps.run(self._values, self._compute, self.public.last)
        self._check_errors(self.public.last[-1])
        output = self._values[self.public.last[-1]]
        self._check_finite(
            (~output.isfinite()).reshape(self.images, -1).any(1), self.public.steps[self.public.last[-1]].name
        )
        self._values.clear()
        return output.contiguous()

    def _expect(self, number: int) -> None:
        if number != self._turn or next(self._waiting, None) is not None:
            what = f"turn {number} asked for, turn {self._turn} is next, or slices of the one before are missing"
            raise InputError(what, where="Batch", hint="all slices up, all slices down, then the next turn")

    def _compute(self, index: int, step: Step, given: tuple[Any, ...]) -> Any:
        if step.op == "input":
            return given[0]
        try:
            with torch.no_grad():
                value = OPS[step.op](step.attrs, *given)
                if self._shadow is not None:
                    self._shadow.run(index, step, self._values)
        except (RuntimeError, LookupError, TypeError, ValueError, NotImplementedError) as error:
            what = f"{step.op} does not run on what came back: {str(error)[:200]}"
            raise InputError(what, where=step.name, hint="is it the right server?") from None
        return value

    @staticmethod
    def _flat(value: Tensor) -> Tensor:
        """(images, *shape) to (values, images); no copy where it came that way."""
        return value.movedim(0, -1).reshape(-1, value.shape[0])

    def _check_errors(self, index: int) -> None:
        """InputError naming the images of which a value would be mostly errors."""
        if self._shadow is not None:
            self._shadow.check(index, self._values[index], self.public.steps[index].name)

    def _check_finite(self, wrong: Tensor, where: str) -> None:
        """InputError naming the images of which a value is not finite: wrong, bool (images,)."""
        if bool(wrong.any()):
            what = f"the net's values are no longer finite: {named(wrong.nonzero()[:, 0], self._first)}"
            raise InputError(what, where=where, hint="are images and weights right?")

    def _input_scales(self, turn: Turn, flat: list[Tensor]) -> Tensor:
        """log2 of every image's scale: int64 (images,)."""
        ends = [(part.amin(0), part.amax(0)) for part in flat]
        peaks = torch.stack([torch.maximum(-low, high) for low, high in ends]).double()
        names = ", ".join(repr(self.public.steps[send.value].name) for send in turn.sends)
        self._check_finite(~peaks.isfinite().all(0), names)
        if turn.scale is not None:
            return torch.full((self.images,), turn.scale)
        scales = turn.fit(peaks, self.public.parameters, self.public.packing)
        if bool((scales < 0).any()):
            rows = max(sum(back.gains) for back in turn.returns)
            raise InputError(
                f"scale out of bounds: values up to {float(peaks.max()):.3g} times weights of row sum "
                f"2^{math.log2(rows):.1f} leave the modulus of {self.public.parameters.bits:.0f} bits at any scale: "
                f"{named((scales < 0).nonzero()[:, 0], self._first)}",
                where=names,
                hint="normalize the images as in training; if they are, the net's values grow too large for this mode",
            )
        return scales

    def _messages(self, turn: Turn, flat: list[Tensor], start: int, stop: int) -> Tensor:
        """Ciphertexts start .. stop - 1 of the stream as integers: int32 (stop - start, N)."""
        public, out, first = self.public, [], 0
        degree, scales = public.parameters.degree, torch.ldexp(torch.ones(self.images), self._scales)
        last = torch.full((1, self.images), float(turn.one))  # the one, or a zero
        for part in (*flat, last)[: len(flat) + (turn.one or turn.zero)]:
            rows = part[max(0, start - first) : max(0, stop - first)]
            if len(rows):
                out.append(packing.encode(rows, public.packing, degree, scales))
            first += len(part)
        return torch.cat(out)


class Server:
    """The net's weights and what to do with them; immutable, for any number of clients and threads.

    memory: bytes that the largest turn takes, predicted.
    """

    def __init__(self, plan: Plan) -> None:
        self.public = plan.public
        self.memory = predicted(plan).server
        self._programs = plan.programs

    def turn(self, number: int) -> ServerTurn:
        """One client's turn."""
        return ServerTurn(self.public, number, self._programs[number])


class ServerTurn:
    """One turn of one client at the server: its ciphertexts."""

    def __init__(self, public: Public, number: int, program: Program) -> None:
        self.public, self.number, self._program = public, number, program
        self._turn, self._ring = public.turns[number], public.parameters.ring
        self._waiting = self._turn.up()
        self._next = next(self._waiting, None)
        self._received: Tensor | None = None
        self._zero: Tensor | None = None

    def receive(self, sent: Upload) -> None:
        """Expand c1 from the seed and keep the slice; they come in order."""
        if self._next is None or (sent.turn, sent.first) != (self.number, self._next[0]):
            place = f"slice {sent.first} of turn {sent.turn}"
            raise InputError(f"{place} was not expected", where="upload", hint="slices come in order, once each")
        start, stop = self._next
        shape = (stop - start, len(self._ring.primes), self._ring.degree)
        _check_body(sent.body, shape, "upload")
        if not isinstance(sent.seed, bytes) or len(sent.seed) != SEED_BYTES:
            raise InputError("a seed has 16 bytes", where="upload", hint="one for each slice")
        if self._received is None:
            self._received = torch.empty(self._turn.sent, 2, *shape[1:], dtype=torch.int32)
        self._received[start:stop, 0] = sent.body
        self._received[start:stop, 1] = expand(self._ring, sent.seed, stop - start)
        self._next = next(self._waiting, None)

    def downloads(self) -> Iterator[Download]:
        """The slices of the answer, computed as they are asked for; InputError until the whole turn was received."""
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
        """Run an operation; yield what goes back, tile by tile: int32 (n, size, primes, N)."""
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
                whole = torch.empty(operation.rows, operation.places, *size, dtype=torch.int32)
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
            grid = whole.unflatten(0, (back.rows, back.places))
            for start in range(0, back.places, back.tile):
                yield self._sent(grid[:, start : start + back.tile], back)

    def _sent(self, tile: Tensor, back: Return) -> Tensor:
        flat, form = tile.reshape(-1, *tile.shape[2:]), self.public.form
        if self._zero is not None:
            mask = self._program.masks[self._turn.returns.index(back)]
            pieces = (times(self._ring, piece, 1 << mask.lift) for piece in flat.split(_MASKED))
            flat = torch.cat([masked(self._ring, piece, self._zero, mask.flood, form) for piece in pieces])
        return switched(self._ring, flat, back.primes, form)

    def _apart(self) -> int:
        """How far apart the ones of the constant 1 are, as component 0 holds it."""
        return 1 if self.public.form == "ntt" else packing.constant_step(self.public.packing, self._ring.degree)


def _check_body(body: Any, shape: tuple[int, ...], where: str) -> None:
    if not isinstance(body, Tensor) or body.dtype != torch.int32 or tuple(body.shape) != shape:
        got = f"{body.dtype} {tuple(body.shape)}" if isinstance(body, Tensor) else type(body).__name__
        raise InputError(f"expected torch.int32 {shape}, got {got}", where=where, hint="see he/roles.py")
