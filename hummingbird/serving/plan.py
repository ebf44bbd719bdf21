"""The facts of a service, from a private net and the shape of one image: what is refused, is refused at the start."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from hummingbird.cost import REQUEST_HEADER_BYTES, packed
from hummingbird.errors import ConfigError, InputError
from hummingbird.mpc.layer import Layer
from hummingbird.mpc.net import PlanStep, PrivateNet
from hummingbird.mpc.rounding_plan import settle_rings
from hummingbird.mpc.session import Session
from hummingbird.ring import SCALE
from hummingbird.serving.description import Description
from hummingbird.version import VERSION
from hummingbird.wire.service import MAX_MESSAGE

_ROOM = 1 << 10  # bytes of a message for gRPC's own fields


def describe(private: PrivateNet, shape: Sequence[int], most: int, session: Session, name: str) -> Description:
    """The service of a net for images of this shape, at most `most` in a request; name: of this run, hexadecimal.

    Raises InputError for a shape that the net cannot take, ConfigError for what cannot be served.
    """
    shape = tuple(shape)
    if session.parties < 2:
        raise ConfigError("one party hides nothing", where="serve", hint="start two or more with torchrun")
    if public := [step.name for step in private.plan if step.op == "public"]:
        what = f"the net takes public inputs, {', '.join(public)}, which all parties must bring"
        raise ConfigError(what, where="serve", hint="serve a net of private inputs")
    private.costs((most, *shape), session.parties)
    results = {images: private.result_shape((images, *shape)) for images in (1, most)}
    if any(result[:1] != (images,) or result[1:] != results[1][1:] for images, result in results.items()):
        what = f"the result of {most} images has shape {results[most]}"
        raise ConfigError(what, where="serve", hint="a result for each image: its first dimension is the batch")
    rowwise = private.rowwise((1, *shape)) and private.rowwise((most, *shape))
    slot = session.dealer.slice_shape
    if slot is not None and not rowwise:
        what = "this net computes images together, and a store's slots are of one size"
        raise ConfigError(what, where="--store", hint="give a dealer")
    place = next(place for place, step in enumerate(private.plan) if step.op == "input")
    service = Description(
        release=VERSION,
        net=hashlib.sha256(json.dumps(private.facts, sort_keys=True).encode()).hexdigest(),
        session=name,
        shape=shape,
        result=results[1][1:],
        limit=private.input_range,
        scale=SCALE,
        bits=max(1, settle_rings(private.plan)[place]),
        result_scale=private.plan[-1].scale,
        result_bits=result_bits(private.plan),
        parties=session.parties,
        most=most,
        rowwise=rowwise,
    )
    largest = REQUEST_HEADER_BYTES + packed(most * service.values * service.bits)
    if largest + _ROOM > MAX_MESSAGE:
        fitting = (MAX_MESSAGE - _ROOM - REQUEST_HEADER_BYTES) * 8 // (service.values * service.bits)
        what = f"{most} images take {largest} bytes, a message holds {MAX_MESSAGE - _ROOM}"
        hint = f"--max-batch {fitting} at most" if fitting else "smaller images"
        raise InputError(what, where="--max-batch", hint=hint)
    return service


def result_bits(plan: Sequence[PlanStep]) -> int:
    """How many low bits of the result's shares tell it, sign included, for every value that the net is right for.

    A last layer that compares is right for values of what it compares: of its result all bits are sent.
    """
    scale = plan[-1].scale
    last = next((step.layer for step in reversed(plan) if step.layer is not None), None)
    if not isinstance(last, Layer) or last.comparison is not None:
        return 64
    return min(64, scale + last.range + 2)  # a sign, and one for a result that is rounded up to 2^range
