"""Formulas and reasons that properties of both kinds of implementation have in common."""

from __future__ import annotations

from typing import TypedDict


class Explanation(TypedDict):
    """A formula and the reason that several properties have in common (see `Property`)."""

    formula: str
    why: str


ARGUMENTS_KEPT = Explanation(
    formula="(x, h, weights, config, modules in eval mode) after the call = before, bit for bit",
    why="An edited argument is somebody else's residual stream or parameter. The bug shows far from its cause. If a "
    "buffer moves with each call in eval mode, no answer can be had again.",
)
READ_ANEW = Explanation(
    formula="F(w) after w was edited in place = F(copy of w)",
    why="Optimisers edit weights in place. A layer that caches by identity trains with old weights.",
)
WINDOWS_READ = Explanation(
    formula="F(view of an array) = F(copy of the view)",
    why="Slices, transposes and expanded arrays reach a layer every day; a kernel that ignores strides reads the "
    "neighbours.",
)
REPEATABLE = Explanation(
    formula="F(a) = F(a) after F(b), bit for bit",
    why="An answer that depends on the call before cannot be reproduced, and makes every other comparison a lottery.",
)
SETTINGS_KEPT = Explanation(
    formula="settings of the process and states of generators after the call = before",
    why="A default dtype, a number of threads or a seed that a layer leaves behind changes other people's results.",
)
UNMOVED = Explanation(
    formula="F under other settings of the process = F",
    why="An answer that depends on the default dtype, on inference mode or on a seed differs between two programs "
    "that call the layer alike.",
)


COMPILED = Explanation(
    formula="torch.compile(F)(x, h) = F(x, h)",
    why="Code that branches on values, or edits what it was given, compiles into something else.",
)
MAPPED = Explanation(
    formula="vmap(F)(xs, hs) = [F(x, h) for x, h]", why="In-place writes and fixed ranks break when an axis is added."
)
UNRECORDED = Explanation(
    formula="F while gradients are recorded = F without",
    why="Many layers choose a faster path in evaluation; it has to be the same layer.",
)
ON_CUDA = Explanation(
    formula="F on CUDA = F on the CPU", why="Kernels differ between devices, and so do their mistakes."
)


CONSERVATIVE = Explanation(
    formula="J = d(x' - x)/dx at fixed h:  J = J^T",
    why="A field is a gradient exactly if its Jacobian is symmetric. This needs no energy to compare with, so it "
    "catches an untied projection even where everything else about the layer is unknown.",
)


AT_ZERO = Explanation(
    formula="update = golden where x or h is zero", why="Padding and fresh states are zero; 0 / 0 is NaN."
)
AT_TIES = Explanation(
    formula="update = golden where all scores are equal",
    why="Ties show whether weights are a mean of the past, and of how many tokens.",
)
IN_LONG_ROWS = Explanation(
    formula="update = golden in a row of many tokens, one of which may dominate",
    why="A running maximum that is not carried across blocks forgets the token that everybody should read.",
)


CAUSAL = Explanation(
    formula="x_j, h_j changed for all j >= i:  x'_1 ... x'_{i-1} unchanged",
    why="A language model that sees the next token has a wonderful loss and generates nonsense.",
)
ROWS_APART = Explanation(
    formula="F(x_1, ..., x_B)_b = F(x_b)",
    why="Rows that leak into each other make a result depend on what else is in the batch, and evaluation with it.",
)


BOUNDED = Explanation(
    formula="|F - golden| <= running error bound of the dtype",
    why="What a layer may lose follows from its dtype and sizes. More than that is a cast or a sum in the wrong "
    "place.",
)
