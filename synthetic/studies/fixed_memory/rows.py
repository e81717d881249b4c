"""The rows: two memories and two step sizes, one step as long as both, and other uses of the FLOPs."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from synthetic.studies.engine.designs import Design, Row, as_costly, cost
from synthetic.studies.engine.plan import Setting

Memory = Literal["fixed", "refreshed"]
MEMORIES: tuple[Memory, ...] = ("fixed", "refreshed")

ONE, LONGER, WIDER, TIED, LLAMA = "T = 1", "T = 1, trained longer", "T = 1, wider", "T = 1, K R = 2 D, P = I", "Llama"


def several(depth: int, memory: Memory, eta: str) -> str:
    """The name of T steps.

    Args:
        eta: of each, "1" or "1/T" as in "1/2".
    """
    return f"T = {depth}, {memory}, eta {eta}"


def as_long(depth: int, eta: str) -> str:
    """The name of the one step that is as long as T of that size together."""
    return f"{ONE}, eta {depth}" if eta == "1" else ONE


def etas(depth: int) -> tuple[str, str]:
    """Both step sizes, as names say them: the shorter first."""
    return f"1/{depth}", "1"


def rows(setting: Setting) -> tuple[Row, ...]:
    """All rows, those first that decide."""
    depth, design = setting.depth, setting.design
    plain = design()
    steps = []
    for eta, size in zip(etas(depth), (1 / depth, 1.0), strict=True):
        step = () if size == 1 else (("step_size", size),)
        one_step = design(*step)
        steps.append(
            Row(
                several(depth, "fixed", eta),
                design(("steps", depth), *step),
                why="all steps on the memory of the first",
            )
        )
        steps.append(
            Row(
                several(depth, "refreshed", eta),
                replace(one_step, times=depth),
                why="each step reads its memory anew",
            )
        )
    deep = steps[0].design
    times = cost(deep, setting.context).training / cost(plain, setting.context).training
    wider = as_costly(plain, deep, setting.context)
    return (
        *steps,
        Row(ONE, plain, why=f"one step, as long as {depth} of 1/{depth}"),
        Row(as_long(depth, "1"), design(("step_size", float(depth))), why=f"one step, as long as {depth} of 1"),
        Row(LONGER, plain, why=f"as many FLOPs as *{steps[0].name}*, on {times:.2f} times the tokens", length=times),
        Row(WIDER, wider, why=f"as many FLOPs a token as *{steps[0].name}*"),
        *(
            (Row(TIED, _tied(setting), why="Llama's parameters, all tied"),)
            if setting.replaced == "attention"
            else ()
        ),
        Row(LLAMA, setting.llama, why="nothing replaced"),
    )


def _tied(setting: Setting) -> Design:
    """One step of attention with two matrices K R x D, K R = 2 D: as many numbers as Llama's four of D x D."""
    size = setting.frame.size
    return replace(setting.design(), layer=(("head_dim", 2 * size.dim // size.heads), ("preconditioner", "identity")))
