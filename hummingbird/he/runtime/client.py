"""The client of encrypted inference, as pure computation: the caller transports the slices.

    server = Server(plan)                          # the net's weights; no key, ever (server.py)
    client = Client(server.public)                 # draws a key
    batch = client.begin(images)                   # at most public.slots images
    for number in range(len(server.public.turns)):
        turn = server.turn(number)
        for sent in batch.uploads(number):         # encrypted slice by slice, as the loop asks
            turn.receive(sent)
        for back in turn.downloads():              # computed tile by tile, as the loop asks
            batch.receive(back)
    logits = batch.result()                        # float32 (images, *output)

Where the server is another process without a connection, bytes travel in place of slices, and both sides may be files
in between (files.py):

    batch = client.begin(images)
    while not batch.complete:
        batch.accept(server.answer(batch.request()))
    logits = batch.result()

Slices must come in order: a slice out of order, or a tensor of another shape or type, is an InputError. The parser of
the bytes has checked that residues are below their primes (kernels.ciphertexts.unpack).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hummingbird import prg
from hummingbird.errors import AgreementError, InputError
from hummingbird.graph import OPS, Step
from hummingbird.graph.steps import refs
from hummingbird.he.runtime import files, messages
from hummingbird.he.runtime.client_spec import Public, client_steps
from hummingbird.he.runtime.precision import PLANNED, SMALL, TIMES, Precision, Shadow, least_bits, named
from hummingbird.he.runtime.program import moved
from hummingbird.he.runtime.rounds import MOST_MESSAGE, Download, Return, Round, Upload, check_body
from hummingbird.he.scheme import packing
from hummingbird.he.scheme.ckks import Coins, SecretKey
from hummingbird.kernels.devices import find_device
from hummingbird.structure import places


class Client:
    """The client role: it owns the secret key, encrypts images, decrypts answers, and knows a plan's public part only.

    device: where the client encrypts, decrypts and computes, "cpu" or "cuda"; images, outputs and messages do not
    depend on it. key: the seed of a saved secret key, 32 bytes; a new key is drawn without it. Raises InputError for a
    missing device.

    >>> plan = he.make_plan(net, (4,))
    >>> server, client = he.Server(plan), he.Client(plan.public)
    >>> batch = client.begin(images)
    >>> while not batch.complete:
    ...     batch.accept(server.answer(batch.request()))  # bytes both ways
    >>> batch.parts()[0].shape
    torch.Size([20, 3])
    """

    def __init__(self, public: Public, device: str = "cpu", key: bytes | None = None) -> None:
        self.device = find_device(device, "he.Client(device)")
        self.public = replace(public, steps=moved(public.steps, self.device))
        self._key = SecretKey(public.parameters, self.device, key)

    def save(self, path: str | Path) -> None:
        """Write the description of the net and the secret key to a new file of mode 0600.

        Whoever reads this file can decrypt all that the client has encrypted. Raises InputError if there is a file of
        this name, or if it cannot be written.
        """
        files.write_client(Path(path), self.public, self._key.seed)

    @staticmethod
    def load(path: str | Path, device: str = "cpu") -> Client:
        """Return the client that `save` has written to a file, with the same key.

        Every encryption draws new randomness, so any number of processes may load one file. device: where the client
        encrypts, decrypts and computes. Raises InputError for a missing or damaged file and for a missing device,
        ConfigError for insecure parameters, AgreementError for a file of another kind or release.
        """
        public, key = files.read_client(Path(path))
        return Client(public, device, key)

    def resume(self, path: str | Path) -> ClientBatch:
        """Return the batch that `ClientBatch.save` has written to a file; it waits for the answer to its last request.

        Raises InputError for a missing or damaged file, AgreementError for a file of another kind or release, and for
        the batch of another client.
        """
        head, tensors = files.read_batch(Path(path), self._key.seed)
        blank = torch.zeros(()).expand(head.images, *self.public.input_shape)
        batch = ClientBatch(self.public, self._key, blank, head.first, self.device)
        batch._restore(head, tensors)
        return batch

    def batches(self, images: Tensor) -> list[ClientBatch]:
        """Split images into groups of at most `slots`, and return a batch for each group, from `begin`.

        images: float (n, *input_shape), n >= 1.
        """
        shape = self.public.input_shape
        if not isinstance(images, Tensor) or tuple(images.shape[1:]) != shape or not images.dim() or not len(images):
            got = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
            what = f"images are {got}, this net takes (n, {', '.join(map(str, shape))})"
            raise InputError(what, where="images", hint="n is 1 or more")
        slots = self.public.slots
        if images.layout != torch.strided:  # it cannot be split
            return [self.begin(images)]
        return [self.begin(part, number * slots) for number, part in enumerate(images.split(slots))]

    def begin(self, images: Tensor, first: int = 0) -> ClientBatch:
        """Begin a batch of images, float (1 .. slots, *input_shape), and return it.

        first: number of the first image, for errors. Raises InputError for another shape or type, for NaN and infinity,
        and for values beyond the plan's input_range.
        """
        public, where = self.public, "images"
        if not isinstance(images, Tensor) or not images.is_floating_point():
            got = images.dtype if isinstance(images, Tensor) else type(images).__name__
            raise InputError(f"images are {got}", where=where, hint="give a float tensor")
        if images.device.type != "cpu" or images.layout != torch.strided:
            what = f"images are {str(images.layout).removeprefix('torch.')} on device {images.device}"
            raise InputError(what, where=where, hint="give images.to_dense().cpu()")
        if tuple(images.shape[1:]) != public.input_shape or not 1 <= len(images) <= public.slots:
            what = f"images are {tuple(images.shape)}, this net takes (1 to {public.slots}, *{public.input_shape})"
            raise InputError(what, where=where, hint="the first dimension is the batch")
        low, high = (float(end) for end in images.detach().aminmax())
        most, bound = max(-low, high), public.input_range
        if not math.isfinite(most):
            wrong = named((~images.isfinite()).flatten(1).any(1).nonzero()[:, 0], first)
            raise InputError(f"images hold NaN or infinity: {wrong}", where=where, hint="check how they were loaded")
        if bound is not None and most > bound:
            wrong = named((images.abs() > bound).flatten(1).any(1).nonzero()[:, 0], first)
            what = f"images reach {most:.4g}, the plan was made for |input| <= {bound:.4g}: {wrong}"
            hint = "normalize them as in training, or convert with a larger input_range: sums could leave the modulus"
            raise InputError(what, where=where, hint=hint)
        return ClientBatch(public, self._key, images.detach(), first, self.device)


class ClientBatch:
    """A batch of images on its way through the net, at the client: its plain values, turn by turn.

    Values are stored as (values of an image, images), the order of encryption; the net's steps see them as (images,
    *shape). A value is dropped once no later step reads it. The values that a turn sends stay until the turn is
    complete, so that a turn can be repeated after a lost connection.

    images: number of images. precision: of the values that came back so far, for each image.

    >>> plan = he.make_plan(net, (4,))
    >>> server, batch = he.Server(plan), he.Client(plan.public).begin(images)
    >>> while not batch.complete:  # once in polynomial mode, once a turn in client-aided mode
    ...     batch.accept(server.answer(batch.request()))
    >>> batch.result().shape
    torch.Size([20, 3])
    """

    def __init__(self, public: Public, key: SecretKey, images: Tensor, first: int, device: torch.device) -> None:
        self.public, self._key, self.images, self._first, self._device = public, key, len(images), first, device
        self.precision = Precision(len(images), public.slots, device)
        self._shadow: Shadow | None = None
        self._steps = client_steps(public)
        self._values: dict[int, Any] = self._steps.start(images.float())
        self._turn, self._arrived = 0, 0  # the next turn; first ciphertext of the tensor that is being received
        self._waiting: Iterator[tuple[int, int, Return]] = iter(())
        self._order: dict[int, Tensor] = {}
        self._scales = torch.zeros(len(images), dtype=torch.int64, device=device)
        self._small = torch.zeros(len(images), dtype=torch.bool, device=device)  # beside typical images
        self._name = prg.new_seed(messages.BATCH_BYTES).hex()
        self._due = False  # whether a turn has begun whose answer is not complete

    @property
    def complete(self) -> bool:
        """Whether the answers to all turns are here, so that `result` has the outputs."""
        return self._turn == len(self.public.turns) and not self._due

    def request(self) -> bytes:
        """Encrypt what the server needs for the next turn, or once more for the current one while its answer is due.

        Returns the message for `Server.answer`; it has the size that the report states for the turn, and 256 bytes
        more. Randomness is new in every call. Raises InputError if the batch is complete, and for images whose values
        would not be precise enough.
        """
        if self.complete:
            raise InputError("the batch is complete", where="ClientBatch.request", hint="result() has the outputs")
        number = self._turn - 1 if self._due else self._turn
        packed = (piece for sent in self.uploads(number) for piece in messages.pack_upload(self.public, sent))
        return self._head(messages.REQUEST, number).pack(packed)

    def accept(self, answer: bytes) -> None:
        """Decrypt and store the server's answer to the last request.

        An answer that is refused changes nothing: a right one may follow. Raises AgreementError for the answer to
        another batch, or of another net or release; InputError for anything else that is no answer, and if none is due.
        """
        public, number = self.public, self._turn - 1
        if not self._due:
            raise InputError("no answer is due", where="ClientBatch.accept", hint="request() comes first, in each turn")
        expected = self._head(messages.ANSWER, number)
        head = messages.read_head(answer, messages.ANSWER, public, expected.net)
        if head.batch != expected.batch:
            what = f"an answer for batch {head.batch}, this is batch {expected.batch}"
            raise AgreementError(
                what, where="answer", hint="each request has its own answer: were two files exchanged?"
            )
        if head.turn != number:
            what = f"an answer for turn {head.turn}, turn {number} is due"
            raise InputError(what, where="answer", hint="is it the answer to the last request?")
        self._forget(public.turns[number])
        self._waiting, self._arrived = public.turns[number].down(), 0
        for back in messages.downloads(public, number, answer, self._device):
            self.receive(back)

    def save(self, path: str | Path) -> None:
        """Write the batch to a file of mode 0600, so that another process can continue it (`Client.resume`).

        The file has the images' values in the clear, as far as they are still needed, and no randomness. It replaces a
        file of this name. Raises InputError unless an answer is due, and if the file cannot be written.
        """
        if not self._due:
            what = "a batch is saved while an answer is due"
            raise InputError(what, where="ClientBatch.save", hint="call request() first, and save before you send")
        number = self._turn - 1
        returned = {back.value for back in self.public.turns[number].returns}  # in part, if an answer was refused
        values = [(index, value) for index, value in self._values.items() if index not in returned]
        tensors = {"scales": self._scales, "small": self._small, "squares": self.precision.squares}
        for index, value in values:
            named_parts = enumerate(value) if isinstance(value, tuple) else [("", value)]
            tensors |= {f"{index}.{part}": tensor for part, tensor in named_parts}
        head = files.BatchHead(
            client=files.client_name(self._key.seed),
            batch=self._name,
            turn=number,
            images=self.images,
            first=self._first,
            values=tuple((index, len(value) if isinstance(value, tuple) else 0) for index, value in values),
        )
        files.write_batch(Path(path), head, tensors, self._key.seed)

    def _restore(self, head: files.BatchHead, tensors: dict[str, Tensor]) -> None:
        """Continue as the batch that was saved in a file.

        head: the file's record. tensors: the file's tensors, by name. Both were checked against the file's digest.
        """
        moved_to = {name: tensor.to(self._device) for name, tensor in tensors.items()}
        self._name, self._turn, self._due = head.batch, head.turn + 1, True
        self._scales, self._small = moved_to["scales"], moved_to["small"]
        self.precision.restore(moved_to["squares"])
        self._values = {
            index: tuple(moved_to[f"{index}.{part}"] for part in range(count)) if count else moved_to[f"{index}."]
            for index, count in head.values
        }
        self._shadow = self._shadow_of(self.public.turns[head.turn])

    def _head(self, kind: str, turn: int) -> messages.MessageHead:
        net = messages.digest(self.public.to_json().encode())
        return messages.MessageHead(kind=kind, net=net, batch=self._name, turn=turn)

    def uploads(self, number: int) -> Iterator[Upload]:
        """Yield the slices to send in turn `number`, encrypted on demand; the turn before must be complete.

        A second call for the current turn encrypts again and discards the answers received so far.
        """
        public, turn = self.public, self.public.turns[number]
        if number == self._turn - 1:
            self._forget(turn)
        else:
            self._expect(number)
            self._steps.run(self._values, self._compute, turn.steps)
            for send in turn.sends:
                self._check_errors(send.value, self._values[send.value], self.public.steps[send.value].name)
            self._turn = number + 1
            self.precision.mark()
        self._due = True
        flat = [self._flat(self._values[send.value]) for send in turn.sends]
        self._scales = self._input_scales(turn, flat)
        if turn.scale is not None:
            self._weigh(turn, flat)
        self._shadow = self._shadow_of(turn)
        for start, stop in turn.up():
            message = self._messages(turn, flat, start, stop)
            seed, body = self._key.encrypt(message, Coins(self._key.ring, stop - start, self._device), public.form)
            yield Upload(number, start, seed, body)
        del flat
        self._waiting = turn.down()
        self._arrived = 0

    def receive(self, back: Download) -> None:
        """Decrypt and store the next slice of the server's answer. Raises InputError for a slice out of order."""
        expected = next(self._waiting, None)
        if expected is None or (back.turn, back.first) != (self._turn - 1, expected[0]):
            place = f"slice {back.first} of turn {back.turn}"
            raise InputError(f"{place} was not expected", where="download", hint="slices come in order, once each")
        first, stop, tensor = expected
        shape = (stop - first, tensor.size, tensor.primes, self.public.parameters.degree)
        check_body(back.body, shape, "download")
        turn = self.public.turns[back.turn]
        body = back.body.to(self._device)
        values = packing.decode(self._key.decrypt(body, self.public.form), self.public.packing)
        if tensor.value not in self._order:
            self._order[tensor.value] = tensor.order().to(self._device)
            self._values[tensor.value] = torch.empty(tensor.count, self.images, device=self._device)
            self._arrived = first
        at = first - self._arrived
        where = self._order[tensor.value][at : at + stop - first]
        units = torch.full((self.images,), float(tensor.unit), dtype=torch.float64, device=self._device)
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
        self._due = stop < turn.returned

    def result(self) -> Any:
        """Compute the net's outputs, (images, *output), in the structure that the net returns."""
        return self.public.joined([self.parts()])

    def parts(self) -> list[Tensor]:
        """Return the net's results after the last turn: a list of tensors on the CPU, each (images, ...).

        They are float32, or indices, such as those of an argmax. Raises InputError unless all turns are complete, and
        for images whose results would not be precise enough.
        """
        self._expect(len(self.public.turns))
        last, back = self.public.last, [x.value for x in self.public.turns[-1].returns]
        if self.public.mode == "polynomial" and any(self.public.steps[index].op == "argmax" for index in last):
            for index in back:  # argmax indices say nothing about the values' errors
                self._check_errors(index, self._values[index], self.public.steps[index].name)
            self._shadow = None
        self._steps.run(self._values, self._compute, last)
        step, outputs = self.public.steps[last[-1]], self._values[last[-1]]
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        for ref, output, place in zip(refs(step.inputs), outputs, places(self.public.structure), strict=True):
            name = f"{step.name} {place}".rstrip()
            self._check_errors(ref.index, output, name)
            self._check_finite((~output.isfinite()).reshape(self.images, -1).any(1), name)
        self._values.clear()
        return [output.contiguous().cpu() for output in outputs]

    def _expect(self, number: int) -> None:
        """Raise InputError unless turn `number` is the next one and the turn before it is complete.

        Then drop the values that were sent in the turn before and that no later step reads.
        """
        if number != self._turn or self._due:
            what = (
                f"turn {number} was asked for, but turn {self._turn} is next, or slices of the turn before are missing"
            )
            raise InputError(what, where="ClientBatch", hint="all slices up, all slices down, then the next turn")
        if number > 0:
            self._steps.drop(self._values, len(self.public.steps) + number - 1)

    def _shadow_of(self, turn: Round) -> Shadow | None:
        """Make the second run of the client's steps that shows how far encryption errors change the values of a turn
        (`Shadow`).

        In polynomial mode it is for all images; otherwise for those whose values are larger than the plan expects.
        Returns None if there are no such images. The scales of the turn must be chosen already.
        """
        if turn.scale is not None:
            return Shadow(torch.arange(self.images, device=self._device), self._first, PLANNED, TIMES)
        outliers = (self._scales < turn.usual).nonzero()[:, 0]
        return Shadow(outliers, self._first) if len(outliers) else None

    def _forget(self, turn: Round) -> None:
        """Discard all that the server has answered in a turn so far, so that the turn can be repeated."""
        for back in turn.returns:
            self._values.pop(back.value, None)
        self._order.clear()
        self._waiting = iter(())
        self.precision.rewind()

    def _compute(self, index: int, step: Step, given: tuple[Any, ...]) -> Any:
        if step.op == "input":
            return given[0].to(self._device)
        try:
            with torch.no_grad():
                value = OPS[step.op](step.attrs, *given)
                if self._shadow is not None:
                    self._shadow.run(index, step, self._values)
        except (RuntimeError, LookupError, TypeError, ValueError, NotImplementedError) as error:
            what = f"{step.op} does not run on the server's answer: {str(error)[:200]}"
            raise InputError(what, where=step.name, hint="is it the right server?") from None
        return value

    @staticmethod
    def _flat(value: Tensor) -> Tensor:
        """Return a value (images, *shape) as (values, images); nothing is copied if the memory has that order."""
        return value.movedim(0, -1).reshape(-1, value.shape[0])

    def _check_errors(self, index: int, value: Tensor, name: str) -> None:
        """Raise InputError, naming the images, if encryption errors could leave too few bits of a step's value right.

        A second run of the client's steps, with errors added, tells how far errors change values (`Shadow`). Nothing is
        checked if there was no such run.
        index: number of the step. value: the step's value for all images. name: of the step, for the message.
        """
        if self._shadow is not None:
            least = None
            if self.public.mode == "polynomial":
                least = least_bits(value[0].numel(), self._small)
            self._shadow.check(index, value, name, least)

    def _check_finite(self, wrong: Tensor, where: str) -> None:
        """Raise InputError if an image has values that are NaN or infinite; the error names the images.

        wrong: bool (images,), true for such an image. where: the place that the error names.
        """
        if bool(wrong.any()):
            what = f"the net's values are no longer finite: {named(wrong.nonzero()[:, 0], self._first)}"
            raise InputError(what, where=where, hint="are images and weights right?")

    def _weigh(self, turn: Round, flat: list[Tensor]) -> None:
        """Note which images have only small values, so that errors weigh more in them; their outputs need more right
        bits.

        An image's values are small if their root mean square is far below the typical one, in each tensor of `flat`.
        turn: the turn that sends the values. flat: a tensor (values, images) for each of `turn.sends`.
        """
        small = torch.ones(self.images, dtype=torch.bool, device=self._device)
        for part, send in zip(flat, turn.sends, strict=True):
            energy = torch.linalg.vector_norm(part, dim=0, dtype=torch.float64) / len(part) ** 0.5
            small &= energy < SMALL * send.typical
        self._small = small

    def _input_scales(self, turn: Round, flat: list[Tensor]) -> Tensor:
        """Return log2 of the scale at which each image's values are encrypted in a turn: int64 (images,).

        flat: the values that the turn encrypts, a tensor (values, images) for each of `turn.sends`.
        Raises InputError for images that no scale fits.
        """
        ends = [(part.amin(0), part.amax(0)) for part in flat]
        peaks = torch.stack([torch.maximum(-low, high) for low, high in ends]).double()
        names = ", ".join(repr(self.public.steps[send.value].name) for send in turn.sends)
        self._check_finite(~peaks.isfinite().all(0), names)
        if turn.scale is not None:
            large = peaks.amax(0) * packing.peak(self.public.packing) * 2.0**turn.scale >= MOST_MESSAGE
            if bool(large.any()):
                what = f"scale out of bounds: values up to {float(peaks.max()):.3g}, more than the plan was made for"
                hint = "convert with samples= that are as large, or without samples"
                raise InputError(f"{what}: {named(large.nonzero()[:, 0], self._first)}", where=names, hint=hint)
            return torch.full((self.images,), turn.scale, device=self._device)
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

    def _messages(self, turn: Round, flat: list[Tensor], start: int, stop: int) -> Tensor:
        """Encode a slice of what the client sends in a turn as plaintext polynomials: int32 (stop - start, N).

        The client sends the turn's ciphertexts in a fixed order; the slice has those from number `start` to stop - 1.
        flat: the values that the turn encrypts, a tensor (values, images) for each of `turn.sends`.
        """
        public, out, first = self.public, [], 0
        degree, scales = public.parameters.degree, torch.ldexp(torch.ones_like(self._scales).float(), self._scales)
        last = torch.full((1, self.images), float(turn.one), device=self._device)  # the constant 1, or a zero
        for part in (*flat, last)[: len(flat) + (turn.one or turn.zero)]:
            rows = part[max(0, start - first) : max(0, stop - first)]
            if len(rows):
                out.append(packing.encode(rows, public.packing, degree, scales))
            first += len(part)
        return torch.cat(out)
