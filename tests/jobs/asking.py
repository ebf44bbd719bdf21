"""A client of a service of the digits net that asks until SIGTERM: one line when a request begins, one when it ends.

FILE SEED TIMEOUT PAUSE ADDRESS...: answers are compared with the net's own, and refusals must give a reason and a hint.
A single ADDRESS is the file of several groups.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch

from hummingbird.errors import HummingbirdError, PeerError
from hummingbird.serving.client import Client
from models import get_model

CLOSE = 0.01  # exact comparisons: what is left is rounding


def opened(addresses: list[str], timeout: float) -> Client:
    """A client of these parties, or of the groups in a file."""
    return Client(addresses, timeout=timeout) if len(addresses) > 1 else Client.from_file(addresses[0], timeout=timeout)


def main() -> None:
    """Ask for 1 to 12 random images at a time."""
    path, seed, timeout, pause, *addresses = sys.argv[1:]
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    torch.set_num_threads(1)
    torch.manual_seed(int(seed))
    net = get_model("digits", 10)
    net.load_state_dict(torch.load("checkpoints/digits.pt", weights_only=True))
    net.eval()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def say(text: str) -> None:
        os.write(file, f"{os.getpid()} {text}\n".encode())

    client: Client | None = None
    while not stopped:
        x = torch.rand(int(torch.randint(1, 13, ())), 1, 8, 8)
        say("asks")
        try:
            client = client or opened(addresses, float(timeout))
            with torch.no_grad():
                error = float((client(x) - net(x)).abs().max())
            say("right" if error < CLOSE else f"wrong by {error}")
        except PeerError as error:
            what, _, hint = str(error).partition("\nhint: ")
            say(f"refused: {type(error).__name__}: {what}" if what and hint else f"unclear: {error!r}")
        except HummingbirdError as error:
            say(f"unclear: {error!r}")
        time.sleep(float(pause))
    if client is not None:
        client.close()


if __name__ == "__main__":
    main()
