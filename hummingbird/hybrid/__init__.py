"""Inference of two parties, no dealer: encrypted layers offline, ring convolutions and garbled gates online.

Sources: Impala (Choi et al., 2022), Delphi (Mishra et al., 2020), Garimella et al. (ASPLOS 2023).
"""

from hummingbird.hybrid.convert import convert_model, make_plan
from hummingbird.hybrid.net import HybridNet

__all__ = ["HybridNet", "convert_model", "make_plan"]
