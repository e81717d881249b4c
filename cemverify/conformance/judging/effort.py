"""How hard a run looks for a counterexample."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from cemverify.console.parsing import MOST_SECONDS


@dataclass
class Explaining:
    """Seconds of a core for making violations smaller and finding their causes, for a whole run."""

    # the seconds left; one violation takes at most half of them, as the first ones are the most fundamental
    left: float = math.inf


@dataclass(frozen=True)
class Effort:
    """How hard a run looks for counterexamples.

    Raises:
        ValueError: no examples, or a time budget that is not positive or longer than any run.
    """

    examples: int = 60  # scales the examples of each property: at 60 about 15, more if it mixes options
    seed: int = 0  # determines everything that is drawn
    # the time budget of one property: time of work, not of waiting for a core (`CoreBudget`). A property that exceeds
    # it is inconclusive
    seconds: float = 60.0
    timeout: float = 20.0  # seconds after which a single call counts as hung (isolated runs only)
    dtype: torch.dtype = torch.float64  # for properties that have none of their own
    device: str = "cpu"  # of torch arrays
    shrink: bool = True  # whether to look for the smallest counterexample, or stop at the first
    memory: int | None = None  # limit of each worker in MB (isolated runs only); None for no limit
    # texts with which files are imported instead of their own (isolated runs only), by absolute path
    edited: Mapping[str, str] = field(default_factory=dict)
    # whether the implementation's own code is read, for the lines reached and the numbers that deserve a question
    # (isolated runs only)
    reads_code: bool = True
    # seconds of a core for making violations smaller and finding their causes, in the whole run
    explaining: float = 40.0

    @property
    def options(self) -> tuple[str, ...]:
        """The options of `cemverify check` for this effort, as words, without defaults and the limit of memory."""
        words: list[str] = []
        for name in ("examples", "seed", "seconds", "timeout", "dtype", "device"):
            value = getattr(self, name)
            if value != getattr(Effort, name):
                words += [f"--{name}", str(value).removeprefix("torch.").removesuffix(".0")]
        return (*words, *([] if self.reads_code else ["--black-box"]))

    def __post_init__(self) -> None:
        if type(self.examples) is not int or self.examples < 1:
            raise ValueError(f"examples must be a whole number of at least 1, not {self.examples!r}")
        if type(self.seed) is not int:
            raise ValueError(f"the seed must be a whole number, not {self.seed!r}")
        if not (0 < self.seconds <= MOST_SECONDS and 0 < self.timeout <= MOST_SECONDS):
            allowed = f"positive and at most {MOST_SECONDS:,} seconds"
            raise ValueError(f"time budgets must be {allowed}, not {self.seconds} and {self.timeout}")
