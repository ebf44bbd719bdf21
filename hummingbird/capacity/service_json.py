"""The JSON file of a service, in one version; unknown or wrong fields are refused by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hummingbird import records
from hummingbird.capacity.service import Compute, Host, Phase, Rounds, Send, Service, WorkStep
from hummingbird.errors import ConfigError, InputError
from hummingbird.records import Kind, field

FORMAT = "hummingbird-service"
VERSION = 1
_MOST_TEXT = 16 << 20  # bytes
_MOST = 1 << 20  # names, steps, factors
_NUMBER = records.anything("a number")  # `Service` checks it
_NAMES = records.many(records.text(1 << 16), _MOST)


def _absent(kind: Kind) -> Any:
    return field(kind, left_out=True, default=None)


@dataclass(frozen=True, kw_only=True)
class StepFile:
    """A step as a record, for the file of a service; exactly one of the fields for the kinds of work is given."""

    name: Any = field(_NUMBER)
    after: tuple[str, ...] = field(_NAMES, missing=True, default=())
    compute: Compute | None = _absent(records.record(Compute))
    send: Send | None = _absent(records.record(Send))
    rounds: float | None = _absent(_NUMBER)

    def __post_init__(self) -> None:
        names = [name for name in ("compute", "send", "rounds") if getattr(self, name) is not None]
        if len(names) != 1:
            hint = "exactly one of compute, send, rounds"
            raise ConfigError(f"a step with {', '.join(names) or 'no work'}", where="step", hint=hint)

    @property
    def step(self) -> WorkStep:
        """Convert the record to a `WorkStep`."""
        work = self.compute or self.send or Rounds(self.rounds)  # type: ignore[arg-type]
        return WorkStep(self.name, work, self.after)


def _written(step: WorkStep) -> StepFile:
    work = step.work
    if isinstance(work, Rounds):
        return StepFile(name=step.name, after=step.after, rounds=work.rounds)
    kind = {"compute": work} if isinstance(work, Compute) else {"send": work}
    return StepFile(name=step.name, after=step.after, **kind)


_STEP = records.through(records.record(StepFile), lambda file: file.step, _written)


@dataclass(frozen=True)
class PhaseFile:
    """A phase as a record, for the file of a service."""

    steps: tuple[WorkStep, ...] = field(records.many(_STEP, _MOST))
    factors: tuple[float, ...] = field(records.many(_NUMBER, _MOST), missing=True, default=())


def _phase() -> Kind:
    return records.through(
        records.record(PhaseFile),
        lambda file: Phase(file.steps, file.factors),
        lambda phase: PhaseFile(phase.steps, phase.factors),
    )


def _count() -> Any:
    return field(_NUMBER, missing=True, default=1)


def _seconds() -> Any:
    return field(_NUMBER, missing=True, default=0.0)


@dataclass(frozen=True, kw_only=True)
class ServiceFile:
    """A service as a record, for its file; the fields of the record are in the file's order."""

    format: str = records.constant(FORMAT)
    version: int = records.constant(VERSION)
    name: Any = field(_NUMBER)
    notes: tuple[str, ...] = field(_NAMES, missing=True, default=())
    hosts: dict[str, Host] = field(records.mapping(records.record(Host), _MOST, 1024))
    token_bytes: dict[str, Any] = field(records.mapping(_NUMBER, _MOST, 1024), missing=True, default_factory=dict)
    refill_tokens: int = _count()
    request_tokens: int = _count()
    workers: int = _count()
    slots: int = _count()
    batch: int = _count()
    hold: float = _seconds()
    each: float = _seconds()
    images: int = _count()
    rtt: float = _seconds()
    refill: Phase | None = _absent(_phase())
    request: Phase = field(_phase())
    session: Phase | None = _absent(_phase())
    transit: Phase | None = _absent(_phase())

    @property
    def service(self) -> Service:
        """Convert the record to a `Service`. Raises ConfigError for fields that contradict each other."""
        return Service(**{name: value for name, value in vars(self).items() if name not in ("format", "version")})


def to_text(service: Service) -> str:
    """Return the service as JSON; a link without a limit is null.

    >>> phase = capacity.chain(("compute", capacity.Compute("server", 0.2)))
    >>> service = capacity.Service("one server", {"server": capacity.Host()}, request=phase)
    >>> text = capacity.to_text(service)
    >>> capacity.from_text(text, where="service.json") == service
    True
    """
    return records.write(ServiceFile(**vars(service)), indent=1) + "\n"


def from_text(text: str, where: str) -> Service:
    """Parse a service from the JSON of `to_text`. where: the file, for errors. Raises InputError for anything else.

    >>> capacity.from_text("{}", where="service.json")
    Traceback (most recent call last):
        ...
    hummingbird.errors.InputError: no service (at service.json)
    hint: an object with "format": "hummingbird-service", as `plan show --save` writes it
    """
    how: dict[str, Any] = {"name": "service", "where": where, "hint": "was it copied completely?"}
    data = records.parse(text, most=_MOST_TEXT, **how)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        hint = f'an object with "format": "{FORMAT}", as `plan show --save` writes it'
        raise InputError("no service", where=where, hint=hint)
    if data.get("version") != VERSION:
        hint = f"this release reads version {VERSION}"
        raise InputError(f"version {str(data.get('version'))[:32]} of the format", where=where, hint=hint)
    kind = records.through(records.record(ServiceFile), lambda file: file.service, lambda service: service)
    service: Service = records.of(data, kind, **how)
    return service
