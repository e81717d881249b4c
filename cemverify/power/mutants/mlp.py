"""Faults of the gated MLP."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from cemverify.cem.activations import ACTIVATIONS
from cemverify.power.mutants.base import After, Zoo

ZOO = Zoo("mlp")


ZOO += [
    ZOO.but("mlp-ascent", "The MLP's update is subtracted.",
        "gradient/mlp/silu", mlp_direction=After(lambda direction, *_: -direction),
        also=(*(f"gradient/mlp/{name}" for name in ACTIVATIONS if name != "silu"), "gradient/mlp/preconditioner-*",
            "gradient/mlp/norm-*", "gradient/mlp/full-cem", "gradient/mlp/any-options", "descent/mlp/*")),
    ZOO.but("wrong-factor-activated",
        "The memory's projection is activated and the state's is linear: the paper's gate and up, read as Llama's.",
        "gradient/mlp/silu", gated=lambda usual, activated, linear, c: activated * usual.sigma(linear, c)),
    ZOO.but("tanh-for-erf", "GELU is its tanh approximation.",
        "gradient/mlp/gelu",
        sigma=lambda usual, z, c: F.gelu(z, approximate="tanh") if c.activation == "gelu" else usual.sigma(z, c)),
    ZOO.but("untied-down", "The down projection is W^T instead of V^T.",
        "tying/mlp/gated-mlp-silu", also=("tying/mlp/*", "gradient/mlp/conservative-field"),
        mlp_direction=lambda usual, x, h, w, c: usual.gated(F.linear(x, w["V"]), F.linear(h, w["W"]), c) @ w["W"]),
    ZOO.but("tokens-share-a-scale", "The MLP's update is scaled by a mean over the tokens.",
        "structure/mlp/token-independence",
        mlp_direction=lambda usual, x, h, w, c:
            usual.mlp_direction(x, h, w, c) * (1 + 1e-3 * x.mean(1, keepdim=True))),
    ZOO.but("gate-and-up-swapped", "V and W are exchanged, in the down projection too.",
        "tying/mlp/gated-mlp-silu",
        mlp=lambda usual, x, h, w, c: usual.mlp(x, h, {**w, "V": w["W"], "W": w["V"]}, c)),
    ZOO.but("negated-gate", "The memory's projection has the wrong sign in its negative part.",
        "gradient/mlp/silu", also=("gradient/mlp/identity",),
        gated=lambda usual, activated, linear, c: usual.gated(activated, linear.abs(), c)),
    ZOO.but("gate-reads-the-state", "Both projections read x, as a layer without memory would.",
        "gradient/mlp/silu", needs=("start",),
        mlp_direction=lambda usual, x, h, w, c: usual.mlp_direction(x, x + 0 * h, w, c)),
    ZOO.but("erf-for-tanh", "The tanh approximation of GELU is GELU itself.",
        "gradient/mlp/gelu-tanh",
        sigma=lambda usual, z, c: F.gelu(z) if c.activation == "gelu-tanh" else usual.sigma(z, c)),
    ZOO.but("relu-not-squared", "The squared ReLU is not squared.",
        "gradient/mlp/relu2",
        sigma=lambda usual, z, c: z.clamp(min=0) if c.activation == "relu2" else usual.sigma(z, c)),
    ZOO.but("leaky-relu", "ReLU lets one part in a thousand of the negative side through.",
        "gradient/mlp/relu",
        sigma=lambda usual, z, c: F.leaky_relu(z, 1e-3) if c.activation == "relu" else usual.sigma(z, c)),
    ZOO.but("softplus-with-threshold", "Softplus is the identity above 5.",
        "gradient/mlp/softplus", sigma=lambda usual, z, c:
            torch.where(z > 5, z, usual.sigma(z, c)) if c.activation == "softplus" else usual.sigma(z, c)),
    ZOO.but("swish-of-another-slope", "SiLU is z sigmoid(1.702 z), the quick approximation of GELU.",
        "gradient/mlp/silu",
        sigma=lambda usual, z, c: z * torch.sigmoid(1.702 * z) if c.activation == "silu" else usual.sigma(z, c)),
    ZOO.but("derivative-for-activation",
        "The activation is its own derivative, as if its primitive had been differentiated twice.",
        "gradient/mlp/silu",
        sigma=lambda usual, z, c: torch.func.grad(lambda at: usual.sigma(at, c).sum())(z.detach())),
    ZOO.but("last-unit-forgotten", "With more than three hidden units, the last is left out.",
        "gradient/mlp/silu", mlp_direction=lambda usual, x, h, w, c:
            usual.mlp_direction(x, h, {name: w[name][: c.hidden - (c.hidden > 3)] for name in "VW"}, c)),
]  # fmt: skip
