"""Shares on a GPU."""

from hummingbird.kernels.gpu import dealing, opening, products

__all__ = ["dealing", "opening", "products"]
