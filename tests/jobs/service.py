"""A service as a process: echoes, and holds a call for as long as a file is missing."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import grpc

from hummingbird.rpc.options import add_service, service_of
from hummingbird.rpc.server import ServiceProgram
from tests.support.patience import HANG


def main() -> None:
    parser = argparse.ArgumentParser()
    add_service(parser)
    parser.add_argument("--go", type=Path, default=Path("none"))
    args = parser.parse_args()

    def wait(request: bytes, context: grpc.ServicerContext) -> bytes:
        Path(f"{args.go}.inside").touch()
        deadline = time.monotonic() + HANG
        while not args.go.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return b"done"

    with ServiceProgram("test", service_of(args)) as program:
        program.serve({"Wait": wait, "Echo": lambda request, context: request})
        program.ready()
        print(program.line, flush=True)
        program.wait()


if __name__ == "__main__":
    main()
