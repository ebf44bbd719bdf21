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
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        self.what, self.where, self.hint = what, where, hint
        super().__init__(what + (f" (at {where})" if where else "") + (f"\nhint: {hint}" if hint else ""))


def shown(value: Any) -> str:
    """Return a short text of a value for an error; for a tensor only its shape, since its numbers may be private."""
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
    """

    name: str
    what: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.what}" + (f"  [hint: {self.hint}]" if self.hint else "")


class ModelError(HummingbirdError):
    """Raised for a net that cannot be converted; `problems` lists every reason at every step, by qualified name.

    The message has each reason once, with the names of the first steps that have it.
    """

    def __init__(self, problems: Sequence[Problem], *, hint: str = "") -> None:
        self.problems = list(problems)
        lines = "".join(f"\n  {line}" for line in _grouped(self.problems))
        super().__init__(f"the net cannot be converted, {len(self.problems)} problem(s):{lines}", hint=hint)


_SHOWN = 3  # steps that a message names for one reason


def _grouped(problems: Sequence[Problem]) -> list[str]:
    """Return the lines of text for a net's problems: one for each reason, with the first steps that have it.

    A line is `a, b, c and 21 more: what  [hint: ..]`. If names were left out, a last line says that the error's
    `problems` has them all.
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
    """Raised for a window, a bit configuration or an option that is not valid."""


class InputError(HummingbirdError):
    """Raised for a tensor, or other data, of the wrong shape, type or range."""


class AgreementError(HummingbirdError):
    """Raised if the parties, or the ranks of a job, hold different nets, configurations, versions or shapes."""


class PeerError(HummingbirdError):
    """Raised if another party, or another rank, stopped, was killed, or did not answer in time."""


class OverloadError(PeerError):
    """Raised if a service has reached a limit; it may have room after `retry_after` seconds."""

    def __init__(self, what: str, *, where: str = "", hint: str = "", retry_after: float = 1.0) -> None:
        self.retry_after = retry_after
        super().__init__(what, where=where, hint=hint or f"try again in {retry_after:g} s")


class UnavailableError(PeerError):
    """Raised if a service is stopping, or the connection to it is lost.

    The request may be sent again later if it is safe to repeat.
    """


class AccessError(PeerError):
    """Raised if a service does not know the caller, or does not permit this caller's request."""


class NotFoundError(PeerError):
    """Raised if a service does not have the thing that a caller named."""


class DealerError(HummingbirdError):
    """Raised if the dealer refused a request, died, or did not answer in time."""


class StoreError(HummingbirdError):
    """Raised if a store of slots is damaged, full, used up, in use by another process, or made for another session."""


class DiskError(StoreError):
    """Raised if a file cannot be written because the disk is full or fails; the caller may try again later."""


class TrustError(HummingbirdError):
    """Raised if an option would give one party the power to see another's data."""


class EnvironmentProblem(HummingbirdError):
    """Raised if the package lacks something in its environment: a library, a variable or a file."""


@contextmanager
def needs(extra: str, use: str) -> Iterator[None]:
    """Raise EnvironmentProblem, with the extra to install, in place of the ModuleNotFoundError of an import inside.

    extra: the extra of this package that brings the module. use: what cannot be done without the module.
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
    """

    def __init__(self, what: str, failures: Mapping[str, str], *, hint: str = "") -> None:
        self.failures = dict(failures)
        super().__init__(what, hint=hint)
