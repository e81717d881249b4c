"""A call during which another thread makes one: the two interleave, in the same way every time.

The first call runs up to one of its lines of Python. There it waits until the second, in another thread, has reached
one of its own. Then the first runs to its end, and the second after it. So each goes on with any state that the other
left behind. The two lines depend on the question alone, and differ between questions, because few lines of a call are
ones at which shared state does harm. If the implementation makes one call wait for the other, as a lock does,
the first does not wait for long.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from cemverify.conformance.asking.answers import as_tensor
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.experiments import experiment
from cemverify.conformance.questions.cases import Case

_PATIENCE = 0.2  # seconds to wait for a call that may itself be waiting
_PLACES = 3  # lines of the first call at which the second begins, one in each third
_TURNS = 64
_GOLDEN = (5**0.5 - 1) / 2  # its multiples fill an interval evenly


@experiment(lambda arguments: ([arguments.shape] * _PLACES, [arguments.shape] * _PLACES, None), calls=2)
def answered_while_another_runs(
    caller: Caller, name: str, case: Case, other: Case, shape: torch.Size
) -> tuple[list[Tensor], list[Tensor], bool]:
    """The answers to the two questions, and whether the second call always began during the first."""
    interrupted, meanwhile, always = [], [], True
    with caller.guarded():
        # counted twice, since the first call of a configuration may run more lines
        lines = [[_count(caller.bound(name, one)) for _ in range(2)][1] for one in (case, other)]
        turn = case.turn(_TURNS)
        for i in range(_PLACES):
            begins, stops = lines[0] * (i + turn / _TURNS) / _PLACES, lines[1] * (_GOLDEN * (i + turn) % 1)
            pair = _Pair(caller.bound(name, other), int(begins), int(stops))
            first = pair.run(caller.bound(name, case))
            if pair.error is not None:
                raise pair.error
            interrupted.append(as_tensor(first, shape))
            meanwhile.append(as_tensor(pair.answer, shape))
            always &= pair.began
    return interrupted, meanwhile, always


class _Pair:
    """Two calls that interleave.

    Attributes:
        answer, error: what the second call came to. began: whether it began before the first one ended.
    """

    def __init__(self, second: Callable[[], Any], at: int, stops: int) -> None:
        self.second, self.at, self.stops = second, at, stops
        self.answer: Any = None
        self.error: BaseException | None = None
        self.began = False
        self._intra_op_threads = torch.get_num_threads()  # a new thread has those the process began with
        self._stopped, self._first_ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run_second, daemon=True)

    def run(self, first: Callable[[], Any]) -> Any:
        """Makes both calls, and returns the answer of the first."""
        try:
            return _traced(first, self.at, self._start_second)
        finally:
            self._first_ended.set()
            if self._thread.ident is None:  # the first call ran fewer lines than before
                self._thread.start()
            self._thread.join()

    def _start_second(self) -> None:
        self._thread.start()
        self.began = True
        self._stopped.wait(_PATIENCE)  # the second may be waiting for the first, if the implementation has a lock

    def _run_second(self) -> None:
        torch.set_num_threads(self._intra_op_threads)
        try:
            self.answer = _traced(self.second, self.stops, self._wait_for_first)
        except BaseException as error:
            self.error = error
        finally:
            self._stopped.set()

    def _wait_for_first(self) -> None:
        self._stopped.set()
        self._first_ended.wait(_PATIENCE)


def _count(call: Callable[[], Any]) -> int:
    """How many lines of Python a call runs."""
    lines = []
    _traced(call, None, lambda: lines.append(1))
    return max(len(lines), 1)


def _traced(call: Callable[[], Any], at: int | None, then: Callable[[], object]) -> Any:
    """The answer of a call that runs `then` before the line of that number, or before every line.

    Lines of array libraries do not count: compilers run millions.
    """
    lines, loaded = 0, (sys.modules.get(name) for name in ("torch", "numpy", "jax"))
    libraries = tuple(os.path.join(os.path.dirname(str(m.__file__)), "") for m in loaded if m is not None)

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if event == "line":
            lines += 1
            if at is None:
                then()
            elif lines == max(at, 1):
                sys.settrace(None)
                then()
                return None
        elif frame.f_code.co_filename.startswith(libraries):
            return None
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return call()
    finally:
        sys.settrace(before)
