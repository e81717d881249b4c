"""A wrong layer of every kind that can be declared, for what must cope with all of them.

Each declares a quadratic energy and takes a step that is half as long again as it must be, or worse.
"""

from __future__ import annotations

from typing import Any

import torch

from cemverify import PRESENT_STATE, SOME_POSITIVE_DEFINITE, energy_layer, implementation
from cemverify.conformance.implementations.contract import Implementation
from cemverify.conformance.implementations.reference import reference

# What an energy layer declares besides; by default it has a state alone.
_DECLARED: dict[str, dict[str, Any]] = {
    "tokens": {"dim": 4, "update": lambda x, m: -1.5 * x},
    "single": {"state": (5,), "energy_per": "sequence"},
    "scalar": {"state": (3,), "energy_per": "batch", "energy": lambda x: (x * x).sum() / 2},
    "named": {
        "state": {"visible": (4,), "hidden": (3,)},
        "energy_per": "sequence",
        "update": lambda x: (-1.5 * x.visible, -x.hidden),
        "energy": lambda x: (x.visible**2).sum(-1) / 2 + (x.hidden**2).sum(-1) / 2,
    },
    "named_memory": {
        "memory": {"bias": ("J", 3), "unused": ("N",)},
        "update": lambda x, m: -1.5 * (x - m.bias),
        "energy": lambda x, m: ((x - m.bias) ** 2).sum(-1) / 2,
    },
    "numbers": {"state": ("N",), "energy_per": "sequence"},
    "image": {"state": (2, 3, "W"), "energy_per": "sequence", "energy": lambda x: (x * x).sum((-3, -2, -1)) / 2},
    "present": {"memory": PRESENT_STATE, "energy": lambda g, m: (g * g).sum(-1) / 2},
    "noisy": {"noise": 0.1, "update": lambda x, noise: -1.5 * x + 0.1 * noise},
    "masked": {
        "dim": 3,
        "masked": True,
        "update": lambda x, m, mask: -x * (1 + 0.5 * (~mask).sum(-1)[:, None, None]),
    },
    "mapped": {
        "update": lambda x: -1.5 * torch.tanh(x),
        "state_map": torch.tanh,
        "lagrangian": lambda x: torch.log(torch.cosh(x)).sum(-1),
    },
    "equilibrium": {
        "state": (4,),
        "energy_per": "sequence",
        "step": "equilibrium",
        "tolerance": 1e-6,
        "returns": "next state",
        "update": lambda x: 0.5 * x,
    },
    "unknown": {"preconditioner": SOME_POSITIVE_DEFINITE, "update": lambda x: -x - x.flip(-1) ** 3},
    "raises": {"state": (4,), "energy_per": "sequence", "update": lambda x: 1 / 0},
}
_ALONE: dict[str, Any] = {"state": ("J", 3), "memory": None}
# properties that they violate, where that is not the usual one
_VIOLATED = {
    "masked": "structure/layer/mask",
    "equilibrium": "descent/layer/stationary",
    "unknown": "gradient/layer/preconditioner",
}


def _layer(declared: dict[str, Any]) -> Any:
    alone = {} if "dim" in declared else _ALONE
    usual = {"update": lambda x: -1.5 * x, "energy": lambda x, *_, **__: (x * x).sum(-1) / 2}  # of each token
    return energy_layer(**{**usual, **alone, **declared})


# By name: the layer, and properties that it violates.
LAYERS: dict[str, tuple[Any, tuple[str, ...]]] = {
    **{
        name: (_layer(declared), (_VIOLATED.get(name, "gradient/layer/energy"),))
        for name, declared in _DECLARED.items()
    },
    "attention": (
        implementation(attention=lambda x, *rest: x + 1.5 * (reference.functions["attention"](x, *rest) - x)),
        ("gradient/attention/plain",),
    ),
    "mlp": (implementation(mlp=lambda x, h, weights, config: x + 1.0), ("gradient/mlp/silu",)),
    "block": (
        Implementation({"block": lambda h, weights, config: h + 1.0}, {"attention": "none", "mlp": "none"}),
        ("gradient/block/any-options",),
    ),
}


def __getattr__(name: str) -> Any:
    """The layer of that name."""
    if name not in LAYERS:
        raise AttributeError(name)
    return LAYERS[name][0]
