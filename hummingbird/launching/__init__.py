"""Parties as processes of this host, started by one call from a notebook (`hummingbird.launch`) or by one command.

host.py       the store in which parties of one host meet; a program as all parties (`python -m hummingbird run`)
launch.py     `launch`: checks of its arguments, its processes and their output, and the error for failed ones
party.py      the program of each process
sending.py    the function, sent from the caller to the parties, and their results

Each process is a fresh interpreter, not a fork: the threads of a notebook (its own, OpenMP's, gRPC's, CUDA's) do not
exist in a forked process, whose next parallel loop may then wait for ever. A fresh interpreter cannot import the
definitions of a notebook's cells, so the function is sent by value.
"""
