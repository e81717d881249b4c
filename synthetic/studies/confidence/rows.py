"""The rows of the study: one step, and several on the memory of the first."""

from __future__ import annotations

from synthetic.studies.engine.designs import Row
from synthetic.studies.engine.plan import Setting

ONE = "T = 1"


def several(depth: int) -> str:
    """The name of T steps of 1/T."""
    return f"T = {depth}, eta 1/{depth}"


def rows(setting: Setting) -> tuple[Row, ...]:
    """Both rows."""
    depth = setting.depth
    return (
        Row(ONE, setting.design(), why="one step"),
        Row(
            several(depth),
            setting.design(("steps", depth), ("step_size", 1 / depth)),
            why="several steps, together as long",
        ),
    )
