# docs/tutorials/1-private-images.ipynb as a script, by `python -m tests.support.notebooks examples`.

# # Private image classification
#
# A hospital has images. A company has computers and a trained net. The hospital wants to know what the net says, and
# the company must not see the images. In this notebook two *parties* run a net on images that only one of them has:
#
# 1. train a small net on handwritten digits, in plain PyTorch;
# 2. choose how many bits of each value its ReLUs look at;
# 3. run it between two processes, with one call;
# 4. compare with the net in the clear, and look at what was sent.
#
# If you know CrypTen: `hummingbird.cryptensor` is its `cryptensor`, and results come with `get_plain_text`. A net is
# converted by `convert_model` instead of `from_pytorch`, and parties are started by `hummingbird.launch` instead of
# `@mpc.run_multiprocess`.

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import hummingbird
from hummingbird import BitWindow

torch.manual_seed(0)

# ## A net, trained as always
#
# scikit-learn brings 1,797 digits of 8 x 8 pixels. We train on 1,000 of them, keep 300 to choose windows, and test on
# the rest. Nothing here is private yet: the weights are public, both parties will have them.

digits = load_digits()
images, labels = torch.tensor(digits.images).float().unsqueeze(1) / 16, torch.tensor(digits.target)
train, validation, test = slice(0, 1000), slice(1000, 1300), slice(1300, None)

net = nn.Sequential(
    nn.Conv2d(1, 16, 3),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(128, 10),
)
optimizer = torch.optim.Adam(net.parameters(), lr=0.003)
for _ in range(300):
    batch = torch.randint(1000, (64,))
    loss = nn.functional.cross_entropy(net(images[train][batch]), labels[train][batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
net.eval()

with torch.no_grad():
    plain = net(images[test])
print(f"right on the test images: {(plain.argmax(1) == labels[test]).float().mean():.1%}")

# ## Will it convert?
#
# `validate_model` lists every reason why a net cannot run privately, with a hint for each. An empty list means that it
# can.

print(hummingbird.validate_model(net))

# ## How many bits a ReLU needs
#
# The parties compute on whole numbers of 64 bits: the value times $2^{16}$. A linear layer costs no message, for the
# weights are public. A ReLU does: nobody may know the sign of a value, so the parties find it together, and what they
# send grows with the number of bits they look at.
#
# They need not look at all 64. The values of a trained net are small, so the high bits only repeat the sign, and a few
# low bits hardly matter. A *window* [k:m) keeps bits m to k - 1. `prepare` chooses windows within a budget, here 8 bits
# of 64 on average: every second validation image chooses, and the others tell what the windows do to the accuracy. No
# parties are needed for that: it simulates private inference on plain tensors.

prepared = hummingbird.prepare(net, (images[validation], labels[validation]), budget="8/64")
print(prepared)

# The upper table has the net itself, then private inference: with exact comparisons, with windows that change no answer
# (`eco`), with the best single window for all layers, and with the windows found. *changed* counts answers unlike the
# plain net's. Costs are of one image, for each party. The lower table has each layer's window, beside the largest value
# it has seen. Where the budget cuts below that, rare large values get a wrong sign: *changed* tells what this costs.

print(prepared.plot())

# ## Two parties
#
# `hummingbird.launch` starts two processes and a dealer (a third process that deals random numbers and sees no image),
# opens a session in each, and calls our function with it. It returns what the function returned, party 0's result
# first.
#
# The function below is what each party runs. Every party calls the same lines in the same order; `session.rank` tells
# them apart. Only party 0 gives images to `cryptensor`, and only party 0 learns the logits (`dst=0`).


def classify(session, bits):
    private = hummingbird.convert_model(net, bits=bits)
    mine = images[test] if session.rank == 0 else None
    with hummingbird.meter() as meter:
        logits = private(hummingbird.cryptensor(mine, src=0)).get_plain_text(dst=0)
    return logits, meter


(logits, meter), (nothing, _) = hummingbird.launch(classify, prepared.bits)
print("party 0 has", tuple(logits.shape), "logits, party 1 has", nothing)

# ## Is it right?

print(f"right:                    {(logits.argmax(1) == labels[test]).float().mean():.1%}")
print(f"answers as in the clear:  {(logits.argmax(1) == plain.argmax(1)).float().mean():.1%}")

figure, axes = plt.subplots(1, 8, figsize=(8, 1.4))
for axis, image, private, clear in zip(axes, images[test], logits.argmax(1), plain.argmax(1)):
    axis.imshow(image[0], cmap="gray_r")
    axis.set_title(f"{private}  ({clear})")
    axis.axis("off")
figure.suptitle("private answer (plain answer)", y=1.15)

# Logits differ a little from the plain ones, for a ReLU with a window may turn a small positive value into 0. What
# counts is that the answers stay.
#
# ## What was sent
#
# The meter of party 0 has counted, for every layer, the rounds and the bytes that this party sent, and the random
# numbers that the dealer sent.

print(meter.plot())

# The layers named by numbers are those of `net`: 1 and 3 are ReLUs, 4 is the pooling, which compares too. They stand in
# the order in which they ran. `6.lift` brings the logits back to the scale of $2^{16}$. Convolutions and linear layers
# send nothing. `meter` as the last line of a cell shows the same figures as a table, and `meter.plot("seconds")` where
# the time went.
#
# With exact comparisons (`bits=BitWindow(64, 0)`) the same net sends more; let us see how much.

(exact, meter_exact), _ = hummingbird.launch(classify, BitWindow(64, 0))
few, all_bits = (found.total.bits_sent / 8e3 for found in (meter, meter_exact))
print(f"{all_bits:,.0f} kB with 64 bits, {few:,.0f} kB with windows")
print(f"largest error of a logit with 64 bits: {(exact - plain).abs().max():.5f}")

# ## What this protects, and what not
#
# - Each party alone sees random numbers. Both together, or a party and the dealer together, can put the images together
#   again: they must be run by people who do not do that.
# - Here all three processes are ours, on one machine, so that nothing is hidden from us. `launch` is to try things. For
#   parties that do not trust each other, the same function runs on two hosts with a dealer on a third, as
#   `classify(hummingbird.init(...), bits)`: see [Several hosts](../quickstart.md#several-hosts).
# - The result itself is not protected from party 0, and tells something of the weights.
#
# [SECURITY.md](../../SECURITY.md) says exactly who learns what. Next: [encrypted images](2-encrypted-images.ipynb),
# where one server and no dealer are enough, or [a layer of your own](4-a-layer-of-your-own.ipynb).


for number in plt.get_fignums():
    plt.figure(number).savefig(f"{Path(__file__).stem}-{number}.png", bbox_inches="tight")
