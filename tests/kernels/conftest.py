"""Each instruction set in turn, for a test of the C++ versions, or of all versions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from hummingbird.kernels.cpu import library


@pytest.fixture(params=library.ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set of the C++ versions."""
    if not library.available():
        pytest.skip("the native library is not built")
    before = library.isa()
    if not library.set_isa(request.param):
        pytest.skip(f"this processor has no {request.param}")
    yield request.param
    library.set_isa(before)


@pytest.fixture(params=[*library.ISAS, "torch"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Each instruction set, and the plain torch versions."""
    torch.manual_seed(0)
    if request.param == "torch":
        monkeypatch.setattr(library, "available", lambda: False)
        yield request.param
        return
    assert library.available(), "run `python setup.py build_ext --inplace`"
    before = library.isa()
    if not library.set_isa(request.param):
        pytest.skip(f"this processor has no {request.param}")
    yield request.param
    library.set_isa(before)
