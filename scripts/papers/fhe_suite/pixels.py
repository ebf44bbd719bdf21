"""The client's work in the clear: it reads pixels from a text before, and writes labels to a text after.

    python -m scripts.papers.fhe_suite.pixels images test_pixels.txt images.npy
    python -m scripts.papers.fhe_suite.pixels labels logits.npy predictions.txt

A line of the text has the 784 pixels of an image, from 0 to 1. Images are normalised as in training. Labels are the
places of the largest logits, one to a line. This file imports numpy alone, so that it starts in a moment.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

SIDE = 28
MEAN, DEVIATION = 0.1307, 0.3081  # of MNIST's training pixels, as in scripts/train/data.py


def images(path: Path) -> np.ndarray:
    """The images of a text, normalised: float32 (n, 1, 28, 28). ValueError if it holds anything else."""
    if not path.stat().st_size:
        raise ValueError(f"{path} is empty")
    try:
        pixels = np.loadtxt(path, dtype=np.float32, ndmin=2)
    except ValueError as problem:
        raise ValueError(f"{path}: {problem}") from None
    if pixels.shape[1] != SIDE**2:
        raise ValueError(f"{path} has {pixels.shape[1]} numbers in a line, and an image has {SIDE**2}")
    if not bool(((pixels >= 0) & (pixels <= 1)).all()):  # also for NaN
        raise ValueError(f"{path} has pixels that are not from 0 to 1")
    return ((pixels - MEAN) / DEVIATION).astype(np.float32).reshape(-1, 1, SIDE, SIDE)


def labels(logits: np.ndarray) -> str:
    """The text of the labels of logits (n, classes)."""
    return "".join(f"{label}\n" for label in logits.argmax(1))


def main(words: list[str]) -> int:
    """Run one of the two; 0 on success, 1 after an `error:` line, 2 for other words."""
    if len(words) != 3 or words[0] not in ("images", "labels"):
        print(__doc__, file=sys.stderr)
        return 2
    source, out = Path(words[1]), Path(words[2])
    try:
        if words[0] == "images":
            np.save(out, images(source))
        else:
            out.write_text(labels(np.load(source, allow_pickle=False)))
    except (OSError, ValueError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
