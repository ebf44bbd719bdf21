"""Shares on a GPU: the modules whose kernels `registry` finds under this name."""

from hummingbird.kernels.gpu import dealing, opening, products

__all__ = ["dealing", "opening", "products"]
