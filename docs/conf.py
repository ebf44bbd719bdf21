"""The site: Sphinx's configuration, and how a docstring of this package becomes reStructuredText.

The source directory is the repository itself, so that links between pages, the README and the notebooks are the same on
the site as on GitHub. Navigation comes from the tables of docs/index.md, and the public names from docs/reference.md:
neither has a second list. `make docs` builds it; every warning is an error.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hummingbird import errors
from hummingbird.version import VERSION

HERE = Path(__file__).parent

project = "hummingbird"
author = "the hummingbird authors"
copyright = "2026, the hummingbird authors"
version = release = VERSION

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.mathjax", "sphinx_copybutton"]
root_doc = "docs/index"
include_patterns = ["*.md", "checkpoints/README.md", "docs/*.md", "docs/tutorials/*.ipynb", "docs/reference/*.rst"]
templates_path = [str(HERE / "templates")]
nitpicky = True
nitpick_ignore_regex = [("py:class", ".*")]  # types in signatures, torch's among them: their pages are elsewhere

myst_heading_anchors = 6
smartquotes = False  # strings of options keep their quotes
nb_execution_mode = "off"  # tests/documents/test_tutorials.py runs them
copybutton_exclude = ".linenos, .gp, .go"  # prompts and output of examples

autosummary_generate = True
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_inherit_docstrings = False
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True

html_theme = "sphinx_book_theme"
html_title = f"hummingbird {VERSION}"
html_theme_options: dict[str, Any] = {
    "show_toc_level": 2,
    "show_navbar_depth": 1,
    "home_page_in_toc": True,
    "navbar_persistent": [],  # the left column has the search
}
if site := os.environ.get("HUMMINGBIRD_SITE"):  # where it is published, with a folder for each version
    match = os.environ["HUMMINGBIRD_SITE_VERSION"]
    html_theme_options |= {
        "switcher": {"json_url": f"{site}/versions.json", "version_match": match},
        "check_switcher": False,  # the list is written after the build
        "primary_sidebar_end": ["version-switcher"],
    }


# Navigation: the tables of docs/index.md.


def navigation(index: str) -> list[tuple[str, list[str]]]:
    """Return the headings of docs/index.md, each with the pages that its table links, as paths beside the index."""
    sections = re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", index, re.MULTILINE | re.DOTALL)
    return [(heading, re.findall(r"^\| \[[^]]*\]\(([\w./-]+)\)", text, re.MULTILINE)) for heading, text in sections]


def add_navigation(app: Any, name: str, content: list[str]) -> None:
    """Add to the index, on the site only, a list of contents that its left column shows."""
    if name != root_doc:
        return
    for heading, pages in navigation(content[0]):
        listed = "\n".join(page.rpartition(".")[0] for page in pages)
        content[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{listed}\n```\n"


def add_first_page(app: Any, failure: Exception | None) -> None:
    """Send the site's own address to the index."""
    if failure is None and app.builder.format == "html":
        page = '<!doctype html><meta http-equiv="refresh" content="0; url=docs/index.html"><title>hummingbird</title>\n'
        (Path(app.outdir) / "index.html").write_text(page)


# Docstrings. Their form: sentences; `name: meaning` for arguments and fields; code, indented; examples after >>>.

FIELD = re.compile(r"(?:^|(?<=[.;:)] ))((?:[a-z_]\w*)(?:, [a-z_]\w*)*):\s", re.MULTILINE)
AFTER = re.compile(r"(?<=[.;])(?:\n(?=[A-Z`])| (?=(?:Also raises|Raises|Returns|Warns)\s))")  # ends a field
NO_VALUE = re.compile(r"<factory>|<function [^ ]* at 0x\w+>|<object object at 0x\w+>")  # as a signature shows a default
ERRORS = {name for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, Exception)}


def public_names(page: str) -> list[str]:
    """Return the names that docs/reference.md lists, in order."""
    return re.findall(r"^   (hummingbird\.[\w.]+)$", page, re.MULTILINE)


PUBLIC = public_names((HERE / "reference.md").read_text(encoding="utf-8"))


def target(code: str, owner: str) -> str | None:
    """Return the public name that a word in backquotes means, in the docstring of `owner`."""
    room = owner.rpartition(".")[0]
    dotted = code if code.startswith("hummingbird.") else f"hummingbird.{code}"
    return next((name for name in (f"{room}.{code}", dotted, f"hummingbird.errors.{code}") if name in PUBLIC), None)


def prose(text: str, owner: str) -> str:
    """Return a paragraph as reStructuredText: code in double backquotes, public names and errors as links."""
    parts = []
    for number, part in enumerate(re.split(r"`([^`]+)`", text)):
        if number % 2:
            found = target(part, owner)
            parts.append(f":py:obj:`{part} <{found}>`" if found and found != owner else f"``{part}``")
        else:
            plain = re.sub(r"([\\*|_])", r"\\\1", part)
            parts.append(
                re.sub(
                    r"\b([A-Z]\w+)\b",
                    lambda word: (
                        f":py:obj:`{word[1]} <hummingbird.errors.{word[1]}>`" if word[1] in ERRORS else word[1]
                    ),
                    plain,
                )
            )
    return "".join(parts)


def fields(paragraph: str, known: set[str]) -> Iterator[tuple[str, str]]:
    """Split a paragraph into pairs of a field's names and its text; sentences that are of no field have the name "".

    A field begins at `name: ` with a known name, and ends at the next one, at a line that begins a sentence outside of
    the field's indentation, or at a sentence of what is raised or returned.
    """
    starts = [at for at in FIELD.finditer(paragraph) if set(at[1].split(", ")) <= known]
    ends = [*(at.start() for at in starts), len(paragraph)][1:]
    if not starts or starts[0].start():
        yield "", paragraph[: starts[0].start() if starts else None]
    for start, end in zip(starts, ends, strict=True):
        text = paragraph[start.end() : end]
        rest = AFTER.search(text)
        yield start[1], text[: rest.start()] if rest else text
        if rest:
            yield "", text[rest.start() :]


def known_names(obj: Any) -> set[str]:
    """Return the names that may head a field: an object's arguments, and the fields and properties of a class."""
    try:
        names = set(inspect.signature(obj).parameters)
    except (TypeError, ValueError):
        names = set()
    if inspect.isclass(obj):
        names |= {name for kind in obj.__mro__ for name in (*vars(kind), *vars(kind).get("__annotations__", ()))}
        source = re.findall(r"self\.(\w+)\b[^=\n]*=", inspect.getsource(obj))
        names |= {name for line in source for name in line.split(", ")} | {"failures", "problems"}
    return names


def restructured(lines: Sequence[str], obj: Any, owner: str) -> list[str]:
    """Return a docstring's lines as reStructuredText."""
    out: list[str] = []
    known = known_names(obj)
    for block in re.split(r"\n{2,}(?=\S)|\n{2,}(?=    )", "\n".join(lines).strip()):
        if block.startswith(">>> "):
            out += [*block.splitlines(), ""]
            continue
        if block.startswith("    "):
            out += [".. code-block:: python", "", *block.splitlines(), ""]
            continue
        for names, text in fields(block, known):
            flat = prose(" ".join(text.split()), owner)
            out += [f":param {name}: {flat}" for name in names.split(", ")] if names else ["", flat, ""]
        out.append("")
    return out


def rewrite_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = restructured(lines, obj, name)


def shorten_signature(
    app: Any, what: str, name: str, obj: Any, options: Any, arguments: str | None, result: str | None
) -> tuple[str | None, str | None]:
    """Write defaults that have no text of their own as "..."."""
    return arguments and NO_VALUE.sub("...", arguments), result


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", add_navigation)
    app.connect("build-finished", add_first_page)
    app.connect("autodoc-process-docstring", rewrite_docstring)
    app.connect("autodoc-process-signature", shorten_signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
