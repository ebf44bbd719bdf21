"""Homomorphic layers: a client encrypts a batch of images, a server evaluates the net's layers on the ciphertexts.

    from hummingbird import he

    model = he.convert_model(net, (1, 28, 28))       # chooses parameters, scales and a plan
    print(model.report())                            # layers, cost and predicted precision
    logits = model(images)                           # both roles in this process; `service` separates them
    model.server.save("net.server")                  # or files do: Server.load, Client.save, ClientBatch.request

A tensor (S, C, H, W) is C H W ciphertexts of S slots: a weight is one number for all images, so a layer is an exact
integer matrix product over the ciphertexts' coefficients (Boemer et al., nGraph-HE2, WAHC 2019, for the packing;
kernels/ciphertexts/arithmetic.py for the product).

scheme/   parameters, keys and ciphertexts, packing, noise, masked answers
bfv/      products of a single layer, exact mod 2^k: the offline phase of hybrid inference
compile/  from a net to a plan: which role computes each step, bounds of its values, and scales
runtime/  executes a plan: client, server, the tensors that they exchange, and all of it as bytes and files
service/  client and server as programs, over gRPC or through files
"""

from hummingbird.he.compile.convert import convert_model, make_plan
from hummingbird.he.runtime.client import Client, ClientBatch
from hummingbird.he.runtime.client_spec import Public
from hummingbird.he.runtime.model import HEModel
from hummingbird.he.runtime.program import Plan
from hummingbird.he.runtime.server import Server

__all__ = ["Client", "ClientBatch", "HEModel", "Plan", "Public", "Server", "convert_model", "make_plan"]
