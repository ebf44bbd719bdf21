"""The programs of encrypted inference through files: he-convert, he-keygen, he-encrypt, he-evaluate, he-decrypt.

`by_file.py` has what they do. Each is one step of one party, and reads what the steps before have written.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from hummingbird import disk
from hummingbird.errors import HummingbirdError, InputError
from hummingbird.he.compile.convert import convert_model
from hummingbird.he.runtime import messages
from hummingbird.he.runtime.client import Client
from hummingbird.he.runtime.client_spec import Public
from hummingbird.he.runtime.precision import summary
from hummingbird.he.runtime.server import Server
from hummingbird.he.service.by_file import check_turns, decrypt_from, encrypt_to, evaluate_to
from hummingbird.kernels import devices
from hummingbird.rpc import options
from hummingbird.rpc.options import positive
from hummingbird.structure import leaf, places

_CONVERT = """Make the file of a server, and the description of its net for clients.

The net's layers become whole-number programs on ciphertexts, in polynomial mode: the server computes everything, and a
client sees results only. Activations must be polynomials, such as squares. The server's file has the weights: keep it
from clients. The description has none: give it to everybody."""
_KEYGEN = """Make a client's secret key for a net.

The file has mode 0600 and never goes to a server: whoever reads it can decrypt all that the client encrypts. The
description must come from the owner of the net; its parameters must pass both security tables."""
_ENCRYPT = """Encrypt images to a file of requests for the server.

The server sees how many batches there are, and nothing of the images. The folder of batches stays here: its files, of
mode 0600, have the images in the clear, and he-decrypt needs them. Every run draws new randomness."""
_EVALUATE = """Compute a net on a file of requests; this side has no key and sees no image and no result.

With --follow, the net is loaded once, and lines on standard input name the files: REQUEST, a tab, ANSWER. A line on
standard output follows each: "done:" with the number of requests and the seconds, or "error:" with the reason. An empty
line ends the program."""
_DECRYPT = """Decrypt the answers to a file of requests, with the key and the batches of he-encrypt.

Answers of another client, net or request are refused. Do not publish outputs in full precision: their errors tell of
the key."""


def convert(args: argparse.Namespace, net: nn.Module) -> int:
    """Run `he-convert`: convert a net, print the plan, and write the server's file and the description."""
    _apart(args.out, "--out", args.public, "--public")
    samples = None if args.samples is None else options.array_of(args.samples, "--samples").float()
    model = convert_model(net, args.input, "polynomial", input_range=args.range, samples=samples)
    print(model.report())
    model.server.save(args.out)
    text = model.public.to_json().encode()
    try:
        disk.save(args.public, [text])
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror}", where=str(args.public)) from None
    print(f"net {messages.digest(text)[:16]}: {args.out} is for the server, {args.public} for clients")
    return 0


def _apart(one: Path, option: str, other: Path, other_option: str) -> None:
    """Raise InputError if two options name the same file: writing one would destroy the other."""
    if one.resolve() == other.resolve():
        raise InputError(f"one file for both: {one}", where=f"{option}, {other_option}", hint="name two files")


def keygen(args: argparse.Namespace) -> int:
    """Run `he-keygen`: draw a key for a net's description, and write both to a new file."""
    try:
        text = args.public.read_bytes()
    except OSError as error:
        hint = "the owner of the net makes it: he-convert --public"
        raise InputError(f"cannot read: {error.strerror}", where=str(args.public), hint=hint) from None
    try:
        public = Public.from_json(text)
    except InputError as error:
        hint = "the description is the file of he-convert --public, not the server's file"
        raise InputError(error.what, where=str(args.public), hint=hint) from None
    check_turns(public, str(args.public))
    Client(public).save(args.out)
    print(f"key for the net {messages.digest(text)[:16]}: {args.out} stays with its owner")
    return 0


def encrypt(args: argparse.Namespace) -> int:
    """Run `he-encrypt`: encrypt images; print seconds and sizes."""
    devices.keep_freed_memory()
    _apart(args.client, "--client", args.request, "--request")
    client = Client.load(args.client)
    images = options.array_of(args.images, "--images").float()
    started = time.perf_counter()
    size = encrypt_to(client, images, args.request, args.batches)
    seconds = time.perf_counter() - started
    batches = -(-len(images) // client.public.slots)
    print(f"{len(images)} images, {batches} requests, {size / 1e6:.2f} MB, in {seconds:.3f} s")
    return 0


def evaluate(args: argparse.Namespace) -> int:
    """Run `he-evaluate`: compute the answers to one file of requests, or to those that standard input names."""
    devices.keep_freed_memory()
    if args.follow == (args.request is not None) or (args.request is None) != (args.out is None):
        raise InputError("give --request and --out, or --follow", where="he-evaluate", hint="one of the two ways")
    server = Server.load(args.net)
    check_turns(server.public, str(args.net))
    if not args.follow:
        print(_evaluated(server, args.request, args.out))
        return 0
    print(f"ready: net {messages.digest(server.public.to_json().encode())[:16]}", flush=True)
    for line in iter(sys.stdin.readline, ""):
        if line == "\n":
            break
        request, tab, answer = line.rstrip("\n").partition("\t")
        try:
            if not tab:
                raise InputError(f"a line without a tab: {line[:80]!r}", where="stdin", hint="REQUEST, a tab, ANSWER")
            print(_evaluated(server, Path(request), Path(answer)), flush=True)
        except HummingbirdError as error:
            print("error:", str(error).replace("\n", "; "), flush=True)
    return 0


def _evaluated(server: Server, request: Path, answer: Path) -> str:
    started = time.perf_counter()
    count = evaluate_to(server, request, answer)
    return f"done: {count} requests in {time.perf_counter() - started:.3f} s"


def decrypt(args: argparse.Namespace) -> int:
    """Run `he-decrypt`: decrypt answers, print precision, and the accuracy if there are labels; write the outputs."""
    options.check_out(args)
    client = Client.load(args.client)
    labels = None if args.labels is None else options.array_of(args.labels, "--labels")
    options.check_labels(args, [*places(client.public.structure)])
    started = time.perf_counter()
    found = decrypt_from(client, args.batches, args.answer)
    seconds, images = time.perf_counter() - started, found.images
    print(f"{images} images in {seconds:.3f} s; {summary(found.precision)}")
    if labels is not None:
        if labels.shape != (images,):
            what = f"labels are {tuple(labels.shape)}, and there are {images} images"
            raise InputError(what, where="--labels", hint="one for each image, (n,)")
        print(options.accuracy(leaf(found.outputs), labels))
    options.write_results(args.out, found.outputs)
    return 0


def add_convert(
    commands: Any,
    add_model_arguments: Callable[[argparse.ArgumentParser], None],
    build: Callable[[argparse.Namespace], nn.Module],
) -> None:
    """Add the program `he-convert` to the command line. commands: argparse's subparsers, from `add_subparsers`.

    add_model_arguments: a function that adds to a parser the options that name a net. build: a function that makes the
    net from the parsed options.
    """
    example = (
        "--model models:trained cryptonets 10 checkpoints/cryptonets-square.pt \\\n"
        "      activation=square --input 1x28x28 --out net.server --public client.json"
    )
    sub = options.add_program(
        commands, "he-convert", "Make a server's file from a net, for encrypted images.", _CONVERT, example
    )
    add_model_arguments(sub)
    sub.add_argument("--input", required=True, type=options.shape, metavar="CxHxW", help="shape of one image")
    sub.add_argument("--range", type=positive, metavar="X", help="bound on |input|, which clients check (default: 4)")
    text = "images like those to come: ranges are then measured, not proven, and parameters smaller"
    sub.add_argument("--samples", type=Path, metavar="FILE.npy", help=text)
    sub.add_argument("--out", required=True, type=Path, metavar="FILE", help="the server's file, with the weights")
    sub.add_argument("--public", required=True, type=Path, metavar="FILE.json", help="the description for clients")
    sub.set_defaults(run=lambda args: convert(args, build(args)))


def add_keygen(commands: Any) -> None:
    """Add the program `he-keygen` to the command line. commands: argparse's subparsers, from `add_subparsers`."""
    example = "--public client.json --out my.client"
    sub = options.add_program(
        commands, "he-keygen", "Make a client's secret key, for encrypted images.", _KEYGEN, example
    )
    sub.add_argument("--public", required=True, type=Path, metavar="FILE.json", help="the net's description")
    sub.add_argument("--out", required=True, type=Path, metavar="FILE", help="the client's new file, with the key")
    sub.set_defaults(run=keygen)


def add_encrypt(commands: Any) -> None:
    """Add the program `he-encrypt` to the command line. commands: argparse's subparsers, from `add_subparsers`."""
    example = "--client my.client --images images.npy --request request --batches my.batches"
    sub = options.add_program(commands, "he-encrypt", "Encrypt images to a file for a server.", _ENCRYPT, example)
    sub.add_argument("--client", required=True, type=Path, metavar="FILE", help="the client's file, from he-keygen")
    sub.add_argument("--images", required=True, type=Path, metavar="FILE.npy", help="images (n, ...)")
    sub.add_argument("--request", required=True, type=Path, metavar="FILE", help="the file for the server")
    text = "a folder for what he-decrypt needs: the images in the clear"
    sub.add_argument("--batches", required=True, type=Path, metavar="FOLDER", help=text)
    sub.set_defaults(run=encrypt)


def add_evaluate(commands: Any) -> None:
    """Add the program `he-evaluate` to the command line. commands: argparse's subparsers, from `add_subparsers`."""
    example = "--net net.server --request request --out answer"
    sub = options.add_program(
        commands, "he-evaluate", "Compute a net on a file of encrypted images.", _EVALUATE, example
    )
    sub.add_argument("--net", required=True, type=Path, metavar="FILE", help="the server's file, from he-convert")
    sub.add_argument("--request", type=Path, metavar="FILE", help="what he-encrypt wrote")
    sub.add_argument("--out", type=Path, metavar="FILE", help="the file of answers")
    sub.add_argument("--follow", action="store_true", help="load the net once, and take files from standard input")
    sub.set_defaults(run=evaluate)


def add_decrypt(commands: Any) -> None:
    """Add the program `he-decrypt` to the command line. commands: argparse's subparsers, from `add_subparsers`."""
    example = "--client my.client --batches my.batches --answer answer --out logits.npy"
    sub = options.add_program(commands, "he-decrypt", "Decrypt a server's answers.", _DECRYPT, example)
    sub.add_argument("--client", required=True, type=Path, metavar="FILE", help="the client's file, from he-keygen")
    sub.add_argument("--batches", required=True, type=Path, metavar="FOLDER", help="what he-encrypt wrote beside")
    sub.add_argument("--answer", required=True, type=Path, metavar="FILE", help="what he-evaluate wrote")
    sub.add_argument("--labels", type=Path, metavar="FILE.npy", help="labels (n,): print the accuracy")
    sub.add_argument("--out", required=True, type=Path, metavar="FILE.npy", help="the outputs (n, ...); several: .npz")
    sub.set_defaults(run=decrypt)
