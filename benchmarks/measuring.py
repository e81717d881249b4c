"""Times of several ways to do the same, taken in turn in one process, and their ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cemverify.results.envelope import Table
from synthetic.training.machine import synchronise

Task = Callable[[], object]


@dataclass(frozen=True)
class Findings:
    """What a benchmark, or a stage of the harvest, has found so far."""

    tables: Sequence[Table] = ()  # for a person
    data: Mapping[str, Any] | None = None  # for a program
    skipped: str | None = None  # why nothing was done, if nothing was


@dataclass(frozen=True)
class Timing:
    """What one way took."""

    seconds: Sequence[float]  # of each round; empty if it did not fit the memory
    failure: str | None = None  # why there is none, in a phrase
    peak: int | None = None  # bytes allocated on the GPU at most, None on a CPU


def in_turn(tasks: Mapping[str, Task], device: str, rounds: int, seconds: float) -> dict[str, Timing]:
    """Runs each task once to warm up, then all of them in turn, round after round: A B C, C B A, ...

    On a CPU the clock is that of the process, which other processes do not move as much; on a GPU it is the wall's,
    around a synchronisation. A task that runs out of memory is left out of the rounds, and says so.

    Args:
        rounds: at most so many.
        seconds: no further round is begun after that, but for three, which an interval takes.
    """
    started = time.monotonic()
    failures: dict[str, str] = {}
    peaks: dict[str, int | None] = {}
    for name, task in tasks.items():
        before = forget_peak(device)
        try:
            task()
            synchronise(device)
        except (MemoryError, RuntimeError) as error:  # which torch.OutOfMemoryError is
            if isinstance(error, RuntimeError) and "memory" not in str(error):
                raise
            failures[name] = "out of memory"
        peaks[name] = peak(device, before)
        if device.startswith("cuda"):
            torch.cuda.empty_cache()
    taken: dict[str, list[float]] = {name: [] for name in tasks}
    order = [name for name in tasks if name not in failures]
    if device.startswith("cuda"):  # the peaks were taken with an empty cache, which the next call fills
        for name in order:
            tasks[name]()
    for i in range(rounds):
        if i >= 3 and time.monotonic() - started > seconds:
            break
        for name in order if i % 2 == 0 else reversed(order):
            taken[name].append(_seconds(tasks[name], device))
    return {name: Timing(taken[name], failures.get(name), peaks[name]) for name in tasks}


def forget_peak(device: str) -> int:
    """Starts the measurement of `peak` anew; the bytes allocated on the GPU now."""
    if not device.startswith("cuda"):
        return 0
    torch.cuda.reset_peak_memory_stats()
    return int(torch.cuda.memory_allocated())


def peak(device: str, before: int = 0) -> int | None:
    """Bytes allocated on the GPU at most since `forget_peak`, beyond those of before; None on a CPU."""
    return int(torch.cuda.max_memory_allocated()) - before if device.startswith("cuda") else None


def causal_flops(counted: Callable[[int], float], context: int) -> float:
    """FLOPs per token, counted by the formula at two lengths, so that causal attention can be halved.

    What a token costs is a + b J, of which the formula computes b J on all pairs and causal attention on half.
    """
    short, long = counted(64), counted(128)
    per_key = (long - short) / 64
    return short - 64 * per_key + per_key * (context + 1) / 2


def gigabytes(amount: int | None) -> str:
    """Bytes as in a table, in GB of 10^9."""
    return "" if amount is None else f"{amount / 1e9:.2f}"


# The columns of `moved`.
MOVED = ("GB moved", "roofline / time")


def moved(counted: Mapping[str, Any] | None, seconds: Sequence[float], places: int) -> list[str]:
    """What was counted of a row (`benchmarks.rehearsal.traffic`) beside its times; ["", ""] where one is missing."""
    if counted is None or not seconds:
        return ["", ""]
    return [f"{counted['bytes'] / 1e9:.{places}f}", f"{counted['seconds'] / statistics.median(seconds):.2f}"]


def seeded() -> torch.Generator:
    """The generator that everything is drawn from."""
    return torch.Generator().manual_seed(0)


def both_ways(module: Any, h: Tensor) -> Task:
    """Forward and backward, to h and to every parameter; a cache beside the output is dropped."""
    weights = torch.ones_like(h)

    def task() -> None:
        answer = module(h.detach().requires_grad_())
        (answer[0] if isinstance(answer, tuple) else answer).backward(weights)
        module.zero_grad()

    return task


def _seconds(task: Task, device: str) -> float:
    clock = time.perf_counter if device.startswith("cuda") else time.process_time
    synchronise(device)
    started = clock()
    task()
    synchronise(device)
    return clock() - started
