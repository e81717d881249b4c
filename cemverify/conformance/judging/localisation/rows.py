"""One row at a time: if all rows of the outer weight but one are 0, the update is that row times a number.

The direction shows whether the outer projection is right; the number shows what makes its length. If all rows are
right one by one and wrong together, the sum over them is to blame.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cemverify.conformance.judging.localisation.bench import Bench, WrongPart, with_weights
from cemverify.conformance.questions.cases import Case

Row = tuple[Case, tuple[int, ...]]  # a case of one token, and the index of a row: (k, r) of W_Q, (m,) of V


@dataclass(frozen=True)
class LinearPath:
    """How memory becomes an update: an inner weight turns it into numbers, which multiply an outer weight's rows."""

    along: str  # the outer weight, along whose rows updates point
    inner: str  # the weight that makes their lengths
    # the right number for a row, from the case in which that row alone is not 0
    length: Callable[[Case, tuple[int, ...]], Tensor]
    # the update, over the step size, with the inner weight in place of the outer one: (D,)
    exchanged: Callable[[Case, tuple[int, ...]], Tensor]
    # outer, middle, sum: the names of the three parts
    outer: str
    middle: str
    sum: str


@dataclass(frozen=True)
class _Probe:
    """What one row alone showed."""

    case: Case  # in which that row alone is not 0
    row: tuple[int, ...]
    number: float  # the update along the row, divided by the row
    ratio: float  # the number divided by the right one
    noise: float  # how far off roundoff may put the ratio
    astray: bool  # whether the update points elsewhere
    exchanged: bool  # whether the update is that with the inner weight in place of the outer one


def wrong_along_rows(bench: Bench, path: LinearPath, rows: Sequence[Row]) -> WrongPart | None:
    """The part of a linear path that is wrong, as single rows of its outer weight show.

    Args:
        rows: of cases with one token, on which the implementation is wrong.
    """
    probes = []
    for case, row in rows:
        weight = torch.zeros_like(case.weights[path.along])
        weight[row] = case.weights[path.along][row]
        alone = with_weights(case, {path.along: weight})
        answer = bench.got(alone)
        if answer is None:
            return None
        if (probe := _probe(bench, path, alone, row, answer)) is not None:
            probes.append(probe)
    if not probes:
        return None
    if all(probe.astray for probe in probes):
        because = f"with a single non-zero row of {path.along}, the update does not point along that row"
        if all(probe.exchanged for probe in probes):
            because = f"{path.inner} where {path.along} belongs: {because}"
        return WrongPart(path.outer, because)
    if any(probe.astray for probe in probes):
        return None
    noise = max(probe.noise for probe in probes)
    first = probes[0].ratio
    if all(abs(probe.ratio - first) <= 2 * noise for probe in probes):
        return _same_factor(path, first, noise, heads=_heads(probes[0].case))
    return _factors_of_their_own(bench, path, probes, noise)


def _same_factor(path: LinearPath, factor: float, noise: float, heads: int) -> WrongPart:
    """The wrong part if every row gives the same multiple of the right update."""
    if abs(factor + 1) <= noise:
        because = (
            f"every row of {path.along} alone gives minus the right update: the sign is wrong, and it goes uphill"
        )
        return WrongPart("scale of the update", because)
    if abs(factor - 1) <= noise:
        return WrongPart(path.sum, f"each row of {path.along} alone is right, and all of them together are wrong")
    if heads > 1 and abs(factor * heads - 1) <= heads * noise:
        return WrongPart(path.sum, f"each of {heads} heads alone gives {factor:.6g} times the right update")
    return WrongPart(
        "scale of the update", f"every row of {path.along} alone gives {factor:.6g} times the right update"
    )


def _factors_of_their_own(bench: Bench, path: LinearPath, probes: Sequence[_Probe], noise: float) -> WrongPart | None:
    """If rows give different multiples of the right update, what determines their lengths is wrong."""
    if path.inner == "W_K" and any(_is_number_of_another_row(probe) for probe in probes):
        because = f"rows of {path.along} are not paired with the rows of {path.inner} of the same index"
        return WrongPart("linear path", because)
    neither = all(abs(probe.ratio) > noise and abs(probe.ratio - 1) > noise for probe in probes)
    if path.inner == "W" and neither and all(_goes_with_memory(bench, probe) for probe in probes):
        because = "the update is along V and proportional to W h, so sigma(V x) is wrong"
        return WrongPart("activation", because)
    if all(abs(probe.ratio - 1) > max(noise, 1e-6) for probe in probes):
        because = f"the update points along the row of {path.along}, but its length is not what {path.inner} gives"
        return WrongPart(path.middle, because)
    return WrongPart("linear path", f"some rows of {path.along} alone are right, others are wrong")


def _probe(bench: Bench, path: LinearPath, case: Case, row: tuple[int, ...], answer: Tensor) -> _Probe | None:
    """What an answer (1, 1, D) to a case of one row shows; None if roundoff hides it."""
    step_size, tolerance = case.layer_config.step_size, bench.tolerance(case)[0, 0]
    update, direction = answer[0, 0] / step_size, case.weights[path.along][row]  # (D,)
    right, squared = abs(length := float(path.length(case, row))), float(direction @ direction)
    if squared == 0 or right <= 1e4 * float(tolerance.max()):
        return None
    number = float(update @ direction) / squared
    other = path.exchanged(case, row)
    return _Probe(
        case,
        row,
        number,
        ratio=number / length,
        noise=8 * float(tolerance.max()) / right / math.sqrt(squared),
        astray=bool(((update - number * direction).abs() > 4 * tolerance / step_size).any()),
        exchanged=bool(((update - other).abs() <= 4 * tolerance / step_size + 1e-12 * other.abs().max()).all()),
    )


def _heads(case: Case) -> int:
    return case.attention.heads if case.layer == "attention" else 1


def _is_number_of_another_row(probe: _Probe) -> bool:
    """Whether a wrong number is the one that some other row of W_K makes from the memory."""
    made = probe.case.weights["W_K"] @ probe.case.h[0, 0]  # (K, R)
    return abs(probe.ratio - 1) > 1e-6 and bool(((made - probe.number).abs() <= 1e-9 * made.abs()).any())


def _goes_with_memory(bench: Bench, probe: _Probe) -> bool:
    """Whether a hidden unit's number is proportional to W[m] . h as the memory changes."""
    case = probe.case
    other = replace(case, h=3.0 - 2.0 * case.h)
    answer, v = bench.got(other), case.weights["V"][probe.row]
    if answer is None:
        return False
    before, after = (float(case.weights["W"][probe.row] @ c.h[0, 0]) for c in (case, other))
    now = float(answer[0, 0] / case.layer_config.step_size @ v) / float(v @ v)
    return abs(now * before - probe.number * after) <= 1e-9 * (abs(now * before) + abs(probe.number * after))
