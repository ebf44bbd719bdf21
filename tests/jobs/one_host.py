"""The command line, in a run of several launchers on one host: addresses are on loopback all the same."""

import os

os.environ["LOCAL_WORLD_SIZE"] = os.environ["WORLD_SIZE"]

from hummingbird.__main__ import main  # noqa: E402 - after the variable

main()
