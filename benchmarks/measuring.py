"""Times of several ways to compute the same, measured in turn in one process, and their ratios."""

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
    """The findings so far of a benchmark or a stage of the harvest."""

    tables: Sequence[Table] = ()  # for a person
    data: Mapping[str, Any] | None = None  # for a program
    skipped: str | None = None  # why it was skipped, if it was


@dataclass(frozen=True)
class Timing:
    """The times of one task."""

    seconds: Sequence[float]  # of each round; empty if it ran out of memory
    failure: str | None = None  # why there are none, in a phrase
    peak: int | None = None  # the most bytes allocated on the GPU; None on a CPU


def in_turn(tasks: Mapping[str, Task], device: str, rounds: int, seconds: float) -> dict[str, Timing]:
    """Runs each task once to warm up, then all of them in turn, round after round: A B C, C B A, ...

    On a CPU, process time is measured, which other processes affect less; on a GPU, wall time around a
    synchronisation. A task that runs out of memory is left out of the rounds; its `failure` says so.

    Args:
        rounds: at most.
        seconds: after that no further round begins, except that three are always run, the fewest for an interval.
    """
    started = time.monotonic()
    failures: dict[str, str] = {}
    peaks: dict[str, int | None] = {}
    for name, task in tasks.items():
        before = forget_peak(device)
        try:
            task()
            synchronise(device)
        except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is a RuntimeError
            if isinstance(error, RuntimeError) and "memory" not in str(error):
                raise
            failures[name] = "out of memory"
        peaks[name] = peak(device, before)
        if device.startswith("cuda"):
            torch.cuda.empty_cache()
    taken: dict[str, list[float]] = {name: [] for name in tasks}
    order = [name for name in tasks if name not in failures]
    if device.startswith("cuda"):  # peaks were measured with an empty cache; one untimed call fills it
        for name in order:
            tasks[name]()
    for i in range(rounds):
        if i >= 3 and time.monotonic() - started > seconds:
            break
        for name in order if i % 2 == 0 else reversed(order):
            taken[name].append(_seconds(tasks[name], device))
    return {name: Timing(taken[name], failures.get(name), peaks[name]) for name in tasks}


def forget_peak(device: str) -> int:
    """Restarts the measurement of `peak`; returns the bytes allocated on the GPU now."""
    if not device.startswith("cuda"):
        return 0
    torch.cuda.reset_peak_memory_stats()
    return int(torch.cuda.memory_allocated())


def peak(device: str, before: int = 0) -> int | None:
    """The most bytes allocated on the GPU since `forget_peak`, less `before`; None on a CPU."""
    return int(torch.cuda.max_memory_allocated()) - before if device.startswith("cuda") else None


def causal_flops(counted: Callable[[int], float], context: int) -> float:
    """FLOPs per token, counted by the formula at two lengths, so that causal attention can be halved.

    A token costs a + b J; the formula computes b J for all pairs, causal attention for half of them.
    """
    short, long = counted(64), counted(128)
    per_key = (long - short) / 64
    return short - 64 * per_key + per_key * (context + 1) / 2


def gigabytes(amount: int | None) -> str:
    """Bytes for a table, in GB of 10^9."""
    return "" if amount is None else f"{amount / 1e9:.2f}"


# The headings of `moved`.
MOVED = ("GB moved", "roofline / time")


def moved(counted: Mapping[str, Any] | None, seconds: Sequence[float], places: int) -> list[str]:
    """The counted traffic of a row (`benchmarks.rehearsal.traffic`) and its times; ["", ""] if either is missing."""
    if counted is None or not seconds:
        return ["", ""]
    return [f"{counted['bytes'] / 1e9:.{places}f}", f"{counted['seconds'] / statistics.median(seconds):.2f}"]


def seeded() -> torch.Generator:
    """The generator for all random numbers here."""
    return torch.Generator().manual_seed(0)


def both_ways(module: Any, h: Tensor) -> Task:
    """Forward and backward, to h and to every parameter; a cache returned with the output is dropped."""
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
