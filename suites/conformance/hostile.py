"""Implementations that misbehave in `attention`, by name, each with its due verdict; `mlp` is right.

`test_isolation` judges each in worker processes, which load it by name from this module. Faults that do not harm a
process are in `test_engine`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import logging
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from cemverify import implementation
from cemverify.conformance.implementations import reference
from cemverify.conformance.implementations.energy_layers import EnergyLayer, Step
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.oracle import evidence
from cemverify.conformance.workers.judge import FinishedProperty
from cemverify.conformance.workers.wire import answer

right = reference.attention
HOLDS, VIOLATED, EITHER = (Verdict.HOLDS,), (Verdict.VIOLATED,), (Verdict.VIOLATED, Verdict.INCONCLUSIVE)
_alive: list[Any] = []  # objects that would end if nothing referred to them


def _besides(misbehave: Callable[[], Any], answer: Callable[..., Any] = right) -> Any:
    """An implementation whose attention misbehaves, and then answers, by default correctly."""
    return implementation(attention=lambda *question: (misbehave(), answer(*question))[1], mlp=reference.mlp)


def _exits_later(x: Any, h: Any, w: Any, c: Any) -> Any:
    """Right only in the call that is made before any test, whose rows have this shape."""
    return right(x, h, w, c) if x.shape == (2, 3, 4) else os._exit(7)


def _forever(*_: Any) -> Any:
    while True:
        time.sleep(1)


def _flood() -> None:
    while True:
        os.write(1, b"noise" * 1000)


def _start_child(own_session: bool) -> None:
    child = subprocess.Popen(["sleep", "600"], start_new_session=own_session)  # noqa: S607
    Path(os.environ["CEMVERIFY_TEST_CHILD"]).write_text(str(child.pid))
    _forever()


def _grow() -> None:
    grown = []
    while True:
        grown.append([0] * 10**6)


def _raise(error: BaseException) -> None:
    raise error


def _edit_configuration(x: Any, h: Any, w: Any, c: Any) -> Any:
    object.__setattr__(c, "step_size", 2 * c.step_size)
    return right(x, h, w, c)


def _change_settings() -> None:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("meta")
    torch.set_grad_enabled(False)
    torch.set_flush_denormal(True)
    torch.use_deterministic_algorithms(True)
    torch.set_printoptions(threshold=0)  # type: ignore[no-untyped-call]
    np.seterr(all="raise")
    warnings.simplefilter("error")
    sys.setrecursionlimit(sys.getrecursionlimit() // 3)
    gc.disable()
    os.environ.update({"TZ": "Pacific/Kiritimati", "LC_ALL": "C", "PYTHONHASHSEED": "1"})
    time.tzset()
    logging.critical("noise")
    print("noise")
    os.write(2, b"more noise\n")


def _trace() -> None:
    sys.settrace(lambda *_: None)
    sys.setprofile(lambda *_: None)
    threading.settrace(lambda *_: None)


def _hook() -> None:
    gc.callbacks.append(lambda *_: _raise(RuntimeError("a hook of the implementation's")))
    atexit.register(_forever)
    sys.excepthook = sys.unraisablehook = threading.excepthook = None  # type: ignore[assignment]
    sys.displayhook = lambda *_: 1 / 0
    _trace()


def _refuse_to_end() -> Any:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))


def _leave_mode() -> None:
    class Passes(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    _alive.append(Passes())
    _alive[-1].__enter__()


def _start_thirty() -> None:
    if not _alive:
        _alive.extend(subprocess.Popen(["sleep", "600"]) for _ in range(30))  # noqa: S607


class _Lazy:
    """An array-like object that gives other numbers each time it is read."""

    def __init__(self, values: Any) -> None:
        self.values, self.read = values, 0
        self.shape, self.dtype = values.shape, values.dtype

    def __array__(self, *_: Any, **__: Any) -> Any:
        self.read += 1
        return self.values + (0 if self.read > 1 else 1)


HOLDING = Record("gradient/attention/plain", "", "", Verdict.HOLDS, examples=60, telling=60, margin=0.0)


def _write_everywhere(content: bytes) -> None:
    for fd in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(fd, content)


def _write_records() -> None:
    """Writes records into every connection that this process has open."""
    for content in (pickle.dumps(HOLDING), pickle.dumps(FinishedProperty(HOLDING, lost=False))):
        _write_everywhere(len(content).to_bytes(4, "big") + content)


def _send_records() -> None:
    for connection in gc.get_objects():
        if isinstance(connection, Connection):
            for content in (HOLDING, FinishedProperty(HOLDING, lost=False)):
                with contextlib.suppress(Exception):
                    connection.send(content)


def _answer_for_itself(number: int) -> None:
    content = answer({"number": number, "answer": [True, 1.0, None]})
    _write_everywhere(len(content).to_bytes(8, "little") + content)


def _loosen_comparisons() -> None:
    evidence.Comparison.margin = 0.0  # type: ignore[assignment, method-assign]
    evidence.Comparison.margins = lambda self: torch.zeros(1)  # type: ignore[method-assign]


def _stop(*pids: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGSTOP)


def _grandparent() -> int:
    status = Path(f"/proc/{os.getppid()}/stat").read_text()
    return int(status.rpartition(")")[2].split()[1])


# --- misbehaviour with a right answer, the cause of the verdict (None: it holds) and words of its reason ---

_BESIDES: dict[str, tuple[Callable[[], Any], str | None, str]] = {
    "floods": (_flood, "hung", ""),
    "stops_itself": (lambda: os.kill(os.getpid(), signal.SIGSTOP), "hung", ""),
    "refuses_to_end_and_hangs": (lambda: (_refuse_to_end(), _forever()), "hung", ""),
    "exits": (lambda: os._exit(7), "crashed", "(exit code 7)"),
    "segfaults": (lambda: ctypes.string_at(0), "crashed", "(signal 11)"),
    "closes_files": (lambda: os.closerange(0, 256), "crashed", "it ended the interpreter"),
    "replaces_json_for_good": (lambda: vars(json).update(dumps=None, loads=None), "crashed", ""),
    "hogs_memory": (_grow, "out of memory", "MemoryError"),
    "raises_unicode": (lambda: _raise(RuntimeError("ταυ → ∞\x00\ud800\u202e")), "raised", "RuntimeError: ταυ → ∞"),
    "replaces_softmax": (lambda: vars(torch).update(softmax=lambda z, *_, **__: z), "tampered",
                         "it replaced functions that the whole process uses: torch.softmax"),
    "leaves_a_mode": (_leave_mode, "tampered", "by a TorchFunctionMode"),
    "changes_settings": (_change_settings, None, ""),
    "hooks": (_hook, None, ""),
    "loses_its_streams": (lambda: vars(sys).update(stdout=None, stderr=None, __stdout__=None), None, ""),
    "forks": (os.fork, None, ""),
    "leaves_thirty_children": (_start_thirty, None, ""),
}  # fmt: skip

# --- wrong ways to answer, the cause and words of its reason ---

_WRONG = "update = -eta P grad energy, T times"
_INSTEAD: dict[str, tuple[Callable[..., Any], str, str]] = {
    # holds the GIL, and does not handle signals
    "hangs_in_c": (lambda *_: re.match(r"(a+)+$", "a" * 64 + "b"), "hung", ""),
    "answers_lazily": (lambda x, *_: _Lazy(x.numpy()), _WRONG, "got "),
    "edits_the_configuration": (_edit_configuration, _WRONG, "got "),
}

# --- misbehaviour with a wrong answer, which never holds ------

_WRONGLY: dict[str, Callable[[], Any]] = {
    "writes_records": _write_records,
    "sends_records": _send_records,
    "answers_for_itself": lambda: _answer_for_itself(1),
    "loosens_comparisons": _loosen_comparisons,
    "traces_and_is_wrong": _trace,
}
# the same, and the judging process is stopped or killed
_AGAINST_JUDGES: dict[str, Callable[[], Any]] = {
    "kills_its_parent": lambda: os.kill(os.getppid(), signal.SIGKILL),
    "stops_its_parent": lambda: _stop(os.getppid()),
    "stops_judge_and_server": lambda: _stop(os.getppid(), _grandparent()),
    "interrupts_its_judge": lambda: os.kill(os.getppid(), signal.SIGINT),
}


not_an_implementation = 3
not_plain = EnergyLayer(len, None, {"x": ("J", 2)}, {}, step=Step(preconditioner=3.0))  # no declaration allows this


def _attention_beside_what_it_declares(x: Any, h: Any, w: Any, c: Any) -> Any:
    if c.norm == "channel":
        os._exit(7)
    if c.position != "none":
        raise NotImplementedError(c.position)
    return right(x, h, w, replace(c, steps=1))


declares_absent = implementation(
    attention=_attention_beside_what_it_declares,
    not_offered=("steps", "step-size", "diagonal", "position", "norm", "gradients"),
)


hangs_when_looked_at = type("_HangsWhenLookedAt", (), {"attention": property(_forever)})()


@dataclass(frozen=True)
class Row:
    """An implementation, and the due verdict on its attention."""

    layer: Any
    verdicts: tuple[Verdict, ...]  # one of which it gets
    cause: str | None = None  # of the verdict; None allows any
    words: str = ""  # of its reason
    stops_judges: bool = False


def _rows() -> Iterator[tuple[str, Row]]:
    for name, (misbehave, cause, words) in _BESIDES.items():
        yield name, Row(_besides(misbehave), VIOLATED if cause else HOLDS, cause, words)
    for name, (attention, cause, words) in _INSTEAD.items():
        yield name, Row(implementation(attention=attention, mlp=reference.mlp), VIOLATED, cause, words)
    for name, misbehave in {**_WRONGLY, **_AGAINST_JUDGES}.items():
        against = name in _AGAINST_JUDGES
        yield name, Row(_besides(misbehave, lambda x, *_: x), EITHER if against else VIOLATED, stops_judges=against)


ROWS = dict(_rows())
OTHERS = {
    "exits_later": implementation(attention=_exits_later, attention_energy=reference.attention_energy),
    "starts_a_child": _besides(partial(_start_child, False)),
    "starts_a_daemon": _besides(partial(_start_child, True)),
}


def __getattr__(name: str) -> Any:
    """The implementation of a row, or one of `OTHERS`; there are no other names."""
    if name in ROWS:
        return ROWS[name].layer
    if name in OTHERS:
        return OTHERS[name]
    raise AttributeError(name)
