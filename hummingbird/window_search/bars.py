"""A study and a search that people wait for: with bars, and prices in the words of a budget."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from torch import Tensor, nn
from tqdm import tqdm

from hummingbird.bits import BitConfig
from hummingbird.window_search.objective import Objective
from hummingbird.window_search.questions import Progress
from hummingbird.window_search.study import Study


def open_study(net: nn.Module, images: Tensor, labels: Tensor | None, **options: Any) -> Study:
    """`Study` with these options, behind a bar for its magnitudes."""
    with tqdm(total=len(images), desc="magnitudes", unit="image", mininterval=1, leave=False) as bar:
        return Study(net, images, labels, **options, progress=lambda done, _: _advance(bar, done))


def find_windows(
    study: Study, budget: Fraction | None, objective: Objective, *, what: str, **options: Any
) -> BitConfig:
    """`Study.search` with these options, behind a bar: windows tried, the best assignment and its cost.

    what: the bar's name.
    """
    with tqdm(desc=what, unit="window", mininterval=1, leave=False) as bar:

        def tell(progress: Progress) -> None:
            best: dict[str, str] = {}
            if progress.accuracy is not None and progress.price is not None:
                best = {"best": f"{100 * progress.accuracy:.2f}%", "cost": shown(objective.name, progress.price)}
            bar.set_postfix(**best, refresh=False)
            _advance(bar, progress.evaluations)

        return study.search(budget, objective=objective, progress=tell, **options)


def shown(objective: str, price: float) -> str:
    """A price in the words of a budget."""
    return {"bits": f"{64 * price:.2f}/64", "bytes": f"{price / 1e3:,.2f}kB", "seconds": f"{price:.4g}s"}[objective]


def _advance(bar: tqdm[Any], done: int) -> None:
    bar.update(done - bar.n)
