"""A wrong layer of every kind that can be declared, for tests of code that must handle all of them.

Each declares a quadratic energy and takes a step that is 1.5 times as long as it should be, or worse.
"""

from __future__ import annotations

from typing import Any

from cemverify import energy_layer, implementation
from cemverify.conformance.implementations.contract import Implementation
from cemverify.conformance.implementations.reference import reference


def _layer(**declared: Any) -> Any:
    """A wrong layer; by default it has only a state."""
    alone = {} if "dim" in declared else {"state": ("J", 3), "memory": None}
    usual = {"update": lambda x: -1.5 * x, "energy": lambda x, *_, **__: (x * x).sum(-1) / 2}  # for each token
    return energy_layer(**{**usual, **alone, **declared})


# By name: the layer, a property that it violates, and the names of its arguments.
_ENERGY = "gradient/layer/energy"
LAYERS: dict[str, tuple[Any, str, set[str]]] = {
    "single": (_layer(state=(5,), energy_per="sequence"), _ENERGY, {"x"}),
    "named": (
        _layer(
            state={"visible": (4,), "hidden": (3,)},
            energy_per="sequence",
            update=lambda x: (-1.5 * x.visible, -x.hidden),
            energy=lambda x: (x.visible**2).sum(-1) / 2 + (x.hidden**2).sum(-1) / 2,
        ),
        _ENERGY,
        {"visible", "hidden"},
    ),
    "named_memory": (
        _layer(
            memory={"bias": ("J", 3), "unused": ("N",)},
            update=lambda x, m: -1.5 * (x - m.bias),
            energy=lambda x, m: ((x - m.bias) ** 2).sum(-1) / 2,
        ),
        _ENERGY,
        {"x", "bias", "unused"},
    ),
    "noisy": (_layer(noise=0.1, update=lambda x, noise: -1.5 * x + 0.1 * noise), _ENERGY, {"x", "noise.x"}),
    "masked": (
        _layer(dim=3, masked=True, update=lambda x, m, mask: -x * (1 + 0.5 * (~mask).sum(-1)[:, None, None])),
        "structure/layer/mask",
        {"x", "memory", "mask"},
    ),
    "raises": (_layer(state=(4,), energy_per="sequence", update=lambda x: 1 / 0), _ENERGY, {"x"}),
    "attention": (
        implementation(attention=lambda x, *rest: x + 1.5 * (reference.functions["attention"](x, *rest) - x)),
        "gradient/attention/plain",
        {"x", "h"},
    ),
    "block": (
        Implementation({"block": lambda h, weights, config: h + 1.0}, {"attention": "none", "mlp": "none"}),
        "gradient/block/any-options",
        {"h"},
    ),
}


def __getattr__(name: str) -> Any:
    """The layer with this name."""
    if name not in LAYERS:
        raise AttributeError(name)
    return LAYERS[name][0]
