"""Who computes cells: processes on this machine, the workers of a Dask cluster, or the calling process itself.

All are executors of `concurrent.futures`; `compute_all` knows no other interface.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import active_children, get_context
from typing import Any

from cemverify.console.errors import UsageError
from cemverify.console.interrupts import put_off
from cemverify.processes import forkserver
from cemverify.processes.parent_death import end_with_parent
from cemverify.runs.cells import Cell
from cemverify.runs.store import Failure
from cemverify.runs.work import CellOutcome, compute

# Seconds to wait for a scheduler's answer.
CONNECT_SECONDS = 5

DIED = "the worker process died, probably because memory ran out"

# How many pools may fail to start their workers before the run gives up.
_STARTS = 3


@dataclass(frozen=True)
class Crew:
    """Who computes cells."""

    open: Callable[[], AbstractContextManager[Executor]]  # a fresh executor
    slots: int | None  # how many cells it gets at a time; None for all at once
    lethal: type[BaseException] | None = None  # what a future raises after its cell has killed its worker repeatedly


class _NotStarted(Exception):
    """A worker could not be started, for example because its server was killed. The next pool starts one."""


def compute_all(
    cells: Sequence[Cell], crew: Crew, keep: Callable[[Cell, CellOutcome], None], tick: Callable[[int], None]
) -> None:
    """Computes cells, in their order; each is kept as soon as it is done.

    A worker that dies takes the pool down, and the pool does not say which cell was to blame. So the cells that were
    being computed are computed again, one at a time; one that kills its worker by itself is stored as failed.

    Args:
        keep: gets a cell and its outcome, in the calling thread. tick: gets, about once a second, the number of cells
            being computed.
    """
    waiting, starts = deque(cells), 0
    while waiting:
        try:
            suspects = _drain(waiting, crew, crew.slots, keep, tick)
        except _NotStarted as error:
            starts += 1
            if starts == _STARTS:
                raise UsageError(
                    f"worker processes cannot be started ({error}); what is finished is kept, and the same command "
                    "goes on from there"
                ) from None
            continue
        for cell in suspects:
            if _drain(deque([cell]), crew, 1, keep, tick):
                keep(cell, CellOutcome(Failure(DIED), {"label": cell.label}))


def _drain(
    waiting: deque[Cell],
    crew: Crew,
    slots: int | None,
    keep: Callable[[Cell, CellOutcome], None],
    tick: Callable[[int], None],
) -> list[Cell]:
    """Computes until nothing waits, or the pool breaks; returns the cells that were being computed then."""
    flying: dict[Future[CellOutcome], Cell] = {}
    landed: queue.SimpleQueue[Future[CellOutcome]] = queue.SimpleQueue()
    lost: list[Cell] = []
    with crew.open() as executor:
        while flying or (waiting and not lost):
            while waiting and not lost and (slots is None or len(flying) < slots):
                try:
                    future = executor.submit(compute, waiting[0])
                except BrokenProcessPool:
                    break  # the cells being computed will report it too
                except (EOFError, ConnectionError) as error:  # the server that forks workers is gone
                    waiting.extendleft(reversed(flying.values()))
                    raise _NotStarted(type(error).__name__) from None
                flying[future] = waiting.popleft()
                future.add_done_callback(landed.put)
            try:
                future = landed.get(timeout=1)
            except queue.Empty:
                tick(len(flying))
                continue
            cell = flying.pop(future)
            outcome = _outcome(future, crew)
            if outcome is None:
                lost.append(cell)
            else:
                keep(cell, outcome)
    return lost


def _outcome(future: Future[CellOutcome], crew: Crew) -> CellOutcome | None:
    """The outcome of a cell; None if the pool broke."""
    try:
        return future.result()
    except BrokenProcessPool:
        return None
    except UsageError:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        if crew.lethal is not None and isinstance(error, crew.lethal):
            return CellOutcome(Failure(DIED), {})
        reason = ": ".join(filter(None, (type(error).__name__, *str(error).splitlines()[:1])))
        raise UsageError(
            f"the workers cannot go on ({reason}), do they run, and in a clone of this commit? "
            "What is finished is kept, and the same command goes on from there"
        ) from error


# --- the crews -----------------------------------------------------------------------------------


def here() -> Crew:
    """The calling process, for tests and debuggers."""

    @contextmanager
    def open_() -> Iterator[Executor]:
        yield _Here()

    return Crew(open_, slots=1)


def processes(workers: int, modules: Sequence[str] = (), *, copies: bool = False) -> Crew:
    """Processes on this machine, with one thread each; they are reused.

    Args:
        modules: what the cells need, imported once for all if processes are forked: torch takes seconds.
        copies: whether they are copies of this process, with all that it has imported; only if no other thread
            runs.
    """

    @contextmanager
    def open_() -> Iterator[Executor]:
        children = {child.pid for child in active_children()}
        if not copies:
            forkserver.ensure_server(*modules)
        context = get_context("fork") if copies else forkserver.context()
        try:
            with put_off():
                pool = ProcessPoolExecutor(
                    workers, mp_context=context, initializer=_begin, initargs=(dict(os.environ),)
                )
        except OSError as error:  # semaphores are files too
            raise UsageError(
                f"processes cannot work together here ({error.strerror or error}; is /dev/shm writable?), "
                "try --workers 0, or 1 for `cemverify claims`"
            ) from error
        try:
            yield pool
        except BaseException:
            # the cells being computed are lost, and the store holds the rest, so nothing is waited for
            for child in active_children():
                if child.pid not in children:
                    child.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    return Crew(open_, slots=workers)


def cluster(address: str) -> Crew:
    """The workers of a Dask scheduler. Dask replaces one that dies, and gives its cell to another."""
    try:
        dask = import_module("distributed")
    except ModuleNotFoundError as error:
        raise UsageError(
            f"--cluster needs Dask, and {error.name} is missing; pip install 'cemverify[cluster]'"
        ) from error

    # one of our sentences replaces its tracebacks of lost connections
    for name in ("distributed", "distributed.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)

    def connect() -> Any:
        try:
            return dask.Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"no Dask scheduler answers at {address} within {CONNECT_SECONDS} s; start one with `dask scheduler`"
            ) from error

    @contextmanager
    def open_() -> Iterator[Executor]:
        with connect() as client:
            executor = client.get_executor(pure=False)
            try:
                yield executor
            finally:
                executor.shutdown(wait=False)

    connect().close()
    return Crew(open_, slots=None, lethal=dask.KilledWorker)


class _Here(Executor):
    """Computes at once what it is given."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments, **options))
        except Exception as error:
            future.set_exception(error)
        return future


def _begin(environment: Mapping[str, str]) -> None:
    """The first thing that a process of the pool does."""
    os.environ.clear()
    os.environ.update(environment)  # a server has the environment of its own start
    for library in ("OMP", "OPENBLAS", "MKL"):
        os.environ[f"{library}_NUM_THREADS"] = "1"  # for libraries loaded later
    for number in forkserver.OF_A_TERMINAL:  # only the parent handles these
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a copy has inherited the parent's handler
    end_with_parent()
