"""The rows of the study: a model for each T, and models for all T."""

from __future__ import annotations

from dataclasses import dataclass, replace

from synthetic.studies.engine.designs import Design, Dial, Row, doubling
from synthetic.studies.engine.plan import Setting

MOST = 8  # the largest T that is drawn
TEST_DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16)


@dataclass(frozen=True)
class Key:
    """What a row is found by."""

    steps: int | None = None  # T; None for a model for all T
    dial: Dial = ""  # how a model for all T is trained


SUM, ALIKE = Key(dial="sum"), Key(dial="alike")


def rows(setting: Setting) -> tuple[Row, ...]:
    """A model for each T, with steps of 1/T, and models for any T up to the study's depth."""
    most = setting.depth

    def design(steps: int, step_size: float, dial: Dial = "") -> Design:
        return replace(setting.design(("steps", steps), ("step_size", step_size)), dial=dial)

    return (
        *(Row(f"T = {T}", design(T, 1 / T), why=f"trained for T = {T}", key=Key(T)) for T in doubling(most)),
        Row("T drawn, steps sum to 1", design(most, 1 / most, "sum"), why="one model for all T", key=SUM),
        Row("T drawn, steps of 1/4", design(most, 1 / 4, "alike"), why="the same, going farther with T", key=ALIKE),
    )
