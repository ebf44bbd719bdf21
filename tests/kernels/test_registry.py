"""One place chooses: every operation has a definition, and each tensor gets the backend that can take it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import hummingbird.kernels
from hummingbird.errors import InputError
from hummingbird.kernels import registry
from hummingbird.kernels.cpu import library
from hummingbird.kernels.registry import best, best_on, implements

FOLDER = Path(hummingbird.kernels.__file__).parent
BACKENDS = ("reference", "cpu", "gpu")


def double(x: torch.Tensor) -> Any:
    """An operation of no field's: only what a test registers for it can run."""
    return best(double, x)(x)


double.__module__ = "hummingbird.kernels.nothing"


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    monkeypatch.setattr(registry, "_KERNELS", dict(registry._KERNELS))

    def add(backend: str, takes: Callable[..., bool] | None = None) -> None:
        implements(double, backend, takes)(lambda x: backend)

    yield add


def registered() -> set[tuple[str, str]]:
    """Operation and backend of every `@implements` in the sources, Triton's too."""
    found = set()
    for backend in BACKENDS:
        for path in (FOLDER / backend).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "implements":
                    operation, named = node.args
                    assert isinstance(named, ast.Constant) and named.value == backend, path
                    found.add((ast.unparse(operation).rpartition(".")[2], backend))
    return found


def chosen() -> set[str]:
    """Operations that a declaration looks an implementation up for."""
    files = [path for path in FOLDER.rglob("*.py") if path.relative_to(FOLDER).parts[0] not in BACKENDS]
    calls = [node for path in files for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    named = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id in ("best", "best_on")]
    return {ast.unparse(call.args[0]) for call in named}


def test_every_operation_has_a_definition() -> None:
    found = registered()
    assert {name for name, backend in found if backend == "reference"} == chosen()
    assert {name for name, _ in found} == chosen()  # nothing is implemented that nobody asks for
    assert len(chosen()) > 25


def test_a_tensor_gets_the_backend_that_can_take_it(register: Callable[..., Any]) -> None:
    x = torch.zeros(4)
    with pytest.raises(AssertionError, match="double has no definition"):
        double(x)
    register("reference")
    assert double(x) == "reference"  # no other has one
    if not library.available():
        pytest.skip("the native library is not built")
    register("cpu")
    assert double(x) == "cpu"
    assert double(x[::2]) == double(x.to("meta")) == "reference"
    assert best(double, x, x[::2])(x) == "reference"  # all that the choice hangs on must fit
    register("cpu", takes=lambda x: len(x) > 4)
    assert double(x) == "reference" and double(torch.zeros(5)) == "cpu"


def test_without_the_library_the_reference_runs(register: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    register("reference")
    register("cpu")
    monkeypatch.setattr(library, "available", lambda: False)
    assert double(torch.zeros(4)) == "reference" == best_on(double, torch.device("cpu"))(None)


def test_a_device_without_tensors(register: Callable[..., Any]) -> None:
    for backend in BACKENDS:
        register(backend)
    wanted = {"cuda": "gpu", "meta": "reference", "cpu": "cpu" if library.available() else "reference"}
    for device, backend in wanted.items():
        assert best_on(double, torch.device(device))(None) == backend


def test_checks_come_before_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing wrong reaches an implementation, which may be memory accesses without a check."""
    monkeypatch.setattr(registry, "_find", lambda *_: pytest.fail("an implementation was looked up"))
    with pytest.raises(InputError):
        hummingbird.kernels.to_planes(torch.zeros(4), 0, 1)
