"""Running as a party: the session by options of the command line, and errors that the other parties are told."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hummingbird.errors import HummingbirdError
from hummingbird.launching.run import may_speak
from hummingbird.mpc.session import launch
from hummingbird.mpc.session.lanes import environment
from hummingbird.rpc.options import add_tls, tls_of
from hummingbird.rpc.service import Tls


def add_session_arguments(parser: argparse.ArgumentParser, *, certificates: bool = True) -> None:
    """--lanes, --device, --dealer, --store, --tls-*, --peer-*, --timeout. certificates: whether it adds --tls-*."""
    group = parser.add_argument_group("session")
    group.add_argument(
        "--lanes",
        type=int,
        metavar="N",
        help="processes of each party, one for each of its GPUs (default: HUMMINGBIRD_LANES, else 1)",
    )
    group.add_argument(
        "--device", default="cpu", metavar="NAME", help="where the shares are, of one type at all parties: cpu, or cuda"
    )
    source = group.add_mutually_exclusive_group()
    source.add_argument(
        "--store",
        metavar="DIR",
        help="no dealer: material that `python -m hummingbird deal` has dealt in advance, this party's folder or the "
        "one that holds party-RANK ({rank} is replaced), or the one that `deal --keep` keeps full. Whoever can read "
        "two parties' folders can read their secrets",
    )
    source.add_argument(
        "--dealer",
        metavar="HOST:PORT",
        help="where the dealer of correlated randomness listens (`python -m hummingbird dealer`). It must not collude "
        "with any party. Default: party 0 starts one on this host",
    )
    if certificates:
        add_tls(
            group,
            "this party's certificate (PEM), for the name party-RANK ({rank} is replaced)",
            "certificate of the authority that signed all parties' and the dealer's (PEM)",
        )
    group.add_argument(
        "--peer-listen",
        metavar="HOST:PORT",
        help="where this party takes the connections of the other parties, all on this port; 0.0.0.0 and [::] are all "
        "addresses of the host ({rank} is replaced). Default: the address that leads to MASTER_ADDR, a free port. One "
        "direction is enough: a party that others cannot reach reaches them",
    )
    group.add_argument(
        "--peer-address",
        metavar="HOST:PORT",
        help="the address that the other parties are told, if it is another one: of a NAT or a Kubernetes Service",
    )
    group.add_argument(
        "--timeout", type=float, default=120.0, help="longest silence of another party, seconds (default 120)"
    )


def session_options(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments for `hummingbird.init`."""
    tls, party = tls_of(args), str(environment(args.lanes).party)
    if tls is not None:
        tls = Tls(*(Path(str(path).replace("{rank}", party)) for path in (tls.cert, tls.key, tls.ca)))
    options = {name: getattr(args, name) for name in ("lanes", "device", "dealer", "store", "timeout")}
    for name in ("peer_listen", "peer_address"):
        value = getattr(args, name)
        options[name] = None if value is None else value.replace("{rank}", party)
    return {**options, "tls": tls}


def run_party(main: Callable[[], None]) -> None:
    """Run a party's program; an error is printed in two lines, told to the other parties, and ends the process with
    code 1.
    """
    try:
        main()
        launch.uninit()
    except (HummingbirdError, ValueError, OSError) as error:
        # First of all: a launcher may end this process as soon as another party has heard of it. And in one write, so
        # that parties on one terminal do not write into each other's lines.
        if may_speak():
            sys.stderr.write(f"[{launch.name()}] error: {_words(error)}\n")
            sys.stderr.flush()
        launch.abort(error)
        sys.exit(1)


def _words(error: Exception) -> str:
    """An error in lines: the failure, where, and a hint."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.strerror} (at {error.filename})\nhint: is the path right, and may this user read it?"
    return str(error)
