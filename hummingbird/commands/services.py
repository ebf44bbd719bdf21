"""Commands for services beside `serve`: `dealer`, `pir-server`, `he-*`, `gc-*`, and `health` and `token` for all.

The programs of the services and of their clients are in the packages of the services. A function here imports only its
own program, and when the command is used: the dealer needs no CrypTen, `health` and `token` no torch.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hummingbird import disk
from hummingbird.errors import InputError
from hummingbird.rpc import telemetry
from hummingbird.rpc.options import add_tls, positive, tls_of
from hummingbird.rpc.security import check_name, line_of, new_token
from hummingbird.rpc.service import Tls

# Servers and their clients -------------------------------------------------------------------------------------------

_DEALER = "Deal correlated randomness to the parties of other runs; sees no input."
_DEALER_DESCRIPTION = (
    "The trusted third party of the offline phase: it sends random numbers and sees no input, no weight and no result. "
    "It must not collude with any party: together they could read that run's secrets."
)
_PIR_SERVER = "Serve one half of private lookups in a table; must not collude with the other server."


def add_dealer(commands: Any) -> None:
    """Add the command `dealer`, with its options, to the command line."""
    from hummingbird.mpc.dealer import command

    sub = commands.add_parser("dealer", help=_DEALER, description=_DEALER_DESCRIPTION)
    command.add_arguments(sub)
    sub.set_defaults(run=command.main)


def add_pir_server(commands: Any) -> None:
    """Add the command `pir-server`, with its options, to the command line."""
    from hummingbird.pir.serving import command

    sub = commands.add_parser("pir-server", help=_PIR_SERVER, description=command.DESCRIPTION)
    command.add_arguments(sub)
    sub.set_defaults(run=command.main)


def add_he_server(commands: Any) -> None:
    """Add the command `he-server` to the command line: it computes a net on the ciphertexts that clients send."""
    from hummingbird.commands.sources import add_model_arguments, net_of
    from hummingbird.he.service import command

    command.add_server(commands, add_model_arguments, net_of)


def add_he_client(commands: Any) -> None:
    """Add the command `he-client`, which sends encrypted images to a server, to the command line."""
    from hummingbird.he.service import command

    command.add_client(commands)


def add_he_convert(commands: Any) -> None:
    """Add the command `he-convert`, which makes a server's file and a description for clients, to the command line."""
    from hummingbird.commands.sources import add_model_arguments, net_of
    from hummingbird.he.service import file_command

    file_command.add_convert(commands, add_model_arguments, net_of)


def add_he_keygen(commands: Any) -> None:
    """Add the command `he-keygen`, which makes a client's key, to the command line."""
    from hummingbird.he.service import file_command

    file_command.add_keygen(commands)


def add_he_encrypt(commands: Any) -> None:
    """Add the command `he-encrypt`, which encrypts images to a file of requests, to the command line."""
    from hummingbird.he.service import file_command

    file_command.add_encrypt(commands)


def add_he_evaluate(commands: Any) -> None:
    """Add the command `he-evaluate`, which computes a net on a file of requests, to the command line."""
    from hummingbird.he.service import file_command

    file_command.add_evaluate(commands)


def add_he_decrypt(commands: Any) -> None:
    """Add the command `he-decrypt`, which decrypts a file of answers, to the command line."""
    from hummingbird.he.service import file_command

    file_command.add_decrypt(commands)


def add_gc_server(commands: Any) -> None:
    """Add the command `gc-server` to the command line: it serves a private net to clients that have the images."""
    from hummingbird.commands.sources import add_model_arguments, net_of
    from hummingbird.hybrid import command

    command.add_server(commands, add_model_arguments, net_of)


def add_gc_prepare(commands: Any) -> None:
    """Add the command `gc-prepare` to the command line: the data's side of two-party inference makes material in
    advance.
    """
    from hummingbird.hybrid import command

    command.add_prepare(commands)


def add_gc_client(commands: Any) -> None:
    """Add the command `gc-client` to the command line: the data's side of two-party inference, online, for given
    images.
    """
    from hummingbird.hybrid import command

    command.add_client(commands)


def add_gc_proxy(commands: Any) -> None:
    """Add the command `gc-proxy` to the command line: the data's side of two-party inference as a service for users."""
    from hummingbird.hybrid import command

    command.add_proxy(commands)


# Health --------------------------------------------------------------------------------------------------------------

_HEALTH = "Ask a service (serve, dealer, he-server and others) whether it is ready."
_HEALTH_TEXT = """Print the answer of a service's gRPC health service, SERVING or NOT_SERVING; the exit status is 0 only
for SERVING. A party of `serve` that waits for other parties, or for material, is alive but not ready. No token is
needed: for a service with tokens, name --tls-ca alone; for one with mutual TLS, a certificate too."""
_HEALTH_EPILOG = """example:
  python -m hummingbird health 127.0.0.1:9100
"""


def add_health(commands: Any) -> None:
    """Add the command `health`, with its options, to the command line."""
    form = argparse.RawDescriptionHelpFormatter
    sub = commands.add_parser(
        "health", help=_HEALTH, description=_HEALTH_TEXT, epilog=_HEALTH_EPILOG, formatter_class=form
    )
    sub.add_argument("address", metavar="ADDRESS", help="HOST:PORT or unix:PATH, as the certificate names the host")
    text = "longest wait for the answer, seconds (default: %(default)s)"
    sub.add_argument("--timeout", type=positive, default=10.0, metavar="SECONDS", help=text)
    sub.add_argument("--live", action="store_true", help="ask whether the program is alive, ready or not")
    add_tls(sub)
    sub.set_defaults(run=_ask_health)


def _ask_health(args: argparse.Namespace) -> int:
    """Ask a service once whether it is ready, and print the answer; return the exit code, 0 if it is and 1 if not."""
    authority_alone = args.tls_ca is not None and args.tls_cert is None and args.tls_key is None
    tls = Tls(ca=args.tls_ca) if authority_alone else tls_of(args)
    status = telemetry.ask(args.address, tls, args.timeout, telemetry.LIVE if args.live else telemetry.READY)
    print(status)
    return 0 if status == "SERVING" else 1


# Tokens --------------------------------------------------------------------------------------------------------------

_TOKEN = "Make a caller's token for a service (he-server, gc-server and others with --tokens)."
_TOKEN_TEXT = """Make a token of 256 random bits, and write it to the caller's file, --out. The service's file,
--tokens, gets a line of the caller's name and the token's hash. Both files are for their owner alone (mode 600). A
service reads its file again when it changes: removing a line revokes the token."""
_TOKEN_EPILOG = """example:
  python -m hummingbird token alice --tokens tokens.txt --out alice.token
"""


def add_token(commands: Any) -> None:
    """Add the command `token`, with its options, to the command line."""
    form = argparse.RawDescriptionHelpFormatter
    sub = commands.add_parser("token", help=_TOKEN, description=_TOKEN_TEXT, epilog=_TOKEN_EPILOG, formatter_class=form)
    sub.add_argument("name", metavar="NAME", help="the caller's name: 1 to 64 letters, digits and . _ @ -")
    text = "the service's token file, to which a line is added; created if missing"
    sub.add_argument("--tokens", required=True, type=Path, metavar="FILE", help=text)
    sub.add_argument("--out", required=True, type=Path, metavar="FILE", help="the caller's new file")
    sub.set_defaults(run=_make_token)


def _make_token(args: argparse.Namespace) -> int:
    """Make a token; write it to a file for the caller, and its line to the service's token file.

    Returns the exit code 0. Raises InputError if one of the files cannot be written.
    """
    check_name(args.name)
    token = new_token()
    try:
        disk.create(args.out, [f"{token}\n".encode()], mode=disk.PRIVATE)
        disk.sync(args.out.parent)
    except FileExistsError:
        raise InputError(f"{args.out} is there already", where="--out", hint="name another file") from None
    except OSError as error:
        raise InputError(f"cannot write {args.out}: {error.strerror}", where="--out") from None
    try:
        _add_line(args.tokens, line_of(args.name, token).encode())
    except OSError as error:
        args.out.unlink()  # no service knows this token
        raise InputError(f"cannot write {args.tokens}: {error.strerror}", where="--tokens") from None
    print(f"{args.tokens} knows {args.name}: give {args.out} to it, over a channel that nobody else reads")
    return 0


def _add_line(path: Path, line: bytes) -> None:
    """Add a line to a file, on the disk when this returns. If the file's last line has no end, end it first."""
    ended = not path.exists() or path.read_bytes()[-1:] in (b"", b"\n")
    disk.append(path, [line if ended else b"\n" + line], mode=disk.PRIVATE)
    disk.sync(path.parent)
