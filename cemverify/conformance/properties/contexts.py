"""Every function in every context of a table: whatever surrounds a call, its answers and gradients are the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.contexts import answered_in, mapped_cases, products_in
from cemverify.conformance.asking.differentiation import arguments_of
from cemverify.conformance.oracle.budgets import underflow
from cemverify.conformance.oracle.evidence import Comparison, Evidence, reworded, unchanged_but
from cemverify.conformance.oracle.functions import EVERY, Function
from cemverify.conformance.properties.base import Property, statement
from cemverify.conformance.properties.derivatives import SMOOTH, products_are_right
from cemverify.conformance.questions.cases import Case
from cemverify.conformance.questions.contexts import InContext, Table
from cemverify.conformance.questions.spaces import mixed

# The share of the table's rows on which each function is tested: blocks and decoding take long, and are made of the
# layers; an energy has no steps.
_PART = {"attention": 1.0, "mlp": 1.0, "block": 0.1, "decode": 0.1}
_OF_ENERGIES = 0.2


def _in_every_context(function: Function, check: Callable[[Function, Caller, InContext], Evidence]) -> Property:
    space = mixed(function.layer, activations=SMOOTH, apart=not function.starts_at_the_memory)
    return Property(
        f"contexts/{function.name.replace('_', '-')}/any-options",
        claim="Answers are the same in every context, and arguments are left alone: ways to call a function, calls "
        "before it or its backward pass, layouts of arrays, numbers in them, batches and steps, crossed in pairs.",
        source="docs/contract.md",
        formula="F(x, h, w) and v^T dF/dw = golden, whatever came before or between, however arrays lie, whichever "
        "record",
        why="Faults that need two circumstances at once pass a suite that asks for one at a time: gradients that are "
        "lost where the state is frozen, a table made in inference mode and reused in training, a window under vmap, "
        "another call before the backward pass.",
        check=partial(check, function),
        # decoding takes one token after the other
        questions=Table(space, long=function.name != "decode", part=_PART.get(function.name, _OF_ENERGIES)),
        needs=frozenset({function.name}),
        dtype=torch.float64,
        premise="the right answer is not that of a layer that does nothing",
        controls=frozenset({"zero", "constant", "random"}),
    )


@statement(lambda check: [_in_every_context(function, check) for function in EVERY])
def holds_in_context(function: Function, caller: Caller, question: InContext) -> Evidence:
    """The function's answer in the question's context; its vector-Jacobian products if arguments record gradients."""
    case, context, name = function.question(question.case, caller.dtype), question.context, function.name
    if recorded := _recorded(context.mode, case, name):
        ask = partial(products_in, context=context)
        evidence = products_are_right(caller, case, function, recorded, ask, slack=underflow(case))
        surrounded = [replace(c, claim=reworded(c.claim, f"{c.claim}: {context}")) for c in evidence.comparisons]
        return replace(evidence, comparisons=surrounded, case=case)
    cases = mapped_cases(caller, case, name) if context.mode == "mapped" else [case]
    answers, changed = answered_in(caller, name, case, context, function.shape(case))
    compared, telling = [unchanged_but(changed, f"its arguments stay as they are: {context}")], False
    for one, answer in zip(cases, answers, strict=True):
        expected, allowed = function.expected(one), function.tolerance(one, caller.dtype) + underflow(one)
        compared.append(Comparison(f"output = right output: {context}", answer, expected, allowed))
        telling |= function.moved(expected, one, allowed)
    return replace(Evidence.of(*compared, telling=telling), case=case)


def _recorded(mode: str, case: Case, name: str) -> tuple[str, ...]:
    """The arguments that record gradients in a mode; none in the others."""
    weights = tuple(case.weights)
    return {
        "x records gradients": ("x",),
        "h records gradients": ("h",),
        "weights record gradients": weights,
        "one weight records gradients": (weights[case.turn(len(weights))],),
        "everything records gradients": tuple(arguments_of(case, name)),
    }.get(mode, ())
