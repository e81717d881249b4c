"""Options that the paper's descent does not have, which may make a second step contribute something new.

The formulas, what each promises and what it does not, are in docs/mathematics.md §18.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

Signs = Literal["ignored", "moved"]


@dataclass(frozen=True)
class Beyond:
    """Options of the T steps inside a layer; the defaults are the paper's descent.

    Attributes:
        momentum: mu in [0, 1): each step adds mu times the last move. learn_momentum: whether mu is only the start of
            learning; a learned mu may leave the range.
        own_steps: whether each step learns an eta of its own; `LayerConfig.step` must be "learned".
        own_preconditioners: whether each step learns a P of its own.
        cooling: the temperature of step t is tau cooling^t; attention only, as an MLP has none.
        signs: of an MLP's gates: "moved" puts them inside the activation, as App. B tried (`energies.Convexified`).

    Raises:
        ValueError: a number is out of its range.
    """

    momentum: float = 0.0
    learn_momentum: bool = False
    own_steps: bool = False
    own_preconditioners: bool = False
    cooling: float = 1.0
    signs: Signs = field(default="ignored", metadata={"added": True})

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be at least 0 and less than 1, not {self.momentum}")
        if not (self.cooling > 0 and math.isfinite(self.cooling)):
            raise ValueError(f"cooling must be positive and finite, not {self.cooling}")
        if self.signs not in get_args(Signs):
            raise ValueError(f"unknown signs {self.signs!r}; choose from {', '.join(get_args(Signs))}")


PAPER = Beyond()
