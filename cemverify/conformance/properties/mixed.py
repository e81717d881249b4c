"""Every option of the contract in all combinations, because faults often need two options to show."""

from __future__ import annotations

from typing import Any

from cemverify.cem.activations import ACTIVATIONS
from cemverify.cem.layers import PreconditionerConfig
from cemverify.conformance.questions.cases import Layer
from cemverify.conformance.questions.spaces import Space

_SHARED = (
    PreconditionerConfig(),
    PreconditionerConfig("diagonal"),
    PreconditionerConfig("low-rank"),
    PreconditionerConfig("low-rank-printed"),
)
_PER_HEAD = tuple(PreconditionerConfig(p.kind, per_head=True) for p in _SHARED[1:])
_ATTENTION: dict[str, tuple[Any, ...]] = {
    "diagonal": ("none", "shared", "per-head"),
    "position": ("none", "alibi", "self-cross", "rotary"),
    "norm": ("none", "scalar", "channel", "folded"),
}


def mixed(layer: Layer, activations: tuple[str, ...] = tuple(ACTIVATIONS), **other: Any) -> Space:
    """A space over all options of a layer."""
    if layer == "mlp":
        choices = {"norm": _ATTENTION["norm"], "activation": activations}
        return Space(layer, choices=choices, preconditioners=_SHARED, **other)
    choices = _ATTENTION if layer == "attention" else {**_ATTENTION, "activation": activations}
    return Space(layer, choices=choices, preconditioners=(*_SHARED, *_PER_HEAD), **other)
