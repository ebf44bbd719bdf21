# docs/tutorials/3-private-lookup.ipynb as a script, by `python -m tests.support.notebooks examples`.

# # Private lookup
#
# A phone wants a few rows of a large table: the embeddings of the films that its owner has watched. Asking for row
# 1,234 tells the server what was watched. Asking for the whole table would be too much to send.
#
# In `hummingbird.pir` two servers hold the same table. The phone sends each of them a short key that looks random. Each
# server computes something over *all* rows, and the two answers together are the row. Neither server learns which row
# it was, as long as they do not tell each other what they got: **the servers must not collude**.

from pathlib import Path

import matplotlib.pyplot as plt
import torch

from hummingbird import pir

torch.manual_seed(0)
films = torch.nn.Embedding(20_000, 16)  # the table: a row of 16 numbers for each film

# ## Two servers, and a lookup
#
# To try it, both servers are in this process. `PrivateEmbedding` then takes the place of `torch.nn.Embedding`.

servers = pir.local_servers(films)
private = pir.PrivateEmbedding.from_torch(films, servers)
watched = torch.tensor([3, 14, 1592])
rows = private(watched)
print("the same rows, to the last bit:", torch.equal(rows, films(watched)))
print(private)

# Nothing is rounded: the rows come back exactly, for they are put together from the very bits of the table.
#
# ## What a server sees
#
# A key of a *distributed point function* expands to one bit for each row. The two servers' bits are equal everywhere
# but at the row that is wanted. Each server adds up (XOR) the rows where its own bit is 1. The rows that both have
# added cancel, and what is left is the wanted one. Let us do it by hand, for a table of 1,024 rows.

from hummingbird.kernels.lookups import expand
from hummingbird.pir import dpf

first, second, _ = dpf.generate(torch.tensor([700]), rows=1024)  # one key for each server


def bits(key):
    """The 1,024 bits that a server makes of its key, packed 8 to a byte, the lowest first."""
    packed = expand(key, 0, 1)[0]
    return ((packed[:, None] >> torch.arange(8)) & 1).flatten()


figure, axes = plt.subplots(1, 3, figsize=(8, 2.4))
for axis, shown, title in zip(
    axes,
    (bits(first), bits(second), bits(first) ^ bits(second)),
    ("server 0's bits", "server 1's bits", "where they differ"),
):
    axis.imshow(shown.view(32, 32), cmap="gray_r", interpolation="nearest")
    axis.set_title(title)
    axis.set_xticks([])
    axis.set_yticks([])
print(f"keys of {first.shape[1]} bytes, which differ in row {(bits(first) ^ bits(second)).nonzero().tolist()}")

# Half of the bits are 1, at random, and the two pictures differ in one place only. Each of them alone says nothing
# about where that place is.
#
# ## What it costs

rows = 2 ** torch.arange(10, 27)
key = [dpf.generate(torch.tensor([0]), rows=int(count))[0].shape[1] for count in rows]

figure, axis = plt.subplots(figsize=(6, 2.6))
axis.loglog(rows, [2 * (size + 64) for size in key], label="keys and answers, private lookup of one row")
axis.loglog(rows, 64 * rows, label="the whole table")
axis.set_xlabel("rows of 64 bytes")
axis.set_ylabel("bytes")
axis.legend()
print(f"a table of {int(rows[-1]):,} rows: {key[-1]} bytes to each server")

# A key grows by 17 bytes when the table doubles. The servers' work grows with the table: each must touch every row, for
# the rows it left out would be rows that were not asked for.
#
# ## Sums of rows
#
# Recommenders often want the sum of several rows. `PrivateEmbeddingBag` looks up each and adds them at the client. How
# many rows were asked for is visible, which rows is not.

bag = torch.nn.EmbeddingBag.from_pretrained(films.weight.detach(), mode="sum")
private_bag = pir.PrivateEmbeddingBag.from_torch(bag, private.client)
histories = torch.tensor([[3, 14, 1592], [9, 2, 6]])
print("the same sums:", torch.allclose(private_bag(histories), bag(histories)))

# ## Servers of their own
#
# `python -m hummingbird pir-server` is one server; its address takes the place of a local one, and the two belong to
# different operators. [Private embedding lookup](../lookup.md) has the commands, many lookups at once, rows that can be
# updated and checked, and `hummingbird.lookup`, which puts the rows straight into a private net.
# [SECURITY.md](../../SECURITY.md) says who learns what. Next: [a layer of your own](4-a-layer-of-your-own.ipynb).


for number in plt.get_fignums():
    plt.figure(number).savefig(f"{Path(__file__).stem}-{number}.png", bbox_inches="tight")
