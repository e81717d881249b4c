"""What a model is trained on, CPU or GPU, and what that machine can do."""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cemverify.cem.devices import triton_missing
from cemverify.cem.models import LanguageModel
from cemverify.cem.torch_internals import limit_recompilations
from cemverify.console.errors import UsageError, one_of
from cemverify.console.streams import note
from cemverify.processes.devices import find_device

# How often torch may compile the same code before we make it forget everything. By default torch compiles the same
# code for eight configurations, and runs the ninth uncompiled.
COMPILED = 32
PEAK_SECONDS = 0.5  # matrix products are repeated this long to measure a device's speed


@dataclass(frozen=True)
class Machine:
    """Where this process computes."""

    device: str = "cpu"  # "cpu" or "cuda"
    compiled: bool = False  # whether models go through torch.compile

    @property
    def cuda(self) -> bool:
        """Whether it computes on a GPU."""
        return self.device.startswith("cuda")

    def wrap(self, model: LanguageModel) -> nn.Module:
        """The model as it is trained: on the device, its blocks compiled, identical blocks once.

        The model itself stays uncompiled: it is scored and probed too seldom for compilation to pay.
        """
        prepared = model.to(self.device)
        if not self.compiled:
            return prepared
        _make_room()
        trained = copy.copy(prepared)
        blocks = nn.ModuleList(self.fused(block) for block in prepared.blocks)
        trained._modules = {**prepared._modules, "blocks": blocks}
        return trained

    def fused(self, function: Callable[..., Any]) -> Any:
        """The function or module, compiled if models are compiled."""
        return torch.compile(function, dynamic=False) if self.compiled else function


_wrapped = 0  # models that went through torch.compile since it last forgot


def _make_room() -> None:
    """Makes room before a model is compiled; usually keeps what was compiled for models of the same configuration."""
    global _wrapped
    if _wrapped == COMPILED:
        torch.compiler.reset()
        _wrapped = 0
    limit_recompilations(2 * COMPILED)  # twice for a model whose last pass is smaller
    _wrapped += 1


def choose(device: str, *, compiled: bool | None) -> Machine:
    """The machine that this process uses.

    Args:
        device: "auto", "cpu" or "cuda". compiled: `asked` of `compiles`.
    """
    one_of("device", device, dict.fromkeys(("auto", "cpu", "cuda")))
    try:
        found = find_device(device)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return Machine(found, compiles(found, compiled))


def compiles(device: str, asked: bool | None) -> bool:
    """Whether to use torch.compile: as asked, by default only on a GPU. Where it cannot work, a note says why."""
    wanted = device.startswith("cuda") if asked is None else asked
    missing = compiler_missing(device) if wanted else None
    if missing is not None:
        note(f"note: {missing}; training goes on without it")
    return wanted and missing is None


def compiler_missing(device: str) -> str | None:
    """Why torch.compile cannot work here, in a sentence; None if it has just compiled a small function."""
    if device.startswith("cuda"):
        if (missing := triton_missing()) is not None:
            return f"torch.compile on a GPU needs {missing}"
    elif not any(name and shutil.which(name) for name in (os.environ.get("CXX"), "g++", "clang++", "c++")):
        return "torch.compile needs a C++ compiler and there is none (CXX, g++, clang++, c++)"
    try:
        torch.compile(torch.neg)(torch.ones(8, device=device))
    except Exception as error:
        return f"torch.compile fails on this machine ({(str(error).splitlines() or [repr(error)])[0]})"
    return None


@cache
def peak_flops(device: str, precision: str) -> float:
    """FLOP/s of square matrix products on this device with the current number of threads, the best of several.

    The share of it that a model reaches is the model's utilisation. It is measured, since a data sheet knows neither
    the clock rate nor the load from other programs.
    """
    dtype = getattr(torch, precision)
    size = 8192 if device.startswith("cuda") else 768
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(size, size, generator=generator).to(device, dtype)
    a @ a
    synchronise(device)
    best, began = float("inf"), time.perf_counter()
    while time.perf_counter() - began < PEAK_SECONDS:
        started = time.perf_counter()
        for _ in range(4):
            a @ a
        synchronise(device)
        best = min(best, (time.perf_counter() - started) / 4)
    return 2 * size**3 / best


def synchronise(device: str) -> None:
    """Waits until a GPU has finished its work; a CPU always has."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def forget_peak_memory(device: str) -> None:
    """Restarts the measurement of `peak_memory`, where the system can."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    else:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: str) -> int:
    """Bytes: the most that torch allocated on the GPU, or that this process had resident on the CPU.

    0 where the system does not say.
    """
    if device.startswith("cuda"):
        return int(torch.cuda.max_memory_allocated())
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])
    with contextlib.suppress(ImportError):
        import resource

        usage: Any = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # since the process began
        return int(usage) * (1 if sys.platform == "darwin" else 1024)
    return 0
