"""The commands of `python -m hummingbird`: each is the module of its name, with `add_parser`.

They take a net and images of the user's own, as functions named on the command line. The programs of the published
experiments, in search/, call the same functions with nets and data sets that they know by name. What they share:

    sources, subject      MODULE:FUNCTION to a net and images      checkpoint, accuracy     weights, predictions
    planned, party        a net to be priced, a party's session    files, plots, program    outputs, exit codes
    searching, search_options    searches for windows              training, tuning         epochs
"""
