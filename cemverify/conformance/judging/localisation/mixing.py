"""Batch rows and tokens that change an output that they must not change.

This is tested before anything else, because every other experiment would mistake such a fault for its own.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from cemverify.conformance.judging.localisation.bench import Bench, Undecided, WrongPart, expected_update, only_rows
from cemverify.conformance.questions.cases import Case


def mixing_tokens(bench: Bench, case: Case) -> WrongPart | None:
    """The part that lets rows or tokens read what they must not read.

    Raises:
        Undecided: two identical calls gave two answers.
    """
    for candidate in (case, *bench.dense(case.layer_config, batch=2)):
        before, again = bench.got(candidate), bench.got(candidate)
        if before is None or again is None:
            continue
        if not torch.equal(before, again):
            raise Undecided
        # roundoff grows with a wrong answer; a change that half of the error's digits do not show is not its cause
        error = (before - expected_update(candidate)).abs().amax()
        tolerance = 2 * bench.tolerance(candidate) + math.sqrt(torch.finfo(bench.caller.dtype).eps) * error
        part = (
            _batch_rows(bench, candidate, before, tolerance)
            or _later_tokens(bench, candidate, before, tolerance)
            or _order_of_tokens(bench, candidate, before, tolerance)
        )
        if part is not None:
            return part
    return None


def _batch_rows(bench: Bench, case: Case, before: Tensor, tolerance: Tensor) -> WrongPart | None:
    if case.x.shape[0] < 2:
        return None
    alone = bench.got(only_rows(case, [0]))
    if alone is not None and bool(((alone - before[:1]).abs() > tolerance[:1]).any()):
        return WrongPart("batch rows", "the first batch row gives one result alone and another in the batch")
    return None


def _later_tokens(bench: Bench, case: Case, before: Tensor, tolerance: Tensor) -> WrongPart | None:
    for i in range(1, case.x.shape[1]):
        for name in ("x", "h") if bench.offers("start") else ("both",):
            after = bench.got(_with_other_tail(case, name, i))
            if after is None or not bool(((after - before)[:, :i].abs() > tolerance[:, :i]).any()):
                continue
            if case.layer == "mlp":
                return WrongPart("token mixing", f"changing token {i} changes the outputs before it")
            if name == "x":
                return WrongPart("softmax", f"changing x at token {i} changes the outputs before it")
            return WrongPart("mask", f"changing the memory at token {i} changes the outputs before it")
    return None


def _order_of_tokens(bench: Bench, case: Case, before: Tensor, tolerance: Tensor) -> WrongPart | None:
    if case.layer != "mlp" or case.x.shape[1] < 2:
        return None
    flipped = bench.got(replace(case, x=case.x.flip(1), h=case.h.flip(1)))
    if flipped is not None and bool(((flipped.flip(1) - before).abs() > tolerance).any()):
        return WrongPart("token mixing", "reordering the tokens changes their outputs")
    return None


def _with_other_tail(case: Case, name: str, i: int) -> Case:
    """The case with other tokens from the i-th on, in its states, its memory or both."""

    def changed(tokens: Tensor) -> Tensor:
        other = tokens.clone()
        other[:, i:] = 3.0 - 2.0 * other[:, i:].flip(1)
        return other

    x = case.x if name == "h" else changed(case.x)
    return replace(case, x=x, h=case.h if name == "x" else changed(case.h))
