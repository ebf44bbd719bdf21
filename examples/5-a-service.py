# docs/tutorials/5-a-service.ipynb as a script, by `python -m tests.support.notebooks examples`.

# # A service for others
#
# In the [first tutorial](1-private-images.ipynb) party 0 had the images. Mostly somebody else has them: a clinic, a
# phone, this notebook. Here two parties serve a net, and a *client* that is none of them asks. It cuts its images into
# shares, sends one to each party, and adds up the shares of the answers. No party sees an image or an answer, and the
# client needs neither the net nor CrypTen.

import os
import signal
import socket
import tempfile
import threading
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import hummingbird

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images).float().unsqueeze(1) / 16
labels = torch.tensor(digits.target)

net = torch.nn.Sequential(
    torch.nn.Conv2d(1, 16, 3, padding=1),
    torch.nn.ReLU(),
    torch.nn.MaxPool2d(2),
    torch.nn.Flatten(),
    torch.nn.Linear(256, 10),
)
optimizer = torch.optim.Adam(net.parameters(), 0.01)
for _ in range(60):
    loss = torch.nn.functional.cross_entropy(net(images[:1500]), labels[:1500])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
accuracy = (net.eval()(images[1500:]).argmax(1) == labels[1500:]).float().mean()
print(f"the plain net is right for {accuracy:.1%} of {len(images) - 1500} images")

# ## Two parties that serve
#
# `hummingbird.launch` starts parties on this host, for trying; [Serving](../serving.md) has the command for parties on
# hosts of their own. Each notes its process number, so that we can kill one later. The service runs in a thread, and is
# started again when it has ended with an error.


def party(session, net, addresses, folder):
    (folder / str(session.rank)).write_text(str(os.getpid()))
    private = hummingbird.convert_model(net, bits=hummingbird.BitWindow(20, 0))
    hummingbird.serve(private, (1, 8, 8), addresses[session.rank])


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
folder, deaths = Path(tempfile.mkdtemp()), []


def keep_serving():
    while True:
        try:
            hummingbird.launch(party, net, addresses, folder)
            return
        except hummingbird.errors.LaunchError as error:
            deaths.append(str(error).splitlines()[0])


service = threading.Thread(target=keep_serving)
service.start()

# ## A client
#
# It connects, waiting until the parties are there. They tell it the shape of an image, and how many bits of each number
# the net reads: it sends no more.

client = hummingbird.Client(addresses, timeout=180)
print(f"images of {client.service.shape}, {client.service.bits} bits of each number, {client.service.parties} parties")

test = images[1500:1564]
with torch.no_grad():
    plain = net(test)
logits = client(test)
same = (logits.argmax(1) == plain.argmax(1)).float().mean()
print(f"the same answers as in the clear: {same:.1%}; largest difference {(logits - plain).abs().max():.4f}")
print(
    f"{client.sent_bytes / len(test):.0f} bytes up and {client.received_bytes / len(test):.0f} bytes down for an image"
)

# ## What the parties see
#
# Party 0 gets a seed of 16 bytes, party 1 words: the image less the random numbers that the seed expands to. Here is
# the first image, cut in the same way.

from hummingbird import ring
from hummingbird.prg import Stream
from hummingbird.serving.message import split

numbers, bits = ring.encode(test[0]), client.service.bits
seed, words = split(numbers, bits, parties=2)
first = Stream(seed).words(1, 8, 8)
shares = [share % 2**bits for share in (first, numbers - first)]
print(f"party 0 gets {len(seed)} bytes, party 1 {len(words)} bytes")

figure, axes = plt.subplots(1, 3, figsize=(6, 2.2))
for axis, shown, title in zip(axes, (test[0], *shares), ("the image", "party 0's share", "party 1's share")):
    axis.imshow(shown[0], cmap="gray_r")
    axis.set_title(title)
    axis.set_axis_off()

# Each share alone is noise; their sum, modulo a power of two, is the image. The answers are shares too, with a share of
# zero added: the client learns their sum and no more.
#
# ## A party dies
#
# We kill party 1 with a signal that no program can catch. The other one notices and ends; both are started again, and
# meet with fresh random numbers. The client asks meanwhile, and waits: a request that was refused is sent again with
# fresh shares.

os.kill(int((folder / "1").read_text()), signal.SIGKILL)
again = client(test)
print("the same answers again:", torch.equal(again.argmax(1), logits.argmax(1)))
print(deaths[0])

# ## The end
#
# SIGTERM drains: nothing new is taken, what waits is answered, and both parties end.

client.close()
os.kill(int((folder / "0").read_text()), signal.SIGTERM)
service.join()
print("deaths:", len(deaths))

# [Serving](../serving.md) says what is sent and who learns what, and how a service runs for weeks; [Running a
# service](../operations.md) has certificates, tokens, health and metrics.


for number in plt.get_fignums():
    plt.figure(number).savefig(f"{Path(__file__).stem}-{number}.png", bbox_inches="tight")
