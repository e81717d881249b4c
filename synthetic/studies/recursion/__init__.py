"""The recursion study: what more descent steps buy, on functions of known difficulty.

A CEM MLP is trained at several depths T on functions drawn from Gaussian processes. Its error is compared with the
floor (the root of the least possible mean squared error over functions) and with other models of matched size.

    regressors, blocks, own   the models, many at a time: for functions, for functions from context, the user's own
    ensembles                 their training
    contenders                which models are compared, and what they cost
    references                predictors that need no training
    cells                     the units of work, computed once and stored
    findings                  the course of the study, what its cells show, and what that means for the paper
    rows                      the content of a result file, and what follows from its numbers
    worth                     how many layers with separate weights T steps are worth
    tables, pictures, page    how that is shown
    presets                   the configurations that can be run
"""
