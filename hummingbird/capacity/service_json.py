"""A service's JSON: one version, every field known, anything else refused with the place where it stands."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from hummingbird.capacity.service import Compute, Host, Phase, Prices, Rounds, Send, Service, Work, WorkStep
from hummingbird.errors import ConfigError, InputError

FORMAT = "hummingbird-service"
VERSION = 1
_MOST_TEXT = 16 << 20  # bytes
_WORKS = {"compute": Compute, "send": Send, "rounds": Rounds}
_NUMBERS = ("refill_tokens", "request_tokens", "workers", "slots", "batch", "hold", "each", "images", "rtt")
_PHASES = ("refill", "request", "session", "transit")
_FIELDS = {"format", "version", "name", "notes", "hosts", "token_bytes", *_NUMBERS, *_PHASES}
T = TypeVar("T")


def to_text(service: Service) -> str:
    """The service as JSON; a link without a limit is null."""
    phases = {name: _of_phase(getattr(service, name)) for name in _PHASES}
    data = {
        **{"format": FORMAT, "version": VERSION, "name": service.name},
        "notes": list(service.notes),
        "hosts": {role: _of_host(host) for role, host in service.hosts.items()},
        "token_bytes": dict(service.token_bytes),
        **{name: getattr(service, name) for name in _NUMBERS},
        **{name: phase for name, phase in phases.items() if phase is not None},
    }
    return json.dumps(data, indent=1) + "\n"


def from_text(text: str, where: str) -> Service:
    """Parse `to_text`'s JSON; InputError, naming the place in `where`, for anything else."""
    if len(text) > _MOST_TEXT:
        raise InputError(f"a service of {len(text)} characters", where=where, hint=f"at most {_MOST_TEXT}")
    try:
        data = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(f"no JSON: {str(error)[:200]}", where=where, hint="was it copied completely?") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        hint = f'an object with "format": "{FORMAT}", as `plan show --save` writes it'
        raise InputError("no service", where=where, hint=hint)
    if data.get("version") != VERSION:
        hint = f"this release reads version {VERSION}"
        raise InputError(f"version {str(data.get('version'))[:32]} of the format", where=where, hint=hint)
    _known(data, _FIELDS, where)
    notes = data.get("notes", [])
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise InputError("no list of texts", where=f"{where}: notes", hint='["measured on ..."]')
    for name in ("name", "hosts", "request"):
        if name not in data:
            raise InputError(f"no field {name}", where=where, hint="every service has one")
    hosts = _object(data["hosts"], f"{where}: hosts")
    phases = {name: _phase(data[name], f"{where}: {name}") for name in _PHASES if name in data}
    fields = {
        **{name: data[name] for name in ("name", *_NUMBERS) if name in data},
        "hosts": {role: _host(value, f"{where}: hosts.{role}") for role, value in hosts.items()},
        "notes": tuple(notes),
        "token_bytes": _object(data.get("token_bytes", {}), f"{where}: token_bytes"),
    }
    return _made(Service, where, **fields, **phases)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of a service")


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{str(value)[:40]!r}, not an object", where=where, hint="{...}")
    return value


def _known(data: Mapping[str, Any], fields: set[str], where: str) -> None:
    if unknown := sorted(set(data) - fields):
        hint = f"one of {', '.join(sorted(fields))}"
        raise InputError(f"unknown field {unknown[0]!r}", where=where, hint=hint)


def _made(kind: Callable[..., T], where: str, **fields: Any) -> T:
    """An object of these fields; InputError, with its place, for what the object refuses."""
    try:
        return kind(**fields)
    except ConfigError as error:
        raise InputError(error.what, where=f"{where}: {error.where}", hint=error.hint) from None
    except TypeError as error:
        raise InputError(f"a field is missing or of a wrong type: {error}", where=where) from None


def _of_host(host: Host) -> dict[str, Any]:
    data = dataclasses.asdict(host)
    return {name: None if value == math.inf else value for name, value in data.items()}


def _host(value: Any, where: str) -> Host:
    data = dict(_object(value, where))
    _known(data, {field.name for field in dataclasses.fields(Host)}, where)
    for name in ("up", "down"):
        if name in data and data[name] is None:
            data[name] = math.inf
    if "prices" in data:
        _known(_object(data["prices"], f"{where}.prices"), {f.name for f in dataclasses.fields(Prices)}, where)
        data["prices"] = _made(Prices, where, **data["prices"])
    return _made(Host, where, **data)


def _of_phase(phase: Phase | None) -> dict[str, Any] | None:
    if phase is None:
        return None
    steps = [{"name": step.name, "after": list(step.after), **_of_work(step.work)} for step in phase.steps]
    return {"steps": steps, "factors": list(phase.factors)}


def _of_work(work: Work) -> dict[str, Any]:
    name = next(name for name, kind in _WORKS.items() if isinstance(work, kind))
    return {name: work.rounds if isinstance(work, Rounds) else dataclasses.asdict(work)}


def _phase(value: Any, where: str) -> Phase:
    data = _object(value, where)
    _known(data, {"steps", "factors"}, where)
    if not isinstance(data.get("steps"), list) or not isinstance(data.get("factors", []), list):
        raise InputError("steps and factors are no lists", where=where, hint='{"steps": [..], "factors": [..]}')
    steps = tuple(_step(step, f"{where}.steps[{number}]") for number, step in enumerate(data["steps"]))
    return _made(Phase, where, steps=steps, factors=tuple(data.get("factors", [])))


def _step(value: Any, where: str) -> WorkStep:
    data = _object(value, where)
    _known(data, {"name", "after", *_WORKS}, where)
    works = [name for name in _WORKS if name in data]
    after = data.get("after", [])
    if len(works) != 1:
        hint = f"exactly one of {', '.join(_WORKS)}"
        raise InputError(f"a step with {', '.join(works) or 'no work'}", where=where, hint=hint)
    if not isinstance(after, list) or not all(isinstance(name, str) for name in after):
        raise InputError("`after` is no list of names", where=where, hint="the steps that end before this one begins")
    work = _work(works[0], data[works[0]], f"{where}.{works[0]}")
    return _made(WorkStep, where, name=data.get("name"), work=work, after=tuple(after))


def _work(name: str, value: Any, where: str) -> Work:
    kind = _WORKS[name]
    fields = {"rounds": value} if kind is Rounds else _object(value, where)
    _known(fields, {field.name for field in dataclasses.fields(kind)}, where)
    for field in ("host", "source", "target"):
        if field in fields and not isinstance(fields[field], str):
            raise InputError(f"{str(fields[field])[:40]!r} is no role", where=f"{where}.{field}")
    return _made(kind, where, **fields)
