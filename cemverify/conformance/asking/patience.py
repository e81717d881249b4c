"""Refuses, before asking them, rows so long that a call would be taken for a hang."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations.faults import Discard
from cemverify.conformance.questions.cases import Case
from cemverify.processes.time_limits import CoreBudget

Answer = Callable[[Caller, Case], Any]  # calls the layer on a case

SHORT = 128  # rows of up to this many tokens are always asked
_PATIENCE = 3  # seconds for one call
_LOOKS = 3
_TICK = 1e-4  # least seconds of a call: its threads together may have waited for a core for longer than it took


def refuse_slow(answer: Answer, caller: Caller, case: Case) -> None:
    """Refuses a row so long that loops over pairs of tokens would be taken for a hang."""
    J = case.h.shape[1]
    # measured again before giving up: on a busy machine one measurement may be far too long
    if J > SHORT and all(_seconds(answer, caller, case) > _PATIENCE for _ in range(_LOOKS)):
        raise Discard(f"a row of {J} tokens would take it more than {_PATIENCE} s")


def _seconds(answer: Answer, caller: Caller, case: Case) -> float:
    """Estimates the seconds for a long row from its first tokens."""
    short, times = _fastest(answer, caller, case.beginning(SHORT)), case.h.shape[1] / SHORT
    steepest = 2 if caller.kind.compiles else 3  # a second shape would have to be compiled, so none is measured
    if short * times**steepest <= _PATIENCE:
        return float(short * times**steepest)
    half = _fastest(answer, caller, case.beginning(SHORT // 2))
    growth = max(1.0, math.log2(short / half))  # 2 for loops over pairs of tokens; more for what grows faster
    return float(short * times**growth)


def _fastest(answer: Answer, caller: Caller, case: Case) -> float:
    """Seconds of the fastest of a few calls, which other programs do not affect; the first may compile."""
    seconds = []
    for _ in range(2):
        work = CoreBudget(_PATIENCE, lambda: caller.processes)
        answer(caller, case)
        seconds.append(max(work.spent(), _TICK))
    return min(seconds)
