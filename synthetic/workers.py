"""Jobs in parallel: one process each, one thread each.

Tensors this small are far slower on several threads than on one, and one thread makes results the same bit
for bit, whatever the number of workers.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TypeVar

import torch

from synthetic.errors import UsageError

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")


def run_all(
    function: Callable[[Job], Outcome],
    jobs: Sequence[Job],
    workers: int,
    cost: Callable[[Job], float],
    report: Callable[[str], None],
    describe: Callable[[Outcome], str],
) -> list[Outcome]:
    """The outcomes of all jobs, in the order of the jobs.

    Args:
        function: of a module, so that a new process can import it.
        workers: processes, at least 1.
        cost: roughly proportional to the time that a job takes; the longest are started first.
        report: takes one line of progress for each job that is done. describe: what such a line says of it.

    Raises:
        UsageError: a worker died. What a job raises, passes through; no further job is then started.
    """
    started = time.monotonic()
    total, done = sum(map(cost, jobs)), 0.0
    order = sorted(range(len(jobs)), key=lambda i: -cost(jobs[i]))
    outcomes: dict[int, Outcome] = {}
    pool = ProcessPoolExecutor(min(workers, len(jobs)), mp_context=get_context("spawn"), initializer=_pin)
    try:
        futures = {pool.submit(function, jobs[i]): i for i in order}
        for future in as_completed(futures):
            i = futures[future]
            outcomes[i] = future.result()
            done += cost(jobs[i])
            running = [jobs[j] for j in order if j not in outcomes][: workers - 1]
            spent = done + sum(map(cost, running)) / 2  # on average they are half done
            left = (time.monotonic() - started) * (total - spent) / spent
            report(f"[{len(outcomes)}/{len(jobs)}] {describe(outcomes[i])}; about {left:.0f} s left")
    except BrokenProcessPool as error:
        raise UsageError("a worker process died, most likely for want of memory; try fewer --workers") from error
    finally:
        pool.shutdown(cancel_futures=True)
    return [outcomes[i] for i in range(len(jobs))]


def _pin() -> None:
    torch.set_num_threads(1)
    # an interrupt is for the parent to handle; it cancels what has not begun
    signal.signal(signal.SIGINT, signal.SIG_IGN)
