"""Faults of one part in a hundred to one in a billion, in one head, one feature, one position, one unit."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from cemverify.cem.layers import AttentionConfig, MLPConfig
from cemverify.conformance.implementations.plain import Plain, Weights
from cemverify.power.mutants.base import UPDATE, Mutant, Zoo, fault

Place = Literal["head", "feature", "position", "unit", "key", "weight"]

ZOO = Zoo("subtle")


class OffBy(Plain):
    """An update that is too large by a relative epsilon in its last head, feature, position, unit, key or weight."""

    def __init__(self, place: Place, epsilon: float) -> None:
        self.place, self.epsilon = place, epsilon

    def attention_direction(self, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        heads = super().attention_direction(x, h, w, c)  # (B, K, J, D)
        match self.place:
            case "head":
                return _last(heads, 1, self.epsilon)
            case "feature":
                return _last(heads, -1, self.epsilon)
            case "position":
                return _last(heads, -2, self.epsilon)
        return heads

    def keys(self, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        keys = super().keys(h, w, c)  # (B, K, J, R)
        return _last(keys, -1, self.epsilon) if self.place == "key" else keys

    def softmax(self, logits: Tensor) -> Tensor:
        a = super().softmax(logits)
        return _last(a, -1, self.epsilon) if self.place == "weight" else a

    def mlp_direction(self, x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
        direction = super().mlp_direction(x, h, w, c)  # (B, J, D)
        match self.place:
            case "feature":
                return _last(direction, -1, self.epsilon)
            case "position":
                return _last(direction, -2, self.epsilon)
        return direction

    def gated(self, activated: Tensor, linear: Tensor, c: MLPConfig) -> Tensor:
        hidden = super().gated(activated, linear, c)  # (B, J, M)
        return _last(hidden, -1, self.epsilon) if self.place == "unit" else hidden


def _last(values: Tensor, axis: int, epsilon: float) -> Tensor:
    """The values, the last along an axis larger by epsilon."""
    n = values.shape[axis]
    scale = torch.ones(n, dtype=values.dtype, device=values.device)
    scale[-1] += epsilon
    return values * scale.movedim(0, -1).reshape([n if a == axis % values.dim() else 1 for a in range(values.dim())])


def off_by(property_: str, place: Place, exponent: int) -> Mutant:
    """The mutant that is off by 10^exponent in one place."""
    layer = property_.split("/")[1]
    words = {"key": "feature of the keys", "unit": "hidden unit", "weight": "key's attention weight"}
    return Mutant(
        f"{layer}-{place}-off-by-1e{exponent}",
        f"The last {words.get(place, place)} of {'the MLP' if layer == 'mlp' else layer} is too large by "
        f"one part in 1e{-exponent}.",
        property_,
        UPDATE,
        lambda: OffBy(place, 10.0**exponent).subject(),
        ZOO.family,
        original=lambda: Plain().subject(),
    )


_ATTENTION, _MLP = "gradient/attention/plain", "gradient/mlp/silu"
_PLACES: tuple[tuple[str, Place, tuple[int, ...]], ...] = (
    (_ATTENTION, "head", (-3, -6, -9)),
    (_ATTENTION, "feature", (-2, -5, -8)),
    (_ATTENTION, "position", (-4, -7, -9)),
    (_ATTENTION, "key", (-6,)),
    (_ATTENTION, "weight", (-8,)),
    (_MLP, "feature", (-4, -9)),
    (_MLP, "position", (-6,)),
    (_MLP, "unit", (-2, -7)),
)

ZOO += [off_by(property_, place, exponent) for property_, place, exponents in _PLACES for exponent in exponents]


@ZOO.part(
    "decode", "structure/decode/cached-equals-uncached-any-options", "cached = uncached", also=("structure/decode/*",)
)
@fault("A token that equals the one before it gets that one's answer.")
def decodes_no_token_again(usual: Plain, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
    answers = usual.decode(h, w, c)
    for i in range(1, h.shape[1]):
        again = (h[:, i] == h[:, i - 1]).all(-1, keepdim=True)  # (B, 1)
        answers[:, i] = torch.where(again, answers[:, i - 1], answers[:, i])
    return answers
