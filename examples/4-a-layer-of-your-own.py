# docs/tutorials/4-a-layer-of-your-own.ipynb as a script, by `python -m tests.support.notebooks examples`.

# # A layer of your own
#
# `convert_model` knows the layers of usual nets. If yours has another one, you tell it what the layer is between
# parties: `register_converter` takes the layer's type, and a function that makes the private layer out of the plain
# one.

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import nn

import hummingbird

torch.manual_seed(0)

# ## A net that does not convert
#
# Our layer is a bump, $e^{-x^2}$, as in nets of radial basis functions.


class Bump(nn.Module):
    def forward(self, x):
        return (-(x * x)).exp()


net = nn.Sequential(nn.Linear(1, 64), Bump(), nn.Linear(64, 1))
x = torch.linspace(-2, 2, 200)[:, None]
y = torch.sin(3 * x) * x
optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
for _ in range(400):
    loss = nn.functional.mse_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
net.eval()
print(f"mean squared error: {loss:.5f}")
for problem in hummingbird.validate_model(net):
    print(problem)

# ## Register it
#
# The private layer is a module as well. It gets a CrypTen tensor: values times $2^{16}$, shared between the parties. It
# uses the functions that CrypTen's tensors have (`+`, `*`, `square`, `exp`, `sigmoid`, ...), and no party sees a value.


class PrivateBump(nn.Module):
    def forward(self, x):
        return x.square().neg().exp()


hummingbird.register_converter(Bump, lambda module: PrivateBump())
print(hummingbird.validate_model(net))

# Here the same line would do for both, so that `lambda module: module` would be enough. Often it is not: a private
# layer can be another formula for the same function, one that needs fewer messages.
#
# ## Run it between two parties
#
# `launch` takes along what is registered in this notebook, and the classes that the cells define.


def predict(session, x):
    private = hummingbird.convert_model(net)
    with hummingbird.meter() as meter:
        out = private(hummingbird.cryptensor(x if session.rank == 0 else None, src=0)).get_plain_text(dst=0)
    return out, meter


(out, meter), _ = hummingbird.launch(predict, x)
with torch.no_grad():
    plain = net(x)
print(f"largest error: {(out - plain).abs().max():.4f}")
print(meter)

figure, axis = plt.subplots(figsize=(6, 2.6))
axis.plot(x, plain, label="plain")
axis.plot(x, out, ":", linewidth=3, label="between two parties")
axis.legend()

# The error comes from CrypTen's `exp`, which is $(1 + x / 2^8)^{2^8}$, and from fixed point. [Limits](../limits.md)
# says how precise each function is, and for which values.
#
# ## What to keep in mind
#
# - A layer must not look at values: no `if x > 0`. A comparison is a function of tensors, such as `x.relu()`.
# - Its own parameters are public. With `convert_model(net, weights=1)`, private weights, such a layer must have none.
# - The meter counts what the layer sends. To have it predicted too, return a `hummingbird.mpc.layers.layer.Layer` with
#   a `cost` method ([quickstart](../quickstart.md#a-layer-of-your-own)).
# - Every party must register the same layer.
#
# Next: [a service for others](5-a-service.ipynb).


for number in plt.get_fignums():
    plt.figure(number).savefig(f"{Path(__file__).stem}-{number}.png", bbox_inches="tight")
