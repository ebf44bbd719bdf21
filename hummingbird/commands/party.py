"""Programs of a party: options of its session, and errors, which are also sent to the other parties."""

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
    """Add the options --lanes, --device, --dealer, --store, --peer-* and --timeout of a session.

    certificates: whether to add --tls-* too.
    """
    group = parser.add_argument_group("session")
    group.add_argument(
        "--lanes",
        type=int,
        metavar="N",
        help="processes of each party, one for each of its GPUs (default: HUMMINGBIRD_LANES, else 1)",
    )
    group.add_argument(
        "--device", default="cpu", metavar="NAME", help="device of the shares, cpu or cuda, the same at all parties"
    )
    source = group.add_mutually_exclusive_group()
    source.add_argument(
        "--store",
        metavar="DIR",
        help="use material that `python -m hummingbird deal` has dealt in advance, without a dealer: this party's "
        "folder, the folder that holds party-RANK ({rank} is replaced), or the folder of `deal --keep`. Anyone who can "
        "read two parties' folders can read their secrets",
    )
    source.add_argument(
        "--dealer",
        metavar="HOST:PORT",
        help="address of the dealer of correlated randomness (`python -m hummingbird dealer`), which must not collude "
        "with any party. Default: party 0 starts one on this host",
    )
    if certificates:
        add_tls(
            group,
            "this party's certificate (PEM), for the name party-RANK ({rank} is replaced)",
            "certificate of the authority of all parties and the dealer (PEM)",
        )
    group.add_argument(
        "--peer-listen",
        metavar="HOST:PORT",
        help="address at which this party accepts the connections of all other parties; 0.0.0.0 and [::] mean all "
        "addresses of the host ({rank} is replaced). Default: the address that leads to MASTER_ADDR, and a free port. "
        "One direction suffices: a party that others cannot reach connects to them",
    )
    group.add_argument(
        "--peer-address",
        metavar="HOST:PORT",
        help="the address that the other parties connect to, if it differs: that of a NAT or a Kubernetes Service",
    )
    group.add_argument(
        "--timeout", type=float, default=120.0, help="longest silence of another party, seconds (default 120)"
    )


def session_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `hummingbird.init` that the options describe."""
    tls, party = tls_of(args), str(environment(args.lanes).party)
    if tls is not None:
        tls = Tls(*(Path(str(path).replace("{rank}", party)) for path in (tls.cert, tls.key, tls.ca)))
    options = {name: getattr(args, name) for name in ("lanes", "device", "dealer", "store", "timeout")}
    for name in ("peer_listen", "peer_address"):
        value = getattr(args, name)
        options[name] = None if value is None else value.replace("{rank}", party)
    return {**options, "tls": tls}


def run_party(main: Callable[[], None]) -> None:
    """Run a party's program.

    An error is printed in two lines, sent to the other parties, and ends this process with exit code 1.
    """
    try:
        main()
        launch.uninit()
    except (HummingbirdError, ValueError, OSError) as error:
        # Print before anything else: a launcher may end this process as soon as another party knows of the error. In
        # one write, so that parties on one terminal do not mix their lines.
        if may_speak():
            sys.stderr.write(f"[{launch.name()}] error: {_words(error)}\n")
            sys.stderr.flush()
        launch.abort(error)
        sys.exit(1)


def _words(error: Exception) -> str:
    """Return the text of an error, with where it happened and a hint."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.strerror} (at {error.filename})\nhint: is the path right, and may this user read it?"
    return str(error)
