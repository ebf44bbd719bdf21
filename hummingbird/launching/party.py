"""The program of one process of a launch: read the call, join the session, run the function, report.

`python -m hummingbird.launching.party FD`: stdin carries the call, its length first, and stays open while the launching
process lives; its end ends this process. The pipe FD carries one byte once the call is unpacked, and at the end one
report.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
import traceback
from typing import Any, BinaryIO

from hummingbird.errors import HummingbirdError

UP = b"+"  # the call is unpacked
LENGTH = 8  # bytes of the call's length, little-endian


def main(report: int) -> int:
    """Run the function call that arrives on stdin, as one party of a launch; report its result or error.

    report: file descriptor of the pipe to which the report is written. Returns the exit status of this process: 0, or 1
    after an error.
    """
    os.set_inheritable(report, False)  # neither the dealer nor processes of the function inherit it
    calls = os.fdopen(os.dup(0), "rb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)  # whole lines, also with PYTHONUNBUFFERED
    content = calls.read(int.from_bytes(calls.read(LENGTH), "little"))
    threading.Thread(target=_end_with, args=(calls,), daemon=True).start()

    from hummingbird.launching import sending  # after the pipe is read, as these imports take seconds
    from hummingbird.mpc.session import launch

    with os.fdopen(report, "wb") as told:
        try:
            fn, args, options = sending.unpacked_call(content)
            told.write(UP)
            told.flush()
            result = sending.plain(fn(launch.init(**options), *args))
            launch.uninit()
            told.write(sending.packed_result({"result": result}))
        except BaseException as error:  # noqa: BLE001 - reported, whatever it is
            # Report before `abort`, which tells the other parties: they then fail as a consequence.
            told.write(sending.packed_result({"error": _told(error)}))
            told.flush()
            launch.abort(error)
            return 1
    return 0


def _end_with(calls: BinaryIO) -> None:
    """Wait until the process that called `launch` is gone; then kill this process and those that it has started.

    calls: a pipe that the launching process holds open for as long as it runs. Runs in a thread.
    """
    while os.read(calls.fileno(), 1):  # unbuffered: the buffer's lock would block the interpreter's exit
        pass
    os.killpg(0, signal.SIGKILL)  # its process group; the dealer, in a group of its own, notices


def _told(error: BaseException) -> dict[str, Any]:
    """Return a description of an error as a dict, for the report of this process to the one that called `launch`.

    It has the error's type, text, hint and time, and the traceback's frames outside the folder `launching`.
    """
    own = os.path.dirname(__file__)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if os.path.dirname(frame.filename) != own]
    return {
        "type": type(error).__name__,
        "text": _text(error),
        "hint": error.hint if isinstance(error, HummingbirdError) else "",
        "when": time.monotonic(),
        "frames": [(frame.filename, frame.lineno or 0, frame.name) for frame in frames],
    }


def _text(error: BaseException) -> str:
    """Return the text of an error without its hint."""
    try:
        text = str(error)
    except Exception as problem:  # noqa: BLE001 - of a class of the function's own
        return f"(no text: {type(problem).__name__} in its __str__)"
    return text.partition("\nhint: ")[0] if isinstance(error, HummingbirdError) else text


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
