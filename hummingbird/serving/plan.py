"""The description of a service, from a private net and the shape of one image, and its table of private lookups.

A net that cannot be served is refused when the service starts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hummingbird import ring
from hummingbird.cost import ANSWER_HEADER_BYTES, REQUEST_HEADER_BYTES, packed
from hummingbird.errors import ConfigError, InputError, shown
from hummingbird.mpc.layers.layer import Layer
from hummingbird.mpc.plan.decoder import PrivateDecoder
from hummingbird.mpc.plan.net import PrivateNet
from hummingbird.mpc.plan.rounding_plan import settle_rings
from hummingbird.mpc.plan.steps import PlanStep
from hummingbird.mpc.session.session import Session
from hummingbird.pir.serving.server import Server
from hummingbird.pir.table import Source
from hummingbird.ring import SCALE
from hummingbird.serving.description import MOST_GROUP, MOST_PLACES, ServiceDescription, TensorSpec
from hummingbird.serving.message import MAX_BYTES, Request
from hummingbird.structure import TENSOR, odd
from hummingbird.version import VERSION

# A party's table, from which the keys of clients select rows (lookup.py) ---------------------------------------------
#
# One pass over the table serves the keys of all requests of a batch: a pass reads every row, for one key as for
# hundreds. Its result is this party's share of s * row, which never leaves the party.


class ServedTable:
    """The table of a service with lookups, at one of its two parties: gives shares of rows that clients' keys select.

    table: floating point (rows, dim), held in memory with 8 bytes for each number. Raises ConfigError unless the
    session has two parties and no store; InputError for numbers beyond the ring's range.
    """

    def __init__(self, table: Tensor, session: Session) -> None:
        if session.parties != 2:
            hint = "start two parties: a lookup has two keys"
            raise ConfigError(
                f"private lookups need two parties, this session has {session.parties}", where="serve", hint=hint
            )
        if session.dealer.slice_shape is not None:
            hint = "use a dealer: stores are dealt for nets without lookups"
            raise ConfigError("a net of lookups cannot use a store", where="--store", hint=hint)
        units = ring.encode(table.detach().cpu(), where="table")
        self._server, self._rank = Server(Source.of(units), session.rank), session.rank
        self.count, self.dim = units.shape

    @property
    def digest(self) -> str:
        """The fingerprint of this table's rows, hexadecimal; both parties must have the same."""
        return self._server.state.digest.hex()

    def close(self) -> None:
        """Release this table's memory; may be called twice."""
        self._server.close()

    def inputs(self, requests: Sequence[Request], service: ServiceDescription) -> list[Tensor]:
        """Return a list with this party's shares of the net's inputs for each request, int64 (images, values).

        An image's values are the shares of the table's rows that its keys select, and then the client's shares of the
        weights. Some keys select a row times -1; the client has then changed the sign of that row's weight.
        """
        _, sums = self._server.answer(torch.cat([request.keys(service) for request in requests]), "sum")
        words = sums.view(torch.int64)
        words = -words if self._rank else words  # party 1 subtracts
        rows = words.view(-1, service.lookups * self.dim).split([request.images for request in requests])
        return [
            torch.cat([own, request.words(service, self._rank).view(request.images, -1)], 1)
            for own, request in zip(rows, requests, strict=True)
        ]


# The description of a service ----------------------------------------------------------------------------------------


def describe(
    private: PrivateNet | PrivateDecoder,
    shape: Sequence[int] | Sequence[Sequence[int]] | None,
    most: int,
    session: Session,
    name: str,
    rows: ServedTable | None = None,
    group: int = 0,
    model: str = "",
    saved: str = "",
) -> ServiceDescription:
    """Return the description by which clients know a service that answers with the net `private`.

    shape: of one image; for a net with several inputs, one for each; None for a decoder. most: most images of a batch,
    without effect for a decoder. name: the session's name, hexadecimal. rows: the table of a net that begins with
    lookups, whose inputs are rows and weights. group: the number of this group of parties, where several serve the net.
    model, saved: where a service has several models: NAME@VERSION, and the digest of the saved net (`saving`).
    The most images of a request are `most`, or fewer if these or their results would exceed a message of
    `message.MAX_BYTES`.
    Raises InputError for a shape that the net cannot take, ConfigError for a net that cannot be served.
    """
    if session.parties < 2:
        raise ConfigError(
            "one party hides nothing",
            where="serve",
            hint="start two or more: python -m hummingbird run --parties 2 -- ...",
        )
    if not 0 <= group <= MOST_GROUP:
        raise InputError(f"group {group}", where="group", hint=f"a whole number from 0 to {MOST_GROUP}")
    if isinstance(private, PrivateDecoder):
        return _of_decoder(private, shape, session, name, rows, group)
    if public := [step.name for step in private.plan if step.op == "public"]:
        what = f"the net takes public inputs, {', '.join(public)}, which all parties would see"
        hint = "serve a net of floating-point inputs, or one that looks its numbers up privately (docs/lookup.md)"
        raise ConfigError(what, where="serve", hint=hint)
    if shape is None:
        raise InputError("the shape of one image is needed", where="input", hint="such as (3, 32, 32)")
    inputs = _inputs(private, shape)

    def batch(images: int) -> tuple[int, ...]:
        return private.input_shape(*((images, *part.shape) for part in inputs))

    facts = private.facts | ({} if rows is None else {"table": rows.digest}) | ({"saved": saved} if saved else {})
    private.breadth(batch(most), session.parties)  # raises if the net cannot take this shape
    form, outputs = private.results(batch(1))
    for (_, one), (_, several) in zip(outputs, private.results(batch(most))[1], strict=True):
        if one[:1] != (1,) or several[:1] != (most,) or one[1:] != several[1:]:
            what = f"the result of {most} images has shape {several}"
            raise ConfigError(what, where="serve", hint="a result for each image: its first dimension is the batch")
    if (other := odd(form)) is not None:
        what = f"the net returns, beside tensors, a {type(other).__name__}"
        raise ConfigError(what, where="serve", hint="return tensors, numbers, words and None, in tuples, lists, dicts")
    rowwise = private.rowwise(batch(1)) and private.rowwise(batch(most))
    slot = session.dealer.slice_shape
    if slot is not None and not rowwise:
        what = "this net computes images together, but a store's slots have one size"
        raise ConfigError(what, where="--store", hint="use a dealer instead")
    service = ServiceDescription(
        release=VERSION,
        net=_fingerprint(facts),
        group=group,
        session=name,
        inputs=inputs if rows is None else _looked_up(inputs, rows),
        outputs=tuple(TensorSpec(title, one[1:]) for title, one in outputs),
        form=form,
        limit=private.input_range,
        scale=SCALE,
        bits=input_bits(private.plan),
        result_scale=private.plan[-1].scale,
        result_bits=result_bits(private.plan),
        parties=session.parties,
        most=most,
        rowwise=rowwise,
        model=model,
    )
    up, down = _fitting(service)
    if not min(up, down):
        if up:
            what = f"one image has a result of {packed(service.results * service.result_bits)} bytes"
        else:
            what = f"one image takes {packed(service.values * service.bits) + service.key_bytes} bytes"
        what += f", and a message holds {MAX_BYTES}"
        raise InputError(what, where="input", hint="serve a net of smaller images")
    return replace(service, most=min(most, up, down))


def _fitting(service: ServiceDescription) -> tuple[int, int]:
    """Return how many images fit into a request's message, and how many images' results into an answer's."""
    up = (MAX_BYTES - REQUEST_HEADER_BYTES) * 8 // (service.values * service.bits + 8 * service.key_bytes)
    return up, (MAX_BYTES - ANSWER_HEADER_BYTES) * 8 // (service.results * service.result_bits)


def _fingerprint(facts: dict[str, str]) -> str:
    """Return the fingerprint of a net's facts, hexadecimal, but for the aim.

    Clients need not agree on the aim: groups with a dealer and with a store serve the same net.
    """
    shown = {name: fact for name, fact in facts.items() if name != "aim"}
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()


def _of_decoder(
    private: PrivateDecoder, shape: object, session: Session, name: str, rows: ServedTable | None, group: int
) -> ServiceDescription:
    """Return the description of a service that generates text; the arguments are those of `describe`."""
    if shape is not None or rows is not None:
        hint = "serve(private, None, listen): a decoder knows its shapes, and clients look words up themselves"
        raise InputError("a shape or a table beside a decoder", where="serve", hint=hint)
    if private.places > MOST_PLACES:
        what = f"conversations of {private.places} places"
        raise ConfigError(what, where="serve", hint=f"at most {MOST_PLACES}: convert the net for fewer")
    plans: list[Sequence[PlanStep]] = [net.plan for net in private.nets]  # type: ignore[misc]
    scales = {plan[-1].scale for plan in plans}
    if len(scales) > 1:
        what = f"the logits have {' or '.join(map(str, sorted(scales)))} bits of fraction, by the length of the text"
        raise ConfigError(what, where="serve", hint="give the last layer one window for all lengths")
    service = ServiceDescription(
        release=VERSION,
        net=_fingerprint(private.facts),
        group=group,
        session=name,
        inputs=(TensorSpec("words", (private.width,)),),
        outputs=(TensorSpec("logits", (private.words,)),),
        form=TENSOR,
        limit=private.input_range,
        scale=SCALE,
        bits=max(map(input_bits, plans)),
        result_scale=scales.pop(),
        result_bits=max(map(result_bits, plans)),
        parties=session.parties,
        most=private.prompt,
        rowwise=False,
        places=private.places,
    )
    up, down = _fitting(service)
    if not down or up < private.prompt:
        what = f"a prompt of {private.prompt} words, or the logits of {private.words}, exceed a message of {MAX_BYTES}"
        raise ConfigError(f"{what} bytes", where="serve", hint="convert the net for a shorter prompt")
    return service


def _inputs(private: PrivateNet, shape: Sequence[int] | Sequence[Sequence[int]]) -> tuple[TensorSpec, ...]:
    """Return the name and the shape for one image of each of the net's inputs, as `TensorSpec`s.

    private: the net. shape: of one image; for a net with several inputs, one for each. Raises InputError for shapes
    that the net does not take.
    """
    shapes = shapes_of(shape)
    found = private.inputs
    if len(shapes) != len(found):
        names = ", ".join(repr(name) for name, _ in found)
        what = f"got {len(shapes)} shape(s) for a net with {len(found)} input(s): {names}"
        raise InputError(what, where="input", hint="one shape for each, in this order")
    for (title, own), given in zip(found, shapes, strict=True):
        if own not in (None, given):
            what = f"{title!r} has shape {given}, but the net was converted for {own}"
            raise InputError(what, where="input", hint="inputs have the shapes of the example")
    return tuple(TensorSpec(title, given) for (title, _), given in zip(found, shapes, strict=True))


def _looked_up(inputs: tuple[TensorSpec, ...], rows: ServedTable) -> tuple[TensorSpec, ...]:
    """Return the two inputs that clients send to a service with lookups: row numbers, and the weights of these rows.

    inputs: those of the net itself: rows and weights. rows: the table. Raises InputError if their shapes do not fit.
    """
    shapes = [part.shape for part in inputs]
    if len(shapes) != 2 or len(shapes[1]) != 1 or shapes[0] != (*shapes[1], rows.dim):
        what = f"inputs of shapes {shapes} do not fit a table of {rows.count:,} rows of {rows.dim}"
        raise InputError(what, where="table", hint="serve `LookedUp.after`: rows (n, positions, dim), then weights")
    return TensorSpec("indices", shapes[1], rows.count), inputs[1]


def shapes_of(shape: Sequence[int] | Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Return a list of shapes, one for each input of a net.

    shape: one shape, or a sequence of shapes. Raises InputError for anything else.
    """
    sizes: list[Any] = list(shape) if isinstance(shape, Sequence) else [shape]
    if odd := [part for part in sizes if not isinstance(part, (int, Sequence))]:
        raise InputError(f"a shape of {shown(odd[0])}", where="input", hint="whole numbers: (3, 32, 32) for one image")
    return [tuple(each) for each in sizes] if sizes and not isinstance(sizes[0], int) else [tuple(sizes)]


def input_bits(plan: Sequence[PlanStep]) -> int:
    """Return how many low bits of its private input a net reads. plan: the steps of the net's plan."""
    place = next(place for place, step in enumerate(plan) if step.op == "input")
    return max(1, settle_rings(plan)[place])


def result_bits(plan: Sequence[PlanStep]) -> int:
    """Return how many low bits of the result's shares a client needs, to know the result with its sign.

    plan: the steps of the net's plan. The number follows from the range of the last layer. If the last layer compares,
    its range bounds its inputs and not its result, and the number is 64.
    """
    scale = plan[-1].scale
    last = next((step.layer for step in reversed(plan) if step.layer is not None), None)
    if not isinstance(last, Layer) or last.comparison is not None:
        return 64
    return min(64, scale + last.range + 2)  # a sign, and one for a result that is rounded up to 2^range
