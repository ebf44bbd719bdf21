"""The service of a net on ciphertexts (`he`): a batch takes some rounds between client and server, and no tokens.

Bytes are those of the plan's slices (`Public.turn_bytes`), and each round takes one round-trip time; seconds come from
a profile. Within a round the client encrypts a slice while earlier ones are sent and received, then the server
evaluates a slice while earlier ones are sent and decrypted: each half takes as long as the longest of its three steps.

"client" stands for all clients: it has cores for every request under way, and its link has no limit; the server's link
has one. Up to `slots` images of one client share a batch, which costs the same for one image as for all.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Iterator

import torch

from hummingbird.capacity.profile import Measurement, Profile, Seconds
from hummingbird.capacity.service import Host, Phase, Rounds, Send, Service, WorkStep, check_count
from hummingbird.errors import ConfigError
from hummingbird.he.compile.convert import RANGE
from hummingbird.he.compile.magnitudes import pattern
from hummingbird.he.runtime import messages
from hummingbird.he.runtime.client import Client
from hummingbird.he.runtime.client_spec import Public
from hummingbird.he.runtime.model import HEModel
from hummingbird.he.runtime.operations import Linear
from hummingbird.he.runtime.program import Plan
from hummingbird.he.runtime.server import Server
from hummingbird.he.runtime.spec_json import step_fields
from hummingbird.he.service.server import TURNS
from hummingbird.kernels import devices
from hummingbird.report import BANDWIDTH, RTT

# A round of encrypted inference as work: its amounts, and its seconds at client and server ---------------------------
#
# A net's batch takes some rounds (he/runtime/rounds.py). A row of a profile is one round, in four parts: the client
# encrypts; the server receives, then evaluates; the client decrypts, and computes its own steps in the clear. Each part
# includes packing or unpacking of its messages; no link is involved.

PARTS = ("encrypt", "receive", "evaluate", "decrypt")


def kind_of(public: Public) -> str:
    """Return the name under which a profile has the measured seconds of such nets: "he" and the net's mode.

    It is the `kind` of the profile's rows, such as "he client-aided". public: the net's public facts.
    """
    return f"he {public.mode}"


def check_images(public: Public, images: int) -> None:
    """Raise ConfigError if one batch has no room for `images` images. public: the net's public facts."""
    check_count(images, "images", 1, "images")
    if images > public.slots:
        hint = f"at most {public.slots} images of one client share a batch"
        raise ConfigError(f"a request of {images} images", where="images", hint=hint)


def amounts(plan: Plan, number: int, images: int) -> dict[str, float]:
    """Count each kind of work in one round, for a batch of `images` images; return the counts by name.

    plan: of the net. number: of the round, from 0. A residue is a ciphertext's coefficient modulo one prime. The names:
    "sent": residues that the client sends. "products": products of a residue and a weight. "made": residues that
    operations other than linear layers compute. "answered": residues that the server masks and divides by primes before
    it answers. "returned": residues that the server sends. "plain": values that the client packs and unpacks. "turns":
    1, for what a round costs by itself.
    """
    public, program = plan.public, plan.programs[number]
    turn, forms, degree = public.turns[number], program.forms(), public.parameters.degree
    products = made = 0
    for register, operation in enumerate(program.operations, 1):
        form = forms[register]
        if isinstance(operation, Linear):
            weights = sum(part.numel() for part in operation.parts)
            products += weights * operation.places * form.size * form.primes * degree
        else:
            made += form.count * form.size * form.primes * degree
    returned = sum(back.count * back.size * back.primes for back in turn.returns)
    answered = sum(
        forms[register].count * forms[register].size * forms[register].primes for register in program.returns
    )
    return {
        "sent": float(turn.sent * len(public.parameters.primes) * degree),
        "products": float(products),
        "made": float(made),
        "answered": float(answered * degree),
        "returned": float(returned * degree),
        "plain": float(images * (turn.sent + turn.returned)),
        "turns": 1.0,
    }


def digest(plan: Plan, number: int, images: int) -> str:
    """Return the SHA-256 of all facts that determine the work of one round of a net.

    By this digest a profile finds the measured seconds of equal work. The facts are the encryption's parameters,
    shapes, the client's steps, and the number of images. plan: of the net. number: of the round, from 0. images: in a
    batch.
    """
    public, program = plan.public, plan.programs[number]
    last = public.last if number == len(public.turns) - 1 else ()
    shapes = [[list(part.shape) for part in op.parts] for op in program.operations if isinstance(op, Linear)]
    forms = [[form.count, form.size, form.primes] for form in program.forms()]
    words = [public.mode, public.packing, public.parameters.degree, public.parameters.primes, images, number]
    steps = [step_fields(public.steps[index]) for index in (*public.turns[number].steps, *last)]
    text = json.dumps([words, steps, shapes, forms, amounts(plan, number, images)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def measure(name: str, plan: Plan, images: int, repeats: int = 10) -> list[Measurement]:
    """Measure the seconds of inference for batches of `images` images on this machine; return a profile row for each
    round.

    name: begins the rows' names. plan: of the net. A row has `repeats` samples, taken after one run to warm up. The
    images are pseudo-random ones within the plan's range. Raises ConfigError if a batch has no room for `images`
    images, and errors of inference.
    """
    public = plan.public
    check_images(public, images)
    devices.keep_freed_memory()
    like = pattern(public.input_shape, public.input_range or RANGE).float()
    batch = like.repeat(-(-images // len(like)), *[1] * len(public.input_shape))[:images]
    client, server = Client(public), Server(plan)
    found: list[dict[str, list[float]]] = [{part: [] for part in PARTS} for _ in public.turns]
    for repeat in range(repeats + 1):
        for kept, seconds in zip(found, _batch(client, server, batch), strict=True):
            for part in PARTS if repeat else ():
                kept[part].append(seconds[part])
    return [
        Measurement(
            kind_of(public),
            f"{name}, turn {number}",
            digest(plan, number, images),
            amounts(plan, number, images),
            {part: tuple(samples) for part, samples in kept.items()},
        )
        for number, kept in enumerate(found)
    ]


def _batch(client: Client, server: Server, images: torch.Tensor) -> list[dict[str, float]]:
    """Run inference for one batch of images, and measure the seconds of each part of each round.

    The parts are "encrypt", "receive", "evaluate" and "decrypt"; the others are not measured. Returns a dict {part:
    seconds} for each round, in order.
    """
    public, batch, found = client.public, client.begin(images), []
    for number, turn in enumerate(public.turns):
        seconds = dict.fromkeys(PARTS, 0.0)
        work, uploads = server.turn(number), batch.uploads(number)
        for first, stop in turn.up():
            with _timed(seconds, "encrypt"):
                packed = list(messages.pack_upload(public, next(uploads)))
            with _timed(seconds, "receive"):
                work.receive(messages.read_upload(public, number, first, stop, iter(packed).__next__))
        next(uploads, None)  # a round is complete when its slices have ended
        downloads = work.downloads()
        for first, stop, back in turn.down():
            with _timed(seconds, "evaluate"):
                packed = list(messages.pack_download(public, next(downloads)))
            with _timed(seconds, "decrypt"):
                batch.receive(messages.read_download(public, number, first, stop, back, iter(packed).__next__))
        found.append(seconds)
    with _timed(found[-1], "decrypt"):
        batch.result()
    return found


@contextlib.contextmanager
def _timed(seconds: dict[str, float], part: str) -> Iterator[None]:
    """Measure the seconds of a `with` block, and add them to seconds[part]."""
    started = time.perf_counter()
    yield
    seconds[part] += time.perf_counter() - started


# The service ---------------------------------------------------------------------------------------------------------

CLIENT, SERVER = "client", "server"


def he(model: HEModel, images: int, profile: Profile) -> Service:
    """Make the model (`Service`) of a service that computes a net of `he.convert_model` on clients' ciphertexts.

    Each request is a batch of `images` images of one client. profile: the measured seconds. The service works on as
    many requests at a time as `he-server` does by default. Raises ConfigError for more images than a batch has room
    for, and for a profile without rows of the net's mode.

    >>> service = capacity.he(he.convert_model(net, (4,)), 20, capacity.load_profile("profile.json"))
    >>> list(service.phases()), service.images
    (['request'], 20)
    """
    plan, public = model.plan, model.public
    check_images(public, images)
    turns = []
    for number in range(len(public.turns)):
        work, mark = amounts(plan, number, images), digest(plan, number, images)
        turns.append({part: profile.seconds(kind_of(public), part, work, mark) for part in PARTS})
    longest = max((part for turn in turns for part in turn.values()), key=lambda part: part.mean)
    cores = TURNS * profile.threads
    return Service(
        name=f"he, {public.mode}, {len(turns)} turn(s), a batch of {images} of at most {public.slots} images",
        hosts={CLIENT: Host(cores=cores), SERVER: Host(cores=cores, up=BANDWIDTH, down=BANDWIDTH)},
        request=Phase(_steps(public, turns, profile), longest.factors),
        slots=TURNS,
        images=images,
        rtt=RTT,
        notes=(profile.origin(*(part for turn in turns for part in turn.values())),),
    )


def _steps(public: Public, turns: list[dict[str, Seconds]], profile: Profile) -> tuple[WorkStep, ...]:
    """Return the steps (`WorkStep`) of a request: those of all rounds, one round after the other.

    public: the net's public facts. turns: for each round, the seconds of its parts "encrypt", "receive", "evaluate" and
    "decrypt". profile: the profile that these seconds are from; it names the number of threads on which they were
    measured.
    """
    steps, before = list[WorkStep](), tuple[str, ...]()
    for number, (turn, seconds) in enumerate(zip(public.turns, turns, strict=True)):
        up, down = public.turn_bytes(turn)
        there = [
            WorkStep(f"encrypt {number}", profile.compute(CLIENT, seconds["encrypt"]), before),
            WorkStep(f"up {number}", Send(CLIENT, SERVER, up), before),
            WorkStep(f"receive {number}", profile.compute(SERVER, seconds["receive"]), before),
        ]
        asked = WorkStep(f"there {number}", Rounds(1), tuple(step.name for step in there))
        back = [
            WorkStep(f"evaluate {number}", profile.compute(SERVER, seconds["evaluate"]), (asked.name,)),
            WorkStep(f"down {number}", Send(SERVER, CLIENT, down), (asked.name,)),
            WorkStep(f"decrypt {number}", profile.compute(CLIENT, seconds["decrypt"]), (asked.name,)),
        ]
        answered = WorkStep(f"back {number}", Rounds(1), tuple(step.name for step in back))
        steps += [*there, asked, *back, answered]
        before = (answered.name,)
    return tuple(steps)
