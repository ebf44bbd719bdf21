"""Programs that tests run at several ranks, one after the other: `torchrun ... -m tests.jobs.ranked_programs PLAN`."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hummingbird.commands import training
from hummingbird.window_search.cached import CachedEvaluator


def programs(plan: str) -> None:
    """Run the programs of a file; {rank} is replaced in their words. Rank 0 writes their exit codes beside it.

    An item is a module, its words, and the number of the full score or training step at which Ctrl-C comes, or 0.
    """
    codes, left = [], [0]

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
            return function(*given)

        return run

    CachedEvaluator.full = counted(CachedEvaluator.full)  # type: ignore[method-assign]
    training.augment = counted(training.augment)
    for module, words, left[0] in json.loads(Path(plan).read_text()):
        try:
            given = [word.replace("{rank}", os.environ["RANK"]) for word in words]
            code: Any = importlib.import_module(module).main(given)
        except SystemExit as ended:
            code = ended.code
        codes.append(code)
    if os.environ["RANK"] == "0":
        Path(plan).with_suffix(".codes").write_text(json.dumps(codes))


if __name__ == "__main__":
    programs(sys.argv[1])
