"""Faults that show under one machine only: compiled, mapped, with gradients recorded, on a CUDA device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cemverify.cem.layers import MLPConfig
from cemverify.cem.torch_internals import is_batched
from cemverify.conformance.implementations.plain import Plain, Weights
from cemverify.power.mutants.base import Zoo

ZOO = Zoo("modes")


ZOO += [
    ZOO.but("off-when-compiled", "When compiled, the direction is too large by one part in a thousand.",
        "modes/attention/compiled", "compiled = eager*", also=("modes/mlp/compiled",),
        advance=lambda usual, x, heads, w, c:
            usual.advance(x, heads * 1.001 if torch.compiler.is_compiling() else heads, w, c)),
]  # fmt: skip


@ZOO.killed_by(
    "When mapped over another axis, the direction is too large by one part in a thousand.",
    "modes/attention/vmap",
    "mapped*= looped",
    also=("modes/mlp/vmap", "modes/block/vmap"),
)
class OffWhenMapped(Plain):
    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        mapped = is_batched(heads)
        return super().advance(x, heads * 1.001 if mapped else heads, w, c)


ZOO += [
    ZOO.but("off-while-training",
        "While gradients are recorded, the direction is too large by one part in a thousand.",
        "modes/attention/no-gradients", "output with gradients recorded = without",
        also=("modes/mlp/no-gradients", "modes/block/no-gradients"),
        advance=lambda usual, x, heads, w, c:
            usual.advance(x, heads * 1.001 if heads.requires_grad else heads, w, c)),
    ZOO.but("off-on-cuda", "On a CUDA device the direction is too large by one part in a thousand.",
        "modes/attention/cuda", "on CUDA = on the CPU", also=("modes/mlp/cuda", "modes/block/cuda"),
        advance=lambda usual, x, heads, w, c: usual.advance(x, heads * 1.001 if heads.is_cuda else heads, w, c)),
    ZOO.but("off-in-inference-mode", "In inference mode the direction is too large by one part in a thousand.",
        "contract/mlp/surroundings", "in inference mode = as usual",
        also=("contract/attention/surroundings", "contract/block/surroundings", "contract/decode/surroundings"),
        advance=lambda usual, x, heads, w, c:
            usual.advance(x, heads * 1.001 if torch.is_inference_mode_enabled() else heads, w, c)),
]  # fmt: skip


@ZOO.killed_by(
    "The direction passes through float16 unless the default dtype is float32.",
    "contract/mlp/surroundings",
    "with the default dtype float64 = as usual",
)
class ComputesInTheDefaultDtype(Plain):
    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        usual = torch.get_default_dtype() == torch.float32
        return super().advance(x, heads if usual else heads.half().to(heads.dtype), w, c)


@ZOO.killed_by(
    "When mapped over states with one set of weights, the direction is too large by one part in a thousand.",
    "modes/mlp/vmap",
    "mapped over x and h alone = looped",
)
class OffWhenStatesAreMapped(Plain):
    def mlp_direction(self, x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
        mapped = [is_batched(a) for a in (x, w["V"])]
        return super().mlp_direction(x, h, w, c) * (1.001 if mapped == [True, False] else 1.0)


@ZOO.killed_by(
    "If gradients are recorded for the weights and not for x, the direction is too large by one part in a thousand.",
    "modes/mlp/no-gradients",
    "output with gradients recorded for the weights alone = without",
)
class OffInTheFirstLayer(Plain):
    def mlp_direction(self, x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
        first = w["V"].requires_grad and not x.requires_grad
        return super().mlp_direction(x, h, w, c) * (1.001 if first else 1.0)


@ZOO.killed_by(
    "When compiled, the norm inside is too large by one part in a thousand.",
    "modes/mlp/compiled",
    "compiled = eager*",
)
class OffWhenCompiledWithNorm(Plain):
    def norm(self, x: Tensor, w: Weights, c: Any) -> Tensor:
        n = super().norm(x, w, c)
        return n * 1.001 if c.norm != "none" and torch.compiler.is_compiling() else n


@ZOO.killed_by(
    "When compiled, pre-activations beyond 16 are cut to it, where activations level off.",
    "modes/mlp/compiled",
    "compiled = eager*",
)
class CutsWhenCompiled(Plain):
    def sigma(self, z: Tensor, c: MLPConfig) -> Tensor:
        return super().sigma(z.clamp(-16.0, 16.0) if torch.compiler.is_compiling() else z, c)


@ZOO.killed_by(
    "When compiled, the direction of float32 passes through bfloat16.",
    "modes/attention/compiled",
    "compiled = eager in float32*",
    also=("modes/mlp/compiled",),
    own_dtype=True,
)
class NarrowWhenCompiled(Plain):
    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        narrow = heads.dtype == torch.float32 and torch.compiler.is_compiling()
        return super().advance(x, heads.bfloat16().to(heads.dtype) if narrow else heads, w, c)


@ZOO.killed_by(
    "x requires gradients after the call, as differentiating an energy inside would leave it.",
    "contract/mlp/inputs-unchanged",
    "nothing else changes, but it changed the flag that it requires gradients of x*",
)
class FlagsItsInput(Plain):
    def mlp(self, x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
        answer = super().mlp(x, h, w, c)
        x.requires_grad_()
        return answer
