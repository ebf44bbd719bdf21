"""The folder of the checkout, from which programs are started."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
