"""How hard a run looks for a counterexample."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from cemverify.console.parsing import MOST_SECONDS


@dataclass
class Explaining:
    """Seconds of a core for making violations smaller and finding their causes, all those of a run together.

    Attributes:
        left: those that are left, of which one violation takes at most half: the first ones are the most fundamental.
    """

    left: float = math.inf


@dataclass(frozen=True)
class Effort:
    """How hard a run looks for counterexamples.

    Attributes:
        examples: scales what each property is asked: at 60 about 40 examples, more where it mixes options.
        seed: determines everything that is drawn.
        seconds: the time budget of one property, of work and not of waiting for a core (`CoreBudget`). A property
            that runs out of it is inconclusive.
        timeout: seconds after which a single call counts as hung (isolated runs only).
        dtype: of properties that have none of their own. device: of torch arrays.
        shrink: whether to look for the smallest counterexample, or stop at the first.
        memory: limit of each worker in MB (isolated runs only); None for no limit.
        edited: texts that files are imported with instead of their own (isolated runs only), by absolute path.
        reads_code: whether the implementation's own code is read: which lines of it are reached, and which numbers
            in it are worth a question (isolated runs only).
        explaining: seconds of a core for making violations smaller and finding their causes, of the whole run.

    Raises:
        ValueError: no examples, or a time budget that is not positive or longer than any run.
    """

    examples: int = 60
    seed: int = 0
    seconds: float = 60.0
    timeout: float = 20.0
    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    shrink: bool = True
    memory: int | None = None
    edited: Mapping[str, str] = field(default_factory=dict)
    reads_code: bool = True
    explaining: float = 40.0

    def __post_init__(self) -> None:
        if type(self.examples) is not int or self.examples < 1:
            raise ValueError(f"examples must be a whole number of at least 1, not {self.examples!r}")
        if type(self.seed) is not int:
            raise ValueError(f"the seed must be a whole number, not {self.seed!r}")
        if not (0 < self.seconds <= MOST_SECONDS and 0 < self.timeout <= MOST_SECONDS):
            allowed = f"positive and at most {MOST_SECONDS:,} seconds"
            raise ValueError(f"time budgets must be {allowed}, not {self.seconds} and {self.timeout}")
