"""What a client has to know of a plan: parameters, its own steps, and what crosses in every turn. JSON, no weights.

Inference goes in turns. In turn t the client runs its steps (plain torch on plain values), encrypts the tensors of
`Turn.sends`, one after the other, and where `Turn.one` a last ciphertext of the constant 1: one stream of
`Turn.sent` ciphertexts. The server answers with one stream of `Turn.returned` ciphertexts, those of `Turn.returns` one
after the other, and forgets the turn. A stream is cut into slices of at most `SLICE` ciphertexts.

Public, and so known to the client: shapes and operations, numbers written in the net's code (a LeakyReLU's slope, the
bounds of a clamp), and for every linear layer one power of two, the largest row sum of |weights| and the predicted
errors (of the rows' root mean square, and of rounding weights), rounded up by at most a 16th. Not public: parameters
and buffers. What the client learns from the values it decrypts is another matter: client-aided activations show it
every pre-activation, and enough of them determine a layer.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.graph import OPS, Interpreter, Ref, Step
from hummingbird.graph.interpreter import arguments
from hummingbird.graph.steps import refs
from hummingbird.he.runtime.rounds import MOST_SCALE, Return, Send, Turn
from hummingbird.he.scheme import packing as packings
from hummingbird.he.scheme.params import PRIME_BITS, Parameters

VERSION = 2
MODES = ("client-aided", "polynomial")
# What a description may ask of a client, as it may come from anybody. The largest net in the benchmarks, MobileNetV2 at
# 224 x 224, has some 200 steps in 200 kB of text, tensors of 2^20 values and 2^23 ciphertexts in all.
_MOST_TEXT = 4 << 20  # bytes
_MOST_DEPTH = 32  # of nested lists and objects
_MOST_STEPS = 1 << 12
_MOST_NAME = 512  # characters
_MOST_DIMS = 16
_MOST = 1 << 24  # values of one tensor, for one image: a ciphertext each
_MOST_CROSSING = 1 << 26  # ciphertexts of all turns
_MOST_PARTS = 1 << 12  # tensors that a chunk or split makes
_MOST_WORK = 1 << 32  # values that a pool reads for one image
_MOST_SIZE, _MOST_UNIT = 65, 4096
_MOST_GAIN = 1 << 1000  # float64 has room for it
# Weights are the server's, and arithmetic on sizes is done when a net is converted.
_SERVERS = frozenset(("conv", "conv_transpose", "linear", "affine", "batch_norm", "prelu", "custom", "size", "int"))
_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, RecursionError, OverflowError, ZeroDivisionError)
REMOTE = "server"  # the op of a step whose value the server computes


@dataclass(frozen=True)
class Public:
    """All of it. steps: the net's canonical steps, those of the server replaced by `REMOTE` without inputs or weights.

    last: steps the client runs after the last turn, the output among them. input_range: the bound on |input| that the
    plan was made for; None: the client sees to the range of every batch.
    """

    mode: str
    packing: str
    parameters: Parameters
    input_shape: tuple[int, ...]
    input_range: float | None
    steps: tuple[Step, ...]
    turns: tuple[Turn, ...]
    last: tuple[int, ...]

    @property
    def slots(self) -> int:
        """Images in a batch."""
        return self.parameters.degree // (2 if self.packing == "real" else 1)

    @property
    def form(self) -> str:
        """Of the ciphertexts: "ntt" where the server multiplies them with each other, else "mixed"."""
        return "ntt" if self.packing == "real" else "mixed"

    def up_bytes(self, count: int) -> int:
        """Of `count` ciphertexts up: one component, 26 bits for each coefficient, without seeds."""
        return count * len(self.parameters.primes) * self.parameters.degree * PRIME_BITS // 8

    def down_bytes(self, back: Return, count: int) -> int:
        """Of `count` ciphertexts of one tensor down."""
        return count * back.size * back.primes * self.parameters.degree * PRIME_BITS // 8

    def to_json(self) -> str:
        """Plain numbers, names and shapes; the same on every machine."""
        return json.dumps(
            {
                "version": VERSION,
                "mode": self.mode,
                "packing": self.packing,
                "degree": self.parameters.degree,
                "primes": self.parameters.primes,
                "input_shape": self.input_shape,
                "input_range": self.input_range,
                "steps": [[step.name, step.op, _plain(step.inputs), _plain(step.attrs)] for step in self.steps],
                "turns": [_turn_fields(turn) for turn in self.turns],
                "last": self.last,
            }
        )

    @staticmethod
    def from_json(text: str | bytes) -> Public:
        """From `to_json`; it may come from anybody. InputError for anything malformed or that does not fit together,
        ConfigError for parameters that are not secure.
        """
        try:
            _check_text(text)
            fields = json.loads(text)
            if fields["version"] != VERSION:
                what = f"a plan of version {str(fields['version'])[:32]}, this is {VERSION}"
                raise InputError(what, where="public", hint="use the same release of hummingbird on both sides")
            _check_lists(fields)
            steps = tuple(_step(number, *entry) for number, entry in enumerate(fields["steps"]))
            bound = fields["input_range"]
            public = Public(
                _word(fields["mode"], MODES),
                _word(fields["packing"], packings.PACKINGS),
                Parameters(_whole(fields["degree"]), _wholes(fields["primes"])),
                _wholes(fields["input_shape"]),
                None if bound is None else float(bound),
                steps,
                tuple(_turn(**turn) for turn in fields["turns"]),
                _wholes(fields["last"]),
            )
            public.check()
        except _MALFORMED as error:
            what = f"malformed description of a net: {type(error).__name__}: {str(error)[:200]}"
            raise InputError(what, where="public", hint="ask the server's owner for the release it runs") from None
        return public

    def check(self) -> None:
        """ValueError unless everything fits together: a client that goes by it meets values of these shapes only.

        The client's steps run once on tensors without memory (torch's meta device).
        """
        values: dict[int, Any] = {}
        if [index for index, step in enumerate(self.steps) if step.op == "input"] != [0]:
            raise ValueError("not one input, the first step")
        if not 0 < math.prod(self.input_shape) <= _MOST:
            raise ValueError(f"input_shape {self.input_shape}")
        if sum(turn.sent + turn.returned for turn in self.turns) > _MOST_CROSSING:
            raise ValueError(f"more than {_MOST_CROSSING} ciphertexts")
        if self.input_range is not None and not 0 < self.input_range < math.inf:
            raise ValueError(f"input_range {self.input_range}")
        for number in range(len(self.turns) + 1):
            turn = self.turns[number] if number < len(self.turns) else None
            for index in self.last if turn is None else turn.steps:
                if index in values:
                    raise ValueError(f"step {index} runs twice")
                values[index] = self.meta(self.steps[index], arguments(self.steps[index], values))
            if turn is None:
                break
            if not turn.sends or not turn.returns or (turn.scale is None) != (self.mode == "client-aided"):
                raise ValueError(f"turn {number}")
            for send in turn.sends:
                _agree(send.shape, values[send.value], self.steps[send.value].name)
            for back in turn.returns:
                self._check_return(back, turn)
                if back.value in values:
                    raise ValueError(f"step {back.value} is returned twice")
                values[back.value] = torch.empty(1, *back.shape, device="meta")
        if not self.last or self.steps[self.last[-1]].op != "output" or not isinstance(values[self.last[-1]], Tensor):
            raise ValueError("no output")

    def _check_return(self, back: Return, turn: Turn) -> None:
        if not (
            self.steps[back.value].op == REMOTE
            and 0 < math.prod(back.shape) == back.count <= _MOST
            and 1 <= back.tile <= back.places
            and 1 <= back.primes <= len(self.parameters.primes)
            and 2 <= back.size <= (2 if self.form == "mixed" else _MOST_SIZE)
            and back.unit != 0
            and abs(math.log2(abs(back.unit))) < _MOST_UNIT
            and all(0 <= error < math.inf for error in (back.noise, back.relative))
            and len(back.gains) == (len(turn.sends) if turn.scale is None else 0)
            and all(0 <= gain < _MOST_GAIN for gain in (*back.gains, back.one_gain))
            and (not back.last or back.shape[-1] == back.rows)
        ):
            raise ValueError(f"the return of {self.steps[back.value].name!r}")

    def meta(self, step: Step, given: tuple[Any, ...]) -> Any:
        """The value of a client's step for one image, on the meta device; ValueError where it is none of a net.

        given: its arguments; the input has none.
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
    """The client's steps, in the order of its turns.

    What turn t sends is read by a step of its own, number len(public.steps) + t, after those of the turn: values live
    until they are encrypted. It is not run; `drop` says that it is over.
    """
    first = len(public.steps)
    sends = [Step(f"turn {t}", "send", tuple(Ref(x.value) for x in turn.sends)) for t, turn in enumerate(public.turns)]
    order = [number for t, turn in enumerate(public.turns) for number in (*turn.steps, first + t)]
    return Interpreter((*public.steps, *sends), (*order, *public.last))


def _check_text(text: str | bytes) -> None:
    """ValueError for a text that is too long, or nested too deeply."""
    if len(text) > _MOST_TEXT:
        raise ValueError(f"{len(text)} bytes")
    depth = 0
    plain = re.sub(r'"(?:[^"\\]|\\.)*"', "", text if isinstance(text, str) else text.decode())
    for bracket in re.findall(r"[\[\]{}]", plain):
        depth += 1 if bracket in "[{" else -1
        if depth > _MOST_DEPTH:
            raise ValueError(f"nested more than {_MOST_DEPTH} deep")


def _check_lists(fields: Any) -> None:
    """ValueError for lists that are too long, before anything is made of them."""
    lengths = [len(fields["steps"]), len(fields["turns"]), len(fields["last"])]
    for turn in fields["turns"]:
        lengths += [len(turn["steps"]), len(turn["sends"]), len(turn["returns"])]
        lengths += [len(back["gains"]) for back in turn["returns"]]
    if max(lengths) > _MOST_STEPS:
        raise ValueError(f"a list of {max(lengths)} steps or values, {_MOST_STEPS} are the most")
    shapes = [fields["input_shape"], *(x["shape"] for t in fields["turns"] for x in (*t["sends"], *t["returns"]))]
    if max(len(shape) for shape in shapes) > _MOST_DIMS or len(fields["primes"]) > _MOST_SIZE:
        raise ValueError(f"more than {_MOST_DIMS} dimensions or {_MOST_SIZE} primes")


def _check_work(step: Step, given: Sequence[Any]) -> None:
    """ValueError for a step that makes too many tensors, before it runs."""
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


# ---- JSON: tuples, references, slices, "..." and infinities have objects of their own; a tensor has none


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return {"tuple": [_plain(item) for item in value]}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Ref):
        return {"ref": value.index}
    if isinstance(value, slice):
        return {"slice": [value.start, value.stop, value.step]}
    if value is Ellipsis:
        return {"ellipsis": True}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{type(value).__name__} is not for clients")


def _value(data: Any) -> Any:
    if not isinstance(data, dict):
        if data is None or isinstance(data, (bool, int, float, str)):
            return data
        raise ValueError("a list")
    ((kind, content),) = data.items()
    if kind == "tuple":
        return tuple(_value(item) for item in content)
    if kind == "ref":
        return Ref(_whole(content))
    if kind == "slice":
        return slice(*(None if part is None else int(part) for part in content))
    if kind == "float":
        return float(content)
    if kind == "ellipsis":
        return Ellipsis
    raise ValueError(f"an object of kind {kind[:32]!r}")


def _step(number: int, name: Any, op: Any, inputs: Any, attrs: Any) -> Step:
    if op not in OPS and op != REMOTE or op in _SERVERS:
        raise ValueError(f"step {number} is {str(op)[:32]!r}")
    if not isinstance(name, str) or len(name) > _MOST_NAME or not name.isprintable():
        raise ValueError(f"the name of step {number}")
    step = Step(name, op, _value(inputs), {str(key): _value(item) for key, item in attrs.items()})
    if not isinstance(step.inputs, tuple):
        raise ValueError(f"the inputs of step {number}")
    if any(not 0 <= ref.index < number for ref in refs(step.inputs)):
        raise ValueError(f"step {number} reads a later one")
    return step


def _turn_fields(turn: Turn) -> dict[str, Any]:
    backs = [vars(back) | {"unit": [str(back.unit.numerator), str(back.unit.denominator)]} for back in turn.returns]
    return {"steps": turn.steps, "sends": [vars(send) for send in turn.sends], "returns": backs} | {
        "one": turn.one,
        "scale": turn.scale,
        "usual": turn.usual,
    }


def _turn(steps: Any, sends: Any, returns: Any, one: Any, scale: Any, usual: Any) -> Turn:
    if not isinstance(one, bool) or not (scale is None or 0 <= _whole(scale) <= MOST_SCALE):
        raise ValueError("one or scale")
    if one and scale is not None or _whole(usual) > MOST_SCALE:
        raise ValueError("one or usual")
    return Turn(
        _wholes(steps),
        tuple(Send(_whole(send["value"]), _wholes(send["shape"])) for send in sends),
        tuple(_return(**back) for back in returns),
        one,
        scale,
        usual,
    )


def _return(
    value: Any, shape: Any, rows: Any, places: Any, tile: Any, last: Any, size: Any, primes: Any, unit: Any, gains: Any,
    one_gain: Any, noise: Any, relative: Any,
) -> Return:  # fmt: skip
    if not isinstance(last, bool) or len(unit) != 2 or max(len(part) for part in unit) > _MOST_UNIT:
        raise ValueError("last or unit")
    numbers = [_whole(number) for number in (value, rows, places, tile, size, primes, one_gain)]
    value, rows, places, tile, size, primes, one_gain = numbers
    fraction = Fraction(int(unit[0]), int(unit[1]))
    errors = float(noise), float(relative)
    return Return(
        value, _wholes(shape), rows, places, tile, last, size, primes, fraction, _wholes(gains), one_gain, *errors
    )


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{str(value)[:32]!r} is no whole number")
    return value


def _wholes(values: Any) -> tuple[int, ...]:
    return tuple(_whole(value) for value in values)


def _word(value: Any, known: Sequence[str]) -> str:
    if value not in known:
        raise ValueError(f"{str(value)[:32]!r}")
    return str(value)
