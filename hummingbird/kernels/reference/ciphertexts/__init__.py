"""Ciphertexts in plain torch: products in float64 or int64, exact by the bounds of their operands."""

from hummingbird.kernels.reference.ciphertexts import arithmetic, polynomials, ring

__all__ = ["arithmetic", "polynomials", "ring"]
