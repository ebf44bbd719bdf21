"""Homomorphic layers: a client encrypts a batch of images, a server evaluates the net's layers on the ciphertexts.

    from hummingbird import he

    model = he.convert_model(net, (1, 28, 28))       # parameters, scales and the plan are chosen here
    print(model.report())                            # before anything runs
    logits = model(images)                           # both roles in this process; he/server.py has them in two

A tensor (S, C, H, W) is C H W ciphertexts of S slots: a weight is one number for all images, so a layer is an exact
integer matrix product over the ciphertexts' coefficients (Boemer et al., nGraph-HE2, WAHC 2019, for the packing;
kernels/ciphertexts/arithmetic.py for the product).
"""

from hummingbird.he.client_spec import Public
from hummingbird.he.convert import convert_model, make_plan
from hummingbird.he.model import HEModel
from hummingbird.he.plan import Plan
from hummingbird.he.roles import Client, Server

__all__ = ["Client", "HEModel", "Plan", "Public", "Server", "convert_model", "make_plan"]
