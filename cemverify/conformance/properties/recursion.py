"""T steps are T applications of one step with the same memory, not the layer used T times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.oracle.budgets import output_budget
from cemverify.conformance.oracle.evidence import Comparison, Evidence, judge, moved
from cemverify.conformance.oracle.golden import golden
from cemverify.conformance.oracle.relations import relation_budget
from cemverify.conformance.properties.base import Explanation, Property, states
from cemverify.conformance.properties.gradient import update_property
from cemverify.conformance.properties.rivals import Rival
from cemverify.conformance.questions.cases import Case
from cemverify.conformance.questions.spaces import Space

_MANY = (17, 33, 65, 129)
# step sizes and sizes of many steps: larger steps let roundoff grow from one to the next
GENTLE = (2.0**-5, 2.0**-7)
FEW_OF_ALL = {"B": (1, 2), "J": (2, 3), "D": (4,), "K": (2,), "R": (2,), "M": (3, 4)}

ONE_STEP = Rival(
    "the last of the T steps changes the state", lambda case: case.having(steps=case.layer_config.steps - 1)
)


# reuse squares what it reads: after eight steps it would overflow
_OF_ATTENTION = Space("attention", steps=(2, 3, 4), step_sizes=(1.0, 0.5, 0.125, 0.3))
_FEW_STEPS = {"attention": _OF_ATTENTION, "mlp": replace(_OF_ATTENTION, layer="mlp")}
_SOURCE = "Eq. 3; docs/mathematics.md §12"


@states(
    "recursion/{}/steps-compose",
    "T steps equal T applications of the one-step map with the same memory.",
    _SOURCE,
    "F_T(x; h) = F_1(... F_1(x; h) ...; h)",
    "Steps that share state beside x, a momentum or a step size that depends on t, are not the descent that is "
    "written down.",
    {layer: replace(space, steps=(2, 3, 4, 5, 8)) for layer, space in _FEW_STEPS.items()},
    needs={"start"},
    share=0.75,
    premise="the update is not zero",
    controls=frozenset({"random", "shuffled"}),
)
def steps_compose(caller: Caller, case: Case) -> Evidence:
    """T steps from x equal one step T times, each from the previous result, all with the memory h."""
    case = case.to(caller.dtype).to(torch.float64)
    x = case.x
    for _ in range(case.layer_config.steps):
        # rounded back, as the implementation itself holds its state
        x = caller.output(replace(case, x=x).having(steps=1))
    got = caller.output(case)
    budget = 2 * relation_budget(case, got, caller.dtype)
    comparison = Comparison("T steps = T times one step", got, x, budget)
    return judge(comparison, telling=moved(got - case.x, budget))


@states(
    "recursion/{}/is-not-reuse",
    "T steps with a fixed memory differ from applying the layer T times to its own output.",
    _SOURCE,
    "x^(T) from a fixed memory != layer(layer(... x))",
    "Using a layer T times recomputes its memory each time. That is another model: it agrees at T = 1 and nowhere "
    "else.",
    _FEW_STEPS,
    share=0.75,
    premise="reading its own output as the memory would change the output",
)
def memory_stays(caller: Caller, case: Case) -> Evidence:
    """T steps keep reading h; a layer used T times reads its own output. The result must be closer to the former.

    Asked at x = h, where both readings start alike.
    """
    case = replace(case, x=case.h).to(caller.dtype).to(torch.float64)
    expected, budget = golden(case), output_budget(case, caller.dtype)
    reused = case.h
    for _ in range(case.layer_config.steps):
        reused = golden(replace(case, x=reused, h=reused).having(steps=1))
    got = caller.output(case)
    to_recursion = (got - expected).abs().amax((1, 2))
    to_reuse = (got - reused).abs().amax((1, 2))
    tolerance = 2 * budget.amax((1, 2))
    telling = moved(expected - reused, budget)
    claim = "distance to the recursion <= distance to layer reuse"
    evidence = judge(Comparison(claim, to_recursion, to_reuse, tolerance, "at most"), telling=telling)
    return replace(evidence, case=case)


_DESCENT = Explanation(
    "x^(t+1) = x^(t) - eta P g(x^(t); h),  t = 0 ... T-1",
    "With T = 1, a memory that is recomputed between the steps does not show; with T = 2 it does.",
)


def properties() -> Iterator[Property]:
    """T steps against the descent: few and many, and with other options."""
    for layer, few in _FEW_STEPS.items():
        space = replace(few, steps=(2, 3, 4, 7, 8))
        yield update_property(
            f"recursion/{layer}/equals-descent",
            "T steps equal T steps of gradient descent on the energy.",
            _SOURCE,
            *_DESCENT,
            space,
            ONE_STEP,
            share=0.75,
            scattered=1.3,
        )
        yield update_property(
            f"recursion/{layer}/many-steps",
            f"Up to {max(_MANY)} steps equal as many steps of gradient descent on the energy.",
            _SOURCE,
            _DESCENT.formula,
            "A layer may be run for longer than it was trained. A limit on its steps, a table of them or another way "
            "to take many shows only beyond it.",
            replace(space, steps=_MANY, step_sizes=GENTLE, sizes=FEW_OF_ALL, textures=("plain",)),
            ONE_STEP,
            share=0.1,
            small=0,
            scattered=4,
            compiled=2,  # of a T each
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
        yield update_property(f"recursion/{name}", claim, source, *_DESCENT, space, ONE_STEP, share=0.5)
