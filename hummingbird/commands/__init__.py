"""The commands of `python -m hummingbird`: each is the module of its name, with a function `add_parser`, or
a function of `services`, such as `services.add_dealer`.

Commands take the user's own net and images as functions named on the command line. The programs of the published
experiments, in search/, call the same functions with nets and data sets that they find by name. Shared modules:

    sources, subject        a net and images from MODULE:FUNCTION     checkpoint, accuracy    weights, predictions
    planned, converted      a net to price, a party's private net     party                   a party's session
    searching, search_options    searches for windows                 training, data_parallel, ranked    epochs, ranks
    plan_load, plan_service, plan_show, plan_sweep    parts of `plan`  files, plots, program   outputs, exit codes
"""
