"""The state of the process that a call may change. It is restored after each call, or reported if that fails."""

from __future__ import annotations

import builtins
import copy
import gc
import json
import math
import os
import pickle
import random
import signal
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch

# Where the verifier finds what it computes and answers with; its own modules are added.
_TOOLS: tuple[ModuleType | type, ...] = (
    *(builtins, copy, json, math, os, pickle, random, time, np, np.random, np.linalg),
    *(torch, torch.Tensor, torch.autograd, torch.linalg, torch.nn.functional, torch.random),
)


@dataclass(frozen=True)
class ProcessState:
    """Modes, defaults and settings that one call could change for all later calls."""

    folder: str
    path: tuple[str, ...]
    gradients: bool
    dtype: torch.dtype
    device: torch.device
    threads: int
    warnings: tuple[Any, ...]
    numpy_errors: Any
    recursion: int
    collects: bool
    alarm: float
    tracing: tuple[Any, ...]

    @classmethod
    def now(cls) -> ProcessState:
        """The state as it is now."""
        return cls(
            os.getcwd(),
            tuple(sys.path),
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
            torch.get_default_device(),
            torch.get_num_threads(),
            tuple(warnings.filters),
            np.geterr(),
            sys.getrecursionlimit(),
            gc.isenabled(),
            signal.getitimer(signal.ITIMER_REAL)[0],
            (sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile()),
        )

    def restore(self) -> None:
        """Restores the state."""
        trace, profile, trace_threads, profile_threads = self.tracing
        if sys.gettrace() is not trace:  # first, since it sees every call of what follows
            sys.settrace(trace)
        if sys.getprofile() is not profile:
            sys.setprofile(profile)
        threading.settrace(trace_threads)
        threading.setprofile(profile_threads)
        sys.setrecursionlimit(self.recursion)
        if not self.alarm:  # one that was set before is somebody else's
            signal.setitimer(signal.ITIMER_REAL, 0)
        if tuple(warnings.filters) != self.warnings:
            with warnings.catch_warnings():  # leaves by telling the cache that filters changed
                pass
            warnings.filters[:] = list(self.warnings)  # type: ignore[index]
        if tuple(sys.path) != self.path:
            sys.path[:] = self.path
        torch.set_grad_enabled(self.gradients)
        torch.set_default_dtype(self.dtype)
        if torch.get_default_device() != self.device:
            # the CPU needs no mode that says so
            torch.set_default_device(None if self.device.type == "cpu" else self.device)
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        if np.geterr() != self.numpy_errors:
            np.seterr(**self.numpy_errors)
        (gc.enable if self.collects else gc.disable)()
        os.chdir(self.folder)


class Originals:
    """The functions that the verifier itself uses, so that a replaced one is noticed.

    A replaced `torch.softmax` would change the golden answer along with the implementation's. This catches
    carelessness. Code that sets out to deceive a verifier in its own process can do so.
    """

    def __init__(self) -> None:
        ours = [m for name, m in list(sys.modules.items()) if name.partition(".")[0] == "cemverify"]
        self.known = [(place, _functions(place)) for place in (*_TOOLS, *ours)]
        self.modes = torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()

    def replaced(self) -> list[str]:
        """The names of replaced functions, and of modes that cannot be left."""
        names = [
            f"{place.__name__}.{name}"
            for place, functions in self.known
            for name, function in functions.items()
            if vars(place).get(name) is not function
        ]
        if torch.is_inference_mode_enabled():
            names.append("torch.inference_mode")
        if torch._C._len_torch_function_stack() > self.modes[0]:
            names.append("torch functions, by a TorchFunctionMode")
        if torch._C._len_torch_dispatch_stack() > self.modes[1]:
            names.append("torch operators, by a TorchDispatchMode")
        return names


def _functions(place: ModuleType | type) -> dict[str, Any]:
    # torch wraps its manual_seed when it first compiles; the judge has generators of its own
    return {name: value for name, value in vars(place).items() if callable(value) and name != "manual_seed"}
