"""What the study runs: models for each T, one for all of them, and with how many steps they are scored."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from cemverify.console.errors import UsageError
from synthetic.corpora.choice import PinnedCorpus
from synthetic.language.tuned.cells import Part, TrialCell
from synthetic.language.tuned.designs import EMBEDDING_STD, Design, Dial, Row, chosen, doubling
from synthetic.language.tuned.plan import SecondStepPlan
from synthetic.stopping import STOPS

MOST = 8  # steps that are drawn
TEST_DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16)
SUM, ALIKE = "T drawn, steps sum to 1", "T drawn, steps of 1/4"


@dataclass(frozen=True)
class DialPlan(SecondStepPlan):
    """The study of one kind of layer; its attributes are those of its parent, and its depth is the largest T."""

    def cell(
        self, row: Row, seed: int, part: Part, share: float, learning_rate: float, corpus: PinnedCorpus, device: str
    ) -> TrialCell:
        """One training; a judged one is scored with every number of steps and with every stop."""
        cell = super().cell(row, seed, part, share, learning_rate, corpus, device)
        return replace(cell, depths=TEST_DEPTHS, stops=STOPS) if part == "judging" else cell


def rows(plan: SecondStepPlan) -> tuple[Row, ...]:
    """A model for each T, with steps of 1/T, and those that take any number."""
    frame = plan.frame

    def design(steps: int, step_size: float, dial: Dial = "") -> Design:
        layer = (("steps", steps), ("step_size", step_size))
        return Design(plan.replaced, frame.size, frame.vocabulary, EMBEDDING_STD, frame.init_std, layer, dial=dial)

    return (
        *(Row(own(T), design(T, 1 / T), why=f"trained for T = {T}") for T in doubling(MOST)),
        Row(SUM, design(MOST, 1 / MOST, "sum"), why="one model for all T"),
        Row(ALIKE, design(MOST, 1 / 4, "alike"), why="the same, and farther with T"),
    )


def own(steps: int) -> str:
    """The name of the model that is trained for T steps."""
    return f"T = {steps}"


def dial_plan(base: SecondStepPlan, names: tuple[str, ...] = ()) -> DialPlan:
    """The study at the size, of the length and with the seeds of a plan of the second step.

    Args:
        base: its rows are not used. names: of the rows to run; all if ().

    Raises:
        UsageError: there is no such row.
    """
    try:
        taken = chosen(rows(base), names)
    except ValueError as error:
        raise UsageError(str(error)) from None
    values = {field.name: getattr(base, field.name) for field in fields(SecondStepPlan)}
    return DialPlan(**{**values, "rows": taken, "depth": MOST})
