"""Faults of P."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cemverify.cem.layers import PreconditionerConfig
from cemverify.conformance.implementations.plain import Weights
from cemverify.power.mutants.base import After, Function, Zoo, in_both

ZOO = Zoo("preconditioners")


def of_ranks(most: int) -> Function:
    """The cross term U V^T + V U^T, with only the first ranks."""
    return lambda usual, w: usual.cross({name: w[name][..., :most] for name in ("P_U", "P_V")})


def preconditions_once(layer: Function, x: Tensor, h: Tensor, w: Weights, c: Any) -> Tensor:
    for t in range(c.steps):
        kind = c.preconditioner if t == 0 else PreconditionerConfig()
        x = layer(x, h, w, replace(c, steps=1, preconditioner=kind))
    return x


ZOO += [
    ZOO.but("preconditions-the-first-step", "Only the first of several steps is preconditioned.",
        "gradient/attention/preconditioner-diagonal",
        also=("mlp", "gradient/attention/preconditioner-low-rank-per-head"),
        needs=("steps",), **in_both(preconditions_once)),
    ZOO.but("not-shrunk-where-u-starts-at-zero",
        "The factor c of the positive definite form is 1 where the first column of U vanishes.",
        "gradient/mlp/preconditioner-low-rank", also=("gradient/attention/preconditioner-low-rank-per-head",),
        shrink=lambda usual, w: torch.where(w["P_U"][..., 0].square().sum(-1) == 0, 1.0, usual.shrink(w))),
    ZOO.but("half-the-cross-term", "P lacks V U^T, so it is not symmetric.",
        "gradient/attention/preconditioner-low-rank-printed", cross=lambda _, w: w["P_U"] @ w["P_V"].mT),
    ZOO.but("averaged-preconditioners", "All heads use one averaged preconditioner.",
        "gradient/attention/preconditioner-diagonal-per-head",
        preconditioner=After(lambda P, w, c: P.mean(0) if P.dim() == 3 else P)),
    ZOO.but("clamped-preconditioner", "softplus(d) is clamped to [0.01, 5].",
        "gradient/attention/preconditioner-diagonal", also=("mlp",), preconditioner=After(lambda P, w, c:
            torch.diag_embed(torch.diagonal(P, dim1=-2, dim2=-1).clamp(0.01, 5.0)) if "P_U" not in w else P)),
    ZOO.but("squares-for-the-cross-term", "The cross term is U U^T + V V^T.",
        "gradient/attention/preconditioner-low-rank-printed", also=("gradient/mlp/preconditioner-low-rank",),
        cross=lambda _, w: w["P_U"] @ w["P_U"].mT + w["P_V"] @ w["P_V"].mT),
    ZOO.but("exponential-preconditioner", "The diagonal of P is exp(d) instead of softplus(d).",
        "gradient/attention/preconditioner-diagonal", positive=lambda _, d: d.exp()),
    ZOO.but("indefinite-preconditioner", "The diagonal of P is d itself, of either sign.",
        "gradient/mlp/preconditioner-diagonal", also=("attention",), positive=lambda _, d: d),
    ZOO.but("divides-by-p", "Gradients are divided by the preconditioner.",
        "gradient/attention/preconditioner-diagonal", positive=lambda usual, d: 1 / usual.positive(d)),
    ZOO.but("preconditioner-of-the-first-head", "Every head uses the first head's preconditioner.",
        "gradient/attention/preconditioner-low-rank-printed-per-head",
        preconditioner=After(lambda P, w, c: P[:1].expand_as(P) if P.dim() == 3 else P)),
    ZOO.but("second-rank-forgotten", "Only the first rank of a low-rank preconditioner is used.",
        "gradient/attention/preconditioner-low-rank-printed", also=("mlp",), cross=of_ranks(1)),
    ZOO.but("preconditions-once", "Only the first step is preconditioned.",
        "gradient/attention/any-options", also=("mlp", "block"), needs=("preconditioner:diagonal", "steps"),
        **in_both(preconditions_once)),
    ZOO.edited("root-of-the-diagonal-once",
        "The positive definite form multiplies by S^1/2 on the left only, so it is not symmetric.",
        "gradient/attention/preconditioner-low-rank", ("root @ (eye", "S @ (eye"), ("* cross) @ root", "* cross)")),
]  # fmt: skip
