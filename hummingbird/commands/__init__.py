"""The commands of `python -m hummingbird`: each is the module of its name, with `add_parser`.

They take a net and images of the user's own, as functions named on the command line (sources.py). The programs of the
published experiments, in search/, call the same functions with nets and data sets that they know by name.
"""
