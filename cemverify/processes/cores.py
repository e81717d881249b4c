"""How many worker processes to use here, and how to keep one of them, or this one, to one core."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext


def cores() -> int:
    """The number of cores that this process may use, which a container or a scheduler may have limited."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """What is started within computes with one thread, which it must know before it imports torch.

    With more threads, operations on small tensors are very slow.
    """
    before = {key: os.environ.get(key) for key in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    os.environ.update(dict.fromkeys(before, "1"))
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Makes torch compute on one CPU thread: more are slower on small tensors, and on a busy machine.

    It also makes runs equal bit for bit: several threads add numbers up in any order.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def as_a_worker() -> AbstractContextManager[None]:
    """Computes on one thread, as a worker does, or on as many as the user's OMP_NUM_THREADS says."""
    return nullcontext() if os.environ.get("OMP_NUM_THREADS") else on_one_thread()
