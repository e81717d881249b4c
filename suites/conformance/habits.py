"""Implementations with bad habits, for `test_habits`: what they leave running, or switch, in their process.

Each does one thing in `attention` and then answers rightly, unless it says otherwise. Loaded by name in worker
processes, and nowhere else.
"""

from __future__ import annotations

import asyncio
import builtins
import faulthandler
import json
import locale
import logging
import multiprocessing
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import hypothesis
import numpy as np
import torch
from torch import Tensor

from cemverify import implementation
from cemverify.conformance.implementations import reference
from cemverify.conformance.implementations.faults import Discard

_kept: list[Any] = []
_right = reference.attention


def _with(habit: Callable[[], Any]) -> Any:
    def attention(x: Any, h: Any, w: Any, c: Any) -> Any:
        habit()
        return _right(x, h, w, c)

    return implementation(attention=attention, mlp=reference.mlp)


def _raising(error: Callable[[], BaseException]) -> Any:
    def habit() -> None:
        raise error()

    return _with(habit)


# --- it raises what a test runner takes for its own -----------------------------------------------


def _stops_test() -> BaseException:
    from hypothesis.errors import StopTest

    return StopTest(0)


def _skips() -> BaseException:
    return unittest.SkipTest("not today")


def _pytest_skips() -> BaseException:
    import pytest

    return pytest.skip.Exception("not today")


assumes_otherwise = _with(lambda: hypothesis.assume(False))
rejects = _with(hypothesis.reject)
stops_the_test = _raising(_stops_test)
discards = _raising(lambda: Discard("not today"))
skips = _raising(_skips)
skips_as_pytest_does = _raising(_pytest_skips)
stops_iteration = _raising(StopIteration)
raises_a_group = _raising(lambda: BaseExceptionGroup("several", [SystemExit(0), KeyboardInterrupt()]))
raises_a_chain = _raising(lambda: _chained(200))
raises_with_a_broken_class = _raising(lambda: type("\ud800\n" * 200, (Exception,), {})())


def _chained(links: int) -> BaseException:
    error = ValueError("first")
    for _ in range(links):
        error.__cause__, error = ValueError("next"), error
    return error


# --- it leaves something running ------------------------------------------------------------------


class _Falls:
    def __del__(self) -> None:
        raise RuntimeError("no")


def _thread(target: Callable[[], Any]) -> None:
    threading.Thread(target=target, daemon=True).start()


def _fails() -> None:
    raise RuntimeError("in a thread")


def _spins() -> None:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        pass


def _brood() -> None:
    if len(_kept) < 30:
        _kept.extend(subprocess.Popen(["sleep", "600"]) for _ in range(30))  # noqa: S607


def _chatters() -> None:
    if not _kept:
        _kept.append(subprocess.Popen(["yes", "noise"]))  # noqa: S607


def _listens() -> None:
    _kept.append(socket.create_server(("127.0.0.1", 0)))


def _overwrites_its_answer_later(x: Any, h: Any, w: Any, c: Any) -> Any:
    answer: Tensor = _right(x, h, w, c).clone()

    def overwrite() -> None:
        time.sleep(0.05)
        answer.zero_()

    _thread(overwrite)
    return answer


overwrites_its_answer_later = implementation(attention=_overwrites_its_answer_later, mlp=reference.mlp)
falls_when_collected = _with(lambda: [_Falls() for _ in range(3)] and None)
exits_in_a_thread = _with(lambda: _thread(lambda: sys.exit(0)))
fails_in_a_thread = _with(lambda: _thread(_fails))
spins_in_a_thread = _with(lambda: _thread(_spins) if threading.active_count() < 2 else None)
leaves_a_pool = _with(lambda: _kept.append(ThreadPoolExecutor(2).submit(time.sleep, 600)))
leaves_a_loop = _with(lambda: _kept.append(asyncio.new_event_loop()))
leaves_thirty_children = _with(_brood)
leaves_a_chatterer = _with(_chatters)
listens = _with(_listens)

# --- it switches something ------------------------------------------------------------------------


def _refuses_to_end() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))


def _refuses_to_end_and_hangs() -> None:
    _refuses_to_end()
    while True:
        time.sleep(1)


def _handles_signals_badly() -> None:
    def handler(*_: Any) -> None:
        raise SystemExit(0)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(number, handler)


def _loses_its_streams() -> None:
    sys.stdout = sys.stderr = sys.__stdout__ = None  # type: ignore[misc]


def _breaks_its_hooks() -> None:
    sys.excepthook = sys.unraisablehook = threading.excepthook = None  # type: ignore[assignment]
    sys.displayhook = lambda *_: 1 / 0


def _goes_elsewhere_in_time() -> None:
    os.environ.update({"TZ": "Pacific/Kiritimati", "LC_ALL": "C", "PYTHONHASHSEED": "1"})
    time.tzset()
    locale.setlocale(locale.LC_ALL, "C")


def _switches_torch() -> None:
    torch.set_flush_denormal(True)
    torch.autograd.set_detect_anomaly(True, check_nan=False)
    torch.use_deterministic_algorithms(True)
    torch.set_printoptions(threshold=0)  # type: ignore[no-untyped-call]
    np.set_printoptions(threshold=0)


def _is_meagre() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    os.umask(0o777)
    os.nice(5)


def _logs() -> None:
    logging.basicConfig(level=0, force=True)
    for _ in range(200):
        logging.critical("noise")


def _recurs_beyond_the_stack() -> None:
    sys.setrecursionlimit(10**9)
    resource.setrlimit(resource.RLIMIT_STACK, (2**20, 2**20))

    def deeper(n: int) -> Any:
        return repr(sorted([n], key=lambda _: deeper(n + 1)))

    deeper(0)


def _replaces_random() -> None:
    random.random = lambda: 0.5


def _replaces_json() -> None:
    json.dumps = json.loads = lambda *_, **__: None  # type: ignore[assignment]


def _replaces_subtraction() -> None:
    Tensor.__sub__ = lambda self, other: self * 0  # type: ignore[method-assign]


def _removes_len() -> None:
    del builtins.len


def _ends_later() -> None:
    faulthandler.dump_traceback_later(0.05, exit=True, file=open(os.devnull, "w"))  # noqa: SIM115
    time.sleep(1)


refuses_to_end = _with(_refuses_to_end)
refuses_to_end_and_hangs = _with(_refuses_to_end_and_hangs)
handles_signals_badly = _with(_handles_signals_badly)
loses_its_streams = _with(_loses_its_streams)
breaks_its_hooks = _with(_breaks_its_hooks)
goes_elsewhere_in_time = _with(_goes_elsewhere_in_time)
switches_torch = _with(_switches_torch)
is_meagre = _with(_is_meagre)
logs = _with(_logs)
wants_to_spawn = _with(lambda: multiprocessing.set_start_method("spawn", force=True))
recurs_beyond_the_stack = _with(_recurs_beyond_the_stack)
replaces_random = _with(_replaces_random)
replaces_json = _with(_replaces_json)
replaces_subtraction = _with(_replaces_subtraction)
removes_len = _with(_removes_len)
ends_later = _with(_ends_later)
