"""Shares in plain torch."""

from hummingbird.kernels.reference.shares import dealing, opening, packing, products

__all__ = ["dealing", "opening", "packing", "products"]
