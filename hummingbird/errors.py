"""The exceptions of the package: what failed, where (layer or argument), and how to mend it.

Every message reads `what (at where)`, then a line `hint: ...`, so that a bug report can quote it as it is.
"""

from __future__ import annotations

import os
import reprlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple


class HummingbirdError(Exception):
    """The base class of all errors of this package.

    what: one sentence that says what was expected and what was found.
    where: the qualified name of the layer, the argument, or the file.
    hint: how the user can remedy it.

    >>> from hummingbird.errors import HummingbirdError
    >>> try:
    ...     BitWindow(12, 20)
    ... except HummingbirdError as error:
    ...     print(error.what, "|", error.hint)
    window [12:20) has k < m | k is the upper bit, m the lower; BitWindow(20, 12) keeps 8 bits
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        self.what, self.where, self.hint = what, where, hint
        super().__init__(what + (f" (at {where})" if where else "") + (f"\nhint: {hint}" if hint else ""))


def shown(value: Any) -> str:
    """Return a short text that describes a value in an error.

    For a tensor it has only the shape, since its numbers may be private.
    """
    if (shape := getattr(value, "shape", None)) is not None:
        return f"a {type(value).__name__} of shape {tuple(shape)}"
    if isinstance(value, Sequence) and any(hasattr(part, "shape") for part in value):
        return (
            f"a {type(value).__name__} with a {next(type(part).__name__ for part in value if hasattr(part, 'shape'))}"
        )
    return reprlib.repr(value)


class Problem(NamedTuple):
    """One reason why a net cannot be converted.

    name: the step's qualified name. what: what is wrong there. hint: how to remedy it.

    >>> problem = hummingbird.validate_model(torch.nn.Sequential(net, torch.nn.Hardshrink()))[0]
    >>> problem.name, problem.what
    ('1', 'Hardshrink is not in the vocabulary')
    >>> problem.hint
    'it jumps: write the comparison itself, such as (x > 0).float()'
    """

    name: str
    what: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.what}" + (f"  [hint: {self.hint}]" if self.hint else "")


class ModelError(HummingbirdError):
    """Raised for a net that cannot be converted; `problems` lists every reason at every step, by qualified name.

    The message has each reason once, with the names of the first steps that have it.

    >>> hummingbird.convert_model(torch.nn.Sequential(net, torch.nn.Hardshrink()))
    Traceback (most recent call last):
        ...
    hummingbird.errors.ModelError: the net cannot be converted, 1 problem(s):
      1: Hardshrink is not in the vocabulary  [hint: it jumps: write the comparison itself, such as (x > 0).float()]
    hint: replace these layers, or teach them with register_converter
    """

    def __init__(self, problems: Sequence[Problem], *, hint: str = "") -> None:
        self.problems = list(problems)
        lines = "".join(f"\n  {line}" for line in _grouped(self.problems))
        super().__init__(f"the net cannot be converted, {len(self.problems)} problem(s):{lines}", hint=hint)


_SHOWN = 3  # steps that a message names for one reason


def _grouped(problems: Sequence[Problem]) -> list[str]:
    """Return the text for the problems of a net, as a list of lines: one for each reason, with the steps that have it.

    A line is `a, b, c and 21 more: what  [hint: ..]`, where a, b, c are the first steps. If names were left out, a last
    line says that the error's `problems` has them all.
    """
    places: dict[tuple[str, str], list[str]] = {}
    for problem in problems:
        places.setdefault((problem.what, problem.hint), []).append(problem.name)
    lines = []
    for (what, hint), names in places.items():
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        lines.append(str(Problem(", ".join(names[:_SHOWN]) + more, what, hint)))
    if any(len(names) > _SHOWN for names in places.values()):
        lines.append("(the list `problems` of this error names every place, as validate_model does)")
    return lines


class ConfigError(HummingbirdError):
    """Raised for a window, a bit configuration or an option that is not valid.

    >>> BitWindow(70, 0)
    Traceback (most recent call last):
        ...
    hummingbird.errors.ConfigError: window [70:0) leaves the 64-bit ring
    hint: use 0 <= m <= k <= 64
    """


class InputError(HummingbirdError):
    """Raised for a tensor, or other data, of the wrong shape, type or range.

    >>> hummingbird.estimate(net, (20, 5))
    Traceback (most recent call last):
        ...
    hummingbird.errors.InputError: the net cannot take an input of shape (20, 5): ... (at input)
    hint: the first dimension is the batch; the others must be those the net was trained on
    """


class AgreementError(HummingbirdError):
    """Raised if the parties, or the ranks of a job, hold different nets, configurations, versions or shapes.

    >>> other = torch.nn.Embedding(1000, 8)
    >>> pir.Client((pir.Server(table, 0), pir.Server(other, 1)))
    Traceback (most recent call last):
        ...
    hummingbird.errors.AgreementError: the servers hold different tables: ... (at pir.Client)
    hint: give both the same file; python -m hummingbird pir-owner update brings the one behind up to the other
    """


class PeerError(HummingbirdError):
    """Raised if another party, or another rank, stopped, was killed, or did not answer in time.

    >>> pir.Client(("unix:pir0.sock", "unix:pir1.sock"), timeout=0.5)
    Traceback (most recent call last):
        ...
    hummingbird.errors.PeerError: nothing answers: ... (at server 0 (unix:pir0.sock))
    hint: is the service running, and is its address right?
    """


class OverloadError(PeerError):
    """Raised if a service has reached a limit; it may have room after `retry_after` seconds.

    >>> from hummingbird.errors import OverloadError
    >>> error = OverloadError("64 calls are at work", where="party0.example:9100", retry_after=2.0)
    >>> print(error)
    64 calls are at work (at party0.example:9100)
    hint: try again in 2 s
    >>> error.retry_after
    2.0
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "", retry_after: float = 1.0) -> None:
        self.retry_after = retry_after
        super().__init__(what, where=where, hint=hint or f"try again in {retry_after:g} s")


class UnavailableError(PeerError):
    """Raised if a service is stopping, or the connection to it is lost, or a part of it is being restarted.

    The request may be sent again later if it is safe to repeat: after `retry_after` seconds, if the service said so.

    >>> from hummingbird.he.service.client import RemoteModel
    >>> from hummingbird.he.service.server import Service
    >>> from hummingbird.rpc.service import serve
    >>> service = serve(Service(he.Server(he.make_plan(net, (4,)))).handlers(), "unix:he.sock")
    >>> model = RemoteModel("unix:he.sock", timeout=0.5)
    >>> service.stop(0).wait()
    True
    >>> model(images)
    Traceback (most recent call last):
        ...
    hummingbird.errors.UnavailableError: the connection is lost: ... (at server unix:he.sock)
    hint: did it end, or was it killed? Its own output may say why
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "", retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        super().__init__(what, where=where, hint=hint)


class AccessError(PeerError):
    """Raised if a service does not know the caller, or does not permit this caller's request.

    >>> from hummingbird.errors import AccessError, PeerError
    >>> issubclass(AccessError, PeerError)  # so `except PeerError` catches it too
    True
    """


class NotFoundError(PeerError):
    """Raised if a service does not have the thing that a caller named.

    >>> from hummingbird.errors import NotFoundError, PeerError
    >>> issubclass(NotFoundError, PeerError)  # so `except PeerError` catches it too
    True
    """


class DealerError(HummingbirdError):
    """Raised if the dealer refused a request, died, or did not answer in time, or if a store cannot take its place.

    A store of dealt material cannot if it is missing, used up, or dealt for another net, shape or party, for example.

    >>> hummingbird.init(store="nowhere")
    Traceback (most recent call last):
        ...
    hummingbird.errors.DealerError: there is no store here (at nowhere/lane-0)
    hint: name a party's folder, or the one that holds party-RANK, or use {rank}; to deal one: ...
    """


class StoreError(HummingbirdError):
    """Raised if a store of slots is damaged, full, used up, in use by another process, or made for another session.

    >>> from pathlib import Path
    >>> from hummingbird.hybrid.service import Service
    >>> made = hybrid.make_plan(net, (4,), bits=BitWindow(20, 10))
    >>> first = Service(made, Path("slots"))
    >>> Service(made, Path("slots"))
    Traceback (most recent call last):
        ...
    hummingbird.errors.StoreError: another process is using this store (at slots)
    hint: a server has one
    """


class DiskError(StoreError):
    """Raised if a file cannot be written because the disk is full or fails; the caller may try again later.

    >>> from hummingbird.errors import DiskError, StoreError
    >>> issubclass(DiskError, StoreError)  # so `except StoreError` catches it too
    True
    """


class TrustError(HummingbirdError):
    """Raised if an option would give one party the power to see another's data.

    >>> server = pir.Server(table, 0)
    >>> pir.Client((server, server))
    Traceback (most recent call last):
        ...
    hummingbird.errors.TrustError: one server would get both keys, and read the index (at pir.Client(servers))
    hint: give two servers of operators that do not collude
    """


class EnvironmentProblem(HummingbirdError):
    """Raised if the package lacks something in its environment: a library, a variable or a file.

    >>> hummingbird.cryptensor(images, src=0)
    Traceback (most recent call last):
        ...
    hummingbird.errors.EnvironmentProblem: no session
    hint: call hummingbird.init() first
    """


@contextmanager
def needs(extra: str, use: str) -> Iterator[None]:
    """Return a context for an import: if the module is missing, it raises EnvironmentProblem with what to install.

    extra: the extra of this package that brings the module. use: what cannot be done without the module, in words.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        hint = f"pip install 'hummingbird-mpc[{extra}]'"
        raise EnvironmentProblem(f"{use} needs the package {error.name}", hint=hint) from None


def refuse_namesake() -> None:
    """Raise EnvironmentProblem if this environment has hummingbird-ml, a package of the same import name, too."""
    for folder in sys.path:
        if os.path.isfile(found := os.path.join(folder, "hummingbird", "ml", "__init__.py")):
            what = "two packages of the import name hummingbird are installed, hummingbird-mpc and hummingbird-ml"
            hint = "use an environment for each; here, pip uninstall hummingbird-ml and install hummingbird-mpc again"
            raise EnvironmentProblem(what, where=found, hint=hint)


class LaunchError(HummingbirdError):
    """Raised if parties that `launch` started have failed.

    failures: each party's error text by its name, the first cause first.

    >>> def infer(session):
    ...     return 1 / session.rank
    >>> try:
    ...     hummingbird.launch(infer)
    ... except hummingbird.errors.LaunchError as error:
    ...     print(error.what.splitlines()[0], list(error.failures))
    party 0 failed: ZeroDivisionError: division by zero ['party 0']
    """

    def __init__(self, what: str, failures: Mapping[str, str], *, hint: str = "") -> None:
        self.failures = dict(failures)
        super().__init__(what, hint=hint)
