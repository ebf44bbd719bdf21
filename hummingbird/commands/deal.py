"""`deal`: deals correlated randomness for a number of images in advance, for runs without a dealer.

With --pair, two parties make it with each other, in two processes that a launcher starts.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hummingbird.commands.estimate import add_arguments, planned
from hummingbird.commands.party import add_peer_arguments, add_prompt_argument, run_party, session_options
from hummingbird.commands.program import add_command
from hummingbird.convert import convert_decoder, convert_model
from hummingbird.errors import ConfigError, InputError
from hummingbird.kernels import devices
from hummingbird.mpc.correlations.request import Request
from hummingbird.mpc.dealer.bucket import is_url
from hummingbird.mpc.dealer.bucket_store import deal_sets
from hummingbird.mpc.dealer.command import add_threads, deal_on
from hummingbird.mpc.dealer.deal import deal
from hummingbird.mpc.dealer.folder import PAIR, lane_folder
from hummingbird.mpc.dealer.kept import Keeper, keep
from hummingbird.mpc.dealer.sealing import read_key, read_public
from hummingbird.mpc.dealer.store import material_facts
from hummingbird.mpc.pair.dealer import PairDealer, slice_cost, transfers_of
from hummingbird.mpc.pair.keeping import PairKeeper, slot_bytes, slots_of_a_set
from hummingbird.mpc.pair.price import DEFAULT, Stock
from hummingbird.mpc.plan.dry_run import dry_run
from hummingbird.mpc.protocols.owned import OwnedWeight, hold
from hummingbird.mpc.protocols.step_tables import TableChoice
from hummingbird.mpc.session import launch
from hummingbird.mpc.session.lanes import environment
from hummingbird.prg import cipher_of
from hummingbird.progress import progress_line
from hummingbird.rpc.options import count
from hummingbird.rpc.programs import ServiceParts, run_service
from hummingbird.rpc.server import ServiceConfig, ServiceProgram

HELP = "Deal material for a number of images into one folder per party, for runs without a dealer."
_DESCRIPTION = """Deal correlated randomness for a number of images in advance, into one folder per party: runs with
`hummingbird.init(store=...)` or `infer --store` then need no dealer online.

Trust: this process draws the secrets of all parties. Anyone who holds the folders of two parties can read everything
that the parties compute with them, inputs included. So deal on a host that no party controls, hand each party its own
folder over a secure channel, and then delete this host's copies. Dealing needs neither images nor private weights, but
public weights, whose size determines how many bits a layer adds: name them by --weights, or let --model load them.

Every slot, the material of one slice of images, is for single use. Never run a party from a copy or a restored backup
of its folder: the folder marks which slots were used.

With --pair there is no such process: two parties, as processes of `run` or of torchrun, make the material with each
other, and each writes its own folder. Neither may deviate from the protocol (docs/pair.md). Run it again to add sets.
With --owner the weights are private to that party, and the material serves no other weights.

For parties with several lanes (`infer --lanes`) each lane has its own folder, seeds and slots for its part of the
images: the images are split evenly, and each lane's part is rounded up to whole slices."""
_EPILOG = """example:
  python -m hummingbird deal --model models:get_model digits 10 --weights checkpoints/digits.pt --input 20x1x8x8 \\
      --bits checkpoints/digits.bits.json --images 200 --out store
  python -m hummingbird run --parties 2 -- -m hummingbird infer --model models:get_model digits 10 \\
      --weights checkpoints/digits.pt --bits checkpoints/digits.bits.json --data scripts.train.data:load digits test \\
      --samples 200 --store store

  a service that never runs out of material, on one host; ^C ends the first command, which later continues the folder:
  python -m hummingbird deal --model models:get_model digits 10 --weights checkpoints/digits.pt --input 8x1x8x8 \\
      --bits checkpoints/digits.bits.json --images 160 --keep 60 --out kept
  python -m hummingbird run --parties 2 -- -m hummingbird serve --model models:get_model digits 10 \\
      --weights checkpoints/digits.pt --bits checkpoints/digits.bits.json --input 1x8x8 --listen 127.0.0.1:910{rank} \\
      --store kept

  twenty sets of ten slots in an object store, each sealed to its party's key; another dealer may add more meanwhile:
  python -m hummingbird deal --model models:get_model digits 10 --weights checkpoints/digits.pt --input 8x1x8x8 \\
      --bits checkpoints/digits.bits.json --images 80 --sets 20 --key dealer.key --to party-0.key.pub party-1.key.pub \\
      --out s3://bucket-{rank}/digits

  two parties make material for 200 images with each other, and use it (on two hosts by torchrun, in the same way):
  python -m hummingbird run --parties 2 -- -m hummingbird deal --pair --model models:get_model digits 10 \\
      --weights checkpoints/digits.pt --bits checkpoints/digits.bits.json --input 20x1x8x8 --images 200 --out own
  python -m hummingbird run --parties 2 -- -m hummingbird infer --model models:get_model digits 10 \\
      --weights checkpoints/digits.pt --bits checkpoints/digits.bits.json --data scripts.train.data:load digits test \\
      --samples 200 --store own

  for conversations of `serve --prompt`, 100 of them:
  python -m hummingbird deal --model models.gpt:gpt_small --weights checkpoints/wikitext2-gpt.pt --input 1x256x192 \\
      --prompt 64 --images 100 --out talks
"""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def add_parser(commands: Any) -> None:
    """Add the command `deal`, with its options, to the command line."""
    sub = add_command(commands, "deal", HELP, _DESCRIPTION, _EPILOG)
    add_arguments(sub, "shape of one slice: a batch is cut into slices of it")
    add_prompt_argument(sub, "--input is 1xPLACESxWIDTH, of a conversation's word vectors, and a slot a conversation")
    text = "number of images, rounded up to whole slices; with --prompt, of conversations"
    sub.add_argument("--images", required=True, type=count, help=text)
    text = "lanes of each party (default 1; with --pair HUMMINGBIRD_LANES, else 1)"
    sub.add_argument("--lanes", type=count, metavar="G", help=text)
    text = "deal another set for --images images whenever fewer than K slots are unused, until SIGTERM; for parties on "
    text += "this host"
    sub.add_argument("--keep", type=count, metavar="K", help=text)
    text = "a new folder, for DIR/party-RANK/lane-LANE; with --keep also a folder that was kept before; or an object "
    text += "store such as s3://bucket-{rank}/prefix, where {rank} stands for each party's rank; with --pair also a "
    text += "folder to which the same two parties add"
    sub.add_argument("--out", required=True, metavar="DIR|URL", help=text)
    group = sub.add_argument_group("two parties without a dealer")
    text = "make the material with the other party, as one of two processes of `run` or of torchrun. HOW they make "
    text += "transfers: softspoken (default), silent, or RTT:BANDWIDTH for the fastest on this link"
    group.add_argument("--pair", nargs="?", const=DEFAULT.name, metavar="HOW", help=text)
    text = "the party that owns private weights, which alone needs them (default: weights are public)"
    group.add_argument("--owner", type=int, choices=(0, 1), help=text)
    sub.set_defaults(saved_settings=(*sub.get_default("saved_settings"), "owner"))
    add_peer_arguments(group)
    group = sub.add_argument_group("an object store")
    text = "how many sets to deal, each for --images images (default 1); several dealers may deal at a time"
    group.add_argument("--sets", type=count, metavar="S", help=text)
    text = "this dealer's key file, which `python -m hummingbird keys` has made"
    group.add_argument("--key", metavar="FILE", help=text)
    text = "the files of the parties' public keys, by rank"
    group.add_argument("--to", nargs="+", metavar="PUB", help=text)
    text = "where the parties will compute: cpu (default), or cuda, for seeds that GPUs expand; then this host's GPU "
    text += "deals too, if it has one"
    sub.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help=text)
    add_threads(sub)
    text = "with --keep: serve figures for Prometheus at http://HOST:PORT/metrics; without HOST on loopback only"
    sub.add_argument("--metrics", metavar="[HOST:]PORT", help=text)
    text = "with --keep: append a line of JSON for each change of state; - for standard error"
    sub.add_argument("--log", metavar="FILE", help=text)
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Deal material for a number of images into one folder per party: once, or with --keep again and again.

    Returns the exit code: 0, or 128 plus the number of the signal that stopped the dealing.
    """
    if args.keep is None and (args.metrics is not None or args.log is not None):
        hint = "add --keep K, or leave them out"
        raise InputError("--metrics and --log need --keep", where="deal", hint=hint)
    _check_out(args)
    devices.keep_freed_memory()
    deal_on(args.threads)
    if args.pair:
        run_party(lambda: _with_each_other(args))
        return 0
    args.lanes = args.lanes or 1
    slot = _slot(args)
    images, lanes = slot.shape[0], args.lanes
    slots = -(-args.images // (images * lanes))  # of every lane, even if a lane's part is smaller by one image
    each_slot = sum(request.correction_bits for step in slot.steps for request in step)
    size = sum(request.correction_bits for request in slot.setup) + slots * each_slot
    each = f" and each of {lanes} lanes" if lanes > 1 else ""
    split = f", {size / 8e6:,.1f} a lane" if lanes > 1 else ""
    amount = f"{lanes * size / 8e6:,.1f} MB for all parties{split}"
    sets = "" if args.keep is None and not is_url(args.out) else "sets of "
    what_for = f"slices of {images} images" if args.prompt is None else "conversations"
    print(f"{sets}{slots} {what_for} for {args.parties} parties{each}: {amount}", flush=True)
    what = {
        "steps": slot.steps,
        "shape": slot.shape,
        "slots": slots,
        "parties": args.parties,
        "facts": material_facts(slot.facts),
        "lanes": lanes,
        "cipher": cipher_of(args.device),
    }
    try:
        if is_url(args.out):
            return _into_bucket(args, slot, what)
        return _once(args, slot, what) if args.keep is None else _again_and_again(args, slot, what)
    except _Stopped as stopped:
        print("stopped: nothing is left of what was begun", flush=True)  # whole sets in an object store stay
        return 128 + stopped.number
    except OSError as error:
        folder = "TMPDIR" if is_url(args.out) else "--out"
        hint = (
            f"is there room on the disk, and may this user write there? {folder} names the folder, --images the amount"
        )
        raise InputError(f"{error.strerror}", where=str(error.filename or args.out), hint=hint) from None


class _Slot(NamedTuple):
    """A net's requests, of its setup and of a slot's steps; the shape of a slot's input; the net's facts.

    owned: the private weights that their owner keeps in clear.
    """

    setup: list[Request[Any]]
    steps: list[list[Request[Any]]]
    shape: tuple[int, ...]
    facts: dict[str, str]
    owned: Sequence[OwnedWeight] = ()


def _slot(args: argparse.Namespace, rank: int | None = None) -> _Slot:
    """Return what the options say a slot is for: a slice of images, or with --prompt a conversation.

    rank: of the party that makes its own material, with --pair.
    """
    if args.prompt is None:
        private = convert_model(*planned(args, owner=args.owner, rank=rank), aim=args.aim)
        if TableChoice.of(private.facts["aim"]).pair and private.facts["weights"] != "public" and not args.pair:
            hint = "leave --aim out: a dealer deals other material for private weights"
            raise ConfigError(f"private weights with the aim {PAIR!r}", where="--aim", hint=hint)
        found = dry_run(private, args.input, args.parties)
        return _Slot(found.setup, [found.batch], tuple(args.input), private.facts, private.owned_weights)
    if args.input is None or len(args.input) != 3:
        hint = "--input 1xPLACESxWIDTH, such as 1x256x192"
        raise InputError("a net that generates text takes word vectors", where="--input", hint=hint)
    net, bits, weights, protocol = planned(args, settle=False)
    decoder = convert_decoder(net, torch.empty(args.input), args.prompt, bits, weights, protocol, args.aim)
    found, order = decoder.dry_run(args.parties)
    kinds = decoder.requests(args.parties)
    return _Slot(found.setup, [kinds[kind] for kind in order], decoder.shape(0), decoder.facts)


def _check_out(args: argparse.Namespace) -> None:
    """Raise InputError for options that do not fit the place where the material goes."""
    needs = ("key", "to")
    if args.pair:
        beside = ("keep", "sets", *needs, "prompt")
        if given := [f"--{name}" for name in beside if getattr(args, name) is not None]:
            hint = "leave them out, or deal without --pair"
            raise InputError(f"{' and '.join(given)} beside --pair", where="--pair", hint=hint)
        if is_url(args.out):
            hint = "a folder on each party's own disk: --out DIR"
            raise InputError("two parties make no material in an object store", where="--out", hint=hint)
        if args.private_weights:
            hint = "--owner 0 or --owner 1: the party that has the weights"
            raise InputError("--private-weights beside --pair", where="--private-weights", hint=hint)
        args.dealer, args.store, args.store_key = f"{PAIR}:{args.pair}", None, None
        transfers = transfers_of(args.dealer)
        if transfers is None:
            raise InputError(f"--pair {args.pair}", where="--pair", hint="softspoken, silent, or RTT:BANDWIDTH")
        if args.aim is not None:
            raise InputError(
                f"--aim {args.aim} beside --pair", where="--aim", hint="leave --aim out: --pair implies it"
            )
        args.aim = str(TableChoice(PAIR, transfers=transfers))
        return
    if given := [f"--{name.replace('_', '-')}" for name in _PEERS if getattr(args, name) is not None]:
        hint = "leave them out, or add --pair"
        raise InputError(f"{' and '.join(given)} without --pair", where="deal", hint=hint)
    if is_url(args.out):
        if args.keep is not None:
            hint = "deal more sets with --sets, as often as needed"
            raise InputError("an object store is not kept full", where="--keep", hint=hint)
        missing = [f"--{name}" for name in needs if getattr(args, name) is None]
        if missing:
            hint = "`python -m hummingbird keys` makes keys, for the dealer and for each party"
            raise InputError(f"an object store needs {' and '.join(missing)}", where="--out", hint=hint)
        return
    given = [f"--{name}" for name in ("sets", *needs) if getattr(args, name) is not None]
    if given:
        hint = "leave them out, or name an object store, such as --out s3://bucket/prefix"
        raise InputError(f"{' and '.join(given)} are for an object store", where="deal", hint=hint)


@contextlib.contextmanager
def _stoppable(what: dict[str, Any]) -> Iterator[tuple[Any, Callable[[int], None]]]:
    """Show a progress bar; yield it, and the function that advances it, which raises `_Stopped` after a signal."""
    told: list[int] = []  # signals to stop; the handler only notes them (rpc/signals.py)
    before = [(each, signal.signal(each, lambda number, _: told.append(number))) for each in _SIGNALS]
    try:
        with _bar(what) as bar:

            def progress(images: int) -> None:
                if told:
                    raise _Stopped(told[0])
                bar.update(images)

            yield bar, progress
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _into_bucket(args: argparse.Namespace, slot: _Slot, what: dict[str, Any]) -> int:
    if slot.setup:
        hint = "public weights, a folder of its own for each party (--out DIR), or a dealer"
        raise ConfigError("masks of private weights are not dealt into an object store", where="--out", hint=hint)
    sets, receivers = args.sets or 1, [read_public(path) for path in args.to]
    with _stoppable(what) as (bar, progress):

        def say(text: str) -> None:
            bar.reset()
            bar.write(text)

        deal_sets(args.out, sets, read_key(args.key), receivers, progress=progress, say=say, **what)
    return 0


def _once(args: argparse.Namespace, slot: _Slot, what: dict[str, Any]) -> int:
    with _stoppable(what) as (_, progress):
        seconds = deal(args.out, setup=slot.setup, progress=progress, **what)
    print(f"dealt in {seconds:.1f} s: {args.out}/party-0 .. party-{args.parties - 1}")
    print("hand each party its folder over a secure channel, and delete it here: two of them open everything")
    return 0


def _with_each_other(args: argparse.Namespace) -> None:
    """Make sets of slots together with the other party. This process writes the sets of its own lane."""
    slot = _slot(args, environment().party)
    session = launch.init(**session_options(args) | {"device": "cpu"})
    dealer = session.dealer
    assert isinstance(dealer, PairDealer)
    dealer.admit(slot.facts, [slot.shape])
    hold(session, slot.owned)
    requests, images, place = slot.steps[0], slot.shape[0], session.place
    transfers = TableChoice.of(dealer.aim).transfers
    wanted = -(-args.images // (images * place.lanes))
    root = lane_folder(Path(args.out.replace("{rank}", str(place.party))), place.party, place.lane)
    what: dict[str, Any] = {"requests": requests, "shape": slot.shape, "facts": material_facts(slot.facts)}
    size, price = slot_bytes(requests), slice_cost(requests, Stock(transfers))
    keeper = PairKeeper(session.channel, dealer, root, place, slots=slots_of_a_set(wanted, size), **what)
    with contextlib.closing(keeper):
        sets, each = -(-wanted // keeper.kept.slots), keeper.kept.slots
        first, started = place.lane == 0, time.perf_counter()
        kept, sent = size * each / 1e6, price.all_bits / 8e6 * each
        lanes = f", in each of {place.lanes} lanes" if place.lanes > 1 else ""
        if first:
            slots = f"{sets} set(s) of {each} slice(s) of {images} images{lanes}"
            size_text = f"{sets * kept:,.1f} MB on this party's disk, {sets * sent:,.1f} MB to send by both"
            print(f"{slots}: {size_text}, {price.rounds} rounds a slice", flush=True)
        done = []

        def say(number: int, seconds: float) -> None:
            done.append(seconds)
            if first:
                left = (time.perf_counter() - started) / len(done) * (sets - len(done))
                mb = f"{kept:,.1f} MB kept, {sent:,.1f} MB sent by both"
                count = f"{len(done) * each * images:,} of {sets * each * images:,} images"
                bar.write(f"set {number}: {count}; {mb}, {seconds:.1f} s; some {left:,.0f} s left")

        with progress_line(total=sets * each * images, desc="making", unit="image", quiet=not first) as bar:
            keeper.make(sets, bar.update, say)
    if first:
        print(f"made in {time.perf_counter() - started:.1f} s: {root}", flush=True)


_PEERS = ("tls_cert", "tls_key", "tls_ca", "peer_listen", "peer_address", "owner")  # of a party, beside --timeout


def _again_and_again(args: argparse.Namespace, slot: _Slot, what: dict[str, Any]) -> int:
    if slot.setup:
        # A mask is valid for one store, so that a party would have to open its weights again for each set.
        hint = "public weights, a store of one set (no --keep), or a dealer"
        raise ConfigError("masks of private weights are not kept", where="--keep", hint=hint)
    config = ServiceConfig((), metrics=args.metrics, log=args.log)
    run_service("keeper", config, lambda program: ServiceParts(run=lambda: _keep(args, what, program)))
    return 0


def _keep(args: argparse.Namespace, what: dict[str, Any], program: ServiceProgram) -> None:
    keeper = None
    try:
        keeper = Keeper(Path(args.out), **what)
        if program.metrics is not None:
            from hummingbird.mpc.dealer.figures import KeeperFigures

            program.metrics.registry.register(KeeperFigures(keeper, args.keep))
        print(f"keeping {args.keep} slots unused in {args.out}: {keeper.unused()} there", flush=True)
        with _bar(what) as bar:

            def progress(images: int) -> None:
                if program.stopping:
                    raise _Stopped(signal.SIGTERM)
                bar.update(images)

            def say(text: str) -> None:
                bar.reset()
                bar.write(text)

            keep(keeper, args.keep, progress, say, ready=program.ready)
    except _Stopped:
        left = f"{keeper.unused()} slots unused, " if keeper is not None else ""
        print(f"stopped: {left}no set half dealt", flush=True)
    finally:
        if keeper is not None:
            keeper.close()


class _Stopped(BaseException):
    """Raised when a signal ends this program. number: the signal's number."""

    def __init__(self, number: int) -> None:
        self.number = number


def _bar(what: dict[str, Any]) -> Any:
    """Return a progress bar whose total is the number of images in one store; it shows nothing without a terminal.

    what: the arguments of `deal`, of which "lanes", "slots" and "shape" (with the batch's size first) are read.
    """
    return progress_line(total=what["lanes"] * what["slots"] * what["shape"][0], desc="dealing", unit="image")
