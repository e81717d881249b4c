"""What JAX is told of compiling in the processes of a run: quickly, and no program twice.

A check compiles hundreds of tiny functions and calls each a few times, so that LLVM's costly passes never pay. The
programs lie in a folder that the processes of a run share. Torch and NumPy read none of this.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

_QUICKLY = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
# Emitting fused kernels by MLIR takes as long again as all the rest, and splitting a program a quarter. XLA ends the
# process where it does not know a flag, so only versions of jaxlib between the two that were tried are given these.
_PLAINLY = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
TRIED = ((0, 6), (0, 10))


def compiling(environment: Mapping[str, str], folder: str) -> dict[str, str]:
    """An environment in which JAX compiles quickly and keeps programs in that folder, but for what it says itself."""
    settings = {
        "JAX_COMPILATION_CACHE_DIR": folder,
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    flags = f"{_flags()} {environment.get('XLA_FLAGS', '')}".rstrip()  # of two alike the last one counts
    return {**settings, **environment, "XLA_FLAGS": flags}


def _flags() -> str:
    first, last = TRIED
    with suppress(PackageNotFoundError):
        if first <= tuple(map(int, version("jaxlib").split(".")[:2])) <= last:
            return f"{_QUICKLY} {_PLAINLY}"
    return _QUICKLY
