"""The state of the process that a call must not change: one table of settings, to read, compare and restore.

The property `settings-unchanged` says which settings a call changed, so nothing is restored silently. Settings that
would change later answers are restored after every call; all others after every property.

Setting what is already set changes nothing. So before a call, most settings can be given another value, one that no
right call minds.
"""

from __future__ import annotations

import builtins
import copy
import decimal
import gc
import io
import json
import locale
import logging
import math
import multiprocessing
import os
import pickle
import random
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.nn.modules import module as torch_modules

from cemverify.cem.torch_internals import count_modes, print_options, set_deterministic

# modules with which the verifier computes and answers; its own modules are added
_TOOLS: tuple[ModuleType | type, ...] = (
    *(builtins, copy, json, math, os, pickle, random, time, np, np.random, np.linalg),
    *(torch, torch.Tensor, torch.autograd, torch.linalg, torch.nn.functional, torch.random),
)


@dataclass(frozen=True)
class Setting:
    """One setting of the process."""

    name: str  # as a phrase: "default dtype"
    read: Callable[[], Any]  # its value, in a form that can be compared
    put: Callable[[Any], object]  # sets it to a value that was read earlier
    decides: bool = False  # whether answers may depend on it; then it is restored after every call
    # given the value, another one that changes nothing for a right call; None if there is none
    other: Callable[[Any], Any] | None = None


_Access = tuple[Callable[[], Any], Callable[[Any], object]]  # reads a setting, and puts it


def _each(*settings: _Access) -> _Access:
    """Several settings as one, with their values in a tuple."""

    def put(values: tuple[Any, ...]) -> None:
        for (_, put_one), value in zip(settings, values, strict=True):
            put_one(value)

    return lambda: tuple([read() for read, _ in settings]), put


def _attribute(place: object, name: str) -> _Access:
    """What reads an attribute of an object, and what sets it."""
    return partial(getattr, place, name), partial(setattr, place, name)


def _idle(*_: Any, **__: Any) -> None:
    """A hook that does nothing."""


def _put_filters(filters: tuple[Any, ...]) -> None:
    with warnings.catch_warnings():  # leaving it tells the cache that filters changed
        pass
    warnings.filters[:] = list(filters)  # type: ignore[index]


def _put_environment(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


_CUDA: Any = torch.backends.cuda  # some of its functions are not typed


def _device() -> torch.device:
    try:
        return torch.get_default_device()
    except AttributeError:  # torch 2.6 raises this after the default device was set to None
        return torch.device("cpu")


def _put_device(device: torch.device) -> None:
    # the CPU needs no mode
    torch.set_default_device(None if device.type == "cpu" else device)


_LEAST = 2.0**-1074  # the smallest subnormal number


def _put_signals(handlers: tuple[Any, ...]) -> None:
    for number, handler in zip(_SIGNALS, handlers, strict=True):
        with suppress(ValueError, TypeError, OSError):  # not in the main thread, or a handler that Python did not set
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)


_SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGCHLD", "SIGPIPE", "SIGUSR1", "SIGUSR2", "SIGFPE", "SIGHUP")
    if hasattr(signal, name)
)


def _alarm() -> bool:
    return hasattr(signal, "getitimer") and signal.getitimer(signal.ITIMER_REAL)[0] > 0


def _put_alarm(running: bool) -> None:
    if not running:  # an alarm that was set before belongs to somebody else
        signal.setitimer(signal.ITIMER_REAL, 0)


def _logging() -> tuple[Any, ...]:
    root = logging.root
    return root.level, tuple(root.handlers), root.disabled, root.manager.disable


def _put_logging(state: tuple[Any, ...]) -> None:
    root = logging.root
    root.level, root.handlers[:], root.disabled, root.manager.disable = state[0], state[1], state[2], state[3]
    root.manager._clear_cache()  # type: ignore[attr-defined]


def _put_hooks(lengths: tuple[int, ...]) -> None:
    for hooks, length in zip(_HOOKS, lengths, strict=True):
        while len(hooks) > length:
            hooks.popitem()


_HOOKS: tuple[dict[Any, Any], ...] = tuple(
    value for name, value in vars(torch_modules).items() if name.startswith("_global_") and isinstance(value, dict)
)


def _imports() -> tuple[Any, ...]:
    return tuple(sys.path), tuple(sys.meta_path), tuple(sys.path_hooks)


def _put_imports(paths: tuple[Any, ...]) -> None:
    sys.path[:], sys.meta_path[:], sys.path_hooks[:] = paths


@dataclass(frozen=True, eq=False)
class _Named:
    """Objects by name. Adding one is no change; removing or replacing one is."""

    objects: dict[str, Any]

    def __eq__(self, later: object) -> bool:
        if not isinstance(later, _Named):
            return False
        # the usual case first, for speed
        return later.objects == self.objects or later.objects.items() >= self.objects.items()


def _put_collector(state: tuple[Any, ...]) -> None:
    (gc.enable if state[0] else gc.disable)()
    gc.set_threshold(*state[1])
    del gc.callbacks[state[2] :]


def _decimal() -> tuple[Any, ...]:
    context = decimal.getcontext()
    return context.prec, context.rounding, context.Emin, context.Emax


def _put_decimal(state: tuple[Any, ...]) -> None:
    context = decimal.getcontext()
    context.prec, context.rounding, context.Emin, context.Emax = state


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it has been deleted
        return ""


def _streams() -> list[Any]:
    return [stream if _is_open(stream) else None for stream in (sys.stdin, sys.stdout, sys.stderr)]


def _is_open(stream: Any) -> bool:
    with suppress(Exception):  # there is none, or it is detached from its file
        return not stream.closed
    return False


def _put_streams(streams: list[Any]) -> None:
    for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
        # a closed stream cannot be reopened
        setattr(sys, name, stream if _is_open(stream) else open(os.devnull, "r+"))  # noqa: SIM115


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _jax() -> _Named:
    jax = sys.modules.get("jax")
    return _Named({} if jax is None else dict(jax.config.values))


def _put_jax(options: _Named) -> None:
    jax = sys.modules.get("jax")
    if jax is not None:
        for name, value in options.objects.items():
            if jax.config.values.get(name) is not value:
                jax.config.update(name, value)


SETTINGS: Sequence[Setting] = (
    # first, since it sees every call of what follows
    Setting(
        "trace and profile functions",
        *_each(
            (sys.gettrace, sys.settrace),
            (sys.getprofile, sys.setprofile),
            (threading.gettrace, threading.settrace),
            (threading.getprofile, threading.setprofile),
        ),
        decides=True,
    ),
    Setting("gradient mode", torch.is_grad_enabled, torch.set_grad_enabled, decides=True, other=lambda _: False),
    Setting(
        "default dtype", torch.get_default_dtype, torch.set_default_dtype, decides=True, other=lambda _: torch.float64
    ),
    Setting("default device", _device, _put_device, decides=True),
    Setting(
        "number of threads", torch.get_num_threads, torch.set_num_threads, decides=True, other=lambda some: some + 2
    ),
    Setting(
        "precision of matrix products",
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
        decides=True,
        other=lambda precision: "highest" if precision == "high" else "high",
    ),
    Setting(
        "autocasting",
        *_each(
            (partial(torch.is_autocast_enabled, "cpu"), partial(torch.set_autocast_enabled, "cpu")),
            (partial(torch.is_autocast_enabled, "cuda"), partial(torch.set_autocast_enabled, "cuda")),
            (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
            (partial(torch.get_autocast_dtype, "cpu"), partial(torch.set_autocast_dtype, "cpu")),
            (partial(torch.get_autocast_dtype, "cuda"), partial(torch.set_autocast_dtype, "cuda")),
        ),
        decides=True,
        other=lambda modes: (*modes[:2], not modes[2], *modes[4:2:-1]),
    ),
    Setting(
        "deterministic algorithms",
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        lambda on: set_deterministic(on[0], warn_only=on[1]),
        decides=True,
        other=lambda on: (not on[0], True),
    ),
    Setting(
        "switches of torch's backends",
        *_each(
            *(_attribute(torch.backends.cudnn, name) for name in ("enabled", "benchmark", "deterministic")),
            _attribute(torch.backends.mkldnn, "enabled"),
            (_CUDA.flash_sdp_enabled, _CUDA.enable_flash_sdp),
            (_CUDA.mem_efficient_sdp_enabled, _CUDA.enable_mem_efficient_sdp),
            (_CUDA.math_sdp_enabled, _CUDA.enable_math_sdp),
        ),
        other=lambda flags: (flags[0], not flags[1], not flags[2], *flags[3:]),
    ),
    Setting(
        "anomaly detection",
        torch.is_anomaly_enabled,
        torch.set_anomaly_enabled,
        decides=True,
        other=lambda on: not on,
    ),
    Setting(
        "subnormal numbers",
        lambda: _LEAST * 1.0 > 0,
        lambda exact: torch.set_flush_denormal(not exact),
        decides=True,
        other=lambda exact: not exact,
    ),
    Setting("hooks on all modules", lambda: tuple(map(len, _HOOKS)), _put_hooks, decides=True),
    Setting(
        "NumPy error handling",
        *_each(
            (np.geterr, lambda errors: np.seterr(**errors)),
            (np.geterrcall, np.seterrcall),
            (np.getbufsize, np.setbufsize),
        ),
        decides=True,
        other=lambda state: (dict.fromkeys(state[0], "ignore"), _idle, 2 * state[2]),
    ),
    Setting(
        "NumPy print options",
        np.get_printoptions,
        lambda options: np.set_printoptions(**options),
        other=lambda options: {**options, "precision": options["precision"] + 1},
    ),
    Setting(
        "torch print options",
        lambda: dict(print_options()),
        lambda options: print_options().update(options),
        other=lambda options: {**options, "precision": options["precision"] + 1},
    ),
    Setting(
        "warning filters",
        lambda: tuple(warnings.filters),
        _put_filters,
        decides=True,
        other=lambda filters: (("ignore", None, Warning, None, 0), *filters),
    ),
    Setting("logging", _logging, _put_logging, other=lambda state: (state[0] + 1, *state[1:])),
    Setting(
        "environment",
        lambda: dict(os.environ),
        _put_environment,
        other=lambda variables: {**variables, "OMP_NUM_THREADS": "5", "MKL_NUM_THREADS": "5"},
    ),
    Setting("locale", lambda: locale.setlocale(locale.LC_ALL), lambda name: locale.setlocale(locale.LC_ALL, name)),
    Setting("folder", _folder, os.chdir, decides=True),
    Setting("file mode mask", _umask, os.umask, other=lambda mask: mask ^ 0o020),
    Setting("import paths", _imports, _put_imports, other=lambda paths: ((*paths[0], os.devnull), *paths[1:])),
    Setting("loaded modules", lambda: _Named(dict(sys.modules)), lambda modules: sys.modules.update(modules.objects)),
    Setting("standard streams", _streams, _put_streams, other=lambda _: [io.StringIO() for _ in range(3)]),
    Setting(
        "hooks of the interpreter",
        *_each(
            *(_attribute(sys, name) for name in ("excepthook", "displayhook", "unraisablehook")),
            _attribute(threading, "excepthook"),
            _attribute(warnings, "showwarning"),
        ),
        other=lambda hooks: (_idle,) * len(hooks),
    ),
    Setting(
        "signal handlers",
        lambda: tuple(map(signal.getsignal, _SIGNALS)),
        _put_signals,
        other=lambda handlers: tuple(
            signal.SIG_IGN if number.name.startswith("SIGUSR") else handler
            for number, handler in zip(_SIGNALS, handlers, strict=True)
        ),
    ),
    Setting("alarm", _alarm, _put_alarm, decides=True),
    Setting(
        "recursion limit", sys.getrecursionlimit, sys.setrecursionlimit, decides=True, other=lambda limit: limit + 7
    ),
    Setting("switch interval", sys.getswitchinterval, sys.setswitchinterval, other=lambda seconds: seconds * 2),
    Setting(
        "garbage collection",
        lambda: (gc.isenabled(), gc.get_threshold(), len(gc.callbacks)),
        _put_collector,
        decides=True,
        other=lambda state: (not state[0], (state[1][0] + 7, *state[1][1:]), state[2]),
    ),
    Setting("decimal context", _decimal, _put_decimal, other=lambda state: (state[0] + 1, *state[1:])),
    Setting("socket timeout", socket.getdefaulttimeout, socket.setdefaulttimeout, other=lambda _: 77.0),
    Setting(
        "start method of processes",
        lambda: multiprocessing.get_start_method(allow_none=True),
        lambda method: multiprocessing.set_start_method(method, force=True),
    ),
    Setting("JAX configuration", _jax, _put_jax),
)


@dataclass(frozen=True)
class ProcessState:
    """The values of settings at one time."""

    settings: Sequence[Setting]  # which
    values: tuple[Any, ...]  # their values, in that order

    @classmethod
    def now(cls, settings: Sequence[Setting] = SETTINGS) -> ProcessState:
        """The settings of this process at the moment."""
        return cls(settings, tuple([setting.read() for setting in settings]))

    def restore(self) -> list[str]:
        """Restores every setting that has changed since; returns their names."""
        pairs = zip(self.settings, self.values, strict=True)
        changed = [(setting, value) for setting, value in pairs if value != setting.read()]
        for setting, value in changed:
            setting.put(value)
        return [setting.name for setting, _ in changed]


@contextmanager
def at_other_values() -> Iterator[None]:
    """Within, every setting that has another harmless value has that one."""
    usual = ProcessState.now()
    try:
        for setting, value in zip(usual.settings, usual.values, strict=True):
            if setting.other is not None:
                setting.put(setting.other(value))
        yield
    finally:
        usual.restore()


DECIDING: Sequence[Setting] = tuple(setting for setting in SETTINGS if setting.decides)


class Originals:
    """The functions that the verifier itself uses, so that a replaced one is noticed.

    A replaced `torch.softmax` would change the golden answer along with the implementation's. This catches
    carelessness. Code that sets out to deceive a verifier in its own process still can.
    """

    def __init__(self) -> None:
        ours = [m for name, m in list(sys.modules.items()) if name.partition(".")[0] == "cemverify"]
        self.objects = [(place, _functions(place)) for place in (*_TOOLS, *ours)]
        self.modes = count_modes()

    def replaced(self) -> list[str]:
        """The names of replaced functions, and of modes that are still active."""
        names = [
            f"{place.__name__}.{name}"
            for place, functions in self.objects
            for name, function in functions.items()
            if vars(place).get(name) is not function
        ]
        if torch.is_inference_mode_enabled():
            names.append("torch.inference_mode")
        of_functions, of_operators = count_modes()
        if of_functions > self.modes[0]:
            names.append("torch functions, by a TorchFunctionMode")
        if of_operators > self.modes[1]:
            names.append("torch operators, by a TorchDispatchMode")
        return names


def _functions(place: ModuleType | type) -> dict[str, Any]:
    # torch wraps manual_seed when it first compiles; the judge has its own generators
    return {name: value for name, value in vars(place).items() if callable(value) and name != "manual_seed"}
