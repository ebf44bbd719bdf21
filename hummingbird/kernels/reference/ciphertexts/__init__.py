"""Ciphertexts in plain torch: float64 products, exact by bounds."""

from hummingbird.kernels.reference.ciphertexts import arithmetic, monomials, polynomials, ring, sampling

__all__ = ["arithmetic", "monomials", "polynomials", "ring", "sampling"]
