"""The service of a net on ciphertexts (`he`): a client asks for a batch in turns, and the server needs no tokens.

Bytes are those of the plan's slices (`Public.turn_bytes`), two messages' way for each turn; seconds come from a
profile. In a turn what is encrypted is sent and received while more is encrypted, and what is evaluated is sent and
decrypted while more is evaluated: each of the two takes as long as the longest of its three.

"client" stands for all clients: it has cores for every request that is under way, and no limit of its own on its link;
the server's link has one. Up to `slots` images of one client share a batch, which costs the same for one as for all.
"""

from __future__ import annotations

from hummingbird.capacity.profile import Profile, Seconds
from hummingbird.capacity.rounds import PARTS, amounts, check_images, digest, kind_of
from hummingbird.capacity.service import Host, Phase, Rounds, Send, Service, WorkStep
from hummingbird.he.runtime.client_spec import Public
from hummingbird.he.runtime.model import HEModel
from hummingbird.he.service.server import TURNS
from hummingbird.report import BANDWIDTH, RTT

CLIENT, SERVER = "client", "server"


def he(model: HEModel, images: int, profile: Profile) -> Service:
    """The service of a net that `he.convert_model` made, each request a batch of so many images of one client.

    As many requests at a time as `he-server` has by default. ConfigError for more images than a batch has room for, and
    for a profile without rows of the net's mode.

        capacity.he(hummingbird.he.convert_model(net, (1, 28, 28)), 2048, capacity.load_profile("profile.json"))
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
    """The steps of all turns, one after the other."""
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
