"""Faults at the ends of arithmetic: overflow, underflow, long rows, zeros."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from cemverify.power.mutants.base import ANSWER, After, Zoo

ZOO = Zoo("extremes")


ZOO += [
    ZOO.calling("energy-saturates", "The attention energy saturates at the largest exponent of float64.",
        "extremes/attention/energy-large-logits", ANSWER, of="attention_energy", answer=lambda call, x, h, w, c:
            call(x, h, w, c).clip(-(most := math.log(torch.finfo(torch.float64).max) * c.tau * c.heads), most)),
    ZOO.but("naive-softmax", "The softmax does not subtract its largest logit first.",
        "extremes/attention/large-logits", "not finite",
        softmax=lambda _, logits: logits.exp() / logits.exp().sum(-1, keepdim=True)),
    ZOO.but("forgets-after-a-block", "Keys more than 128 tokens back are not read.",
        "extremes/attention/long-row",
        hidden=lambda usual, i, j: usual.hidden(i, j) | (j < i - 128)),
    ZOO.but("zeros-are-padding", "A token of zeros is taken for padding and left unchanged.",
        "extremes/attention/exact-ties", attention=lambda usual, x, h, w, c:
            torch.where((x == 0).all(-1, keepdim=True), x, usual.attention(x, h, w, c))),
    ZOO.but("never-stands-still", "If the update is zero, the state is changed by one part in a million.",
        "extremes/attention/zero-memory", also=("mlp",),
        advance=After(lambda after, x, heads, w, c: torch.where(after == x, after * (1 + 1e-6), after))),
    ZOO.but("decodes-even-rows-off",
        "In rows of even length, decoded directions are too large by one part in a thousand.",
        "structure/decode/every-prefix",
        decode=After(lambda decoded, h, w, c: decoded if h.shape[1] % 2 else h + 1.001 * (decoded - h))),
    ZOO.but("naive-preconditioner", "The preconditioner's softplus is log(1 + e^d), which overflows.",
        "extremes/mlp/large-preconditioner", "not finite", also=("attention",),
        positive=lambda _, d: torch.log1p(torch.exp(d))),
    ZOO.calling("mlp-energy-saturates", "The MLP's energy saturates at ten million.",
        "extremes/mlp/energy-large-preactivations", ANSWER,
        of="mlp_energy", answer=lambda call, *arguments: call(*arguments).clip(-1e7, 1e7)),
    ZOO.but("softplus-turns-linear-at-twenty",
        "Softplus is taken for the identity from 20 on, as torch's does by default.",
        "extremes/mlp/every-magnitude",
        sigma=lambda usual, z, c: functional.softplus(z) if c.activation == "softplus" else usual.sigma(z, c)),
    ZOO.but("preconditioner-turns-linear-at-twenty",
        "The preconditioner's softplus is taken for the identity from 20 on.",
        "extremes/mlp/preconditioner-every-magnitude",
        also=("attention",), positive=lambda _, d: functional.softplus(d)),
    ZOO.but("preconditioner-is-not-positive",
        "The preconditioner's softplus is log(1 + e^d), which is 0 where d is below -37.",
        "extremes/attention/preconditioner-every-magnitude",
        positive=lambda _, d: torch.where(d < 30, (1 + d.clamp(max=30.0).exp()).log(), d)),
    ZOO.calling("mlp-energy-off-in-between",
        "The MLP's energy is wrong by one part in a million while it lies between 20 and 1000.",
        "extremes/mlp/energy-every-magnitude", ANSWER,
        of="mlp_energy", answer=lambda call, *arguments:
            torch.where(((e := call(*arguments)).abs() > 20) & (e.abs() < 1000), e * (1 + 1e-6), e)),
    ZOO.but("divides-by-length", "States are divided by their length and multiplied by it again.",
        "extremes/attention/subnormal-states", "not finite", also=("mlp",), norm=lambda usual, x, w, c:
            usual.norm(x / (length := x.square().sum(-1, keepdim=True).sqrt()) * length, w, c)),
    ZOO.edited("naive-activations", "Sigmoid, SiLU and softplus are written with e^z, which overflows.",
        "extremes/mlp/large-preactivations", ("z * torch.sigmoid(z)", "z * z.exp() / (1 + z.exp())"),
        ('": torch.sigmoid', '": lambda z: z.exp() / (1 + z.exp())'),
        ("lambda z: torch.logaddexp(z, torch.zeros_like(z))", "lambda z: (1 + z.exp()).log()"), cause="not finite"),
    ZOO.edited("sigmoid-levels-off-at-thirty", "Sigmoid, in SiLU too, is 1 from 30 on.",
        "extremes/mlp/every-magnitude",
        ("z * torch.sigmoid(z)", "z * torch.where(z < 30, torch.sigmoid(z), 1.0)"),
        ('": torch.sigmoid', '": lambda z: torch.where(z < 30, torch.sigmoid(z), 1.0)')),
]  # fmt: skip
