"""The programs `python -m hummingbird he-server` and `he-client`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from hummingbird.he.compile.convert import convert_model
from hummingbird.he.runtime.client_spec import MODES, Public
from hummingbird.he.runtime.precision import summary
from hummingbird.he.service.client import RemoteModel
from hummingbird.he.service.server import IDLE_SECONDS, MAX_CALLS, TURNS, Service
from hummingbird.kernels import devices
from hummingbird.kernels.devices import find_device
from hummingbird.rpc import options
from hummingbird.rpc.options import positive
from hummingbird.rpc.programs import ServiceParts, run_client, run_service
from hummingbird.structure import places

_SERVER = """Evaluate a net on ciphertexts for the clients that connect; sees no image and no result.

The server holds the weights and no key. In client-aided mode (the default) the clients compute the activations and so
see their inputs, enough of which determine the weights before them. In polynomial mode a client sees results only, but
the net may have no activations but polynomials, such as squares. Plain text stays on this host: give certificates or
tokens for clients elsewhere."""
_CLIENT = """Have a server evaluate its net on encrypted images; it sees neither images nor results.

The key is made here and stays here; the parameters that the server proposes must pass both security tables. Images are
a .npy file of numbers (n, ...), scaled as the net was trained."""
_DEVICE = "where this side computes: cpu, cuda, or cuda:1 for one GPU of several (default: %(default)s)"


def serve_net(args: argparse.Namespace, net: nn.Module) -> int:
    """Run `he-server`: plan a net, print the plan, and serve the net until SIGTERM or SIGINT."""
    devices.keep_freed_memory()
    config = options.service_of(args)
    samples = None if args.samples is None else options.array_of(args.samples, "--samples").float()
    find_device(args.device, "--device")  # before the plan, which takes a while
    model = convert_model(net, args.input, args.mode, input_range=args.range, samples=samples, device=args.device)
    print(model.report(), flush=True)
    memory = None if args.memory is None else int(args.memory * 1e9)
    service = Service(model.server, turns=args.turns, memory=memory, idle=args.idle)
    run_service("he-server", config, ServiceParts([service.handlers()], service.measure))
    return 0


def ask_net(args: argparse.Namespace) -> int:
    """Run `he-client`: send images, print times, sizes, and the accuracy if there are labels, and write the outputs."""
    devices.keep_freed_memory()
    images, labels = options.images_of(args)
    memory = None if args.memory is None else int(args.memory * 1e9)
    where: dict[str, Any] = {"timeout": args.timeout, "memory": memory, "device": args.device}

    def figures(model: RemoteModel, seconds: float) -> list[str]:
        up, down = model.sent_bytes / len(images) / 1e3, model.received_bytes / len(images) / 1e3
        rate = f"{len(images)} images in {seconds:.2f} s, {len(images) / seconds:,.0f} images/s"
        again = [f"{model.repeated} turns were tried again: the server was away, or had no room"]
        lines = again if model.repeated else []
        return [f"{rate}; {up:.1f} kB up and {down:.1f} kB down per image", *lines, summary(model.precision)]

    run_client(
        args,
        RemoteModel(args.server, **options.caller_of(args), **where),
        len(images),
        labels,
        names=lambda model: places(model.public.structure),
        ask=lambda model, progress: model(images, in_flight=args.in_flight, progress=progress),
        figures=figures,
        opening=lambda model: [_describe(model.public)],
    )
    return 0


def _describe(public: Public) -> str:
    """Return a text of two lines about the server's plan.

    The first has mode, turns and parameters; the second the bytes of a batch and of one image.
    """
    p, n, (up, down) = public.parameters, public.slots, public.batch_bytes()
    limits = ", ".join(f"{bits} in the {year} table" for year, bits in p.limits.items())
    turns = f"{len(public.turns)} turns of up to {n} images"
    return (
        f"{public.mode}, {turns}; N = {p.degree}, log2 Q = {p.bits:.1f} (at most {limits})\n"
        f"a batch is {up / 1e6:.2f} MB up and {down / 1e6:.2f} MB down, whether it holds 1 image or {n}: "
        f"{(up + down) / 1e6:.2f} MB for a lone image, {(up + down) / n / 1e3:.2f} kB for each of {n}"
    )


def add_server(
    commands: Any,
    add_model_arguments: Callable[[argparse.ArgumentParser], None],
    build: Callable[[argparse.Namespace], nn.Module],
) -> None:
    """Add the program `he-server` to the command line. commands: argparse's subparsers, from `add_subparsers`.

    add_model_arguments: a function that adds to a parser the options that name a net. build: a function that makes the
    net from the parsed options.
    """
    line = "Evaluate a net on ciphertexts for clients; sees no image and no result."
    example = (
        "--model models:trained cryptonets 10 checkpoints/cryptonets-relu.pt \\\n"
        "      activation=relu --input 1x28x28 --listen unix:he.sock"
    )
    sub = options.add_program(commands, "he-server", line, _SERVER, example)
    add_model_arguments(sub)
    sub.add_argument("--input", required=True, type=options.shape, metavar="CxHxW", help="shape of one image")
    sub.add_argument("--mode", choices=MODES, default=MODES[0], help="default: %(default)s")
    sub.add_argument("--range", type=positive, metavar="X", help="bound on |input|, which clients check")
    sub.add_argument(
        "--samples", type=Path, metavar="FILE.npy", help="images like those to come, for better predictions"
    )
    sub.add_argument(
        "--turns", type=int, default=TURNS, help=f"clients served at a time, 1 to {MAX_CALLS} (default: %(default)s)"
    )
    memory = "limit on their predicted memory together (default: all)"
    sub.add_argument("--memory", type=positive, metavar="GB", help=memory)
    sub.add_argument("--device", default="cpu", metavar="NAME", help=_DEVICE)
    sub.add_argument("--idle", type=positive, default=IDLE_SECONDS, help="longest silence of a client, seconds")
    options.add_service(sub)
    sub.set_defaults(run=lambda args: serve_net(args, build(args)))


def add_client(commands: Any) -> None:
    """Add the program `he-client` to the command line. commands: argparse's subparsers, from `add_subparsers`."""
    example = "--server unix:he.sock --images images.npy --labels labels.npy --out out.npy"
    line = "Have a server evaluate its net on encrypted images."
    sub = options.add_program(commands, "he-client", line, _CLIENT, example)
    sub.add_argument("--server", required=True, metavar="ADDRESS", help="HOST:PORT or unix:PATH")
    options.add_images(sub, "outputs")
    text = "batches in flight at a time (default: %(default)s)"
    sub.add_argument("--in-flight", type=options.count, default=2, metavar="N", help=text)
    sub.add_argument("--memory", type=positive, metavar="GB", help="limit on the memory of batches here (default: all)")
    sub.add_argument("--device", default="cpu", metavar="NAME", help=_DEVICE)
    sub.add_argument("--timeout", type=positive, default=120.0, help="longest silence of the server, seconds")
    options.add_caller(sub)
    sub.set_defaults(run=ask_net)
