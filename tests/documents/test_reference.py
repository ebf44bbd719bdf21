"""The reference: every public name has an example that runs, and the site is built without a warning."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import inspect
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import hummingbird
from hummingbird import BitWindow, capacity, convert_model, errors, he, hybrid, pir
from hummingbird.capacity import encrypted, lookups, nets, shipped
from hummingbird.capacity.profile import Measurement, Profile
from hummingbird.commands.program import machine
from hummingbird.pir.batching.batch_code import BatchCode
from hummingbird.pir.batching.cost_model import price
from tests.support import python
from tests.support.pages import DOCUMENTS, REFERENCE, blocks, text_of
from tests.support.paths import ROOT
from tests.support.patience import PROGRAM


def configuration() -> ModuleType:
    """docs/conf.py, which Sphinx reads; it needs nothing of Sphinx itself."""
    spec = importlib.util.spec_from_file_location("site_configuration", ROOT / "docs/conf.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SITE = configuration()
STARTS_PROCESSES = {f"hummingbird.{name}" for name in ("launch", "serve", "Client", "channel.meter.Meter")}
STARTS_PROCESSES |= {"hummingbird.errors.LaunchError", "hummingbird.serving.client.ClientConversation"}
SEARCHES = {"hummingbird.search_bits", "hummingbird.window_search.prepare.Prepared"}  # as hummingbird.prepare does


def named(name: str) -> Any:
    room, _, last = name.rpartition(".")
    return getattr(importlib.import_module(room), last)


def examples(name: str, text: str | None) -> doctest.DocTest:
    (first,) = blocks(REFERENCE, "python")
    space: dict[str, Any] = {"__name__": "__main__"}  # as in a script: `launch` sends what is defined here by value
    exec(first, space)  # noqa: S102 - a snippet of this repository
    return doctest.DocTestParser().get_doctest(text or "", space, name, None, None)


def failures(test: doctest.DocTest) -> str:
    said: list[str] = []
    # Without `verbose` it would look for pytest's own -v, and then say everything.
    doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    return "".join(said)


def test_the_page_has_every_public_name() -> None:
    """All that the packages' lists name, and all errors."""
    listed = {named(name) for name in SITE.PUBLIC}
    packages = (hummingbird, he, hybrid, pir, capacity)
    offered = {getattr(package, name) for package in packages for name in package.__all__ if name != "__version__"}
    offered |= {kind for kind in vars(errors).values() if inspect.isclass(kind) and kind.__module__ == errors.__name__}
    assert offered <= listed and len(listed) == len(SITE.PUBLIC)


@pytest.fixture(scope="module")
def profile() -> str:
    """A profile for the examples of `hummingbird.capacity`: measured where it is quick, made up elsewhere."""
    net = examples("", "").globs["net"]
    private = convert_model(net, BitWindow(20, 12))
    by = {name: convert_model(net, BitWindow(20, 12), protocol=name) for name in ("masked", "gmw")}
    rows = [nets.measure("net", each, (1, 4), 2, repeats=1) for each in by.values()]
    rows += encrypted.measure("net", he.make_plan(net, (4,)), 20, repeats=1)
    for count in (1, 2):
        work = {name: count * amount for name, amount in shipped.amounts(private, (1, 4)).items()}
        rows.append(Measurement("crypten", "", "", work, {"compute": (count * 1e-3,), "triples": (count * 1e-3,)}))
        asked = lookups.amounts(price([BatchCode.cuckoo(1000, 8)], 32), count)
        rows.append(Measurement("pir", "", "", asked, {"answer": (count * 1e-3,)}))
    return Profile(machine(), 1, tuple(rows)).to_text()


@pytest.mark.filterwarnings("ignore:one party")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in STARTS_PROCESSES | SEARCHES else ()) for name in SITE.PUBLIC],
)
def test_every_public_name_has_an_example_that_runs(
    name: str, profile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_is_left: None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("RANK", raising=False)
    Path("profile.json").write_text(profile)
    test = examples(name, inspect.getdoc(named(name)))
    assert test.examples, f"{name} has no example"
    try:
        assert not (said := failures(test)), said
    finally:
        hummingbird.uninit()


def test_a_wrong_example_is_noticed() -> None:
    assert "Expected:\n    8" in failures(examples("wrong", ">>> BitWindow(20, 12).w + 1\n8\n"))
    assert not examples("none", "A sentence.").examples


# The site -------------------------------------------------------------------------------------------------------------


def test_every_page_is_in_the_navigation() -> None:
    index = ROOT / "docs/index.md"
    pages = {(index.parent / page).resolve() for _, pages in SITE.navigation(text_of(index)) for page in pages}
    assert pages == {*DOCUMENTS, *(ROOT / "docs/tutorials").glob("*.ipynb")} - {index}


def test_a_docstring_becomes_fields_links_and_examples() -> None:
    def called(count: int, limit: float) -> None:
        """Count `images` of a `BitConfig`.

        count: how many,
            at most 2^20 *or* so. limit: the largest. Raises ConfigError for others.
        The rest is one more sentence.

            called(3, 4)

        >>> 1 + 1
        2
        """

    lines = SITE.restructured(inspect.getdoc(called).splitlines(), called, "hummingbird.called")
    assert [line for line in lines if line] == [
        "Count ``images`` of a :py:obj:`BitConfig <hummingbird.BitConfig>`.",
        r":param count: how many, at most 2^20 \*or\* so.",
        ":param limit: the largest.",
        "Raises :py:obj:`ConfigError <hummingbird.errors.ConfigError>` for others. The rest is one more sentence.",
        ".. code-block:: python",
        "    called(3, 4)",
        ">>> 1 + 1",
        "2",
    ]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("sphinx") is None, reason="the extra `docs` is not installed")
def test_the_site_is_built_without_a_warning_and_search_finds_names(tmp_path: Path) -> None:
    """The line of `make docs`. A warning is an error: broken links, missing anchors, unknown names."""
    (recipe,) = re.findall(r"^docs:.*\n\t@\$\(VENV\) (.*)$", text_of(ROOT / "Makefile"), re.MULTILINE)
    copy, words = tmp_path / "copy", recipe.split()
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "build", "runs", "tests"))
    done = python.run([sys.executable, *words], cwd=copy, capture_output=True, text=True, timeout=PROGRAM)
    assert done.returncode == 0, done.stdout + done.stderr
    site = copy / words[-1]
    assert all((site / "docs/reference" / f"{name}.html").exists() for name in SITE.PUBLIC)
    assert (site / "index.html").exists() and "convert_model" in (site / "searchindex.js").read_text()
