"""Which part of a layer is wrong.

The failing case is tried again with options switched off, and with weights that isolate a part. Options come first:
an option that can be switched off while the case still fails is not to blame; one that cannot is. If the bare layer
fails, its sub-identities are tested, each of which isolates one part:

    one token                         the attention weights are 1: values, output projection, sum over heads
    x = 0                             the scores are 0: mask, softmax and bias
    one row of W_Q, or of V, not 0    the update points along that row
    the memory doubled                the update doubles

A part is named only if all sub-identities agree with it. If they disagree, nothing is named.
"""
