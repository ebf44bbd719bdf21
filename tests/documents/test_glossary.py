"""The glossary holds the names of classes and files: one word, one meaning."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tests.support.pages import text_of
from tests.support.paths import ROOT
from tests.test_floors import FILES, PACKAGE

PAGE = text_of(ROOT / "docs/glossary.md")
USED, _, UNUSED = PAGE.partition("## Words that are not used")


def entries(text: str) -> list[tuple[str, str]]:
    """The two columns of a table's rows."""
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)
    return [(word, meaning) for word, meaning in rows if word != "word"]


def classes() -> dict[str, list[str]]:
    """Modules of every public class, by its name."""
    found: dict[str, list[str]] = {}
    for path in FILES:
        for name in re.findall(r"^class ([A-Za-z]\w*)", path.read_text(), re.MULTILINE):
            found.setdefault(name, []).append(str(path.relative_to(PACKAGE)))
    return found


def unexplained(found: dict[str, list[str]], words: set[str]) -> list[str]:
    """Names of classes in several modules that the glossary does not have."""
    return sorted(name for name, modules in found.items() if len(modules) > 1 and name.lower() not in words)


def words_of(name: str) -> set[str]:
    """The words of `RequestQueue` or `request_queue`, and the name itself in lower case."""
    return {part.lower() for part in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)} | {name.lower()}


def retired(names: Iterable[str], words: set[str]) -> list[str]:
    """Names that have a word which is not used any more."""
    return sorted(name for name in names if words_of(name) & words)


def test_the_words_are_in_order_and_each_stands_once() -> None:
    for text in (USED, UNUSED):
        words = [word.lower() for word, _ in entries(text)]
        assert len(words) > 10 and words == sorted(set(words)), words


def test_a_class_name_of_several_modules_has_one_meaning() -> None:
    words = {part for word, _ in entries(USED) for part in word.lower().split(", ")}
    assert unexplained(classes(), words) == []


def test_no_file_and_no_class_has_a_retired_word() -> None:
    names = {path.stem for path in FILES} | {path.parent.name for path in FILES} | classes().keys()
    assert retired(names, {word for word, _ in entries(UNUSED)}) == []


def test_these_tests_can_fail() -> None:
    assert unexplained({"Place": ["a.py", "b.py"], "Plan": ["a.py"]}, {"plan"}) == ["Place"]
    assert retired(["FarDesk", "at_hand", "lobby", "frontier", "Meanship"], {"desk", "at_hand", "lobby", "front"}) == [
        "FarDesk",
        "at_hand",
        "lobby",
    ]
