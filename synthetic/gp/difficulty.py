"""Whether a task is worth using in a comparison, judged before any model is trained on it.

If the floor is close to the error of a linear fit, or that error is close to zero, a table of models compares noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from cemverify.console.errors import UsageError
from synthetic.gp.priors import canonical
from synthetic.gp.tasks import Task, TaskConfig, ridge

# A share of a linear fit's error: a floor above it leaves nothing to learn.
HARDEST = 0.9

# A share of the prior standard deviation: a linear fit with an error below it leaves nothing to learn.
EASIEST = 0.1

# Allowed with nothing to learn: a model that does well here reveals a leak. With ten inputs all tie on the second.
NEGATIVE_CONTROLS = ("matern12(lengthscale=2)", "periodic(lengthscale=1, period=2)")


@dataclass(frozen=True)
class Difficulty:
    """How hard a task is."""

    # the root of the least mean squared error, expected over functions; a single function's may lie below
    floor: float
    linear: float  # the same for a linear fit
    prior_std: float  # roughly the error of predicting 0

    @property
    def objection(self) -> str | None:
        """Why the task is not worth using; None if it is."""
        if self.linear < EASIEST * self.prior_std:
            return f"nothing beyond linear: linear fit {self.linear:.3f}, prior {self.prior_std:.3f}"
        if self.floor > HARDEST * self.linear:
            return f"nothing to learn: floor {self.floor:.3f}, linear fit {self.linear:.3f}"
        return None


def assess(task: Task) -> Difficulty:
    """How hard a task is, against a linear fit (`tasks.ridge`)."""
    linear = task.score(ridge(task)).expected
    return Difficulty(task.floor, linear, task.prior_std)


def average(difficulties: Sequence[Difficulty]) -> Difficulty:
    """The root mean square of each error."""
    of_each = zip(*map(astuple, difficulties), strict=True)
    return Difficulty(*(math.sqrt(math.fsum(v * v for v in values) / len(values)) for values in of_each))


def is_negative_control(config: TaskConfig) -> bool:
    """Whether a task is declared a negative control."""
    return config.prior in {canonical(text, config.dimensions) for text in NEGATIVE_CONTROLS}


def admit(config: TaskConfig, difficulty: Difficulty) -> None:
    """Accepts a task that is worth a comparison, or is declared a negative control.

    Args:
        difficulty: of the task, or the average over several.
    """
    if difficulty.objection and not is_negative_control(config):
        raise UsageError(
            f"prior {config.prior} with {config.train_points} training points leaves {difficulty.objection}; "
            "choose another lengthscale or more points (see docs/tasks.md)"
        )
