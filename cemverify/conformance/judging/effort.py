"""How hard a run looks for a counterexample."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from cemverify.devices import check_device


@dataclass(frozen=True)
class Effort:
    """How hard to look.

    Attributes:
        examples: about how many for each property; a property whose options mix asks more.
        seed: decides everything that is drawn.
        seconds: the time budget of one property. One that is cut short is inconclusive.
        timeout: seconds that a single call may take before it counts as hung (isolated runs only).
        dtype: what properties are asked in, unless they name their own. device: where torch arrays live.
        memory: MB that a worker may hold (isolated runs only); None sets no limit.
        shrink: whether to look for the smallest counterexample, or stop at the first.

    Raises:
        ValueError: no examples, a time budget that is not positive and finite, or a device that is not there.
    """

    examples: int = 60
    seed: int = 0
    seconds: float = 60.0
    timeout: float = 20.0
    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    shrink: bool = True
    memory: int | None = None

    def __post_init__(self) -> None:
        if self.examples < 1:
            raise ValueError(f"examples must be at least 1, not {self.examples}")
        if not (0 < self.seconds < math.inf and 0 < self.timeout < math.inf):
            raise ValueError(f"time budgets must be positive and finite, not {self.seconds} and {self.timeout}")
        check_device(self.device)
