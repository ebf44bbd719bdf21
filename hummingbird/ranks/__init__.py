"""Ranks: the processes that torchrun has started for one job, which split the work of one process.

    torchrun --nproc_per_node=4 --master_port=29500 -m hummingbird find-bits ...

They are not parties: all of them read the same net and the same data. Every rank runs the whole program and takes every
decision itself, from the same numbers. Only batches are split: number i is run by rank i mod size, whole, as a single
process runs it, for the last bits of a convolution depend on how many images it is given. Results are then put in the
order of batches (`joined`), and sums are taken over all of them, in that order. So whatever is found, is found with any
number of ranks. Gradients alone are summed by others (commands/data_parallel.py).

Small messages go through gloo and the CPU. Before each, ranks compare what it is about: those that differ end with both
sides in the message. Every wait ends after `TIMEOUT`. Who fails says why in torchrun's store, where the others read it.
Without torchrun, or outside of `job`, there is one rank, and nothing here costs anything.

job.py         joining, ending, and who does what
messages.py    results put together, and agreement
elastic.py     which of torchrun's two ways of meeting it is

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
