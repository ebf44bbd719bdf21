"""The commands of `python -m hummingbird`: each is the module of its name, with a function `add_parser`, or
a function of `services`, such as `services.add_dealer`.

Commands take the user's own net and images as functions named on the command line. The programs of the published
experiments, in search/, call the same functions with nets and data sets that they find by name. Shared modules:

    sources, subject        a net, weights and images from MODULE:FUNCTION and files; accuracy
    estimate, party         a net to price; a party's session and private net
    searching, training     searches for windows; epochs
    plan_load, plan_service parts of `plan`
    output, program         files and pictures; exit codes, on one rank or several
"""
