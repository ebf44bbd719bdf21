"""Command-line options of several packages' programs: numbers, certificates, services, callers, a client's images.

A function `add_...` adds options, and the function after it reads them. Checks of a single value are argparse types.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hummingbird.errors import InputError
from hummingbird.rpc.admission import MAX_MESSAGE, Limits
from hummingbird.rpc.security import read_token
from hummingbird.rpc.server import GRACE, ServiceConfig
from hummingbird.rpc.service import Tls
from hummingbird.structure import flatten, places

if TYPE_CHECKING:
    from torch import Tensor

# Numbers --------------------------------------------------------------------------------------------------------------


def positive(text: str) -> float:
    """Parse the text of a command-line option whose value is a finite number above 0; return it as a float."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0")
    return value


def count(text: str) -> int:
    """Parse the text of a command-line option whose value is an integer of 1 or more; return the integer."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def whole(text: str) -> int:
    """Parse the text of a command-line option whose value is an integer of 0 or more; return the integer."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)


def share(text: str) -> tuple[str | None, int]:
    """Parse the text of a command-line option that limits callers; return (name, limit).

    "N" is the limit of every caller, for whom the name is None; "NAME=N" is the limit of the caller with this name.
    """
    name, equals, number = text.rpartition("=")
    if (equals and not name) or not number.isdecimal() or int(number) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is neither N nor NAME=N, with a whole number N from 1")
    return name or None, int(number)


def shape(text: str) -> tuple[int, ...]:
    """Parse the text of a command-line option whose value is a shape, such as 3x32x32; return it as a tuple.

    Raises argparse.ArgumentTypeError unless it consists of sizes of 1 or more.
    """
    try:
        sizes = tuple(int(part) for part in text.lower().replace(",", "x").split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape such as 3x32x32") from None
    if min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} holds a size below 1")
    return sizes


# Certificates ---------------------------------------------------------------------------------------------------------


def add_program(commands: Any, name: str, line: str, description: str, example: str) -> argparse.ArgumentParser:
    """Add a program to the command line, with an example at the end of its help; return its parser.

    commands: argparse's subparsers, from `add_subparsers`. name: of the program. line: its entry in the list of
    programs. description: the text of its help. example: the arguments of the example.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=line,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"example:\n  python -m hummingbird {name} {example}",
    )
    return parser


def add_tls(
    parser: argparse._ActionsContainer,
    cert: str = "this side's certificate (PEM); a server's is for its host name",
    ca: str = "certificate of the authority of all sides (PEM)",
) -> None:
    """Add the options --tls-cert, --tls-key and --tls-ca, which name certificate files. `tls_of` reads them.

    cert, ca: help texts of --tls-cert and --tls-ca, which say whose certificate it is, and for which name.
    """
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help=cert)
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="its key (PEM)")
    parser.add_argument("--tls-ca", type=Path, metavar="FILE", help=ca)


def tls_of(args: argparse.Namespace) -> Tls | None:
    """Return the certificate files that the options of `add_tls` name, as a `Tls`; None if they name none.

    Raises InputError if one or two of the three files are named.
    """
    files = {f"--tls-{name}": getattr(args, f"tls_{name}") for name in ("cert", "key", "ca")}
    missing = [option for option, file in files.items() if file is None]
    if not missing:
        return Tls(*files.values())
    if len(missing) < len(files):
        what = f"TLS needs --tls-cert, --tls-key and --tls-ca; there is no {' and no '.join(missing)}"
        with_token = hasattr(args, "token_file") or hasattr(args, "tokens")
        hint = "; with tokens a caller has --tls-ca alone, a server the other two" if with_token else ""
        raise InputError(what, hint=f"give all three or none{hint}")
    return None


# Services and their callers -------------------------------------------------------------------------------------------


def add_service(
    parser: argparse.ArgumentParser,
    *,
    addresses: str | int | None = None,
    listen: str = "",
    tokens: bool = True,
    grace: float = GRACE,
) -> None:
    """Add the options of a server program: addresses, certificates, tokens, limits and so on. `service_of` reads them.

    addresses: argparse's nargs for a program that listens at several addresses. listen: help text of --listen in place
    of the usual one. tokens: whether callers may show tokens. grace: the default of --grace, seconds.
    """
    text = listen or "HOST:PORT or unix:PATH; callers on other hosts need TLS, and certificates or tokens"
    parser.add_argument("--listen", required=True, nargs=addresses or 1, metavar="ADDRESS", help=text)
    otherwise = (" or by tokens", "; without it callers show tokens") if tokens else ("", "")
    title = f"authenticated by certificates (--tls-cert, --tls-key, --tls-ca){otherwise[0]}"
    group = parser.add_argument_group("callers", title)
    add_tls(
        group,
        cert="this server's certificate (PEM), for its host name",
        ca=f"certificate of the callers' authority (PEM){otherwise[1]}",
    )
    if tokens:
        text = "callers' names and hashes of their tokens; `python -m hummingbird token` makes them"
        group.add_argument("--tokens", type=Path, metavar="FILE", help=text)
    else:
        parser.set_defaults(tokens=None)
    group = parser.add_argument_group("operation", "docs/operations.md")
    text = "serve figures for Prometheus at http://HOST:PORT/metrics; without HOST on loopback only"
    group.add_argument("--metrics", metavar="[HOST:]PORT", help=text)
    text = "append a line of JSON for each call, without values; - for standard error"
    group.add_argument("--log", metavar="FILE", help=text)
    most, default = Limits(), "(default: %(default)s)"
    text = "record spans of requests, for OpenTelemetry: where they go, its own variables and launcher say"
    group.add_argument("--trace", action="store_true", help=text)
    text = f"most calls at work at a time; the last quarter is for callers with few calls {default}"
    group.add_argument("--max-requests", type=count, default=most.requests, metavar="N", help=text)
    text = f"most calls at work of each caller, or of the caller NAME (default: {most.per_client})"
    metavar = ("N", "NAME=N")
    group.add_argument("--max-per-client", type=share, nargs="+", default=[], metavar=metavar, help=text)
    text = f"most open connections {default}"
    group.add_argument("--max-connections", type=count, default=most.connections, metavar="N", help=text)
    text = f"longest time for calls at work to end after SIGTERM {default}"
    group.add_argument("--grace", type=positive, default=grace, metavar="SECONDS", help=text)


def service_of(args: argparse.Namespace, message: int = MAX_MESSAGE) -> ServiceConfig:
    """Return what the options of `add_service` say about a program's servers, as a `ServiceConfig`.

    message: most bytes of one message, in either direction. Raises InputError and TrustError for options that
    contradict each other.
    """
    shares = dict(args.max_per_client)
    if len(shares) < len(args.max_per_client):
        raise InputError("a name has two limits", where="--max-per-client", hint="one N for all, and one for each NAME")
    each = shares.pop(None, Limits.per_client)
    most = Limits(args.max_requests, each, message, connections=args.max_connections, named=shares)
    return ServiceConfig(
        listen=tuple(args.listen),
        tls=_tls_with_tokens(args, "cert", "key", tokens=args.tokens is not None),
        tokens=args.tokens,
        metrics=args.metrics,
        log=args.log,
        trace=args.trace,
        limits=most,
        grace=args.grace,
    )


def add_caller(parser: argparse._ActionsContainer) -> None:
    """Add the options of a program that calls a service: certificate files and --token-file. `caller_of` reads them."""
    add_tls(parser)
    add_token(parser)


def add_token(parser: argparse._ActionsContainer) -> None:
    """Add the option --token-file, the file that holds this program's token as a caller.

    It is for a program that both serves and calls, with one certificate for both: the options for this come from
    `add_service`.
    """
    text = "file of this side's token, instead of a certificate; TLS then takes --tls-ca alone"
    parser.add_argument("--token-file", type=Path, metavar="FILE", help=text)


def caller_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return a client's arguments `tls` and `token`, as a dict, from the options of `add_caller`.

    Reads the token from its file. Raises the errors of `read_token`, and InputError if certificate files are missing.
    """
    token = None if args.token_file is None else read_token(args.token_file)
    return {"tls": _tls_with_tokens(args, "ca", tokens=token is not None), "token": token}


def _tls_with_tokens(args: argparse.Namespace, *names: str, tokens: bool) -> Tls | None:
    """Return the certificate files that a program's options (`add_tls`) name, as a `Tls`; None if they name none.

    names: the files, such as "cert" and "key" of a service, that suffice if callers show tokens here (`tokens`);
    otherwise all three files are needed. A program that both serves and calls may set further files: they are left out
    of the result. Raises InputError if some files are missing.
    """
    files = {name: getattr(args, f"tls_{name}") for name in ("cert", "key", "ca")}
    needed = {name: files[name] for name in names if files[name] is not None}
    both = hasattr(args, "tokens") and hasattr(args, "token_file")
    others = any(file is not None for name, file in files.items() if name not in names)
    return Tls(**needed) if tokens and len(needed) == len(names) and (both or not others) else tls_of(args)


# A client's images ----------------------------------------------------------------------------------------------------


def add_images(parser: argparse._ActionsContainer, outputs: str, *, several: bool = False) -> None:
    """Add the options --images, --labels and --out of a program that asks a net for results.

    outputs: the name of the net's results in help texts, as in "logits". several: whether --images takes a file for
    each input of a net, which `inputs_of` reads.
    """
    text = "images (n, ...)" + (
        "; for a net with several inputs, one file for each, in the order of forward()" if several else ""
    )
    how: dict[str, Any] = {"nargs": "+"} if several else {}
    parser.add_argument("--images", required=True, type=Path, metavar="FILE.npy", help=text, **how)
    parser.add_argument("--labels", type=Path, metavar="FILE.npy", help="labels (n,): print the accuracy")
    parser.add_argument("--out", type=Path, metavar="FILE.npy", help=f"write the {outputs} (n, ...); several: FILE.npz")


def images_of(args: argparse.Namespace) -> tuple[Tensor, Tensor | None]:
    """Return images, float32 (n, ...), and labels, (n,) or None, from the files in the options of `add_images`.

    Raises InputError for files with other contents, and if the folder of --out does not exist.
    """
    (images,), labels = inputs_of(args, [args.images])
    return images.float(), labels


def inputs_of(args: argparse.Namespace, files: Sequence[Path]) -> tuple[list[Tensor], Tensor | None]:
    """Return a list of a net's inputs, and the labels (n,) of the option --labels, or None.

    files: one for each input, of numpy.save; an input has the type of its file. Raises InputError for files with other
    contents, and if the folder of --out does not exist.
    """
    images, labels = [array_of(file, "--images") for file in files], None
    if args.labels is not None:
        labels = array_of(args.labels, "--labels")
        if labels.shape != images[0].shape[:1]:
            what = f"labels are {tuple(labels.shape)}, expected ({len(images[0])},)"
            raise InputError(what, where="--labels", hint="one for each image")
    check_out(args)
    return images, labels


def check_out(args: argparse.Namespace) -> None:
    """Raise InputError if --out is set and its folder does not exist."""
    if args.out is not None and (args.out.is_dir() or not args.out.parent.is_dir()):
        what = f"{args.out} is a folder" if args.out.is_dir() else f"there is no folder {args.out.parent}"
        raise InputError(what, where="--out", hint="name a file in a folder that exists")


def decided(outputs: Tensor) -> Tensor:
    """Return the decisions for outputs (n, ...), int64 (n,): the index of the largest value of each image.

    If each image has a single value, the decision is whether it is above a threshold, which is 0.5 if all values are in
    [0, 1], else 0.
    """
    flat = outputs.flatten(1) if outputs.dim() > 1 else outputs[:, None]
    if flat.shape[1] > 1:
        return flat.argmax(1)
    threshold = 0.5 if bool(((flat >= 0) & (flat <= 1)).all()) else 0.0
    return (flat[:, 0] > threshold).long()


def accuracy(outputs: Tensor, labels: Tensor) -> str:
    """Return a line of text that says for how many outputs the decision (`decided`) equals the label.

    outputs: (n, ...), one for each image. labels: (n,).
    """
    right = int((decided(outputs) == labels).sum())
    return f"accuracy {100 * right / len(labels):.2f} %, {right} of {len(labels)}"


def check_labels(args: argparse.Namespace, names: Sequence[str]) -> None:
    """Raise InputError if --labels is set for a net that has several results.

    names: the names of the net's results.
    """
    if args.labels is not None and len(names) > 1:
        what = f"the net has {len(names)} results, {', '.join(names)}"
        raise InputError(what, where="--labels", hint="labels are for one: leave them out")


def write_results(path: Path, results: Any) -> None:
    """Write a net's results to a file: one tensor by numpy.save, several by numpy.savez under their names.

    results: a tensor, or a tuple or dict of tensors, as the net returns them.
    """
    import numpy as np
    import torch

    structure, found = flatten(results, lambda value: isinstance(value, torch.Tensor))
    if len(found) == 1:
        np.save(path, found[0].numpy())
    else:
        np.savez(path, **{name: x.numpy() for name, x in zip(places(structure), found, strict=True)})


def array_of(path: Path, where: str) -> Tensor:
    """Return the array in a file of numpy.save as a tensor, with its own type.

    where: the option that names the file, for errors. Raises InputError for a file that holds no array of numbers, or
    an empty one.
    """
    import numpy as np  # here: a health probe needs neither of these, which take seconds to import
    import torch

    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"cannot read {path}: {error}", where=where, hint="a file of numpy.save") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub" or array.ndim < 1 or not array.size:
        raise InputError(f"{path} holds no array of numbers", where=where, hint="a file of numpy.save")
    return torch.from_numpy(array)
