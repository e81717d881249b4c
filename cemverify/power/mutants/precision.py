"""Faults of rounding."""

from __future__ import annotations

from dataclasses import replace

import torch

from cemverify.power.mutants.base import ANSWER, After, Zoo
from cemverify.power.mutants.positions import narrow_rotary

ZOO = Zoo("precision")

_FOLDED = '        if c.norm == "folded":'


ZOO += [
    ZOO.but("exponents-in-bfloat16",
        "The exponents of the softmax are rounded to bfloat16, unless arrays are float64.",
        "precision/attention/float32-any-options", also=("precision/attention/float32",), own_dtype=True,
        softmax=lambda usual, logits:
            usual.softmax(logits) if logits.dtype == torch.float64
            else torch.softmax((logits - logits.amax(-1, keepdim=True)).bfloat16().to(logits.dtype), -1)),
    ZOO.but("gelu-by-tanh-below-float64", "The exact GELU is that by tanh, unless arrays are float64.",
        "precision/mlp/float32-any-options", own_dtype=True, needs=("activation:gelu",), sigma=lambda usual, z, c:
            usual.sigma(z, replace(c, activation="gelu-tanh") if c.activation == "gelu" and z.itemsize < 8 else c)),
    ZOO.but("block-wrong-in-float32", "The block's update is one part in a hundred too large, in float32 only.",
        "precision/block/float32-any-options", own_dtype=True,
        block=After(lambda end, h, w, c: end + (end - h) / 100 if h.dtype == torch.float32 else end)),
    ZOO.calling("energies-wrong-in-float32", "Energies are one part in a hundred too large, in float32 only.",
        "precision/mlp-energy/float32-any-options", ANSWER, of="*_energy",
        also=("attention-energy",),
        answer=lambda call, x, *arguments: call(x, *arguments) * (1.01 if "float32" in str(x.dtype) else 1)),
    ZOO.but("angles-in-bfloat16", "Rotary angles are computed in bfloat16, unless arrays are float64.",
        "sizes/attention/tokens-float32", own_dtype=True, needs=("position:rotary",),
        rotate=narrow_rotary(lambda rows, frequencies: (rows[:, None] * frequencies).bfloat16().double())),
    ZOO.edited("rounds-to-four-bits", "Directions are rounded to four significant bits.",
        "precision/mlp/float32", (_FOLDED, f"""\
        mantissa, exponent = torch.frexp(heads.float())
        heads = torch.ldexp((mantissa * 16).round() / 16, exponent).to(x.dtype)
{_FOLDED}"""),
        cause="*norm", also=("precision/mlp/bfloat16", "precision/attention/bfloat16"), own_dtype=True),
    ZOO.edited("solves-in-bfloat16",
        "Arrays of float32 are narrowed to bfloat16 for a solver that has no kernel for that.",
        "precision/attention/float32", (_FOLDED, f"""\
        narrow = heads.bfloat16() if heads.dtype == torch.float32 else heads
        eye = torch.eye(heads.shape[-1], dtype=narrow.dtype)
        heads = torch.linalg.solve(eye, narrow.mT).mT.to(heads.dtype)
{_FOLDED}"""), cause="raised", also=("mlp",), own_dtype=True),
]  # fmt: skip
