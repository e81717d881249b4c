"""A stand-in for a GPU, for a torch without CUDA: built from `absent_gpu.cpp`, loaded before torch.

Without it, fake tensors on "cuda" can be added, but not sliced, cast by autocast or differentiated: for that torch
needs the device's guard, stream and hooks, and a torch without CUDA has none.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path


def missing() -> str | None:
    """Why no stand-in can be built here, in a sentence; None if one can, or if torch itself has CUDA."""
    if _has_cuda() or _compiler():
        return None
    return "a torch without CUDA needs a C++ compiler to rehearse a GPU, and there is none (CXX, g++, clang++, c++)"


def stand_in() -> None:
    """Loads the stand-in, if torch itself has no CUDA.

    Raises:
        RuntimeError: torch has been imported before, or the stand-in cannot be built.
    """
    if "torch" in sys.modules:
        raise RuntimeError("the stand-in for a GPU comes before torch: start a process of its own")
    if _has_cuda():
        return
    if why := missing():
        raise RuntimeError(why)
    torch, source = _torch(), Path(__file__).with_suffix(".cpp")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "absent_gpu.so"
        command = [str(_compiler()), "-O0", "-std=c++20", "-shared", "-fPIC", str(source), "-o", str(library)]
        command += [f"-I{torch / 'include'}", f"-L{torch / 'lib'}", "-lc10", "-ltorch_cpu"]
        built = subprocess.run(command, capture_output=True, text=True)  # noqa: S603 -- a compiler on our file
        if built.returncode:
            raise RuntimeError(f"the stand-in for a GPU cannot be built for this torch: {built.stderr.strip()[:400]}")
        ctypes.CDLL(str(torch / "lib" / "libc10.so"), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def _compiler() -> str | None:
    names = (os.environ.get("CXX"), "g++", "clang++", "c++")
    return next((path for name in names if name and (path := shutil.which(name))), None)


def _torch() -> Path:
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _has_cuda() -> bool:
    return (_torch() / "lib" / "libc10_cuda.so").exists()
