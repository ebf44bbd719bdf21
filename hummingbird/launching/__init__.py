"""Parties as processes of this host, started by one call from a notebook (`hummingbird.launch`) or by one command.

run.py        run a program as all parties (`python -m hummingbird run`)
host.py       the store in which parties of one host meet, and torchrun's variables
launch.py     `launch`: checks of its arguments, and the error for failed processes
processes.py  the processes: pass on their output, notice their end, leave none running
party.py      the program of each process
values.py     results, sent from a party to the caller
sending.py    the function, sent from the caller to the parties

Each process is a fresh interpreter, not a fork: the threads of a notebook (its own, OpenMP's, gRPC's, CUDA's) do not
exist in a forked process, whose next parallel loop may then wait for ever. A fresh interpreter cannot import the
definitions of a notebook's cells, so the function is sent by value.
"""
