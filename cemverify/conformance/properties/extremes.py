"""The limits of floating-point arithmetic: logits of 1e4, subnormals, long rows, exact ties, zeros."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch

from cemverify.cem.activations import ACTIVATIONS
from cemverify.cem.layers import PreconditionerConfig
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations.faults import Discard
from cemverify.conformance.oracle.budgets import underflow
from cemverify.conformance.oracle.evidence import Comparison, Evidence
from cemverify.conformance.oracle.functions import function_of
from cemverify.conformance.oracle.golden import energy_of
from cemverify.conformance.properties.base import TRIVIAL, Property, case_property
from cemverify.conformance.properties.explanations import AT_TIES, AT_ZERO, IN_LONG_ROWS, Explanation
from cemverify.conformance.questions.cases import Case, Layer
from cemverify.conformance.questions.contexts import MAGNITUDES, with_every_d, with_every_magnitude
from cemverify.conformance.questions.spaces import Space

_LARGE = 1e4
_BEYOND = 1e12  # here a finite number in place of minus infinity is no longer among the lowest scores
_LONG = 160  # tokens: beyond the blocks of 16, 32, 64 and 128 that kernels work in
_SUBNORMAL = 2.0**-1040

_WAVE = 0.125  # the largest number of the tokens that fill a long row

Prepare = Callable[[Case], Case]
Premise = Callable[[Case], bool]

_AT_EVERY_MAGNITUDE = Explanation(
    formula="update and energy = golden, at arguments of every magnitude, of either sign",
    why="Formulas for exp, log and softplus switch branches. Around each switch there is a range where a naive one "
    "loses its digits.",
)
_AT_LARGE_NUMBERS = Explanation(
    formula="update and energy = golden, at arguments of 1e4",
    why="exp overflows at 709, and at 89 in float32. Trained models do reach such logits, and infinity minus "
    "infinity is NaN.",
)
_AT_SUBNORMAL_STATES = Explanation(
    formula="update at subnormal x = golden",
    why="A division by a norm or a maximum that is nearly zero gives NaN or noise.",
)


def properties() -> Iterator[Property]:
    """Updates and energies at the limits of arithmetic, made from ordinary cases."""
    every_activation = {"activation": tuple(ACTIVATIONS)}
    with_alibi = Space("attention", choices={"position": ("none", "alibi")}, textures=("plain",))
    with_diagonal = Space("attention", choices={"diagonal": ("none", "shared")}, textures=("plain",))
    bent = Space("mlp", choices=every_activation, textures=("plain",))
    at_x, beyond = frozenset({"identity", "random"}), "a pre-activation exceeds 5000, and the {} is not zero"
    logits = (_AT_LARGE_NUMBERS, "at logits of 1e4", _with_large_logits, with_alibi, "a logit exceeds 5000")
    of_the_mlp = "Eq. 7; docs/mathematics.md §3"
    steep = (of_the_mlp, _AT_LARGE_NUMBERS, "at pre-activations of 1e4", _with_large_preactivations, bent)
    where = "at pre-activations of every magnitude"
    walked = (of_the_mlp, _AT_EVERY_MAGNITUDE, where, with_every_magnitude, bent)
    tiny = (_AT_SUBNORMAL_STATES, "at subnormal x", lambda case: replace(case, x=_SUBNORMAL * case.x))
    yield _property(
        "attention/large-logits",
        "At logits of 1e4 and 1e12, where exp overflows, the update is the gradient step.",
        "docs/mathematics.md §16",
        *logits,
        within=_reaches(_largest_logit, _LARGE),
        telling=lambda _: True,
    )
    yield _property(
        "attention/subnormal-states",
        "Where x is subnormal, attention is uniform and nothing is divided by zero.",
        "Eq. 1",
        *tiny,
        Space("attention", choices={"norm": ("none", "scalar")}, textures=("plain",)),
        controls=at_x,
        within=_has_a_state,
    )
    yield _property(
        "attention/long-row",
        "A token that dominates a long row is read by every later token, across block boundaries.",
        "Eq. 1 (sum over j <= i)",
        IN_LONG_ROWS,
        "in a long row",
        _with_a_long_row,
        Space("attention", choices={"position": ("none", "alibi", "rotary")}, textures=("plain",), batch=1),
        controls=frozenset({"identity", "zero", "random", "shuffled"}),
        within=lambda case: float(case.h.abs().max()) > _WAVE,  # a token is larger than all that follow
    )
    yield _property(
        "attention/exact-ties",
        "Where x is zero, all logits are equal and every token reads the mean of its past.",
        "Eq. 1",
        AT_TIES,
        "at x = 0",
        lambda case: replace(case, x=torch.zeros_like(case.x)),
        replace(with_diagonal, tokens=2),
        controls=frozenset({"identity", "constant", "random", "shuffled"}),
    )
    for source, space in (
        ("Eq. 1 (beta = A h)", replace(with_diagonal, steps=(1, 2))),
        ("Eq. 7 (gamma = W h)", replace(bent, steps=(1, 2))),
    ):
        yield _property(
            f"{space.layer}/zero-memory",
            "If the memory is zero, the update is zero.",
            source,
            AT_ZERO,
            "at h = 0",
            lambda case: replace(case, h=torch.zeros_like(case.h)),
            space,
            "x is not zero",
            controls=frozenset({"zero", "constant", "random"}),
            telling=_has_a_state,
        )
    yield _property(
        "mlp/large-preactivations",
        "At pre-activations of 1e4, where exp overflows, the update is the gradient step, for every activation.",
        *steep,
        beyond.format("update"),
        within=_reaches(_largest_preactivation, _LARGE),
    )
    yield _property(
        "mlp/every-magnitude",
        "At pre-activations of any size from 0.01 to 1460 the update is the gradient step, for every activation.",
        *walked,
        within=_reaches(_largest_preactivation, max(MAGNITUDES)),
    )
    yield _property(
        "mlp/subnormal-states",
        "Where x is subnormal, the update is the one at zero and nothing is divided by zero.",
        "Eq. 7",
        *tiny,
        replace(bent, choices={"activation": ("sigmoid", "softplus"), "norm": ("none", "scalar")}),
        controls=at_x,
        within=_has_a_state,
    )
    kinds = tuple(PreconditionerConfig(kind) for kind in ("diagonal", "low-rank-printed"))
    layers: tuple[Layer, ...] = ("attention", "mlp")
    for layer in layers:
        space = Space(layer, preconditioners=kinds, textures=("plain",))
        yield _property(
            f"{layer}/large-preconditioner",
            "Where an entry of d is 1e4, so that its exp overflows, the update is the gradient step.",
            "Eq. 12, 13 (softplus)",
            _AT_LARGE_NUMBERS,
            "at d of 1e4",
            lambda case: _rescaled(case, "P_d", float(case.weights["P_d"].abs().amax())),
            space,
            "an entry of d exceeds 5000, and the update is not zero",
            within=_reaches(lambda case: float(case.weights["P_d"].amax()), _LARGE),
            needs={f"preconditioner:{kind.kind}" for kind in kinds},
        )
        if layer == "mlp":  # other activations are 0 at x = 0, and so is their update
            space = replace(space, choices={"activation": ("sigmoid", "softplus")})
        yield _property(
            f"{layer}/preconditioner-every-magnitude",
            "Where x is zero, so that nothing hides a small update, and entries of d have any size from 0.01 to 1460"
            " and either sign, the update is the gradient step.",
            "Eq. 12, 13 (softplus)",
            _AT_EVERY_MAGNITUDE,
            "at d of every magnitude",
            with_every_d,
            space,
            needs={f"preconditioner:{kind.kind}" for kind in kinds},
        )
    yield _property(
        "attention/energy-large-logits",
        "At logits of 1e4 and 1e12 the stated energy is finite and correct.",
        "Eq. 1",
        *logits,
        within=_reaches(_largest_logit, _LARGE),
        function="attention_energy",
    )
    yield _property(
        "mlp/energy-every-magnitude",
        "At pre-activations of every size from 0.01 to 1460 the stated energy is correct, for every activation.",
        *walked,
        "the energy is not zero",
        within=_reaches(_largest_preactivation, max(MAGNITUDES)),
        function="mlp_energy",
    )
    yield _property(
        "mlp/energy-large-preactivations",
        "At pre-activations of 1e4 the stated energy is finite and correct, for every activation.",
        *steep,
        beyond.format("energy"),
        within=_reaches(_largest_preactivation, _LARGE),
        function="mlp_energy",
    )


def _property(
    name: str,
    claim: str,
    source: str,
    explanation: Explanation,
    where: str,
    prepare: Prepare,
    space: Space,
    premise: str = "the update is not zero",
    *,
    within: Premise = lambda _: True,
    telling: Premise | None = None,
    function: str | None = None,
    needs: Iterable[str] = (),
    controls: frozenset[str] = TRIVIAL - {"shuffled"},
) -> Property:
    """A property of cases that are made extreme, with an absolute tolerance of the update for underflow.

    Args:
        where: how extreme they are. within: whether a case is that extreme; one with zeros cannot be made so.
            telling: whether a case is telling; None for: the right answer differs from that of doing nothing.
    """
    asked = function_of(function or space.layer)
    compared = f"stated energy {where} = energy" if asked.is_energy else f"update {where}"

    def check(caller: Caller, case: Case) -> Evidence:
        case = prepare(case.to(torch.float64))
        if not within(case):
            raise Discard("outside the premise: zeros cannot be made extreme")
        start, expected = asked.start(case), asked.expected(case)
        tolerance = asked.tolerance(case, torch.float64) + (0.0 if asked.is_energy else underflow(case))
        comparison = Comparison(compared, caller.answer(asked.name, case) - start, expected - start, tolerance)
        tells = asked.moved(expected, case, tolerance) if telling is None else telling(case)
        return replace(Evidence.of(comparison, telling=tells), case=case)

    return case_property(
        f"extremes/{name}",
        claim=claim,
        source=source,
        **explanation,
        check=check,
        space=space,
        needs={"start", *needs},
        function=function,
        dtype=torch.float64,
        premise=premise,
        controls=controls,
    )


# --- extreme cases ----------------------------------------------------------------------------------


def _with_large_logits(case: Case) -> Case:
    return _rescaled(case, "W_K", _largest_logit(case), _LARGE if case.turn(3) else _BEYOND)


def _with_large_preactivations(case: Case) -> Case:
    return _rescaled(case, "V", _largest_preactivation(case))


def _rescaled(case: Case, name: str, largest: float, to: float = _LARGE) -> Case:
    """Scales a weight by a power of two so that its largest product is about 1e4, or another given size."""
    factor = 2.0 ** round(math.log2(to / largest)) if largest > 0 else 1.0
    return replace(case, weights={**case.weights, name: factor * case.weights[name]})


def _reaches(largest: Callable[[Case], float], size: float) -> Premise:
    """Whether the largest number of a case is at least half that size."""
    return lambda case: largest(case) >= size / 2


def _has_a_state(case: Case) -> bool:
    return bool((case.x != 0).any())


def _largest_logit(case: Case) -> float:
    keys = energy_of(case).remember(case.h).keys
    queries = torch.einsum("bjd,krd->bkjr", case.x, case.weights["W_Q"])
    return float((queries @ keys.mT).tril().abs().amax()) / case.attention.tau


def _largest_preactivation(case: Case) -> float:
    return float(torch.einsum("bjd,md->bjm", case.x, case.weights["V"]).abs().amax())


def _with_a_long_row(case: Case) -> Case:
    """The case's tokens, followed by many small ones, so that the second token, if any, stands out."""
    B, J, D = case.x.shape
    wave = torch.sin(torch.arange(B * _LONG * D, dtype=torch.float64)).reshape(B, _LONG, D) * _WAVE
    x, h = wave.clone(), wave.flip(1).clone()
    x[:, :J], h[:, :J] = case.x, case.h
    return replace(case, x=x, h=h)
