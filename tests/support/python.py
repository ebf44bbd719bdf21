"""Python programs as processes of their own, forked from one that has imported everything: `run` and `Popen`.

Both are those of `subprocess`, and a command line is the same. A new interpreter imports torch and CrypTen for three
seconds of a core, and the tests need hundreds of them. So one process for all tests of a pytest process imports them
once, without a thread, a session or a random number, and forks for each command: the fork takes over the command's
words, environment, folder and open files, and runs the program as `python` would. It is the test's own child.

A command whose first word is not this interpreter starts as ever, and so does one with an option of the interpreter.
What a test says about imports or the start of an interpreter needs a real one: `subprocess`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import inspect
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

from tests.support.paths import ROOT

_SUBREAPER = 36  # prctl's PR_SET_CHILD_SUBREAPER
_NAME = 15  # and PR_SET_NAME
_BESIDE = "forks"
_DEALER = "hummingbird.mpc.dealer.command"  # which starts nothing
_LIMIT = 1 << 20  # bytes of a request: words and an environment

# The side of the tests -----------------------------------------------------------------------------------------------


class _Server:
    """The process that others are forked from; it ends with this one, for then its socket is closed."""

    def __init__(self) -> None:
        theirs = self._connect()
        kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            cwd=ROOT,
            env={**kept, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def _connect(self) -> socket.socket:
        """The server's end of a connection."""
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)  # orphans below this process become its children
        self.owner, self._lock = os.getpid(), threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._socket, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LIMIT)
        return theirs

    def fork(self, request: dict[str, Any], files: Sequence[int]) -> int:
        """The id of the new process."""
        with self._lock:
            _bury()
            socket.send_fds(self._socket, [json.dumps(request).encode()], files)
            answer = self._socket.recv(64)
        assert answer, "the process that others are forked from has ended"
        return int(answer)


_server: _Server | None = None
_making = threading.Lock()


def _the_server() -> _Server:
    global _server
    with _making:
        if _server is None or _server.owner != os.getpid():
            _server = _Server()
        return _server


def forks(words: Any) -> bool:
    """Whether a command is run by a fork: this interpreter, and a module, a text or a file as its program."""
    if isinstance(words, str) or os.fspath(words[0]) != sys.executable:
        return False
    _, rest = _split(list(words[1:]))
    return bool(rest) and (rest[0] in ("-m", "-c") or not os.fspath(rest[0]).startswith("-"))


def _split(words: list[Any]) -> tuple[list[str], list[Any]]:
    """Split off what -W says of warnings: that, and all words from the program on."""
    filters = []
    while words[:1] in (["-W"], ["-u"]):
        filters, words = [*filters, words[1]] if words[0] == "-W" else filters, words[1 + (words[0] == "-W") :]
    return filters, words


def _bury() -> None:
    """Wait for the processes beside others that have ended: this process is the parent of such orphans."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        orphans = [pid for pid in map(int, file.read().split()) if beside(pid)]
    for pid in orphans:
        os.waitpid(pid, os.WNOHANG)


def beside(pid: int) -> bool:
    """Whether a process is there only for others to be forked from it, as a child of a `Parent`."""
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip() == _BESIDE
    except FileNotFoundError:
        return False


_SIGNATURE = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    """`subprocess.Popen`, which differs only in how the process comes to be."""

    parent = False

    def _execute_child(self, *given: Any, **named: Any) -> None:
        values = _SIGNATURE.bind(self, *given, **named).arguments
        self.environment = dict(os.environ if values["env"] is None else values["env"])
        if not forks(values["args"]):
            return super()._execute_child(*given, **named)  # type: ignore[misc, no-any-return]
        pairs = [("p2cread", 0), ("c2pwrite", 1), ("errwrite", 2)]
        files = [number if values[name] == -1 else values[name] for name, number in pairs]
        request = {
            "words": [os.fspath(word) for word in values["args"]],
            "environment": self.environment,
            "folder": os.fspath(values["cwd"] or os.getcwd()),
            "session": bool(values["start_new_session"]),
            "numbers": [0, 1, 2, *values["pass_fds"]],
            "before": (begin := values["preexec_fn"]) and f"{begin.__module__}:{begin.__qualname__}",
            "parent": self.parent or (isinstance(_server, _Beside) and _DEALER not in values["args"]),
        }
        if not os.path.isdir(request["folder"]):
            raise FileNotFoundError(request["folder"])
        try:
            self.pid = _the_server().fork(request, [*files, *values["pass_fds"]])
            self._child_created = True
        finally:
            names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            self._close_pipe_fds(*(values[name] for name in names))  # type: ignore[attr-defined]
        return None


class Parent(Popen):
    """A process whose own commands are forked as well: parties with a dealer, and launchers."""

    parent = True


def run(
    words: Sequence[Any],
    *,
    input: Any = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """`subprocess.run`."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Parent(words, **options) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


_FORKING = types.SimpleNamespace(**{**vars(subprocess), "Popen": Parent, "run": run})


def forking(patch: Any, *modules: types.ModuleType) -> None:
    """Have modules of the package or of scripts start their commands by forks; patch: pytest's monkeypatch."""
    for module in modules:
        patch.setattr(module, "subprocess", _FORKING)


# The side of the server ----------------------------------------------------------------------------------------------


def _load() -> None:
    """Import what programs need, and do once what PyTorch does at the first use of a net."""
    import torch

    torch.set_num_threads(1)  # a thread of OpenMP would not be there after a fork
    import hummingbird
    import hummingbird.mpc.plan.net

    for module in pkgutil.walk_packages(hummingbird.__path__, "hummingbird."):
        if not module.name.endswith(("__main__", "._native")) and ".gpu" not in module.name:
            importlib.import_module(module.name)
    for name in ("numpy.random", "pytest", "torch.distributed.run", "torchvision"):
        importlib.import_module(name)
    with contextlib.suppress(ImportError):  # an extra
        importlib.import_module("sklearn.datasets")
    from torch import nn

    # PyTorch loads its shape functions at their first use, for two seconds.
    hummingbird.convert_model(nn.Sequential(nn.Linear(6, 3), nn.ReLU()).eval()).costs((1, 6), 2)
    del sys.modules["triton"]
    gc.collect()
    gc.freeze()  # what is imported here is not a program's garbage: half a second less at the end of each


def _serve(requests: socket.socket) -> dict[str, Any] | None:
    """Serve requests; in a new fork, return what it is to become, at the end of all requests None."""
    while True:
        text, files, _, _ = socket.recv_fds(requests, _LIMIT, 16)
        if not text:
            return None
        reader, writer = os.pipe()
        between = os.fork()  # its child is an orphan at once: the tests' process becomes the parent
        if not between:
            parent, pid = os.getpid(), os.fork()
            if pid:
                os.write(writer, str(pid).encode())
                os._exit(0)
            while os.getppid() == parent:
                time.sleep(0.0001)
            for number in (reader, writer, requests.detach()):
                os.close(number)
            return {**json.loads(text), "files": files}
        for number in (writer, *files):
            os.close(number)
        os.waitpid(between, 0)
        requests.send(os.read(reader, 64))  # now that it can be waited for by who has asked
        os.close(reader)


def _take(files: list[int], numbers: list[int]) -> None:
    """Give open files the numbers that they have at who has asked."""
    above = [fcntl.fcntl(opened, fcntl.F_DUPFD, 1 + max(*files, *numbers)) for opened in files]
    for opened in files:
        os.close(opened)
    for opened, number in zip(above, numbers, strict=True):
        os.dup2(opened, number)
        os.close(opened)


class _Beside(_Server):
    """A fork of this process, before its program begins, that its own commands are forked from."""

    def __init__(self, threads: int) -> None:
        theirs = self._connect()
        if os.fork():
            theirs.close()
            return
        self._socket.close()
        ctypes.CDLL(None).prctl(_NAME, _BESIDE.encode(), 0, 0, 0)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nothing, number)
        request = _serve(theirs)
        if request is None:
            os._exit(0)
        _run(request, threads)


def _beside(threads: int) -> None:
    """Have the commands of this process forked."""
    global _server
    _server = _Beside(threads)
    subprocess.Popen = Popen  # type: ignore[misc]
    handler = sys.modules["torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"]
    handler.Popen = Popen  # type: ignore[attr-defined]


def _become(request: dict[str, Any], threads: int) -> None:
    """Take over what a new interpreter would have been given, then run its program."""
    import numpy
    import torch

    ctypes.CDLL(None).prctl(_NAME, b"python", 0, 0, 0)
    _take(request["files"], request["numbers"])
    if request["session"]:
        os.setsid()
    if request["parent"]:
        _beside(threads)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    tempfile.tempdir = None  # look at TMPDIR again
    with warnings.catch_warnings():
        pass  # no warning counts as shown
    numpy.random.seed()
    with contextlib.suppress(ValueError):
        threads = int(os.environ.get("OMP_NUM_THREADS", threads))
    torch.set_num_threads(threads)
    if "-u" in request["words"][:2]:
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    if request["before"]:
        module, _, name = request["before"].partition(":")
        getattr(importlib.import_module(module), name)()

    filters, (program, *rest) = _split(request["words"][1:])
    warnings._processoptions(filters)  # type: ignore[attr-defined]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    ours, theirs = str(ROOT), request["environment"].get("PYTHONPATH", "")
    path = [*filter(None, theirs.split(os.pathsep)), *(place for place in sys.path[1:] if place != ours)]
    if program == "-m":
        name, *rest = rest
        sys.path[:], sys.argv[:] = [os.getcwd(), *path], ["-m", *rest]
        sys.modules.pop(name, None)  # it runs as __main__, from its first line
        runpy._run_module_as_main(name)  # type: ignore[attr-defined]
    elif program == "-c":
        text, *rest = rest
        sys.path[:], sys.argv[:] = ["", *path], ["-c", *rest]
        exec(compile(text, "<string>", "exec"), vars(main))
    else:
        sys.path[:], sys.argv[:] = [os.path.dirname(os.path.abspath(program)), *path], [program, *rest]
        main.__file__ = program
        with open(program, "rb") as file:
            text = file.read()
        exec(compile(text, program, "exec"), vars(main))


def _end(code: int) -> NoReturn:
    """End as an interpreter does, but for the destructors of all that is loaded: they take most of a fork's time."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code)


def _run(request: dict[str, Any], threads: int) -> NoReturn:
    """Become what was asked for, to its end."""
    code = 0
    try:
        _become(request, threads)
    except SystemExit as ended:
        if ended.code is not None and not isinstance(ended.code, int):
            print(ended.code, file=sys.stderr)
        code = 0 if ended.code is None else ended.code & 0xFF if isinstance(ended.code, int) else 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__ and error.__traceback__.tb_next)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    _end(code)


def _main() -> None:
    # Triton, which PyTorch imports where it can, complains at the end of a fork.
    sys.modules["triton"] = None  # type: ignore[assignment]
    import torch

    usual = torch.get_num_threads()
    _load()
    requests = socket.socket(fileno=int(sys.argv[1]))
    request = _serve(requests)
    if request is not None:
        _run(request, usual)


if __name__ == "__main__":
    _main()
