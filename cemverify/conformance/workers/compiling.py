"""How JAX compiles in the processes of a run: quickly, and each program once.

A check compiles hundreds of tiny functions and calls each a few times, so LLVM's costly passes never pay off. The
processes of a run share a folder of compiled programs. Torch and NumPy read none of these settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

_QUICKLY = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
# Emitting fused kernels by MLIR takes as long as everything else, and splitting a program a quarter of it. XLA ends
# the process at an unknown flag, so only versions of jaxlib between the two that were tried get these.
_PLAINLY = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
TRIED = ((0, 6), (0, 10))


def compiling(environment: Mapping[str, str], folder: str) -> dict[str, str]:
    """An environment in which JAX compiles quickly and keeps programs in that folder; its own settings win."""
    settings = {
        "JAX_COMPILATION_CACHE_DIR": folder,
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    flags = f"{_flags()} {environment.get('XLA_FLAGS', '')}".rstrip()  # the last of two equal flags counts
    return {**settings, **environment, "XLA_FLAGS": flags}


def _flags() -> str:
    first, last = TRIED
    with suppress(PackageNotFoundError):
        if first <= tuple(map(int, version("jaxlib").split(".")[:2])) <= last:
            return f"{_QUICKLY} {_PLAINLY}"
    return _QUICKLY
