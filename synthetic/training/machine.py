"""What a model is trained on: one process or several, CPU or GPU, and what that machine can do.

`torchrun --nproc-per-node 8 -m synthetic language train ...` starts several; each has the whole model and its share
of every batch (DDP), or a share of the model too (FSDP2, --sharded).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist

from cemverify.cem.models import LanguageModel
from cemverify.cem.torch_internals import limit_recompilations
from cemverify.console.errors import Refusal, UsageError, one_of
from cemverify.processes.devices import find_device

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

Value = TypeVar("Value")

# How often torch may compile the same code before it forgets all it compiled. Unless told otherwise it compiles it
# eight times, for eight configurations, and trains the ninth uncompiled.
COMPILED = 32
PEAK_SECONDS = 0.5  # for how long products are repeated to find a device's speed


@dataclass(frozen=True)
class Machine:
    """Where this process computes."""

    device: str = "cpu"  # "cpu", "cuda" or "cuda:1"
    # rank, world: which of how many processes this is
    rank: int = 0
    world: int = 1
    compiled: bool = False  # whether models go through torch.compile
    sharded: bool = False  # whether they are split over the processes

    @property
    def cuda(self) -> bool:
        """Whether it computes on a GPU."""
        return self.device.startswith("cuda")

    def wrap(self, model: LanguageModel) -> nn.Module:
        """The model as it is trained: on the device, shared or split over the processes, compiled."""
        prepared: nn.Module = model.to(self.device)
        if self.compiled:
            _make_room()
        if self.compiled and not self.sharded:
            prepared = torch.compile(prepared)  # type: ignore[assignment]
        if self.sharded:
            from torch.distributed.device_mesh import init_device_mesh

            shard(model, init_device_mesh("cuda" if self.cuda else "cpu", (self.world,)))
            prepared = torch.compile(prepared) if self.compiled else prepared  # type: ignore[assignment]
        elif self.world > 1:
            prepared = nn.parallel.DistributedDataParallel(
                prepared, device_ids=[torch.device(self.device)] if self.cuda else None
            )
        return prepared

    def mean(self, value: Tensor) -> Tensor:
        """The mean over all processes of what each has."""
        if self.world > 1:
            value = value.clone()
            dist.all_reduce(value)
            value /= self.world
        return value

    def wait(self) -> None:
        """Waits until all processes are here and the device has finished its work."""
        synchronise(self.device)
        if self.world > 1:
            dist.barrier()


def shard(model: LanguageModel, mesh: DeviceMesh) -> None:
    """Splits a model over the processes of a mesh: every block by itself, and what is left with the whole (FSDP2)."""
    from torch.distributed.fsdp import fully_shard

    # a block also returns its memory, whose keys are views; no code writes into them
    warnings.filterwarnings("ignore", message=".*returned a view tensor", category=UserWarning)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


_wrapped = 0  # models that went through torch.compile since it last forgot


def _make_room() -> None:
    """Before a model is compiled: room for it, and as a rule what was compiled for another of its configuration."""
    global _wrapped
    if _wrapped == COMPILED:
        torch.compiler.reset()
        _wrapped = 0
    limit_recompilations(2 * COMPILED)  # twice for a model whose last pass is smaller
    _wrapped += 1


def choose(device: str, *, compiled: bool, sharded: bool) -> Machine:
    """The machine that this process is to use; joins the other processes, if torchrun started several.

    Args:
        device: "auto", "cpu" or "cuda".
    """
    one_of("device", device, dict.fromkeys(("auto", "cpu", "cuda")))
    try:
        device = find_device(device)
    except ValueError as error:
        raise UsageError(str(error)) from None
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if sharded and "RANK" not in os.environ:
        raise UsageError(
            "--sharded splits a model over processes: start them with torchrun --nproc-per-node N -m synthetic"
            " language train"
        )
    if "RANK" in os.environ and not dist.is_initialized():
        if device == "cuda":
            device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    return Machine(device, rank, world, compiled, sharded)


def by_the_first(act: Callable[[], Value], *, first: bool) -> Value | None:
    """What the first process has done, which all call together: the others would wait for one that gave up.

    Args:
        first: whether this is the process that acts; the others get None.
    """
    value: Value | None = None
    failed: Refusal | None = None
    if first:
        try:
            value = act()
        except Refusal as error:
            failed = error
    messages = [None if failed is None else str(failed)]
    if dist.is_initialized():
        dist.broadcast_object_list(messages, src=0)
    if messages[0] is not None:
        raise failed or UsageError(messages[0])
    return value


def leave(*, together: bool = True) -> None:
    """Leaves the other processes, if there are any.

    Args:
        together: a process that goes while others still work may take its connections' threads down with it; one that
            failed must not wait for those that wait for it.
    """
    if dist.is_initialized():
        if together:
            dist.barrier()
        dist.destroy_process_group()


def is_in_pieces(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether each process holds a piece of it. Where nobody has imported its class, which takes long, none does."""
    distributed = sys.modules.get("torch.distributed.tensor")
    return distributed is not None and isinstance(tensor, distributed.DTensor)


def one_of_several() -> bool:
    """Whether torchrun started this process beside others."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def compiler_missing(device: str) -> str | None:
    """Why torch.compile cannot work here, in a sentence; None if it can."""
    if device.startswith("cuda"):
        return None  # Triton brings its own
    names = (os.environ.get("CXX"), "g++", "clang++", "c++")
    if any(name and shutil.which(name) for name in names):
        return None
    return "torch.compile needs a C++ compiler and there is none"


@cache
def peak_flops(device: str, precision: str) -> float:
    """FLOP/s of square matrix products on this device with its present threads, the best of several.

    What a model reaches of it is its utilisation. Measured and not looked up: a data sheet knows neither the clock
    nor who else is computing.
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
    """Starts the measurement of `peak_memory` anew, where the system can."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    else:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: str) -> int:
    """Bytes: what torch allocated on the GPU at most, or the most that this process had resident on the CPU.

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
