"""The rows of the study: a model for each T, and models for all of them."""

from __future__ import annotations

from dataclasses import replace

from synthetic.studies.engine.designs import Design, Dial, Row, doubling
from synthetic.studies.engine.plan import Setting

MOST = 8  # steps that are drawn
TEST_DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16)
SUM, ALIKE = "T drawn, steps sum to 1", "T drawn, steps of 1/4"


def rows(setting: Setting) -> tuple[Row, ...]:
    """A model for each T, with steps of 1/T, and those that take any number up to the study's depth."""
    most = setting.depth

    def design(steps: int, step_size: float, dial: Dial = "") -> Design:
        return replace(setting.design(("steps", steps), ("step_size", step_size)), dial=dial)

    return (
        *(Row(own(T), design(T, 1 / T), why=f"trained for T = {T}") for T in doubling(most)),
        Row(SUM, design(most, 1 / most, "sum"), why="one model for all T"),
        Row(ALIKE, design(most, 1 / 4, "alike"), why="the same, and farther with T"),
    )


def own(steps: int) -> str:
    """The name of the model that is trained for T steps."""
    return f"T = {steps}"
