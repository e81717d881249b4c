"""Energies: what a layer minimises. Each one is per token, unreduced, and takes its memory as an argument.

memory = energy.remember(h)      # fixed while x moves; whatever depends on h alone is computed here, once
energy(x, memory)                # (B, J)
energy.gradient(x, memory)       # (B, J, D), closed form
energy.curvature(memory)         # how far one may step
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from cemverify.cem.energies.convexified import Convexified
from cemverify.cem.energies.curvature import Curvature
from cemverify.cem.energies.elementwise import Elementwise, ElementwiseMemory
from cemverify.cem.energies.features import FeaturedKeys
from cemverify.cem.energies.hopfield import Hopfield, HopfieldMemory
from cemverify.cem.energies.interaction import Interaction, InteractionMemory


class Energy(Protocol):
    """What a descent needs from an energy."""

    def __call__(self, x: Tensor, memory: Any) -> Tensor: ...

    def remember(self, h: Tensor) -> Any: ...

    def gradient(self, x: Tensor, memory: Any) -> Tensor: ...

    def curvature(self, memory: Any) -> Curvature: ...


__all__ = [
    "Convexified", "Curvature", "Elementwise", "ElementwiseMemory", "Energy", "FeaturedKeys", "Hopfield",
    "HopfieldMemory", "Interaction", "InteractionMemory",
]  # fmt: skip
