"""Faults of memory between calls: something of an earlier call is left over."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cemverify.cem.layers import AttentionConfig
from cemverify.conformance.implementations.plain import Plain, Weights
from cemverify.power.mutants.base import Zoo, fault

ZOO = Zoo("memory")


@ZOO.killed_by("gradient/attention/any-options", also=("mlp",), needs=("step-size",))
@fault("The step size of the first call is used for all later calls.")
class KeepsItsStepSize(Plain):
    def __init__(self) -> None:
        self.kept: float | None = None

    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        if self.kept is None:
            self.kept = c.step_size
        return super().advance(x, heads * (self.kept / c.step_size), w, c)


@ZOO.killed_by("contract/attention/shared-memory", "answer*")
@fault("Keys are recomputed only if W_K or the shape of the memory changes, not if its values do.")
class KeepsItsKeys(Plain):
    def __init__(self) -> None:
        self.kept: dict[object, Tensor] = {}

    def keys(self, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        name = (tuple(h.shape), tuple(w["W_K"].flatten().tolist()))
        return self.kept.setdefault(name, super().keys(h, w, c))


@ZOO.killed_by("training/mlp/any-options", "*", needs=("preconditioner",))
@fault("The preconditioner is recomputed only if d changes, not if its kind does.")
class KeepsItsPreconditioner(Plain):
    def __init__(self) -> None:
        self.kept: dict[object, Tensor] = {}

    def preconditioner(self, w: Weights, c: Any) -> Tensor:
        return self.kept.setdefault(tuple(w["P_d"].flatten().tolist()), super().preconditioner(w, c))
