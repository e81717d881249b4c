"""Implementations that misbehave, for `test_isolation`; loaded by name in worker processes.

Each does one thing wrong in `attention`; most then answer rightly, so that the misbehaviour alone is judged. `mlp` is
the reference's: what comes after the misbehaviour.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import copy
import ctypes
import gc
import json
import os
import pickle
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from cemverify import implementation
from cemverify.conformance.implementations import reference
from cemverify.conformance.judging import engine
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.oracle import evidence
from cemverify.conformance.workers import judge
from cemverify.conformance.workers.judge import Finished
from cemverify.conformance.workers.wire import answer

right = reference.attention


def instead(misbehave: Callable[[Tensor], Any]) -> Any:
    """An implementation whose attention answers with what `misbehave(x)` returns."""
    return implementation(attention=lambda x, h, w, c: misbehave(x), mlp=reference.mlp)


def besides(misbehave: Callable[[], Any]) -> Any:
    """An implementation whose attention misbehaves, and then answers rightly."""

    def attention(x: Any, h: Any, w: Any, c: Any) -> Any:
        misbehave()
        return right(x, h, w, c)

    return implementation(attention=attention, mlp=reference.mlp)


def raising(error: Callable[[], BaseException]) -> Any:
    """An implementation whose attention raises."""

    def attention(x: Any, h: Any, w: Any, c: Any) -> Any:
        raise error()

    return implementation(attention=attention, mlp=reference.mlp)


# --- it does not return -------------------------------------------------------------------------


def _forever(*_: Any) -> Any:
    while True:
        time.sleep(1)


def _deadlock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def _floods() -> None:
    while True:
        print("noise" * 1000)
        print("noise" * 1000, file=sys.stderr)
        os.write(1, b"noise" * 1000)


hangs = instead(_forever)
hangs_in_c = instead(lambda x: re.match(r"(a+)+$", "a" * 64 + "b"))  # holds the GIL, and looks at no signal
deadlocks = besides(_deadlock)
floods = besides(_floods)
stops_itself = besides(lambda: os.kill(os.getpid(), signal.SIGSTOP))

# --- it takes the interpreter down ----------------------------------------------------------------


def _starts_a_child(own_session: bool) -> None:
    child = subprocess.Popen(["sleep", "600"], start_new_session=own_session)  # noqa: S607
    Path(os.environ["CEMVERIFY_TEST_CHILD"]).write_text(str(child.pid))
    _forever()


exits = implementation(
    attention=lambda x, h, w, c: os._exit(7), mlp=reference.mlp, attention_energy=reference.attention_energy
)
aborts = besides(os.abort)
segfaults = besides(lambda: ctypes.string_at(0))


def after_the_first_call(fault: Callable[[], Any]) -> Any:
    """Right in the one call that is made before anything is tested, which has rows of this shape."""

    def attention(x: Any, h: Any, weights: Any, config: Any) -> Any:
        return reference.attention(x, h, weights, config) if x.shape == (2, 3, 4) else fault()

    return implementation(attention=attention, mlp=reference.mlp, attention_energy=reference.attention_energy)


hangs_later = after_the_first_call(lambda: _forever())
exits_later = after_the_first_call(lambda: os._exit(7))
aborts_later = after_the_first_call(os.abort)
closes_files = besides(lambda: os.closerange(0, 256))
kills_its_parent = besides(lambda: os.kill(os.getppid(), signal.SIGKILL))
starts_a_child = besides(lambda: _starts_a_child(False))
starts_a_daemon = besides(lambda: _starts_a_child(True))

# --- it wants all the memory ------------------------------------------------------------------------

_kept: list[Any] = []


def _grow() -> None:
    grown = []
    while True:
        grown.append([0] * 10**6)


hogs_memory = besides(_grow)
leaks_memory = besides(lambda: _kept.append(np.zeros(3 * 10**7)))
hogs_tensors = instead(lambda x: torch.zeros(2**36))
returns_a_tebibyte = instead(lambda x: x.new_zeros(1).expand(2**37))  # of one number, so far

# --- it raises -----------------------------------------------------------------------------------------


class _Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no")


class _Endless(Exception):
    def __str__(self) -> str:
        return str(_forever())


class _Base(BaseException):
    pass


def _imports_lazily() -> None:
    import cemverify_has_no_such_module  # type: ignore[import-not-found]  # noqa: F401


def _recurs() -> None:
    _recurs()


raises_unicode = raising(lambda: RuntimeError("ταυ → ∞\x00\ud800\u202e"))
raises_at_length = raising(lambda: RuntimeError("long " * 10**6))
raises_the_unspeakable = raising(_Unspeakable)
raises_without_end = raising(_Endless)
raises_base_exception = raising(_Base)
raises_system_exit = raising(lambda: SystemExit(0))
raises_interrupt = raising(KeyboardInterrupt)
raises_generator_exit = raising(GeneratorExit)
imports_lazily = besides(_imports_lazily)
recurs = besides(_recurs)

# --- it returns something else ------------------------------------------------------------------------------


class _Liar(Tensor):
    """Zeros that answer every question wrongly, or not at all."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return True


class _Stubborn:
    shape = (1, 1, 1)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no")


class _Slow(_Stubborn):
    def __array__(self, *_: Any, **__: Any) -> Any:
        return _forever()


returns_nan = instead(lambda x: x * np.nan)
returns_infinity = instead(lambda x: x / 0)
returns_another_shape = instead(lambda x: x[..., None])
returns_complex = instead(lambda x: x.to(torch.complex128))
returns_meta = instead(lambda x: x.to("meta"))
returns_sparse = instead(lambda x: x.to_sparse())
returns_nested = instead(lambda x: torch.nested.nested_tensor(list(x)))
returns_a_liar = instead(lambda x: torch.zeros_like(x).as_subclass(_Liar))
returns_the_stubborn = instead(lambda x: _Stubborn())
returns_the_slow = instead(lambda x: _Slow())
returns_words = instead(lambda x: "x")
returns_its_input = instead(lambda x: x)


def _edits_its_input(x: Any, h: Any, w: Any, c: Any) -> Any:
    answer = right(x, h, w, c)
    return x.copy_(answer)


def _edits_the_configuration(x: Any, h: Any, w: Any, c: Any) -> Any:
    object.__setattr__(c, "step_size", 2 * c.step_size)
    return right(x, h, w, c)


def _dithers(x: Any, h: Any, w: Any, c: Any) -> Any:
    return right(x, h, w, c) * (1 + 1e-6 * random.SystemRandom().random())


edits_its_input = implementation(attention=_edits_its_input, mlp=reference.mlp)
edits_the_configuration = implementation(attention=_edits_the_configuration, mlp=reference.mlp)
dithers = implementation(attention=_dithers, mlp=reference.mlp)

# --- it leaves the process as it should not be ---------------------------------------------------------------


def _prints() -> None:
    print("noise")
    os.write(1, b"more noise\n")
    os.write(2, b"more noise\n")


def _reseeds() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


def _switches_defaults() -> None:
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("meta")
    torch.set_grad_enabled(False)


def _tightens_settings() -> None:
    warnings.simplefilter("error")
    np.seterr(all="raise")
    sys.setrecursionlimit(sys.getrecursionlimit() // 10)
    gc.disable()


def _moves_house() -> None:
    os.chdir("/")
    sys.path.clear()
    os.environ.clear()


def _sets_an_alarm() -> None:
    def ring(*_: Any) -> None:
        raise TimeoutError("an alarm of the implementation's")

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.2)


def _leaves_hooks() -> None:
    def hook(*_: Any) -> None:
        raise RuntimeError("a hook of the implementation's")

    gc.callbacks.append(hook)
    atexit.register(_forever)


def _writes_a_file() -> None:
    Path(os.environ["CEMVERIFY_TEST_CHILD"]).write_bytes(b"0" * 2**20)


def _forks() -> None:
    os.fork()


def _replaces_softmax() -> None:
    torch.softmax = lambda z, *_, **__: torch.full_like(z, 1 / z.shape[-1])


def _replaces_the_clock() -> None:
    time.monotonic = lambda: 0.0


def _replaces_sum() -> None:
    builtins.sum = lambda *_: 0  # type: ignore[assignment]


def _stays_in_inference_mode() -> None:
    mode = torch.inference_mode()
    mode.__enter__()
    _kept.append(mode)  # or it would leave by itself


prints = besides(_prints)
reseeds = besides(_reseeds)
switches_defaults = besides(_switches_defaults)
tightens_settings = besides(_tightens_settings)
moves_house = besides(_moves_house)
sets_an_alarm = besides(_sets_an_alarm)
leaves_hooks = besides(_leaves_hooks)
leaves_threads = besides(lambda: threading.Thread(target=_forever).start())
writes_a_file = besides(_writes_a_file)
forks = besides(_forks)
replaces_softmax = besides(_replaces_softmax)
replaces_the_clock = besides(_replaces_the_clock)
replaces_sum = besides(_replaces_sum)
stays_in_inference_mode = besides(_stays_in_inference_mode)

# --- it wants a verdict that it has not earned --------------------------------------------------------------------


class _Forger(Tensor):
    """Shows the judge other numbers than it holds, wherever it is asked for them."""

    def as_subclass(self, cls: Any) -> Any:
        raise RuntimeError("nobody may ask this")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError("nobody may ask this either")


class _ForgedArray(np.ndarray[Any, Any]):
    """The same for NumPy."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("nobody may ask this")

    def __getitem__(self, key: Any) -> Any:
        raise RuntimeError("nobody may ask this either")


class _Lazy:
    """Gives other numbers each time it is read."""

    def __init__(self, values: Any) -> None:
        self.values, self.read = values, 0
        self.shape, self.dtype = values.shape, values.dtype

    def __array__(self, *_: Any, **__: Any) -> Any:
        self.read += 1
        return self.values + (0 if self.read > 1 else 1)


class _FalseClass(_Lazy):
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return Tensor


def _forge(x: Tensor) -> Any:
    forged: Any = (x + 1).as_subclass(_Forger)
    return forged


def wrongly(misbehave: Callable[[], None]) -> Any:
    """An implementation whose attention misbehaves, and then answers wrongly: with x."""

    def attention(x: Any, h: Any, w: Any, c: Any) -> Any:
        misbehave()
        return x

    return implementation(attention=attention, mlp=reference.mlp)


def _records() -> None:
    """Writes a record that holds into every connection that this process has open."""
    record = Record("gradient/attention/plain", "", "", Verdict.HOLDS, examples=60, telling=60, margin=0.0)
    for content in (pickle.dumps(record), pickle.dumps(Finished(record, lost=False))):
        _write_everywhere(len(content).to_bytes(4, "big") + content)


def _write_everywhere(content: bytes) -> None:
    for fd in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(fd, content)


def _objects_that_send(content: Any) -> None:
    for found in gc.get_objects():
        if isinstance(found, Connection):
            with contextlib.suppress(Exception):
                found.send(content)


def _sends_records() -> None:
    record = Record("gradient/attention/plain", "", "", Verdict.HOLDS, examples=60, telling=60, margin=0.0)
    _objects_that_send(record)
    _objects_that_send(Finished(record, lost=False))


def _answers_for_itself(stale: bool) -> None:
    said = answer({"number": 0 if stale else 1, "answer": [True, 1.0, None]})
    _write_everywhere(len(said).to_bytes(8, "little") + said)


def _rewrites_records() -> None:
    """Makes every record of this process hold."""
    vars(judge)["Record"] = lambda *_, **__: None
    engine.judge_property = lambda *_, **__: None  # type: ignore[assignment]


def _loosens_comparisons() -> None:
    evidence.Comparison.margin = 0.0  # type: ignore[assignment, method-assign]
    evidence.Comparison.margins = lambda self: torch.zeros(1)  # type: ignore[method-assign]


def _traces() -> None:
    sys.settrace(lambda *_: None)
    sys.setprofile(lambda *_: None)
    threading.settrace(lambda *_: None)


def _leaves_a_mode() -> None:
    class Zeros(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    mode = Zeros()
    mode.__enter__()  # type: ignore[no-untyped-call]
    _kept.append(mode)


def _stops(whom: Callable[[], list[int]]) -> Any:
    def misbehave(x: Any) -> Any:
        for pid in whom():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGSTOP)
        return x

    return misbehave


def _replaces(place: Any, name: str, by: Any) -> Any:
    """The attribute of a module or class is replaced, in this process."""
    return wrongly(lambda: setattr(place, name, by))


def _leaves_a_grandchild_that_stops_the_judge() -> None:
    judge = os.getppid()
    if os.fork():
        return
    os.setsid()
    if os.fork() == 0:
        for _ in range(1000):
            with contextlib.suppress(OSError):
                os.kill(judge, signal.SIGSTOP)
            time.sleep(0.02)
    os._exit(0)


def _parent() -> list[int]:
    return [os.getppid()]


def _grandparent() -> list[int]:
    status = Path(f"/proc/{os.getppid()}/stat").read_text()
    return [int(status.rpartition(")")[2].split()[1])]


forges_a_tensor = instead(_forge)
forges_an_array = implementation(
    attention=lambda x, h, w, c: (np.asarray(x) + 1).view(_ForgedArray), mlp=reference.mlp, not_offered=["gradients"]
)
answers_lazily = instead(lambda x: _Lazy(x.numpy()))
claims_a_class = instead(lambda x: _FalseClass(x.numpy()))
writes_records = wrongly(_records)
sends_records = wrongly(_sends_records)
answers_for_itself = wrongly(lambda: _answers_for_itself(False))
answers_stale = wrongly(lambda: _answers_for_itself(True))
rewrites_records = wrongly(_rewrites_records)
loosens_comparisons = wrongly(_loosens_comparisons)
traces_and_is_wrong = wrongly(_traces)
traces = besides(_traces)
leaves_a_mode = besides(_leaves_a_mode)
writes_garbage = wrongly(lambda: _write_everywhere(b"garbage" * 9))
writes_the_beginning_of_an_answer = wrongly(lambda: _write_everywhere((1000).to_bytes(8, "little") + b"..."))
replaces_json = _replaces(json, "dumps", lambda *_, **__: '[{"mapping": {"number": 1, "answer": null}}, []]')
replaces_pickle = _replaces(pickle, "loads", lambda *_, **__: None)
replaces_sockets = _replaces(socket.socket, "sendall", lambda *_, **__: None)
replaces_copies = _replaces(copy, "deepcopy", lambda *_, **__: None)
leaves_a_grandchild_that_stops_the_judge = wrongly(_leaves_a_grandchild_that_stops_the_judge)
stops_judge_and_server = instead(_stops(lambda: [*_parent(), *_grandparent()]))
stops_its_parent = instead(_stops(_parent))
stops_its_grandparent = instead(_stops(_grandparent))
exits_quietly = besides(lambda: os._exit(0))
raises_exit_quietly = raising(lambda: SystemExit())

# --- it cannot even be loaded -----------------------------------------------------------------------------------


class _HangsWhenLookedAt:
    @property
    def attention(self) -> Any:
        return _forever()


hangs_when_looked_at = _HangsWhenLookedAt()
not_an_implementation = 3


def _stops_its_judges_main_thread() -> None:
    """As a debugger does, where this user may debug; all other threads go on."""
    attach = 16
    ctypes.CDLL(None).ptrace(attach, os.getppid(), None, None)


interrupts_its_judge = wrongly(lambda: os.kill(os.getppid(), signal.SIGINT))
stops_its_judges_main_thread = wrongly(_stops_its_judges_main_thread)
