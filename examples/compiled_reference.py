"""The reference's modules, compiled: `cemverify check examples.compiled_reference:mine`.

With `fullgraph=True`, `torch.compile` raises if it cannot capture something instead of leaving it uncompiled. It is
reset for every layer, because its limit on recompilations would otherwise leave layers uncompiled silently. The
backend runs the captured graph unchanged: the capture is what is tested, in a fraction of the time of code
generation.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from cemverify import implementation_from_modules
from cemverify.cem.layers import CEMAttention, CEMGatedMLP


def compiled(kind: Callable[[Any, torch.Generator], nn.Module]) -> Callable[[Any], nn.Module]:
    def build(config: Any) -> nn.Module:
        torch.compiler.reset()
        layer = kind(config, torch.Generator())
        layer.compile(backend="eager", fullgraph=True)
        return layer

    return build


mine = implementation_from_modules(
    attention=compiled(CEMAttention),
    mlp=compiled(CEMGatedMLP),
    names={"gain": "norm.gain"},
    # the module's own p is P_d / sqrt(D); what is compiled already is not compiled again; a reset is for all threads
    not_offered=("preconditioner", "validation", "vmap", "compile", "threads"),
)
