"""The folder of data sets, for tests that need real ones."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.paths import ROOT

# Not pytest.importorskip: each of pytest's workers collects every file, and the import takes two seconds.
WITH_SKLEARN = pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn is not installed")


def data_folder(name: str) -> Path:
    """The folder that holds `name`/: HUMMINGBIRD_DATA, else shared/data beside the repository; skips without."""
    folder = Path(os.environ.get("HUMMINGBIRD_DATA") or ROOT.parent / "shared" / "data")
    if not (folder / name).is_dir():
        pytest.skip(f"no {name}/ in {folder}: set HUMMINGBIRD_DATA to a folder with it (scripts/train/data.py)")
    return folder
