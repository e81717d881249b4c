"""What the bare layers share: a generic case, the residual connection, exchanged weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from cemverify.cem.layers import AttentionConfig
from cemverify.conformance.judging.localisation.bench import Bench, WrongPart, equal, expected_update, with_weights
from cemverify.conformance.questions.cases import Case

_ROUNDINGS = 32  # roundings of float32, of numbers as large as the inputs and outputs
_NEAR = 1e-5


def generic(bench: Bench, case: Case) -> Case:
    """A dense case with generic sizes, if one of these fails too; otherwise the case itself."""
    config = case.layer_config
    if isinstance(config, AttentionConfig):
        sizes: dict[str, Any] = {"dim": 6, "heads": 2, "head_dim": 3}
        if config.temperature == math.sqrt(config.R):
            sizes["temperature"] = math.sqrt(3)
    else:
        sizes = {"dim": 5, "hidden": 4}
    return next((dense for dense in bench.dense(replace(config, **sizes)) if bench.wrong(dense)), case)


def in_float32(bench: Bench, case: Case) -> WrongPart | None:
    """Whether it is right to the roundoff of float32 and no further.

    Roundoff differs between arguments, however near they are. A small fault of any other kind stays the same.
    """
    if bench.caller.dtype != torch.float64:
        return None
    unit, differs = torch.finfo(torch.float32).eps, False
    for each in (case, *bench.dense(case.layer_config)):
        got = bench.got(each)
        if got is None:
            return None
        error = got - expected_update(each)
        size = 1 + float(torch.maximum(each.x.abs(), got.abs()).max())
        if float(error.abs().max()) > _ROUNDINGS * unit * size:
            return None
        if not bool((error.abs() > bench.tolerance(each)).any()):
            continue
        near = replace(each, x=each.x * (1 + _NEAR), h=each.h * (1 + _NEAR))
        there = bench.got(near)
        if there is None or float((there - expected_update(near) - error).abs().max()) < float(error.abs().max()) / 4:
            return None
        differs = True
    because = (
        "it is right only to the roundoff of float32: something inside computes in float32, as "
        "softmax(..., dtype=torch.float32) does. Keep the dtype of the arguments there, or run with --dtype float32"
    )
    return WrongPart("precision", because) if differs else None


def residual(bench: Bench, cases: Sequence[Case]) -> WrongPart | None:
    """With zero weights the update must be zero."""
    for case in cases:
        still = replace(case, weights={name: torch.zeros_like(w) for name, w in case.weights.items()})
        got = bench.got(still)
        if got is None:
            continue
        if torch.equal(got + still.x, still.x.float().double()) and bool((got != 0).any()):
            return WrongPart("dtype", "with zero weights, x is returned rounded to float32")
        if not equal(got, torch.zeros_like(got), bench.tolerance(still)):
            return WrongPart("residual", "with zero weights the update must be zero, but x changes")
    return None


def swapped(bench: Bench, cases: Sequence[Case], first: str, second: str) -> WrongPart | None:
    """Whether exchanging two weights makes it right."""
    for case in cases:
        other = with_weights(case, {first: case.weights[second], second: case.weights[first]})
        alike = equal(expected_update(case), expected_update(other), bench.tolerance(case) + bench.tolerance(other))
        if alike or not bench.explained(case, other):
            return None
    return WrongPart(f"{first} and {second}", f"exchanging {first} and {second} makes it right")


def linear_in_memory(bench: Bench, case: Case) -> bool:
    """Whether one token's update is linear in the memory, at fixed x; otherwise no row shows anything."""
    if not bench.offers("start"):
        return False
    other = replace(case, h=3.0 - 2.0 * case.h)
    both = replace(case, h=case.h + other.h)
    answers = [bench.got(c) for c in (case, other, both)]
    if any(answer is None for answer in answers):
        return False
    first, second, summed = (answer for answer in answers if answer is not None)
    tolerance = bench.tolerance(case) + bench.tolerance(other) + bench.tolerance(both)
    return bool(((first + second - summed).abs() <= tolerance).all())
