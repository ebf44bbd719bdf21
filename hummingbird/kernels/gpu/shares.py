"""Shares in Triton."""

from hummingbird.kernels.gpu import dealing, opening

__all__ = ["dealing", "opening"]
