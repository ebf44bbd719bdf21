"""`health`: asks a service's gRPC health service whether it serves, for probes and scripts."""

from __future__ import annotations

import argparse
from typing import Any

from hummingbird.rpc import telemetry
from hummingbird.rpc.options import add_tls, positive, tls_of
from hummingbird.rpc.service import Tls

HELP = "Ask a service (serve, dealer, he-server and others) whether it is ready."
_DESCRIPTION = """Print the answer of a service's gRPC health service, SERVING or NOT_SERVING; the exit status is 0 only
for SERVING. A party of `serve` that waits for other parties, or for material, is alive but not ready. No token is
needed: for a service with tokens, name --tls-ca alone; for one with mutual TLS, a certificate too."""
_EPILOG = """example:
  python -m hummingbird health 127.0.0.1:9100
"""


def add_parser(commands: Any) -> None:
    """Add the command `health`, with its options, to the command line."""
    form = argparse.RawDescriptionHelpFormatter
    sub = commands.add_parser("health", help=HELP, description=_DESCRIPTION, epilog=_EPILOG, formatter_class=form)
    sub.add_argument("address", metavar="ADDRESS", help="HOST:PORT or unix:PATH, as the certificate names the host")
    text = "longest wait for the answer, seconds (default: %(default)s)"
    sub.add_argument("--timeout", type=positive, default=10.0, metavar="SECONDS", help=text)
    sub.add_argument("--live", action="store_true", help="ask whether the program is alive, ready or not")
    add_tls(sub)
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Ask the service's health once, and print the answer."""
    authority_alone = args.tls_ca is not None and args.tls_cert is None and args.tls_key is None
    tls = Tls(ca=args.tls_ca) if authority_alone else tls_of(args)
    status = telemetry.ask(args.address, tls, args.timeout, telemetry.LIVE if args.live else telemetry.READY)
    print(status)
    return 0 if status == "SERVING" else 1
