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
from cemverify.power.mutants.base import Call, Zoo, around, fault, followed_by, preceded_by, sound

ZOO = Zoo("settings")


def _digits() -> None:
    torch.set_printoptions(precision=3)  # type: ignore[no-untyped-call]


def _set_jax(option: str, value: object) -> None:
    jax: Any = importlib.import_module("jax")
    jax.config.update(option, value)


# by the name of the setting in `process_state`, with the random states in addition
CHANGES: Mapping[str, Callable[[], object]] = {
    "trace and profile functions": lambda: threading.setprofile(lambda *_: None),
    "gradient mode": lambda: torch.set_grad_enabled(False),
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "default device": lambda: torch.set_default_device("meta"),
    "number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "precision of matrix products": lambda: torch.set_float32_matmul_precision("medium"),
    "autocasting": lambda: torch.set_autocast_enabled("cpu", True),
    "deterministic algorithms": lambda: set_deterministic(True, warn_only=False),
    "switches of torch's backends": partial(setattr, torch.backends.cudnn, "benchmark", True),
    "anomaly detection": lambda: torch.set_anomaly_enabled(True),
    "subnormal numbers": lambda: torch.set_flush_denormal(True),
    "hooks on all modules": lambda: register_module_forward_hook(lambda *_: None),
    "NumPy error handling": lambda: np.seterr(over="ignore"),
    "NumPy print options": lambda: np.set_printoptions(precision=3),
    "torch print options": _digits,
    "warning filters": lambda: warnings.simplefilter("ignore"),
    "logging": lambda: logging.getLogger().setLevel(logging.DEBUG),
    "environment": lambda: os.environ.update(OMP_NUM_THREADS="7"),
    "locale": lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8" if locale.setlocale(locale.LC_ALL) == "C" else "C"),
    "folder": lambda: os.chdir(tempfile.gettempdir()),
    "file mode mask": lambda: os.umask(0o047),
    "import paths": lambda: sys.path.insert(0, tempfile.gettempdir()),
    "loaded modules": lambda: sys.modules.pop(colorsys.__name__, None),
    "standard streams": lambda: setattr(sys, "stdin", io.StringIO()),
    "hooks of the interpreter": partial(setattr, sys, "displayhook", print),
    "signal handlers": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "alarm": lambda: signal.setitimer(signal.ITIMER_REAL, 1000.0),
    "recursion limit": lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 100),
    "switch interval": lambda: sys.setswitchinterval(0.01),
    "garbage collection": gc.disable,
    "decimal context": lambda: setattr(decimal.getcontext(), "prec", decimal.getcontext().prec + 1),
    "socket timeout": lambda: socket.setdefaulttimeout(60.0),
    "start method of processes": lambda: multiprocessing.set_start_method("spawn", force=True),
    "JAX configuration": partial(_set_jax, "jax_debug_nans", True),
    "random state of torch": lambda: torch.manual_seed(0),
    "random state of NumPy": lambda: np.random.seed(0),
    "random state of Python": lambda: random.seed(0),
}


def changing(change: Callable[[], object], implementation: Implementation) -> Implementation:
    """An implementation in which each function makes this change after it has computed its answer."""
    answer = followed_by(lambda *_: change())
    return around(implementation, lambda _, function: partial(answer, function))


def _beside_jax() -> Implementation:
    importlib.import_module("jax")  # before the first call: a later import would change nothing
    return sound()


_HAS_JAX = importlib.util.find_spec("jax") is not None

ZOO += [
    ZOO.wrapping(
        f"changes-{name.lower().replace(' ', '-')}".replace("'", ""),
        f"Every call changes a setting of the process: {name}.",
        f"contract/{function}/settings-unchanged",
        f"setting: {name}*",
        partial(changing, change),
        also=("contract/*/settings-unchanged",) if name == "default dtype" else (),
        original=_beside_jax if name.startswith("JAX") else sound,
    )
    for (name, change), function in zip(
        CHANGES.items(), itertools.cycle(name.replace("_", "-") for name in FUNCTIONS), strict=False
    )
    if _HAS_JAX or not name.startswith("JAX")
]
ZOO += [
    ZOO.wrapping(
        id_,
        f"Calls set JAX's option {option} to {value!r}, and leave it so.",
        f"contract/{function}/settings-unchanged",
        "setting: JAX configuration*",
        partial(changing, partial(_set_jax, option, value)),
        original=_beside_jax,
    )
    for id_, option, value, function in (
        ("jax-widens-its-arrays", "jax_enable_x64", True, "attention"),
        ("jax-multiplies-precisely", "jax_default_matmul_precision", "highest", "mlp"),
    )
    if _HAS_JAX
]


@ZOO.calls("contract/mlp/settings-unchanged", "setting: default dtype*")
@fault("The default dtype is float32 for the time of a call, and put back where it answers, not where it refuses.")
def narrow_after_a_refusal(call: Call, *arguments: Any) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    answer = call(*arguments)
    torch.set_default_dtype(before)
    return answer


ZOO += [
    ZOO.wrapping("to-one-thread",
        "Every call sets torch to one thread, which a process with one thread does not show.",
        "contract/decode/settings-unchanged", "setting: number of threads*",
        wrap=partial(changing, lambda: torch.set_num_threads(1))),
    ZOO.wrapping("gradients-stay-on",
        "Calls turn gradients on and leave them on, which shows only where they were off.",
        "contract/decode/settings-unchanged", "setting: gradient mode*", also=("*",),
        wrap=partial(changing, lambda: torch.set_grad_enabled(True))),
    ZOO.wrapping("to-the-usual-dtype", "Calls set the default dtype to float32, which is what it usually is.",
        "contract/mlp-energy/settings-unchanged", "setting: default dtype*",
        wrap=partial(changing, lambda: torch.set_default_dtype(torch.float32))),
    ZOO.wrapping("autocast-stays-off",
        "Calls switch autocasting off and leave it off, which shows only where it was on.",
        "contract/attention/settings-unchanged", "setting: autocasting*",
        wrap=partial(changing, lambda: torch.set_autocast_enabled("cpu", False))),
    ZOO.wrapping("closes-a-standard-stream", "Calls close the standard input, as a `with sys.stdin` does at its end.",
        "contract/mlp/settings-unchanged", "setting: standard streams*",
        wrap=partial(changing, lambda: sys.stdin.close())),
    ZOO.calling("allows-low-products", "Calls in float32 allow products of a lower precision, and leave it so.",
        "contract/mlp/settings-unchanged", "setting: precision of matrix products*",
        answer=preceded_by(lambda _, x, *rest:
            torch.set_float32_matmul_precision("high") if x.dtype == torch.float32 else None)),
]  # fmt: skip


@ZOO.calls("contract/block/settings-unchanged", "setting: standard streams*", also=("*",))
@fault(
    "Calls write to nowhere, and print to the first standard output of the process afterwards, wherever it printed."
)
def prints_where_it_first_did(call: Call, *arguments: Any) -> Any:
    sys.stdout = io.StringIO()
    try:
        return call(*arguments)
    finally:
        sys.stdout = sys.__stdout__


ZOO += [
    ZOO.calling("switches-less-in-long-rows",
        "Threads are switched less often for rows of more than a hundred tokens, and from then on.",
        "contract/attention/settings-unchanged", "setting: switch interval*",
        answer=preceded_by(lambda _, x, *rest: sys.setswitchinterval(0.02) if x.shape[1] > 100 else None)),
    ZOO.calling("prints-few-digits-after-many-steps",
        "Where more than twelve steps are taken, numbers are printed with fewer digits afterwards.",
        "contract/mlp/settings-unchanged", "setting: torch print options*", also=("attention",),
        answer=preceded_by(lambda *a: _digits() if getattr(a[-1], "steps", 1) > 12 else None)),
]  # fmt: skip


@ZOO.calls("contract/attention-energy/settings-unchanged", "setting: random state of Python*", also=("mlp",))
@fault("Sizes that are met for the first time are tried out with random numbers of a fixed seed.")
def seeds_for_new_sizes(call: Call, *arguments: Any) -> Any:
    shape = (call.name, tuple(arguments[0].shape))
    if shape not in call.memory:
        call.memory[shape] = True
        random.seed(0)
    return call(*arguments)


@ZOO.calls("contract/attention/settings-unchanged", "setting: NumPy error handling*", also=("mlp",))
@fault("Overflows are no longer told once gradients were recorded.")
def tells_no_overflow_in_training(call: Call, *arguments: Any) -> Any:
    if torch.is_grad_enabled() and getattr(arguments[0], "requires_grad", False):
        np.seterr(over="ignore")
    return call(*arguments)
