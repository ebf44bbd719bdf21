"""torchrun's static and dynamic rendezvous, and why the dynamic one is refused.

Dynamic (`--standalone`, no `--master-port`, or `--rdzv-backend=c10d`): torchrun keeps its state as a pickle in a store
that listens on all interfaces without a password, and loads it repeatedly. Anybody who writes to the store runs code as
the user of torchrun. Static (`--master-port`): torchrun keeps plain text in its store, and loads no pickle.

`python -m hummingbird run` starts the parties of one host with a store on loopback that holds no pickle either.
"""

from __future__ import annotations

import datetime
import os
import socket
import warnings

import torch.distributed as dist

from hummingbird.errors import TrustError
from hummingbird.rpc.security import loopback, split

WHAT = "torchrun's dynamic rendezvous runs code, as this user, for anybody who reaches this host's ports"
HINT = (
    "on one host, `python -m hummingbird run --parties 2 -- SCRIPT.py`; on several, torchrun with "
    "--rdzv-backend=static --master-addr=HOST --master-port=29500 behind a firewall"
)
_REACH = 5.0  # seconds for an answer of the store
_NO_NAME = "none"  # torchrun's default for --rdzv-id


def dynamic() -> bool:
    """Return whether the torchrun that started this process uses a dynamic rendezvous (as with `--standalone`).

    A dynamic rendezvous runs code for anybody who reaches this host's ports. A static torchrun is recognised by the
    entry that it makes for each rank in the store of its processes; where TORCH_ELASTIC_WORKER_IDENTICAL=1 suppresses
    these entries, by its run id, which is torchrun's default. Also False if the store does not answer.
    """
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    if name is None:
        return False
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":  # a static one always sets it
        return True
    if os.environ.get("TORCH_ELASTIC_WORKER_IDENTICAL") == "1":
        return name != _NO_NAME
    try:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        socket.create_connection((host, port), timeout=_REACH).close()  # torch's own attempt would print warnings
        wait = datetime.timedelta(seconds=_REACH)
        store = dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=wait)
        return not dist.PrefixStore(name, store).check(["torchelastic/role_info/0"])
    except (KeyError, ValueError, OSError, RuntimeError):
        return False  # joining the others there will raise an error with a reason


def warn_of_dynamic(stacklevel: int = 2) -> None:
    """Warn, in one process of each host, if torchrun uses a dynamic rendezvous (`dynamic`), which is open to strangers.

    stacklevel: for `warnings.warn`.
    """
    if os.environ.get("LOCAL_RANK", "0") == "0" and dynamic():
        warnings.warn(f"{WHAT}: {HINT}", stacklevel=stacklevel)


def refuse_dynamic(listen: str) -> None:
    """Raise TrustError if torchrun uses a dynamic rendezvous (`dynamic`), unless clients and parties share this host.

    listen: the address at which clients come.
    """
    local = listen.startswith("unix:") or loopback(split(listen)[0])
    together = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
    if not (local and together) and dynamic():
        raise TrustError(WHAT, where=f"serve, with clients at {listen}", hint=HINT)
