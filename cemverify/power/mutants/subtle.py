"""Faults of one part in a hundred to one in a billion, in one head, one feature, one position, one unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from cemverify.power.mutants.base import After, Mutant, Zoo

ZOO = Zoo("subtle")


# for each place, the methods of `Plain` whose results are off there, and the axis
_METHODS: Mapping[str, tuple[tuple[str, ...], int]] = {
    "head": (("attention_direction",), 1),
    "feature": (("attention_direction", "mlp_direction"), -1),
    "position": (("attention_direction", "mlp_direction"), -2),
    "unit": (("gated",), -1),
    "key": (("keys",), -1),
    "weight": (("softmax",), -1),
}


def _last(values: Tensor, axis: int, epsilon: float) -> Tensor:
    """The values, with the last along an axis larger by epsilon."""
    n = values.shape[axis]
    scale = torch.ones(n, dtype=values.dtype, device=values.device)
    scale[-1] += epsilon
    return values * scale.movedim(0, -1).reshape([n if a == axis % values.dim() else 1 for a in range(values.dim())])


def off_by(property_: str, place: str, exponent: int) -> Mutant:
    """A mutant whose update is too large by 10^exponent in its last head, feature, token, unit, key or weight."""
    layer, (methods, axis) = property_.split("/")[1], _METHODS[place]
    words = {"key": "feature of the keys", "unit": "hidden unit", "weight": "key's attention weight"}
    off: Mapping[str, Any] = dict.fromkeys(methods, After(lambda values, *_: _last(values, axis, 10.0**exponent)))
    return ZOO.but(
        f"{layer}-{place}-off-by-1e{exponent}",
        f"The last {words.get(place, place)} of {'the MLP' if layer == 'mlp' else layer} is too large by "
        f"one part in 1e{-exponent}.",
        property_,
        **off,
    )


_ATTENTION, _MLP = "gradient/attention/plain", "gradient/mlp/silu"
_PLACES: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    (_ATTENTION, "head", (-6, -9)),
    (_ATTENTION, "feature", (-8,)),
    (_ATTENTION, "position", (-9,)),
    (_ATTENTION, "key", (-6,)),
    (_ATTENTION, "weight", (-8,)),
    (_MLP, "feature", (-9,)),
    (_MLP, "position", (-6,)),
    (_MLP, "unit", (-7,)),
)

ZOO += [off_by(property_, place, exponent) for property_, place, exponents in _PLACES for exponent in exponents]


ZOO += [
    ZOO.edited("decodes-no-token-again", "A token that equals the one before it gets that one's answer.",
        "structure/decode/cached-equals-uncached-any-options", ("            rows.append(x)\n", """\
            if i:
                x = torch.where((h[:, i] == h[:, i - 1]).all(-1)[:, None, None], rows[-1], x)
            rows.append(x)
"""), also=("structure/decode/cached-equals-uncached-plain",)),
]  # fmt: skip
