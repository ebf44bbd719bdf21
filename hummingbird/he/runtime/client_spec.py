"""The part of a plan that a client knows: parameters, its own steps, and the messages of every turn. JSON, no weights.

Inference proceeds in turns. In a turn the client runs its steps (plain torch on plain values) and encrypts the tensors
of `Round.sends`, one after another, with a last ciphertext of the constant 1 if `Round.one`: one stream of `Round.sent`
ciphertexts. The server answers with one stream of `Round.returned` ciphertexts, the tensors of `Round.returns` one
after another, and keeps nothing of the turn. A stream is cut into slices of at most `SLICE` ciphertexts.

Public, and so known to the client: shapes and operations; numbers in the net's code (a LeakyReLU's slope, the bounds of
a clamp); and for every linear layer one power of two, the largest row sum of |weights|, and the predicted errors (of
the rows' root mean square, and of rounding weights), each rounded up by at most a 16th. Not public: parameters and
buffers. The values that a client decrypts reveal more: with client-aided activations it sees every pre-activation, and
enough of them determine a layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hummingbird import records
from hummingbird.errors import InputError
from hummingbird.graph import OPS, Interpreter, Ref, Step
from hummingbird.graph.interpreter import arguments
from hummingbird.graph.steps import refs
from hummingbird.he.runtime import spec_json
from hummingbird.he.runtime.rounds import Return, Round
from hummingbird.he.runtime.spec_json import REMOTE, ClientText
from hummingbird.he.scheme.params import PRIME_BITS, Parameters
from hummingbird.prg import SEED_BYTES
from hummingbird.structure import TENSOR, Structure, read, rebuild, tensors

MODES = spec_json.MODES
# Limits on a description, which may come from anybody. The largest net in the benchmarks, MobileNetV2 at 224 x 224, has
# tensors of 2^20 values and 2^23 ciphertexts in all.
_MOST = 1 << 24  # values of one tensor, for one image: a ciphertext each
_MOST_CROSSING = 1 << 26  # ciphertexts of all turns
_MOST_PARTS = 1 << 12  # tensors that a chunk or split makes
_MOST_WORK = 1 << 32  # values that a pool reads for one image
_MOST_UNIT = 4096  # bound on |log2| of a unit


@dataclass(frozen=True)
class Public:
    """The public part of a plan, which the client knows: parameters, its own steps, and the messages of each turn.

    steps: the net's steps; one that the server computes is `REMOTE`, without inputs or weights.
    last: numbers of the steps that the client runs after the last turn, including the output.
    input_range: bound on |input| that the plan assumes; None if the client fits a scale to the range of each image.

    >>> public = he.make_plan(net, (4,)).public
    >>> text = public.to_json()  # what a server sends its clients
    >>> he.Public.from_json(text).batch_bytes() == public.batch_bytes()
    True
    """

    mode: str
    packing: str
    parameters: Parameters
    input_shape: tuple[int, ...]
    input_range: float | None
    steps: tuple[Step, ...]
    turns: tuple[Round, ...]
    last: tuple[int, ...]

    @property
    def slots(self) -> int:
        """Number of images in a full batch."""
        return self.parameters.degree // (2 if self.packing == "real" else 1)

    @property
    def form(self) -> str:
        """The form in which the components (polynomials) of ciphertexts are sent: "ntt" or "mixed".

        "ntt": all are NTT values; this is so if the server multiplies ciphertexts with each other. "mixed": component 0
        is sent as coefficients, the others as NTT values.
        """
        return "ntt" if self.packing == "real" else "mixed"

    @property
    def structure(self) -> Structure:
        """The structure of the net's results, such as a tensor or a tuple of tensors (hummingbird/structure.py)."""
        found: Structure = self.steps[self.last[-1]].attrs.get("structure", TENSOR)
        return found

    def joined(self, batches: Sequence[Sequence[Tensor]]) -> Any:
        """Join the results of several batches to the net's results for all images, in the structure that the net
        returns.

        batches: for each batch the list of tensors from `ClientBatch.parts`.
        """
        return rebuild(self.structure, iter([torch.cat(parts) for parts in zip(*batches, strict=True)]))

    def up_bytes(self, count: int) -> int:
        """Count the bytes of `count` ciphertexts from the client, without the seeds.

        Of each ciphertext one polynomial is sent, with 26 bits for each coefficient and prime; the other one follows
        from a seed.
        """
        return count * len(self.parameters.primes) * self.parameters.degree * PRIME_BITS // 8

    def down_bytes(self, back: Return, count: int) -> int:
        """Count the bytes of `count` ciphertexts that the server sends for the returned value `back`."""
        return count * back.size * back.primes * self.parameters.degree * PRIME_BITS // 8

    def turn_bytes(self, turn: Round) -> tuple[int, int]:
        """Count the bytes of a turn: return two numbers, sent to the server, seeds included, and sent back.

        A full batch takes as many bytes as one image.
        """
        up = self.up_bytes(turn.sent) + SEED_BYTES * len(list(turn.up()))
        return up, sum(self.down_bytes(back, back.count) for back in turn.returns)

    def batch_bytes(self) -> tuple[int, int]:
        """Count the bytes of all turns of a batch: return two numbers, sent to the server and sent back."""
        turns = [self.turn_bytes(turn) for turn in self.turns]
        return sum(up for up, _ in turns), sum(down for _, down in turns)

    def to_json(self) -> str:
        """Return the public part as JSON text, with numbers, names and shapes; it is the same on every machine."""
        text = ClientText(
            mode=self.mode,
            packing=self.packing,
            degree=self.parameters.degree,
            primes=self.parameters.primes,
            input_shape=self.input_shape,
            input_range=self.input_range,
            steps=tuple(tuple(spec_json.step_fields(step)) for step in self.steps),
            turns=self.turns,
            last=self.last,
        )
        return records.write(text)

    @staticmethod
    def from_json(text: str | bytes) -> Public:
        """Return the public part that `to_json` has written as `text`, once checked; the text may come from anybody.

        Raises InputError if it is malformed or its parts do not fit together, ConfigError for insecure parameters.
        """
        found = spec_json.load(text)
        try:
            steps = tuple(spec_json.read_step(number, *entry) for number, entry in enumerate(found.steps))
            parameters, shape, bound = Parameters(found.degree, found.primes), found.input_shape, found.input_range
            public = Public(found.mode, found.packing, parameters, shape, bound, steps, found.turns, found.last)
            public.check()
        except spec_json.MALFORMED as error:
            what = f"malformed description of a net: {type(error).__name__}: {str(error)[:200]}"
            raise InputError(what, where="public", hint="ask the server's owner for the release it runs") from None
        return public

    def check(self) -> None:
        """Raise ValueError unless the client's steps can run and have exactly the shapes that this object states.

        Runs the client's steps once on tensors without memory (torch's meta device).
        """
        values: dict[int, Any] = {}
        if [index for index, step in enumerate(self.steps) if step.op == "input"] != [0]:
            raise ValueError("not one input, the first step")
        if not 0 < math.prod(self.input_shape) <= _MOST:
            raise ValueError(f"input_shape {self.input_shape}")
        if sum(turn.sent + turn.returned for turn in self.turns) > _MOST_CROSSING:
            raise ValueError(f"more than {_MOST_CROSSING} ciphertexts")
        for number in range(len(self.turns) + 1):
            turn = self.turns[number] if number < len(self.turns) else None
            for index in self.last if turn is None else turn.steps:
                if index in values:
                    raise ValueError(f"step {index} runs twice")
                values[index] = self.meta(self.steps[index], arguments(self.steps[index], values))
            if turn is None:
                break
            aided = self.mode == "client-aided"
            if not turn.sends or not turn.returns or (turn.scale is None) != aided or (turn.one and not aided):
                raise ValueError(f"turn {number}")
            for send in turn.sends:
                _agree(send.shape, values[send.value], self.steps[send.value].name)
            for back in turn.returns:
                self._check_return(back, turn)
                if back.value in values:
                    raise ValueError(f"step {back.value} is returned twice")
                values[back.value] = torch.empty(1, *back.shape, device="meta")
        if not self.last or self.steps[self.last[-1]].op != "output":
            raise ValueError("no output")
        made, form = values[self.last[-1]], read(self.structure)
        if isinstance(made, Tensor) if form != TENSOR else not isinstance(made, Tensor):
            raise ValueError("no output")
        if form != TENSOR and not 0 < len(made) == tensors(form) == len([*refs(self.steps[self.last[-1]].inputs)]):
            raise ValueError("results that do not fit their structure")

    def _check_return(self, back: Return, turn: Round) -> None:
        if not (
            self.steps[back.value].op == REMOTE
            and 0 < math.prod(back.shape) == back.count <= _MOST
            and back.tile <= back.places
            and back.primes <= len(self.parameters.primes)
            and (back.size == 2 or self.form != "mixed")
            and back.unit != 0
            and abs(math.log2(abs(back.unit))) < _MOST_UNIT
            and len(back.gains) == (len(turn.sends) if turn.scale is None else 0)
            and (not back.last or back.shape[-1] == back.rows)
        ):
            raise ValueError(f"the return of {self.steps[back.value].name!r}")

    def meta(self, step: Step, given: tuple[Any, ...]) -> Any:
        """Run a client's step for one image on torch's meta device; return its value, which has a shape but no numbers.

        given: the step's arguments; empty for the input. Raises ValueError for a step that no net has.
        """
        if step.op == "input":
            return torch.empty(1, *self.input_shape, device="meta")
        try:
            _check_work(step, given)
            out = OPS[step.op](step.attrs, *given)
        except (RuntimeError, IndexError, NotImplementedError, MemoryError) as error:
            raise ValueError(f"{step.name!r} does not run: {str(error)[:200]}") from None
        for part in out if isinstance(out, tuple) else (out,):
            if not isinstance(part, Tensor) or not 0 < part.numel() <= _MOST or part.shape[:1] != (1,):
                raise ValueError(f"{step.name!r} gives no values for each image")
        if "kernel" in step.attrs and out.numel() * math.prod(step.attrs["kernel"]) > _MOST_WORK:
            raise ValueError(f"{step.name!r} reads too many values")
        return out


def client_steps(public: Public) -> Interpreter[Step]:
    """Make an interpreter that runs the client's steps turn by turn, and keeps each value as long as it is needed.

    A value may be needed until it is encrypted. So the interpreter has one more step for each turn t, named "send",
    which reads the values that the turn sends. Its number is len(public.steps) + t. It is never run: once the values
    are encrypted, the caller calls the interpreter's `drop` with this number.
    """
    first = len(public.steps)
    sends = [Step(f"turn {t}", "send", tuple(Ref(x.value) for x in turn.sends)) for t, turn in enumerate(public.turns)]
    order = [number for t, turn in enumerate(public.turns) for number in (*turn.steps, first + t)]
    return Interpreter((*public.steps, *sends), (*order, *public.last))


def _check_work(step: Step, given: Sequence[Any]) -> None:
    """Raise ValueError if running a step would make too many tensors; the check comes before the step runs.

    given: the step's arguments.
    """
    if step.op == "chunk":
        parts = step.attrs["chunks"]
    elif step.op == "split" and isinstance(step.attrs["sizes"], int):
        parts = given[0].shape[step.attrs["dim"]] / step.attrs["sizes"]
    else:
        return
    if parts > _MOST_PARTS:
        raise ValueError(f"{step.name!r} makes {parts} tensors")


def _agree(shape: tuple[int, ...], value: Any, name: str) -> None:
    if not isinstance(value, Tensor) or tuple(value.shape[1:]) != shape or not 0 < math.prod(shape) <= _MOST:
        raise ValueError(f"{name!r} has another shape than {shape}")
