"""cemverify tells you whether an implementation of energy-based Transformer layers is correct, and shows why.

    from cemverify import implementation, check_implementation

    records = check_implementation(implementation(attention=my_attention, not_offered=("diagonal", ...)))

`cemverify check module:attribute` does the same from a shell, in worker processes, which may crash or hang.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cemverify.api import check_implementation, parametrize_with_properties
    from cemverify.conformance.implementations.contract import Implementation, implementation
    from cemverify.conformance.implementations.energy_layers import (
        PRESENT_STATE,
        SOME_POSITIVE_DEFINITE,
        EnergyLayer,
        energy_layer,
    )
    from cemverify.conformance.implementations.fast import fast
    from cemverify.conformance.implementations.modules import implementation_from_modules
    from cemverify.conformance.implementations.online import online_layer
    from cemverify.conformance.implementations.reference import reference
    from cemverify.conformance.judging.verdicts import Record, Verdict
    from cemverify.conformance.properties.own import layer_property
    from cemverify.conformance.trained.model import TrainedModel

__all__ = [
    "PRESENT_STATE",
    "SOME_POSITIVE_DEFINITE",
    "EnergyLayer",
    "Implementation",
    "Record",
    "TrainedModel",
    "Verdict",
    "check_implementation",
    "energy_layer",
    "fast",
    "implementation",
    "implementation_from_modules",
    "layer_property",
    "online_layer",
    "parametrize_with_properties",
    "reference",
]

# Imported on first use, so that `import cemverify.cem` needs torch and nothing else.
_HOMES = {
    "api": ("check_implementation", "parametrize_with_properties"),
    "conformance.implementations.contract": ("Implementation", "implementation"),
    "conformance.implementations.energy_layers": (
        "PRESENT_STATE",
        "SOME_POSITIVE_DEFINITE",
        "EnergyLayer",
        "energy_layer",
    ),
    "conformance.implementations.modules": ("implementation_from_modules",),
    "conformance.implementations.fast": ("fast",),
    "conformance.implementations.online": ("online_layer",),
    "conformance.implementations.reference": ("reference",),
    "conformance.judging.verdicts": ("Record", "Verdict"),
    "conformance.properties.own": ("layer_property",),
    "conformance.trained.model": ("TrainedModel",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
