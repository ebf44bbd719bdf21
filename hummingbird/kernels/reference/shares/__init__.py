"""Shares in plain torch."""

from hummingbird.kernels.reference.shares import opening, packing, products

__all__ = ["opening", "packing", "products"]
