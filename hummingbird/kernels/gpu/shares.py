"""Shares on a GPU."""

from hummingbird.kernels.gpu import products

__all__ = ["products"]
