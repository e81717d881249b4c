"""Other programs on the machine do not affect limits: work counts, waiting for a core does not."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from cemverify.processes import time_limits
from cemverify.processes.time_limits import CoreBudget, computed

LINUX = pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="only Linux tells what a process does")


def work(seconds: float) -> None:
    """Works for these seconds of processor time, however long that takes."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


@pytest.fixture
def partner() -> Iterator[tuple[socket.socket, int]]:
    """A process that works briefly before each answer."""
    ours, theirs = socket.socketpair()
    if (child := os.fork()) == 0:
        ours.close()
        try:
            while theirs.recv(1):
                work(0.002)
                theirs.send(b"x")
        finally:
            os._exit(0)
    theirs.close()
    yield ours, child
    ours.close()
    os.waitpid(child, 0)


@LINUX
def test_a_budget_counts_the_work_of_both_processes_however_long_they_wait(
    partner: tuple[socket.socket, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    line, child = partner
    # each waits while the other waits, so together they wait longer than the limit
    monkeypatch.setattr(time_limits, "waited_for_core", lambda _: 2 * time.monotonic())
    before = computed([os.getpid(), child])
    budget = CoreBudget(0.3, lambda: (os.getpid(), child))
    while not budget.passed():
        work(0.002)
        line.send(b"x")
        line.recv(1)
    assert 0.25 < computed([os.getpid(), child]) - before < 0.6


@LINUX
def test_what_threads_computed_counts_when_they_have_ended() -> None:
    before = computed([os.getpid()])
    thread = threading.Thread(target=work, args=(0.1,))
    thread.start()
    thread.join()
    assert computed([os.getpid()]) - before > 0.08


@pytest.mark.parametrize(("seconds", "is_spent"), [(0.2, True), (float("inf"), False)])
def test_sleep_counts_where_nobody_waits_for_a_core(seconds: float, is_spent: bool) -> None:
    budget = CoreBudget(seconds)
    time.sleep(0.4)
    assert budget.passed() == is_spent


def test_a_process_that_has_ended_takes_nothing_more() -> None:
    assert computed([2**22 + 1]) == 0
