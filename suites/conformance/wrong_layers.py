"""A wrong layer of every kind that can be declared, for what must cope with all of them.

Each declares a quadratic energy and takes a step that is half as long again as it must be, or worse.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cemverify import PRESENT_STATE, SOME_POSITIVE_DEFINITE, energy_layer, implementation
from cemverify.conformance.implementations.contract import Implementation
from cemverify.conformance.implementations.reference import reference


def _half(x: Tensor, *_: Any, **__: Any) -> Tensor:
    """|x|^2 / 2 of each token."""
    return (x * x).sum(-1) / 2


def _too_far(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return -1.5 * x


tokens = energy_layer(update=_too_far, energy=_half, dim=4)
single = energy_layer(update=lambda x: -1.5 * x, energy=_half, state=(5,), memory=None, energy_per="sequence")
scalar = energy_layer(
    update=lambda x: -1.5 * x, energy=lambda x: (x * x).sum() / 2, state=(3,), memory=None, energy_per="batch"
)
named = energy_layer(
    update=lambda x: (-1.5 * x.visible, -x.hidden),
    energy=lambda x: (x.visible**2).sum(-1) / 2 + (x.hidden**2).sum(-1) / 2,
    state={"visible": (4,), "hidden": (3,)},
    memory=None,
    energy_per="sequence",
)
named_memory = energy_layer(
    update=lambda x, m: -1.5 * (x - m.bias),
    energy=lambda x, m: ((x - m.bias) ** 2).sum(-1) / 2,
    state=("J", 3),
    memory={"bias": ("J", 3), "unused": ("N",)},
)
numbers = energy_layer(update=lambda x: -1.5 * x, energy=_half, state=("N",), memory=None, energy_per="sequence")
image = energy_layer(
    update=lambda x: -1.5 * x,
    energy=lambda x: (x * x).sum((-3, -2, -1)) / 2,
    state=(2, 3, "W"),
    memory=None,
    energy_per="sequence",
)
present = energy_layer(
    update=lambda x: -1.5 * x, energy=lambda g, m: (g * g).sum(-1) / 2, state=("J", 3), memory=PRESENT_STATE
)
noisy = energy_layer(
    update=lambda x, noise: -1.5 * x + 0.1 * noise,
    energy=_half,
    state=("J", 3),
    memory=None,
    noise=0.1,
)
masked = energy_layer(
    update=lambda x, m, mask: -x * (1 + 0.5 * (~mask).sum(-1)[:, None, None]), energy=_half, dim=3, masked=True
)
mapped = energy_layer(
    update=lambda x: -1.5 * torch.tanh(x),
    energy=_half,
    state=("J", 3),
    memory=None,
    state_map=torch.tanh,
    lagrangian=lambda x: torch.log(torch.cosh(x)).sum(-1),
)
equilibrium = energy_layer(
    update=lambda x: 0.5 * x,
    energy=_half,
    state=(4,),
    memory=None,
    energy_per="sequence",
    step="equilibrium",
    tolerance=1e-6,
    returns="next state",
)
unknown = energy_layer(
    update=lambda x: -x - x.flip(-1) ** 3,
    energy=_half,
    state=("J", 3),
    memory=None,
    preconditioner=SOME_POSITIVE_DEFINITE,
)
raises = energy_layer(update=lambda x: 1 / 0, energy=_half, state=(4,), memory=None, energy_per="sequence")


def _cem(x: Tensor, h: Tensor, weights: Any, config: Any) -> Tensor:
    right: Tensor = reference.functions["attention"](x, h, weights, config)
    return x + 1.5 * (right - x)


attention = implementation(attention=_cem)
mlp = implementation(mlp=lambda x, h, weights, config: x + 1.0)
block = Implementation({"block": lambda h, weights, config: h + 1.0}, {"attention": "none", "mlp": "none"})

# By name: the layer, and properties that it violates.
LAYERS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "tokens": (tokens, ("gradient/layer/energy",)),
    "single": (single, ("gradient/layer/energy",)),
    "scalar": (scalar, ("gradient/layer/energy",)),
    "named": (named, ("gradient/layer/energy",)),
    "named_memory": (named_memory, ("gradient/layer/energy",)),
    "numbers": (numbers, ("gradient/layer/energy",)),
    "image": (image, ("gradient/layer/energy",)),
    "present": (present, ("gradient/layer/energy",)),
    "noisy": (noisy, ("gradient/layer/energy",)),
    "masked": (masked, ("structure/layer/mask",)),
    "mapped": (mapped, ("gradient/layer/energy",)),
    "equilibrium": (equilibrium, ("descent/layer/stationary",)),
    "unknown": (unknown, ("gradient/layer/preconditioner",)),
    "raises": (raises, ("gradient/layer/energy",)),
    "attention": (attention, ("gradient/attention/plain",)),
    "mlp": (mlp, ("gradient/mlp/silu",)),
    "block": (block, ("gradient/block/any-options",)),
}
