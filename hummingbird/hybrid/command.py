"""The programs `python -m hummingbird gc-server`, `gc-prepare`, `gc-client` and `gc-proxy`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hummingbird.errors import InputError
from hummingbird.hybrid.client import IN_FLIGHT, Connection, RemoteNet
from hummingbird.hybrid.convert import make_plan
from hummingbird.hybrid.message_stream import TIMEOUT
from hummingbird.hybrid.plan import GARBLERS
from hummingbird.hybrid.proxy import Proxy
from hummingbird.hybrid.service import Service
from hummingbird.hybrid.sessions import DAYS
from hummingbird.hybrid.user import ProxiedNet
from hummingbird.hybrid.users import INPUTS
from hummingbird.kernels import devices
from hummingbird.rpc import options
from hummingbird.rpc.options import count, positive
from hummingbird.rpc.programs import ServiceParts, run_client, run_service, timed
from hummingbird.structure import places

_SERVER = """Offer a private net to clients, which have the images: two parties, no dealer.

The server holds the weights; it sees no image and no result. A client learns the shapes of the layers, their windows,
and the logits. Both are trusted to follow the protocol: a client that deviates can extract the weights, a server that
deviates can read the images. Plain text stays on this host: give certificates or tokens for clients elsewhere."""
_PREPARE = """Have a server deal slots, the material of one image each, before the images are known.

A slot serves one image, once. It is bound to the server's net, windows and weights, and to the session that this store
began; half of it lies at the server."""
_CLIENT = """Have a server compute the logits of images that it does not see, with a prepared slot for each.

Missing slots are dealt meanwhile. With --proxy the slots are a proxy's, which must not collude with the server:
together they could read the images. Images are a .npy file of numbers (n, ...), scaled as the net was trained."""
_PROXY = """Prepare slots for users, who then send masked images to the server, and nothing else to this proxy.

The proxy sees no image and no result. It must not collude with the server: together they could read the images."""


def serve_net(args: argparse.Namespace, net: nn.Module) -> int:
    """Run `gc-server`: plan a net and serve it until SIGTERM or SIGINT."""
    devices.keep_freed_memory()
    config = options.service_of(args)
    model = make_plan(net, args.input, args.bits, args.garbler)
    disk = None if args.disk is None else int(args.disk * 1e9)
    service = Service(model, args.store, disk=disk, days=args.session_days, idle=args.idle)
    # A name may have two calls that deal slots at a time, for any size of a slot.
    limits = replace(config.limits, client_bytes=max(config.limits.client_bytes, 2 * service.dealing_bytes))
    parts = ServiceParts([service.handlers()], service.measure, close=service.close)
    run_service("gc-server", replace(config, limits=limits), parts)
    return 0


def prepare(args: argparse.Namespace) -> int:
    """Run `gc-prepare`: have slots dealt with the server, and print time and sizes."""
    devices.keep_freed_memory()
    with RemoteNet(args.server, args.store, **options.caller_of(args), timeout=args.timeout) as net:
        before = net.ready
        _, seconds = timed(args.images, "slot", lambda progress: net.prepare(args.images, progress))
        sent = sum(net.offline.values())
        size = sum(path.stat().st_size for path in args.store.glob("slot-*")) / max(1, net.ready)
        each = f"{sent / args.images / 1e6:.2f} MB sent and received, {size / 1e6:.2f} MB kept"
        print(f"{args.images} slots in {seconds:.2f} s, for each {each}; ready: {before + args.images}")
    return 0


def ask_net(args: argparse.Namespace) -> int:
    """Run `gc-client`: send images, print times, sizes, and the accuracy if there are labels, and write the logits."""
    devices.keep_freed_memory()
    images, labels = options.images_of(args)
    if (args.store is None) == (args.proxy is None):
        hint = "--store for your own slots, --proxy for a proxy's slots"
        raise InputError("one of --store and --proxy is needed", where="gc-client", hint=hint)
    (_ask_with_own if args.proxy is None else _ask_with_proxy)(args, images, labels)
    return 0


def _ask_with_own(args: argparse.Namespace, images: Tensor, labels: Tensor | None) -> None:
    """Run `gc-client` with slots from the caller's own store: send images, and print and write what comes back."""
    net = RemoteNet(args.server, args.store, **options.caller_of(args), timeout=args.timeout)
    ready = min(net.ready, len(images))

    def figures(net: RemoteNet, seconds: float) -> list[str]:
        online, offline = sum(net.online.values()) / len(images), sum(net.offline.values())
        return [
            f"{len(images)} images in {seconds:.2f} s, {ready} of them with slots that were ready",
            f"{online / 1e6:.3f} MB an image online; {offline / 1e6:.2f} MB for slots that were dealt meanwhile",
        ]

    run_client(
        args,
        net,
        len(images),
        labels,
        names=lambda net: places(net.plan.structure),
        ask=lambda net, progress: net(images, in_flight=args.in_flight, progress=progress),
        figures=figures,
    )


def _ask_with_proxy(args: argparse.Namespace, images: Tensor, labels: Tensor | None) -> None:
    """Run `gc-client` as a user of a proxy, which has the slots: send images, and print and write what comes back."""

    def figures(net: ProxiedNet, seconds: float) -> list[str]:
        each = net.online.total() / len(images)
        told = f"{each / 1e6:.4f} MB sent and received for each, {net.once.total() / 1e6:.4f} MB once"
        return [f"{len(images)} images in {seconds:.2f} s, {told}"]

    run_client(
        args,
        ProxiedNet(args.server, args.proxy, input=args.input, **options.caller_of(args), timeout=args.timeout),
        len(images),
        labels,
        names=lambda net: places(net.plan.structure),
        ask=lambda net, progress: net(images, progress=progress),
        figures=figures,
    )


def serve_proxy(args: argparse.Namespace) -> int:
    """Run `gc-proxy`: prepare slots for users and serve the users until SIGTERM or SIGINT."""
    devices.keep_freed_memory()
    config = options.service_of(args)
    with Connection(args.server, args.store, **options.caller_of(args), timeout=args.timeout) as connection:
        proxy = Proxy(connection, args.slots)
        run_service("gc-proxy", config, ServiceParts([proxy.handlers()], close=proxy.close))
        if proxy.served:
            print(proxy.report())
    return 0


def add_server(
    commands: Any,
    add_model_arguments: Callable[[argparse.ArgumentParser], None],
    build: Callable[[argparse.Namespace], nn.Module],
) -> None:
    """Add the program `gc-server` to the command line. commands: argparse's subparsers, from `add_subparsers`.

    add_model_arguments: a function that adds to a parser the options that name a net. build: a function that makes the
    net from the parsed options.
    """
    text = "Offer a private net to clients that have the images; two parties, no dealer."
    example = "--model my_nets:small 10 --input 3x32x32 --bits bits.json --store slots --listen unix:gc.sock"
    sub = options.add_program(commands, "gc-server", text, _SERVER, example)
    add_model_arguments(sub)
    sub.add_argument("--input", required=True, type=options.shape, metavar="CxHxW", help="shape of one image")
    sub.add_argument("--bits", required=True, metavar="FILE", help="windows of the activations (find-bits)")
    text = "who makes the tables: the data's side keeps fewer bytes as garbler (default: %(default)s)"
    sub.add_argument("--garbler", choices=GARBLERS, default=GARBLERS[0], help=text)
    text = "folder of all clients' slots, only for this process; created if missing"
    sub.add_argument("--store", required=True, type=Path, metavar="DIR", help=text)
    sub.add_argument(
        "--disk", type=positive, metavar="GB", help="disk space that slots may take there (default: no limit)"
    )
    text = "days after which an unused session of a client is removed with its slots (default: %(default)g)"
    sub.add_argument("--session-days", type=positive, default=DAYS, metavar="N", help=text)
    sub.add_argument("--idle", type=positive, default=TIMEOUT, help="longest silence of a client, seconds")
    options.add_service(sub)
    sub.set_defaults(run=lambda args: serve_net(args, build(args)))


def add_connection(sub: argparse.ArgumentParser) -> None:
    """Add to a program of the data's side the options that all of them have: the server's address, and the timeout.

    sub: the program's parser.
    """
    sub.add_argument("--server", required=True, metavar="ADDRESS", help="the net's: HOST:PORT or unix:PATH")
    sub.add_argument("--timeout", type=positive, default=TIMEOUT, help="longest silence of the server, seconds")


def add_prepare(commands: Any) -> None:
    """Add the program `gc-prepare` to the command line. commands: argparse's subparsers, from `add_subparsers`."""
    text = "Have slots dealt for images that are not known yet."
    sub = options.add_program(commands, "gc-prepare", text, _PREPARE, "--server unix:gc.sock --store mine --images 16")
    add_connection(sub)
    options.add_caller(sub)
    sub.add_argument("--store", required=True, type=Path, metavar="DIR", help="folder of the slots; created if missing")
    sub.add_argument("--images", required=True, type=count, metavar="N", help="slots to deal, one for each image")
    sub.set_defaults(run=prepare)


def add_client(commands: Any) -> None:
    """Add the program `gc-client` to the command line. commands: argparse's subparsers, from `add_subparsers`."""
    text = "Have a server compute logits of images that it does not see."
    example = "--server unix:gc.sock --store mine --images x.npy --out y.npy"
    sub = options.add_program(commands, "gc-client", text, _CLIENT, example)
    add_connection(sub)
    options.add_caller(sub)
    sub.add_argument("--store", type=Path, metavar="DIR", help="folder of your own slots; created if missing")
    sub.add_argument("--proxy", metavar="ADDRESS", help="a proxy, whose slots are used instead: HOST:PORT or unix:PATH")
    text = "how a proxy's user sends an image: masked, or encrypted under a key that the server switches"
    sub.add_argument("--input", choices=INPUTS, default=INPUTS[0], help=f"{text} (default: %(default)s)")
    options.add_images(sub, "logits")
    text = "images in flight at a time (default: %(default)s)"
    sub.add_argument("--in-flight", type=count, default=IN_FLIGHT, metavar="N", help=text)
    sub.set_defaults(run=ask_net)


def add_proxy(commands: Any) -> None:
    """Add the program `gc-proxy` to the command line. commands: argparse's subparsers, from `add_subparsers`."""
    text = "Prepare slots for users of a net, who need no store."
    example = "--server unix:gc.sock --store slots --listen unix:proxy.sock"
    sub = options.add_program(commands, "gc-proxy", text, _PROXY, example)
    add_connection(sub)
    sub.add_argument("--store", required=True, type=Path, metavar="DIR", help="folder of the slots; created if missing")
    sub.add_argument("--slots", type=count, default=16, help="number of slots to keep ready (default: %(default)s)")
    options.add_service(sub)
    options.add_token(sub)
    sub.set_defaults(run=serve_proxy)
