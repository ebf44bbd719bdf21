"""Ctrl-C at a step of a training."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hummingbird.commands import training


def interrupt(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """At this step, counted over all epochs."""
    real, steps = training.augment, [0]

    def augment(*given: Any) -> torch.Tensor:
        steps[0] += 1
        if steps[0] == step:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(training, "augment", augment)
