"""The recursion study: what more descent steps buy, on functions of known difficulty.

A CEM MLP is trained at several depths T on functions drawn from Gaussian processes. Beside its error stand the floor,
the root of the least mean squared error over functions, and other models of matched size.

    regressors, blocks, own   the models, many at a time: of functions, of functions from context, the user's own
    ensembles                 their training
    contenders                which of them compete, and what they cost
    references                what needs no training
    cells                     the units of work: what is computed once and kept
    findings                  the study from its first cell on, what its cells say, and what that says of the paper
    rows                      what a result file has, and what follows from its numbers
    worth                     to how many layers with weights of their own T steps come
    tables, pictures, page    what is shown of that
    presets                   what is run
"""
