"""What the recorded calls of a counterexample should have given and did not.

Only demands that the calls did not meet are kept, so that the script beside a counterexample fails where the property
did, and passes once the fault is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cemverify.conformance.judging.verdicts import Record
from cemverify.conformance.oracle.evidence import Compared
from cemverify.conformance.questions.saving import Saved, SavedCall, Tree


def demands_of(record: Record, saved: Saved) -> list[dict[str, Any]]:
    """For each call, the demands that it did not meet, in the words that `standalone` knows.

    refuse    the input is bad and must be refused
    shape     the shape of the answer, all numbers of which must be finite
    dtype     the first argument's
    expected  the right answer, within its budget
    norm      the right answer in norm: of the error at index `at`, or of all of it if (), at most `most`
    keeps     its arguments must be unchanged
    repeats   the same bits as an earlier call, given by its number
    """
    kind = None if record.key is None else record.key.kind
    demands: list[dict[str, Any]] = []
    for i, call in enumerate(saved.calls):
        demand: dict[str, Any] = {}
        earlier = [j for j in range(i) if _same_question(saved, saved.calls[j], call)]
        if saved.within is not None:
            if call.fault is None:  # where the reference answers, any answer will do; bad input may be refused
                demand["shape"] = _shape(saved, call)
        elif kind == Compared.REFUSED:
            if i == len(saved.calls) - 1:
                demand["refuse"] = True
        elif kind == Compared.DTYPE:
            demand["dtype"] = True
        elif _broken(saved, call):
            if call.expected is not None:
                demand["expected"] = True
            demand["shape"] = _shape(saved, call)
        elif call.changed:
            demand["keeps"] = True
        elif earlier and not _same(saved, saved.calls[earlier[0]].answer, call.answer):
            demand["repeats"] = earlier[0]
        elif (norm := _norm(record, saved, call)) is not None:
            demand["norm"] = norm
        demands.append(demand)
    return demands


def _broken(saved: Saved, call: SavedCall) -> bool:
    """Whether the call gave no answer, or a wrong one."""
    if call.answer is None:
        return True
    answer = saved.arrays[call.answer]
    if answer.shape != _shape(saved, call) or not np.isfinite(answer).all():
        return True
    if call.expected is None or call.budget is None:
        return False
    return bool((np.abs(answer - saved.arrays[call.expected]) > saved.arrays[call.budget]).any())


def _norm(record: Record, saved: Saved, call: SavedCall) -> dict[str, Any] | None:
    """A demand on the norm of one token's error, or of the whole error, if the property compared that."""
    comparison = (record.counterexample or {}).get("comparison")
    if record.key is None or record.key.kind not in (Compared.ROW_NORM, Compared.NORM):
        return None
    if comparison is None or call.answer is None or call.expected is None:
        return None
    at = tuple(comparison["worst_index"]) if record.key.kind == Compared.ROW_NORM else ()
    error = saved.arrays[call.answer] - saved.arrays[call.expected]
    most = comparison["budget_there"]
    return {"at": at, "most": most} if np.linalg.norm(error[at]) > most else None


def _shape(saved: Saved, call: SavedCall) -> tuple[int, ...]:
    arguments = call.arguments["mapping"]
    state = saved.arrays[(arguments["x"] if "x" in arguments else arguments["h"])["array"]]
    shape: tuple[int, ...] = state.shape[:2] if call.function.endswith("energy") else state.shape
    return shape


def _same_question(saved: Saved, first: SavedCall, second: SavedCall) -> bool:
    a, b = _names(first.arguments), _names(second.arguments)
    is_alike = (first.function, first.config, len(a)) == (second.function, second.config, len(b))
    return is_alike and all(_same(saved, m, n) for m, n in zip(a, b, strict=True))


def _same(saved: Saved, first: str | None, second: str | None) -> bool:
    """Whether two arrays have the same numbers, or both are missing."""
    if first is None or second is None:
        return first is second
    return np.array_equal(saved.arrays[first], saved.arrays[second])


def _names(tree: Tree) -> list[str]:
    """The arrays of a tree, in order."""
    if isinstance(tree, Mapping):
        if "array" in tree:
            return [tree["array"]]
        return [name for value in tree.values() for name in _names(value)]
    return [name for value in tree for name in _names(value)] if isinstance(tree, list) else []
