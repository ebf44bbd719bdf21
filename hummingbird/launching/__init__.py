"""Parties as processes of this host, started by one call from a notebook (`hummingbird.launch`) or by one command.

run.py        a program as all parties (`python -m hummingbird run`)
host.py       the store in which parties of one host meet, and torchrun's variables
launch.py     the call: what it refuses, and how failures are told
processes.py  the processes: what they print, how they end, and that none is left
party.py      the program of each process
values.py     results on their way back
sending.py    the function on its way there

Each process is a fresh interpreter, not a fork: a notebook has threads (of its own, of OpenMP, of gRPC, of CUDA) that
do not live on in a forked process, whose next parallel loop then may wait for ever. A fresh interpreter cannot import
what a notebook's cell defines, so the function goes to it by value.
"""
