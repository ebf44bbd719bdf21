# docs/tutorials/2-encrypted-images.ipynb as a script, by `python -m tests.support.notebooks examples`.

# # Inference on encrypted images
#
# One server has a net. A client has images and a key. The client encrypts the images, the server computes on what it
# cannot read, and the client decrypts the answers. There is no second server and no dealer to trust: the server never
# has the key.
#
# If you come from CrypTen, this is another world: no shares, no parties that compute together, but homomorphic
# encryption (CKKS), in `hummingbird.he`.

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

from hummingbird import he

torch.manual_seed(0)

# ## A small net

digits = load_digits()
images, labels = torch.tensor(digits.images).float().unsqueeze(1) / 16, torch.tensor(digits.target)
train, test = slice(0, 1300), slice(1300, None)

net = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(72, 10))
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
for _ in range(300):
    batch = torch.randint(1300, (64,))
    loss = nn.functional.cross_entropy(net(images[train][batch]), labels[train][batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
net.eval()

with torch.no_grad():
    plain = net(images[test])
print(f"right on the test images: {(plain.argmax(1) == labels[test]).float().mean():.1%}")

# ## Convert
#
# `he.convert_model` looks at the net and at the shape of an image, and chooses everything else: the parameters of the
# encryption, the scales, and which layers go into which message. The report says what it chose, what it will cost, and
# how precise the answers will be, before anything runs.

model = he.convert_model(net, (1, 8, 8))
print(model.report())

# A ciphertext can be added to others and multiplied by numbers, which is all that a convolution or a linear layer does.
# A ReLU is not among these operations. In the mode above, *client-aided*, the server sends the client the encrypted
# inputs of a ReLU; the client decrypts them, applies the ReLU, and sends them back encrypted. So the client sees those
# values, and can learn something of the weights. That is the price of this mode.
#
# ## Run

logits = model(images[test])
agree = (logits.argmax(1) == plain.argmax(1)).float().mean()
print(f"{len(logits)} images, answers as in the clear: {agree:.1%}, largest error {(logits - plain).abs().max():.1e}")

figure, axes = plt.subplots(1, 8, figsize=(8, 1.4))
for axis, image, private, clear in zip(axes, images[test], logits.argmax(1), plain.argmax(1)):
    axis.imshow(image[0], cmap="gray_r")
    axis.set_title(f"{private}  ({clear})")
    axis.axis("off")
figure.suptitle("encrypted answer (plain answer)", y=1.15)

# A ciphertext has room for many images, so a batch costs the same for one image as for all that fit. The more images
# there are, the less each one costs.

crossed = (model.last.count["up"] + model.last.count["down"]) / 1e6  # MB of the batch above, up and down
counts = torch.arange(1, model.public.slots + 1)

figure, axis = plt.subplots(figsize=(6, 2.4))
axis.loglog(counts, crossed / counts)
axis.set_xlabel("images in a batch")
axis.set_ylabel("MB per image")
print(f"a batch of 1 to {model.public.slots:,} images: {crossed:.1f} MB")

# ## No help from the client
#
# With squares in place of ReLUs the server can do everything alone, for a product of ciphertexts is allowed. The client
# sends one message and gets one answer, masked so that it shows the logits and not how they were made. The net has to
# be trained with squares.


class Square(nn.Module):
    def forward(self, x):
        return x * x


squares = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), Square(), nn.Flatten(), nn.Linear(72, 10))
optimizer = torch.optim.Adam(squares.parameters(), lr=0.01)
for _ in range(300):
    batch = torch.randint(1300, (64,))
    loss = nn.functional.cross_entropy(squares(images[train][batch]), labels[train][batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
squares.eval()

alone = he.convert_model(squares, (1, 8, 8), mode="polynomial")
answers = alone(images[test])
with torch.no_grad():
    clear = squares(images[test])
print(f"right: {(answers.argmax(1) == labels[test]).float().mean():.1%}")
print(f"answers as in the clear: {(answers.argmax(1) == clear.argmax(1)).float().mean():.1%}")
print(alone)

# ## Two processes
#
# Here client and server were in one process. `python -m hummingbird he-server` and `he-client` are the two as programs;
# [Inference on encrypted images](../encrypted.md) shows the commands and explains the arithmetic, and
# [SECURITY.md](../../SECURITY.md) says who learns what. Next: [private lookup](3-private-lookup.ipynb).


for number in plt.get_fignums():
    plt.figure(number).savefig(f"{Path(__file__).stem}-{number}.png", bbox_inches="tight")
