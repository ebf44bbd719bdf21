"""`serve`: runs a party of a service for owners of data who are not parties."""

from __future__ import annotations

import argparse
import copy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hummingbird.commands.party import (
    add_converted_arguments,
    add_prompt_argument,
    add_session_arguments,
    decoder_of,
    nets_of,
    run_party,
    session_options,
)
from hummingbird.errors import ConfigError, InputError, UnavailableError
from hummingbird.lookup import LookedUp
from hummingbird.mpc.session import launch
from hummingbird.mpc.session.lanes import environment
from hummingbird.ranks import refuse_dynamic
from hummingbird.rpc.options import add_service, count, positive, service_of, shape, whole
from hummingbird.rpc.programs import ServiceParts, run_service
from hummingbird.rpc.server import ServiceProgram
from hummingbird.rpc.signals import check
from hummingbird.serving.message import MAX_BYTES
from hummingbird.serving.models import model_file
from hummingbird.serving.party import MAX_BATCH, MAX_WAIT, Lane, Methods, Party, figures_of, join
from hummingbird.serving.request_queue import QueueLimits
from hummingbird.serving.serve import ReconnectLoop

HELP = "Run a net for clients that are not parties: as one party of `run`, or of torchrun on several hosts."
_DESCRIPTION = """Run a net for clients that are not parties, until SIGTERM: each client sends shares of its images to
all parties, and adds up shares of the results. No party sees an image or a result, but all parties together could; the
clients need no weights, and do not see them. Requests of several clients are computed together if the net computes each
image separately. With --prompt the net generates text: a client asks for one word after the other, and the parties keep
keys and values as shares between its calls.

Trust: as for `infer`, with the data at the clients. Plain text stays on this host. With --tls-*, a party's certificate
is for the common name party-RANK, and for the host name by which clients connect ({rank} is replaced in the files'
names, and in --metrics and --log); --tls-ca is the authority of all parties and clients, or of the parties alone if
clients show tokens."""
_EPILOG = """example, with my_net.py in the current folder, and a client beside it:
  python -m hummingbird run --parties 2 -- -m hummingbird serve --model my_net:net --weights net.pt --bits bits.json \\
      --input 3x32x32 --listen 127.0.0.1:910{rank}
  python -m hummingbird ask --parties 127.0.0.1:9100 127.0.0.1:9101 --images images.npy --out logits.npy

  text, for conversations of 256 words of width 192, of which 64 are for the prompt (docs/serving.md):
  python -m hummingbird run --parties 2 -- -m hummingbird serve --model models.gpt:gpt_small \\
      --weights checkpoints/wikitext2-gpt.pt --input 256x192 --prompt 64 --listen 127.0.0.1:910{rank}

  several saved nets, which come and go while the service runs, with a line for each in the file `models`, such as
  "digits@1 saved/digits 1x8x8" (docs/serving.md):
  python -m hummingbird run --parties 2 -- -m hummingbird serve --models models --listen 127.0.0.1:910{rank}
"""


def add_parser(commands: Any) -> None:
    """Add the command `serve`, with its options, to the command line."""
    sub = commands.add_parser(
        "serve",
        help=HELP,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    text = "in place of --model: a file of several models, with a line for each: NAME@VERSION, the folder of its saved "
    text += "net, the shape of each input ({rank} is replaced in the file's name). It is read again when it changes"
    add_converted_arguments(sub).add_argument("--models", metavar="FILE", help=text)
    group = sub.add_argument_group("service")
    text = "shape of one image; for a net with several inputs, the shape of each, in the order of forward(); "
    text += "a net that begins with private lookups (docs/lookup.md) needs none"
    group.add_argument("--input", nargs="+", type=shape, metavar="CxHxW", help=text)
    add_prompt_argument(group, "--input is PLACESxWIDTH, of a conversation's word vectors")
    text = "number of this group of parties, where several groups serve the same net; clients' errors name it "
    group.add_argument("--group", type=whole, default=0, metavar="N", help=f"{text}(default: %(default)s)")
    text = "with --prompt: how many conversations may be open at a time, a quarter of them for one client "
    group.add_argument("--conversations", type=count, metavar="N", help=f"{text}(default: {QueueLimits.conversations})")
    text = f"with --prompt: seconds without a word after which a conversation ends (default: {QueueLimits.idle:g})"
    group.add_argument("--idle", type=positive, metavar="SECONDS", help=text)
    text = "most images in a batch, and in a request, which holds at most 32 MiB; batches more than half full are "
    text += "interleaved "
    group.add_argument("--max-batch", type=count, default=MAX_BATCH, metavar="N", help=text + "(default: %(default)s)")
    text = "milliseconds for which a request waits for others to share its batch; no wait while the parties are idle "
    wait = 1e3 * MAX_WAIT
    group.add_argument("--max-wait", type=positive, default=wait, metavar="MS", help=text + "(default: %(default)s)")
    text = "address for clients, HOST:PORT or unix:PATH ({rank} is replaced), or one address for each party"
    add_service(sub, addresses="+", listen=text)
    add_session_arguments(sub, certificates=False)
    sub.set_defaults(token_file=None, run=lambda args: run_party(lambda: run(args)))


def run(args: argparse.Namespace) -> None:
    """Run one party of a service: listen, meet the others, convert the net, and answer clients until SIGTERM."""
    talks = {name: value for name in ("conversations", "idle") if (value := getattr(args, name)) is not None}
    if talks and args.prompt is None:
        hint = "add --prompt C for a net that generates text, or leave this option out"
        raise InputError(
            "only a service that generates text has conversations", where=f"--{next(iter(talks))}", hint=hint
        )
    more = [name for name in (*args.saved_settings, "input", "prompt") if getattr(args, name)]
    if args.models is not None and more:
        what = f"--{more[0]} beside --models: saved nets bring their windows, and lines their shapes"
        raise ConfigError(what, where="--models", hint=f"leave --{more[0]} out, or serve one net by --saved")
    place = environment(args.lanes)
    for name in ("tls_cert", "tls_key", "tls_ca"):
        if getattr(args, name) is not None:
            setattr(args, name, Path(str(getattr(args, name)).replace("{rank}", str(place.party))))
    for name in ("metrics", "log", "models"):
        if getattr(args, name) is not None:
            setattr(args, name, getattr(args, name).replace("{rank}", str(place.party)))
    args.listen = [address_of(args.listen, place.party, place.parties)]
    refuse_dynamic(args.listen[0])
    config, options = service_of(args, MAX_BYTES), session_options(args)
    if place.lane:  # no client reaches it
        config = replace(config, metrics=None, log=None)
    most = config.limits
    limits = replace(QueueLimits(most.requests, most.per_client, named=most.named), **talks)
    loops: list[ReconnectLoop] = []

    def parts(program: ServiceProgram) -> ServiceParts:
        methods, figures = Methods(program.ready), figures_of(program)

        titles: set[str] = set()  # models whose states are told

        def told(title: str, ready: bool | None, why: str) -> None:
            if ready is None:
                titles.remove(title)
            else:
                titles.add(title)
            if figures is not None:
                figures.model(title, ready)
            program.part(title, ready)
            program.say("model", model=title, ready=ready is True, why=why)
            state = "gone" if ready is None else "ready" if ready else "not ready"
            more = f"{', but' if ready else ':'} {why}" if why else ""
            sys.stderr.write(f"[{launch.name()}] {title} is {state}{more}\n")
            sys.stderr.flush()

        def begin() -> Party | Lane:
            session = launch.init(**options)
            check()
            for title in [*titles]:  # of the last session
                told(title, None, "")
            image = [torch.empty(1, *each) for each in args.input or ()]
            private, shapes, table = _private(copy.copy(args), session.rank, image)  # a copy, as it changes the options
            how: dict[str, Any] = {"most": args.max_batch, "wait": args.max_wait / 1e3, "tls": options["tls"]}
            how |= {"limits": limits, "grace": config.grace, "figures": figures, "restocked": methods.look}
            how |= {"aim": args.aim, "told": told}
            return join(private, shapes, session, table=table, group=args.group, **how)

        def begun() -> None:
            if place.lane == 0:
                print(f"[{launch.name()}] {program.line}", flush=True)

        interrupted = lambda reason: program.say("interrupted", reason=reason)  # noqa: E731
        loops.append(ReconnectLoop(methods, begin, program.told, begun, interrupted))
        stopped = UnavailableError("this service has stopped", hint="try again when it is back")
        return ServiceParts(
            [methods.handlers()] if place.lane == 0 else [],
            stopping=lambda: methods.shut(stopped),
            run=loops[0].run,
        )

    run_service("serve", config, parts, second=False)
    if place.rank == 0:
        done = loops[0].counts
        padded = f", {done.padding} images of padding" if done.padding else ""
        images = "images" if args.prompt is None else "steps of conversations"
        print(f"served {done.images} {images} in {done.batches} batches{padded}", flush=True)


def _private(args: argparse.Namespace, rank: int, image: list[Tensor]) -> tuple[Any, Any, Tensor | None]:
    """Return the private net or the file that the options describe, and the shapes and the table that `join` takes."""
    if args.models is not None:
        return model_file(args.models), None, None
    if args.prompt is not None:
        if len(image) != 1 or image[0].dim() != 3:
            hint = "--input PLACESxWIDTH, such as 256x192"
            raise InputError("a net that generates text takes word vectors", where="--input", hint=hint)
        return decoder_of(args, rank, image[0]), None, None
    net, private = nets_of(args, rank, *image)
    shapes, table = (net.shapes, net.table.weight) if isinstance(net, LookedUp) else (args.input, None)
    return private, shapes, table


def address_of(addresses: list[str], rank: int, parties: int) -> str:
    """Return the address of party `rank` among the values of --listen.

    Raises InputError unless there is one address, in which {rank} is replaced, or one for each party.
    """
    if len(addresses) not in (1, parties):
        hint = "one address with {rank} in it, or one for each party"
        raise InputError(f"{len(addresses)} addresses for {parties} parties", where="--listen", hint=hint)
    return addresses[rank if len(addresses) > 1 else 0].replace("{rank}", str(rank))
