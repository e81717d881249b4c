"""What the study runs: models for each T, one for all of them, and with how many steps they are scored."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from cemverify.errors import UsageError
from synthetic.corpora.choice import PinnedCorpus
from synthetic.language.tuned.cells import Part, TrialCell
from synthetic.language.tuned.designs import EMBEDDING_STD, Design, Option, Replaced, Row
from synthetic.language.tuned.plan import SecondStepPlan

MOST = 8  # steps that are drawn
TEST_DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16)
SUM, ALIKE = "T drawn, steps sum to 1", "T drawn, steps of 1/4"


@dataclass(frozen=True)
class DialPlan(SecondStepPlan):
    """The study of one kind of layer; its attributes are those of its parent, and its depth is the largest T."""

    def cell(
        self, row: Row, seed: int, part: Part, share: float, learning_rate: float, corpus: PinnedCorpus, device: str
    ) -> TrialCell:
        """One training; a judged one is scored with every number of steps."""
        cell = super().cell(row, seed, part, share, learning_rate, corpus, device)
        return replace(cell, depths=TEST_DEPTHS) if part == "judging" else cell


def rows(replaced: Replaced, plan: SecondStepPlan) -> tuple[Row, ...]:
    """A model for each T, with steps of 1/T, and those that take any number."""

    def design(*layer: Option, dial: str = "") -> Design:
        frame = plan.frame
        found = Design(replaced, frame.size, frame.vocabulary, EMBEDDING_STD, frame.init_std, layer)
        return replace(found, dial=dial)  # type: ignore[arg-type]

    trained = [2**i for i in range(MOST.bit_length())]
    return (
        *(Row(own(T), design(("steps", T), ("step_size", 1 / T)), why=f"trained for T = {T}") for T in trained),
        Row(SUM, design(("steps", MOST), ("step_size", 1 / MOST), dial="sum"), why="one model for all T"),
        Row(ALIKE, design(("steps", MOST), ("step_size", 1 / 4), dial="alike"), why="the same, and farther with T"),
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
    every = rows(base.replaced, base)
    known = [row.name for row in every]
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"there is no row {unknown[0]!r}; choose from {'; '.join(known)}")
    taken = tuple(row for row in every if not names or row.name in names)
    values = {field.name: getattr(base, field.name) for field in fields(SecondStepPlan)}
    return DialPlan(**{**values, "rows": taken, "depth": MOST})
