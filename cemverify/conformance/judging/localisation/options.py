"""Switches options off one after another while the case still fails. Those that cannot be switched off
are to blame."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cemverify.cem.layers import AttentionConfig, PreconditionerConfig
from cemverify.conformance.judging.localisation.bench import (
    Bench,
    WrongPart,
    at_zero,
    each_token,
    equal,
    expected_update,
    largest_logit,
    with_logits,
    with_weights,
)
from cemverify.conformance.judging.localisation.usual import usual_rotary
from cemverify.conformance.oracle.golden import golden
from cemverify.conformance.questions.cases import Case

_THRESHOLD = 20.0  # torch's default


def needed_options(bench: Bench, case: Case) -> tuple[Case, list[str]]:
    """The case without the options that its failure does not need, and the names of the options that it needs.

    One pass is not enough: an option may become dispensable only after another one is off. An option that makes
    scores large is not to blame if scores as large, or four times as large, are wrong without it.
    """
    while True:
        needed = []
        for name, simpler in _off(bench, case):
            dense = [c for other in simpler for c in bench.dense(other.layer_config)]
            tried = itertools.chain(simpler, dense, _as_large(case, (*simpler, *dense)))
            failing = next((other for other in tried if bench.wrong(other)), None)
            if failing is not None:
                case = failing
                break
            needed.append(name)
        else:
            return case, needed


def _off(bench: Bench, case: Case) -> Iterator[tuple[str, list[Case]]]:
    """The options that are on, each with the cases without it."""
    config = case.layer_config
    if config.steps > 1:
        yield "step count", [case.having(steps=1), *_steps_alone(bench, case)]
    if config.norm != "none":
        yield "norm", [_without(case, ("gain",), norm="none")]
    if config.preconditioner.kind != "identity":
        plain = {"preconditioner": PreconditionerConfig()}
        yield "preconditioner", [_without(case, ("P_d", "P_U", "P_V"), **plain)]
    if isinstance(config, AttentionConfig):
        if config.diagonal != "none":
            yield "diagonal", [_without(case, ("diagonal",), diagonal="none")]
        if config.position != "none":
            name = "rotary" if config.position == "rotary" else "bias"
            yield name, [_without(case, ("to_self", "to_others"), position="none")]
        usual = math.sqrt(config.R)
        if bench.offers("temperature") and config.tau not in (1.0, usual):
            yield "temperature", [case.having(temperature=tau) for tau in (1.0, usual)]
    if config.step_size != 1.0:
        yield "step size", [case.having(step_size=1.0)]


def _as_large(case: Case, cases: Sequence[Case]) -> Iterator[Case]:
    """Cases of attention with scores of the size of a case's, and four times as large."""
    for factor in (1.0, 4.0) if case.layer == "attention" else ():
        yield from (with_logits(other, factor * largest_logit(case)) for other in cases)


def _steps_alone(bench: Bench, case: Case) -> list[Case]:
    """Each later step of the trajectory as a single step, from the state reached before it."""
    if not bench.offers("start"):
        return []
    reached = [golden(case.having(steps=t)) for t in range(1, case.layer_config.steps)]
    return [bench.rounded(replace(case, x=x).having(steps=1)) for x in reached]


def _without(case: Case, weights: tuple[str, ...], **options: Any) -> Case:
    weights_left = {name: w for name, w in case.weights.items() if name not in weights}
    return replace(case.having(**options), weights=weights_left)


def wrong_in_options(bench: Bench, case: Case, needed: Sequence[str]) -> WrongPart | None:
    """The option that the failure needs, and which side of it is wrong."""
    if len(needed) > 2:
        return None
    on = " and ".join(_ON.get(name, f"a {name}") for name in needed)
    if len(needed) == 2:
        because = f"with all other options off, it is wrong with {on} together, and right without either of the two"
        return WrongPart(" with ".join(needed), because)
    (name,) = needed
    side = _SIDES.get(name)
    because = f"with all other options off, it is wrong with {on}, and right without it"
    return (side and side(bench, case)) or WrongPart(name, because)


# Options that are on, as phrases.
_ON = {"step count": "T > 1", "rotary": "rotary positions", "step size": "a step size other than 1"}


def _diagonal(bench: Bench, case: Case) -> WrongPart | None:
    """A single token has attention weight 1, so its update is that of the value path alone."""
    if case.attention.diagonal == "per-head":
        same = case.weights["diagonal"][:1].expand_as(case.weights["diagonal"]).contiguous()
        if not bench.wrong(with_weights(case, {"diagonal": same})):
            return WrongPart("diagonal", "it is right if all heads have the same diagonal, and wrong if they differ")
    cases = [case, *bench.dense(case.attention)]
    if any(bench.wrong(token) for token in (*each_token(case), *bench.dense(case.attention, tokens=1))):
        if _is_another_diagonal(bench, cases):
            return WrongPart("diagonal", "it is right for another diagonal, in scores and values alike")
        return WrongPart("diagonal, value path", "a single token, whose attention weight is 1, is already wrong")
    if bench.offers("start") and any(bench.wrong(at_zero(c)) for c in cases):
        return WrongPart("diagonal, value path", "it is wrong at x = 0, where every score is 0")
    if any(bench.wrong(c) for c in cases):
        return WrongPart(
            "diagonal, score", "single tokens are right, so the values are right; rows of several tokens are wrong"
        )
    return None


def _is_another_diagonal(bench: Bench, cases: Sequence[Case]) -> bool:
    """Whether a multiple of the diagonal, found from one token without W_Q, explains every answer."""
    for case in cases:
        alone = with_weights(next(iter(each_token(case))), {"W_Q": torch.zeros_like(case.weights["W_Q"])})
        got, right = bench.got(alone), expected_update(alone)
        if got is None or float(right.square().sum()) == 0:
            return False
        factor = float((got * right).sum() / right.square().sum())
        if not bench.explained(case, with_weights(case, {"diagonal": factor * case.weights["diagonal"]})):
            return False
    return True


def _preconditioner(bench: Bench, case: Case) -> WrongPart | None:
    """torch's F.softplus(d) is d above 20, where softplus(d) is d + log(1 + exp(-d))."""
    d = case.weights.get("P_d")
    if d is None or not bool((d > _THRESHOLD).any()):
        return None
    lowered = torch.where(d > _THRESHOLD, d + torch.log1p(-torch.exp(-d)), d)  # whose softplus is d
    if not bench.explained(case, with_weights(case, {"P_d": lowered})):
        return None
    because = (
        f"it is right if softplus(d) = d above {_THRESHOLD:g}, which is the threshold of torch's F.softplus: "
        "logaddexp(d, 0) has none"
    )
    return WrongPart("preconditioner", because)


def _bias(bench: Bench, case: Case) -> WrongPart | None:
    if bench.offers("start") and bench.wrong(at_zero(case)):
        return WrongPart("bias", "it is wrong at x = 0, where every score is 0 and the bias alone decides")
    return None


def _rotary(bench: Bench, case: Case) -> WrongPart | None:
    four = replace(case.attention, dim=8, heads=2, head_dim=4, temperature=None)  # two features make one pair
    if (usual := usual_rotary(bench, [case, *bench.dense(four)])) is not None:
        return usual
    if not bench.offers("start"):
        return None
    if any(bench.wrong(at_zero(c)) for c in (case, *bench.dense(case.attention))):
        return WrongPart("rotary, value path", "it is wrong at x = 0, where every score is 0")
    return WrongPart("rotary, score", "it is right at x = 0, where every score is 0")


def _recursion(bench: Bench, case: Case) -> WrongPart | None:
    """Whether another number of steps, or another memory, explains the output."""
    steps = case.layer_config.steps
    cases = [bench.rounded(c) for c in (case, *bench.dense(case.layer_config)) if bench.wrong(c)]
    answers = [(c, bench.got(c)) for c in cases]
    for other in [n for n in range(1, steps + 3) if n != steps]:
        if all(equal(got, expected_update(c.having(steps=other)), bench.tolerance(c)) for c, got in answers):
            return WrongPart("step count", f"with T = {steps} it returns the result of {other} steps")
    if all(equal(got, _reading_its_own_output(c) - c.x, bench.tolerance(c)) for c, got in answers):
        return WrongPart(
            "memory", "it returns the result of a layer that reads its own output as memory at every step"
        )
    return WrongPart(
        "recursion", "single steps are right, even from each state that is reached, but several are wrong"
    )


def _reading_its_own_output(case: Case) -> Tensor:
    x, h = case.x, case.h
    for _ in range(case.layer_config.steps):
        x = h = golden(replace(case, x=x, h=h).having(steps=1))
    return x


# Options for which a finer experiment can tell what about them is wrong.
_SIDES: dict[str, Callable[[Bench, Case], WrongPart | None]] = {
    "diagonal": _diagonal,
    "bias": _bias,
    "rotary": _rotary,
    "preconditioner": _preconditioner,
    "step count": _recursion,
}
