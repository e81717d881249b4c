"""Faults of memory between calls: something of an earlier step is left over."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cemverify.cem.layers import AttentionConfig
from cemverify.conformance.implementations.plain import Plain, Weights
from cemverify.power.mutants.base import Call, Zoo

ZOO = Zoo("sequences")

_STEP = "each step of a sequence = its golden step"


@ZOO.killed_by(
    "The step size of the first call is used for all later calls.",
    "sequences/attention/changing-steps",
    _STEP,
    also=("sequences/mlp/changing-steps",),
)
class KeepsItsStepSize(Plain):
    def __init__(self) -> None:
        self.kept: float | None = None

    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        if self.kept is None:
            self.kept = c.step_size
        return super().advance(x, heads * (self.kept / c.step_size), w, c)


@ZOO.killed_by(
    "Keys are recomputed only if W_K or the shape of the memory changes, not if its values do.",
    "sequences/attention/changing-steps",
    _STEP,
)
class KeepsItsKeys(Plain):
    def __init__(self) -> None:
        self.kept: dict[object, Tensor] = {}

    def keys(self, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        name = (tuple(h.shape), tuple(w["W_K"].flatten().tolist()))
        return self.kept.setdefault(name, super().keys(h, w, c))


@ZOO.killed_by(
    "The preconditioner is recomputed only if d changes, not if its kind does.",
    "sequences/mlp/changing-steps",
    _STEP,
)
class KeepsItsPreconditioner(Plain):
    def __init__(self) -> None:
        self.kept: dict[object, Tensor] = {}

    def preconditioner(self, w: Weights, c: Any) -> Tensor:
        return self.kept.setdefault(tuple(w["P_d"].flatten().tolist()), super().preconditioner(w, c))


@ZOO.calls(
    "Outputs are cached by array identity, whatever is written into the arrays later.",
    "contract/attention/edited-arrays",
    "output for edited arrays = output for new arrays",
    also=("contract/*/edited-arrays",),
    edits=True,
)
def knows_arrays_by_identity(call: Call, *arguments: Any) -> Any:
    arrays = (*arguments[:-2], *arguments[-2].values())
    key = (call.name, *map(id, arrays))
    if key not in call.kept:
        call.kept[key] = (call(*arguments), arrays)  # held, so that no other array takes their place
    return call.kept[key][0] + 0
