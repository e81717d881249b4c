"""The rows: two memories and two step sizes, one step as long as two, and other uses of the FLOPs."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum, auto

from synthetic.studies.engine.designs import Design, Row, as_costly, cost
from synthetic.studies.engine.plan import Setting


class Key(StrEnum):
    """Identifies a row. *Short* steps have size 1/T, *long* ones size 1."""

    FIXED_SHORT = auto()
    REFRESHED_SHORT = auto()
    FIXED_LONG = auto()
    REFRESHED_LONG = auto()
    ONE_SHORT = auto()  # one step as long as T short ones
    ONE_LONG = auto()
    LONGER = auto()
    WIDER = auto()
    TIED = auto()
    LLAMA = auto()


# Fixed, refreshed, and one step as long as all: for short steps, and for long ones.
MEMORIES = (
    (Key.FIXED_SHORT, Key.REFRESHED_SHORT, Key.ONE_SHORT),
    (Key.FIXED_LONG, Key.REFRESHED_LONG, Key.ONE_LONG),
)


def rows(setting: Setting) -> tuple[Row, ...]:
    """All rows, the decisive ones first."""
    depth, design = setting.depth, setting.design
    plain = design()
    steps = []
    for (fixed, refreshed, _), eta, size in zip(MEMORIES, (f"1/{depth}", "1"), (1 / depth, 1.0), strict=True):
        step = () if size == 1 else (("step_size", size),)
        several, one_step = design(("steps", depth), *step), replace(design(*step), times=depth)
        name, why = f"T = {depth}, fixed, eta {eta}", "all steps use the first step's memory"
        steps.append(Row(name, several, why=why, key=fixed))
        name, why = f"T = {depth}, refreshed, eta {eta}", "each step reads its memory anew"
        steps.append(Row(name, one_step, why=why, key=refreshed))
    deep = steps[0].design
    times = cost(deep, setting.context).training / cost(plain, setting.context).training
    wider, long = as_costly(plain, deep, setting.context), design(("step_size", float(depth)))
    more = f"as many FLOPs as *{steps[0].name}*, on {times:.2f} times the tokens"
    others = [
        Row("T = 1", plain, why=f"one step, as long as {depth} of size 1/{depth}", key=Key.ONE_SHORT),
        Row(f"T = 1, eta {depth}", long, why=f"one step, as long as {depth} of size 1", key=Key.ONE_LONG),
        Row("T = 1, trained longer", plain, why=more, length=times, key=Key.LONGER),
        Row("T = 1, wider", wider, why=f"as many FLOPs per token as *{steps[0].name}*", key=Key.WIDER),
    ]
    if setting.replaced == "attention":
        others.append(
            Row("T = 1, K R = 2 D, P = I", _tied(setting), why="Llama's parameters, all tied", key=Key.TIED)
        )
    return (*steps, *others, Row("Llama", setting.llama, why="nothing replaced", key=Key.LLAMA))


def _tied(setting: Setting) -> Design:
    """One step of attention with two matrices K R x D, K R = 2 D: as many parameters as Llama's four of D x D."""
    size = setting.frame.size
    return replace(setting.design(), layer=(("head_dim", 2 * size.dim // size.heads), ("preconditioner", "identity")))
