"""Ranks: the processes that torchrun has started for one job, which split the work of one process.

    torchrun --nproc_per_node=4 --master_port=29500 -m hummingbird find-bits ...

They are not parties: all of them read the same net and the same data. Every rank runs the whole program and makes every
decision itself, from the same numbers. Only batches are divided: rank i mod size runs batch i, undivided like a single
process, as the last bits of a convolution depend on the number of images. Results are then put in the order of batches
(`joined`), and sums are computed over all of them, in that order. So the results are the same with any number of ranks.
Only gradients are summed elsewhere (commands/training.py).

Small messages go through gloo and the CPU. Before each, ranks compare its subject; if they differ, the error shows
both. Every wait ends after `TIMEOUT`. A rank that fails writes the reason to torchrun's store, where the others read
it. Without torchrun, or outside of `job`, there is one rank, and all functions here cost nothing.

job.py         join and leave the job; ranks and their shares of the work
messages.py    joined results, and agreement
elastic.py     torchrun's static and dynamic rendezvous

    with ranks.job():
        bits = hummingbird.Study(net, images).search("8/64")
"""

from hummingbird.ranks.job import TIMEOUT, Job, device, first, job, part, rank, size
from hummingbird.ranks.messages import agree, joined, mean, together, told

__all__ = [
    "TIMEOUT",
    "Job",
    "agree",
    "device",
    "first",
    "job",
    "joined",
    "mean",
    "part",
    "rank",
    "size",
    "together",
    "told",
]
