"""Ciphertexts in plain torch: products in float64 or int64, exact by bounds."""

from hummingbird.kernels.reference.ciphertexts import arithmetic, bfv, monomials, polynomials, ring, sampling

__all__ = ["arithmetic", "bfv", "monomials", "polynomials", "ring", "sampling"]
