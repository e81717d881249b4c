"""Tests one implementation of a round, in its own process."""

from __future__ import annotations

import resource
import signal
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from cemverify.conformance.asking.process_state import ProcessState
from cemverify.conformance.implementations.contract import Subject
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.ending import TO_THE_END
from cemverify.conformance.judging.engine import judge_property
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.properties import Property
from cemverify.power import matrix
from cemverify.processes.time_limits import computed
from suites.blind.rounds import read

Answer = dict[str, Any]
CPU_SECONDS = 600
STANDSTILL = 30.0  # seconds without computation


def context() -> Any:
    """The multiprocessing context: processes start with everything imported."""
    processes = get_context("forkserver")
    processes.set_forkserver_preload([__name__])
    return processes


def apart(processes: Any, folder: Path, name: str, first: str = "") -> Answer:
    """The result of `ask` from a new process, which the implementation may end."""
    ours, theirs = processes.Pipe(duplex=False)
    process = processes.Process(target=_answer, args=(theirs, folder, name, first))
    process.start()
    theirs.close()
    spent = -1.0
    while not ours.poll(STANDSTILL):
        spent, before = computed([process.pid]), spent
        if 0 < spent == before:  # a check calls that a violation
            process.kill()
            return {"violated": True, "by": "whatever was asked when it stopped answering", "seconds": None}
    try:
        answer: Answer = ours.recv()
    except EOFError:
        process.join()
        if -process.exitcode in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS):  # a check calls that a violation
            answer = {"violated": True, "by": "whatever was asked when its process crashed", "seconds": None}
        else:
            answer = {"violated": False, "error": f"its process ended with exit code {process.exitcode}"}
    process.join()
    return answer


def _answer(there: Any, folder: Path, name: str, first: str) -> None:
    there.send(ask(folder, name, first))


def ask(folder: Path, name: str, first: str = "") -> Answer:
    """Whether any property is violated, at the default budget with seed 0; returns the first.

    Args:
        folder: of the round. first: id of the property to test first, if any.
    """
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    began = time.process_time()
    round_ = read(folder)
    subject = round_.implementation(name)
    usual, undecided = ProcessState.now(), dict[str, str]()
    for property_ in in_order(subject, first):
        if property_.first:  # a check tests it in a new process
            subject = round_.implementation(name, anew=True)
        record = judge_property(subject, property_, Effort(shrink=False))
        usual.restore()  # as in the process that runs the implementation in a check
        seconds = round(time.process_time() - began, 1)
        if record.verdict == Verdict.VIOLATED:
            return {"violated": True, "by": property_.id, "cause": record.cause, "seconds": seconds}
        if record.verdict not in (Verdict.HOLDS, Verdict.NOT_OFFERED):
            undecided[property_.id] = str(record.verdict)
    return {"violated": False, "undecided": undecided, "seconds": round(time.process_time() - began, 1)}


def in_order(subject: Subject, first: str = "") -> list[Property]:
    """The properties that apply, in the order of a check.

    Args:
        first: id of the one to test before all others, except those that a check tests in a new process.
    """
    ordered = TO_THE_END.ordered(matrix.offered(subject), subject.not_offered)
    return sorted(ordered, key=lambda p: (not p.first, p.id != first))
