"""The bare attention layer: residual, values, mask, temperature and scores, each tested by its own identity."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cemverify.conformance.judging.localisation.bare import generic, linear_in_memory, residual, swapped
from cemverify.conformance.judging.localisation.bench import (
    Bench,
    WrongPart,
    at_zero,
    each_token,
    equal,
    expected_update,
    largest_logit,
    with_logits,
    with_one_memory,
)
from cemverify.conformance.judging.localisation.rows import LinearPath, wrong_along_rows
from cemverify.conformance.judging.localisation.usual import hides_its_own_key, usual_weights
from cemverify.conformance.questions.cases import Case

_SMALL = 1.0  # size of scores that no clipping, masking or overflow changes
_FEW_TOKENS = 10  # of so few, all subsets are tried
_MOST_TOKENS = 128  # of so many, only subsets of neighbours


def wrong_in_attention(bench: Bench, case: Case) -> WrongPart | None:
    """The part of an attention layer without options that is wrong."""
    case = generic(bench, case)
    dense = list(bench.dense(case.attention))
    cases = [case, *dense]
    if (hidden := hides_its_own_key(bench, cases)) is not None:
        return hidden
    if (wrong := residual(bench, cases) or swapped(bench, cases, "W_Q", "W_K")) is not None:
        return wrong
    for experiment in (usual_weights, _temperature, _size):  # in low precision only large scores show a temperature
        if (wrong := experiment(bench, cases)) is not None:
            return wrong
    R = case.attention.R
    three = bench.dense(replace(case.attention, heads=3, dim=3 * R, head_dim=R))  # two may be told apart from one
    singles = [token for c in (*cases, *three) for token in each_token(c) if bench.wrong(token)]
    if singles:
        return _values(bench, singles)
    if bench.offers("start"):
        still = next((c for c in map(at_zero, cases) if bench.wrong(c)), None)
        if still is not None:
            return _uniform_weights(bench, still)
    if any(bench.wrong(with_one_memory(c)) for c in cases):
        return None  # weights that sum to 1 make no difference there, so they alone are not to blame
    if bench.offers("start") and all(bench.wrong(c) for c in dense):
        return WrongPart(
            "score", "it is right for one token and at x = 0, where scores do not matter, and wrong elsewhere"
        )
    return WrongPart(
        "attention weights", "single tokens, whose attention weight is 1, are right; rows of several tokens are wrong"
    )


def _size(bench: Bench, cases: Sequence[Case]) -> WrongPart | None:
    """Whether it is right for small scores: the same cases with smaller states, but the same values."""
    large = [(largest_logit(case), case) for case in cases]
    wrong = [size for size, case in large if bench.wrong(case)]
    if min(wrong, default=0.0) <= _SMALL or any(bench.wrong(with_logits(case, _SMALL)) for _, case in large):
        return None
    because = (
        f"it is wrong where scores reach {min(wrong):.3g}, and right where they are scaled down to {_SMALL:g}: is "
        "the maximum, started at -inf, subtracted before exp, and is nothing clipped or masked by a finite number?"
    )
    return WrongPart("size of the logits", because)


def _values(bench: Bench, singles: Sequence[Case]) -> WrongPart | None:
    """One token, one row r of one head: the update is eta W_Q[r] (W_K[r] . h)."""
    config = singles[0].attention
    few = singles[:4]
    if config.dim < 2 or not all(linear_in_memory(bench, case) for case in few):
        return None  # in one dimension all directions are the same
    rows = [(case, (k, r)) for case in few for k in range(config.heads) for r in range(config.R)]
    return wrong_along_rows(bench, _VALUE_PATH, rows)


_VALUE_PATH = LinearPath(
    along="W_Q",
    inner="W_K",
    length=lambda case, row: case.weights["W_K"][row] @ case.h[0, 0],
    # one token's update with W_K as the output projection: the sum over k and r of W_K[k, r] (W_K[k, r] . h)
    exchanged=lambda case, _: torch.einsum("krd,kre,e->d", case.weights["W_K"], case.weights["W_K"], case.h[0, 0]),
    outer="output projection",
    middle="value path",
    sum="sum over heads",
)


def _uniform_weights(bench: Bench, case: Case) -> WrongPart | None:
    """At x = 0 the update of every token is the mean over the tokens that it sees; this shows which ones they are."""
    tokens = case.x.shape[1]
    answer = bench.got(case) if tokens <= _MOST_TOKENS else None
    if answer is None:
        return None
    tolerance = bench.tolerance(case)
    if _ignores_x(bench, case, answer, tolerance):
        return WrongPart("score", "the update does not depend on x, so the queries do not come from x")
    values = torch.einsum("krd,kre,bje->bjd", case.weights["W_Q"], case.weights["W_K"], case.h)  # (B, J, D)
    seen = []
    for i in range(tokens):
        subset = _seen(i, answer[:, i], case.attention.step_size * values, tolerance[:, i])
        if subset is None:
            if bench.wrong(with_one_memory(case)):
                return None
            return WrongPart(
                "attention weights",
                "at x = 0, where every score is 0, the update of some token is not a mean over tokens",
            )
        seen.append(subset)
    wrong = [i for i, subset in enumerate(seen) if set(subset) != set(range(i + 1))]
    if not wrong:
        return None
    told = range(tokens) if tokens <= _FEW_TOKENS else wrong[:1]
    listed = "; ".join(f"token {i} sees {_listed(seen[i])}" for i in told)
    return WrongPart("mask", f"at x = 0, where every score is 0, {listed}")


def _ignores_x(bench: Bench, case: Case, answer: Tensor, tolerance: Tensor) -> bool:
    """Whether another state, which needs another update, gets the same update."""
    moved = replace(case, x=case.h + 1.0)
    shows = bool(((expected_update(case) - expected_update(moved)).abs() > 10 * tolerance).any())
    elsewhere = bench.got(moved)
    return shows and elsewhere is not None and equal(answer, elsewhere, tolerance)


def _seen(token: int, update: Tensor, values: Tensor, tolerance: Tensor) -> tuple[int, ...] | None:
    """The tokens whose mean of values (B, J, D) equals a token's update (B, D); None if there are none.

    Those that it should see are tried first; then, for few tokens, all subsets, and for more, subsets of neighbours.
    """
    J = values.shape[1]
    if equal(update, values[:, : token + 1].mean(1), tolerance):
        return tuple(range(token + 1))
    if J > _FEW_TOKENS:
        return _seen_in_a_row(token, update, values, tolerance)
    for subset in itertools.chain.from_iterable(itertools.combinations(range(J), n) for n in range(J + 1)):
        mean = values[:, list(subset)].mean(1) if subset else torch.zeros_like(update)
        if equal(update, mean, tolerance):
            return subset
    return None


def _seen_in_a_row(token: int, update: Tensor, values: Tensor, tolerance: Tensor) -> tuple[int, ...] | None:
    """The longest run of neighbours with that mean; one that ends with the token itself comes first."""
    sums = torch.nn.functional.pad(values.cumsum(1), (0, 0, 1, 0))  # (B, J + 1, D)
    for end in (token + 1, *range(1, values.shape[1] + 1)):
        means = (sums[:, end, None] - sums[:, :end]) / torch.arange(end, 0, -1)[:, None]  # (B, end, D)
        fits = ((means - update[:, None]).abs() <= 2 * tolerance[:, None]).all(-1).all(0)  # (end,)
        if bool(fits.any()):
            return tuple(range(int(fits.nonzero()[0]), end))
    return () if equal(update, torch.zeros_like(update), tolerance) else None


def _listed(subset: Sequence[int]) -> str:
    return str(list(subset)) if len(subset) <= _FEW_TOKENS else f"tokens {subset[0]} to {subset[-1]}"


def _temperature(bench: Bench, cases: Sequence[Case]) -> WrongPart | None:
    """Whether another temperature, the same everywhere, explains the outputs."""
    config = cases[0].attention
    K, R, D = config.heads, config.R, config.dim
    usual = math.sqrt(R)
    temperatures = {usual, 1.0, math.sqrt(D), config.tau * math.sqrt(D / R), config.tau**2, 1 / config.tau}
    temperatures |= {config.tau * factor for factor in (2.0, 0.5, math.sqrt(K), 1 / math.sqrt(K), usual, 1 / usual)}
    answers = [(c, bench.got(c)) for c in cases if bench.wrong(c)]
    for tau in sorted(temperatures - {config.tau}):
        if all(equal(got, expected_update(c.having(temperature=tau)), bench.tolerance(c)) for c, got in answers):
            told = f"with tau = {config.tau:.4g} it returns the result for tau = {tau:.4g}"
            if (tau, config.tau) == (math.sqrt(D), usual):
                told += f": the square root of {D}, the model dimension, not of {R}, the head dimension"
            return WrongPart("temperature", told)
    return None
