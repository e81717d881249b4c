"""Faults that show in one mode only: compiled, mapped, with gradients recorded, on a CUDA device."""

from __future__ import annotations

import torch

from cemverify.cem.torch_internals import is_batched
from cemverify.power.mutants.base import After, Zoo

ZOO = Zoo("modes")


ZOO += [
    ZOO.but("computes-in-the-default-dtype",
        "The direction passes through float16 unless the default dtype is float32.",
        "contract/mlp/surroundings", "answer: with the default dtype float64",
        advance=lambda usual, x, heads, w, c: usual.advance(
            x, heads if torch.get_default_dtype() == torch.float32 else heads.half().to(heads.dtype), w, c)),
    ZOO.but("off-in-the-first-layer",
        "If gradients are recorded for the weights and not for x, the direction is too large by one part in a "
        "thousand.",
        "modes/mlp/no-gradients",
        mlp_direction=lambda usual, x, h, w, c:
            usual.mlp_direction(x, h, w, c) * (1.001 if w["V"].requires_grad and not x.requires_grad else 1.0)),
    ZOO.but("off-when-states-are-mapped",
        "When mapped over states with one set of weights, the direction is too large by one part in a thousand.",
        "modes/mlp/vmap", mlp_direction=lambda usual, x, h, w, c:
            usual.mlp_direction(x, h, w, c)
            * (1.001 if [is_batched(a) for a in (x, w["V"])] == [True, False] else 1.0)),
    ZOO.but("off-when-mapped", "When mapped over another axis, the direction is too large by one part in a thousand.",
        "modes/attention/vmap", also=("mlp", "block"), advance=lambda usual, x, heads, w, c:
            usual.advance(x, heads * 1.001 if is_batched(heads) else heads, w, c)),
    ZOO.but("off-when-compiled", "When compiled, the direction is too large by one part in a thousand.",
        "modes/attention/compiled", also=("mlp",), advance=lambda usual, x, heads, w, c:
            usual.advance(x, heads * 1.001 if torch.compiler.is_compiling() else heads, w, c)),
    ZOO.but("off-while-training",
        "While gradients are recorded, the direction is too large by one part in a thousand.",
        "modes/attention/no-gradients", also=("mlp", "block"),
        advance=lambda usual, x, heads, w, c:
            usual.advance(x, heads * 1.001 if heads.requires_grad else heads, w, c)),
    ZOO.but("off-on-cuda", "On a CUDA device the direction is too large by one part in a thousand.",
        "modes/attention/cuda", also=("mlp", "block"),
        advance=lambda usual, x, heads, w, c: usual.advance(x, heads * 1.001 if heads.is_cuda else heads, w, c)),
    ZOO.but("off-in-inference-mode", "In inference mode the direction is too large by one part in a thousand.",
        "contract/mlp/surroundings", "answer: in inference mode", also=("attention", "block", "decode"),
        advance=lambda usual, x, heads, w, c:
            usual.advance(x, heads * 1.001 if torch.is_inference_mode_enabled() else heads, w, c)),
    ZOO.but("off-when-compiled-with-norm", "When compiled, the norm inside is too large by one part in a thousand.",
        "modes/mlp/compiled",
        norm=After(lambda n, x, w, c: n * 1.001 if c.norm != "none" and torch.compiler.is_compiling() else n)),
    ZOO.but("cuts-when-compiled",
        "When compiled, pre-activations beyond 16 are cut to it, where activations level off.",
        "modes/mlp/compiled",
        sigma=lambda usual, z, c: usual.sigma(z.clamp(-16.0, 16.0) if torch.compiler.is_compiling() else z, c)),
    ZOO.but("narrow-when-compiled", "When compiled, the direction of float32 passes through bfloat16.",
        "modes/attention/compiled", also=("mlp",), own_dtype=True,
        advance=lambda usual, x, heads, w, c:
            usual.advance(x, heads.bfloat16().to(heads.dtype) if heads.dtype == torch.float32
            and torch.compiler.is_compiling() else heads, w, c)),
    ZOO.but("flags-its-input",
        "x requires gradients after the call, as differentiating an energy inside would leave it.",
        "contract/mlp/inputs-unchanged",
        "changed",
        mlp=lambda usual, x, h, w, c: (usual.mlp(x, h, w, c), x.requires_grad_())[0]),
]  # fmt: skip
