"""Records: JSON from files and other processes, read into frozen dataclasses whose fields carry their limits.

    @dataclass(frozen=True)
    class Opening:
        digest: bytes = field(hexadecimal(32))
        turn: int = field(whole(0, 4095))

    opening = records.read(data, Opening, name="opening", where="he", error=PeerError)
    data = records.write(opening)

`read` is the only reader of JSON in the package. It refuses a text that is too long or nested too deeply before it
parses it, and then NaN and infinities, a duplicate, unknown or missing field, and a value of another type (True is no
number) or outside of its limits. Its errors name the field, the expected kind, and the value.

Why no library: msgspec, the best-kept one, takes the last of two equal fields, ignores unknown fields in a dataclass,
and has no limits for integers beyond 64 bits.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import re
import reprlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn, TypeVar, overload

from hummingbird.errors import HummingbirdError, InputError

R = TypeVar("R")
MOST = 1 << 20  # default limit of a text, bytes
DEEPEST = 32  # default limit of nested lists and objects
LARGEST = (1 << 63) - 1
_HUGE = sys.float_info.max  # a larger integer is no float, and 1e999 is infinite
_STRANGE = (LookupError, TypeError, ValueError, AttributeError, RecursionError, OverflowError, ZeroDivisionError)
_NOT_BRACKETS = re.compile(r'[^"\[\]{}]+|"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)  # linear: matches open strings too
_shown = reprlib.Repr()
_shown.maxstring = _shown.maxlong = _shown.maxother = 48
_shown.maxlevel = 2


class Kind(NamedTuple):
    """The type and limits of a field of a record: how its value is checked, read from JSON, and written to it.

    expected: a description for errors, as in "a list of 2 items". read: converts a value of JSON to the field's value;
    raises `Fault`, or any Python error that a wrong value causes. plain: converts the field's value back.
    """

    expected: str
    read: Callable[[Any], Any]
    plain: Callable[[Any], Any] = lambda value: value


class Fault(Exception):
    """Raised for an invalid value in a JSON text, while a record is read.

    what: what is wrong, as a predicate: "has no field 'x'". path: the field that is the subject, such as ".layers[2]".
    """

    def __init__(self, what: str, path: str = "") -> None:
        super().__init__(what)
        self.what, self.path = what, path


class _Refused(Exception):
    """Raised in place of the HummingbirdError by which a record's class refuses values; `read` turns it back.

    error: the class's error. path: where the record is in the JSON text, for the final error.
    """

    def __init__(self, error: HummingbirdError, path: str = "") -> None:
        super().__init__(error.what)
        self.error, self.path = error, path


# Fields ---------------------------------------------------------------------------------------------------------------


def field(kind: Kind, *, missing: bool = False, left_out: bool = False, **default: Any) -> Any:
    """Declare a field of a record's dataclass, in place of `dataclasses.field`.

    kind: type and limits of its values. missing: whether the field may be absent in a JSON text; it then has its
    default. left_out: whether, besides, `write` leaves the field out where it has its default. default: further
    arguments, which go to `dataclasses.field`.
    """
    return dataclasses.field(metadata={"kind": kind, "missing": missing or left_out, "left_out": left_out}, **default)


def whole(least: int = 0, most: int = LARGEST) -> Kind:
    """Return a `Kind` for a field that holds an integer in least..most."""
    expected = f"a whole number in {least}..{_power(most)}"
    return _plain(expected, lambda value: type(value) is int and least <= value <= most)


def real(least: float = 0.0, most: float = _HUGE, *, above: bool = False) -> Kind:
    """Return the `Kind` of a field that holds a finite number in least..most, read as a float.

    above: whether `least` itself is excluded.
    """
    expected = f"a number {'above' if above else 'from'} {least:g}" + ("" if most == _HUGE else f" to {most:g}")

    def read(value: Any) -> float:
        good = type(value) in (int, float) and least <= value <= most and not (above and value == least)
        return float(_checked(value, good, expected))

    return Kind(expected, read)


def flag() -> Kind:
    """Return a `Kind` for a field that holds True or False."""
    return _plain("true or false", lambda value: type(value) is bool)


def text(longest: int, shortest: int = 0, *, printable: bool = False) -> Kind:
    """Return a `Kind` for a field that holds a text.

    longest, shortest: limits of its number of characters. printable: whether all of them must be printable.
    """
    expected = f"a{' printable' * printable} text of {shortest} to {longest} characters"

    def good(value: Any) -> bool:
        return type(value) is str and shortest <= len(value) <= longest and (value.isprintable() or not printable)

    return _plain(expected, good)


def one_of(names: Sequence[Any]) -> Kind:
    """Return a `Kind` for a field that holds one of the texts or numbers in `names`."""
    return _plain(f"one of {', '.join(map(str, names))}", lambda value: any(_same(value, name) for name in names))


def constant(value: Any) -> Any:
    """Declare a field that has the same value in every record, such as a format's name or version.

    value: this value. `read` refuses a record with another value, and checks these fields before all others.
    """
    kind = _plain(repr(value), lambda found: _same(found, value))
    return dataclasses.field(default=value, metadata={"kind": kind, "missing": False, "left_out": False, "first": True})


def hexadecimal(*sizes: int) -> Kind:
    """Return a `Kind` for a field that holds bytes, which JSON has as hexadecimal digits.

    sizes: the numbers of bytes that are allowed. No error shows the value, which may be secret.
    """
    return Kind(_hex(sizes), lambda value: bytes.fromhex(_digits(value, sizes)), bytes.hex)


def digits(size: int) -> Kind:
    """Return a `Kind` for a text of hexadecimal digits that stand for `size` bytes; the field holds the text.

    No error shows the value, which may be secret.
    """
    return Kind(_hex((size,)), lambda value: _digits(value, (size,)))


def many(kind: Kind, longest: int, shortest: int = 0) -> Kind:
    """Return a `Kind` for a field that holds a tuple of values of one kind, which JSON has as a list.

    kind: of each value. longest, shortest: limits of the number of values.
    """
    expected = f"a list of {shortest} to {longest} items"

    def read(value: Any) -> tuple[Any, ...]:
        _checked(value, type(value) is list and shortest <= len(value) <= longest, expected)
        return tuple(_inside(f"[{number}]", kind.read, item) for number, item in enumerate(value))

    return Kind(expected, read, lambda value: [kind.plain(item) for item in value])


def row(*kinds: Kind) -> Kind:
    """Return a `Kind` for a field that holds a tuple of fixed length, which JSON has as a list.

    kinds: the kind of each entry, in order.
    """
    expected = f"a list of {len(kinds)} items"

    def read(value: Any) -> tuple[Any, ...]:
        _checked(value, type(value) is list and len(value) == len(kinds), expected)
        return tuple(_inside(f"[{place}]", kinds[place].read, item) for place, item in enumerate(value))

    return Kind(expected, read, lambda value: [kind.plain(item) for kind, item in zip(kinds, value, strict=True)])


def mapping(kind: Kind, longest: int, name: int = 512) -> Kind:
    """Return a `Kind` for a field that holds a dict from texts to values of one kind, which JSON has as an object.

    kind: of each value. longest: most entries. name: most characters of a key.
    """
    expected = f"an object of at most {longest} fields with names of at most {name} characters"

    def read(value: Any) -> dict[str, Any]:
        _checked(value, type(value) is dict, "an object")
        good = len(value) <= longest and all(len(key) <= name for key in value)
        return {key: _inside(_place(key), kind.read, item) for key, item in _checked(value, good, expected).items()}

    return Kind(expected, read, lambda value: {key: kind.plain(item) for key, item in value.items()})


def maybe(kind: Kind) -> Kind:
    """Return a `Kind` for a field that holds None (null in JSON) or a value of `kind`."""
    return Kind(
        f"null or {kind.expected}",
        lambda value: None if value is None else kind.read(value),
        lambda value: None if value is None else kind.plain(value),
    )


def anything(expected: str = "a value of JSON") -> Kind:
    """Return a `Kind` for a field that may hold any value of JSON; the record's class checks it.

    expected: what it should be, in words, for errors.
    """
    return Kind(expected, lambda value: value)


def through(kind: Kind, read: Callable[[Any], Any], plain: Callable[[Any], Any]) -> Kind:
    """Return a `Kind` for a field whose value has one form in JSON and another one in Python, such as a path.

    kind: of the value in JSON. read: converts it to the field's value; it may raise any error of Python or of this
    package. plain: converts the field's value back.
    """
    return Kind(kind.expected, lambda value: _guarded(read, kind.read(value)), lambda value: kind.plain(plain(value)))


def record(kind: type[Any]) -> Kind:
    """Return a `Kind` for a field that holds another record, which JSON has as an object. kind: that record's class."""
    return Kind("an object", functools.partial(_made, kind), plain)


# Reading --------------------------------------------------------------------------------------------------------------


@overload
def read(data: str | bytes, kind: type[R], *, name: str, **how: Any) -> R: ...
@overload
def read(data: str | bytes, kind: Kind, *, name: str, **how: Any) -> Any: ...
def read(data: str | bytes, kind: Any, *, name: str, most: int = MOST, deepest: int = DEEPEST, **how: Any) -> Any:
    """Read a record, or one value if `kind` is a `Kind`, from a JSON text, and return it.

    data: the text. kind: the record's class, or a `Kind`. name: the text's name in errors, as in "malformed NAME: it
    has no field 'turn'". most: limit of the text in bytes. deepest: limit of nested lists and objects. how: `error`,
    the class of errors, by default InputError, and their `where` and `hint`.
    """
    return of(parse(data, name=name, most=most, deepest=deepest, **how), kind, name=name, **how)


def parse(data: str | bytes, *, name: str, most: int = MOST, deepest: int = DEEPEST, **how: Any) -> Any:
    """Parse a JSON text; return its values as Python has them: dict, list, str, numbers and None.

    `of` then turns them into a record: for texts in which a field says which record they hold. name: the text's name in
    errors. most: limit in bytes. deepest: limit of nested lists and objects. how: `error`, the class of errors, by
    default InputError, and their `where` and `hint`.
    """
    with _told(name, **how):
        return _parsed(data, most, deepest)


@overload
def of(value: Any, kind: type[R], *, name: str, **how: Any) -> R: ...
@overload
def of(value: Any, kind: Kind, *, name: str, **how: Any) -> Any: ...
def of(value: Any, kind: Any, *, name: str, **how: Any) -> Any:
    """Return the record that JSON values describe, or one value if `kind` is a `Kind`.

    value: values as `parse` returns them. kind: the record's class, or a `Kind`. name: the record's name in errors.
    how: `error`, the class of errors, by default InputError, and their `where` and `hint`. Raises such an error for
    invalid values.
    """
    with _told(name, **how):
        return kind.read(value) if isinstance(kind, Kind) else _made(kind, value)


# Writing --------------------------------------------------------------------------------------------------------------


def plain(record: Any) -> dict[str, Any]:
    """Return a record as JSON values, in the order of its fields."""
    values = {part.name: (part, getattr(record, part.name)) for part in _parts(type(record))}
    written = {name: pair for name, pair in values.items() if not (pair[0].metadata["left_out"] and _is_default(*pair))}
    return {name: part.metadata["kind"].plain(value) for name, (part, value) in written.items()}


def write(record: Any, **layout: Any) -> str:
    """Return a record as JSON text. layout: arguments of json.dumps: `indent`, `separators`, `sort_keys`."""
    return json.dumps(plain(record), allow_nan=False, **layout)


# Within ---------------------------------------------------------------------------------------------------------------


def _parts(kind: Any) -> tuple[dataclasses.Field[Any], ...]:
    """Return the dataclass fields of a record's class, in order. Raises TypeError for one not made by `field`."""
    return _looked_up(kind)


@functools.cache
def _looked_up(kind: Any) -> tuple[dataclasses.Field[Any], ...]:
    parts = dataclasses.fields(kind)
    if bare := [part.name for part in parts if "kind" not in part.metadata]:
        raise TypeError(f"{kind.__name__}.{bare[0]} has no kind: it is no record")
    return parts


def _is_default(part: dataclasses.Field[Any], value: Any) -> bool:
    made = part.default if part.default_factory is dataclasses.MISSING else part.default_factory()
    return bool(value == made)


def _made(kind: type[R], value: Any) -> R:
    """Make a record of the dataclass `kind` from `value`, the dict of a JSON object.

    Raises Fault for invalid fields, and _Refused for values that the class itself refuses.
    """
    fields = _checked(value, type(value) is dict, "an object")
    parts = {part.name: part for part in _parts(kind)}
    order = sorted(parts.values(), key=lambda part: not part.metadata.get("first"))
    for part in order:
        if part.metadata.get("first") and part.name in fields:
            _inside(f".{part.name}", part.metadata["kind"].read, fields[part.name])
    if unknown := sorted(set(fields) - set(parts)):
        raise Fault(f"has an unknown field {_shown.repr(unknown[0])} (known: {', '.join(parts)})")
    if lacking := [part.name for part in order if part.name not in fields and not part.metadata["missing"]]:
        raise Fault(f"has no field {lacking[0]!r}")
    found = {name: _inside(f".{name}", parts[name].metadata["kind"].read, item) for name, item in fields.items()}
    return _guarded(lambda values: kind(**values), found)


def _inside(path: str, read: Callable[[Any], Any], value: Any) -> Any:
    try:
        return read(value)
    except (Fault, _Refused) as fault:
        fault.path = path + fault.path
        raise


def _power(number: int) -> str:
    """Return a number as text for errors: as 2^n or 2^n-1 if it is such a number from 2^31 on, else in digits."""
    for less in (0, 1):
        if number >= 1 << 31 and number + less & number + less - 1 == 0:
            return f"2^{(number + less).bit_length() - 1}" + "-1" * less
    return str(number)


def _place(key: str) -> str:
    return f".{key}" if key.isprintable() and len(key) < 64 else f".{_shown.repr(key)}"


def _guarded(make: Callable[[Any], R], value: Any) -> R:
    try:
        return make(value)
    except Fault:
        raise
    except HummingbirdError as error:
        raise _Refused(error) from None
    except _STRANGE as error:
        raise Fault(f"cannot be read ({type(error).__name__}: {str(error)[:120]})") from None


def _checked(value: Any, good: bool, expected: str) -> Any:
    if not good:
        raise Fault(f"is {_described(value)}, not {expected}")
    return value


def _described(value: Any) -> str:
    if isinstance(value, dict):
        return f"an object of {len(value)} fields"
    return f"a list of {len(value)} items" if isinstance(value, list) else _word(value)


def _word(value: Any) -> str:
    return json.dumps(value) if value is None or type(value) is bool else _shown.repr(value)


def _plain(expected: str, good: Callable[[Any], bool]) -> Kind:
    return Kind(expected, lambda value: _checked(value, good(value), expected))


def _same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and bool(value == other)


def _hex(sizes: Sequence[int]) -> str:
    return f"{' or '.join(map(str, sizes))} bytes in hexadecimal"


def _digits(value: Any, sizes: Sequence[int]) -> str:
    if type(value) is not str or len(value) not in [2 * size for size in sizes] or set(value) - set("0123456789abcdef"):
        raise Fault(f"is not {_hex(sizes)}")
    return value


def _parsed(data: str | bytes, most: int, deepest: int) -> Any:
    if len(data) > most:
        raise Fault(f"has {len(data)} bytes, the limit is {most}")
    try:
        content = data if isinstance(data, str) else data.decode()
        if content.count("[") + content.count("{") > deepest:
            brackets = _NOT_BRACKETS.sub("", content)
            depths = itertools.accumulate(1 if bracket in "[{" else -1 for bracket in brackets)
            if max(depths, default=0) > deepest:
                raise Fault(f"is nested more than {deepest} deep")
        return json.loads(content, object_pairs_hook=_once, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise Fault(f"is no JSON ({str(error)[:120]})") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise Fault(f"has the field {_shown.repr(twice)} twice")
    return fields


def _no_number(name: str) -> NoReturn:
    raise Fault(f"has {name}, which is no number of JSON")


@contextmanager
def _told(
    name: str, where: str = "", hint: str = "", error: Callable[..., HummingbirdError] = InputError
) -> Iterator[None]:
    """Return a context that turns errors of invalid values in it into errors of class `error`.

    name: the record's name for the text "malformed NAME: FIELD ...". where, hint: of the error.
    """
    try:
        yield
    except Fault as fault:
        raise error(
            f"malformed {name}: {fault.path.lstrip('.') or 'it'} {fault.what}", where=where, hint=hint
        ) from None
    except _Refused as fault:
        places = [place for place in (where, fault.path.lstrip("."), fault.error.where) if place]
        raise error(fault.error.what, where=": ".join(places), hint=fault.error.hint or hint) from None
