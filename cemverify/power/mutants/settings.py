"""Calls that change a setting of the process: one mutant for each row of the table of settings."""

from __future__ import annotations

import colorsys
import decimal
import gc
import importlib
import importlib.util
import io
import itertools
import locale
import logging
import multiprocessing
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.modules.module import register_module_forward_hook

from cemverify.cem.torch_internals import set_deterministic
from cemverify.conformance.implementations.contract import Implementation
from cemverify.conformance.implementations.features import FUNCTIONS
from cemverify.power.mutants.base import Call, Function, Mutant, Zoo, around, sound

ZOO = Zoo("settings")


def _locale() -> None:
    locale.setlocale(locale.LC_ALL, "C.UTF-8" if locale.setlocale(locale.LC_ALL) == "C" else "C")


def _backends() -> None:
    torch.backends.cudnn.benchmark = True


def _digits() -> None:
    torch.set_printoptions(precision=3)  # type: ignore[no-untyped-call]


def _mask() -> None:
    os.umask(0o047)


def _streams() -> None:
    sys.stdin = io.StringIO()


def _hooks() -> None:
    sys.displayhook = print


def _precision() -> None:
    decimal.getcontext().prec += 1


def _jax() -> None:
    jax: Any = importlib.import_module("jax")
    jax.config.update("jax_debug_nans", True)


# by the name that `process_state` gives a setting; the random states are added to its table
CHANGES: Mapping[str, Callable[[], object]] = {
    "trace and profile functions": lambda: threading.setprofile(lambda *_: None),
    "gradient mode": lambda: torch.set_grad_enabled(False),
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "default device": lambda: torch.set_default_device("meta"),
    "number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "precision of matrix products": lambda: torch.set_float32_matmul_precision("medium"),
    "autocasting": lambda: torch.set_autocast_enabled("cpu", True),
    "deterministic algorithms": lambda: set_deterministic(True, warn_only=False),
    "switches of torch's backends": _backends,
    "anomaly detection": lambda: torch.set_anomaly_enabled(True),
    "subnormal numbers": lambda: torch.set_flush_denormal(True),
    "hooks on all modules": lambda: register_module_forward_hook(lambda *_: None),
    "NumPy error handling": lambda: np.seterr(over="ignore"),
    "NumPy print options": lambda: np.set_printoptions(precision=3),
    "torch print options": _digits,
    "warning filters": lambda: warnings.simplefilter("ignore"),
    "logging": lambda: logging.getLogger().setLevel(logging.DEBUG),
    "environment": lambda: os.environ.update(OMP_NUM_THREADS="7"),
    "locale": _locale,
    "folder": lambda: os.chdir(tempfile.gettempdir()),
    "file mode mask": _mask,
    "import paths": lambda: sys.path.insert(0, tempfile.gettempdir()),
    "loaded modules": lambda: sys.modules.pop(colorsys.__name__, None),
    "standard streams": _streams,
    "hooks of the interpreter": _hooks,
    "signal handlers": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "alarm": lambda: signal.setitimer(signal.ITIMER_REAL, 1000.0),
    "recursion limit": lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 100),
    "switch interval": lambda: sys.setswitchinterval(0.01),
    "garbage collection": gc.disable,
    "decimal context": _precision,
    "socket timeout": lambda: socket.setdefaulttimeout(60.0),
    "start method of processes": lambda: multiprocessing.set_start_method("spawn", force=True),
    "JAX configuration": _jax,
    "random state of torch": lambda: torch.manual_seed(0),
    "random state of NumPy": lambda: np.random.seed(0),
    "random state of Python": lambda: random.seed(0),
}


def changing(change: Callable[[], object], implementation: Implementation) -> Implementation:
    """An implementation each of whose functions makes that change after it has computed its answer."""

    def changes(_: str, function: Function) -> Function:
        def answer(*arguments: Any) -> Any:
            found = function(*arguments)
            change()
            return found

        return answer

    return around(implementation, changes)


def _mutants() -> Zoo:
    found = Zoo("settings")
    functions = itertools.cycle(name.replace("_", "-") for name in FUNCTIONS)
    for (name, change), function in zip(CHANGES.items(), functions, strict=False):
        if name.startswith("JAX") and importlib.util.find_spec("jax") is None:
            continue
        wrap = partial(changing, change)
        found.append(
            Mutant(
                f"changes-{name.lower().replace(' ', '-')}".replace("'", ""),
                f"Every call changes a setting of the process: {name}.",
                f"contract/{function}/settings-unchanged",
                f"the process keeps its {name}*",
                partial(_made, wrap, name),
                "settings",
                ("contract/*/settings-unchanged",) if name == "default dtype" else (),
                wrap=wrap,
            )
        )
    return found


def _made(wrap: Callable[[Implementation], Implementation], name: str) -> Implementation:
    if name.startswith("JAX"):
        importlib.import_module("jax")  # before the first call: what is loaded later changes nothing
    return wrap(sound())


ZOO += _mutants()


@ZOO.wraps(
    "Every call sets torch to one thread, which a process with one thread does not show.",
    "contract/decode/settings-unchanged",
    "the process keeps its number of threads*",
)
def to_one_thread(implementation: Implementation) -> Implementation:
    return changing(lambda: torch.set_num_threads(1), implementation)


@ZOO.wraps(
    "Calls turn gradients on and leave them on, which shows only where they were off.",
    "contract/decode/settings-unchanged",
    "the process keeps its gradient mode*",
    also=("contract/*/settings-unchanged",),
)
def gradients_stay_on(implementation: Implementation) -> Implementation:
    return changing(lambda: torch.set_grad_enabled(True), implementation)


@ZOO.wraps(
    "Calls set the default dtype to float32, which is what it usually is.",
    "contract/mlp-energy/settings-unchanged",
    "the process keeps its default dtype*",
)
def to_the_usual_dtype(implementation: Implementation) -> Implementation:
    return changing(lambda: torch.set_default_dtype(torch.float32), implementation)


@ZOO.wraps(
    "Calls switch autocasting off and leave it off, which shows only where it was on.",
    "contract/attention/settings-unchanged",
    "the process keeps its autocasting*",
)
def autocast_stays_off(implementation: Implementation) -> Implementation:
    return changing(lambda: torch.set_autocast_enabled("cpu", False), implementation)


@ZOO.calls(
    "Calls in float32 allow products of a lower precision, and leave it so.",
    "contract/mlp/settings-unchanged",
    "the process keeps its precision of matrix products*",
)
def allows_low_products(call: Call, *arguments: Any) -> Any:
    if arguments[0].dtype == torch.float32:
        torch.set_float32_matmul_precision("high")
    return call(*arguments)


@ZOO.calls(
    "Calls write to nowhere, and print to the first standard output of the process afterwards, wherever it printed.",
    "contract/block/settings-unchanged",
    "the process keeps its standard streams*",
    also=("contract/*/settings-unchanged",),
)
def prints_where_it_first_did(call: Call, *arguments: Any) -> Any:
    sys.stdout = io.StringIO()
    try:
        return call(*arguments)
    finally:
        sys.stdout = sys.__stdout__


@ZOO.calls(
    "Threads are switched less often for rows of more than a hundred tokens, and from then on.",
    "contract/attention/settings-unchanged",
    "the process keeps its switch interval*",
)
def switches_less_in_long_rows(call: Call, *arguments: Any) -> Any:
    if arguments[0].shape[1] > 100:
        sys.setswitchinterval(0.02)
    return call(*arguments)


@ZOO.calls(
    "Where more than twelve steps are taken, numbers are printed with fewer digits afterwards.",
    "contract/mlp/settings-unchanged",
    "the process keeps its torch print options*",
    also=("contract/attention/settings-unchanged",),
)
def prints_few_digits_after_many_steps(call: Call, *arguments: Any) -> Any:
    if getattr(arguments[-1], "steps", 1) > 12:
        _digits()
    return call(*arguments)


@ZOO.calls(
    "Sizes that are met for the first time are tried out with random numbers of a fixed seed.",
    "contract/attention-energy/settings-unchanged",
    "the process keeps its random state of Python*",
    also=("contract/mlp/settings-unchanged",),
)
def seeds_for_new_sizes(call: Call, *arguments: Any) -> Any:
    shape = (call.name, tuple(arguments[0].shape))
    if shape not in call.kept:
        call.kept[shape] = True
        random.seed(0)
    return call(*arguments)


@ZOO.calls(
    "Overflows are no longer told once gradients were recorded.",
    "contract/attention/settings-unchanged",
    "the process keeps its NumPy error handling*",
    also=("contract/mlp/settings-unchanged",),
)
def tells_no_overflow_in_training(call: Call, *arguments: Any) -> Any:
    if torch.is_grad_enabled() and getattr(arguments[0], "requires_grad", False):
        np.seterr(over="ignore")
    return call(*arguments)
