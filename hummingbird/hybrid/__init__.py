"""Inference of two parties, no dealer: encrypted layers offline, ring convolutions and garbled gates online.

Sources: Impala (Choi et al., 2022), Delphi (Mishra et al., 2020), Garimella et al. (ASPLOS 2023).
"""
