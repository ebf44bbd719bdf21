"""One exception tree: what failed, where (layer or argument), and how to mend it.

Every message reads `what (at where)`, then a line `hint: ...`, so that it can be pasted into a bug report as it is.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class HummingbirdError(Exception):
    """Base of all errors raised here.

    what: what was expected and what was got, in one sentence.
    where: the layer's qualified name, the argument, or the file concerned.
    hint: what to do about it.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        self.what, self.where, self.hint = what, where, hint
        super().__init__(what + (f" (at {where})" if where else "") + (f"\nhint: {hint}" if hint else ""))


def shown(value: Any) -> str:
    """A value in the text of an error: in short, and of tensors the shape alone, for their numbers may be private."""
    if (shape := getattr(value, "shape", None)) is not None:
        return f"a {type(value).__name__} of shape {tuple(shape)}"
    if isinstance(value, Sequence) and any(hasattr(part, "shape") for part in value):
        return (
            f"a {type(value).__name__} with a {next(type(part).__name__ for part in value if hasattr(part, 'shape'))}"
        )
    return reprlib.repr(value)


class Problem(NamedTuple):
    """One thing in a net that cannot be converted: qualified name, what is wrong, what to do."""

    name: str
    what: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.what}" + (f"  [hint: {self.hint}]" if self.hint else "")


class ModelError(HummingbirdError):
    """A net cannot be converted; `problems` lists every reason at every place, by qualified name.

    The message tells a reason once, with the first of its places.
    """

    def __init__(self, problems: Sequence[Problem], *, hint: str = "") -> None:
        self.problems = list(problems)
        lines = "".join(f"\n  {line}" for line in _grouped(self.problems))
        super().__init__(f"the net cannot be converted, {len(self.problems)} problem(s):{lines}", hint=hint)


_SHOWN = 3  # places of one reason that a message names


def _grouped(problems: Sequence[Problem]) -> list[str]:
    """A line for each reason, `a, b, c and 21 more: what  [hint: ..]`, and where to find the places left out."""
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
    """A window, a bit configuration or an option is not valid."""


class InputError(HummingbirdError):
    """A tensor given by the caller has the wrong shape, type or range."""


class AgreementError(HummingbirdError):
    """The parties, or the ranks of a job, hold different nets, configurations, versions or shapes."""


class PeerError(HummingbirdError):
    """Another party, or another rank, stopped, was killed, or did not answer in time."""


class OverloadError(PeerError):
    """A service has more to do than it may; `retry_after` seconds later it may have room."""

    def __init__(self, what: str, *, where: str = "", hint: str = "", retry_after: float = 1.0) -> None:
        self.retry_after = retry_after
        super().__init__(what, where=where, hint=hint or f"try again in {retry_after:g} s")


class UnavailableError(PeerError):
    """A service is stopping, or the connection to it is lost: what is safe to repeat may be tried again later."""


class AccessError(PeerError):
    """A service does not know the caller, or does not let this caller do what it asked for."""


class NotFoundError(PeerError):
    """A service does not have what a caller named."""


class DealerError(HummingbirdError):
    """The dealer refused a request, died, or did not answer in time."""


class StoreError(HummingbirdError):
    """A store of slots is damaged, full, used up, in use, or belongs to another session."""


class DiskError(StoreError):
    """A file cannot be written: its disk is full, or refuses. No caller's mistake; a service may have room later."""


class TrustError(HummingbirdError):
    """An option would give one party the power to see another's data."""


class EnvironmentProblem(HummingbirdError):
    """Something the package needs from its surroundings (a library, a variable) is missing."""


class LaunchError(HummingbirdError):
    """Parties that `launch` had started failed; `failures` has the text of each by its name, the first cause first."""

    def __init__(self, what: str, failures: Mapping[str, str], *, hint: str = "") -> None:
        self.failures = dict(failures)
        super().__init__(what, hint=hint)
