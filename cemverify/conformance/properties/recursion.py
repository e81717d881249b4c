"""T steps are T steps of gradient descent on one energy, with the memory fixed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cemverify.conformance.oracle.rivals import Rival
from cemverify.conformance.properties.base import Property, update_property
from cemverify.conformance.properties.explanations import Explanation
from cemverify.conformance.questions.spaces import FEW_OF_ALL, GENTLE, Space

_MANY = (17, 33, 65, 129)

ONE_STEP = Rival(
    "the last of the T steps changes the state", lambda case: case.having(steps=case.layer_config.steps - 1)
)


# layer reuse squares what a step reads: after eight steps it would overflow
_OF_ATTENTION = Space("attention", steps=(2, 3, 4), step_sizes=(1.0, 0.5, 0.125, 0.3))
_FEW_STEPS = {"attention": _OF_ATTENTION, "mlp": replace(_OF_ATTENTION, layer="mlp")}
_SOURCE = "Eq. 3; docs/mathematics.md §12"


_DESCENT = Explanation(
    formula="x^(t+1) = x^(t) - eta P g(x^(t); h),  t = 0 ... T-1",
    why="With T = 1, a memory that is recomputed between the steps does not show; with T = 2 it does.",
)


def properties() -> Iterator[Property]:
    """T steps against the descent: few and many, and with other options."""
    for layer, few in _FEW_STEPS.items():
        space = replace(few, steps=(2, 3, 4, 7, 8))
        yield update_property(
            f"recursion/{layer}/equals-descent",
            claim="T steps equal T steps of gradient descent on the energy.",
            source=_SOURCE,
            **_DESCENT,
            space=space,
            rival=ONE_STEP,
        )
        yield update_property(
            f"recursion/{layer}/many-steps",
            claim=f"Up to {max(_MANY)} steps equal as many steps of gradient descent on the energy.",
            source=_SOURCE,
            formula=_DESCENT["formula"],
            why="A layer may be run for longer than it was trained. A limit on its steps, a table of them or "
            "another way to take many shows only beyond it.",
            space=replace(space, steps=_MANY, step_sizes=GENTLE, sizes=FEW_OF_ALL, textures=("plain",)),
            rival=ONE_STEP,
        )
    full = {"diagonal": "shared", "position": "alibi", "norm": "channel"}
    with_diagonal = "T steps with a diagonal, ALiBi and RMSNorm inside equal T steps of the descent."
    for name, claim, space in (
        ("attention/equals-descent-full-cem", with_diagonal, Space("attention", full, steps=(2, 3))),
        (
            "mlp/equals-descent-with-norm",
            "T steps with RMSNorm inside equal T steps of the descent.",
            Space("mlp", {"norm": "channel"}, steps=(2, 3)),
        ),
    ):
        source = "Algorithm 1; docs/mathematics.md §12"
        yield update_property(
            f"recursion/{name}", claim=claim, source=source, **_DESCENT, space=space, rival=ONE_STEP
        )
