"""Lookups in plain torch."""

from hummingbird.kernels.reference.lookups import dpf, prf, rows

__all__ = ["dpf", "prf", "rows"]
