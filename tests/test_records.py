"""Reading records: every limit refuses what lies beyond it; errors say where, what is there, and what must be."""

from __future__ import annotations

import ast
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from hummingbird import records
from hummingbird.errors import ConfigError, PeerError
from hummingbird.records import Kind, field
from tests.test_floors import PACKAGE, imported, last_name, nodes, offenders, parsed


@dataclass(frozen=True)
class Inner:
    size: int = field(records.whole(1, 9))
    share: float = field(records.real(0, 1), missing=True, default=0.5)

    def __post_init__(self) -> None:
        if self.size == 7:
            raise ConfigError("seven is taken", where="size", hint="take eight")


@dataclass(frozen=True)
class Outer:
    format: str = records.constant("outer")
    token: bytes = field(records.hexadecimal(2), default=b"\1\2")
    parts: tuple[Inner, ...] = field(records.many(records.record(Inner), 2), default=())
    by_name: dict[str, int] = field(records.mapping(records.whole(), 2, 3), default_factory=dict)
    note: str | None = field(records.maybe(records.text(3)), left_out=True, default=None)


FULL = Outer("outer", b"\xab\xcd", (Inner(1), Inner(2, 0.25)), {"a": 3}, "no")


def refused(data: str | bytes, kind: Any = Outer, **how: Any) -> PeerError:
    with pytest.raises(PeerError) as caught:
        records.read(data, kind, name="thing", where="there", hint="try", error=PeerError, **how)
    assert caught.value.hint == "try" or "eight" in caught.value.hint
    return caught.value


def test_what_is_written_is_read() -> None:
    for record in (FULL, Outer()):
        text = records.write(record)
        assert records.read(text, Outer, name="thing") == records.read(text.encode(), Outer, name="thing") == record
    assert list(json.loads(records.write(Outer()))) == ["format", "token", "parts", "by_name"]
    assert records.write(FULL, separators=(",", ":"), sort_keys=True) == json.dumps(
        {
            "format": "outer",
            "token": "abcd",
            "parts": [{"size": 1, "share": 0.5}, {"size": 2, "share": 0.25}],
            "by_name": {"a": 3},
            "note": "no",
        },
        separators=(",", ":"),
        sort_keys=True,
    )


def changed(change: Callable[[dict[str, Any]], object]) -> str:
    fields = records.plain(FULL)
    change(fields)
    return json.dumps(fields)


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda f: f.update(format="inner", more=1), "format is 'inner', not 'outer'"),
        (lambda f: f.update(more=1), "it has an unknown field 'more' (known: format, token, parts, by_name, note)"),
        (lambda f: f.pop("token"), "it has no field 'token'"),
        (lambda f: f["parts"][1].pop("size"), "parts[1] has no field 'size'"),
        (lambda f: f["parts"][1].update(size=10), "parts[1].size is 10, not a whole number in 1..9"),
        (lambda f: f["parts"][0].update(size=True), "parts[0].size is true, not a whole number in 1..9"),
        (lambda f: f["parts"][0].update(size=1.0), "parts[0].size is 1.0, not a whole number in 1..9"),
        (lambda f: f["parts"][0].update(share="x"), "parts[0].share is 'x', not a number from 0 to 1"),
        (lambda f: f["parts"][0].update(share=True), "parts[0].share is true, not a number"),
        (lambda f: f["parts"].append({"size": 1}), "parts is a list of 3 items, not a list of 0 to 2 items"),
        (lambda f: f.update(parts={}), "parts is an object of 0 fields, not a list"),
        (lambda f: f.update(parts=[[]]), "parts[0] is a list of 0 items, not an object"),
        (lambda f: f["by_name"].update(four=4), "not an object of at most 2 fields with names of at most 3 characters"),
        (lambda f: f["by_name"].update(a=-1), "by_name.a is -1, not a whole number in 0.."),
        (lambda f: f["by_name"].update(b=1, c=2), "by_name is an object of 3 fields, not"),
        (lambda f: f.update(note="long"), "note is 'long', not a text of 0 to 3 characters"),
        (lambda f: f.update(note=None, token="ABCD"), "token is not 2 bytes in hexadecimal"),
        (lambda f: f.update(token="secret"), "token is not 2 bytes in hexadecimal"),
    ],
)
def test_a_wrong_field_is_named_with_what_is_there_and_what_must_be(
    change: Callable[[dict[str, Any]], object], says: str
) -> None:
    error = refused(changed(change))
    assert error.what.startswith("malformed thing: ") and error.where == "there"
    assert says in error.what and "secret" not in str(error)


def test_the_checks_of_a_record_itself_name_the_record() -> None:
    error = refused(changed(lambda fields: fields["parts"][1].update(size=7)))
    assert (error.what, error.where, error.hint) == ("seven is taken", "there: parts[1]: size", "take eight")


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "is no JSON"),
        ("{", "is no JSON"),
        (b"\xff", "is no JSON"),
        ("[1]", "it is a list of 1 items, not an object"),
        ("null", "it is null, not an object"),
        ('{"size": NaN}', "it has NaN, which is no number"),
        ('{"size": -Infinity}', "it has -Infinity, which is no number"),
        ('{"size": 1, "size": 2}', "it has the field 'size' twice"),
        ('{"size": 1, "share": 1e999}', "share is inf, not a number"),
        ('{"size": 1, "share": 1' + "0" * 400 + "}", "share is 1000"),
        ('{"size": ' + "9" * 5000 + "}", "it"),
        ("[" * 100_000, "it is nested more than 32 deep"),
        ('{"a":' * 33 + "1" + "}" * 33, "it is nested more than 32 deep"),
        ('{"size": ' + " " * (1 << 20) + "1}", "it has 1048587 bytes, the limit is 1048576"),
    ],
)
def test_a_text_is_limited_before_it_is_read(text: str | bytes, says: str) -> None:
    assert says in refused(text, Inner).what


def test_brackets_in_texts_do_not_nest() -> None:
    nested = ["[" * 40, '\\"[' * 40, "{"]
    assert records.read(json.dumps(nested), records.anything(), name="thing") == nested
    for deep in (32, 33):
        value: Any = 1
        for _ in range(deep):
            value = [value]
        text = json.dumps(value)
        if deep == 32:
            assert records.read(text, records.anything(), name="thing") == value
        else:
            assert "nested" in refused(text, records.anything()).what


def test_texts_that_never_end_cost_no_more_than_their_length() -> None:
    """Each quote of them may be where a text begins: tried from each, a megabyte would take minutes."""
    started = time.process_time()
    assert "is no JSON" in refused('{"' + '\\"' * 500_000 + "[" * 10, records.anything()).what
    assert time.process_time() - started < 60


@pytest.mark.parametrize(
    "kind, good, bad",
    [
        (records.whole(2, 3), [2, 3], [1, 4, 2.0, True, "2", None]),
        (records.real(1, 2), [1, 1.5, 2], [0.9, 2.1, True, "1", None]),
        (records.real(0, 2, above=True), [1e-300, 2], [0, 0.0, -0.0]),
        (records.real(-math.inf), [-1e300, 5], ["-1"]),
        (records.flag(), [True, False], [0, 1, "true", None]),
        (records.text(2, 1), ["a", "ab", "\n"], ["", "abc", 1, None]),
        (records.text(2, printable=True), ["", "a b"[:2]], ["\n", "\x7f"]),
        (records.one_of(("a", 1)), ["a", 1], ["b", True, 1.0, ["a"], {}]),
        (records.digits(1), ["ab"], ["AB", "a", " a", 10]),
        (records.row(records.whole(), records.text(1)), [[1, "a"]], [[1], [1, "a", 2], ["a", 1], {}]),
        (records.maybe(records.whole()), [None, 0], [False]),
    ],
)
def test_kinds(kind: Kind, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        found = records.of(value, kind, name="thing")
        assert kind.plain(found) == value and (not isinstance(value, float) or type(found) is float)
    for value in bad:
        with pytest.raises(PeerError, match=r"(it|\[0\]) is"):
            records.of(value, kind, name="thing", error=PeerError)


def test_what_makes_a_value_may_fail_as_python_does() -> None:
    kind = records.through(records.text(9), lambda word: {"one": 1}[word], str)
    assert records.of("one", kind, name="thing") == 1
    with pytest.raises(PeerError, match="malformed thing: it cannot be read .KeyError"):
        records.of("two", kind, name="thing", error=PeerError)


def test_a_class_whose_fields_have_no_kinds_is_no_record() -> None:
    @dataclass
    class Bare:
        size: int

    with pytest.raises(TypeError, match="Bare.size has no kind"):
        records.read("{}", Bare, name="thing")


def parsing(source: str) -> list[str]:
    """Uses of a reader of JSON, which checks nothing of what it reads: `hummingbird.records` does."""
    if "json" not in source:
        return []
    tree = parsed(source)
    names = {"json.loads", "json.load", "json.JSONDecoder", "json.decoder", "json.scanner"}
    found = [f"line {line}: {name}" for name, line in imported(tree) if name in names]
    last = {name.rpartition(".")[2] for name in names}
    uses = [node for node in nodes(tree) if isinstance(node, ast.Attribute) and last_name(node) in last]
    return found + [f"line {node.lineno}: {ast.unparse(node)}" for node in uses if ast.unparse(node) in names]


def test_only_records_reads_json() -> None:
    found = offenders(lambda path: parsing(path.read_text()))
    assert set(found) == {"records.py"} and len(parsing((PACKAGE / "records.py").read_text())) == 1, found


def test_the_test_of_records_can_fail() -> None:
    for line in ("json.loads(text)", "json.load(file)", "read = json.loads", "json.JSONDecoder().decode(text)"):
        assert parsing(f"import json\n{line}"), line
    assert parsing("from json import loads") and parsing("import json.decoder")
    assert not parsing("import json\njson.dumps(1)\nspec_json.load(text)")
