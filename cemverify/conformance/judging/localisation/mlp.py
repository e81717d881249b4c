"""The bare MLP: the activation if another one is right; else one unit m, eta V[m] (W[m] . h) sigma(V[m] . x)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cemverify.cem.activations import ACTIVATIONS
from cemverify.conformance.judging.localisation.bare import generic, linear_in_memory, residual, swapped
from cemverify.conformance.judging.localisation.bench import Bench, WrongPart, equal, expected_update, with_weights
from cemverify.conformance.judging.localisation.rows import LinearPath, wrong_along_rows
from cemverify.conformance.questions.cases import Case

_UNITS = 4  # hidden units that are examined one by one; more are many


def wrong_in_mlp(bench: Bench, case: Case) -> WrongPart | None:
    """The part of an MLP without options that is wrong."""
    if (many := _many_units(bench, case)) is not None:
        return many
    case = generic(bench, case)
    config = case.mlp
    several = [case, *bench.dense(config)]
    if (part := residual(bench, several) or swapped(bench, several, "V", "W")) is not None:
        return part
    for other in ACTIVATIONS:
        if other != config.activation and all(bench.explained(c, c.having(activation=other)) for c in several):
            return WrongPart("activation", f"with {config.activation} it returns the result for {other}")
    dense = [c for c in bench.dense(config, tokens=1) if bench.wrong(c)]
    activations = [a for a in ("silu", "relu", "tanh", "identity", "gelu", "sigmoid") if a != config.activation]
    activations = [a for a in activations if bench.offers(f"activation:{a}")][:3]
    sound = [a for a in activations if not any(bench.wrong(c.having(activation=a)) for c in (case, *dense))]
    if activations and sound == activations:
        return WrongPart(
            "activation", f"with {config.activation} it is wrong, with {', '.join(activations)} it is right"
        )
    if not dense or sound or config.dim < 2:
        return None
    if not all(linear_in_memory(bench, c) for c in dense):
        return _exchanged(bench, dense)
    rows = [(c, (m,)) for c in dense for m in range(min(config.hidden, _UNITS))]
    return wrong_along_rows(bench, _GATE, rows)


def _many_units(bench: Bench, case: Case) -> WrongPart | None:
    """Whether some number of hidden units is right, whichever they are, and one more is wrong."""
    right, wrong = _UNITS, case.mlp.hidden
    if wrong <= right or bench.wrong(_units(case, 0, right)):
        return None
    while wrong - right > 1:
        middle = (right + wrong) // 2
        right, wrong = (right, middle) if bench.wrong(_units(case, 0, middle)) else (middle, wrong)
    if any(bench.wrong(_units(case, *others)) for others in ((1, wrong), (right, wrong))):
        return None
    return WrongPart("number of hidden units", f"{right} hidden units are right, {wrong} are wrong")


def _units(case: Case, first: int, end: int) -> Case:
    few = {name: case.weights[name][first:end] for name in ("V", "W")}
    return with_weights(case.having(hidden=end - first), few)


def _made_by_unit(case: Case, row: tuple[int, ...]) -> Tensor:
    """(W[m] . h) sigma(V[m] . x), from the right update of that unit alone, which is along V[m]."""
    update = expected_update(case)[0, 0] / case.mlp.step_size
    v = case.weights["V"][row]
    return (update @ v) / (v @ v)


_GATE = LinearPath(
    along="V",
    inner="W",
    length=_made_by_unit,
    exchanged=lambda case, row: _made_by_unit(case, row) * case.weights["W"][row],  # one unit's, along its row of W
    outer="down projection",
    middle="gate",
    sum="sum over units",
)


def _exchanged(bench: Bench, cases: Sequence[Case]) -> WrongPart | None:
    """Whether the activation goes to W instead of V, or the update returns through W instead of V."""
    x = "x" if bench.offers("start") else "h"  # the name in the author's code
    gate = f"V and W are exchanged: it applies the activation to W h instead of V {x}"
    down = "W where V belongs: it must be the transpose of the gate projection, V"
    answers = [(case, bench.got(case)) for case in cases]
    for name, because, update in (("gate", gate, _activated_memory), ("down projection", down, _through_W)):
        if all(equal(got, case.mlp.step_size * update(case), bench.tolerance(case)) for case, got in answers):
            return WrongPart(name, because)
    return None


def _activated_memory(case: Case) -> Tensor:
    """V^T ((V x) sigma(W h)), (B, J, D)."""
    V, W = case.weights["V"], case.weights["W"]
    return ((case.x @ V.T) * ACTIVATIONS[case.mlp.activation].sigma(case.h @ W.T)) @ V


def _through_W(case: Case) -> Tensor:
    """W^T ((W h) sigma(V x)), (B, J, D)."""
    V, W = case.weights["V"], case.weights["W"]
    return ((case.h @ W.T) * ACTIVATIONS[case.mlp.activation].sigma(case.x @ V.T)) @ W
