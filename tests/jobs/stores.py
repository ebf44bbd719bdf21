"""Parties that run from a store, or make a dry run: programs for the nursery (tests/jobs/failures.py)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import nn

import hummingbird
from hummingbird.bits import BitWindow
from hummingbird.kernels.shares.packing import anchor
from hummingbird.mpc.correlations.request import Request
from hummingbird.mpc.dealer.deal import deal
from hummingbird.mpc.dealer.folder import lane_folder
from hummingbird.mpc.dealer.kept import Keeper, keep
from hummingbird.mpc.dealer.store import StoreDealer, material_facts
from hummingbird.mpc.dealer.supplies import Supply
from hummingbird.mpc.pair.dealer import PairDealer
from hummingbird.mpc.pair.keeping import PairKeeper
from hummingbird.mpc.plan.dry_run import dry_run
from hummingbird.mpc.protocols import cached_rows
from hummingbird.mpc.protocols.lifted_product import Operand
from hummingbird.mpc.session import launch
from hummingbird.mpc.session import session as sessions
from hummingbird.mpc.session.conversation import Conversation
from hummingbird.mpc.session.session import Session
from hummingbird.slots import Ledger
from tests.support.conversations import FACTS, STEPS, outputs, run_step, steps_of, wanted
from tests.support.patience import HANG, NEVER

SLICE = (4, 6)
WINDOW = BitWindow(20, 0)


def net() -> nn.Sequential:
    """A small net for rows of 6, the same at every party."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


def rows(count: int) -> torch.Tensor:
    """Input for `net`."""
    torch.manual_seed(1)
    return torch.randn(count, 6)


def write_store(
    out: Path,
    slots: int,
    parties: int = 2,
    weights: str | int = "public",
    protocol: str = "gmw",
    lanes: int = 1,
    aim: str | None = None,
) -> None:
    """Deal a store for `net` on slices of `SLICE`, as the command does."""
    private = hummingbird.convert_model(net(), WINDOW, weights, protocol, aim=aim)
    plan = dry_run(private, SLICE, parties)
    facts = material_facts(private.facts)
    made = {"setup": plan.setup, "steps": [plan.batch], "shape": SLICE, "facts": facts}
    deal(out, slots=slots, parties=parties, lanes=lanes, **made)


def _say(text: str) -> None:
    os.write(1, f"{text}\n".encode())  # at once, and whole


def stored(
    path: str, count: str, weights: str = "public", window: str = "20:0", protocol: str = "gmw", aim: str = ""
) -> None:
    """Run `count` rows from a store, opening the logits to all; 0: slice after slice until it is used up.

    Says every slot before anything of it is handed out.
    """
    mark = StoreDealer.mark

    def told(self: StoreDealer, slot: int) -> None:
        mark(self, slot)
        _say(f"slot {slot}")

    StoreDealer.mark = told  # type: ignore[method-assign]
    session = launch.init(timeout=NEVER, store=path)
    _say("joined")
    bits = BitWindow(*(int(part) for part in window.split(":")))
    private = hummingbird.convert_model(
        net(), bits, int(weights) if weights.isdigit() else weights, protocol, aim=aim or None
    )
    if int(count):
        x = hummingbird.cryptensor(rows(int(count)) if session.rank == 0 else None, src=0)
        _say(json.dumps(private(x).get_plain_text().tolist()))
    else:
        assert isinstance(session.dealer, StoreDealer)
        for _ in range(session.dealer.slots_left):
            x = hummingbird.cryptensor(rows(SLICE[0]) if session.rank == 0 else None, src=0)
            out = private(x).get_plain_text()
        _say(json.dumps(out.tolist()))


def keeps(path: str, slots: str) -> None:
    """Keep a store of sets of three slots for `net`, so that so many slots are unused, without end."""
    private = hummingbird.convert_model(net(), WINDOW)
    plan = dry_run(private, SLICE, 2)
    what = {"steps": [plan.batch], "shape": SLICE, "slots": 3, "parties": 2, "lanes": 1, "cipher": "aes-128-ctr"}
    keeper = Keeper(Path(path), facts=material_facts(private.facts), **what)
    _say("keeping")
    keep(keeper, int(slots), lambda images: None, _say)


def kept(path: str, slices: str) -> None:
    """Run so many slices from a kept store, one or two at a time, and compare each result with the net's own.

    Says every slot, and which set it is of, before anything of it is handed out.
    """
    mark = StoreDealer.mark

    def told(self: StoreDealer, slot: int) -> None:
        mark(self, slot)
        _say(f"slot {self.header.set_id}:{slot}")

    StoreDealer.mark = told  # type: ignore[method-assign]
    session = launch.init(timeout=HANG, store=path)
    private = hummingbird.convert_model(net(), WINDOW)
    _say("joined")
    for number in range(int(slices)):
        x = rows(SLICE[0] * (1 + number % 2))
        out = private(hummingbird.cryptensor(x if session.rank == 0 else None, src=0)).get_plain_text()
        with torch.no_grad():
            error = float((out - net()(x)).abs().max())
        assert error < 0.02, f"wrong by {error}"
        _say("right")


def _tell_masks() -> None:
    """Say a digest of every piece of material before it is handed out, and every slot of a store before that."""
    correlation, mark = Supply.correlation, StoreDealer.mark

    def told(self: Supply, request: Request[Any]) -> Any:
        material = correlation(self, request)
        digest = hashlib.blake2b(digest_size=12)
        for words in material.shares.values():
            digest.update(anchor(words).contiguous().numpy().tobytes())
        _say(f"mask {digest.hexdigest()}")
        return material

    def marked(self: StoreDealer, slot: int) -> None:
        mark(self, slot)
        _say(f"slot {self.header.set_id}:{slot}")

    Supply.correlation = told  # type: ignore[method-assign]
    StoreDealer.mark = marked  # type: ignore[method-assign]


def pair_makes(path: str, sets: str) -> None:
    """Make so many sets of one slot for `net`, as one of two parties, and say each."""
    session = launch.init(timeout=HANG, dealer="pair")
    private = hummingbird.convert_model(net(), WINDOW)
    requests, facts = dry_run(private, SLICE, 2).batch, material_facts(private.facts)
    root, what = lane_folder(Path(path), session.rank, 0), {"requests": requests, "shape": SLICE, "slots": 1}
    assert isinstance(session.dealer, PairDealer)
    keeper = PairKeeper(session.channel, session.dealer, root, session.place, facts=facts, **what)  # type: ignore[arg-type]
    _say("joined")
    with contextlib.closing(keeper):
        keeper.make(int(sets), say=lambda number, seconds: _say(f"set {number}"))


def pair_runs(path: str, slices: str) -> None:
    """Run so many slices, whose material the two parties have made in advance, or make meanwhile if there is no path.

    Compares each result with the net's own. Says slots and masks.
    """
    _tell_masks()
    session = launch.init(timeout=HANG, **({"store": path} if path else {"dealer": "pair"}))
    private = hummingbird.convert_model(net(), WINDOW)
    _say("joined")
    x = rows(SLICE[0])
    with torch.no_grad():
        expected = net()(x)
    for _ in range(int(slices)):
        out = private(hummingbird.cryptensor(x if session.rank == 0 else None, src=0)).get_plain_text()
        error = float((out - expected).abs().max())
        assert error < 0.02, f"wrong by {error}"
        _say("right")


def _nets() -> list[tuple[nn.Module, tuple[int, ...], dict[str, Any]]]:
    conv, pool = nn.Conv2d(2, 3, 3, padding=1), nn.MaxPool2d(2)
    image = nn.Sequential(conv, nn.ReLU6(), pool, nn.Flatten(), nn.Linear(12, 4), nn.Sigmoid())
    smooth = nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 3), nn.Softmax(dim=1))
    mean = nn.Sequential(nn.Conv2d(1, 2, 3), nn.LeakyReLU(0.1), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(18, 2))
    return [
        (net(), (3, 6), {"protocol": "gmw"}),
        (net(), (3, 6), {"weights": 1, "protocol": "gmw"}),
        (image, (2, 2, 4, 4), {"bits": BitWindow(24, 4), "protocol": "gmw"}),
        (image, (2, 2, 4, 4), {"bits": BitWindow(24, 4), "protocol": "masked"}),
        (smooth, (2, 5), {"bits": BitWindow(30, 0), "protocol": "masked"}),
        (mean, (2, 1, 8, 8), {"weights": 0, "protocol": "masked", "bits": BitWindow(20, 12)}),
    ]


def dry_runs(first: str, step: str) -> None:
    """Make dry runs of nets, from the first one in steps, and compare with what runs ask for at this party.

    Dry runs are made before a run, and after one.
    """
    made: list[Request[Any]] = []
    nets, correlation = _nets()[int(first) :: int(step)], sessions.Session.correlation

    def noted(self: sessions.Session, request: Request[Any]) -> Any:
        made.append(request)
        return correlation(self, request)

    plans = [
        dry_run(
            hummingbird.convert_model(model.eval(), **options, aim="throughput"), shape, int(os.environ["WORLD_SIZE"])
        )
        for model, shape, options in nets
    ]
    sessions.Session.correlation = noted  # type: ignore[method-assign]
    for (model, shape, options), plan in zip(nets, plans, strict=True):
        session = launch.init(timeout=HANG, dealer=os.environ["DEALER"])
        made.clear()
        private = hummingbird.convert_model(model.eval(), **options)
        assert made == plan.setup, f"setup at party {session.rank}"
        made.clear()
        x = hummingbird.cryptensor(torch.zeros(shape) if session.rank == 0 else None, src=0)
        private(x).get_plain_text()
        assert plan.batch and made == plan.batch, f"batch at party {session.rank}"
        if options.get("weights", "public") == "public":
            with hummingbird.meter() as m:
                again = dry_run(private, shape, session.parties, session.rank)
            assert (again, m.rows) == (plan, {}), "a dry run in the middle of a session"
            private(x).get_plain_text()
        hummingbird.uninit()
    _say("equal")


def dies_at_mark(path: str) -> None:
    """kill -9 at the moment when a mark is on the disk, and nothing handed out."""
    use = Ledger.use

    def dies(self: Ledger, slot: int) -> None:
        use(self, slot)
        os.kill(os.getpid(), signal.SIGKILL)

    Ledger.use = dies  # type: ignore[method-assign]
    store = StoreDealer(path, rank=1, parties=2)
    store.reserve(None).correlation(store.header.requests(1)[0])


def talks(path: str, count: str) -> None:
    """Hold `count` conversations from a store, and print whether they are right; 0: until the store is used up.

    Prints a digest of this party's share of every mask, and what the mask hides, before anything is sent behind it.
    """
    steps, masked = steps_of(2), cached_rows.masked  # a dry run finds the steps: it uses no mask

    def told(session: Session, operand: Operand, mask: torch.Tensor) -> torch.Tensor:
        conversation, message = session.conversation, masked(session, operand, mask)
        assert conversation is not None
        for row in mask if len(mask) == operand.share.shape[0] and mask.dim() == 3 else [mask]:
            digest = hashlib.blake2b(row.contiguous().numpy().tobytes(), digest_size=12).hexdigest()
            _say(f"mask {digest} {conversation._material.number} {conversation.taken}")  # type: ignore[attr-defined]
        return message

    cached_rows.masked = told
    session = launch.init(timeout=NEVER, store=path)
    _say("joined")
    assert isinstance(session.dealer, StoreDealer)
    for _ in range(int(count) or session.dealer.slots_left):
        conversation, parts = Conversation(session, FACTS, steps), []
        seed = conversation._material.number  # type: ignore[attr-defined]
        for number in range(len(STEPS)):
            with conversation.step() as inner:
                parts.append(run_step(inner, number, seed))
        for mine, expected in zip(parts, wanted(seed), strict=True):
            (theirs,) = session.channel.exchange(mine)[1 - session.rank]
            assert torch.equal(outputs([[mine], [theirs]])[0], expected)
        _say("right")


JOBS = {
    "talks": talks,
    "dies_at_mark": dies_at_mark,
    "dry_runs": dry_runs,
    "keeps": keeps,
    "kept": kept,
    "pair_makes": pair_makes,
    "pair_runs": pair_runs,
    "stored": stored,
}
